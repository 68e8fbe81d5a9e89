"""sample.py --image=.. --out=x.csv and --out=x.npy: guesses and features of pictures as files for other programs."""
import csv
import os
import shutil
import weakref

import numpy as np
import pytest
from helpers import CLASSES, by_hand, fails, masked_autoencoder, picture_network, save_run
from small_files import png, tree

import sample
from engine.mistakes import one_line_errors
from analysis import predictions


def said(capsys, *words):
    capsys.readouterr()
    sample.main(list(words))
    return capsys.readouterr().out.splitlines()


def table(path):
    with open(path, encoding='utf-8', newline='') as f:
        return list(csv.DictReader(f))


@pytest.fixture
def classifier(tmp_path):
    """(network of the classes a, b, c, d, words for its run)."""
    model = picture_network(patch_size=2)
    return model, [f'--ckpt={save_run(tmp_path / "run", model, CLASSES)}', '--dtype=float32']


@pytest.fixture
def files(pictures_data, tmp_path):
    """Pictures of the dataset `quads` in a folder, and in folders of classes, by its index."""
    pixels = np.load(pictures_data / 'quads' / 'val.images.npy')
    files = {f'{folder}/{i}.png': png(pixels[i]) for i in range(3) for folder in ('flat', 'classes/' + 'abx'[i])}
    return tree(tmp_path, files)


def test_guesses_of_a_dataset_become_a_table(classifier, pictures_data, tmp_path, capsys):
    model, words = classifier
    *lines, out = said(capsys, *words, f'--image={pictures_data}/quads', '--num_samples=99', f'--out={tmp_path}/t.csv')
    chances = by_hand(model, pictures_data / 'quads', 'val')[0].softmax(1)
    rows = table(tmp_path / 't.csv')
    assert out == f'{tmp_path}/t.csv' and len(rows) == len(lines) == 20
    for row, line in zip(rows, lines):
        index = int(row['picture'].split()[1].strip(','))
        assert line.startswith(row['picture'] + ': ' + row['guess']) and row['class'] == 'abcd'[index % 4]
        found = [float(row[f'probability_{name}']) for name in 'abcd']
        assert len(row) == 3 + 4 and found == pytest.approx(chances[index].tolist(), abs=1e-5)
        assert row['guess'] == 'abcd'[chances[index].argmax()]


@pytest.mark.parametrize('classes', [
    ['picture', 'class', 'guess', '1'], ['a,b', 'c"d', '=1', 'é'], None])
def test_each_class_has_a_column_whatever_its_name(classes, files, capsys):
    """Also where there are more than five classes, and where weights come without names."""
    n = len(classes or 'abcd')
    model = picture_network(patch_size=2, num_classes=n)
    run = save_run(files / 'other', model, {'kind': 'images', 'classes': classes})
    said(capsys, f'--ckpt={run}', f'--image={files}/classes', '--num_samples=9', f'--out={files}/t.csv')
    for row in table(files / 't.csv'):
        numbers = {name: float(p) for name, p in row.items() if name.startswith('probability_')}
        names = [name.removeprefix('probability_') for name in numbers]
        assert len(row) == 3 + n and len(names) == n and names == (classes or names)
        assert sum(numbers.values()) == pytest.approx(1, abs=1e-4)
        assert max(numbers, key=numbers.get) == 'probability_' + row['guess'].removeprefix("'")


def test_names_with_commas_quotes_and_odd_bytes_stay_one_cell(classifier, files):
    _, words = classifier
    for name in ('a,b.png', 'a"b.png', os.fsdecode(b'caf\xe9.png')):
        shutil.copy(files / 'flat' / '0.png', files / 'flat' / name)
    with one_line_errors():  # in which every program runs: what a console cannot show becomes an escape
        sample.main([*words, f'--image={files}/flat', f'--out={files}/t.csv'])
    with open(files / 't.csv', encoding='utf-8', newline='') as f:  # UTF-8, whatever the names are
        names = {row['picture'] for row in csv.DictReader(f)}
    assert names == {'a,b.png', 'a"b.png', 'caf\\udce9.png', '0.png', '1.png', '2.png'}


@pytest.mark.parametrize('name', ['crate', 'crate_mae', 'vit_mae'])
def test_features_are_in_the_order_of_the_printed_lines(name, classifier, pictures_data, tmp_path, capsys):
    model, words = classifier
    if name != 'crate':
        model = masked_autoencoder(name, image_size=8, patch_size=2)[0].eval()
        words = [f'--ckpt={save_run(tmp_path / "mae", model, CLASSES)}', '--dtype=float32']
    words += [f'--image={pictures_data}/quads', '--num_samples=7']
    *lines, out = said(capsys, *words, f'--out={tmp_path}/f.npy')
    found, want = np.load(tmp_path / 'f.npy'), by_hand(model, pictures_data / 'quads', 'val', model.features)[0]
    chosen = [int(line.split()[1].strip(',')) for line in lines]
    assert found.shape == (7, 16) and found.dtype == np.float32 and out == f'{tmp_path}/f.npy'
    assert len(set(chosen)) == 7 and np.abs(found - want[chosen].numpy()).max() < 1e-5


def test_a_network_that_names_nothing_has_features(whole, pictures_data, tmp_path, capsys):
    words = f'--ckpt={whole("dino")}', f'--image={pictures_data}/quads', '--num_samples=3'
    said(capsys, *words, f'--out={tmp_path}/f.npy')
    assert np.isfinite(np.load(tmp_path / 'f.npy')).all() and len(np.load(tmp_path / 'f.npy')) == 3


def test_what_cannot_be_written_is_refused(classifier, files, monkeypatch, capsys):
    model, words = classifier
    words.append(f'--image={files}/flat')
    for name in ('t.csv', 'f.npy'):
        said(capsys, *words, f'--out={files}/{name}')
        assert '--overwrite=true' in fails(capsys, sample.main, *words, f'--out={files}/{name}')
        said(capsys, *words, f'--out={files}/{name}', '--overwrite=true')
        os.mkfifo(files / f'fifo.{name}')
        assert 'no file' in fails(capsys, sample.main, *words, f'--out={files}/fifo.{name}',
                                  '--overwrite=true')
    mae = save_run(files / 'mae', masked_autoencoder('crate_mae', image_size=8, patch_size=2)[0], CLASSES)
    assert '--out=features.npy' in fails(capsys, sample.main, f'--ckpt={mae}', words[-1], f'--out={files}/x.csv')
    monkeypatch.delattr(type(model), 'features')
    assert 'CRATE.features' in fails(capsys, sample.main, *words, f'--out={files}/x.npy')
    assert not (files / 'x.csv').exists() and not (files / 'x.npy').exists()


@pytest.mark.parametrize('name', ['t.csv', 'f.npy'])
def test_nothing_of_a_picture_is_kept_but_its_row(name, classifier, files, monkeypatch, capsys):
    _, words = classifier
    seen, pixels = predictions.seen, []

    def noted(*args):
        x = seen(*args)
        pixels.append(weakref.ref(x))
        return x
    monkeypatch.setattr(predictions, 'seen', noted)
    said(capsys, *words, f'--image={files}/flat', f'--out={files}/{name}')
    assert len(pixels) == 3 and not any(x() is not None for x in pixels[:2])
