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
FORMATS = {  # the network's settings, and the words that the script needs beside --n_head
    'crate': (PICTURES | {'num_classes': 7}, []), 'crate_alpha': (PICTURES | {'num_classes': 7}, []),
    'vit': (PICTURES | {'num_classes': 7}, []), 'crate_mae': (PICTURES, []),
    'vit_mae': (PICTURES | dict(decoder_n_layer=1, decoder_n_head=2, decoder_n_embd=16), ['--decoder_n_head=2'])}
AUTOENCODERS = 'crate_mae', 'vit_mae'


def released(path, name, change=lambda sd: sd, **settings):
    """A network, and its weights in a file as its authors' training script saves it."""
    Network, Config = network_class(name), config_class(name)
    torch.manual_seed(0)
    model = Network(Config(**settings)).eval()
    held = {f'_orig_mod.{k}': v for k, v in change(model.to_official()).items()}
    torch.save({'model': held, 'optimizer': {'state': {}}, 'iter_num': 600_000, 'config': {}}, path)
    return model


@pytest.fixture
def words(tmp_path):
    return [f'{tmp_path}/w.pth', '--n_head=3', '--patch_size=4', f'--out_dir={tmp_path}/out']


# ---- prepare/official_weights.py


@torch.no_grad()
@pytest.mark.parametrize('script, name, settings, more', [
    *((official_weights, name, settings, [f'--model={name}', *more]) for name, (settings, more) in FORMATS.items()),
    (official_weights, 'crate', OF_TEXT | dict(n_head=3), ['--model=crate', '--image_size=0']),
    (official_weights, 'crate_alpha', CRATE_LM | dict(n_head=3), ['--model=crate_alpha', '--image_size=0']),
    (official_weights, 'tost', OF_TEXT | dict(n_head=3, layer_scale=1.0), ['--model=tost', '--image_size=0']),
    (official_weights, 'tost', SMALL | dict(image_size=224, layer_scale=1.0), ['--model=tost', '--patch_size=16']),
    (crate_lm_weights, 'crate_alpha', CRATE_LM, [])])
def test_a_file_becomes_a_run_with_the_same_outputs(script, name, settings, more, words, tmp_path):
    model = released(tmp_path / 'w.pth', name, **settings)
    script.main([*(words if script is official_weights else ['--from', words[0], words[-1]]), *more])
    run, noise = open_run(tmp_path / 'out'), [torch.rand(2, 9)] * (name in AUTOENCODERS)
    text = 'vocab_size' in settings
    x = torch.randint(50257, (2, 16)) if text else torch.randn(2, 3, *as_pair(model.config.image_size))
    assert torch.equal(load_model(run)(x, *noise)[0], model(x, *noise)[0]) and run.model == name
    assert run.data.get('tokenizer') == ({'name': 'gpt2'} if text else None)
    assert text or run.settings['learning_rate'] == 5e-5  # of config/base/transfer.py


@torch.no_grad()
@pytest.mark.parametrize('name', AUTOENCODERS)
def test_an_encoder_without_its_decoder_starts_a_classifier(name, words, tmp_path):
    model = released(tmp_path / 'w.pth', name, **FORMATS[name][0], change=lambda sd: {
        k: v for k, v in sd.items() if 'decoder' not in k and k != 'mask_token'})
    official_weights.main([*words, f'--model={name}', '--image_size=12'])
    classifier = load_model(open_run(tmp_path / 'out', name.removesuffix('_mae')), new_head=True, num_classes=5)
    x = torch.randn(2, 3, 12, 12)
    assert torch.allclose(classifier.features(x), model.features(x), atol=2e-4)  # LayerNorm's eps is another


# ---- all scripts

ALPHA = dict(n_layer=2, n_head=12, n_embd=24)
GPT2 = {name.removeprefix('transformer.'): t for name, t in golden('gpt_bias_true')[0].items()}
del GPT2['lm_head.weight']  # the embedding


def of(name, **settings):
    return lambda path: released(path, name, **settings)


CRATE = of('crate', **FORMATS['crate'][0])


@pytest.mark.parametrize('script, write, more, named', [
    (official_weights, lambda path: None, ['--model=crate'], 'w'), (official_weights, CRATE, ['--model=vit'], 'ViT'),
    (official_weights, CRATE, ['--model=crate', '--n_head=5'], 'n_head=5'),
    (official_weights, CRATE, ['--model=crate', '--n_head=0'], 'n_head=0'),
    (official_weights, CRATE, ['--model=crate', '--image_size=16'], 'pos_embedding'),
    (official_weights, of('crate', **OF_TEXT), ['--model=crate'], '--image_size=0'),
    (crate_alpha_weights, of('crate_alpha', **ALPHA, num_classes=10), [], '(1000, 24)'),
    (crate_alpha_weights, of('crate_alpha', **ALPHA), ['--size=L14'], 'n_head=16'),
    (crate_lm_weights, of('crate', **OF_TEXT), [], '--model=crate'),
    (gpt2_weights, lambda path: path.write_bytes(b'<html>' * 99), [], 'w.safetensors'),
    (gpt2_weights, lambda path: save_file(GPT2, path), [], 'n_head=12'),  # 32 wide
    (gpt2_weights, lambda path: save_file({k: t for k, t in GPT2.items() if 'h.1.ln_2' not in k}, path), ['--n_head=2'],
     'h.1.ln_2')])
def test_other_files_are_refused(script, write, more, named, words, tmp_path, capsys):
    path = tmp_path / ('w.safetensors' if script is gpt2_weights else 'w.pth')
    write(path)
    words = words if script is official_weights else ['--from', str(path), words[-1]]
    assert named in fails(capsys, script.main, *words, *more)
    assert not (tmp_path / 'out').exists()


def test_a_run_that_is_there_stays_unless_it_may_go(words, tmp_path, capsys):
    released(tmp_path / 'w.pth', 'crate', **FORMATS['crate'][0])
    (tmp_path / 'out').mkdir()
    (tmp_path / 'out' / 'last.pt').write_text('of another run')
    before = snapshot(tmp_path / 'out')
    for script, more in ((official_weights, [*words, '--model=crate']), (gpt2_weights, ['--from=w', words[-1]])):
        assert '--overwrite' in fails(capsys, script.main, *more) and snapshot(tmp_path / 'out') == before
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
    assert len(named) == 5 and {n.strip() for n in named} <= set(imagenet.names().values())


def test_names_of_imagenet():
    """Some that one knows, in the order in which classifiers of ImageNet count them."""
    names = imagenet.names()
    assert len(names) == len(set(names.values())) == 1000 and list(names) == sorted(names)
    known = {0: 'tench', 281: 'tabby', 701: 'parachute', 999: 'toilet tissue'}
    assert {i: list(names.values())[i] for i in known} == known
    assert imagenet.readable('n02123045') == 'tabby' and imagenet.readable('n99999999') == 'n99999999'
    assert imagenet.readable('a class') == 'a class' and all(re.fullmatch(r'n\d{8}', wnid) for wnid in names)


def test_a_download_of_gpt2_has_the_published_checksum(serve, tmp_path):
    with pytest.raises(ValueError, match='arrived damaged'):
        gpt2_weights.main(['--url', serve(b'others').url, f'--out_dir={tmp_path}/gpt2'])


def test_gpt2(tmp_path):
    save_file(GPT2, tmp_path / 'w.safetensors', {'format': 'pt'})
    letters = ''.join(map(chr, range(32, 97))) * 20  # as many as the file has tokens
    (tmp_path / 'letters.txt').write_text(letters)
    text.main([f'{tmp_path}/letters.txt', '--tokenizer=chars', '--out', f'{tmp_path}/letters'])
    gpt2_weights.main(['--from', f'{tmp_path}/w.safetensors', '--n_head=4', f'--tokenizer={tmp_path}/letters',
                       f'--out_dir={tmp_path}/gpt2'])
    run = open_run(tmp_path / 'gpt2')
    assert run.network['gelu'] == 'tanh' and run.settings['learning_rate'] == 3e-5
    assert equal(load_model(run).state_dict(), AoT.from_gpt2(GPT2, n_head=4).state_dict())
