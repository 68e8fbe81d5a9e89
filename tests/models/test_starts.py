"""Every parameter of a fresh network is drawn as in the released code, or as a file's header says."""
import pytest
import torch

from engine import networks

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
