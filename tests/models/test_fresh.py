"""Fresh networks. Every parameter is drawn as in the released code, or as a file's header says. There are as many as in
the network that was released, or as a paper counts: all counts stand here."""
import pytest
import torch

from engine import networks

# ---- how they start

# A float is the deviation of a normal variable, or a vector's constant; (-b, b) are the bounds of a uniform variable;
# an int is a constant. What no row names is 1 if it is the weight of a norm, else 0.
PICTURES = dict(image_size=32, patch_size=8, num_classes=100, n_layer=2, n_head=4, n_embd=96)  # patches of 192 numbers
TEXT = dict(image_size=0, n_layer=8, n_head=4, n_embd=192, vocab_size=512, block_size=256)
LM = TEXT | dict(decoupled=False, skip=False)
D, P, DEFAULT = (6 / 96) ** 0.5, (6 / 192) ** 0.5, 96 ** -0.5
GPT2 = {'emb.weight': 0.02, 'U.weight': 0.02, 'W.weight': 0.005}  # 0.02 / sqrt(2 x 8)
AOT = TEXT | dict(n_layer=9, n_embd=128)


def within(bound):
    return -bound, bound


STARTS = [
    ('aot', AOT, {'emb.weight': 0.02, 'U.weight': 0.02, 'W.weight': 0.02 / 3}),
    ('aot', AOT | dict(attn='mhsa', mlp=True, bias=True), {
        'emb.weight': 0.02, 'QKV.weight': 0.02, 'up.weight': 0.02, 'W.weight': 0.02 / 18 ** 0.5,
        'down.weight': 0.02 / 18 ** 0.5}),
    ('aot', AOT | dict(init='fan_in', mlp=True), {      # variance 1 of what comes in stays so
        'emb.weight': 128 ** -0.5, 'U.weight': 128 ** -0.5, 'up.weight': 128 ** -0.5,
        'W.weight': (128 * 18) ** -0.5, 'down.weight': (512 * 18) ** -0.5}),
    ('crate', TEXT, GPT2 | {'D': within((6 / 192) ** 0.5)}),
    ('crate', PICTURES, {
        'D': within(D), 'U.weight': within(DEFAULT), 'W.weight': within(DEFAULT), 'W.bias': within(DEFAULT),
        'patch.weight': within(192 ** -0.5), 'patch.bias': within(192 ** -0.5), 'head.weight': within(DEFAULT),
        'head.bias': within(DEFAULT), 'cls': 1.0, 'pos': 1.0}),
    ('crate_alpha', LM, GPT2 | {'D': within((6 / 192) ** 0.5)}),
    ('crate_alpha', PICTURES, {
        'D': within(D), 'D1': within(D), 'patch.weight': within(P), 'U.weight': 0.02, 'W.weight': 0.02,
        'head.weight': 0.02, 'pos': 0.02, 'cls': 1e-6}),
    ('tost', TEXT | dict(bias=True), GPT2 | {'up.weight': 0.02, 'down.weight': 0.005, 'temp': 1, 'gamma': 1e-5}),
    ('tost', PICTURES | dict(n_layer=8), {
        'U.weight': 0.02, 'W.weight': 0.005, 'up.weight': 0.02, 'down.weight': 0.005, 'QKV.weight': 0.02,
        'head.weight': 0.02, 'cls': 0.02, 'temp': 1, 'gamma': 1e-5, 'embed.pos.weight': within(1 / 8),
        'embed.pos.bias': within(1 / 8), '0.0.weight': within(27 ** -0.5), '2.0.weight': within((9 * 24) ** -0.5),
        '4.0.weight': within((9 * 48) ** -0.5), '0.1.weight': 1, '2.1.weight': 1, '4.1.weight': 1}),
    ('vit', PICTURES, {
        'QKV.weight': 0.02, 'W.weight': 0.02, 'up.weight': 0.02, 'down.weight': 0.02, 'head.weight': 0.02, 'pos': 0.02,
        'cls': 1e-6, 'patch.weight': within(192 ** -0.5), 'patch.bias': within(192 ** -0.5)}),
    ('crate_mae', PICTURES, {                           # Xavier's bound is sqrt(6 / (inputs + outputs))
        'D': within(D), 'E.weight': within(D), 'U.weight': within(192 ** -0.5 * 6 ** 0.5),
        'W.weight': within(192 ** -0.5 * 6 ** 0.5), 'patch.weight': within((6 / 288) ** 0.5),
        'patch.bias': within(192 ** -0.5), 'pixels.weight': within((6 / 288) ** 0.5), 'cls': 0.02, 'mask_token': 0.02}),
    ('vit_mae', PICTURES | dict(decoder_n_embd=96, decoder_n_head=4), {
        'QKV.weight': within((6 / 384) ** 0.5), 'W.weight': within((6 / 192) ** 0.5),
        'up.weight': within((6 / 480) ** 0.5), 'down.weight': within((6 / 480) ** 0.5),
        'decoder_embed.weight': within((6 / 192) ** 0.5), 'patch.weight': within((6 / 288) ** 0.5),
        'patch.bias': within(192 ** -0.5), 'pixels.weight': within((6 / 288) ** 0.5), 'cls': 0.02,
        'mask_token': 0.02})]


@pytest.mark.parametrize('name, settings, rules', STARTS)
def test_every_parameter_starts_as_it_should(name, settings, rules):
    Network, Config = networks.network(name)
    torch.manual_seed(0)
    has = {k: v for k, v in settings.items() if hasattr(Config, k)}
    for key, p in Network(Config(**has)).named_parameters():
        rule = next((rule for end, rule in rules.items() if key.endswith(end)),
                    int('norm' in key and key.endswith('weight')))
        if isinstance(rule, int) or p.dim() == 1 and isinstance(rule, float):
            assert torch.equal(p, torch.full_like(p, rule)), key
            continue
        uniform = isinstance(rule, tuple)
        deviation, inside = (rule[1] / 3 ** 0.5, 0.577) if uniform else (rule, 0.683)   # the share within one deviation
        rough = 3 * p.numel() ** -0.5
        assert p.std().item() == pytest.approx(deviation, rel=rough) and abs(p.mean().item()) < rough * deviation, key
        assert (p.abs() < deviation).float().mean().item() == pytest.approx(inside, abs=rough), key
        assert not uniform or p.abs().max() <= rule[1], key


def test_dino_starts_as_the_released_code():
    """The teacher is the student, directions have length 1, and maps a standard deviation of 0.02."""
    Network, Config = networks.network('dino')
    model = Network(Config(n_layer=1, n_head=2, n_embd=16, image_size=16, patch_size=4, n_out=32, hidden=512))
    student, teacher = model.student.state_dict(), model.teacher.state_dict()
    assert student.keys() == teacher.keys() and all(torch.equal(v, teacher[k]) for k, v in student.items())
    assert (student['head.last_layer.weight_g'] == 1).all() and not student['head.mlp.2.bias'].any()
    assert student['head.mlp.2.weight'].std().item() == pytest.approx(0.02, rel=0.02)


# ---- how large they are

GPT = dict(image_size=0, vocab_size=50304)
GPT_LM = GPT | dict(decoupled=False, skip=False)
TOST = dict(image_size=224, bias=True)

# network, layers, width, heads, other settings, parameters
COUNTS = [
    ('crate', 12, 384, 6, {}, 6_090_856), ('crate', 12, 576, 12, {}, 13_116_328),
    ('crate', 12, 768, 12, {}, 22_796_008), ('crate', 24, 1024, 16, {}, 77_641_192),
    ('crate_alpha', 12, 768, 12, {}, 72_328_936), ('crate_alpha', 24, 1024, 16, dict(patch_size=14), 253_650_920),
    ('vit', 12, 192, 3, {}, 5_717_416), ('vit', 12, 384, 6, {}, 22_050_664),
    ('vit', 12, 768, 12, {}, 86_567_656), ('vit', 24, 1024, 16, {}, 304_326_632),
    ('aot', 24, 384, 6, dict(image_size=224, attn='mhsa'), 14_924_008),
    ('aot', 32, 576, 12, dict(image_size=224), 22_389_352),
    ('tost', 12, 192, 4, TOST, 5_769_328), ('tost', 12, 384, 8, TOST, 22_589_944),
    ('tost', 24, 512, 8, TOST, 71_481_064), ('tost', 12, 192, 4, TOST | dict(patch_size=8), 5_759_560),
    ('crate_mae', 12, 384, 6, {}, 11_256_192), ('crate_mae', 12, 576, 12, {}, 24_846_528),
    ('crate_mae', 12, 768, 12, {}, 43_745_280), ('crate_mae', 24, 1024, 16, {}, 152_821_504),
    ('vit_mae', 12, 384, 6, dict(decoder_n_embd=512), 47_401_728),
    ('vit_mae', 12, 768, 12, dict(decoder_n_embd=768), 143_533_824),
    ('vit_mae', 12, 768, 12, dict(decoder_n_embd=512), 111_655_680),
    ('crate', 12, 768, 12, GPT, 60_699_648), ('crate', 12, 768, 12, GPT | dict(vocab_size=50257), 60_663_552),
    ('crate', 12, 768, 12, GPT | dict(vocab_size=50258, block_size=512, causal=False), 60_272_640),
    ('crate', 8, 512, 8, GPT | dict(vocab_size=50258, block_size=512, causal=False), 32_307_200),
    ('crate_alpha', 1, 128, 4, GPT_LM, 6_669_184), ('crate_alpha', 2, 128, 4, GPT_LM, 6_768_128),
    ('crate_alpha', 3, 128, 4, GPT_LM, 6_867_072), ('crate_alpha', 6, 768, 12, GPT_LM, 60_678_144),
    ('crate_alpha', 12, 768, 12, GPT_LM, 81_934_848),
    ('tost', 12, 768, 12, GPT, 110_384_016), ('tost', 24, 1024, 16, GPT, 304_711_040),
    ('tost', 36, 1280, 20, GPT, 656_447_440)]

# parameters in the authors' files besides: position tables, which are fixed here, and a layer that is never read
MORE = {11_256_192: 11_555_328, 24_846_528: 25_405_824, 43_745_280: 44_638_464, 152_821_504: 154_274_560,
        47_401_728: 47_578_240, 143_533_824: 143_836_416, 111_655_680: 111_907_840}


@pytest.mark.parametrize('name, n_layer, n_embd, n_head, settings, count', COUNTS)
def test_the_released_and_published_sizes(name, n_layer, n_embd, n_head, settings, count):
    Network, Config = networks.network(name)
    with torch.device('meta'):
        model = Network(Config(n_layer=n_layer, n_embd=n_embd, n_head=n_head, **settings))
    assert model.num_params() == count
    if count in MORE:
        assert sum(t.numel() for t in model.to_official().values()) == MORE[count]
