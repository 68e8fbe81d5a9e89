"""A flipped bit anywhere in a prepared dataset or a checkpoint is noticed, or changes nothing that is read.

NANOCRATE_FAULTS=50 tries 1000 in each file, instead of 20.
"""
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import FAULTS, JPEGS, TEXT, fails, go, quadrants, save_text, split_text
from torch.utils._pytree import tree_flatten

import eval as eval_py
import train
from engine.rundir import load_checkpoint
from prepare.lib.benchmark import save_benchmark
from prepare.lib.pictures import save_arrays, save_pack
from scoring import benchmarks
from tasks import files
from tasks.masks import Masks
from tasks.pictures import ImageSplit
from tasks.text import TextSplit
from tasks.tokenizer import Tokenizer

FLIPS = 20 * FAULTS


@pytest.fixture(scope='module')
def prepared(tmp_path_factory):
    """A folder with a dataset of each kind: `text`, `arrays` and `pack` with masks."""
    out, tokenizer = tmp_path_factory.mktemp('flips'), Tokenizer('chars', ''.join(sorted(set(TEXT))))
    save_text(out / 'text', tokenizer, *split_text(TEXT[:3000], tokenizer))
    masks = np.random.default_rng(2).random((9, 8, 8)) < 0.5
    save_arrays(out / 'arrays', {'train': (*quadrants(9), masks), 'val': (*quadrants(5, 1), masks[:5])}, 'abcd')
    masked = {split: [(*picture, (np.ones((1, 1), np.uint8), [i % 4])) for i, picture in enumerate(pictures)]
              for split, pictures in JPEGS.items()}
    save_pack(out / 'pack', masked, ['x', 'y', 'z', 'w'], workers=0)
    return out


def content(folder):
    """All that is read of a prepared dataset."""
    meta = files.read_meta(folder)
    found = {k: v for k, v in meta.items() if k not in ('files', 'sha256')}
    for split in meta['splits']:
        if meta['kind'] == 'text':
            found[split] = TextSplit(folder, split, 16).tokens.tolist()
            continue
        images = ImageSplit(folder, split)
        pixels = images.pixels if images.packed else [images.pixels]
        found[split] = [images.labels.tolist(), *(array.tolist() for array in pixels)]
        if images.packed:
            found[split].append(images.names().tolist())
        masks = Masks(images)
        found[split].append([(masks[i][0].tolist(), masks[i][1]) for i in range(len(images))])
    return found


def flips(folder, tmp_path, places):
    """A copy of the folder, with one bit flipped in each turn: (what was flipped, the copy).
    places(file, its bytes): where."""
    copy = shutil.copytree(folder, tmp_path / 'copy')
    rng = np.random.default_rng(0)
    for file in sorted(copy.iterdir()):
        whole = file.read_bytes()
        for place in places(rng, file, len(whole)):
            bit = 1 << int(rng.integers(8))
            file.write_bytes(whole[:place] + bytes([whole[place] ^ bit]) + whole[place + 1:])
            yield f'{file.name}, byte {place}, bit {bit}', copy
        file.write_bytes(whole)


def refused(function, folder):
    """The result of function(folder), or None if it names damage."""
    try:
        return function(folder)
    except ValueError as e:
        assert 'prepare' in str(e), e
        return None


@pytest.mark.slow
@pytest.mark.parametrize('name', ['text', 'arrays', 'pack'])
def test_a_flip_anywhere_is_noticed_when_a_small_file_is_opened(name, prepared, tmp_path):
    want, tried, noticed = content(prepared / name), 0, 0

    def places(rng, file, size):
        return range(size) if file.suffix == '.json' and FLIPS >= 1000 else rng.integers(0, size, FLIPS)
    for what, copy in flips(prepared / name, tmp_path, places):
        found = refused(content, copy)
        assert found is None or found == want, what
        tried, noticed = tried + 1, noticed + (found is None)
    print(f'{name}: {tried} flips, {noticed} noticed, the others change nothing that is read')
    assert tried > 2 * FLIPS and noticed > 0.9 * tried


def test_a_flip_anywhere_in_a_benchmark_is_noticed(tmp_path):
    save_benchmark(tmp_path / 'ptb', 'text', [{'text': 'no <unk> is lost'}], Path('ptb.test.txt'), 'ptb.test.txt')
    want = benchmarks.read('ptb', tmp_path)
    shutil.copytree(tmp_path / 'ptb', tmp_path / 'kept')
    shutil.rmtree(tmp_path / 'ptb')
    for what, copy in flips(tmp_path / 'kept', tmp_path, lambda rng, file, size: rng.integers(0, size, FLIPS)):
        (tmp_path / 'ptb').symlink_to(copy)
        found = refused(lambda folder: benchmarks.read('ptb', folder), tmp_path)
        (tmp_path / 'ptb').unlink()
        assert found is None or found == want, what


@pytest.mark.slow
@pytest.mark.parametrize('name', ['text', 'arrays', 'pack'])
def test_of_a_large_file_opening_notices_the_header_and_verify_all(name, prepared, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(files, 'SMALL', 0)
    want = content(prepared / name)
    for what, copy in flips(prepared / name, tmp_path, lambda rng, file, size: rng.integers(0, min(size, 128), FLIPS)):
        found = refused(content, copy)
        assert found is None or found == want, what
    shutil.rmtree(tmp_path / 'copy')
    for what, copy in flips(prepared / name, tmp_path, lambda rng, file, size: rng.integers(0, size, FLIPS)):
        found = refused(content, copy)
        assert found is None or found == want or refused(files.verify, copy) is None, what
    capsys.readouterr()
    files.verify(prepared / name)
    assert 'files are what was written' in capsys.readouterr().out


def test_a_file_that_is_cut_or_longer_than_its_header_says_is_refused(prepared, tmp_path, monkeypatch):
    monkeypatch.setattr(files, 'SMALL', 0)
    path = shutil.copytree(prepared / 'text', tmp_path / 'text') / 'val.npy'
    whole = path.read_bytes()
    for changed in (whole[:-1], whole + b'\0', whole[:8] + bytes([whole[8] - 2]) + whole[9:]):
        path.write_bytes(changed)
        with pytest.raises(ValueError, match='val.npy is .*prepare the dataset again'):
            TextSplit(path.parent, 'val', 16)


def test_verify_in_train_and_eval(text_run, bytes_data, tiny, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(files, 'SMALL', 0)
    path = shutil.copytree(bytes_data / 'tiny', tmp_path / 'tiny') / 'train.npy'
    here = f'--data_dir={tmp_path}', '--verify=true'
    go(*tiny, *here, '--eval_only=true')
    assert f'{tmp_path}/tiny: 2 files are what was written' in capsys.readouterr().out
    whole = bytearray(path.read_bytes())
    whole[-7] ^= 1
    path.write_bytes(whole)
    for main, words in ((train.main, [*tiny, *here, f'--out_dir={tmp_path}/run']),
                        (eval_py.main, [f'--ckpt={text_run}', *here])):
        assert 'train.npy is damaged' in fails(capsys, main, *words)
    assert not (tmp_path / 'run').exists()
    path.unlink()
    with pytest.raises(ValueError, match='train.npy is missing'):
        files.verify(tmp_path / 'tiny')
    (tmp_path / 'tiny' / 'meta.json').write_text('{"kind": "text", "tokenizer": {"name": "bytes"}, "vocab_size": 256, '
                                                 '"splits": {}}')
    with pytest.raises(ValueError, match='from before there were digests'):
        files.verify(tmp_path / 'tiny')


def test_a_flip_anywhere_in_a_checkpoint_is_noticed(text_run, tmp_path):
    (tmp_path / 'run').mkdir()
    shutil.copy(text_run / 'last.pt', tmp_path / 'run')
    torch.set_printoptions(profile='full')
    want, noticed = str(tree_flatten(load_checkpoint(text_run / 'last.pt'))), 0
    for what, copy in flips(tmp_path / 'run', tmp_path, lambda rng, file, size: rng.integers(0, size, 2 * FLIPS)):
        try:
            assert str(tree_flatten(load_checkpoint(copy / 'last.pt'))) == want, what  # it was padding
        except ValueError as e:
            assert 'last.pt is damaged' in str(e), e
            noticed += 1
    torch.set_printoptions(profile='default')
    print(f'checkpoint: {2 * FLIPS} flips, {noticed} noticed, the others change nothing that is read')
    assert noticed > FLIPS
