"""sample.py: texts, gaps, classes and reconstructions, from nothing but a run directory."""
import io
import re
import shutil
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers import ROOT, TEXT, fails, loud, quadrants, save_run, text_network
from PIL import Image

import sample
from engine import plots
from engine.trained import load_model, open_run
from model_crate import CRATE, CRATEConfig
from model_crate_mae import CRATEMAE, CRATEMAEConfig
from model_vit_mae import ViTMAE, ViTMAEConfig
from prepare.lib.pictures import save_arrays
from tasks.tokenizer import Tokenizer

ALPHABET = ''.join(sorted(set('naïve text, ünd more\n')))
SMALL = dict(image_size=8, n_layer=1, n_head=2, n_embd=16, patch_size=2)
CLASSES = {'kind': 'images', 'classes': list('abcd')}


@pytest.fixture(scope='module')
def runs(tmp_path_factory):
    """Runs of random weights: `bytes` and `chars` continue texts, `bert` fills gaps."""
    place = tmp_path_factory.mktemp('runs')
    tokenizers = {'bytes': {'name': 'bytes'}, 'chars': {'name': 'chars', 'alphabet': ALPHABET}}
    for name, V in (('bytes', 256), ('chars', 64)):  # a vocabulary that is padded
        save_run(place / name, text_network('aot', vocab_size=V), {'kind': 'text', 'tokenizer': tokenizers[name]})
    save_run(place / 'bert', text_network('crate', causal=False, vocab_size=257),
             {'kind': 'text', 'tokenizer': tokenizers['bytes']})
    return place


# ---- texts

@pytest.mark.parametrize('network', ['aot', 'crate', 'tost'])
def test_a_sample_is_the_seeds(network, tmp_path, capsys):
    data = {'kind': 'text', 'tokenizer': {'name': 'chars', 'alphabet': ALPHABET}}
    run = save_run(tmp_path / 'a', text_network(network, vocab_size=64), data)
    words = [f'--ckpt={run}', '--start=naïve', '--max_new_tokens=40', '--temperature=1.5']
    sample.main(words)
    first = capsys.readouterr().out
    assert first.startswith('naïve') and len(first) <= 5 + 40 + 1  # tokens that pad the vocabulary print nothing
    sample.main([*words, '--num_samples=2'])
    both = capsys.readouterr().out
    assert both.startswith(first) and both.count('-' * 40) == 1
    sample.main([*words, '--seed=7'])
    assert capsys.readouterr().out != first


def test_the_prompt_may_be_a_file_have_newlines_or_be_empty(runs, tmp_path, capsys):
    (tmp_path / 'p.txt').write_text('ünd\nmore', encoding='utf-8')
    sample.main([f'--ckpt={runs}/chars/best.safetensors', f'--start=FILE:{tmp_path}/p.txt', '--max_new_tokens=0'])
    assert capsys.readouterr().out == 'ünd\nmore\n'
    sample.main([f'--ckpt={runs}/chars', r'--start=ünd\nmore', '--max_new_tokens=0'])
    assert capsys.readouterr().out == 'ünd\nmore\n'
    sample.main([f'--ckpt={runs}/chars', '--max_new_tokens=5', '--temperature=0'])
    assert len(capsys.readouterr().out) <= 6


@pytest.mark.parametrize('words, drawn, printed', [([], 'aü🙂', 'xaü🙂\n'), (['--stop=.'], 'ab.cd', 'xab.\n')])
def test_characters_of_several_bytes_are_printed_whole_and_stop_ends_a_text(words, drawn, printed, runs, capsys,
                                                                            monkeypatch):
    ids = iter(drawn.encode())
    monkeypatch.setattr('engine.generate.pick', lambda *a: torch.tensor([[next(ids)]]))
    sample.main([f'--ckpt={runs}/bytes', '--start=x', f'--max_new_tokens={len(drawn.encode())}', *words])
    assert capsys.readouterr().out == printed


def test_long_prompts_warn_and_extreme_temperatures_work(runs, capsys):
    with pytest.warns(UserWarning, match='block_size'):
        sample.main([f'--ckpt={runs}/bytes', f'--start={TEXT[:200]}', '--max_new_tokens=20'])
    sample.main([f'--ckpt={runs}/bytes', '--temperature=1e-30', '--max_new_tokens=5'])
    sample.main([f'--ckpt={runs}/bytes', '--temperature=1e30', '--top_k=0', '--max_new_tokens=5'])


@pytest.mark.slow
def test_a_reader_that_leaves_is_no_error(runs):
    words = [str(ROOT / 'sample.py'), f'--ckpt={runs}/bytes', '--max_new_tokens=3000']
    writer = subprocess.Popen([sys.executable, '-u', *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    writer.stdout.read(5)
    writer.stdout.close()
    assert b'Traceback' not in writer.stderr.read()


def test_gaps_are_filled_with_the_most_likely_tokens(runs, capsys):
    sample.main([f'--ckpt={runs}/bert', '--start=th[MASK] [MASK]f'])
    *gaps, filled = capsys.readouterr().out.splitlines()
    model, tokenizer = load_model(open_run(runs / 'bert')), Tokenizer('bytes')
    logits = model(torch.tensor([[*b'th', 256, *b' ', 256, *b'f']]))[0][0, :, :256]
    for number, (gap, i) in enumerate(zip(gaps, (2, 4)), 1):
        first_six = logits[i].softmax(0).topk(6)
        assert -first_six.values.diff().max() > 1e-6  # the order is clear
        likeliest = zip(first_six.indices[:5].tolist(), first_six.values.tolist())
        assert gap == f'[MASK] {number}: ' + ', '.join(f'{tokenizer.decode([t])!r} {p:.1%}' for t, p in likeliest)
    assert filled.encode('utf-8', 'replace')[:2] == b'th' and len(gaps) == 2


# ---- line by line

def typed(capsys, monkeypatch, lines, *words):
    """(output, errors) of sample.py when these lines come in through a pipe."""
    monkeypatch.setattr(sys, 'stdin', io.TextIOWrapper(io.BytesIO(lines), encoding='utf-8'))
    sample.main(['--interactive=true', *words])
    out, err = capsys.readouterr()
    own = [line for line in err.splitlines(True) if not line.startswith('(')]  # without the line on the network
    return SimpleNamespace(out=out, err=''.join(own))


def test_lines_are_continued_until_an_empty_one(runs, capsys, monkeypatch):
    words = f'--ckpt={runs}/chars', '--max_new_tokens=9', '--temperature=0'
    alone = {}
    for start in ('text', 'ünd'):
        sample.main([*words, f'--start={start}'])
        alone[start] = capsys.readouterr().out
    found = typed(capsys, monkeypatch, 'text\nno Z\nFILE:nowhere\nünd\n\nmore\n'.encode(), *words)
    said, wrong = found.out, found.err
    assert said == alone['text'] + alone['ünd']  # a mistake does not end it
    assert [line.startswith('error: ') for line in wrong.splitlines()] == [True, True] and "no character 'Z'" in wrong
    assert typed(capsys, monkeypatch, b'text', *words).out == alone['text']  # an end without an end of line
    assert typed(capsys, monkeypatch, b'', *words).out == ''
    said = typed(capsys, monkeypatch, b'text\n', *words, '--num_samples=2').out
    assert said == f'{alone["text"]}{"-" * 40}\n{alone["text"]}'


def test_gaps_are_filled_line_by_line(runs, capsys, monkeypatch):
    found = typed(capsys, monkeypatch, b'a[MASK]\nno gap\n' + b'a' * 20 + b'[MASK]\n[MASK]b\n', f'--ckpt={runs}/bert')
    said, wrong = found.out, found.err
    assert said.count('[MASK] 1: ') == 2 and said.splitlines()[-1].endswith('b')
    assert wrong.count('give a text with [MASK] in it and up to block_size=16 tokens') == wrong.count('\n') == 2


@pytest.mark.slow
def test_a_pipe_is_read(runs):
    done = subprocess.run([sys.executable, str(ROOT / 'sample.py'), f'--ckpt={runs}/chars', '--interactive=true',
                           '--max_new_tokens=2'], input='text\nno Z\nmore'.encode(), capture_output=True)
    assert done.returncode == 0 and done.stdout.startswith(b'text') and b'\nmore' in done.stdout
    assert [line[:1] for line in done.stderr.splitlines()] == [b'e', b'(']  # the error, and the network


# ---- pictures

@pytest.fixture(scope='module')
def pictures(tmp_path_factory):
    """Datasets of pictures with 1, 2, 3 and 5 channels, and a folder of files, grey, RGB and
    transparent."""
    place = tmp_path_factory.mktemp('pictures')
    for C in (1, 2, 3, 5):
        save_arrays(place / f'quads_{C}', {'val': quadrants(20, 1, channels=C)}, 'abcd')
    (place / 'files').mkdir()
    pixels = np.random.default_rng(0).integers(0, 256, (30, 50, 4), np.uint8)
    for name, part in (('1', pixels[..., 0]), ('2', pixels[..., :3]), ('3', pixels)):
        Image.fromarray(part).save(place / 'files' / f'{name}.png')
    return place


def classifier(channels, **settings):
    torch.manual_seed(0)
    return loud(CRATE(CRATEConfig(**SMALL, channels=channels, num_classes=4, **settings)))


def autoencoder(channels=3, kind=CRATEMAE, Config=CRATEMAEConfig, **settings):
    torch.manual_seed(0)
    settings |= dict(decoder_n_layer=1, decoder_n_head=2, decoder_n_embd=16) if kind is ViTMAE else {}
    return kind(Config(**SMALL, channels=channels, **settings)).eval()


@pytest.mark.parametrize('channels', [1, 2, 3, 5])
def test_pictures_get_their_likeliest_classes(channels, pictures, tmp_path, capsys):
    model = classifier(channels)
    run = save_run(tmp_path / 'a', model, CLASSES)
    sample.main([f'--ckpt={run}', f'--image={pictures}/quads_{channels}', '--num_samples=3', '--seed=7'])
    lines = capsys.readouterr().out.splitlines()
    x = np.load(pictures / f'quads_{channels}' / 'val.images.npy')
    for line, i in zip(lines, np.random.default_rng(7).permutation(20)[:3]):
        mean, deviation = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)) if channels == 3 else (0.449, 0.226)
        one = ((torch.from_numpy(x[i] / 255) - torch.tensor(mean)) / torch.tensor(deviation)).permute(2, 0, 1).float()
        logits = model(one[None])[0]
        chance, best = logits[0].softmax(0).sort(descending=True)
        assert -chance.diff().max() > 1e-5  # the order is clear
        chance, best = chance.tolist(), best.tolist()
        assert line == f'val {i}, {"abcd"[i % 4]}: ' + ', '.join(f'{"abcd"[k]} {p:.1%}' for p, k in zip(chance, best))
    assert len(lines) == 3


@pytest.mark.parametrize('channels', [1, 3])
def test_files_become_grey_or_rgb_as_the_network_needs(channels, pictures, tmp_path, capsys):
    run = save_run(tmp_path / 'a', classifier(channels), {'kind': 'images', 'classes': None})
    sample.main([f'--ckpt={run}', f'--image={pictures}/files'])
    assert [line.split(':')[0] for line in capsys.readouterr().out.splitlines()] == ['1.png', '2.png', '3.png']
    sample.main([f'--ckpt={run}', f'--image={pictures}/files/2.png', '--image_size=16'])
    assert capsys.readouterr().out.startswith('2.png: class ')


def test_datasets_are_refused_by_networks_of_other_channels(pictures, tmp_path, capsys):
    run = save_run(tmp_path / 'a', classifier(5), CLASSES)
    said = fails(capsys, sample.main, f'--ckpt={run}', f'--image={pictures}/quads_3')
    assert '3 channels, the network reads 5' in said


@pytest.fixture
def figures(monkeypatch):
    """The figures that are written."""
    drawn, save = [], plots.save_picture
    monkeypatch.setattr(plots, 'save_picture', lambda path, figure, *a: (drawn.append(figure), save(path, figure, *a)))
    return drawn


def titles(figure):
    return [axis.get_title() for axis in figure.axes]


def test_a_grid_of_pictures_and_what_they_are_taken_for(pictures, figures, tmp_path, capsys, monkeypatch):
    words = f'--ckpt={save_run(tmp_path / "a", classifier(3), CLASSES)}', f'--out={tmp_path}/g.png'
    sample.main([*words, f'--image={pictures}/quads_3', '--num_samples=5', '--seed=7'])
    *lines, last = capsys.readouterr().out.splitlines()
    assert last == f'{tmp_path}/g.png' and Image.open(tmp_path / 'g.png').width > 400
    x = np.load(pictures / 'quads_3' / 'val.images.npy')
    for line, axis, i in zip(lines, figures[0].axes, np.random.default_rng(7).permutation(20)[:5]):
        assert np.array_equal(axis.images[0].get_array(), x[i]) and axis.get_title() == 'abcd'[i % 4]
        guesses = re.findall(r'(\w) (\d+)%', axis.get_xlabel())
        listed = re.findall(r'(\w) ([\d.]+)%', line)[:3]
        assert [k for k, _ in guesses] == [k for k, _ in listed]
        assert all(abs(float(a) - float(b)) < 0.6 for (_, a), (_, b) in zip(guesses, listed))
        assert axis.xaxis.label.get_color() == ('C0' if listed[0][0] == 'abcd'[i % 4] else 'black')
    assert 'g.png exists' in fails(capsys, sample.main, *words, f'--image={pictures}/quads_3')
    monkeypatch.setattr(sample, 'MOST_DRAWN', 2)
    sample.main([*words, f'--image={pictures}/files', '--overwrite=true'])
    assert len(capsys.readouterr().out.splitlines()) == 4
    assert titles(figures[1]) == ['1.png', '2.png'] and figures[1].axes[0].xaxis.label.get_color() == 'black'


def test_folders_of_classes_are_true_classes(pictures, figures, tmp_path, capsys):
    for name in ('a/1.png', 'b/2.png', 'other/3.png'):
        (tmp_path / 'mine' / name).parent.mkdir(parents=True)
        shutil.copy(pictures / 'files' / name[-5:], tmp_path / 'mine' / name)
    words = f'--ckpt={save_run(tmp_path / "run", classifier(3), CLASSES)}', f'--image={tmp_path}/mine'
    sample.main([*words, '--num_samples=9', f'--out={tmp_path}/g.png'])
    assert sorted(line.split(':')[0] for line in capsys.readouterr().out.splitlines()[:-1]) == [
        'a/1.png', 'b/2.png', 'other/3.png']
    assert sorted(filter(None, titles(figures[0]))) == ['a', 'b', 'other/3.png']  # of no class that the network knows
    sample.main(words)
    assert len(capsys.readouterr().out.splitlines()) == 1


@pytest.mark.parametrize('kind, Config, channels, normalized', [
    (CRATEMAE, CRATEMAEConfig, 3, False), (ViTMAE, ViTMAEConfig, 3, True),
    (CRATEMAE, CRATEMAEConfig, 1, False), (ViTMAE, ViTMAEConfig, 2, False), (CRATEMAE, CRATEMAEConfig, 5, False)])
def test_the_grid_of_reconstructions(kind, Config, channels, normalized, pictures, figures, tmp_path, capsys):
    model, dataset = autoencoder(channels, kind, Config, norm_pix_loss=normalized), pictures / f'quads_{channels}'
    words = [f'--ckpt={save_run(tmp_path / "a", model, CLASSES)}', f'--image={dataset}', f'--out={tmp_path}/a.png']
    sample.main([*words, '--num_samples=2', '--seed=7'])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3 and lines[0].startswith('val ') and ('true patch statistics' in lines[0]) == normalized
    assert titles(figures[0])[:4] == ['original', '75% masked', 'reconstruction', 'pasted']
    grid = np.array([axis.images[0].get_array() for axis in figures[0].axes]).astype(int).reshape(2, 4, 8, 8, 3)
    generator, x = torch.Generator().manual_seed(7), np.load(dataset / 'val.images.npy')
    for place, (original, masked, rebuilt, pasted) in zip(np.random.default_rng(7).permutation(20)[:2], grid):
        hidden = model.hide(torch.rand(1, 16, generator=generator)).view(4, 4).numpy().repeat(2, 0).repeat(2, 1)
        shown = x[place][..., :3] if channels >= 3 else x[place][..., [0, 0, 0]]
        assert np.array_equal(original, shown)
        assert np.array_equal(masked[~hidden], original[~hidden]) and (masked[hidden] == masked[hidden][0]).all()
        assert np.array_equal(pasted[~hidden], original[~hidden]) and np.array_equal(pasted[hidden], rebuilt[hidden])
        assert not np.array_equal(rebuilt[~hidden], original[~hidden])
    assert 'exists' in fails(capsys, sample.main, *words)
    sample.main([*words, '--overwrite=true', '--mask_ratio=0.5'])
    assert titles(figures[1])[1] == '50% masked'


def test_a_file_of_ones_own_is_reconstructed(pictures, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    save_run('a', autoencoder(), CLASSES)
    for _ in range(2):  # the second replaces the first: nobody has named it
        sample.main(['--ckpt=a', '--image', f'{pictures}/files/3.png'])
        assert capsys.readouterr().out.endswith('reconstruction.png\n')
    assert Image.open('reconstruction.png').width > 400


# ---- mistakes

@pytest.mark.parametrize('words, message', [
    (['--start=naïve z'], "no character 'z'"), (['--start=FILE:nowhere.txt'], 'cannot be read'),
    (['--stop=more'], 'it must be one'), (['--ckpt=nowhere'], 'no run in nowhere'),
    (['--temperature=-1'], 'temperature=-1.0 must be at least 0'), (['--temperature=nan'], 'temperature=nan'),
    (['--top_p=0'], 'top_p'), (['--top_k=-1'], 'top_k=-1 must be at least 0'),
    (['--image=a.png'], '--image is for image or masked_image, not for text; leave it out'),
    (['--num_samples=0'], 'num_samples=0 must be at least 1'), (['--seed=-1'], 'seed=-1'),
    (['--max_new_token=3'], 'did you mean max_new_tokens?'),
    (['--out=x.png'], '--out is for image or masked_image, not for text')])
def test_mistakes_with_texts_get_one_line(words, message, runs, capsys):
    assert message in fails(capsys, sample.main, f'--ckpt={runs}/chars', *words)


def test_other_mistakes_get_one_line(runs, pictures, tmp_path, capsys):
    mae, plain = save_run(tmp_path / 'a', autoencoder(), CLASSES), save_run(tmp_path / 'b', classifier(3), CLASSES)
    functions = save_run(tmp_path / 'f', text_network('aot', n_dims=4), {'kind': 'functions'})
    here = f'--image={pictures}/quads_3'
    for words, message in (
            ([f'--ckpt={runs}/bert', '--start=the'], 'give a text with [MASK]'),
            ([f'--ckpt={runs}/bert', '--start=' + 'a' * 16 + '[MASK]'], 'block_size=16'),
            ([f'--ckpt={functions}'], f'python eval.py --ckpt={functions}'), ([f'--ckpt={mae}'], '--image=PATH'),
            ([f'--ckpt={mae}', here, f'--out={tmp_path}/no/x.png'], 'is no folder'),
            ([f'--ckpt={mae}', here, '--norm_pix_loss=true'], 'leave norm_pix_loss out'),
            ([f'--ckpt={plain}', here, f'--out={tmp_path}/x.what'], 'must end with'),
            ([f'--ckpt={plain}', here, '--interactive=true'], '--interactive is for text or masked_text'),
            ([f'--ckpt={plain}', here, '--mask_ratio=0.5'], 'mask_ratio'),
            ([f'--ckpt={plain}', here, '--start=a'], '--start is for text or masked_text, not for image'),
            ([f'--ckpt={plain}'], '--image=PATH'),
            ([f'--ckpt={plain}', '--image=nowhere.png'], 'nowhere.png cannot be read')):
        assert message in fails(capsys, sample.main, *words)
    assert not list(tmp_path.glob('x.*'))
