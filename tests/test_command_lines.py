"""Wrong command lines, drawn at random: every option of every program with every odd value, and odd
words. Each works, or ends with one line and exit code 2 and leaves nothing behind.

    NANOCRATE_FAULTS=30 python -m pytest tests/test_command_lines.py -s     # 30 times as many, and a count
"""
import contextlib
import io
import json
import random
import re
import runpy
import shutil
import signal
import sys
from dataclasses import fields

import pytest
import torch
from helpers import FAULTS, JPEGS, ROOT, run, save_run

import analyze
import bench
import eval
import sample
import train
from analysis.curves import CurvesConfig
from engine import settings
from model_aot import AoT, AoTConfig
from model_crate import CRATE, CRATEConfig
from prepare.lib import download
from tasks.augment import AugmentConfig

CASES = 100 * FAULTS
VALUES = ['nan', 'inf', '-inf', '-1', '0', '1e-300', '1e400', '1000000000000', '-1000000000000', '1.5', 'true', 'None',
          '', ' ', 'a,b', '1,2,3', '[', '{}', '()', '1_000', '0x10', '٣', '*', 'out/*', '[a-z]*', '~', '/', '.', '..',
          'FILE:', 'x.pt', 'text/last.pt', 'file', 'file/x', 'folder', 'no/such/place', 'a\nb', 'a\x1b[2Jb', '--',
          '-h', '--help=1', '%s', '$HOME', '__init__', 'con', 'sys', '1e9', '-0', '+1', '1e3', '3']
WORDS = ['--', '-', '---', '-x', '--=', '--=1', '=', '--nothing', '--nothing=1', 'nothing.py', 'config', 'file',
         'folder',
         '', '*', 'config/*.py', 'x' * 300, '--out_dir', '--help=', '-o', '@file', 'broken.py', 'binary.py']
HANG = 60  # seconds; every case here takes less than one


@pytest.fixture(scope='module')
def place(tmp_path_factory, bytes_data):
    """A folder to work in, with small runs, data and files to trip over."""
    place = tmp_path_factory.mktemp('place')
    text = {'kind': 'text', 'tokenizer': {'name': 'bytes'}}
    torch.manual_seed(0)
    small = dict(n_layer=1, n_head=2, n_embd=8)
    save_run(place / 'text', AoT(AoTConfig(**small, block_size=8, vocab_size=256)), text, dataset='tiny',
             seed=1)
    crate = CRATE(CRATEConfig(**small, image_size=8, patch_size=4, num_classes=4))
    save_run(place / 'picture', crate, {'kind': 'images', 'classes': list('abcd')}, dataset='quads', seed=1)
    torch.save(crate.to_official(), place / 'crate.pth')
    shutil.copytree(place / 'text', place / 'run')
    row = {'step': 0, 'split': 'val', 'loss': 2.0, 'lr': 0.1, 'seen': 0, 'seconds': 0.0}
    (place / 'run' / 'log.jsonl').write_text(json.dumps(row) + '\n')
    (place / 'file').write_text('a text\n' * 50)
    (place / 'folder').mkdir()
    (place / 'folder' / 'a.jpg').write_bytes(JPEGS['train'][0][2])
    (place / 'broken.py').write_text('n_layer = = 2')
    (place / 'binary.py').write_bytes(bytes(range(256)))
    shutil.copytree(bytes_data / 'tiny', place / 'data' / 'tiny')
    return place


def programs(data):
    """{program: (main, words that work, its options)}."""
    def named(*configs):
        return [f.name for c in configs for f in fields(c)]
    data = f'--data_dir={data}'
    small = ['--n_layer=1', '--n_head=2', '--n_embd=8', '--block_size=8', '--batch_size=2', '--max_iters=1',
             '--eval_iters=1', '--warmup_iters=1']
    picture = [data, '--ckpt=picture']
    found = {
        'train': (train.main, ['--data_dir=data', '--dataset=tiny', *small, '--out_dir=new'],
                  named(train.TrainConfig, AugmentConfig, AoTConfig)),
        'train pictures': (train.main, [data, '--dataset=quads', '--model=crate', '--patch_size=4', *small,
                                          '--out_dir=new'], named(train.TrainConfig, AugmentConfig, CRATEConfig)),
        'sample': (sample.main, ['--ckpt=text', '--max_new_tokens=2'], named(sample.SampleConfig)),
        'sample pictures': (sample.main, ['--ckpt=picture', '--image=folder'], named(sample.SampleConfig)),
        'eval': (eval.main, ['--data_dir=data', '--ckpt=text/best.safetensors'], named(eval.EvalConfig)),
        'eval pictures': (eval.main, [*picture, '--workers=0'], named(eval.EvalConfig)),
        'analyze layers': (analyze.main, ['layers', *picture, '--num_samples=2'], named(analyze.AnalyzeConfig)),
        'analyze attention': (analyze.main, ['attention', *picture, '--num_samples=1'], named(analyze.AnalyzeConfig)),
        'bench': (bench.main, ['step', '--rows=aot-stdlib-plain', '--n_layer=1', '--n_embd=16', '--batch_size=2',
                              '--rounds=1', '--seconds=0.01'],
                  [name for name in named(bench.BenchConfig) if name not in ('seconds', 'rounds')]),
        'analyze curves': (analyze.main, ['curves', 'run'], named(CurvesConfig))}
    given = {'text': ['file'], 'imagefolder': ['folder'], 'arrays': ['--images', 'file', '--labels', 'file'],
             'official_weights': ['crate.pth', '--model', 'crate', '--n_head', '2', '--patch_size', '4'],
             'shapes': ['--train', '3', '--val', '3', '--test', '3'],
             'shapes_many': ['--train', '3', '--val', '3', '--test', '3']}
    for path in sorted((ROOT / 'prepare').glob('[a-z]*.py')):
        script = runpy.run_path(str(path))['main']
        shown = io.StringIO()
        with contextlib.redirect_stdout(shown), contextlib.suppress(SystemExit):
            script(['--help'])
        options = sorted({*re.findall(r'--([a-z][\w-]+)', shown.getvalue().rpartition('options:')[2])} - {'help'})
        found[f'prepare/{path.stem}'] = script, [*given.get(path.stem, ['--from', 'file']), '--out', 'new'], options
    return found


def tree(folder):
    """{path: bytes} of all files in a folder but locks."""
    files = (p for p in folder.rglob('*') if p.is_file() and p.suffix != '.lock')
    return {str(p.relative_to(folder)): p.read_bytes() for p in files}


def outcome(main, words):
    """What happens: 'works', 'refused', or what went wrong."""
    def late(*_):
        raise TimeoutError(f'still at work after {HANG} s')
    out, err, code = io.StringIO(), io.StringIO(), 0
    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(HANG)
    try:
        from engine.settings import one_line_errors
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), one_line_errors():
            main(words)
    except SystemExit as e:
        code = e.code or 0
    except BaseException as e:
        return f'{type(e).__name__}: {str(e)[:300]}'
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    said = err.getvalue()
    if code == 0:
        return 'works'
    one = said.startswith('error: ') and said.count('\n') == 1 and len(said) < 1200 and '\x1b' not in said
    return 'refused' if code == 2 and one else f'exit code {code}, {said[:400]!r}'


def cases(data, seed=0):
    """CASES command lines (program, main, words) drawn at random."""
    rng, found = random.Random(seed), programs(data)
    for _ in range(CASES):
        name = rng.choice(list(found))
        main, words, options = found[name]
        words = list(words)
        kind = rng.random()
        if kind < 0.75:
            option, value = rng.choice(options), rng.choice(VALUES)
            apart = name.startswith('prepare') or rng.random() < 0.2
            words += [f'--{option}', value] if apart else [f'--{option}={value}']
        elif kind < 0.85:
            words.insert(rng.randrange(len(words) + 1), rng.choice(WORDS))
        elif kind < 0.95 and words:
            words[rng.randrange(len(words))] = rng.choice(WORDS + VALUES)
        else:
            rng.shuffle(words)
        yield name, main, words


def test_wrong_command_lines(place, pictures_data, monkeypatch, tmp_path):
    def no_network(url, *more):
        raise settings.Mistake(f'{url}: no network')
    monkeypatch.setattr(download, 'fetch', no_network)
    monkeypatch.setattr(sys, 'stdin', io.StringIO())
    wrong, count = [], {}
    for i, (name, main, words) in enumerate(cases(pictures_data)):
        here = tmp_path / str(i)
        shutil.copytree(place, here)
        monkeypatch.chdir(here)
        before = tree(here)
        found = outcome(main, list(words))
        left = {k for k, v in tree(here).items() if before.get(k, '') != v} | before.keys() - tree(here).keys()
        if found == 'refused' and left:
            found = f'refused, and left {sorted(left)[:5]}'
        kind = found if found in ('works', 'refused') else 'wrong'
        count[kind] = count.get(kind, 0) + 1
        if found not in ('works', 'refused'):
            wrong.append((name, [w[:80] for w in words], found))
        monkeypatch.chdir(tmp_path)
        shutil.rmtree(here)
    print(f'{CASES} command lines: {count}')
    assert not wrong, '\n'.join(map(str, wrong))


@pytest.mark.slow
@pytest.mark.parametrize('words', [['train.py', '--out_dir=' + 'x' * 300], ['train.py', '--optimizer=sgd'],
                                   ['train.py', '--n_head=7'], ['train.py', '--out_dir=run'],
                                   ['train.py', '--model=crate', '--dataset=shapes', '--patch_size=5'],
                                   ['analyze.py', 'curves', 'run', '--top=nan'],
                                   ['sample.py', '--ckpt=a\x1b[2Jb'], ['prepare/shapes.py', '--train', '1' + '0' * 12]],
                         ids=lambda words: f'{words[0]} {words[-1][:30]}'.encode('unicode_escape').decode())
def test_wrong_command_lines_leave_a_fresh_clone_as_it_was(words, place):
    before = tree(place)
    done = run(*words, cwd=place)
    assert done.returncode == 2 and done.stdout == '', done
    assert done.stderr.startswith('error: ') and done.stderr.count('\n') == 1 and tree(place) == before
