"""The lines of `attention` in a model file are what runs, they compute what PyTorch's kernel
computes, and a run stops if somebody edits them and leaves the kernel in front of them."""
import inspect
import sys
from bdb import BdbQuit
from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F

from helpers import fails, loud, text_network, tokens

import model_aot
import model_crate
import model_crate_mae
import model_vit
import train
from engine.mistakes import Mistake
from engine.networks import config_class, network_class
from request.forms import check_forms

# the other files have copies of their attention, see tests/models/test_copies.py
FILES = (model_crate, model_crate_mae, model_vit)
all_files = pytest.mark.parametrize('file', FILES, ids=lambda file: file.__name__)

SMALL = dict(n_layer=2, n_head=2, n_embd=16)
TEXT = SMALL | dict(block_size=24, vocab_size=50)
PICTURES = SMALL | dict(image_size=8, patch_size=4)


def random_tensors(count, *shape, dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator, dtype=dtype) for _ in range(count)]


# ---- what is computed

@all_files
def test_the_lines_compute_what_the_kernel_computes(file):
    """In float64 the lines run where there is a gradient, and the kernel where there is none."""
    q, k, v = random_tensors(3, 2, 4, 9, 5)
    takes = inspect.signature(file.attention).parameters
    for settings in ({}, {'is_causal': True}):
        if settings.keys() <= takes.keys():
            wanted = F.scaled_dot_product_attention(q, k, v, **settings)
            for needs_gradient in (False, True):
                result = file.attention(q.requires_grad_(needs_gradient), k, v, **settings)
                assert torch.allclose(result, wanted, atol=1e-12)


@pytest.mark.parametrize('file', [model_crate, model_vit])
def test_dropout_in_the_lines_keeps_the_mean(file):
    """Of nine equal weights some are 0, and those that are not are 1 / (9 - 9 / 4)."""
    q = torch.zeros(1, 1, 9, 9, dtype=torch.float64, requires_grad=True)

    weights = file.attention(q, q, torch.eye(9).double()[None, None], dropout_p=0.25)

    assert (weights == 0).any()
    assert torch.allclose(weights[weights > 0], torch.tensor(1 / (9 * 0.75)).double())


@all_files
def test_the_lines_in_bfloat16_equal_the_kernel_in_float32(file):
    """Gradients too. So a network learns on a CPU in bfloat16 what it learns elsewhere."""
    exact = random_tensors(3, 2, 4, 33, 16, dtype=torch.float32)
    weight = torch.randn(2, 4, 33, 16)
    results = []
    for dtype in (torch.float32, torch.bfloat16):
        inputs = [t.to(dtype, copy=True).requires_grad_() for t in exact]
        out = file.attention(*inputs)
        (out * weight).sum().backward()
        results.append([out.detach().float(), *(t.grad.float() for t in inputs)])
    for in_float32, in_bfloat16 in zip(*results):
        # bfloat16 has 8 bits: 0.4% an operation
        assert (in_float32 - in_bfloat16).norm() < 0.01 * in_float32.norm()


# ---- which lines run

def lines_run(function, call):
    """Numbers of the lines of a function, counted from its first one, that Python enters during
    call()."""
    code, first = function.__code__, function.__code__.co_firstlineno
    lines = set()

    def trace(frame, event, arg):
        if frame.f_code is not code:
            return None
        if event == 'line':
            lines.add(frame.f_lineno - first)
        return trace

    earlier = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(earlier)
    return lines


def line_with(function, text):
    """The number of the one line of a function that has this text, counted from its first one."""
    lines = inspect.getsource(function).splitlines()
    numbers = [number for number, line in enumerate(lines) if text in line]
    assert len(numbers) == 1
    return numbers[0]


def training_step(model, dtype, n_tokens=12):
    x, y = tokens(2, n_tokens), tokens(2, n_tokens, seed=1)
    with torch.autocast('cpu', dtype, enabled=dtype != torch.float32):
        loss = model(x, y)[1]
    loss.backward()


@pytest.mark.parametrize('name, settings', [('aot', dict(attn='mhsa')), ('crate', {})])
def test_which_lines_of_attention_run(name, settings):
    """In training in bfloat16 each line that spells attention out, and not the kernel. In float32
    and in sampling the kernel."""
    model = text_network(name, **settings)
    attention = sys.modules[type(model).__module__].attention
    kernel = line_with(attention, 'return F.scaled_dot_product_attention')
    last = line_with(attention, 'return weights @ v')
    spelled_out = set(range(line_with(attention, 'q = q / math.sqrt'), last + 1))

    in_bfloat16 = lines_run(attention, lambda: training_step(model, torch.bfloat16))
    in_float32 = lines_run(attention, lambda: training_step(model, torch.float32))
    in_sampling = lines_run(attention, lambda: model.generate(tokens(1, 3), 4))

    assert spelled_out <= in_bfloat16 and kernel not in in_bfloat16
    assert kernel in in_float32 and not spelled_out & in_float32
    assert kernel in in_sampling and not spelled_out & in_sampling


def test_more_tokens_than_512_take_the_kernel_which_stores_no_matrix_of_all_pairs():
    model = text_network('aot', block_size=600)
    kernel = line_with(model_aot.attention, 'return F.scaled_dot_product_attention')

    for n_tokens in (512, 513):
        lines = lines_run(model_aot.attention,
                          lambda: training_step(model, torch.bfloat16, n_tokens))
        assert (kernel in lines) == (n_tokens == 513)


def without_kernel(source):
    """The source of an `attention` without the statement with the kernel."""
    start = source.index('    lines_are_faster = ')
    end = source.index('\n', source.index('return F.scaled_dot_product_attention'))
    return source[:start] + source[end:]


def put_into(file, source, monkeypatch):
    """Give a model file another `attention`."""
    names = {'math': file.math, 'torch': torch, 'F': F, '__name__': file.__name__}
    exec(source, names)
    monkeypatch.setattr(file, 'attention', names['attention'])


def test_without_the_kernel_the_lines_run_everywhere(monkeypatch):
    model, x = loud(text_network('aot')), tokens(2, 12)
    wanted, text = model(x)[0], model.generate(x[:1, :4], 8, temperature=0)
    put_into(model_aot, without_kernel(inspect.getsource(model_aot.attention)), monkeypatch)
    counted = []
    softmax = torch.Tensor.softmax
    monkeypatch.setattr(torch.Tensor, 'softmax', lambda t, dim: counted.append(1) or softmax(t, dim))

    assert torch.allclose(model(x)[0], wanted, atol=1e-5)
    assert len(counted) == model.config.n_layer
    assert torch.equal(model.generate(x[:1, :4], 8, temperature=0), text)
    assert len(counted) > 8 * model.config.n_layer


# ---- edits

EDITS = [('-math.inf', '-math.e'), ('q = q /', 'q = 1.01 * q /'),
         ('scores = scores + later', 'scores = scores + later + later.mT.roll(20, 1)')]


@pytest.mark.parametrize('old, new', EDITS)
def test_lines_that_somebody_edited_below_the_kernel_stop_a_run(old, new, monkeypatch):
    """Without the kernel they run."""
    source = inspect.getsource(model_crate.attention)
    edited = source.replace(old, new)
    assert edited != source
    model = model_crate.CRATE(model_crate.CRATEConfig(**TEXT, image_size=0))
    for text, stops in ((edited, True), (without_kernel(edited), False), (source, False)):
        put_into(model_crate, text, monkeypatch)
        with pytest.raises(Mistake, match='model_crate') if stops else nullcontext():
            check_forms(model)


def test_a_window_that_a_layer_asks_for_stops_a_run_too(monkeypatch):
    """Of ten tokens, in a network that reads 24."""
    source = inspect.getsource(model_aot.attention)
    source = source.replace('is_causal=False):', 'is_causal=False, window=0):', 1)
    source = source.replace('    weights = scores', '''    if window:
        scores = scores + q.new_full((N, N), -math.inf).tril(-window)
    weights = scores''')
    put_into(model_aot, source, monkeypatch)

    class Windowed(model_aot.MSSA):
        def forward(self, z):
            proj = self.U(z).unflatten(2, (self.K, -1)).transpose(1, 2)
            heads = model_aot.attention(proj, proj, proj, is_causal=True, window=10)
            return self.W(heads.transpose(1, 2).flatten(2))

    model = model_aot.AoT(model_aot.AoTConfig(**TEXT))
    check_forms(model)
    model.layers[1].attn.__class__ = Windowed
    with pytest.raises(Mistake, match='Windowed'):
        check_forms(model)


def test_frozen_weights_and_a_learned_scalar_are_checked_too(monkeypatch):
    source = inspect.getsource(model_aot.attention)
    put_into(model_aot, source.replace('q = q /', 'q = 2 * q /'), monkeypatch)
    model = model_aot.AoT(model_aot.AoTConfig(**TEXT)).requires_grad_(False)
    for layer in model.layers:
        layer.attn.temperature = torch.nn.Parameter(torch.tensor(2.0))
    with torch.no_grad(), pytest.raises(Mistake):
        check_forms(model)


def quit_debugger(*args, **settings):
    raise BdbQuit


def test_who_quits_a_debugger_in_attention_ends_the_program(monkeypatch):
    """Neither the comparison of both forms nor the trial of a cache goes on then."""
    model = loud(text_network('aot'))
    monkeypatch.setattr(model_aot, 'attention', quit_debugger)
    for call in (lambda: check_forms(model), lambda: model.generate(tokens(1, 3), 2)):
        with pytest.raises(BdbQuit):
            call()


def test_the_check_changes_nothing():
    model = model_aot.AoT(model_aot.AoTConfig(**TEXT, dropout=0.1)).train()
    weights = {name: t.clone() for name, t in model.state_dict().items()}
    random_state = torch.get_rng_state()

    check_forms(model)

    assert torch.equal(torch.get_rng_state(), random_state)
    assert all(torch.equal(t, weights[name]) for name, t in model.state_dict().items())
    assert all(module.training for module in model.modules())
    assert all(p.grad is None for p in model.parameters())


def test_train_says_in_one_line_what_to_delete(tiny, monkeypatch, tmp_path, capsys):
    source = inspect.getsource(model_aot.attention)
    put_into(model_aot, source.replace('q = q /', 'q = 2 * q /'), monkeypatch)

    said = fails(capsys, train.main, *tiny, f'--out_dir={tmp_path}/out')

    assert 'model_aot.py' in said and 'scaled_dot_product_attention' in said
    assert not (tmp_path / 'out').exists()


# ---- tokens in bfloat16

@pytest.mark.parametrize('name, settings', [
    ('aot', TEXT | dict(mlp=True)), ('crate', PICTURES), ('crate_alpha', PICTURES),
    ('tost', PICTURES), ('vit', PICTURES)])
def test_a_network_learns_the_same_in_bfloat16(name, settings):
    """On a CPU tokens are in bfloat16 from the first layer on. Without autocast nothing is
    rounded."""
    Network, Config = network_class(name), config_class(name)
    torch.manual_seed(0)
    model = Network(Config(**settings))
    if 'vocab_size' in settings:
        x, y = torch.randint(50, (2, 4, 24))
    else:
        x, y = torch.randn(4, 3, 8, 8), torch.randint(5, (4,))
    entered = []
    model.layers[0].register_forward_pre_hook(lambda layer, args: entered.append(args[0].dtype))
    losses, gradients = [], []
    for dtype in (torch.float32, torch.bfloat16):
        model.zero_grad()
        with torch.autocast('cpu', dtype, enabled=dtype == torch.bfloat16):
            loss = model(x, y)[1]
        loss.backward()
        losses.append(loss.item())
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    assert entered == [torch.float32, torch.bfloat16]
    assert abs(losses[1] - losses[0]) < 5e-3 * losses[0]
    assert torch.cosine_similarity(*gradients, dim=0) > 0.995
