"""Every command of the README runs, at toy size; every line that it points at holds what it says."""
import os
import re
import shlex
import subprocess
import sys
import time

import numpy as np
import pytest
from conftest import ROOT

import data
from tokenizer import Tokenizer

README = (ROOT / 'README.md').read_text(encoding='utf-8')
COMMANDS = [line.split('  #')[0].strip() for block in re.findall(r'```sh\n(.*?)```', README, re.S)
            for line in re.sub(r'\\\n\s*', ' ', block).splitlines()]
TOY = ['--n_layer=2', '--n_head=2', '--n_embd=16', '--block_size=16', '--batch_size=2', '--gradient_accumulation_steps=2',
       '--eval_interval=4', '--eval_iters=2', '--warmup_iters=1']


@pytest.fixture(scope='module')
def place(tmp_path_factory):
    """A folder with the data that README commands expect to find prepared."""
    place = tmp_path_factory.mktemp('readme')
    ids = np.random.default_rng(0).integers(0, 50257, 2000)
    gpt2 = type('GPT2', (), {'vocab_size': 50257, 'spec': {'name': 'gpt2'}})  # the real one needs a network
    data.save_text(place / 'data' / 'openwebtext', gpt2, {'train': ids, 'val': ids}, {'train': 8000, 'val': 8000})
    text = (ROOT / 'README.md').read_text(encoding='utf-8').encode('ascii', 'ignore').decode()
    tokenizer = Tokenizer('chars', ''.join(sorted(set(text))))
    data.save_text(place / 'data' / 'shakespeare_char', tokenizer, *data.split_text(text, tokenizer))
    (place / 'README.md').write_text(README, encoding='utf-8')
    return place


def toy(part):
    """A README command as this test can run it: our Python, our files, a tiny model, a few steps."""
    words = shlex.split(part)
    if words[0] == 'torchrun':
        words = ['-m', 'torch.distributed.run', *[w.replace('=8', '=2') for w in words[1:]], '--overwrite=true']  # "or", not "then"
    else:
        assert words[0] in ('python', 'python3'), part
        words = words[1:]
    tool = next(w for w in words if w.endswith('.py') and not w.startswith('config'))
    words = [str(ROOT / w) if re.match(r'(train|sample|bench|prepare/\w+)\.py$|config/', w) else w for w in words]
    if tool == 'train.py' and '--help' not in words and not any('init_from' in w for w in words):
        words += TOY
    if tool in ('train.py', 'bench.py') and '--help' not in words:
        steps = 8 if any('resume' in w for w in words) else 4
        words = [w for w in words if not w.startswith('--max_iters')] + [f'--max_iters={steps}', '--eval_iters=2']
    if tool == 'bench.py':
        words = [w for w in words if not w.startswith('--rounds')] + [*TOY, '--rounds=1']
    if tool == 'sample.py':
        words = [w for w in words if not w.startswith('--max_new')] + ['--max_new_tokens=4']
    return [sys.executable, *words]


def test_readme_commands_run(place):
    ran = []
    for line in COMMANDS:
        for part in line.split(' && '):
            if part.startswith(('python3 -m venv', '. .venv', 'pip install', 'python -m pytest')):
                continue  # what .ci/run does
            command = toy(part)
            if 'shakespeare' in part and 'prepare/' in part:
                continue  # downloads; its data stands ready
            start = time.time()
            done = subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=120, env=os.environ | {'COLUMNS': '80'})
            assert done.returncode == 0, f'{part}\n{done.stderr}'
            ran.append(part)
            print(f'{time.time() - start:5.1f} s  {part}')
    assert sum('train.py' in part for part in ran) >= 5 and any('torchrun' in part for part in ran)


def test_readme_points_at_the_right_lines():
    rows = re.findall(r'^\| [^|]* \| (\(\d+\)) \| `(\w+\.py):(\d+)` \|$', README, re.M)
    assert len(rows) >= 5
    for equation, file, line in rows:
        text = (ROOT / file).read_text().splitlines()[int(line) - 1]
        assert equation in text, f'{file}:{line} is not {equation}: {text}'


def test_every_file_is_in_the_map():
    for path in ROOT.glob('*.py'):
        assert f'`{path.name}`' in README
