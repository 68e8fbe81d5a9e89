"""Parameters of the networks that were released or that a paper counts; all counts stand here."""
import pytest
import torch

from engine import networks

TEXT = dict(image_size=0, vocab_size=50304)
LM = TEXT | dict(decoupled=False, skip=False)
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
    ('crate', 12, 768, 12, TEXT, 60_699_648), ('crate', 12, 768, 12, TEXT | dict(vocab_size=50257), 60_663_552),
    ('crate', 12, 768, 12, TEXT | dict(vocab_size=50258, block_size=512, causal=False), 60_272_640),
    ('crate', 8, 512, 8, TEXT | dict(vocab_size=50258, block_size=512, causal=False), 32_307_200),
    ('crate_alpha', 1, 128, 4, LM, 6_669_184), ('crate_alpha', 2, 128, 4, LM, 6_768_128),
    ('crate_alpha', 3, 128, 4, LM, 6_867_072), ('crate_alpha', 6, 768, 12, LM, 60_678_144),
    ('crate_alpha', 12, 768, 12, LM, 81_934_848),
    ('tost', 12, 768, 12, TEXT, 110_384_016), ('tost', 24, 1024, 16, TEXT, 304_711_040),
    ('tost', 36, 1280, 20, TEXT, 656_447_440)]

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
