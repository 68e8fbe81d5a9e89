"""meta.json, config.json, log.jsonl and arrays that somebody wrote or edited: one line that names the
field or the file, whichever program reads it."""
import json
import os
import pickle
import resource
import shutil
import subprocess
import sys

import numpy as np
import pytest
from helpers import equal, fails, go, weights

import eval as scores
import nanocrate
import sample
import train
from course import check
from engine.checkpoint import read_log
from engine.mistakes import Mistake
from prepare import text
from prepare.lib.files import write_meta
from tasks import files
from tasks.pictures import ImageSplit
from tasks.text import TextSplit

NOTHING = object()
ODD = {'nothing': NOTHING, 'null': None, 'true': True, 'text': 'x', 'fraction': 1.5, 'list': [], 'numbers': [1, 2],
       'object': {}, 'objects': {'val': 3}, 'zero': 0, 'negative': -1}


def put(values, path, value):
    """Give the field at a path, such as ('splits', 'val', 'count'), another value, or remove it."""
    *folders, name = path
    for folder in folders:
        values = values[folder]
    if value is NOTHING:
        del values[name]
    else:
        values[name] = value


def edit(folder, file, change):
    """Let `change` edit what a JSON file of a folder holds. Of a dataset it loses its checksum."""
    values = json.loads((folder / file).read_text())
    values.pop('sha256', None)
    change(values)
    (folder / file).write_text(json.dumps(values))


@pytest.fixture
def dataset(bytes_data, pictures_data, tmp_path):
    """dataset(name): a copy of a dataset, of which everything may be edited."""
    def dataset(name):
        source = (bytes_data if name == 'tiny' else pictures_data) / name
        return shutil.copytree(source, tmp_path / 'data' / name)
    return dataset


# ---- meta.json

FIELDS = {
    'tiny': [('kind',), ('splits',), ('splits', 'val'), ('tokenizer',), ('tokenizer', 'name'), ('vocab_size',),
             ('splits', 'train', 'tokens'), ('splits', 'val', 'bytes'), ('splits', 'val', 'dtype')],
    'quads': [('kind',), ('storage',), ('splits',), ('classes',), ('channels',), ('splits', 'val', 'count'),
              ('splits', 'train', 'height'), ('splits', 'val', 'width')],
    'pack': [('storage',), ('classes',), ('splits', 'train', 'count'), ('splits', 'val', 'bytes')],
}
CASES = [(name, path, odd) for name, paths in FIELDS.items() for path in paths for odd in ODD]
WORDS = {'tiny': [], 'quads': ['--model=crate', '--patch_size=4'],
         'pack': ['--model=crate', '--image_size=16', '--patch_size=8', '--workers=0']}
# what a network needs not know, or what is a value of this field
HARMLESS = {('tiny', ('tokenizer',), odd) for odd in ('nothing', 'null', 'object', 'objects', 'list', 'zero')}
HARMLESS |= {('tiny', ('tokenizer', 'name'), odd) for odd in ODD}
HARMLESS.add(('tiny', ('splits', 'val', 'bytes'), 'negative'))  # as any number that is another one
HARMLESS |= {('quads', ('storage',), odd) for odd in ('text', 'true')}
HARMLESS |= {('quads', ('channels',), odd) for odd in ('nothing', 'null', 'zero')}
SIZES = ['--n_layer=1', '--n_head=2', '--n_embd=16', '--batch_size=2', '--eval_iters=1', '--max_iters=1',
         '--device=cpu', '--eval_only=true']


@pytest.mark.parametrize('name, path, odd', CASES)
def test_a_field_of_meta_json_of_another_type_is_one_line(name, path, odd, dataset, tmp_path, capsys):
    folder = dataset(name)
    edit(folder, 'meta.json', lambda meta: put(meta, path, ODD[odd]))
    words = [f'--dataset={name}', f'--data_dir={folder.parent}', f'--out_dir={tmp_path}/out', *WORDS[name], *SIZES]
    if name == 'tiny':
        words.append('--block_size=16')
    if (name, path, odd) in HARMLESS:
        try:
            train.main(words)
        except Mistake:
            pass
    else:
        fails(capsys, train.main, *words)
    assert not (tmp_path / 'out').exists()


@pytest.mark.parametrize('other', [{}, [], None, 3, 'x', [1]])
def test_a_meta_json_that_is_something_else_is_one_line(other, dataset, text_run, capsys):
    folder = dataset('tiny')
    (folder / 'meta.json').write_text(json.dumps(other))
    assert 'meta.json' in fails(capsys, scores.main, f'--ckpt={text_run}', f'--data_dir={folder.parent}')


@pytest.mark.parametrize('name, edited', [('tiny', {'vocab_size': 'x'}), ('quads', {'classes': [1, 2, 3, 4]}),
                                          ('quads', {'channels': '3'})])
def test_the_field_is_named(name, edited, dataset):
    folder = dataset(name)
    edit(folder, 'meta.json', lambda meta: meta.update(edited))
    with pytest.raises(Mistake, match=f'meta.json.*{next(iter(edited))}'):
        files.read_meta(folder)


@pytest.mark.parametrize('value', [[1.5], 0, False, None, ''])
def test_fields_of_ones_own_stay(value, dataset):
    folder = dataset('quads')
    edit(folder, 'meta.json', lambda meta: meta.update(kind='sounds', rates=value, channels=5))
    assert pickle.loads(pickle.dumps(files.read_meta(folder)))['rates'] == value


# ---- tokens and labels beyond what meta.json says

def spoil(path, value):
    array = np.load(path)
    array[::2] = value
    np.save(path, array)


@pytest.mark.parametrize('token', [256, 300, 65535])
@pytest.mark.parametrize('split', ['train', 'val'])
def test_a_token_beyond_the_vocabulary_is_one_line(split, token, dataset, tiny, tmp_path, capsys):
    folder = dataset('tiny')
    spoil(folder / f'{split}.npy', token)
    line = fails(capsys, train.main, *tiny, f'--data_dir={folder.parent}', f'--out_dir={tmp_path}/out')
    assert str(token) in line and split in line


def test_also_if_the_file_changes_while_it_is_read(dataset):
    folder = dataset('tiny')
    split = TextSplit(folder, 'val', 16)
    next(split.fixed(2, 1))
    spoil(folder / 'val.npy', 256)
    with pytest.raises(Mistake, match='256'):
        next(split.fixed(2, 1))


@pytest.mark.parametrize('label', [4, -1, -100, 10 ** 12])
def test_a_label_beyond_the_classes_is_one_line(label, dataset, picture_run, quads, tmp_path, capsys):
    """PyTorch leaves -100 out of the loss without a word."""
    folder = dataset('quads')
    spoil(folder / 'val.labels.npy', label)
    data = f'--data_dir={folder.parent}'
    for main, *words in ((scores.main, f'--ckpt={picture_run}', data),
                         (sample.main, f'--ckpt={picture_run}', f'--image={folder}'),
                         (train.main, *quads, data, f'--out_dir={tmp_path}/out')):
        assert str(label) in fails(capsys, main, *words)
    assert not (tmp_path / 'out').exists()


def test_labels_that_change_while_they_are_read_change_nothing(dataset):
    folder = dataset('quads')
    images = ImageSplit(folder, 'val')
    before = images.labels.copy()
    spoil(folder / 'val.labels.npy', 9)
    _, _, labels, _ = images.batch(np.arange(len(images)))
    assert np.array_equal(labels, before)


@pytest.mark.parametrize('split', ['train', 'val'])
def test_a_split_without_pictures_is_one_line(split, dataset, quads, tmp_path, capsys):
    folder = dataset('quads')
    for name in ('images', 'labels'):
        path = folder / f'{split}.{name}.npy'
        np.save(path, np.load(path)[:0])
    meta = json.loads((folder / 'meta.json').read_text())
    meta['splits'][split]['count'] = 0
    write_meta(folder, meta)  # as a script of one's own writes it, with a checksum
    fails(capsys, train.main, *quads, f'--data_dir={folder.parent}', f'--out_dir={tmp_path}/out')
    assert not (tmp_path / 'out').exists()


# ---- config.json

CONFIG = [('data',), ('data', 'kind'), ('data', 'tokenizer'), ('settings',), ('network',), ('network', 'n_dims'),
          ('network', 'dropout'), ('network', 'n_layer'), ('network', 'block_size'), ('model',),
          ('settings', 'max_iters'), ('settings', 'seed')]


@pytest.mark.parametrize('odd', ODD)
@pytest.mark.parametrize('path', CONFIG)
def test_a_field_of_config_json_of_another_type_is_one_line_or_changes_nothing(path, odd, text_run, bytes_data, tmp_path,
                                                                               capsys):
    run = shutil.copytree(text_run, tmp_path / 'run')
    edit(run, 'config.json', lambda config: put(config, path, ODD[odd]))
    for main, words in ((sample.main, [f'--ckpt={run}', '--max_new_tokens=2', '--num_samples=1']),
                        (scores.main, [f'--ckpt={run}', f'--data_dir={bytes_data}', '--dataset=tiny']),
                        (train.main, ['--init_from=resume', f'--out_dir={run}', f'--data_dir={bytes_data}',
                                      '--eval_only=true'])):
        capsys.readouterr()
        try:
            with train.one_line_errors():
                main(words)
        except SystemExit as e:
            assert e.code == 2
            assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.parametrize('data', [{'kind': 'text'}, {'kind': 'images'}, {'kind': 'text', 'tokenizer': None}])
def test_a_config_json_without_the_tokenizer_is_one_line_that_names_it(data, text_run, tmp_path, capsys):
    run = shutil.copytree(text_run, tmp_path / 'run')
    edit(run, 'config.json', lambda config: config.update(data=data))
    line = fails(capsys, sample.main, f'--ckpt={run}', '--max_new_tokens=2')
    assert 'config.json' in line and 'tokenizer' in line


def test_a_run_of_another_optimizer_than_its_settings_say_is_one_line(tiny, tmp_path, capsys):
    go(*tiny, f'--out_dir={tmp_path}', '--optimizer=muon')
    edit(tmp_path, 'config.json', lambda config: config['settings'].pop('optimizer'))
    assert 'last.pt' in fails(capsys, train.main, '--init_from=resume', f'--out_dir={tmp_path}', '--max_iters=9')


def test_what_nobody_edited_is_read_as_it_was_written(picture_run):
    model, reader = nanocrate.load(picture_run)
    config = json.loads((picture_run / 'config.json').read_text())
    assert reader.classes == config['data']['classes']
    assert model.config.n_embd == config['network']['n_embd'] and model.config.image_size == (8, 8)


# ---- log.jsonl

TWICE = {'the first row': lambda rows: rows[:1] + rows, 'all rows': lambda rows: rows + rows,
         'the last row': lambda rows: rows + rows[-1:], 'an early row at the end': lambda rows: rows + rows[1:2]}


@pytest.mark.parametrize('what', TWICE)
def test_a_row_that_the_log_has_twice_is_noticed_on_resuming(what, text_run, bytes_data, tmp_path, capsys):
    run = shutil.copytree(text_run, tmp_path / 'run')
    rows = (run / 'log.jsonl').read_bytes().splitlines(keepends=True)
    (run / 'log.jsonl').write_bytes(b''.join(TWICE[what](rows)))
    before = weights(run)
    line = fails(capsys, train.main, '--init_from=resume', f'--out_dir={run}', f'--data_dir={bytes_data}', '--max_iters=9')
    assert 'log.jsonl' in line and 'line' in line
    assert equal(weights(run), before)


def test_steps_that_are_made_again_stand_in_the_log_once(text_run, bytes_data, tmp_path):
    run = shutil.copytree(text_run, tmp_path / 'run')
    go('--init_from=resume', f'--out_dir={run}', f'--data_dir={bytes_data}', '--max_iters=9')
    rows = [(row['step'], row['split']) for row in read_log(run)]
    assert len(rows) == len(set(rows)) and rows[-1] == (9, 'val')


# ---- where a run lies

@pytest.mark.parametrize('name', ['x.safetensors', 'best.safetensors', 'x.safetensors/inside', 'x.pt', 'caf\udce9', 'a\nb'])
def test_a_run_is_opened_by_the_name_of_its_folder(name, tiny, tmp_path, capsys):
    run = f'{tmp_path}/{name}'
    sys.stderr.reconfigure(errors='backslashreplace')  # as it is in a program
    with train.one_line_errors():
        go(*tiny, f'--out_dir={run}')
        sample.main([f'--ckpt={run}', '--max_new_tokens=2', '--num_samples=1'])
        sample.main([f'--ckpt={run}/best.safetensors', '--max_new_tokens=2', '--num_samples=1'])
        go('--init_from=resume', f'--out_dir={run}', '--max_iters=7')


@pytest.mark.parametrize('link', ['loop', 'first', 'loop/inside'])
@pytest.mark.parametrize('words', [[], ['--overwrite=true']])
def test_a_link_that_leads_to_itself_is_one_line(words, link, tiny, bytes_data, text_run, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    os.symlink('loop', 'loop')
    os.symlink('second', 'first')
    os.symlink('first', 'second')
    (tmp_path / 't.txt').write_text('some text ' * 500)
    before = sorted(os.listdir())
    for main, *line in ((train.main, *tiny, f'--out_dir={link}', *words),
                        (train.main, *tiny, f'--init_from={text_run}', f'--out_dir={link}', *words),
                        (sample.main, f'--ckpt={link}'), (text.main, 't.txt', '--out', link)):
        assert link in fails(capsys, main, *line)
    assert sorted(os.listdir()) == before


# ---- a system that gives no more processes

@pytest.mark.parametrize('limit', [3, 8])
def test_check_without_open_files_is_one_line(limit, tmp_path, capsys):
    free, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = len(os.listdir('/proc/self/fd')) if os.path.isdir('/proc/self/fd') else 0
    if not used:
        pytest.skip('this system does not say which files are open')
    (tmp_path / 'mine.py').write_text('')
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, most))
    try:
        line = fails(capsys, check.main, '1', f'--file={tmp_path}/mine.py')
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (free, most))
    assert 'ulimit' in line


@pytest.mark.parametrize('error', [BlockingIOError(11, 'Resource temporarily unavailable'), OSError(23, 'Too many open files')])
def test_a_process_that_cannot_be_started_is_one_line(error, picture_run, pictures_data, monkeypatch, tmp_path, capsys):
    def refuse(*arguments, **settings):
        raise error
    monkeypatch.setattr(os, 'fork', refuse)
    monkeypatch.setattr(subprocess, 'Popen', refuse)
    fails(capsys, scores.main, f'--ckpt={picture_run}', f'--data_dir={pictures_data}', '--workers=2')
    fails(capsys, check.main, '1')
