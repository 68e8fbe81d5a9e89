"""sample.py: texts, gaps, classes and reconstructions, from nothing but a run directory."""
import csv
import io
import re
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from helpers import (BYTES, CLASSES, TEXT, fails, masked_autoencoder, normalized,
                     picture_network, save_run, text_network)
from small_files import tree

import sample
from engine import plots
from lib.pictures import save_arrays
from tasks.tokenizer import Tokenizer
from weights.runs import open_run
from weights.surgery import load_model

ALPHABET = ''.join(sorted(set('naïve text, ünd more\n')))


@pytest.fixture(scope='module')
def runs(tmp_path_factory):
    """Runs of random weights: `bytes` and `chars` continue texts, `bert` fills gaps."""
    place = tmp_path_factory.mktemp('runs')
    chars = {'kind': 'text', 'tokenizer': {'name': 'chars', 'alphabet': ALPHABET}}
    save_run(place / 'bytes', text_network('aot', vocab_size=256), BYTES)
    # a vocabulary that is padded
    save_run(place / 'chars', text_network('crate', vocab_size=64), chars)
    save_run(place / 'bert', text_network('crate', causal=False, vocab_size=257), BYTES)
    return place


def said(capsys, *words):
    return both(capsys, *words).out


def both(capsys, *words):
    """What sample.py prints on standard output and on standard error."""
    capsys.readouterr()
    sample.main([*map(str, words)])
    return capsys.readouterr()


# ---- texts

def test_a_sample_is_the_seeds(runs, capsys):
    words = [f'--ckpt={runs}/chars', '--start=naïve', '--max_new_tokens=40', '--temperature=1.5']
    first, both = said(capsys, *words), said(capsys, *words, '--num_samples=2')
    assert first.startswith('naïve') and len(first) <= 5 + 40 + 1  # tokens that pad the vocabulary print nothing
    assert both.startswith(first) and both.count('-' * 40) == 1 and said(capsys, *words, '--seed=7') != first


def test_the_prompt_may_be_a_file_have_newlines_or_be_empty(runs, tmp_path, capsys):
    (tmp_path / 'p.txt').write_text('ünd\nmore', encoding='utf-8')
    for start in (f'FILE:{tmp_path}/p.txt', r'ünd\nmore'):
        assert said(capsys, f'--ckpt={runs}/chars', f'--start={start}', '--max_new_tokens=0') == 'ünd\nmore\n'
    assert len(said(capsys, f'--ckpt={runs}/chars/best.safetensors', '--max_new_tokens=5', '--temperature=0')) <= 6
    with pytest.warns(UserWarning, match='the network reads the last'):
        sample.main([f'--ckpt={runs}/bytes', f'--start={TEXT[:200]}', '--max_new_tokens=20'])
    for extreme in ('--temperature=1e-30', '--temperature=1e30'):
        said(capsys, f'--ckpt={runs}/bytes', extreme, '--top_k=0', '--max_new_tokens=5')


def test_gaps_are_filled_with_the_most_likely_tokens(runs, capsys):
    *gaps, filled = said(capsys, f'--ckpt={runs}/bert', '--start=th[MASK] [MASK]f').splitlines()
    model, tokenizer = load_model(open_run(runs / 'bert')), Tokenizer('bytes')
    logits = model(torch.tensor([[*b'th', 256, *b' ', 256, *b'f']]))[0][0, :, :256]
    for gap, i in zip(gaps, (2, 4), strict=True):
        first_six = logits[i].softmax(0).topk(6)
        assert -first_six.values.diff().max() > 1e-6  # the order is clear
        likeliest = zip(first_six.indices[:5].tolist(), first_six.values.tolist())
        assert gap.endswith(': ' + ', '.join(f'{tokenizer.decode([t])!r} {p:.1%}' for t, p in likeliest))
    assert filled.startswith('th')


def test_lines_are_continued_until_an_empty_one(runs, capsys, monkeypatch):
    """A mistake in one of them does not end it."""
    def typed(lines, *words):
        monkeypatch.setattr(sys, 'stdin', io.TextIOWrapper(io.BytesIO(lines.encode()), encoding='utf-8'))
        sample.main(['--interactive=true', *words])
        out, err = capsys.readouterr()
        return out, err.count('error: ')
    words = f'--ckpt={runs}/chars', '--max_new_tokens=9', '--temperature=0'
    alone = {start: said(capsys, *words, f'--start={start}') for start in ('text', 'ünd')}
    assert typed('text\nno Z\nFILE:nowhere\nünd\n\nmore\n', *words) == (alone['text'] + alone['ünd'], 2)
    assert typed('text', *words) == (alone['text'], 0) and typed('', *words) == ('', 0)
    out, wrong = typed('a[MASK]\nno gap\n' + 'a' * 20 + '[MASK]\n[MASK]b\n', f'--ckpt={runs}/bert')
    assert out.count('[MASK] 1: ') == wrong == 2 and out.splitlines()[-1].endswith('b')


# ---- pictures

@pytest.fixture(scope='module')
def files(tmp_path_factory):
    """A folder of pictures, grey, RGB and transparent."""
    place = tmp_path_factory.mktemp('files')
    pixels = np.random.default_rng(0).integers(0, 256, (30, 50, 4), np.uint8)
    for name, part in (('1', pixels[..., 0]), ('2', pixels[..., :3]), ('3', pixels)):
        Image.fromarray(part).save(place / f'{name}.png')
    return place


@pytest.fixture
def figures(monkeypatch):
    """The figures that are written."""
    drawn, save = [], plots.save_picture
    monkeypatch.setattr(plots, 'save_picture', lambda path, figure, *a: (drawn.append(figure), save(path, figure, *a)))
    return drawn


def classifier(out, channels=3, classes=CLASSES):
    model = picture_network(patch_size=2, channels=channels)
    return model, save_run(out, model, classes)


@pytest.mark.parametrize('channels', [1, 3])
def test_pictures_get_their_likeliest_classes(channels, pictures_data, figures, tmp_path, capsys):
    """In words, and drawn with what they are taken for."""
    model, run = classifier(tmp_path / 'a', channels)
    words = f'--ckpt={run}', f'--image={pictures_data}/quads_{channels}', '--num_samples=3', '--seed=7'
    *lines, file = said(capsys, *words, f'--out={tmp_path}/g.png').splitlines()
    x = np.load(pictures_data / f'quads_{channels}' / 'val.images.npy')
    chosen = np.random.default_rng(7).permutation(20)[:3]
    for line, axis, i in zip(lines, figures[0].axes, chosen, strict=True):
        chance, best = model(normalized(x[i:i + 1]))[0][0].softmax(0).sort(descending=True)
        assert -chance.diff().max() > 1e-5  # the order is clear
        listed = [(k, p) for k, p in zip(best.tolist(), chance.tolist())]
        assert line == f'val {i}, {"abcd"[i % 4]}: ' + ', '.join(f'{"abcd"[k]} {p:.1%}' for k, p in listed)
        assert axis.get_title() == 'abcd'[i % 4]
        assert re.findall(r'(\w) (\d+)%', axis.get_xlabel()) == [('abcd'[k], f'{100 * p:.0f}') for k, p in listed[:3]]
        assert axis.xaxis.label.get_color() == ('C0' if best[0] == i % 4 else 'C1')
        assert channels != 3 or np.array_equal(axis.images[0].get_array(), x[i])
    assert file == f'{tmp_path}/g.png' and Image.open(file).width > 400


@pytest.mark.parametrize('channels', [1, 3])
def test_files_become_grey_or_rgb_as_the_network_needs(channels, files, pictures_data, tmp_path, capsys):
    run = classifier(tmp_path / 'a', channels, {'kind': 'images', 'classes': None})[1]
    lines = said(capsys, f'--ckpt={run}', f'--image={files}').splitlines()
    assert [line.split(':')[0] for line in lines] == ['1.png', '2.png', '3.png']
    one = said(capsys, f'--ckpt={run}', f'--image={files}/2.png', '--image_size=16')
    assert one.startswith('2.png: class ') and one.strip() != lines[1]
    many_channels = classifier(tmp_path / 'many', 5)[1]
    for words in (run, f'{pictures_data}/quads_5'), (many_channels, f'{files}/2.png'):
        assert 'channels' in fails(capsys, sample.main, f'--ckpt={words[0]}', f'--image={words[1]}')


def test_folders_of_classes_are_true_classes(files, figures, tmp_path, capsys):
    names = 'a/1.png', 'b/2.png', 'other/3.png'
    tree(tmp_path / 'mine', {name: (files / name[-5:]).read_bytes() for name in names})
    words = f'--ckpt={classifier(tmp_path / "run")[1]}', f'--image={tmp_path}/mine'
    lines = said(capsys, *words, '--num_samples=9', f'--out={tmp_path}/g.png').splitlines()
    assert sorted(line.split(':')[0] for line in lines[:-1]) == [*names]
    titles = [axis.get_title() for axis in figures[0].axes]
    assert sorted(filter(None, titles)) == ['a', 'b', 'other/3.png']  # of no class that the network knows
    assert len(said(capsys, *words).splitlines()) == 1


@pytest.mark.parametrize('wnid', ['n01440764', 'n03000684'])
@pytest.mark.parametrize('is_dataset', [False, True])
def test_folders_with_wordnet_ids_are_right_or_wrong_too(wnid, is_dataset, files, figures, tmp_path, capsys):
    """Also if a class has the words of another one as its name."""
    wnids = ['n01440764', 'n02102040', 'n03000684', 'tench']
    images, pixels = tmp_path / 'mine', np.asarray(Image.open(files / '2.png'))
    if is_dataset:
        arrays = pixels[None], np.array([wnids.index(wnid)])
        save_arrays(images, {'train': arrays, 'val': arrays}, wnids)
    else:
        tree(images, {f'{wnid}/2.png': (files / '2.png').read_bytes()})
    model, run = classifier(tmp_path / 'run', classes={'kind': 'images', 'classes': wnids})
    guess = said(capsys, f'--ckpt={run}', f'--image={images}', f'--out={tmp_path}/g.csv').split(': ')[1]
    with open(tmp_path / 'g.csv', newline='') as f:
        row = list(csv.DictReader(f))[0]
    assert guess.startswith(row['guess']) and row['class'] in row.values()
    said(capsys, f'--ckpt={run}', f'--image={images}', f'--out={tmp_path}/g.png')
    axis, = figures[0].axes
    is_right = row['guess'] == row['class']
    assert axis.xaxis.label.get_color() == ('C0' if is_right else 'C1')
    assert axis.get_title() == row['class'] != wnid


@pytest.mark.parametrize('view, classes', [('crop', ['ant', 'bee']), ('squash', ['n01440764', 'b', 'c', 'd', 'last'])])
def test_of_other_pictures_it_says_what_the_network_sees_and_knows(view, classes, files, figures, tmp_path, capsys):
    model = picture_network(num_classes=len(classes), patch_size=2)
    run = save_run(tmp_path / 'a', model, {'kind': 'images', 'classes': classes}, dataset='zoo', eval_view=view)
    for path in (files, files / '2.png'):
        told = both(capsys, f'--ckpt={run}', f'--image={path}', f'--out={tmp_path}/g.png', '--overwrite=true').err
        drawn = figures[-1].get_suptitle()
        for words in (told, drawn):
            assert '8 x 8 pixels' in words and 'zoo' in words and 'n01440764' not in words and 'last' not in words
        assert ('ant, bee' in told) == ('tench' not in told) == ('middle' in told) == (view == 'crop')
    assert '12 x 10 pixels' in both(capsys, f'--ckpt={run}', f'--image={path}', '--image_size=10,12').err


def test_of_its_own_dataset_it_says_nothing(pictures_data, tmp_path, capsys):
    run = save_run(tmp_path / 'a', picture_network(patch_size=2), CLASSES, dataset='quads')
    assert 'pixels' not in both(capsys, f'--ckpt={run}', f'--image={pictures_data}/quads').err
    assert 'pixels' in both(capsys, f'--ckpt={run}', f'--image={pictures_data}/quads_3').err


@pytest.mark.slow
@pytest.mark.parametrize('name, channels, normalizes', [('crate_mae', 5, False), ('vit_mae', 2, True)])
def test_the_grid_of_reconstructions(name, channels, normalizes, pictures_data, figures, tmp_path, capsys):
    model = masked_autoencoder(name, image_size=8, patch_size=2, channels=channels, norm_pix_loss=normalizes)[0].eval()
    dataset, file = pictures_data / f'quads_{channels}', tmp_path / 'a.png'
    words = [f'--ckpt={save_run(tmp_path / "a", model, CLASSES)}', f'--image={dataset}', f'--out={file}']
    lines = said(capsys, *words, '--num_samples=2', '--seed=7').splitlines()
    assert len(lines) == 3 and ('norm_pix_loss' in lines[0]) == normalizes
    grid = np.array([axis.images[0].get_array() for axis in figures[0].axes]).astype(int).reshape(2, 4, 8, 8, 3)
    generator, x = torch.Generator().manual_seed(7), np.load(dataset / 'val.images.npy')
    for place, (original, masked, rebuilt, pasted) in zip(np.random.default_rng(7).permutation(20)[:2], grid):
        hidden = model.hide(torch.rand(1, 16, generator=generator)).view(4, 4).numpy().repeat(2, 0).repeat(2, 1)
        assert np.array_equal(original, x[place][..., :3] if channels >= 3 else x[place][..., [0, 0, 0]])
        assert np.array_equal(masked[~hidden], original[~hidden]) and (masked[hidden] == masked[hidden][0]).all()
        assert np.array_equal(pasted[~hidden], original[~hidden]) and np.array_equal(pasted[hidden], rebuilt[hidden])
        assert not np.array_equal(rebuilt[~hidden], original[~hidden])
    said(capsys, *words, '--overwrite=true', '--mask_ratio=0.5')
    assert figures[1].axes[1].get_title() == '50% masked'


@pytest.mark.parametrize('chosen', [False, True])
def test_a_small_network_writes_with_one_thread_unless_the_user_has_chosen(chosen, runs, capsys, monkeypatch):
    """Two threads wait for each other, token after token, where another program takes a core."""
    before = torch.get_num_threads()
    if chosen:
        monkeypatch.setenv('OMP_NUM_THREADS', '2')
    else:
        monkeypatch.delenv('OMP_NUM_THREADS', raising=False)
    torch.set_num_threads(2)
    try:
        said(capsys, f'--ckpt={runs}/bytes', '--max_new_tokens=3')
        assert torch.get_num_threads() == (2 if chosen else 1)
    finally:
        torch.set_num_threads(before)
