"""prepare/official_weights.py: the authors' files become runs that compute the same."""
import pytest
import torch
from helpers import fails, snapshot, tokens

from engine.networks import network
from engine.trained import load_model, open_run
from prepare import official_weights

SMALL = dict(n_layer=2, n_head=3, n_embd=24)
PICTURES = dict(image_size=12, patch_size=4, **SMALL)  # 3 x 3 patches
FORMATS = {  # the network's settings, and the words that the script needs beside --n_head
    'crate': (PICTURES | {'num_classes': 7}, []), 'crate_alpha': (PICTURES | {'num_classes': 7}, []),
    'vit': (PICTURES | {'num_classes': 7}, []), 'crate_mae': (PICTURES, []),
    'vit_mae': (PICTURES | dict(decoder_n_layer=1, decoder_n_head=2, decoder_n_embd=16), ['--decoder_n_head=2'])}
AUTOENCODERS = 'crate_mae', 'vit_mae'


def official(path, name, **settings):
    """A network, and its weights in a file as the authors write it."""
    Network, Config = network(name)
    torch.manual_seed(0)
    model = Network(Config(**settings)).eval()
    torch.save({'model': model.to_official()}, path)
    return model


@pytest.fixture
def words(tmp_path):
    return [f'{tmp_path}/w.pth', '--n_head=3', '--patch_size=4', f'--out_dir={tmp_path}/out']


@torch.no_grad()
@pytest.mark.parametrize('name', FORMATS)
def test_a_file_becomes_a_run_with_the_same_outputs(name, words, tmp_path):
    settings, more = FORMATS[name]
    model = official(tmp_path / 'w.pth', name, **settings)
    official_weights.main([*words, f'--model={name}', *more])
    run = open_run(tmp_path / 'out')
    x, noise = torch.randn(2, 3, 12, 12), [torch.rand(2, 9)] * (name in AUTOENCODERS)
    assert torch.equal(load_model(run)(x, *noise)[0], model(x, *noise)[0])
    assert run['model'] == name and run['settings']['learning_rate'] == 5e-5  # of config/base/transfer.py


def test_a_network_of_text_needs_an_image_size_of_0(words, tmp_path, capsys):
    model = official(tmp_path / 'w.pth', 'crate', image_size=0, block_size=16, vocab_size=50257, **SMALL)
    assert '--image_size=0' in fails(capsys, official_weights.main, *words, '--model=crate')
    official_weights.main([*words, '--model=crate', '--image_size=0'])
    run, x = open_run(tmp_path / 'out'), tokens(2, 16)
    assert torch.equal(load_model(run)(x, x)[0], model(x, x)[0]) and run['data']['tokenizer'] == {'name': 'gpt2'}


@torch.no_grad()
@pytest.mark.parametrize('classes', [7, 0])
def test_the_file_of_the_segmentation_demo_becomes_a_run(classes, words, tmp_path, capsys):
    """With a classifier of two maps, and without one."""
    model = official(tmp_path / 'w.pth', 'crate', **PICTURES, num_classes=24)
    sd, x, W, b = model.to_official(), torch.randn(2, 3, 12, 12), torch.randn(7, 24), torch.randn(7)
    held = sd | {'head.weight': W, 'head.bias': b} if classes else {k: v for k, v in sd.items() if 'mlp_head' not in k}
    torch.save({'model': held}, tmp_path / 'w.pth')
    official_weights.main([*words, '--model=crate'])
    assert ('has no classifier' in capsys.readouterr().out) == (not classes)
    loaded = load_model(open_run(tmp_path / 'out'))
    want = model(x)[0] @ W.T + b if classes else torch.zeros(2, 1000)
    assert torch.allclose(loaded(x)[0], want, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize('name', AUTOENCODERS)
def test_an_encoder_without_its_decoder_starts_a_classifier(name, words, tmp_path):
    model = official(tmp_path / 'w.pth', name, **FORMATS[name][0])
    encoder = {k: v for k, v in model.to_official().items() if 'decoder' not in k and k != 'mask_token'}
    torch.save(encoder, tmp_path / 'w.pth')
    official_weights.main([*words, f'--model={name}', '--image_size=12'])
    classifier = load_model(open_run(tmp_path / 'out', name.removesuffix('_mae')), new_head=True, num_classes=5)
    x = torch.randn(2, 3, 12, 12)
    assert torch.allclose(classifier.features(x), model.features(x), atol=2e-4)  # LayerNorm's eps is another


@pytest.mark.parametrize('spoil, more, message', [
    (lambda path: path.write_bytes(path.read_bytes()[:-900]), [], 'w.pth is damaged'),
    (lambda path: path.unlink(), [], 'No such file'), (lambda path: None, ['--n_head=5'], 'n_head=5'),
    (lambda path: None, ['--n_head=0'], 'n_head=0 '),
    (lambda path: None, ['--model=vit'], 'do not fit ViT with'),
    (lambda path: None, ['--image_size=16'], 'pos_embedding: (1, 10, 24)')])
def test_mistakes_get_one_line_and_write_nothing(spoil, more, message, words, tmp_path, capsys):
    official(tmp_path / 'w.pth', 'crate', **FORMATS['crate'][0])
    spoil(tmp_path / 'w.pth')
    assert message in fails(capsys, official_weights.main, *words, '--model=crate', *more)
    assert not (tmp_path / 'out').exists()


def test_a_run_that_is_there_stays_unless_it_may_go(words, tmp_path, capsys):
    official(tmp_path / 'w.pth', 'crate', **FORMATS['crate'][0])
    (tmp_path / 'out').mkdir()
    (tmp_path / 'out' / 'last.pt').write_text('of another run')
    before = snapshot(tmp_path / 'out')
    assert 'already holds a run' in fails(capsys, official_weights.main, *words, '--model=crate')
    assert snapshot(tmp_path / 'out') == before
    official_weights.main([*words, '--model=crate', '--overwrite'])
    assert snapshot(tmp_path / 'out').keys() == {'config.json', 'best.safetensors'}
