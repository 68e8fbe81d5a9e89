"""Names of files and of classes that strangers gave, and what somebody typed: no control character of
them reaches a terminal, a table or a figure, and each file is still found."""
import shutil
import unicodedata
import warnings

import pytest
import torch
from helpers import edited, fails
from small_files import jpeg, tree

import analyze
import eval as scores
import sample
import train
from engine.mistakes import one_line_errors
from prepare import imagefolder

ESCAPE = '\x1b]0;owned\a\x1b[31mred\x9b2J'
NAMES = [ESCAPE, 'caf\udce9', 'nul\0and\x7f', '=1+2']
FILES = [f'{ESCAPE}.png', 'caf\udce9.png', 'two\nlines.png', '=1+2.png']


def is_clean(text):
    """Whether a terminal shows all characters of a text, and obeys none but the ends of lines."""
    return all(unicodedata.category(character) not in ('Cc', 'Cs') for character in text.replace('\n', ''))


def said(capsys, main, *words):
    """What a program prints, on standard output and on standard error."""
    with one_line_errors(), warnings.catch_warnings():
        warnings.simplefilter('error')
        try:
            main(list(words))
        except SystemExit as e:
            assert e.code == 1  # a picture of the folder is broken
    out, errors = capsys.readouterr()
    return out + errors


@pytest.fixture
def pictures(tmp_path):
    """A folder of pictures with such names, one that is broken, and a file that is none."""
    files = dict.fromkeys(FILES, jpeg(8, 8)) | {'broken\x1b[31m.png': b'x', 'no\x1b[31mpicture.txt': b'x'}
    return tree(tmp_path / 'pictures', files)


@pytest.fixture
def run_and_data(picture_run, pictures_data, tmp_path):
    """A copy of a run and of its dataset, whose classes have such names."""
    run = shutil.copytree(picture_run, tmp_path / 'run')
    with edited(run / 'config.json') as config:
        config['data']['classes'] = NAMES
        config['about'] = ESCAPE
    data = shutil.copytree(pictures_data / 'quads', tmp_path / 'data' / 'quads')
    with edited(data / 'meta.json') as meta:
        meta['classes'] = NAMES
        del meta['sha256']
    return run, data.parent


@pytest.mark.parametrize('out', ['', 'x.svg', 'x.csv'])
def test_names_of_pictures_are_printed_drawn_and_written_as_escapes(out, picture_run, pictures, tmp_path, capsys):
    words = [f'--ckpt={picture_run}', f'--image={pictures}']
    if out:
        words.append(f'--out={tmp_path}/{out}')
    text = said(capsys, sample.main, *words)
    assert is_clean(text)
    for part in ('owned', 'caf', 'two', '=1+2', 'broken', 'picture.txt'):
        assert part in text
    if out.endswith(('svg', 'csv')):
        assert is_clean((tmp_path / out).read_text(encoding='utf-8'))


@pytest.mark.parametrize('ending', ['png', 'svg'])
def test_names_of_classes_are_printed_drawn_and_written_as_escapes(ending, run_and_data, quads, tmp_path, capsys):
    run, data = run_and_data
    if ending == 'png':  # a network that was trained on such classes
        run = tmp_path / 'new'
        assert is_clean(said(capsys, train.main, *quads, f'--data_dir={data}', f'--out_dir={run}'))
    words = [f'--ckpt={run}', f'--data_dir={data}']
    guesses = said(capsys, sample.main, f'--ckpt={run}', f'--image={data}/quads', '--num_samples=3',
                   f'--out={tmp_path}/s.{ending}')
    confused = said(capsys, scores.main, *words, f'--confusion={tmp_path}/c.{ending}')
    drawn = said(capsys, analyze.main, 'pca', *words, '--num_samples=2', f'--out={tmp_path}/p.{ending}')
    assert is_clean(guesses) and is_clean(confused) and is_clean(drawn)
    table = (tmp_path / 'c.csv').read_text(encoding='utf-8')
    assert is_clean(table) and "'=1+2" in table
    if ending == 'svg':
        for file in tmp_path.glob('*.svg'):
            assert is_clean(file.read_text(encoding='utf-8'))


def test_folders_with_such_names_become_classes(tmp_path, capsys):
    files = {f'{name}/{i}.jpg': jpeg(8, 8) for name in (ESCAPE, 'caf\udce9', 'plain') for i in range(4)}
    tree(tmp_path / 'p', files | {'plain/broken\x1b[2J.png': b'x', 'plain/no\x1b[2J.txt': b'x'})
    words = [f'{tmp_path}/p', '--out', f'{tmp_path}/d', '--workers=0', '--max_bad=0.5']
    assert is_clean(said(capsys, imagefolder.main, *words))
    assert (tmp_path / 'd' / 'meta.json').exists()


@pytest.mark.parametrize('part, name, value', [('', 'model', ESCAPE), ('network', ESCAPE, 1)])
def test_a_mistake_about_a_file_of_a_stranger_is_clean(
        part, name, value, picture_run, pictures, pictures_data, tmp_path, capsys):
    run = shutil.copytree(picture_run, tmp_path / 'run')
    with edited(run / 'config.json') as config:
        config.get(part, config)[name] = value
    assert is_clean(fails(capsys, scores.main, f'--ckpt={run}', f'--data_dir={pictures_data}'))
    for path in pictures.iterdir():
        path.write_text('x')
        assert is_clean(fails(capsys, sample.main, f'--ckpt={picture_run}', f'--image={path}'))


@pytest.mark.parametrize('words', ['--model=\udce9', f'{ESCAPE}.py'])
def test_a_mistake_about_typed_words_is_clean(words, capsys):
    assert is_clean(fails(capsys, train.main, words))


def test_a_network_may_write_any_character(tmp_path, text_run, capsys, monkeypatch):
    """An untrained network of bytes writes them all."""
    drawn = iter([27, 99, 7, 9, 10, 0, 127] * 9)
    monkeypatch.setattr(sample, 'stream', lambda *_: (torch.tensor([[next(drawn)]]) for _ in range(7)))
    text = said(capsys, sample.main, f'--ckpt={text_run}', '--start=a', '--num_samples=2')
    assert is_clean(text.replace('\t', '')) and text.count('\t') == 2
