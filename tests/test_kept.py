"""Nothing of a user's is deleted: what lies in the folder of a dataset, backups of a run, links."""
import os
import shutil

import numpy as np
import pytest
from helpers import fails, go, losses
from small_files import tree

import train
from prepare import arrays, imagefolder, text


def files(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes()
            for path in folder.rglob('*') if path.is_file() and path.suffix != '.lock'}


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """A folder with a prepared dataset, data/mine, and its source t.txt."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / 't.txt').write_text('some words of a text\n' * 99)
    text.main(['t.txt', '--out', 'data/mine'])
    return tmp_path / 'data' / 'mine'


@pytest.mark.parametrize('name, script, source', [
    ('input.txt', text, 'data/mine/input.txt'), ('pics/a/1.jpg', imagefolder, 'data/mine/pics'),
    ('.notes', text, 't.txt')])
def test_what_is_not_of_the_dataset_is_not_replaced_with_it(name, script, source, mine, capsys):
    tree(mine, {name: b'something of mine'})
    before = files(mine)

    said = fails(capsys, script.main, source, '--out', 'data/mine', '--overwrite')
    assert 'data/mine also holds' in said and files(mine) == before


def test_a_dataset_is_not_replaced_by_one_made_of_its_own_files(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save('x.npy', np.zeros((9, 4, 4), np.uint8))
    np.save('y.npy', np.arange(9))
    arrays.main(['--images', 'x.npy', '--labels', 'y.npy', '--out', 'd'])
    before = files(tmp_path / 'd')

    said = fails(capsys, arrays.main, '--images', 'd/train.images.npy', '--labels', 'd/train.labels.npy',
                 '--out', 'd', '--overwrite')
    assert 'd/train.images.npy' in said and files(tmp_path / 'd') == before


def test_a_dataset_alone_is_replaced(mine):
    with open('t.txt', 'a') as f:
        f.write('another line\n' * 99)
    before = files(mine)
    text.main(['t.txt', '--out', 'data/mine', '--overwrite'])

    assert files(mine).keys() == before.keys() and files(mine) != before
    assert [path.name for path in mine.parent.iterdir() if not path.name.startswith('.')] == ['mine']


@pytest.mark.parametrize('name', ['new.replaced', 'new.unfinished'])
def test_folders_with_names_like_ours_are_kept(name, mine, capsys):
    folder = mine.parent / name
    folder.mkdir()
    (folder / 'mine').write_text('mine')

    said = fails(capsys, text.main, 't.txt', '--out', 'data/new')
    assert name in said and files(folder) == {'mine': b'mine'}


def test_what_a_killed_process_left_is_removed(mine):
    for name in ('new.replaced', 'new.unfinished'):
        shutil.copytree(mine, mine.parent / name)
    (mine.parent / 'new.unfinished' / 'meta.json').unlink()
    text.main(['t.txt', '--out', 'data/new'])

    assert sorted(path.name for path in mine.parent.iterdir() if not path.name.startswith('.')) == ['mine', 'new']


def linked_copy(run, backup):
    backup.mkdir()
    for path in run.iterdir():
        os.link(path, backup / path.name)


@pytest.mark.parametrize('words', [['--max_iters=1', '--overwrite=true'], ['--init_from=resume', '--max_iters=8']])
def test_a_backup_of_hard_links_keeps_its_log(words, tiny, tmp_path):
    go(*tiny, '--max_iters=6', '--eval_interval=3', f'--out_dir={tmp_path}/run')
    linked_copy(tmp_path / 'run', tmp_path / 'backup')
    before = files(tmp_path / 'backup')

    go(*([] if 'resume' in words[0] else tiny), *words, f'--out_dir={tmp_path}/run')
    assert files(tmp_path / 'backup') == before
    assert losses(tmp_path / 'run') != losses(tmp_path / 'backup')


def test_a_log_that_is_a_link_is_replaced_itself(tiny, tmp_path):
    go(*tiny, '--max_iters=6', f'--out_dir={tmp_path}/r')
    shutil.copytree(tmp_path / 'r', tmp_path / 'q')
    (tmp_path / 'q' / 'log.jsonl').unlink()
    (tmp_path / 'q' / 'log.jsonl').symlink_to('../r/log.jsonl')
    before = files(tmp_path / 'r')

    go(*tiny, '--max_iters=1', '--overwrite=true', f'--out_dir={tmp_path}/q')
    assert files(tmp_path / 'r') == before and not (tmp_path / 'q' / 'log.jsonl').is_symlink()


@pytest.mark.parametrize('words, data_dir', [('u.txt', 'copy'), ('t.txt --val 0.3', 'data'),
                                             ('t.txt --tokenizer chars', 'data')])
def test_a_run_goes_on_with_its_data_alone(words, data_dir, mine, capsys):
    """Not with another text, nor with the same one in other splits or tokens, here or in another
    data_dir. A copy is as good."""
    place = mine.parent.parent
    (place / 'u.txt').write_text('other words, and more of them\n' * 99)
    shape = '--n_layer=1', '--n_embd=16', '--n_head=2', '--block_size=16', '--batch_size=2', '--eval_iters=2'
    go('--dataset=mine', *shape, '--max_iters=2', '--out_dir=r')
    shutil.copytree('data', 'copy')
    go('--init_from=resume', '--out_dir=r', '--data_dir=copy', '--max_iters=3')
    before = files(place / 'r')

    text.main([*words.split(), '--out', f'{data_dir}/mine', '--overwrite'])
    capsys.readouterr()
    said = fails(capsys, train.main, '--init_from=resume', '--out_dir=r', f'--data_dir={data_dir}', '--max_iters=4')
    assert f'{data_dir}/mine' in said and files(place / 'r') == before
    if 'tokenizer' not in words:
        go('--init_from=r', '--dataset=mine', f'--data_dir={data_dir}', '--out_dir=q', '--max_iters=1')
