"""Authors' files of weights become runs that compute the same, and name pictures:
prepare/official_weights.py, gpt2_weights.py, crate_alpha_weights.py and crate_lm_weights.py."""
import re

import pytest
import torch
from helpers import JPEGS, equal, fails, golden, snapshot
from safetensors.torch import save_file

import sample
from engine.networks import as_pair, config_class, network_class
from model_aot import AoT
from prepare import crate_alpha_weights, crate_lm_weights, gpt2_weights, official_weights, text
from tasks import imagenet
from weights.runs import open_run
from weights.surgery import load_model

SMALL = dict(n_layer=2, n_head=3, n_embd=24)
PICTURES = dict(image_size=12, patch_size=4, **SMALL)  # 3 x 3 patches
OF_TEXT = dict(n_layer=2, n_head=12, n_embd=24, image_size=0, block_size=16, vocab_size=50304)
CRATE_LM = OF_TEXT | dict(decoupled=False, skip=False)
CLASSIFIER = PICTURES | {'num_classes': 7}
VIT_MAE = PICTURES | dict(decoder_n_layer=1, decoder_n_head=2, decoder_n_embd=16)
AUTOENCODERS = 'crate_mae', 'vit_mae'


def released(path, name, change=lambda sd: sd, **settings):
    """A network, and its weights in a file as its authors' training script saves it."""
    Network, Config = network_class(name), config_class(name)
    torch.manual_seed(0)
    model = Network(Config(**settings)).eval()
    weights = {f'_orig_mod.{name}': t for name, t in change(model.to_official()).items()}
    torch.save({'model': weights, 'optimizer': {'state': {}}, 'config': {}}, path)
    return model


@pytest.fixture
def words(tmp_path):
    return [f'{tmp_path}/w.pth', '--n_head=3', '--patch_size=4', f'--out_dir={tmp_path}/out']


# ---- prepare/official_weights.py


@torch.no_grad()
@pytest.mark.parametrize('name, settings, more', [
    ('crate', CLASSIFIER, []), ('crate_alpha', CLASSIFIER, []), ('vit', CLASSIFIER, []),
    ('crate_mae', PICTURES, []), ('vit_mae', VIT_MAE, ['--decoder_n_head=2']),
    ('tost', SMALL | dict(image_size=224, layer_scale=1.0), ['--patch_size=16'])])
def test_a_file_of_pictures_becomes_a_run_with_the_same_outputs(name, settings, more, words,
                                                                tmp_path):
    model = released(tmp_path / 'w.pth', name, **settings)
    official_weights.main([*words, f'--model={name}', *more])
    run = open_run(tmp_path / 'out')
    inputs = [torch.randn(2, 3, *as_pair(model.config.image_size))]
    if name in AUTOENCODERS:
        inputs.append(torch.rand(2, 9))  # which decides what is hidden
    assert torch.equal(load_model(run)(*inputs)[0], model(*inputs)[0]) and run.model == name
    assert run.settings['learning_rate'] == 5e-5  # of config/base/transfer.py


@torch.no_grad()
@pytest.mark.parametrize('name, settings', [
    ('crate', OF_TEXT), ('crate_alpha', CRATE_LM), ('tost', OF_TEXT | dict(layer_scale=1.0))])
def test_a_file_of_text_becomes_a_run_with_the_same_outputs(name, settings, words, tmp_path):
    model = released(tmp_path / 'w.pth', name, **settings | dict(n_head=3))
    official_weights.main([*words, f'--model={name}', '--image_size=0'])
    run = open_run(tmp_path / 'out')
    x = torch.randint(50257, (2, 16))
    assert torch.equal(load_model(run)(x)[0], model(x)[0]) and run.model == name
    assert run.data['tokenizer'] == {'name': 'gpt2'}


@torch.no_grad()
def test_crate_lm(tmp_path):
    model = released(tmp_path / 'w.pth', 'crate_alpha', **CRATE_LM)
    crate_lm_weights.main(['--from', f'{tmp_path}/w.pth', f'--out_dir={tmp_path}/out'])
    x = torch.randint(50257, (2, 16))
    assert torch.equal(load_model(open_run(tmp_path / 'out'))(x)[0], model(x)[0])


@torch.no_grad()
@pytest.mark.parametrize('name, settings', [('crate_mae', PICTURES), ('vit_mae', VIT_MAE)])
def test_an_encoder_without_its_decoder_starts_a_classifier(name, settings, words, tmp_path):
    def encoder_alone(sd):
        return {k: t for k, t in sd.items() if 'decoder' not in k and k != 'mask_token'}
    model = released(tmp_path / 'w.pth', name, encoder_alone, **settings)
    official_weights.main([*words, f'--model={name}', '--image_size=12'])
    run = open_run(tmp_path / 'out', name.removesuffix('_mae'))
    classifier = load_model(run, new_head=True, num_classes=5)
    x = torch.randn(2, 3, 12, 12)
    # LayerNorm's eps is another
    assert torch.allclose(classifier.features(x), model.features(x), atol=2e-4)


# ---- all scripts

ALPHA = dict(n_layer=2, n_head=12, n_embd=24)
GPT2 = {name.removeprefix('transformer.'): t for name, t in golden('gpt_bias_true')[0].items()}
del GPT2['lm_head.weight']  # the embedding


def of(name, **settings):
    return lambda path: released(path, name, **settings)


CRATE = of('crate', **CLASSIFIER)


@pytest.mark.parametrize('script, write, more, named', [
    (official_weights, CRATE, ['--model=vit'], 'ViT'),
    (official_weights, CRATE, ['--model=crate', '--n_head=5'], 'n_head=5'),
    (official_weights, CRATE, ['--model=crate', '--image_size=16'], 'pos_embedding'),
    (official_weights, of('crate', **OF_TEXT), ['--model=crate'], '--image_size=0'),
    (crate_alpha_weights, of('crate_alpha', **ALPHA, num_classes=10), [], '(1000, 24)'),
    (crate_alpha_weights, of('crate_alpha', **ALPHA), ['--size=L14'], 'n_head=16'),
    (crate_lm_weights, of('crate', **OF_TEXT), [], '--model=crate'),
    (gpt2_weights, lambda path: path.write_bytes(b'<html>' * 99), [], 'w.safetensors'),
    (gpt2_weights, lambda path: save_file(GPT2, path), [], 'n_head=12')])  # 32 wide
def test_other_files_are_refused(script, write, more, named, words, tmp_path, capsys):
    path = tmp_path / ('w.safetensors' if script is gpt2_weights else 'w.pth')
    write(path)
    words = words if script is official_weights else ['--from', str(path), words[-1]]
    assert named in fails(capsys, script.main, *words, *more)
    assert not (tmp_path / 'out').exists()


def test_a_run_that_is_there_stays_unless_it_may_go(words, tmp_path, capsys):
    CRATE(tmp_path / 'w.pth')
    (tmp_path / 'out').mkdir()
    (tmp_path / 'out' / 'last.pt').write_text('of another run')
    before = snapshot(tmp_path / 'out')
    for script, more in (official_weights, ['--model=crate']), (gpt2_weights, []):
        source = words if script is official_weights else ['--from=w', words[-1]]
        assert '--overwrite' in fails(capsys, script.main, *source, *more)
        assert snapshot(tmp_path / 'out') == before
    official_weights.main([*words, '--model=crate', '--overwrite'])
    assert snapshot(tmp_path / 'out').keys() == {'.lock', 'config.json', 'best.safetensors'}


# ---- one model each


def test_crate_alpha(tmp_path, capsys):
    model = released(tmp_path / 'w.pth', 'crate_alpha', **ALPHA)
    crate_alpha_weights.main(['--from', f'{tmp_path}/w.pth', f'--out_dir={tmp_path}/alpha'])
    assert equal(open_run(tmp_path / 'alpha').weights, model.state_dict())
    (tmp_path / 'cat.jpg').write_bytes(JPEGS['train'][0][2])
    capsys.readouterr()
    sample.main([f'--ckpt={tmp_path}/alpha', f'--image={tmp_path}/cat.jpg'])
    named = re.findall(r'([^,:\n]+) [\d.]+%', capsys.readouterr().out)
    assert len(named) == 5
    assert {name.strip() for name in named} <= set(imagenet.names().values())


def test_names_of_imagenet():
    """Some that one knows, in the order in which classifiers of ImageNet count them."""
    names = imagenet.names()
    assert len(names) == len(set(names.values())) == 1000 and list(names) == sorted(names)
    known = {0: 'tench', 281: 'tabby', 701: 'parachute', 999: 'toilet tissue'}
    assert {i: list(names.values())[i] for i in known} == known
    for wnid, name in ('n02123045', 'tabby'), ('n99999999', 'n99999999'), ('a class', 'a class'):
        assert imagenet.readable(wnid) == name


def test_a_download_of_gpt2_has_the_published_checksum(serve, tmp_path):
    with pytest.raises(ValueError, match='arrived damaged'):
        gpt2_weights.main(['--url', serve(b'others').url, f'--out_dir={tmp_path}/gpt2'])


def test_gpt2(tmp_path):
    save_file(GPT2, tmp_path / 'w.safetensors', {'format': 'pt'})
    letters = ''.join(map(chr, range(32, 97))) * 20  # as many as the file has tokens
    (tmp_path / 'letters.txt').write_text(letters)
    text.main([f'{tmp_path}/letters.txt', '--tokenizer=chars', '--out', f'{tmp_path}/letters'])
    gpt2_weights.main(['--from', f'{tmp_path}/w.safetensors', '--n_head=4',
                       f'--tokenizer={tmp_path}/letters', f'--out_dir={tmp_path}/gpt2'])
    run = open_run(tmp_path / 'gpt2')
    assert run.network['gelu'] == 'tanh' and run.settings['learning_rate'] == 3e-5
    assert equal(load_model(run).state_dict(), AoT.from_gpt2(GPT2, n_head=4).state_dict())
