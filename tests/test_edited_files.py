"""meta.json, config.json, log.jsonl and arrays that somebody wrote or edited: one line that names the
field or the file, whichever program reads it."""
import json
import os
import pickle
import shutil
import subprocess
import sys
from contextlib import suppress

import numpy as np
import pytest
from helpers import edited, fails, go, snapshot

import analyze
import eval as scores
import sample
import train
from engine.mistakes import Mistake
from tasks import files
from tasks.pictures import ImageSplit
from tasks.text import TextSplit

NOTHING = object()
ODD = {'nothing': NOTHING, 'null': None, 'text': 'x', 'fraction': 1.5, 'numbers': [1, 2],
       'objects': {'val': 3}}


@pytest.fixture
def dataset(bytes_data, pictures_data, tmp_path):
    """dataset(name): a copy of a dataset without a checksum of its meta.json."""
    def dataset(name):
        source = (bytes_data if name == 'tiny' else pictures_data) / name
        folder = shutil.copytree(source, tmp_path / 'data' / name)
        with edited(folder / 'meta.json') as meta:
            del meta['sha256']
        return folder
    return dataset


# ---- meta.json and config.json

FIELDS = {
    'tiny': 'kind splits splits.val tokenizer vocab_size splits.train.tokens splits.val.dtype',
    'quads': 'kind storage classes channels splits.val.count splits.train.height',
    'pack': 'storage splits.val.bytes',
    'run': '''data data.kind data.classes settings settings.eval_crop model network network.n_head
        network.image_size network.eta''',
    'resumed': 'data settings.max_iters network.dropout network.block_size',
}
CASES = []
for name, paths in FIELDS.items():
    CASES += [(name, path, odd) for path in paths.split() for odd in ODD]
# values of the right type: nothing is wrong, or the line is about something else
FITTING = {
    'kind': 'text', 'storage': 'text', 'channels': 'nothing null', 'splits.val': 'nothing',
    'splits.val.dtype': 'text', 'tokenizer': 'nothing null objects', 'data.kind': 'text',
    'data.classes': 'nothing null', 'settings': 'objects', 'settings.eval_crop': 'nothing',
    'settings.max_iters': 'nothing', 'network.eta': 'nothing fraction',
    'network.dropout': 'nothing',
}


@pytest.mark.parametrize('name, path, odd', CASES)
def test_a_field_of_another_type_is_one_line_that_names_the_file(
        name, path, odd, dataset, picture_run, text_run, quads, tiny, tmp_path, capsys):
    main, file = train.main, 'config.json'
    if name == 'run':
        folder = shutil.copytree(picture_run, tmp_path / 'run')
        main, words = scores.main, [f'--ckpt={folder}', quads[0]]
    elif name == 'resumed':
        folder = shutil.copytree(text_run, tmp_path / 'run')
        words = ['--init_from=resume', f'--out_dir={folder}', tiny[0], '--eval_only=true']
    else:
        folder, file = dataset(name), 'meta.json'
        words = [*(tiny if name == 'tiny' else quads), f'--data_dir={folder.parent}', f'--out_dir={tmp_path}/out']
        words += ['--eval_only=true', '--eval_iters=1']
        if name == 'pack':
            words += ['--dataset=pack', '--image_size=16', '--patch_size=8', '--workers=0']

    with edited(folder / file) as values:
        *folders, field = path.split('.')
        for inner in folders:
            values = values[inner]
        if ODD[odd] is NOTHING:
            values.pop(field, None)
        else:
            values[field] = ODD[odd]
    if odd in FITTING.get(path, '').split():
        with suppress(Mistake):
            main(words)
    else:
        assert file in fails(capsys, main, *words)
    assert not (tmp_path / 'out').exists()


@pytest.mark.parametrize('other', [{}, None, [1]])
def test_a_file_that_is_something_else_is_one_line(other, dataset, text_run, tmp_path, capsys):
    folder, run = dataset('tiny'), shutil.copytree(text_run, tmp_path / 'run')
    for path in folder / 'meta.json', run / 'config.json':
        path.write_text(json.dumps(other))
        assert path.name in fails(capsys, scores.main, f'--ckpt={run}', f'--data_dir={folder.parent}')


@pytest.mark.parametrize('value', [[1.5], None])
def test_fields_of_ones_own_stay(value, dataset):
    folder = dataset('quads')
    with edited(folder / 'meta.json') as meta:
        meta.update(kind='sounds', rates=value, channels=5)
    assert pickle.loads(pickle.dumps(files.read_meta(folder)))['rates'] == value


@pytest.mark.parametrize('data', [{'kind': 'text'}, {'kind': 'images'}])
def test_a_config_json_without_the_tokenizer_is_one_line_that_names_it(data, text_run, tmp_path, capsys):
    run = shutil.copytree(text_run, tmp_path / 'run')
    with edited(run / 'config.json') as config:
        config['data'] = data
    line = fails(capsys, sample.main, f'--ckpt={run}', '--max_new_tokens=2')
    assert 'config.json' in line and 'tokenizer' in line


def test_a_run_of_another_optimizer_than_its_settings_say_is_one_line(tiny, tmp_path, capsys):
    go(*tiny, f'--out_dir={tmp_path}', '--optimizer=muon')
    with edited(tmp_path / 'config.json') as config:
        del config['settings']['optimizer']
    assert 'last.pt' in fails(capsys, train.main, '--init_from=resume', f'--out_dir={tmp_path}', '--max_iters=9')


# ---- tokens and labels beyond what meta.json says

def spoil(path, value):
    array = np.load(path)
    array[::2] = value
    np.save(path, array)


@pytest.mark.parametrize('split, token', [('train', 256), ('val', 65535)])
def test_a_token_beyond_the_vocabulary_is_one_line(split, token, dataset, tiny, tmp_path, capsys):
    folder = dataset('tiny')
    reader = TextSplit(folder, split, 16)
    spoil(folder / f'{split}.npy', token)
    line = fails(capsys, train.main, *tiny, f'--data_dir={folder.parent}', f'--out_dir={tmp_path}/out')
    assert str(token) in line and split in line
    with pytest.raises(Mistake, match=str(token)):  # also if the file changes while it is read
        next(reader.fixed(2, 1))


@pytest.mark.parametrize('label', [4, -100])
def test_a_label_beyond_the_classes_is_one_line(label, dataset, picture_run, quads, tmp_path, capsys):
    """PyTorch leaves -100 out of the loss without a word."""
    folder = dataset('quads')
    images = ImageSplit(folder, 'val')
    before = images.labels.copy()
    spoil(folder / 'val.labels.npy', label)
    data = f'--data_dir={folder.parent}'
    for main, *words in ((scores.main, f'--ckpt={picture_run}', data),
                         (train.main, *quads, data, f'--out_dir={tmp_path}/out')):
        assert str(label) in fails(capsys, main, *words)
    assert not (tmp_path / 'out').exists()
    # labels that change while they are read change nothing
    assert np.array_equal(images.batch(np.arange(len(images)))[2], before)


def test_a_split_without_pictures_is_one_line(dataset, quads, tmp_path, capsys):
    folder = dataset('quads')
    for name in ('images', 'labels'):
        path = folder / f'val.{name}.npy'
        np.save(path, np.load(path)[:0])
    with edited(folder / 'meta.json') as meta:
        meta['splits']['val']['count'] = 0
    fails(capsys, train.main, *quads, f'--data_dir={folder.parent}', f'--out_dir={tmp_path}/out')
    assert not (tmp_path / 'out').exists()


# ---- log.jsonl

LOGS = {
    'a row without a step': lambda rows: [rows[0].replace(b'step', b'stfp'), *rows],
    'a step that is a text': lambda rows: [rows[0].replace(b'0', b'"0"', 1), *rows],
    'no text': lambda rows: [b'\xff\n', *rows],
}


@pytest.mark.parametrize('what', LOGS)
def test_a_damaged_log_is_named_with_its_line_and_its_run_stays(what, text_run, tiny, tmp_path, capsys):
    run = shutil.copytree(text_run, tmp_path / 'run')
    rows = (run / 'log.jsonl').read_bytes().splitlines(keepends=True)
    (run / 'log.jsonl').write_bytes(b''.join(LOGS[what](rows)))
    before = snapshot(run)
    for main, *words in ((train.main, '--init_from=resume', f'--out_dir={run}', tiny[0], '--max_iters=9'),
                         (analyze.main, 'curves', str(run), f'--out={tmp_path}/c.png')):
        line = fails(capsys, main, *words)
        assert 'log.jsonl' in line and 'line' in line
    assert snapshot(run) == before


# ---- where a run lies

@pytest.mark.parametrize('name', ['x.safetensors', 'x.safetensors/inside', 'caf\udce9', 'a\nb'])
def test_a_run_is_opened_by_the_name_of_its_folder(name, tiny, tmp_path, capsys):
    run = f'{tmp_path}/{name}'
    sys.stderr.reconfigure(errors='backslashreplace')  # as it is in a program
    with train.one_line_errors():
        go(*tiny, f'--out_dir={run}')
        sample.main([f'--ckpt={run}', '--max_new_tokens=2', '--num_samples=1'])
        sample.main([f'--ckpt={run}/best.safetensors', '--max_new_tokens=2', '--num_samples=1'])
        go('--init_from=resume', f'--out_dir={run}', '--max_iters=7')


# ---- a system that gives no more processes

def test_a_process_that_cannot_be_started_is_one_line(picture_run, quads, monkeypatch, capsys):
    def refuse(*arguments, **settings):
        raise BlockingIOError(11, 'Resource temporarily unavailable')
    monkeypatch.setattr(os, 'fork', refuse)
    monkeypatch.setattr(subprocess, 'Popen', refuse)
    assert 'ulimit' in fails(capsys, scores.main, f'--ckpt={picture_run}', quads[0], '--workers=2')
