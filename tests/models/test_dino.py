"""DINO and SimDINO: they equal the released code. Nothing of the student's gradient reaches the
teacher. Small crops are read with interpolated positions. A collapse ends if two crops correlate
above the threshold."""
import json

import pytest
import torch
import torch.nn.functional as F
from helpers import ROOT
from torch._dynamo.testing import CompileCounter

from engine import networks
from model_dino import (DINO, DINOConfig, DINOHead, cosine, cross_entropy, next_centre,
                        probabilities, simdino_terms)
from scoring.flops import train_flops
from tasks.task_views import expansion_in, least_correlation
from train import TrainConfig, learning_rate_factor, weight_decay_at
from weights.surgery import resize_positions

FOLDER = ROOT / 'tests' / 'golden'
GOLDEN = json.loads((FOLDER / 'dino.json').read_text())
GOLDEN_SIMDINO = json.loads((FOLDER / 'simdino.json').read_text())
SMALL = dict(n_layer=2, n_head=2, n_embd=16, image_size=16, patch_size=4, out_dim=32, hidden_dim=24,
             bottleneck_dim=8)


def noise(*shape, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def features(*shape, seed=1):
    return F.normalize(noise(*shape, seed=seed), dim=-1)


def crops_of_3_pictures(n_small=2):
    """(large crops, small crops)"""
    large = noise(2, 3, 3, 16, 16, seed=1)
    small = noise(n_small, 3, 3, 8, 8, seed=2)
    return large, small


def moved(**settings):
    """A network in training whose student has left the teacher."""
    torch.manual_seed(0)
    model = DINO(DINOConfig(**SMALL | settings)).train()
    for p in model.student.parameters():
        p.data += 0.1 * torch.randn_like(p)
    return model


# ---- the objective of DINO


@pytest.fixture(scope='module')
def steps():
    """(golden numbers, loss, gradient of the student, centre) of each step."""
    g = GOLDEN['loss']
    crops = g['crops']
    rows = g['rows']
    K = g['classes']
    centre = torch.zeros(K)
    results = []
    for t, expected in enumerate(g['steps']):
        student = noise(crops * rows, K, seed=100 + t).view(crops, rows, K).requires_grad_()
        teacher = noise(2 * rows, K, seed=200 + t).view(2, rows, K)
        temperature = min(0.04 + 0.01 * expected['epoch'], 0.07)  # of the teacher: it warms up
        P_t = probabilities(teacher, centre, temperature)
        loss = cross_entropy(student, P_t, g['student_temperature'])
        loss.backward()
        centre = next_centre(centre, teacher.mean((0, 1)), g['center_momentum'])
        results.append((expected, loss.item(), student.grad.flatten(), centre))
    return results


def test_the_loss_equals_the_released_code(steps):
    for expected, loss, _, _ in steps:
        assert loss == pytest.approx(expected['loss'], rel=1e-6)


def test_the_gradient_equals_the_released_code(steps):
    for expected, _, gradient, _ in steps:
        size = gradient.abs().sum().item()
        assert size == pytest.approx(expected['student_grad_sum_abs'], rel=1e-5)
        assert gradient[:4].tolist() == pytest.approx(expected['student_grad_first4'], abs=1e-6)


def test_the_centre_equals_the_released_code(steps):
    for expected, _, _, centre in steps:
        assert centre.tolist() == pytest.approx(expected['center_after'], abs=1e-6)


# ---- heads


def golden_head(g, out_dim):
    """A head with the names, shapes and weights of a golden file."""
    head = DINOHead(g['in'], out_dim, g['hidden'], g['bottleneck'], g['layers'])
    shapes = [[name, list(tensor.shape)] for name, tensor in head.state_dict().items()]
    assert shapes == [row[:2] for row in g['state_dict']]

    weights = {}
    for i, (name, shape) in enumerate(shapes):
        if name.endswith('weight_g'):
            weights[name] = torch.ones(shape)
        else:
            weights[name] = 0.05 * noise(*shape, seed=1000 + i)
    head.load_state_dict(weights)
    return head


def test_the_head_of_dino_equals_the_released_code():
    g = GOLDEN['head']
    x = noise(4, g['in'], seed=7)

    out = golden_head(g, g['out'])(x)

    assert (out - torch.tensor(g['output'])).abs().max() < 1e-5


@pytest.fixture
def simdino_head():
    """(head of SimDINO, golden numbers, its input)"""
    g = GOLDEN_SIMDINO['head']
    return golden_head(g, 0), g, 20 * noise(g['rows'], g['in'], seed=7)


def test_the_head_of_simdino_equals_the_released_code(simdino_head):
    head, g, x = simdino_head

    assert (head(x) - torch.tensor(g['output'])).abs().max() < 1e-5


def test_features_of_simdino_have_length_1_in_bfloat16_too(simdino_head):
    head, _, x = simdino_head

    with torch.autocast('cpu', torch.bfloat16):
        lengths = head(x).norm(dim=-1)

    assert (lengths - 1).abs().max() < 1e-6


# ---- schedules


def test_the_momentum_of_the_teacher_equals_the_released_code():
    expected = GOLDEN['schedules']['momentum 0.996 to 1']

    momentum = [cosine(0.996, 1.0, i / len(expected)) for i in range(len(expected))]

    assert momentum == pytest.approx(expected, abs=1e-6)


def test_weight_decay_equals_the_released_code():
    expected = GOLDEN['schedules']['weight decay 0.04 to 0.4']
    c = TrainConfig(weight_decay=0.04, weight_decay_end=0.4, max_iters=len(expected))

    decays = [weight_decay_at(c, i) for i in range(len(expected))]

    assert decays == pytest.approx(expected, abs=1e-6)


def test_weight_decay_without_an_end_is_constant():
    assert weight_decay_at(TrainConfig(weight_decay=0.3), 3) == 0.3


def test_learning_rates_after_the_warmup_equal_the_released_code():
    """Its warm-up begins with zero. docs/papers.md says with what ours begins."""
    expected = GOLDEN['schedules']['learning rate 5e-4 to 1e-6']
    warmup = expected.index(max(expected)) + 1
    c = TrainConfig(warmup_iters=warmup, lr_decay_iters=35, learning_rate=5e-4, min_lr=1e-6)

    rates = [5e-4 * learning_rate_factor(c, i) for i in range(warmup, 35)]

    assert rates == pytest.approx(expected[warmup:], abs=1e-9)


# ---- the objective of SimDINO

CASES = GOLDEN_SIMDINO['cases']


def simdino_case(t):
    """(golden numbers, vectors, features of the student, features of the teacher). Divided by their
    lengths, the vectors are the features of the student."""
    g = CASES[t]
    crops = g['crops']
    rows = g['rows']
    width = g['width']
    vectors = noise(crops * rows, width, seed=100 + t).requires_grad_()
    student = F.normalize(vectors, dim=-1).view(crops, rows, width)
    teacher = features(2 * rows, width, seed=200 + t).view(2, rows, width)
    return g, vectors, student, teacher


@pytest.mark.parametrize('t', range(len(CASES)))
def test_alignment_and_expansion_equal_the_released_code(t):
    """With several processes that code sees the pictures of one, but counts all pictures. So its
    eps acts as our eps times their number, and its gamma is another one."""
    g, _, student, teacher = simdino_case(t)
    eps = g['processes'] * g['eps']

    alignment, expansion = simdino_terms(student, teacher, eps, g['expa_type'] == 1)
    rate = expansion.item() / (1 / g['width'] + 1 / g['rows'])

    assert alignment.item() == pytest.approx(g['compression'], abs=1e-6)
    assert g['gamma'] * rate == pytest.approx(g['expansion'], abs=1e-5)


@pytest.mark.parametrize('t', [0, 1, 2, 3])  # the cases of one process
def test_the_loss_of_simdino_and_its_gradient_equal_the_released_code(t):
    g, vectors, student, teacher = simdino_case(t)
    expected = g['raw_student_grad']

    alignment, expansion = simdino_terms(student, teacher, g['eps'], g['expa_type'] == 1)
    loss = -g['coeff'] * alignment - expansion
    loss.backward()

    assert loss.item() == pytest.approx(g['loss_in_float64'], abs=1e-6)
    assert vectors.grad.abs().sum().item() == pytest.approx(expected['sum_abs'], rel=1e-5)
    assert vectors.grad[0, :4].tolist() == pytest.approx(expected['first4'], abs=1e-6)


def test_the_loss_of_simdino_hardly_depends_on_the_precision_of_features():
    student = features(4, 6, 16)
    teacher = features(2, 6, 16, seed=2)

    terms = simdino_terms(student, teacher, 0.05, True)
    rounded = simdino_terms(student.bfloat16(), teacher.bfloat16(), 0.05, True)

    for term, term_of_rounded in zip(terms, rounded):
        assert term.dtype == torch.float64
        assert term_of_rounded.item() == pytest.approx(term.item(), abs=0.01)


def test_without_a_cholesky_factor_the_expansion_is_no_number():
    huge = 1e12 * noise(2, 4, 16, seed=1)  # in float64 nothing is left of the identity

    alignment, expansion = simdino_terms(huge, huge, 0.05, False)

    assert alignment.isfinite()
    assert expansion.isnan()


# ---- how large an expansion can be: the published recipe in one process of 64 pictures, and of 512

RECIPE = GOLDEN_SIMDINO['published_recipe']
WIDTH = RECIPE['width']


def expansion_of(Z):
    """The expansion of two large crops with the same features Z (N, p)."""
    Z = Z.expand(2, -1, -1)
    return simdino_terms(Z, Z, RECIPE['eps'], False)[1].item()


@pytest.mark.parametrize('N, key', [
    (64, 'largest_possible_with_one_process_of_64_rows'),
    (512, 'largest_possible_with_one_process_of_512_rows_or_reduce_cov'),
])
def test_the_largest_expansion_is_that_of_orthogonal_features_and_the_smallest_of_equal_ones(
        N, key):
    config = DINOConfig(objective='simdino', bottleneck_dim=WIDTH, eps=RECIPE['eps'])
    orthogonal = torch.eye(WIDTH).repeat(2, 1)[:N]  # of 512, two lie on each axis
    equal_ones = torch.eye(WIDTH)[:1].expand(N, -1)
    largest = expansion_of(orthogonal)
    smallest = expansion_of(equal_ones)

    assert largest == pytest.approx(RECIPE[key], rel=1e-6)
    assert largest == pytest.approx(expansion_in(min(WIDTH, N), config, N), rel=1e-6)
    assert smallest == pytest.approx(expansion_in(1, config, N), rel=1e-6)
    assert 10 * smallest < expansion_of(features(N, WIDTH)) < largest


# ---- after a collapse: features are a little off one vector, in one direction

COLLAPSES = GOLDEN_SIMDINO['collapse']['cases']


def correlated(N, rho):
    """Two columns of N numbers, of mean 0, variance 1 and correlation rho: (2, N)."""
    columns = torch.cat([torch.ones(N, 1), noise(N, 2, seed=3)], dim=1).double()
    orthogonal = torch.linalg.qr(columns)[0]
    first = N ** 0.5 * orthogonal[:, 1]
    second = N ** 0.5 * orthogonal[:, 2]
    return torch.stack((first, rho * first + (1 - rho ** 2) ** 0.5 * second))


def slope_of_the_loss(case):
    """How fast the loss grows with the differences of the student's features."""
    differences = 1e-4 * correlated(case['N'], case['rho'])[..., None]      # (2, N, 1)
    axes = torch.eye(case['p'], dtype=torch.float64)
    gain = torch.ones((), dtype=torch.float64, requires_grad=True)

    def crops(d):
        return (1 - d ** 2).sqrt() * axes[0] + d * axes[1]
    alignment, expansion = simdino_terms(crops(gain * differences), crops(differences),
                                         case['eps'], case['expa_type'] == 1)
    loss = -case['c'] * alignment - expansion
    loss.backward()
    return gain.grad.item() / 1e-8


def threshold(case):
    config = DINOConfig(bottleneck_dim=case['p'], eps=case['eps'], alignment_weight=case['c'],
                        pair=case['expa_type'] == 1)
    return least_correlation(config, case['N'])


@pytest.mark.parametrize('case', COLLAPSES)
def test_differences_grow_if_two_crops_correlate_above_the_threshold(case):
    slope = slope_of_the_loss(case)

    assert slope == pytest.approx(case['measured_slope'], rel=1e-3)
    assert threshold(case) == pytest.approx(case['threshold'])
    differences_grow = slope < 0
    assert differences_grow == (case['rho'] > threshold(case))


# ---- the networks


@pytest.fixture(scope='module', params=[
    ('crate', 'dino'),
    ('vit', 'simdino'),
    ('aot', 'dino'),
    ('crate_alpha', 'simdino'),
], ids=str)
def trained(request):
    """A network in the middle of a run, after a backward pass."""
    backbone, objective = request.param
    torch.manual_seed(0)
    model = DINO(DINOConfig(backbone=backbone, objective=objective, **SMALL)).train()
    model.after_step(0.5, lambda t: t + 1e-9)  # without outputs there is no mean for the centre
    model(crops_of_3_pictures())[1].backward()
    model.before_step(0.5)
    return model


def test_the_teacher_says_probabilities_or_features_of_length_1(trained):
    outputs = trained(crops_of_3_pictures())[0]

    if trained.config.objective == 'dino':
        assert outputs.shape == (2, 3, 32)
        sizes = outputs.sum(-1)
    else:
        assert outputs.shape == (2, 3, 8)
        sizes = outputs.norm(dim=-1)
    assert torch.allclose(sizes, torch.ones(2, 3))


def test_no_gradient_reaches_the_teacher(trained):
    for p in trained.teacher.parameters():
        assert p.grad is None


def test_gradients_reach_all_of_the_student(trained):
    for name, p in trained.student.named_parameters():
        if 'weight_g' not in name:
            assert p.grad.abs().sum() > 0, name


def test_operations_can_be_counted():
    assert train_flops(DINO(DINOConfig(**SMALL))) > 0


@pytest.mark.slow
def test_steps_compile_nothing_anew():
    """The share of the run, which changes with each step, is not a constant of the compiled
    network."""
    torch._dynamo.reset()
    model = DINO(DINOConfig(**SMALL | {'n_layer': 1}, warmup_teacher_temp=0.03)).train()
    counter = CompileCounter()
    compiled = torch.compile(model, backend=counter, dynamic=False)

    counts = []
    for step in range(3):
        compiled(crops_of_3_pictures(n_small=0))[1].backward()
        model.after_step((step + 1) / 10, lambda t: t)
        counts.append(counter.frame_count)
    torch._dynamo.reset()

    assert counts[0] > 0
    assert counts[1] == counts[2]


def take_step(model):
    """Two passes, then what follows a step in the middle of a run."""
    model(crops_of_3_pictures())
    model(crops_of_3_pictures())
    model.after_step(0.5, lambda t: t)


@pytest.mark.parametrize('end, momentum', [(1.0, 0.998), (0.9, 0.948)])
def test_the_teacher_follows_the_student(end, momentum):
    """In the middle of a run the momentum is the mean of 0.996 and its end."""
    model = moved(momentum_teacher_end=end)
    student = model.student.state_dict()
    before = {name: tensor.clone() for name, tensor in model.teacher.state_dict().items()}

    take_step(model)

    for name, tensor in model.teacher.state_dict().items():
        expected = momentum * before[name] + (1 - momentum) * student[name]
        assert torch.allclose(tensor, expected, atol=1e-6)


def test_the_centre_follows_the_teacher():
    model = moved()
    outputs = model.teacher(crops_of_3_pictures()[0]).detach()

    take_step(model)

    assert torch.allclose(model.centre, 0.1 * outputs.mean((0, 1)), atol=1e-6)


def test_the_loss_of_a_network_is_the_objective_with_its_centre_and_temperature():
    model = moved(warmup_teacher_temp=0.04, teacher_temp=0.08, warmup_temp_share=0.3)
    model.centre.normal_(std=0.1)
    large, small = crops_of_3_pictures()
    student = torch.cat([model.student(large), model.student(small)])
    teacher = model.teacher(large)

    for share, temperature in ((0.0, 0.04), (0.15, 0.06), (0.3, 0.08), (0.9, 0.08)):
        model.share.fill_(share)
        expected = cross_entropy(student, probabilities(teacher, model.centre, temperature), 0.1)
        assert model((large, small))[1].item() == pytest.approx(expected.item(), rel=1e-5)


@pytest.mark.parametrize('n_small', [0, 2])
def test_the_loss_of_a_simdino_network_is_its_objective_and_that_of_its_terms(n_small):
    model = moved(objective='simdino', eps=0.3, alignment_weight=2.0, pair=False)
    large, small = crops_of_3_pictures(n_small)
    student = model.student(large)
    if n_small > 0:
        student = torch.cat([student, model.student(small)])

    _, loss, terms = model((large, small))

    alignment, expansion = simdino_terms(student, model.teacher(large), 0.3, False)
    expected = -2.0 * alignment - expansion
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    sum_of_terms = -2.0 * terms['alignment'] - terms['expansion']
    assert loss.item() == pytest.approx(sum_of_terms.item(), rel=1e-6)


def test_features_of_another_length_are_noticed_in_validation():
    model = DINO(DINOConfig(objective='simdino', **SMALL)).eval()
    model(crops_of_3_pictures())
    last_map = model.teacher.head.mlp[-1]
    last_map.weight.data.zero_()
    last_map.bias.data.zero_()

    with pytest.warns(UserWarning):
        model(crops_of_3_pictures())


# ---- small crops


@pytest.mark.parametrize('name', ['crate', 'vit'])
def test_small_crops_are_read_with_interpolated_positions(name):
    """A network of their size, with positions as fine-tuning interpolates them, reads them in the
    same way."""
    torch.manual_seed(0)
    model = DINO(DINOConfig(backbone=name, **SMALL))
    Network, Config = networks.network_class(name), networks.config_class(name)
    small_network = Network(Config(n_layer=2, n_head=2, n_embd=16, image_size=(8, 12),
                                   patch_size=4, num_classes=1, pool='cls'))
    weights = dict(model.student.net.state_dict())
    weights['embed.pos'] = resize_positions(weights['embed.pos'], (4, 4), (2, 3))
    small_network.load_state_dict(weights, strict=False)
    x = noise(3, 3, 8, 12, seed=3)

    assert torch.allclose(model.student.features(x), small_network.features(x), atol=1e-6)


def test_small_crops_are_computed_in_the_precision_of_large_ones():
    """Tokens between the layers, under autocast."""
    student = DINO(DINOConfig(**SMALL)).student
    large = torch.randn(2, 3, 16, 16)
    small = torch.randn(2, 3, 8, 8)
    dtypes = []

    def note(layer, args, out):
        dtypes.append(args[0].dtype)

    with torch.autocast('cpu', torch.bfloat16):
        student.net.layers[0].register_forward_hook(note)
        student.features(large)
        student.features(small)

    assert dtypes == [torch.bfloat16, torch.bfloat16]
