"""What people do to the code, with docs/extend.md: networks, losses, numbers and tasks of their own, for which no other
file changes. They meet their own mistakes alone. (The changes that the page shows are in test_forks.py.)"""
import csv
import math
import re

import pytest
from helpers import ROOT, column, config_of, fails, go, losses, weights

import analyze
import eval as scores
import sample
import tasks
import train
from engine import networks
from engine.settings import Mistake, one_line_errors

PAGE = (ROOT / 'docs' / 'extend.md').read_text(encoding='utf-8')
WORDS = ['--n_embd=16', '--block_size=16', '--max_iters=4', '--eval_interval=2', '--eval_iters=2', '--batch_size=4',
         '--log_interval=1', '--optimizer=adamw', '--dtype=float32', '--device=cpu']


# the first block of Python under the heading that names model_tiny.py
SHOWN = re.search(r'^#+ [^\n]*model_tiny\.py.*?^```python\n(.*?)^```', PAGE, re.M | re.S)[1]


@pytest.fixture
def fork(tmp_path, monkeypatch, bytes_data, quick):
    """fork(name, {old: new}) writes model_NAME.py, the network of docs/extend.md with changes, in a folder of its own,
    as if it lay beside the others; returns the words that train it on text."""
    monkeypatch.setattr(networks, 'HERE', tmp_path)
    monkeypatch.setattr('engine.settings.HERE', tmp_path)
    monkeypatch.syspath_prepend(tmp_path)

    def fork(name, changes, text=SHOWN):
        for old, new in changes.items():
            assert text.count(old) == 1
            text = text.replace(old, new)
        (tmp_path / f'model_{name}.py').write_text(text)
        return [f'--model={name}', f'--data_dir={bytes_data}', '--dataset=tiny', *WORDS, f'--out_dir={tmp_path}/out']
    return fork


CALL = 'z = self.layers(self.embed(x))'
BUILT = 'self.head = nn.Linear(d, config.vocab_size if self.text else config.num_classes)\n'
ANSWER = 'return out, None if y is None else F.cross_entropy(out.flatten(0, -2), y.flatten())'


def with_more(more):
    return {ANSWER: ANSWER.replace('return out, None', 'loss = None') + f'\n        return out, loss, {more}'}


# ---- networks

@pytest.mark.parametrize('dataset', ['tiny', 'quads'])
def test_with_the_file_alone_every_command_works(dataset, fork, tmp_path, bytes_data, pictures_data, capsys):
    """Or says in a line what the network lacks."""
    text, out = dataset == 'tiny', tmp_path / 'out'
    words = fork(f'tiny_{dataset}', {})
    data = f'--data_dir={bytes_data if text else pictures_data}'
    own = [w for w in words if text or 'block_size' not in w] + [data, f'--dataset={dataset}']
    go(*own)
    go('--init_from=resume', f'--out_dir={out}', '--max_iters=40', '--learning_rate=1e-2')
    assert column(out, 'val')[-1] < column(out, 'val')[0] - 0.1
    sizes = {'vocab_size': 256} if text else {'image_size': [8, 8], 'num_classes': 4, 'channels': 3}
    assert sizes.items() <= config_of(out).items()
    capsys.readouterr()
    look = ['--start=the', '--max_new_tokens=9'] if text else [f'--image={pictures_data}/quads']
    sample.main([f'--ckpt={out}', *look])
    scores.main([f'--ckpt={out}', data, '--split=val'])
    said = capsys.readouterr().out
    assert ('bits per byte' in said) == text and ('top-1' in said) != text
    analyze.main(['layers', f'--ckpt={out}', data, f'--out={tmp_path}/x.png'])
    rows = list(csv.DictReader((tmp_path / 'x.csv').read_text().splitlines()))
    assert (tmp_path / 'x.png').stat().st_size > 5000 and len({row['layer'] for row in rows}) == 2
    if not text:
        fails(capsys, scores.main, f'--ckpt={out}', data, '--probe=true')
        assert 'read.head' in fails(capsys, train.main, f'--init_from={out}', data, '--new_head=true', '--out_dir=none')
    assert words[0][2:] in fails(capsys, analyze.main, 'page', f'--ckpt={out}', data, f'--out={tmp_path}/page.html')
    assert words[0][2:] in fails(capsys, train.main, words[0], '--dataset=linear', '--out_dir=none')


def test_a_patch_size_may_be_an_int(fork, tmp_path, pictures_data, capsys):
    words = fork('patched', {'    channels: int = 3 ': '    patch_size: int = 4\n    channels: int = 3 '})
    words = [word for word in words if not word.startswith(('--block_size', '--data_dir', '--dataset'))]
    go(*words, f'--data_dir={pictures_data}', '--dataset=quads')
    assert 'patches of 4 x 4' in capsys.readouterr().out


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
TEXT = LEAST.format(fields='vocab_size: int = 9; block_size: int = 4', task='text',
                    net='nn.Sequential(nn.Embedding(256, 8), nn.Linear(8, 256))')


NETWORKS = {  # name: (changes, the text)
    'least_image': ({}, IMAGE), 'least_text': ({}, TEXT),
    'infinite': ({BUILT: BUILT + "        self.register_buffer('mine', -self.head.weight.detach() / 0)\n"}, SHOWN),
    'looking': ({BUILT: BUILT + '        self.scale = self.head.weight.std().item()\n'}, SHOWN),
    'looped': ({'*(Layer(config) for _ in range(config.n_layer))': 'Layer(config)', CALL:  # more layers than tensors
                'z = self.embed(x)\n        for _ in range(40):\n            z = self.layers(z)'}, SHOWN)}


@pytest.mark.parametrize('name', NETWORKS)
def test_a_network_of_any_form_trains_goes_on_and_is_fine_tuned(name, fork, tmp_path, pictures_data):
    words = [w for w in fork(name, *NETWORKS[name]) if 'least' not in name or not w.startswith(('--n_embd', '--block'))]
    go(*words, *[f'--data_dir={pictures_data}', '--dataset=quads'] * (name == 'least_image'), '--learning_rate=1e-2')
    go('--init_from=resume', f'--out_dir={tmp_path}/out', '--max_iters=16')
    go(f'--init_from={tmp_path}/out', f'--out_dir={tmp_path}/tuned', '--max_iters=2')
    val = column(tmp_path / 'out', 'val')
    assert val[-1] < val[0] and column(tmp_path / 'tuned', 'val')[0] in val


@pytest.mark.parametrize('name', ['momentum', 'seed', 'randaugment_n'])
def test_a_setting_with_the_name_of_one_of_training_is_refused_at_the_start(name, fork, tmp_path, capsys):
    words = fork(f'with_{name}', {'n_layer: int = 2 ': f'{name}: int = 3\n    n_layer: int = 2 '})
    assert f'model_with_{name}.py has a setting {name}' in fails(capsys, train.main, *words)
    assert not (tmp_path / 'out').exists()


# ---- losses and numbers

def test_a_penalty_counts_in_training_alone(fork, tmp_path):
    """It is the loss of a network of the same weights without it that is logged, and it does change training."""
    out, plain = tmp_path / 'out', tmp_path / 'plain'
    go(*fork('fined', with_more("{'penalty': self.head.weight.square().sum(), 'size': z.norm(), 'tokens': z}")))
    go(*fork('free', {}), f'--out_dir={plain}')
    assert column(out, 'val')[0] == column(plain, 'val')[0] and column(out, 'train')[0] == column(plain, 'train')[0]
    assert column(out, 'val')[-1] != column(plain, 'val')[-1]
    assert weights(out)['head.weight'].norm() < weights(plain)['head.weight'].norm()
    assert all(n > 0 for split in ('train', 'val') for name in ('penalty', 'size') for n in column(out, split, name))
    assert 'tokens' not in losses(out)[0] and all(n > 0 for n in column(out, 'train', 'grad_norm'))


def test_a_number_is_a_mean_over_passes_and_names_of_the_task_stay(fork, tmp_path):
    go(*fork('named', with_more("{'loss': 7.0, 'ones': 1.0}")), '--gradient_accumulation_steps=3')
    assert column(tmp_path / 'out', 'train', 'ones') == pytest.approx([1.0] * 4)
    assert 7.0 not in column(tmp_path / 'out', 'train') + column(tmp_path / 'out', 'val')


@pytest.mark.parametrize('target, validations', [('0', 3), ('-1000', 3), ('-2', 1)])
def test_a_loss_below_zero_ends_a_run_only_at_a_target_that_it_reaches(target, validations, fork, tmp_path):
    go(*fork(f'low{target.strip("-")}', {ANSWER: ANSWER + ' - 8.0'}), f'--target_loss={target}')
    rows = column(tmp_path / 'out', 'val')
    assert max(rows) < 0 and len(rows) == validations and (tmp_path / 'out' / 'best.safetensors').exists()


# ---- tasks

TASK = re.search(r'^```python\n(import torch\n\nfrom tasks.*?^Task = \w+\n)```', PAGE, re.M | re.S)[1]
TURN = {"return 'image' if self.image_size else 'text'": "return 'rotations'", "self.text = config.task == 'text'": 'self.text = False',
        "self.causal = c.task == 'text'": 'self.causal = False',
        'config.vocab_size if self.text else config.num_classes': '4'}


def test_the_task_of_the_page_needs_two_new_files(fork, tmp_path, pictures_data, monkeypatch, capsys):
    (tmp_path / 'task_rotations.py').write_text(TASK)
    monkeypatch.setattr('tasks.__path__', [*tasks.__path__, str(tmp_path)])
    words = [word for word in fork('turn', TURN) if not word.startswith(('--block_size', '--data_dir', '--dataset'))]
    data, out = f'--data_dir={pictures_data}', tmp_path / 'out'
    go(*words, data, '--dataset=quads', '--learning_rate=1e-2')
    go('--init_from=resume', f'--out_dir={out}', '--max_iters=30')
    val, top1 = column(out, 'val'), column(out, 'val', 'top1')
    assert val[0] == pytest.approx(math.log(4), abs=0.5) and val[-1] < val[0]
    capsys.readouterr()
    scores.main([f'--ckpt={out}', data, '--split=val', '--batch_size=4'])
    assert re.search(r'quads val: 20 targets, loss \d\.\d{4}, top1 \d', capsys.readouterr().out) and top1
    assert 'eval.py' in fails(capsys, sample.main, f'--ckpt={out}', f'--image={pictures_data}/quads')


def test_an_unknown_task_is_one_line_with_those_there_are(fork, capsys):
    said = fails(capsys, train.main, *fork('txt', {"if self.image_size else 'text'": "if self.image_size else 'txt'"}))
    assert "task='txt'" in said and 'masked_text' in said and 'tasks/task_txt.py' in said


# ---- bugs keep their traceback

BUGS = {'in_init': {'d = config.n_embd\n': 'd, e = 1, 2, 3\n'},
        'in_config': {'    @property\n': '    def __post_init__(self):\n        a, b = 1, 2, 3\n\n    @property\n'},
        'in_a_file': {CALL: "z = open('nowhere')"}}


@pytest.mark.parametrize('name', BUGS)
def test_a_bug_in_a_network_keeps_its_traceback(name, fork):
    words = fork(name, BUGS[name])
    with pytest.raises((ValueError, OSError)) as e, one_line_errors():
        train.main(words)
    assert not isinstance(e.value, Mistake) and f'model_{name}.py' in str(e.traceback[-1].path)
