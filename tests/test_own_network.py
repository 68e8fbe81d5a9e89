"""The contract of docs/extend.md: with the file model_tiny.py that the page shows, and no other change, every command
works: training on text and on pictures, sampling, scoring, analyzing."""
import csv
import re
import shutil
import subprocess
import sys

import pytest
from helpers import ROOT, TEXT, column, config_of, train_fast

from engine import networks

FOLDERS = 'analysis', 'config', 'engine', 'prepare', 'scoring', 'tasks'
SHORT = ['--max_iters=4', '--eval_interval=2', '--eval_iters=2', '--log_interval=1', '--batch_size=4', '--n_layer=2',
         '--n_embd=16', '--device=cpu']


def shown():
    """The first block of Python under the heading that names model_tiny.py."""
    page = (ROOT / 'docs' / 'extend.md').read_text()
    return re.search(r'^#+ .*model_tiny\.py.*?^```python\n(.*?)^```', page, re.M | re.S)[1]


@pytest.fixture(scope='module')
def house(tmp_path_factory):
    """A copy of the project with that file, a small text and few pictures."""
    here = tmp_path_factory.mktemp('house')
    for file in ROOT.glob('*.py'):
        shutil.copy(file, here)
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, here / folder, ignore=shutil.ignore_patterns('__pycache__'))
    (here / 'model_tiny.py').write_text(shown())
    shutil.copytree(here, here.with_name('before'))
    (here / 'text.txt').write_text(TEXT[:20_000])
    python(here, 'prepare/text.py', 'text.txt', '--out', 'data/words')
    python(here, 'prepare/shapes.py', '--size=16', '--train=40', '--val=20', '--test=20', '--out=data/few')
    return here


def python(house, *words, fails=False):
    """What a command prints; it must end well, or with one line and exit code 2."""
    done = subprocess.run([sys.executable, *words], cwd=house, capture_output=True, text=True, timeout=300)
    assert done.returncode == (2 if fails else 0), done.stderr
    assert not fails or len(done.stderr.splitlines()) == 1
    return done.stderr if fails else done.stdout


def sources(folder):
    files = [*folder.glob('*.py'), *(file for name in FOLDERS for file in (folder / name).rglob('*.py'))]
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}


def test_the_file_is_short_and_imports_nothing_of_the_house():
    text = shown()
    assert len(text.splitlines()) <= 60
    assert {line.split()[1].split('.')[0] for line in re.findall(r'^(?:from|import) .*', text, re.M)} <= {
        'dataclasses', 'math', 'torch'}


@pytest.mark.slow
def test_it_reads_text(house):
    words = '--model=tiny', '--dataset=words', '--block_size=32', '--out_dir=out/words'
    said = python(house, 'train.py', *words, *SHORT)
    assert 'tiny: 0.0' in said and 'step      4 of 4  validation  loss' in said
    run = house / 'out' / 'words'
    assert config_of(run)['vocab_size'] == 256 and 5 < column(run, 'val')[0] < 6.5  # log 256 = 5.55
    python(house, 'train.py', '--init_from=resume', '--out_dir=out/words', '--max_iters=40', '--learning_rate=1e-2')
    assert column(run, 'val')[-1] < column(run, 'val')[0] - 0.5
    text = python(house, 'sample.py', '--ckpt=out/words', '--start=the', '--max_new_tokens=40', '--device=cpu')
    assert text.startswith('the') and len(text) > 20
    said = python(house, 'eval.py', '--ckpt=out/words', '--split=val', '--device=cpu')
    assert 'bits per byte' in said
    layers_of(house, 'out/words')


@pytest.mark.slow
def test_it_reads_pictures(house):
    said = python(house, 'train.py', '--model=tiny', '--dataset=few', *SHORT, '--out_dir=out/few')
    assert 'tiny: 0.0' in said and 'top1' in said
    config = config_of(house / 'out' / 'few')
    assert (config['image_size'], config['num_classes'], config['channels']) == ([16, 16], 10, 3)
    said = python(house, 'eval.py', '--ckpt=out/few', '--device=cpu')
    assert 'top-1' in said and '20 pictures' in said
    layers_of(house, 'out/few')
    python(house, 'train.py', '--model=tiny', '--dataset=few', *SHORT, '--image_size=16', '--out_dir=out/typed')


def layers_of(house, run):
    out = f'{run.replace("/", "_")}.png'
    python(house, 'analyze.py', 'layers', f'--ckpt={run}', f'--out={out}', '--device=cpu')
    rows = list(csv.DictReader((house / out).with_suffix('.csv').read_text().splitlines()))
    assert (house / out).stat().st_size > 5000 and len({row['layer'] for row in rows}) == 2


@pytest.mark.slow
def test_what_it_lacks_is_refused_in_one_line(house):
    if not (house / 'out' / 'few').exists():
        test_it_reads_pictures(house)
    python(house, 'eval.py', '--ckpt=out/few', '--probe=true', '--device=cpu', fails=True)
    said = python(house, 'train.py', '--init_from=out/few', '--new_head=true', '--out_dir=out/none', fails=True)
    assert 'Tiny has no read.head to replace' in said and 'docs/extend.md' in said
    said = python(house, 'train.py', '--model=tiny', '--dataset=linear', '--out_dir=out/none', fails=True)
    assert 'model=tiny does not read that' in said


def test_no_file_changed_meanwhile(house):
    before = sources(house.with_name('before'))
    assert sources(house) == before and 'model_tiny.py' in before and len(before) > 60


# ---- the least that trains

LEAST = """
from dataclasses import dataclass
import torch
from torch import nn

@dataclass
class Config:
    {fields}
    task = '{task}'

class Network(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config, self.net, self.embed = config, {net}, nn.Module()
        self.embed.pos = nn.Parameter(torch.zeros(1))

    def forward(self, x, y=None):
        out = self.net(x) + self.embed.pos
        return out, None if y is None else nn.functional.cross_entropy(out.flatten(0, -2), y.flatten())
"""
IMAGE = LEAST.format(fields='image_size: int = 8', task='image', net='nn.Sequential(nn.Flatten(), nn.Linear(192, 4))')
WORDS = LEAST.format(fields='vocab_size: int = 9; block_size: int = 4', task='text',
                     net='nn.Sequential(nn.Embedding(256, 8), nn.Linear(8, 256))')


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Another folder in which model files are looked for."""
    monkeypatch.setattr(networks, 'HERE', tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


@pytest.mark.parametrize('name, text, data', [('least_image', IMAGE, 'quads'), ('least_text', WORDS, 'text')])
def test_a_network_of_the_fewest_members_trains_goes_on_and_is_fine_tuned(name, text, data, folder, pictures_data):
    (folder / f'model_{name}.py').write_text(text)
    small = [*SHORT[:5], '--device=cpu', '--optimizer=adamw', '--block_size=8' if data == 'text' else '--flip=false']
    words = [f'--model={name}', f'--data_dir={pictures_data}', f'--dataset={data}', '--learning_rate=0.1', '--min_lr=0']
    train_fast(*words, *small, f'--out_dir={folder}/a')
    train_fast('--init_from=resume', f'--out_dir={folder}/a', '--max_iters=30')
    train_fast(f'--init_from={folder}/a', f'--out_dir={folder}/b', '--max_iters=2')
    assert column(folder / 'a', 'val')[-1] < column(folder / 'a', 'val')[0]
    assert column(folder / 'b', 'val')[0] in column(folder / 'a', 'val')[1:]
