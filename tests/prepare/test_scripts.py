"""What all scripts of prepare/ have in common: on small files each works; on files and words that do not fit it is
refused in one line that names what is wrong, and leaves nothing behind."""
import importlib
import random
import shutil
import subprocess
import sys

import numpy as np
import pytest
from downloads import tar
from helpers import ROOT, fails
from small_benchmarks import CBT as BOOKS, NE, zipped
from small_files import box, coco_files, jpeg, npy, png, squares, subset, thing, tree, voc_files
from test_folders import FOLDER, LAYOUTS, SOLUTION

from engine.mistakes import Mistake
from tasks import checksums

SCRIPTS = sorted(p.stem for p in (ROOT / 'prepare').glob('*.py') if p.stem != '__init__')
X, Y = np.arange(1050, dtype=np.uint8).reshape(50, 7, 3), np.arange(50) % 3
ONE = squares((1, 2, 2))
NESTED = {f'f/{name}': content for name, content in FOLDER.items()}
PACK = ' --workers 0 --size 8'
WORK = {  # script: (words, files) that work, in a folder that takes the place of {}
    'arrays': ('--images {}x.npy --labels {}y.npy', {'x.npy': npy(X), 'y.npy': npy(Y)}),
    'cbt': ('--from {}x.tgz', {'x.tgz': tar({name: text.encode() for name, text in BOOKS.items()}, 'gz')}),
    'coco': ('--from {}.' + PACK, coco_files([
        thing(box(1, 1, 9)), thing({'counts': [9, 2, 1189], 'size': [30, 40]})])),
    'imagefolder': ('{}f' + PACK, NESTED),
    'imagenet': ('--from {}.' + PACK, LAYOUTS['tars']),
    'lambada': ('--from {}lambada_test.jsonl', {'lambada_test.jsonl': b'{"text": "a b"}\n\n{"text": "two words"}'}),
    'openwebtext': ('--from {}. --subsets 1 --tokenizer bytes --val 0.3 --workers 0', {
        'urlsf_subset00.tar': subset(0)}),
    'pairs': ('{}x.jsonl --val 0.4', {'x.jsonl': b'{"prompt": "a", "answer": "b"}\n' * 5}),
    'shapes': ('--train 3 --val 3 --test 3', {}),
    'stdlib': ('--from {}.', {f'{i}.py': b'x = 1' for i in range(40)}),
    'text': ('{}x', {'x/a.txt': b'some text ' * 9}),
    'voc': ('--from {}.' + PACK, voc_files(ONE, ONE))}


def main_of(script):
    return importlib.import_module(f'prepare.{script}').main


@pytest.fixture
def arranged(tmp_path, monkeypatch):
    """arranged(script, changes): the words that work, in a folder with the files; those of None are missing."""
    monkeypatch.chdir(tmp_path)

    def arrange(script, changes):
        words, held = WORK[script]
        tree(tmp_path, {name: content for name, content in (held | changes).items() if content is not None})
        return words.replace('{}', '').split()
    return arrange


@pytest.mark.slow
@pytest.mark.parametrize('script', WORK)
def test_damaged_files_are_refused_or_read(script, arranged, tmp_path, capsys):
    """Cut off, with other bytes, or of another kind: one line and nothing left behind, or a whole dataset."""
    kinds = [b'', b'<html>' * 99, jpeg(), npy(Y), zipped({'a': 'b'}), tar({'a': b'b'}, 'gz')]
    rng, words, whole = random.Random(script), [*arranged(script, {}), '--out', 'out/d'], WORK[script][1]
    main_of(script)(words)
    for _ in range(30 * bool(whole)):
        shutil.rmtree(tmp_path / 'out')
        name = rng.choice(list(whole))
        content, place = whole[name], rng.randrange(len(whole[name]))
        end = rng.choice([b'', rng.randbytes(3) + content[place + 3:], rng.choice(kinds)])
        tree(tmp_path, whole | {name: rng.choice([content[:place] + end, rng.choice(kinds)])})
        try:
            main_of(script)(words)
        except Mistake:
            assert not [*tmp_path.glob('out/[!.]*')]
        else:
            made = [path.parent for path in tmp_path.glob('out/*/meta.json')]
            assert made and all((path / 'test.jsonl').exists() or checksums.verify(path) is None for path in made)


@pytest.mark.parametrize('script', sorted(WORK.keys() - {'cbt'}))  # it makes two folders with other names
def test_only_a_prepared_dataset_is_ever_replaced(script, arranged, tmp_path, capsys):
    words, main = [*arranged(script, {}), '--out'], main_of(script)
    tree(tmp_path, {'precious/thesis.txt': b'years of work', 'a.file': b'text', 'new.unfinished/train.npy': b'killed'})
    (tmp_path / 'new').mkdir()
    for out in 'precious', 'a.file':
        assert out in fails(capsys, main, *words, out, '--overwrite')
    main([*words, 'new'])
    before = {p: (p.stat().st_mtime_ns, p.read_bytes()) for p in (tmp_path / 'new').iterdir()}
    assert '--overwrite' in fails(capsys, main, *words, 'new')
    assert before == {p: (p.stat().st_mtime_ns, p.read_bytes()) for p in (tmp_path / 'new').iterdir()}
    main([*words, 'new', '--overwrite=true'])
    assert {*before} == {*(tmp_path / 'new').iterdir()}
    assert (tmp_path / 'precious' / 'thesis.txt').exists() and (tmp_path / 'a.file').read_bytes() == b'text'


def coco(*forms, kind=3, **more):
    return coco_files([thing(form, kind) for form in forms], **more)


def cbt(text):
    books = BOOKS | {'cbtest_NE_test_2500ex.txt': text}
    return {'x.tgz': tar({name: book.encode() for name, book in books.items()}, 'gz')}


def code(*counts, size=(30, 40)):
    return {'counts': counts, 'size': size}


NOTHING = dict.fromkeys(NESTED)
BOX, LATER = box(1, 1, 9), ('instances_val2018', 'val2018')
COCO, KAGGLE = 'annotations/instances_val2017.json', 'LOC_val_solution.csv'
REFUSED = {  # script: [(files that are changed or missing, more words, what the line names)]
    'arrays': [
        *[({'x.npy': x and npy(x[0])}, '', 'x.npy') for x in (None, [X / 255])],
        *[({'y.npy': npy(y)}, '', 'y.npy') for y in (Y[:49], Y / 2, Y - 1)],
        ({}, '--classes a,b', 'label 2'), ({}, '--val_images x.npy', '--val_labels'), ({}, '--val 2', '--val')],
    'cbt': [
        *[(cbt(NE.replace(old, new)), '', 'question 1') for old, new in (
            ('XXXXX', 'king'), ('\tJack\t', '\tGill\t'), ('Alice|Jack|Bo', 'Jack'))],
        *[(cbt(text), '', 'cbtest_NE') for text in (NE[:-90], NE[:-2], '')]],
    'coco': [
        *[(coco(form), '', 'p.jpg') for form in ('x', code(5), code(1300, -100), code(1200, size=(40, 30)))],
        (coco(BOX, kind=99), '', '99'), (coco(*[BOX] * 300), '', '254'),
        (coco(BOX, categories='x'), '', COCO), (coco(BOX, name=LATER[0], folder=LATER[1]), '', 'for val'),
        (coco(), '', 'split val'), ({COCO: None}, '', '--from'), (coco(BOX, shape=(40, 30)), '', 'p.jpg')],
    'imagefolder': [
        ({'f/train/emu/readme.txt': b''}, '', 'f/train/emu'),
        *[({f'f/{split}/emu/1.jpg': jpeg()}, '', 'emu') for split in ('train', 'val')],
        ({name: None for name in NESTED if 'train' in name}, '', 'no folder train'), (NOTHING, '', 'no folder'),
        (NOTHING | {'f/1.jpg': jpeg()}, '', 'split val'), (NOTHING | {'f/a/1.jpg': jpeg()}, '', 'split val')],
    'imagenet': [
        *[({KAGGLE: text.encode()}, '', KAGGLE) for text in (SOLUTION[:-30], SOLUTION + 'x,n1 1 2 3 4\n')],
        *[({name: None}, '', name) for name in (KAGGLE, 'ILSVRC2012_img_train.tar', 'ILSVRC2012_img_val.tar')],
        ({KAGGLE: None, 'imagenet_2012_validation_synset_labels.txt': b'n1\nn2\n'}, '', 'synset_labels.txt'),
        *[({}, f'--from {path}', path) for path in ('ILSVRC2012_img_val.tar', 'nowhere', KAGGLE)]],
    'lambada': [({'lambada_test.jsonl': content}, '', f'line {n} ') for content, n in (
        (b'{"text": "a b"}\n{"text": "a', 2), (b'{"text": "a b"}\n\n{"txt": "a b"}', 3), (b'two words\nword \n', 2))],
    'openwebtext': [
        *[({}, words, words.split()[0]) for words in ('--subsets 22', '--val 0')],
        *[({'urlsf_subset00.tar': content}, '', 'urlsf_subset00.tar') for content in (
            b'', None, tar({'a.txt': b'x'}), tar({'a_data.xz': tar({'a.txt': b'x' * 50000}, 'xz')[:-40]}))]],
    'pairs': [({}, '--answer reply', 'line 1'), ({'x.jsonl': b''}, '', 'too little')],
    'shapes': [({}, words, words.split()[0]) for words in ('--objects 17', '--size 10')],
    'stdlib': [({f'{i}.py': None for i in range(39)}, '', 'too little')],
    'text': [({}, '--glob *.md', '--glob'), ({}, 'nowhere', 'nowhere'), ({'x/a.txt': b''}, '', 'too little')],
    'voc': [
        *[({'SegmentationClass/x.png': content}, '', named) for content, named in (
            (png(ONE * 0), 'no class'), (png(ONE[:20]), 'VOC2012'), (None, 'x.png'), (jpeg(), 'VOC2012'))],
        *[({'ImageSets/Segmentation/train.txt': content}, '', named) for content, named in (
            (None, 'train.txt'), (b'nowhere', 'nowhere'))]]}


@pytest.mark.parametrize('script, changes, more, named', [
    (script, *case) for script, cases in REFUSED.items() for case in cases])
def test_what_does_not_fit_is_refused_by_name(script, changes, more, named, arranged, tmp_path, capsys):
    words = arranged(script, changes)
    assert named in fails(capsys, main_of(script), *words, '--out', 'out/d', *more.split())
    assert not [*tmp_path.glob('out/[!.]*')]


# ---- command lines


@pytest.mark.parametrize('name', SCRIPTS)
def test_an_unknown_word_is_one_line(name, capsys):
    assert '--help' in fails(capsys, main_of(name), '--nonsense')


@pytest.mark.parametrize('package', ['prepare', 'lib'])
def test_scripts_start_without_torch_and_libraries_do_not_import_scripts(package):
    names = SCRIPTS
    if package == 'lib':
        names = {p.stem for p in (ROOT / 'prepare' / 'lib').glob('[a-z]*.py')}
        names.remove('published')  # it reads weights with torch, and is imported when they are read
    code = f'import sys, prepare, {", ".join(f"{package}.{name}" for name in names)}; print(*sys.modules)'
    done = subprocess.run([sys.executable, '-c', code], cwd=ROOT, capture_output=True, text=True, check=True)
    loaded = {*done.stdout.split()}
    assert 'torch' not in loaded and 'prepare.lib' not in loaded  # a second copy of lib
    assert package == 'prepare' or not {*SCRIPTS, *(f'prepare.{name}' for name in SCRIPTS)} & loaded
