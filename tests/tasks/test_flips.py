"""A flipped bit anywhere in a benchmark is noticed when it is read, and in a prepared dataset by --verify=true.

NANOCRATE_FAULTS=50 tries 1000 in each file, instead of 20.
"""
import shutil

import numpy as np
import pytest
from helpers import FAULTS, fails, go

import eval as eval_py
import train
from prepare.lib.benchmarks import save_benchmark
from scoring import benchmarks
from tasks import files


def flips(path):
    """Flip one bit of a file in each turn, and make it whole again in the end."""
    whole, rng = path.read_bytes(), np.random.default_rng(0)
    for place, bit in zip(rng.integers(0, len(whole), 20 * FAULTS), rng.integers(0, 8, 20 * FAULTS)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << bit]) + whole[place + 1:])
        yield
    path.write_bytes(whole)


def test_a_flip_anywhere_in_a_benchmark_is_noticed(tmp_path):
    save_benchmark(tmp_path / 'ptb', 'text', [{'text': 'no <unk> is lost'}], 'ptb.test.txt')
    want = benchmarks.read('ptb', tmp_path)
    for _ in flips(tmp_path / 'ptb' / 'test.jsonl'):
        with pytest.raises(ValueError, match='ptb is damaged'):
            benchmarks.read('ptb', tmp_path)
    assert benchmarks.read('ptb', tmp_path) == want


@pytest.mark.parametrize('name', ['text', 'quads', 'pack'])
def test_verify_notices_a_flip_anywhere(name, pictures_data, tmp_path, capsys):
    copy = shutil.copytree(pictures_data / name, tmp_path / name)
    files.verify(copy)
    assert 'every file is what was written' in capsys.readouterr().out
    for path in sorted(copy.glob('*.npy')):
        for _ in flips(path):
            with pytest.raises(ValueError, match=f'{path.name} is not what was written'):
                files.verify(copy)
    path.unlink()
    with pytest.raises(ValueError, match=f'{path.name} is not what was written'):
        files.verify(copy)


def test_verify_in_train_and_eval(text_run, bytes_data, tiny, tmp_path, capsys):
    path = shutil.copytree(bytes_data / 'tiny', tmp_path / 'tiny') / 'val.npy'
    here = f'--data_dir={tmp_path}', '--verify=true'
    go(*tiny, *here, '--eval_only=true')
    assert 'every file is what was written' in capsys.readouterr().out
    next(flips(path))
    for main, words in ((train.main, [*tiny, *here, f'--out_dir={tmp_path}/run']),
                        (eval_py.main, [f'--ckpt={text_run}', *here])):
        assert 'val.npy is not what was written' in fails(capsys, main, *words)
    assert not (tmp_path / 'run').exists()
