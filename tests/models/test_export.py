"""torch.export takes every network, for batches of any size and texts of any length. ONNX takes
most. The exported program computes what the network computes."""
import pytest
import torch
from helpers import generator, loud, masked_autoencoder, text_network, tokens
from torch.export import Dim, export

from engine import networks
from model_dino import DINO, DINOConfig

# The sizes that may differ from call to call. Programs are exported with the first sizes, and used
# with the others. Texts of 1 and of 16 tokens are the shortest and the longest; functions in
# context have two tokens for each example.
ANY_BATCH = Dim('batch')
ANY_LENGTH = Dim('length', max=16)
ANY_EXAMPLES = Dim('examples', max=8)
FIRST_SIZES = (3, 10)
OTHER_SIZES = [(2, 4), (5, 16), (1, 1)]

TEXTS = [
    ('crate', {}),
    ('crate', dict(causal=False)),
    ('crate_alpha', {}),
    ('aot', dict(tie_out=True)),
    ('aot', dict(attn='mhsa', mlp=True, bias=True)),
    ('tost', dict(layer_scale=1.0)),
]
PICTURES = [
    ('crate', {}),
    ('crate', dict(pool='mean')),
    ('crate_alpha', {}),
    ('aot', {}),
    ('tost', dict(layer_scale=1.0)),
    ('vit', {}),
]


def text_with_biases(name, settings):
    """A network of text. The biases of ToST are not zero, as they are at the start."""
    model = text_network(name, n_layer=1, **settings)
    if name == 'tost':
        torch.nn.init.normal_(model.layers[0].attn.b)
    return model


def classifier(name, **settings):
    """A network of pictures of 8 x 8, with attention far from uniform."""
    Network, Config = networks.network_class(name), networks.config_class(name)
    torch.manual_seed(0)
    small = dict(image_size=8, patch_size=4, num_classes=4, n_layer=1, n_head=2, n_embd=16)
    return loud(Network(Config(**small | settings)))


def pictures(*shape):
    return torch.randn(*shape, 3, 8, 8, generator=generator(2))


def exported(model, inputs, sizes):
    """The program that torch.export makes of the network. sizes: for each input, which of its
    dimensions may differ from call to call."""
    return export(model, inputs, dynamic_shapes=sizes).module()


def same(program, model, *inputs):
    """Whether both have the same outputs. There may be no loss, None."""
    for actual, expected in zip(program(*inputs), model(*inputs), strict=True):
        if expected is None:
            if actual is not None:
                return False
        elif not torch.allclose(actual, expected, atol=1e-6):
            return False
    return True


# ---- torch.export

@pytest.mark.parametrize('name, settings', TEXTS)
def test_a_network_of_text_takes_any_batch_and_any_length(name, settings):
    model = text_with_biases(name, settings)

    program = exported(model, (tokens(*FIRST_SIZES),), [{0: ANY_BATCH, 1: ANY_LENGTH}])

    for sizes in OTHER_SIZES:
        assert same(program, model, tokens(*sizes))


@pytest.mark.parametrize('name, settings', PICTURES)
def test_a_network_of_pictures_takes_any_batch(name, settings):
    model = classifier(name, **settings)

    program = exported(model, (pictures(3),), [{0: ANY_BATCH}])

    for B in (1, 2, 5):
        assert same(program, model, pictures(B))


def test_functions_in_context_take_any_batch_and_any_number_of_examples():
    model = text_network('aot', n_layer=1, n_dims=3)

    def examples(B, n):
        x = torch.randn(B, n, 3, generator=generator(2))
        return x, x.sum(dim=2)

    sizes = {0: ANY_BATCH, 1: ANY_EXAMPLES}
    program = exported(model, examples(3, 5), [sizes, sizes])

    for B, n in ((2, 4), (5, 8), (1, 1)):
        assert same(program, model, *examples(B, n))


@pytest.mark.parametrize('name', ['crate_mae', 'vit_mae'])
def test_a_masked_autoencoder_takes_any_batch(name):
    model, x, noise = masked_autoencoder(name)

    program = exported(model, (x, noise), [{0: ANY_BATCH}, {0: ANY_BATCH}])

    for B in (1, 2, 5):
        other_x = torch.randn(B, *x.shape[1:], generator=generator(2))
        other_noise = torch.rand(B, noise.size(1), generator=generator(3))
        assert same(program, model, other_x, other_noise)


@pytest.mark.parametrize('name', ['crate_mae', 'vit_mae'])
def test_a_masked_autoencoder_draws_noise_for_any_batch(name):
    model, x, _ = masked_autoencoder(name)
    program = exported(model, (x,), [{0: ANY_BATCH}])

    x = torch.cat((x, x))                                   # 6 pictures, exported were 3
    first, _ = program(x)
    second, _ = program(x)

    assert first.shape == (6, 12, 24)
    assert not torch.equal(first, second)
    assert not torch.equal(first[:3], first[3:])


def test_dino_takes_any_batch():
    """SimDINO is exported in training mode only: in evaluation mode it looks at the features to
    decide whether to warn."""
    torch.manual_seed(0)
    model = DINO(DINOConfig(n_layer=1, n_head=2, n_embd=16, image_size=8, patch_size=4, out_dim=8,
                            hidden_dim=8, bottleneck_dim=4)).eval()
    crops = ({1: ANY_BATCH}, {1: ANY_BATCH})                # the large ones, the small ones

    program = exported(model, ((pictures(2, 3), pictures(4, 3)),), [crops])

    for B in (2, 5):
        assert same(program, model, (pictures(2, B), pictures(4, B)))


def test_a_loss_takes_any_batch():
    model = text_with_biases('tost', dict(layer_scale=1.0))
    sizes = {0: ANY_BATCH, 1: ANY_LENGTH}
    program = exported(model, (tokens(*FIRST_SIZES), tokens(*FIRST_SIZES)), [sizes, sizes])
    assert same(program, model, tokens(2, 4), tokens(2, 4, seed=2))

    model = classifier('crate')
    classes = torch.tensor([3, 0, 1])
    program = exported(model, (pictures(3), classes), [{0: ANY_BATCH}, {0: ANY_BATCH}])
    assert same(program, model, pictures(2), classes[1:])


# ---- ONNX
# It has no stable sort, which decides what a masked autoencoder hides.

def onnx_outputs(model, inputs, sizes):
    """A function that computes the first output of the network by ONNX's reference."""
    pytest.importorskip('onnxscript')
    reference = pytest.importorskip('onnx.reference')
    program = torch.onnx.export(model, inputs, dynamo=True, dynamic_shapes=sizes, verbose=False)
    evaluator = reference.ReferenceEvaluator(program.model_proto)

    def first_output(x):
        return torch.from_numpy(evaluator.run(None, {evaluator.input_names[0]: x.numpy()})[0])
    return first_output


@pytest.mark.slow
@pytest.mark.parametrize('name, settings', [
    ('crate', {}),
    ('tost', dict(layer_scale=1.0)),
])
def test_onnx_takes_text_of_any_batch_and_any_length(name, settings):
    model = text_with_biases(name, settings)

    compute = onnx_outputs(model, (tokens(*FIRST_SIZES),), [{0: ANY_BATCH, 1: ANY_LENGTH}])

    for sizes in OTHER_SIZES:
        ids = tokens(*sizes)
        assert torch.allclose(compute(ids), model(ids)[0], atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize('name', ['crate', 'tost'])
def test_onnx_takes_pictures_of_any_batch(name):
    model = classifier(name)

    compute = onnx_outputs(model, (pictures(3),), [{0: ANY_BATCH}])

    for B in (1, 2, 5):
        assert torch.allclose(compute(pictures(B)), model(pictures(B))[0], atol=1e-5)
