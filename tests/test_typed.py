"""What people type: habits of other programs, typing errors, and surroundings that are not as they should be. Each
message says what to type next."""
import ast
import json
import shutil
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from PIL import Image
from helpers import (BYTES, CLASSES, config_of, fails, go, losses, picture_network, run_here, save_run,
                     text_network, torchrun)
from small_files import jpeg, tree

import analyze
import eval as scores
import sample
import train
from engine import device, settings
from engine.mistakes import Mistake
from prepare import imagefolder, text
from weights import runs
from weights.runs import open_run
from weights.surgery import load_model


# ---- words of the command line

def test_upper_and_lower_case_of_a_choice_are_the_same(tiny, tmp_path, capsys):
    go(*tiny, '--compile=False', '--optimizer=Muon', '--dtype=Float32', '--schedule=COSINE',
       '--model=ToST', '--device=CPU', f'--out_dir={tmp_path}/a')
    written = config_of(tmp_path / 'a')
    assert [written[name] for name in ('compile', 'optimizer', 'schedule')] == ['false', 'muon', 'cosine']
    (tmp_path / 'book.txt').write_text('abc ' * 50)
    text.main([f'{tmp_path}/book.txt', '--tokenizer', 'Chars', '--out', f'{tmp_path}/d'])
    assert 'vocabulary 4' in capsys.readouterr().out


def test_the_home_folder_has_its_short_name_everywhere(tiny, tmp_path, monkeypatch, capsys):
    """Behind `=`, where a shell leaves it; in a word of its own, in a config file, behind FILE:. A prompt stays."""
    home, here = tmp_path / 'home', tmp_path / 'here'
    home.mkdir(), here.mkdir()
    monkeypatch.setenv('HOME', str(home))
    monkeypatch.setenv('USERPROFILE', str(home))  # on Windows
    monkeypatch.chdir(here)
    (home / 'book.txt').write_text('abc ' * 500)
    text.main([str(home / 'book.txt'), '--out=~/data/d'])

    (home / 'c.py').write_text('out_dir = "~/run"\n')
    words = *tiny, '--dataset=d', '--data_dir=~/data', '--max_iters=2', '--block_size=8'
    go(*words, str(home / 'c.py'))
    go(*words, '--init_from=~/run', '--out_dir', '~/tuned')
    assert (home / 'tuned' / 'config.json').exists()
    assert list(here.iterdir()) == []

    sample_words = '--ckpt=~/run', '--max_new_tokens=1', '--device=cpu'
    capsys.readouterr()
    sample.main([*sample_words, '--start=FILE:~/book.txt'])
    assert capsys.readouterr().out.startswith('abc abc')
    sample.main([*sample_words, '--start=~/bin is'])
    assert capsys.readouterr().out.startswith('~/bin is')


@pytest.mark.parametrize('program', ['train.py', 'sample.py', 'eval.py', 'bench.py', 'analyze.py'])
def test_every_program_says_its_version(program, capsys):
    run_here(program, '--version')
    printed = capsys.readouterr()
    assert torch.__version__ in printed.out and not printed.err


def test_help_is_of_what_is_asked_for(capsys):
    def names_in(main, *words):
        main(list(words))
        lines = capsys.readouterr().out.splitlines()
        return {line.split('=')[0].strip(' -') for line in lines if line.startswith('  --')}

    assert 'decoder_n_layer' not in names_in(train.main, '--help')
    assert 'decoder_n_layer' in names_in(train.main, '--model=vit_mae', '--dataset=shapes', '--help')
    assert names_in(analyze.main, '--help') == set()
    assert {'ckpt', 'heads'} <= names_in(analyze.main, 'attention', '--help')
    assert 'threshold' not in names_in(analyze.main, 'attention', '--help')
    assert 'threshold' in names_in(analyze.main, 'layers', '-h')


# ---- config files

@pytest.mark.parametrize('content, said', [
    (b'max_iters = 3\nlearning_rate = \n', ['line 2', 'SyntaxError']),
    (b'batch_size = 4\nfoo(3)\n', ['line 2', 'foo']),
    (b'import no_such_library', ['no_such_library']),
    (b'\xff\xfea\x00=\x001\x00', []), (b'half = 3', ['half', '_'])])
def test_a_mistake_in_a_config_file_is_one_line_with_its_place(content, said, tmp_path, capsys):
    path = tmp_path / 'mine.py'
    path.write_bytes(content)
    line = fails(capsys, train.main, str(path))
    assert 'mine.py' in line and all(part in line for part in said)


def test_a_config_file_may_import_names_and_define_functions(tmp_path):
    (tmp_path / 'mine.py').write_text('from math import pi as _pi, sqrt\nfrom pathlib import Path\nimport os.path\n'
                                      'def half(x):\n    return x / 2\nlearning_rate = half(_pi)\n')
    assert {name: r.value for name, r in settings.collect([f'{tmp_path}/mine.py']).items()} == {'learning_rate': np.pi / 2}


# ---- shorter contexts

@pytest.mark.slow
@pytest.mark.parametrize('name', ['aot', 'tost'])
def test_text_shorter_than_the_context_can_be_learnt_as_the_message_says(name, tiny, tmp_path, capsys):
    (tmp_path / 'short.txt').write_text('a b c d e ' * 9)
    text.main([f'{tmp_path}/short.txt', '--out', f'{tmp_path}/data/short'])
    start = tmp_path / 'start'
    go(*tiny, f'--model={name}', f'--out_dir={start}')
    capsys.readouterr()
    model = load_model(open_run(start))
    words = [f'--init_from={start}', '--dataset=short', f'--data_dir={tmp_path}/data', '--max_iters=1', '--eval_iters=1',
             f'--out_dir={tmp_path}/tuned', '--batch_size=2']
    line = fails(capsys, train.main, *words)
    assert 'too few for block_size=16' in line
    advice = line.split()[-1]
    go(*words, advice)
    length = int(advice.partition('=')[2])
    shorter = load_model(open_run(start), block_size=length)
    x = torch.randint(256, (2, length))
    assert length < 16 and torch.equal(shorter(x)[0], model(x)[0])
    with pytest.raises(Mistake, match='block_size'):
        load_model(open_run(start), block_size=17)


# ---- surroundings


@pytest.mark.parametrize('words', ['Not enough free space to write 37569584 bytes after offset 128',
                                   '1000 requested and 3 written'])
def test_a_full_disk_is_one_line_in_all_words_of_numpy(words, tmp_path, capsys, monkeypatch):
    (tmp_path / 'a.txt').write_text('some text ' * 20)
    for function in 'numpy.lib.format.write_array_header_1_0', 'numpy.save':
        monkeypatch.setattr(function, Mock(side_effect=OSError(words)))
    line = fails(capsys, text.main, f'{tmp_path}/a.txt', '--out', f'{tmp_path}/d')
    assert 'make room' in line and 'resume' not in line and not (tmp_path / 'd').exists()


def test_without_a_compiler_compile_is_one_line(tiny, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv('CXX', f'{tmp_path}/none')
    monkeypatch.setenv('PATH', str(tmp_path))
    assert 'compiler' in fails(capsys, train.main, *tiny, '--compile=true', f'--out_dir={tmp_path}/a')
    assert not (tmp_path / 'a').exists() and not device.choose_compile('auto', 'cpu')


# ---- several processes

def said_by_two(script, tiny, tmp_path):
    """What two processes that run a script instead of train.py say on stderr; they end with code 1."""
    (tmp_path / 'start.py').write_text(script)
    words = [*tiny, f'--out_dir={tmp_path}/a', '--gradient_accumulation_steps=2']
    return torchrun(*words, script=tmp_path / 'start.py', code=1)[1]


WITH_AN_UNUSED_WEIGHT = """
import sys
import torch
import model_aot
import train
from engine.mistakes import one_line_errors
ordinary_init = model_aot.AoT.__init__
def init(self, c):
    ordinary_init(self, c)
    self.unused = torch.nn.Linear(3, 3)
model_aot.AoT.__init__ = init
with one_line_errors():
    train.main(sys.argv[1:])
"""


@pytest.mark.slow
def test_a_weight_without_a_gradient_is_named_where_processes_share_gradients(tiny, tmp_path):
    said = said_by_two(WITH_AN_UNUSED_WEIGHT, tiny, tmp_path)
    assert 'unused.weight gets no gradient' in said


PEER = """
import os
import signal
import sys
import train
from engine import distributed
from engine.mistakes import one_line_errors
if os.environ['RANK'] == '1':
    ordinary = train.dropout_seed
    def seed(c, step):
        if step == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return ordinary(c, step)
    train.dropout_seed = seed
with one_line_errors():
    train.main(sys.argv[1:])
"""


@pytest.mark.slow
def test_a_process_whose_peer_was_killed_says_so_in_one_line(tiny, tmp_path):
    said = said_by_two(PEER, tiny, tmp_path)
    assert 'error: another process of this run has ended' in said and 'train.py", line' not in said


# ---- what a run shows while it trains

def test_a_run_shows_what_the_network_writes_and_learns_the_same(tiny, tmp_path, capsys):
    go(*tiny, '--show_samples=true', f'--out_dir={tmp_path}/a')
    samples = [line.partition('  sample  ')[2] for line in capsys.readouterr().out.splitlines() if '  sample  ' in line]
    assert len(samples) == 3 and len(set(samples)) == 3 and all(len(ast.literal_eval(text)) >= 20 for text in samples)
    go(*tiny, f'--out_dir={tmp_path}/b')
    assert '  sample  ' not in capsys.readouterr().out and losses(tmp_path / 'a') == losses(tmp_path / 'b')


@pytest.mark.parametrize('kind', ['masked_text', 'pictures', 'functions'])
def test_tasks_without_a_line_to_show_show_none(kind, words_of, tmp_path, capsys):
    go(*words_of(kind), '--show_samples=true', f'--out_dir={tmp_path}/a')
    assert '  sample  ' not in capsys.readouterr().out


# ---- relatives that a tester found


@pytest.mark.parametrize('main, words', [
    (sample.main, ['--image', 'cats', 'dogs']), (train.main, ['--learning_rate', '0.1', '0.2']),
    (analyze.main, ['attention', '--image', 'a.png', 'crate_shapes.png'])])
def test_a_second_value_is_not_taken_for_a_misspelt_config_file(main, words, tmp_path, monkeypatch, capsys):
    """A shell replaces a * by all names, and splits a name at its spaces."""
    monkeypatch.chdir(tmp_path)
    names = 'a.png', 'crate_shapes.png', 'cats/a.png', 'dogs/a.png'
    tree(tmp_path, dict.fromkeys(names, jpeg(8, 8)))
    line = fails(capsys, main, *words)
    assert 'folder' in line and 'quotes' in line and 'did you mean' not in line


@pytest.mark.parametrize('channels, dataset, words', [
    (3, 'grey_pack', ['--channels 3']), (1, 'quads', ['--channels 1']), (5, 'quads', [])])
def test_colour_networks_and_grey_pictures_are_told_how_to_meet(channels, dataset, words, pictures_data, tmp_path, capsys):
    run_dir = save_run(tmp_path / 'run', picture_network(channels=channels), CLASSES)
    where = f'--data_dir={pictures_data}', f'--dataset={dataset}'
    for line in (fails(capsys, scores.main, f'--ckpt={run_dir}', *where),
                 fails(capsys, train.main, f'--init_from={run_dir}', *where, '--new_head=true', f'--out_dir={tmp_path}/a')):
        assert '--dataset' in line and [word for word in ('--channels 3', '--channels 1') if word in line] == words


def test_a_new_head_is_none_of_the_differences(picture_run, pictures_data, tmp_path, capsys):
    line = fails(capsys, train.main, f'--init_from={picture_run}', f'--data_dir={pictures_data}',
                 '--dataset=colours', f'--out_dir={tmp_path}/a', '--new_head=true', '--n_embd=32')
    assert 'n_embd' in line and 'num_classes' not in line


def test_a_finished_run_that_is_resumed_says_what_to_type(picture_run, tmp_path, capsys):
    shutil.copytree(picture_run, tmp_path / 'a')
    before = losses(tmp_path / 'a')
    capsys.readouterr()
    go('--init_from=resume', f'--out_dir={tmp_path}/a')
    assert '--max_iters' in capsys.readouterr().out and losses(tmp_path / 'a') == before
    assert '--max_iters' in fails(capsys, train.main, '--init_from=resume', f'--out_dir={tmp_path}/a', '--max_iters=3')
    go('--init_from=resume', f'--out_dir={tmp_path}/a', '--max_iters=8')
    assert len(losses(tmp_path / 'a')) > len(before) and '--max_iters' not in capsys.readouterr().out


@pytest.mark.parametrize('names, said', [
    (['Train', 'Valid'], ''), (['train', 'val', 'Validation'], 'two folders for val'),
    (['Test', 'val'], 'no folder train')])
def test_folders_of_splits_may_be_in_capitals(names, said, tmp_path, capsys):
    tree(tmp_path / 'in', {f'{name}/{label}/a.jpg': jpeg(9, 9) for name in names for label in ('cat', 'dog')})
    words = [f'{tmp_path}/in', '--out', f'{tmp_path}/d', '--workers', '0']
    if said:
        assert said in fails(capsys, imagefolder.main, *words)
        return
    imagefolder.main(words)
    meta = json.loads((tmp_path / 'd' / 'meta.json').read_text())
    assert meta['classes'] == ['cat', 'dog'] and set(meta['splits']) == {'train', 'val'}


def test_a_slash_behind_a_file_is_that_file(picture_run, tmp_path, capsys):
    Image.new('RGB', (8, 8), 'red').save(tmp_path / 'a.png')
    sample.main([f'--ckpt={picture_run}', f'--image={tmp_path}/a.png', f'--out={tmp_path}/z.npy/'])
    assert (tmp_path / 'z.npy').is_file() and not list(tmp_path.glob('*.new'))


def test_a_run_that_came_with_the_project_stands_in_until_there_is_ones_own(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shipped = tmp_path / 'project' / 'trained'
    save_run(shipped / 'aot_stdlib', text_network('aot', vocab_size=256), BYTES)
    monkeypatch.setattr(runs, 'HERE', tmp_path / 'project')
    sample.main(['--max_new_tokens=3'])
    lines = capsys.readouterr().err.splitlines()
    assert 'no out/aot_stdlib yet' in lines[0] and 'project/trained/aot_stdlib' in lines[-1]
    save_run('out/aot_stdlib', text_network('aot', vocab_size=256), BYTES)
    sample.main(['--max_new_tokens=3'])
    err = capsys.readouterr().err
    assert 'yet' not in err and '(out/aot_stdlib' in err
    assert 'no run in' in fails(capsys, sample.main, '--ckpt=elsewhere/aot_stdlib')  # only out/ has a double
