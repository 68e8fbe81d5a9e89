"""Faults that strangers found: something was lost, a run hung, or a wrong number came without a word.

Each group begins with a case that was found; beside it stand its relatives.
"""
import os
import shutil
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from helpers import (BYTES, ROOT, TEXT, before_step, edited, equal, fails, files_of_at_most,
                     go, picture_network, run, save_run, snapshot, text_network)
from safetensors.torch import save_file
from small_files import jpeg, tree
from test_two_at_once import hold_elsewhere

import eval as scores
import sample
import train
from analyze import main as analyze
from engine import checkpoint
from engine.advice import advice_of
from engine.mistakes import Mistake
from model_aot import AoT, AoTConfig
from prepare import gpt2_weights, imagefolder, official_weights, text, wikitext
from tasks import checksums, files, pictures
from weights.runs import open_run, read_last
from weights.surgery import check_numbers, load_model


@pytest.fixture
def book(tmp_path):
    path = tmp_path / 'book.txt'
    path.write_text(TEXT[:3000])
    return path


@pytest.fixture
def their_file(tmp_path):
    """Authors' weights of a small CRATE, and the words that make a run of them."""
    torch.manual_seed(0)
    torch.save(picture_network().to_official(), tmp_path / 'w.pth')
    return [f'{tmp_path}/w.pth', '--model=crate', '--n_head=2', '--patch_size=4']


# ---- what is no file and no folder stays what it is


@pytest.mark.parametrize('is_link', [False, True])
def test_pipes_are_never_replaced(is_link, book, their_file, text_run, tiny, tmp_path, capsys,
                                  monkeypatch):
    monkeypatch.chdir(tmp_path)
    place = Path('place.png')
    os.mkfifo('pipe' if is_link else place)
    if is_link:
        place.symlink_to('pipe')
    before = os.stat(place).st_ino
    commands = [
        (text.main, book, '--out', place),
        (official_weights.main, *their_file, '--out_dir', place),
        (train.main, *tiny, f'--out_dir={place}'),
        (analyze, 'attention', f'--ckpt={text_run}', '--start=a token', f'--out={place}',
         '--overwrite=true'),
    ]
    for main, *words in commands:
        with pytest.raises(SystemExit) as e, train.one_line_errors():
            main(list(map(str, words)))
        assert e.value.code == 2 and 'place' in capsys.readouterr().err.splitlines()[-1]
        assert os.stat(place).st_ino == before and place.is_symlink() == is_link


def test_a_link_to_a_folder_stays_a_link(book, tmp_path):
    (tmp_path / 'disk').mkdir()
    (tmp_path / 'd').symlink_to('disk')
    for more in [], ['--overwrite']:
        text.main([str(book), '--out', f'{tmp_path}/d', *more])
        assert (tmp_path / 'd').is_symlink() and (tmp_path / 'disk' / 'meta.json').is_file()
    checksums.verify(tmp_path / 'd')


# ---- nobody waits for ever


READ = """
import resource, sys
from lib.pictures import save_arrays
from tasks.pictures import ImageSplit
import numpy as np
images = np.arange(40, dtype=np.uint8)[:, None, None, None].repeat(64, 1).repeat(64, 2).repeat(3, 3)
save_arrays(sys.argv[1], {'train': (images, np.zeros(40, int))}, 'a')
resource.setrlimit(resource.RLIMIT_FSIZE, (99, -1))     # shared memory, which is files, has no room
batches = ImageSplit(sys.argv[1], 'train', workers=2).fixed(20, 2)
print([int(x.max()) for x, *_ in batches])
"""


@pytest.mark.slow
def test_pictures_are_read_where_shared_memory_has_no_room(tmp_path):
    """As in Docker, whose /dev/shm has 64 MB."""
    path = os.pathsep.join(map(str, (ROOT, ROOT / 'prepare')))
    done = subprocess.run([sys.executable, '-c', READ, str(tmp_path / 'd')], capture_output=True, text=True, timeout=60,
                          env=os.environ | {'PYTHONPATH': path})
    assert done.stdout.splitlines()[-1:] == ['[19, 39]'], done.stderr


def test_a_reader_that_cannot_send_a_batch_ends_the_run(pictures_data, monkeypatch):
    class Unsent:
        def __reduce__(self):
            raise ValueError('this cannot be sent')
    monkeypatch.setattr(pictures, 'MOST_SECONDS', 2)
    monkeypatch.setattr(pictures, 'shared', lambda batch: Unsent(), raising=False)
    batches = pictures.ImageSplit(pictures_data / 'quads', 'val', workers=1).fixed(4, 1)
    with pytest.raises(RuntimeError) as e:
        next(batches)
    assert '--workers' in advice_of(e.value)


# ---- what describes a dataset or a run, and was changed


def test_a_changed_character_of_meta_json_is_noticed_or_changes_nothing(bytes_data, tmp_path):
    out = shutil.copytree(bytes_data / 'tiny', tmp_path / 'tiny')
    path, rng, refused = out / 'meta.json', np.random.default_rng(0), 0
    whole, want = path.read_bytes(), files.read_meta(out)
    for _ in range(100):
        place = int(rng.integers(len(whole)))
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << int(rng.integers(7))]) + whole[place + 1:])
        try:
            assert {k: files.read_meta(out)[k] for k in ('kind', 'tokenizer', 'splits')} == {
                k: want[k] for k in ('kind', 'tokenizer', 'splits')}
        except Mistake as e:
            refused += 1
            assert 'meta.json is damaged' in str(e)
    assert refused > 50


def test_a_dataset_of_an_earlier_version_is_read_but_not_verified(bytes_data, tmp_path):
    out = shutil.copytree(bytes_data / 'tiny', tmp_path / 'tiny')
    with edited(out / 'meta.json') as meta:
        del meta['sha256']
    assert files.read_meta(out)['splits'] == files.read_meta(bytes_data / 'tiny')['splits']
    with pytest.raises(Mistake, match='no checksum'):
        checksums.verify(out)


# ---- a run is replaced by one process, and only by one that is whole


def test_weights_never_replace_a_run_under_way(their_file, text_run, tiny, tmp_path, capsys):
    out = shutil.copytree(text_run, tmp_path / 'run')
    holder = hold_elsewhere(out / '.lock', 600)
    before = snapshot(out)
    for main, words in (official_weights.main, [*their_file, '--overwrite']), (train.main, [*tiny, '--overwrite=true']):
        assert str(out) in fails(capsys, main, *words, f'--out_dir={out}')
        assert snapshot(out) == before
    holder.kill()
    holder.communicate()


@pytest.mark.slow
def test_two_scripts_at_once_leave_one_of_their_runs(their_file, tmp_path):
    """Whole: config.json and weights of the same script."""
    for seed in range(3):
        torch.manual_seed(seed)
        torch.save(picture_network(n_layer=1 + seed, n_embd=256).to_official(), tmp_path / f'{seed}.pth')

    def convert(seed):
        return run('prepare/official_weights.py', tmp_path / f'{seed}.pth', *their_file[1:], '--out_dir', tmp_path / 'w')

    with ThreadPoolExecutor() as pool:
        processes = list(pool.map(convert, range(3)))
    assert sorted(process.returncode for process in processes) == [0, 2, 2], processes
    assert all(len(process.stderr.splitlines()) < 2 for process in processes), processes
    load_model(open_run(tmp_path / 'w'))


@pytest.mark.parametrize('size', [999, 4000])
def test_on_a_full_disk_an_old_run_is_not_replaced(size, their_file, text_run, tiny, tmp_path, capsys):
    out = shutil.copytree(text_run, tmp_path / 'run')
    before = snapshot(out)
    with files_of_at_most(size):
        assert 'could not write' in fails(capsys, official_weights.main, *their_file, '--overwrite', f'--out_dir={out}')
        assert snapshot(out) == before
        if size < 1000:
            assert 'could not write' in fails(capsys, train.main, *tiny, '--overwrite=true', f'--out_dir={out}')
            assert snapshot(out) == before


@pytest.mark.parametrize('init_from', ['{}/best.safetensors', '{}/../link'])
def test_a_run_is_not_replaced_by_the_one_that_starts_from_it(init_from, text_run, tiny, tmp_path, capsys):
    out = shutil.copytree(text_run, tmp_path / 'run')
    (tmp_path / 'link').symlink_to(out)
    before = snapshot(out)
    words = [*tiny, f'--init_from={init_from.format(out)}', '--overwrite=true', f'--out_dir={out}']
    assert str(out) in fails(capsys, train.main, *words) and snapshot(out) == before


# ---- weights that are of no use


@pytest.mark.parametrize('how', ['a signal', 'a timed save', 'its loss'])
def test_a_step_that_blows_up_does_not_replace_the_checkpoint(how, picture_run, tmp_path, capsys,
                                                              monkeypatch):
    """Also if its own loss was good, and no validation has seen its weights."""
    out = shutil.copytree(picture_run, tmp_path / 'run')
    before = read_last(out)
    words = ['--init_from=resume', f'--out_dir={out}', '--max_iters=60', '--eval_interval=50', '--schedule=constant',
             '--learning_rate=1e30']
    if how == 'a signal':
        before_step(monkeypatch, 0, lambda: signal.raise_signal(signal.SIGTERM))
    if how == 'a timed save':
        words += ['--checkpoint_minutes=1e-9']
    assert 'not finite' in fails(capsys, train.main, *words)
    after = read_last(out)
    assert after['step'] == 6 and equal(after['weights'], before['weights'])


BAD = {
    'nan': lambda t: t.fill_(torch.nan),
    'one infinity': lambda t: t.index_fill(0, torch.tensor(0), torch.inf),
    'integers': lambda t: t.long(),
}


@pytest.mark.parametrize('kind', BAD)
def test_weights_that_are_no_finite_numbers_are_refused(kind, their_file, tiny, tmp_path, capsys):
    def bad(tensors, name):
        return tensors | {name: BAD[kind](tensors[name])}

    model = text_network('aot', vocab_size=256)
    out = save_run(tmp_path / 'run', model, BYTES)
    held = bad(checkpoint.weights_of(model), 'layers.1.attn.W.weight')
    about = {'format': 'pt', 'step': '0', 'sha256': checkpoint.digest(held, 0)}
    save_file(held, out / 'best.safetensors', about)
    for main, *words in ((scores.main, f'--ckpt={out}'), (sample.main, f'--ckpt={out}', '--start=a'),
                         (train.main, f'--init_from={out}', *tiny[:2], f'--out_dir={tmp_path}/o')):
        assert 'layers.1.attn.W' in fails(capsys, main, *words)

    theirs = bad(torch.load(their_file[0]), 'transformer.layers.0.1.fn.weight')
    torch.save(theirs, their_file[0])
    assert 'ista' in fails(capsys, official_weights.main, *their_file, f'--out_dir={tmp_path}/o')
    assert not (tmp_path / 'o').exists()


def test_a_mask_of_a_network_of_ones_own_may_be_infinite():
    class Masked(AoT):
        def __init__(self, config):
            super().__init__(config)
            self.register_buffer('mask', torch.full((4, 4), -torch.inf).triu(1))
            self.register_buffer('order', torch.arange(4))

    model = Masked(AoTConfig(n_layer=1, n_head=2, n_embd=8, block_size=4, vocab_size=5))
    check_numbers(model, checkpoint.weights_of(model))


@pytest.mark.parametrize('steps, said', [(0, False), (6, True)])
def test_weights_of_step_0_are_named_such_by_who_looks_at_them(steps, said, tiny, bytes_data, tmp_path, capsys):
    """But not where no step was wanted, nor where training has helped."""
    go(*tiny, f'--max_iters={steps}', '--optimizer=adamw', '--learning_rate=1e-25', '--min_lr=0', f'--out_dir={tmp_path}/a')
    capsys.readouterr()
    for main, *words in ((scores.main, f'--data_dir={bytes_data}'), (sample.main, '--max_new_tokens=2'),
                         (analyze, 'layers', f'--data_dir={bytes_data}', f'--out={tmp_path}/l.png', '--num_samples=2')):
        if main is analyze:
            main([words[0], f'--ckpt={tmp_path}/a', *words[1:]])
        else:
            main([f'--ckpt={tmp_path}/a', *words])
        out, err = capsys.readouterr()
        first = (err if main is sample.main else out).splitlines()[0]
        assert ('UNTRAINED' in first) == said, (out, err)


# ---- files that are not what they seem


@pytest.mark.parametrize('encoding, mark', [('utf-16-le', b'\xff\xfe'), ('utf-16-be', b'\xfe\xff')])
def test_text_in_another_encoding_is_the_same_text(encoding, mark, book, tmp_path):
    (tmp_path / 'other.txt').write_bytes(mark + book.read_text().encode(encoding))
    for name in 'book', 'other':
        text.main([f'{tmp_path}/{name}.txt', '--out', f'{tmp_path}/{name}'])
    assert (tmp_path / 'book' / 'train.npy').read_bytes() == (tmp_path / 'other' / 'train.npy').read_bytes()


NO_TEXT = {
    'picture.jpg': lambda path: Image.effect_noise((40, 40), 50).save(path),
    'no_mark.txt': lambda path: path.write_bytes('no mark says what this is'.encode('utf-16-le')),
    'random.txt': lambda path: path.write_bytes(np.random.default_rng(0).bytes(2000)),
}


@pytest.mark.parametrize('name', NO_TEXT)
def test_what_is_no_text_is_refused(name, tmp_path, capsys):
    NO_TEXT[name](tmp_path / name)
    assert name in fails(capsys, text.main, f'{tmp_path}/{name}', '--out', f'{tmp_path}/d')
    if not name.endswith('.txt'):
        assert name in fails(capsys, wikitext.main, '--from', f'{tmp_path}/{name}', '--out', f'{tmp_path}/d')
    assert not (tmp_path / 'd').exists()


def test_a_nanogpt_with_its_own_vocabulary_is_not_called_gpt2(book, tmp_path, capsys):
    text.main([str(book), '--tokenizer', 'chars', '--out', f'{tmp_path}/chars'])
    for vocab_size, tokenizer in (256, 'bytes'), (128, f'{tmp_path}/chars'):
        model = text_network('aot', vocab_size=vocab_size, attn='mhsa', mlp=True)
        torch.save({'model': model.to_official()}, tmp_path / 'ckpt.pt')
        words = ['--from', f'{tmp_path}/ckpt.pt', '--n_head=2', '--overwrite', f'--out_dir={tmp_path}/run']
        assert '--tokenizer' in fails(capsys, gpt2_weights.main, *words)
        assert f'{tmp_path}/no' in fails(capsys, gpt2_weights.main, *words, '--tokenizer', f'{tmp_path}/no')
        gpt2_weights.main([*words, '--tokenizer', tokenizer])
        capsys.readouterr()
        sample.main([f'--ckpt={tmp_path}/run', '--start=a', '--max_new_tokens=20', '--top_k=0'])
        assert capsys.readouterr().out.startswith('a')


def test_no_picture_is_passed_over_without_a_word(tmp_path, capsys, monkeypatch):
    endings = 'jpg', 'JPEG', 'jfif', 'ppm', 'pgm', 'avif', 'webp'
    pictures = ['cat/more/a.png', 'dog/more/deep/a.png']
    pictures += [f'{label}/a.{ending}' for label in ('cat', 'dog') for ending in endings]
    others = 'stray.jpg', 'cat/IMG_1.HEIC', 'dog/notes.txt'
    tree(tmp_path / 'in', dict.fromkeys([*pictures, *others, 'dog/.hidden'], jpeg(20, 20)))
    monkeypatch.chdir(tmp_path / 'in')
    imagefolder.main(['.', '--out', f'{tmp_path}/d', '--workers', '0'])
    err = capsys.readouterr().err
    splits = files.read_meta(tmp_path / 'd')['splits']
    assert sum(split['count'] for split in splits.values()) == len(pictures)
    assert 'left out 3 ' in err and 'hidden' not in err
    assert all(name in err for name in others)


def test_no_text_is_passed_over_without_a_word(tmp_path, capsys):
    names = 'a.txt', 'B.TXT', 'c.md', 'more/D.Txt', '.git/e.txt', '.f.txt'
    tree(tmp_path / 'in', dict.fromkeys(names, b'some words ' * 20))
    text.main([f'{tmp_path}/in', '--out', f'{tmp_path}/d'])
    out = capsys.readouterr().out
    assert '3 files' in out and 'left out 1 ' in out
