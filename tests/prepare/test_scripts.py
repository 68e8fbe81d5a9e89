"""What all scripts of prepare/ have in common: on small files each works; on files and words that
do not fit it is refused in one line that names what is wrong, and leaves nothing behind."""
import importlib
import random
import shutil
import subprocess
import sys

import numpy as np
import pytest
from downloads import tar
from helpers import ROOT, fails, snapshot
from small_benchmarks import CBT as BOOKS, NE, zipped
from small_files import (box, coco_files, jpeg, npy, png, squares, subset, thing, tree,
                         voc_files)
from test_folders import FOLDER, LAYOUTS, SOLUTION

from engine.mistakes import Mistake
from tasks import checksums

SCRIPTS = sorted(path.stem for path in (ROOT / 'prepare').glob('[a-z]*.py'))
X, Y = np.arange(1050, dtype=np.uint8).reshape(50, 7, 3), np.arange(50) % 3
ONE = squares((1, 2, 2))
NESTED = {f'f/{name}': content for name, content in FOLDER.items()}
PACK = ' --workers 0 --size 8'


def cbt(named_entities):
    """The archive of the Children's Book Test, with this text as one of its files."""
    books = BOOKS | {'cbtest_NE_test_2500ex.txt': named_entities}
    return {'x.tgz': tar({name: book.encode() for name, book in books.items()}, 'gz')}


WORK = {  # script: (words, files) that work, in a folder that takes the place of {}
    'arrays': ('--images {}x.npy --labels {}y.npy', {'x.npy': npy(X), 'y.npy': npy(Y)}),
    'cbt': ('--from {}x.tgz', cbt(NE)),
    'coco': ('--from {}.' + PACK, coco_files([
        thing(box(1, 1, 9)), thing({'counts': [9, 2, 1189], 'size': [30, 40]})])),
    'imagefolder': ('{}f' + PACK, NESTED),
    'imagenet': ('--from {}.' + PACK, LAYOUTS['tars']),
    'lambada': ('--from {}lambada_test.jsonl', {
        'lambada_test.jsonl': b'{"text": "a b"}\n\n{"text": "two words"}'}),
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
    """arranged(script, changes): the words that work, in a folder with the files; those of None are
    missing."""
    monkeypatch.chdir(tmp_path)

    def arrange(script, changes):
        words, files = WORK[script]
        files = files | changes
        tree(tmp_path, {name: files[name] for name in files if files[name] is not None})
        return words.replace('{}', '').split()
    return arrange


@pytest.mark.slow
@pytest.mark.parametrize('script', WORK)
def test_damaged_files_are_refused_or_read(script, arranged, tmp_path, capsys):
    """Cut off, with other bytes, or of another kind: one line and nothing left behind, or a whole
    dataset."""
    kinds = [b'', b'<html>' * 99, jpeg(), npy(Y), zipped({'a': 'b'}), tar({'a': b'b'}, 'gz')]
    rng = random.Random(script)
    words = [*arranged(script, {}), '--out', 'out/d']
    whole = WORK[script][1]
    main_of(script)(words)
    for _ in range(20 if whole else 0):
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
            assert made
            for path in made:
                if not (path / 'test.jsonl').exists():
                    checksums.verify(path)


# cbt makes two folders with other names
@pytest.mark.parametrize('script', sorted(WORK.keys() - {'cbt'}))
def test_only_a_prepared_dataset_is_ever_replaced(script, arranged, tmp_path, capsys):
    words, main = [*arranged(script, {}), '--out'], main_of(script)
    precious = {'precious/thesis.txt': b'years of work', 'a.file': b'text'}
    tree(tmp_path, precious | {'new.unfinished/train.npy': b'killed'})
    (tmp_path / 'new').mkdir()
    for out in 'precious', 'a.file':
        assert out in fails(capsys, main, *words, out, '--overwrite')
    main([*words, 'new'])
    before = snapshot('new')
    assert '--overwrite' in fails(capsys, main, *words, 'new') and snapshot('new') == before
    main([*words, 'new', '--overwrite=true'])
    assert snapshot('new').keys() == before.keys()
    for name, content in precious.items():
        assert (tmp_path / name).read_bytes() == content


NOTHING = dict.fromkeys(NESTED)
BOX = thing(box(1, 1, 9))
COCO = 'annotations/instances_val2017.json'
TRAIN_TAR, VAL_TAR = 'ILSVRC2012_img_train.tar', 'ILSVRC2012_img_val.tar'
KAGGLE = 'LOC_val_solution.csv'
PASSAGES = 'lambada_test.jsonl'
SUBSET = 'urlsf_subset00.tar'
VOC_KINDS, VOC_LIST = 'SegmentationClass/x.png', 'ImageSets/Segmentation/train.txt'
REFUSED = {  # script: [(files that are changed or missing, more words, what the line names)]
    'arrays': [
        ({'x.npy': None}, '', 'x.npy'), ({'x.npy': npy(X / 255)}, '', 'x.npy'),
        ({'y.npy': npy(Y[:49])}, '', 'y.npy'), ({}, '--classes a,b', 'label 2'),
        ({}, '--val_images x.npy', '--val_labels'), ({}, '--npz x.npz', 'not both')],
    'cbt': [
        (cbt(NE.replace('XXXXX', 'king')), '', 'question 1'),
        (cbt(NE.replace('\tJack\t', '\tGill\t')), '', 'question 1'),
        (cbt(NE[:-90]), '', 'cbtest_NE')],
    'coco': [
        (coco_files([thing('x')]), '', 'p.jpg'), (coco_files([BOX] * 300), '', '254'),
        (coco_files([thing({'counts': [5], 'size': [30, 40]})]), '', 'p.jpg'),
        (coco_files([BOX], categories='x'), '', COCO), (coco_files([]), '', 'split val'),
        (coco_files([BOX], name='instances_val2018', folder='val2018'), '', 'for val'),
        ({COCO: None}, '', '--from'), (coco_files([BOX], shape=(40, 30)), '', 'p.jpg')],
    'imagefolder': [
        ({'f/train/emu/readme.txt': b''}, '', 'f/train/emu'),
        ({'f/val/emu/1.jpg': jpeg()}, '', 'emu'),
        (NOTHING, '', 'no folder'), (NOTHING | {'f/a/1.jpg': jpeg()}, '', 'split val')],
    'imagenet': [
        ({KAGGLE: SOLUTION[:-30].encode()}, '', KAGGLE), ({KAGGLE: None}, '', KAGGLE),
        ({TRAIN_TAR: None}, '', TRAIN_TAR), ({}, f'--from {VAL_TAR}', VAL_TAR),
        ({}, '--from nowhere', 'nowhere')],
    'lambada': [
        ({PASSAGES: b'{"text": "a b"}\n\n{"txt": "a b"}'}, '', 'line 3 '),
        ({PASSAGES: b'two words\nword \n'}, '', 'line 2 ')],
    'openwebtext': [
        ({SUBSET: None}, '', SUBSET), ({SUBSET: tar({'a.txt': b'x'})}, '', SUBSET),
        ({SUBSET: tar({'a_data.xz': tar({'a.txt': b'x' * 50000}, 'xz')[:-40]})}, '', SUBSET)],
    'stdlib': [({f'{i}.py': None for i in range(39)}, '', 'too little')],
    'voc': [
        ({VOC_KINDS: png(ONE * 0)}, '', 'no class'), ({VOC_KINDS: png(ONE[:20])}, '', 'VOC2012'),
        ({VOC_LIST: b'nowhere'}, '', 'nowhere')]}


@pytest.mark.parametrize('script, changes, more, named', [
    (script, *case) for script, cases in REFUSED.items() for case in cases])
def test_what_does_not_fit_is_refused_by_name(script, changes, more, named, arranged, tmp_path,
                                              capsys):
    words = arranged(script, changes)
    assert named in fails(capsys, main_of(script), *words, '--out', 'out/d', *more.split())
    assert not [*tmp_path.glob('out/[!.]*')]


# ---- command lines


@pytest.mark.parametrize('package', ['prepare', 'lib'])
def test_scripts_start_without_torch_and_libraries_do_not_import_scripts(package):
    names = SCRIPTS
    if package == 'lib':
        names = {path.stem for path in (ROOT / 'prepare' / 'lib').glob('[a-z]*.py')}
        names.remove('published')  # it reads weights with torch, and is imported when they are read
    modules = ', '.join(f'{package}.{name}' for name in names)
    code = f'import sys, prepare, {modules}; print(*sys.modules)'
    done = subprocess.run([sys.executable, '-c', code], cwd=ROOT, capture_output=True, text=True,
                          check=True)
    loaded = {*done.stdout.split()}
    assert 'torch' not in loaded and 'prepare.lib' not in loaded  # a second copy of lib
    if package == 'lib':
        assert not {*SCRIPTS, *(f'prepare.{name}' for name in SCRIPTS)} & loaded
