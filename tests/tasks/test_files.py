"""Prepared datasets: what is damaged is refused by name, and --verify=true notices a flipped
bit."""
import shutil

import numpy as np
import pytest
from helpers import fails, go

import eval as eval_py
import train
from engine.mistakes import Mistake
from tasks import checksums
from tasks.pictures import ImageSplit
from tasks.text import TextSplit


def opened(folder, split):
    return TextSplit(folder, split, 16) if folder.name == 'text' else ImageSplit(folder, split)


def flip(path):
    """Flip one bit in the middle of a file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


DAMAGES = {
    'gone': lambda path: path.unlink(),
    'a bit': flip,
    'cut off': lambda path: path.write_bytes(path.read_bytes()[:-1]),
    'other type': lambda path: np.save(path, np.load(path).astype('S1')),
    'other shape': lambda path: np.save(path, np.load(path)[..., None]),
}


@pytest.mark.parametrize('damage', DAMAGES)
@pytest.mark.parametrize('name', ['text', 'quads', 'pack'])
def test_a_damaged_array_is_refused_by_name(name, damage, pictures_data, tmp_path):
    """By --verify=true, and by who opens its split. Who opens it notices no flipped bit, and reads
    no names."""
    copy = shutil.copytree(pictures_data / name, tmp_path / name)
    for path in sorted(copy.glob('*.npy')):
        whole, split = path.read_bytes(), path.name.split('.')[0]
        DAMAGES[damage](path)
        with pytest.raises(Mistake, match=path.name):
            checksums.verify(copy)
        if damage != 'a bit' and 'names' not in path.name:
            with pytest.raises(Mistake, match=path.name):
                opened(copy, split)
        opened(copy, {'train': 'val', 'val': 'train'}[split])  # the other split is whole
        path.write_bytes(whole)
        checksums.verify(copy)


def test_verify_in_train_and_eval(text_run, bytes_data, tiny, tmp_path, capsys):
    path = shutil.copytree(bytes_data / 'tiny', tmp_path / 'tiny') / 'val.npy'
    here = f'--data_dir={tmp_path}', '--verify=true'
    go(*tiny, *here, '--eval_only=true')
    flip(path)
    for main, words in ((train.main, [*tiny, *here, f'--out_dir={tmp_path}/run']),
                        (eval_py.main, [f'--ckpt={text_run}', *here])):
        assert 'val.npy' in fails(capsys, main, *words)
    assert not (tmp_path / 'run').exists()
