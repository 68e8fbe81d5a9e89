"""Prepared datasets: what is damaged or foreign is refused by name, and --verify=true notices a flipped bit anywhere.

NANOCRATE_FAULTS=50 tries 1000 flips in each file, instead of 20.
"""
import shutil

import numpy as np
import pytest
from helpers import FAULTS, fails, go

import eval as eval_py
import train
from engine.settings import Mistake
from prepare.lib.benchmarks import save_benchmark
from tasks import files
from tasks.pictures import ImageSplit
from tasks.text import TextSplit


def opened(folder, split='train'):
    return TextSplit(folder, split, 16) if folder.name == 'text' else ImageSplit(folder, split)


DAMAGES = {
    'gone': lambda path, array: path.unlink(),
    'cut off': lambda path, array: path.write_bytes(path.read_bytes()[:-1]),
    'foreign': lambda path, array: path.write_bytes(b'not an array at all' * 100),
    'pickled': lambda path, array: np.save(path, np.array([{}], object)),
    'other length': lambda path, array: np.save(path, array[:-1]),
    'other type': lambda path, array: np.save(path, array.astype(float)),
    'other shape': lambda path, array: np.save(path, array[..., None])}


@pytest.mark.parametrize('damage', DAMAGES)
@pytest.mark.parametrize('name', ['text', 'quads', 'grey', 'pack'])
def test_a_damaged_array_is_refused_by_name(name, damage, pictures_data, tmp_path):
    copy = shutil.copytree(pictures_data / name, tmp_path / name)
    arrays = {*copy.glob('train*.npy')} - {copy / 'train.names.npy'}  # which is read by those who want names
    for path in arrays:
        whole = path.read_bytes()
        DAMAGES[damage](path, np.load(path))
        with pytest.raises(Mistake, match=path.name):
            opened(copy)
        opened(copy, 'val')  # the other split is whole
        path.write_bytes(whole)
    assert opened(copy) and len(arrays) == {'text': 1, 'pack': 3}.get(name, 2)


def test_tokens_beyond_the_vocabulary_are_refused(bytes_data, tmp_path):
    path = shutil.copytree(bytes_data / 'tiny', tmp_path / 'tiny') / 'train.npy'
    np.save(path, np.full_like(np.load(path), 256))
    with pytest.raises(Mistake, match='train.npy.*256'):
        next(TextSplit(tmp_path / 'tiny', 'train', 16).batches(2, 0, [slice(None)], 0, 1))


@pytest.mark.parametrize('ask, name', [
    (lambda at: ImageSplit(at / 'quads', 'test'), 'test'), (lambda at: ImageSplit(at / 'text', 'train'), 'text'),
    (lambda at: TextSplit(at / 'quads', 'train', 8), 'images'), (lambda at: files.read_meta(at / 'no'), 'no'),
    (lambda at: files.read_meta(at / 'ptb'), 'eval.py')])
def test_what_is_not_there_or_no_such_dataset_is_named(ask, name, pictures_data, tmp_path):
    for dataset in ('quads', 'text'):
        shutil.copytree(pictures_data / dataset, tmp_path / dataset)
    save_benchmark(tmp_path / 'ptb', 'text', [{'text': 'no <unk> is lost'}], 'ptb.test.txt')
    with pytest.raises(Mistake, match=name):
        ask(tmp_path)


# ---- flipped bits


def flips(path):
    """Flip one bit of a file in each turn, and make it whole again in the end."""
    whole, rng = path.read_bytes(), np.random.default_rng(0)
    for place, bit in zip(rng.integers(0, len(whole), 20 * FAULTS), rng.integers(0, 8, 20 * FAULTS)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << bit]) + whole[place + 1:])
        yield
    path.write_bytes(whole)


@pytest.mark.parametrize('name', ['text', 'quads', 'pack'])
def test_verify_notices_a_flip_anywhere_and_a_file_that_is_gone(name, pictures_data, tmp_path):
    copy = shutil.copytree(pictures_data / name, tmp_path / name)
    for path in sorted(copy.glob('*.npy')):
        files.verify(copy)
        for _ in flips(path):
            with pytest.raises(Mistake, match=path.name):
                files.verify(copy)
    path.unlink()
    with pytest.raises(Mistake, match=path.name):
        files.verify(copy)


def test_verify_in_train_and_eval(text_run, bytes_data, tiny, tmp_path, capsys):
    path = shutil.copytree(bytes_data / 'tiny', tmp_path / 'tiny') / 'val.npy'
    here = f'--data_dir={tmp_path}', '--verify=true'
    go(*tiny, *here, '--eval_only=true')
    next(flips(path))
    for main, words in ((train.main, [*tiny, *here, f'--out_dir={tmp_path}/run']),
                        (eval_py.main, [f'--ckpt={text_run}', *here])):
        assert 'val.npy' in fails(capsys, main, *words)
    assert not (tmp_path / 'run').exists()
