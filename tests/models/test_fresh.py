"""Fresh networks. Every parameter is drawn as in the released code, or as a file's header says.
There are as many as in the network that was released, or as a paper counts."""
import pytest
import torch
from helpers import equal

from engine import networks

# ---- how they start


def constant(value):
    return 'constant', value


def normal(deviation):
    return 'normal', deviation


def uniform(bound):
    """Between -bound and bound."""
    return 'uniform', bound


PICTURES = dict(image_size=32, patch_size=8, num_classes=100, n_layer=2, n_head=4, n_embd=96)
TEXT = dict(image_size=0, n_layer=8, n_head=4, n_embd=192, vocab_size=512, block_size=256)
AOT = TEXT | dict(n_layer=9, n_embd=128)

DICTIONARY = uniform((6 / 96) ** 0.5)
PATCHES = uniform((6 / 192) ** 0.5)  # of 8 x 8 x 3 = 192 numbers, in CRATE-alpha
FROM_96 = uniform(96 ** -0.5)  # how PyTorch starts a map from 96 numbers
FROM_192 = uniform(192 ** -0.5)
XAVIER_PATCHES = uniform((6 / 288) ** 0.5)  # 6 / (inputs + outputs), in MAE

# {how the name of a parameter ends: its start}. A parameter that no rule names is 1 if it is the
# weight of a norm, else 0.
GPT2 = {
    'emb.weight': normal(0.02),
    'U.weight': normal(0.02),
    'W.weight': normal(0.005),  # 0.02 / sqrt(2 x 8)
}
STARTS = [
    ('aot', AOT, {
        'emb.weight': normal(0.02),
        'U.weight': normal(0.02),
        'W.weight': normal(0.02 / 3),
    }),
    ('aot', AOT | dict(attn='mhsa', mlp=True, bias=True), {
        'emb.weight': normal(0.02),
        'QKV.weight': normal(0.02),
        'up.weight': normal(0.02),
        'W.weight': normal(0.02 / 18 ** 0.5),
        'down.weight': normal(0.02 / 18 ** 0.5),
    }),
    ('aot', AOT | dict(init='fan_in', mlp=True), {  # variance 1 of what comes in stays so
        'emb.weight': normal(128 ** -0.5),
        'U.weight': normal(128 ** -0.5),
        'up.weight': normal(128 ** -0.5),
        'W.weight': normal((128 * 18) ** -0.5),
        'down.weight': normal((512 * 18) ** -0.5),
    }),
    ('crate', TEXT, GPT2 | {'D': uniform((6 / 192) ** 0.5)}),
    ('crate', PICTURES, {
        'D': DICTIONARY,
        'U.weight': FROM_96,
        'W.weight': FROM_96,
        'W.bias': FROM_96,
        'patch.weight': FROM_192,
        'patch.bias': FROM_192,
        'head.weight': FROM_96,
        'head.bias': FROM_96,
        'cls': normal(1.0),
        'pos': normal(1.0),
    }),
    ('crate_alpha', TEXT | dict(decoupled=False, skip=False),
     GPT2 | {'D': uniform((6 / 192) ** 0.5)}),
    ('crate_alpha', PICTURES, {
        'D': DICTIONARY,
        'D1': DICTIONARY,
        'patch.weight': PATCHES,
        'U.weight': normal(0.02),
        'W.weight': normal(0.02),
        'head.weight': normal(0.02),
        'pos': normal(0.02),
        'cls': normal(1e-6),
    }),
    ('tost', TEXT | dict(bias=True), GPT2 | {
        'up.weight': normal(0.02),
        'down.weight': normal(0.005),
        'temp': constant(1),
        'gamma': constant(1e-5),
    }),
    ('tost', PICTURES | dict(n_layer=8), {
        'U.weight': normal(0.02),
        'W.weight': normal(0.005),
        'up.weight': normal(0.02),
        'down.weight': normal(0.005),
        'QKV.weight': normal(0.02),
        'head.weight': normal(0.02),
        'cls': normal(0.02),
        'temp': constant(1),
        'gamma': constant(1e-5),
        'embed.pos.weight': uniform(1 / 8),
        'embed.pos.bias': uniform(1 / 8),
        '0.0.weight': uniform(27 ** -0.5),  # of the stem: convolutions, then their norms
        '2.0.weight': uniform((9 * 24) ** -0.5),
        '4.0.weight': uniform((9 * 48) ** -0.5),
        '0.1.weight': constant(1),
        '2.1.weight': constant(1),
        '4.1.weight': constant(1),
    }),
    ('vit', PICTURES, {
        'QKV.weight': normal(0.02),
        'W.weight': normal(0.02),
        'up.weight': normal(0.02),
        'down.weight': normal(0.02),
        'head.weight': normal(0.02),
        'pos': normal(0.02),
        'cls': normal(1e-6),
        'patch.weight': FROM_192,
        'patch.bias': FROM_192,
    }),
    ('crate_mae', PICTURES, {
        'D': DICTIONARY,
        'E.weight': DICTIONARY,
        'U.weight': uniform((6 / 192) ** 0.5),
        'W.weight': uniform((6 / 192) ** 0.5),
        'patch.weight': XAVIER_PATCHES,
        'patch.bias': FROM_192,
        'pixels.weight': XAVIER_PATCHES,
        'cls': normal(0.02),
        'mask_token': normal(0.02),
    }),
    ('vit_mae', PICTURES | dict(decoder_n_embd=96, decoder_n_head=4), {
        'QKV.weight': uniform((6 / 384) ** 0.5),
        'W.weight': uniform((6 / 192) ** 0.5),
        'up.weight': uniform((6 / 480) ** 0.5),
        'down.weight': uniform((6 / 480) ** 0.5),
        'decoder_embed.weight': uniform((6 / 192) ** 0.5),
        'patch.weight': XAVIER_PATCHES,
        'patch.bias': FROM_192,
        'pixels.weight': XAVIER_PATCHES,
        'cls': normal(0.02),
        'mask_token': normal(0.02),
    }),
]


def start_of(name, rules):
    for ending, rule in rules.items():
        if name.endswith(ending):
            return rule
    if 'norm' in name and name.endswith('weight'):
        return constant(1)
    return constant(0)


def assert_spread(name, p, deviation, share_within):
    """Fails unless a parameter has mean 0, this deviation, and this share of its numbers within
    one deviation, as far as so many numbers tell."""
    rough = 3 * p.numel() ** -0.5
    n_within = (p.abs() < deviation).sum().item()
    assert p.std().item() == pytest.approx(deviation, rel=rough), name
    assert abs(p.mean().item()) < rough * deviation, name
    assert n_within / p.numel() == pytest.approx(share_within, abs=rough), name


@pytest.mark.parametrize('network_name, settings, rules', STARTS)
def test_every_parameter_starts_as_it_should(network_name, settings, rules):
    Network, Config = networks.network_class(network_name), networks.config_class(network_name)
    known_settings = {key: value for key, value in settings.items() if hasattr(Config, key)}
    torch.manual_seed(0)
    model = Network(Config(**known_settings))

    for name, p in model.named_parameters():
        kind, size = start_of(name, rules)
        if kind == 'constant':
            assert torch.equal(p, torch.full_like(p, size)), name
        elif kind == 'normal':
            assert_spread(name, p, size, share_within=0.683)
        else:
            assert_spread(name, p, size / 3 ** 0.5, share_within=0.577)
            assert p.abs().max() <= size, name


@pytest.fixture(scope='module')
def dino():
    Network, Config = networks.network_class('dino'), networks.config_class('dino')
    return Network(Config(n_layer=1, n_head=2, n_embd=16, image_size=16, patch_size=4, out_dim=32,
                          hidden_dim=512))


def test_the_teacher_of_dino_starts_as_the_student(dino):
    assert equal(dino.student.state_dict(), dino.teacher.state_dict())


def test_directions_of_dinos_head_start_with_length_1(dino):
    assert (dino.student.head.last_layer.weight_g == 1).all()


def test_maps_of_dinos_head_start_small_and_without_a_bias(dino):
    second_map = dino.student.head.mlp[2]

    assert second_map.weight.std().item() == pytest.approx(0.02, rel=0.02)
    assert not second_map.bias.any()


# ---- how large they are

OF_224 = dict(image_size=224, bias=True)
GPT = dict(image_size=0, vocab_size=50304)
LM = GPT | dict(decoupled=False, skip=False)
BERT = dict(image_size=0, vocab_size=50258, block_size=512, causal=False)

# network, layers, width, heads, other settings, parameters, and those in the authors' file, which
# has position tables that are fixed here, and of CRATE-MAE a map that is never read
AUTOENCODERS = [
    ('crate_mae', 12, 384, 6, {}, 11_256_192, 11_555_328),
    ('crate_mae', 24, 1024, 16, {}, 152_821_504, 154_274_560),
    ('vit_mae', 12, 384, 6, dict(decoder_n_embd=512), 47_401_728, 47_578_240),
    ('vit_mae', 12, 768, 12, dict(decoder_n_embd=512), 111_655_680, 111_907_840),
]
# the same without what the authors' file has
COUNTS = [
    ('crate', 12, 384, 6, {}, 6_090_856),
    ('crate', 12, 768, 12, {}, 22_796_008),
    ('crate', 24, 1024, 16, {}, 77_641_192),
    ('crate_alpha', 12, 768, 12, {}, 72_328_936),
    ('crate_alpha', 24, 1024, 16, dict(patch_size=14), 253_650_920),
    ('vit', 12, 384, 6, {}, 22_050_664),
    ('vit', 12, 768, 12, {}, 86_567_656),
    ('aot', 24, 384, 6, dict(image_size=224, attn='mhsa'), 14_924_008),
    ('aot', 32, 576, 12, dict(image_size=224), 22_389_352),
    ('tost', 12, 192, 4, OF_224, 5_769_328),
    ('tost', 24, 512, 8, OF_224, 71_481_064),
    ('tost', 12, 192, 4, OF_224 | dict(patch_size=8), 5_759_560),
    *[row[:6] for row in AUTOENCODERS],
    ('crate', 12, 768, 12, GPT, 60_699_648),
    ('crate', 12, 768, 12, GPT | dict(vocab_size=50257), 60_663_552),
    ('crate', 12, 768, 12, BERT, 60_272_640),
    ('crate_alpha', 1, 128, 4, LM, 6_669_184),
    ('crate_alpha', 12, 768, 12, LM, 81_934_848),
    ('tost', 12, 768, 12, GPT, 110_384_016),
    ('tost', 36, 1280, 20, GPT, 656_447_440),
]


def without_memory(name, n_layer, n_embd, n_head, settings):
    """A network whose tensors have shapes but no numbers."""
    Network, Config = networks.network_class(name), networks.config_class(name)
    with torch.device('meta'):
        return Network(Config(n_layer=n_layer, n_embd=n_embd, n_head=n_head, **settings))


@pytest.mark.parametrize('name, n_layer, n_embd, n_head, settings, count', COUNTS)
def test_the_released_and_published_sizes(name, n_layer, n_embd, n_head, settings, count):
    model = without_memory(name, n_layer, n_embd, n_head, settings)

    assert networks.num_params(model) == count


@pytest.mark.parametrize('row', AUTOENCODERS, ids=str)
def test_the_sizes_of_the_authors_files_of_masked_autoencoders(row):
    weights = without_memory(*row[:5]).to_official()

    assert sum(tensor.numel() for tensor in weights.values()) == row[6]
