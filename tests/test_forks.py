"""What people do to the code: networks, losses and numbers of their own, and the five changes of docs/extend.md. They
meet their own mistakes alone."""
import re
import shutil
import subprocess
import sys

import pytest
import torch
from helpers import ROOT, column, config_of, fails, go, losses, torchrun, weights
from test_own_network import FOLDERS, SHORT, shown

import analyze
import train
from engine import networks
from engine.settings import Mistake, one_line_errors

WORDS = ['--dataset=tiny', '--n_embd=16', '--block_size=16', '--max_iters=4', '--eval_interval=2', '--eval_iters=2',
         '--batch_size=4', '--log_interval=1', '--optimizer=adamw', '--dtype=float32', '--device=cpu']


@pytest.fixture
def fork(tmp_path, monkeypatch, bytes_data):
    """fork(name, {old: new}) writes model_NAME.py, the network of docs/extend.md with changes; returns the words that
    train it on text."""
    monkeypatch.setattr(networks, 'HERE', tmp_path)  # as if it lay beside the others
    monkeypatch.setattr('engine.settings.HERE', tmp_path)
    monkeypatch.syspath_prepend(tmp_path)

    def fork(name, changes):
        text = shown()
        for old, new in changes.items():
            assert text.count(old) == 1
            text = text.replace(old, new)
        (tmp_path / f'model_{name}.py').write_text(text)
        return [f'--model={name}', f'--data_dir={bytes_data}', *WORDS, f'--out_dir={tmp_path}/out']
    return fork


CALL = 'z = self.layers(self.embed(x))'
BUILT = 'self.head = nn.Linear(d, config.vocab_size if self.text else config.num_classes)\n'
ANSWER = 'return out, None if y is None else nn.functional.cross_entropy(out.flatten(0, -2), y.flatten())'


def with_more(more):
    return {ANSWER: ANSWER.replace('return out, None', 'loss = None') + f'\n        return out, loss, {more}'}


# ---- networks

@pytest.mark.parametrize('name, buffer', [('infinite', "__import__('torch').full((4,), -float('inf'))"),
                                          ('hollow', "__import__('torch').zeros(0, 3)")])
def test_buffers_of_any_kind_are_saved_and_resumed(name, buffer, fork, tmp_path):
    words = fork(name, {BUILT: BUILT + f"        self.register_buffer('mine', {buffer})\n"})
    go(*words)
    go('--init_from=resume', f'--out_dir={tmp_path}/out', '--max_iters=6')
    assert column(tmp_path / 'out', 'val')[-1] < 5.7 and weights(tmp_path / 'out')['mine'].numel() in (0, 4)


def test_a_looped_network_trains_goes_on_and_is_fine_tuned(fork, tmp_path):
    """40 times the same layer: more layers than tensors."""
    words = fork('looped', {'*(Layer(config) for _ in range(config.n_layer))': 'Layer(config)',
                            CALL: 'z = self.embed(x)\n        for _ in range(self.config.n_layer):\n'
                                  '            z = self.layers(z)'})
    go(*words, '--n_layer=40')
    go('--init_from=resume', f'--out_dir={tmp_path}/out', '--max_iters=6')
    go(f'--init_from={tmp_path}/out', f'--out_dir={tmp_path}/tuned', '--max_iters=2')
    assert config_of(tmp_path / 'tuned')['n_layer'] == 40
    assert column(tmp_path / 'tuned', 'val')[0] == min(column(tmp_path / 'out', 'val'))


def test_a_network_that_looks_at_its_values_is_resumed(fork, tmp_path):
    words = fork('looking', {BUILT: BUILT + '        self.scale = self.head.weight.std().item()\n'})
    go(*words)
    go('--init_from=resume', f'--out_dir={tmp_path}/out', '--max_iters=6')


@pytest.mark.parametrize('name', ['momentum', 'seed', 'randaugment_n'])
def test_a_setting_with_the_name_of_one_of_training_is_refused_at_the_start(name, fork, tmp_path, capsys):
    words = fork(f'with_{name}', {'n_layer: int = 2 ': f'{name}: int = 3\n    n_layer: int = 2 '})
    assert f'model_with_{name}.py has a setting {name}' in fails(capsys, train.main, *words)
    assert not (tmp_path / 'out').exists()


@pytest.mark.parametrize('dataset', ['text', 'quads'])
def test_a_network_keeps_its_own_sizes(dataset, fork, tmp_path, capsys, pictures_data, monkeypatch):
    """Without a recipe of its own it takes settings of training from another one, and says from which."""
    (tmp_path / 'config').symlink_to(ROOT / 'config')
    monkeypatch.setattr('engine.start.HERE', ROOT)
    words = fork(f'mine_{dataset}', {'n_layer: int = 2 ': 'n_layer: int = 3 ', 'n_embd: int = 64': 'n_embd: int = 32'})
    own = [w for w in words if not w.startswith('--n_embd')]
    go(*own, f'--dataset={dataset}', f'--data_dir={pictures_data}')
    recipe = {'text': 'train_aot_stdlib', 'quads': 'train_vit_shapes'}[dataset]
    assert f'settings of config/{recipe}.py' in capsys.readouterr().out
    c = config_of(tmp_path / 'out')
    assert (c['n_layer'], c['n_embd'], c['n_head']) == (3, 32, 2)


def test_a_page_refuses_a_network_of_ones_own_in_a_line(fork, tmp_path, bytes_data, capsys):
    go(*fork('paged', {}))
    said = fails(capsys, analyze.main, 'page', f'--ckpt={tmp_path}/out', f'--data_dir={bytes_data}',
                 f'--out={tmp_path}/page.html')
    assert 'cannot compute model=paged' in said


# ---- losses and numbers

def test_a_penalty_counts_in_training_alone(fork, tmp_path, capsys):
    """It is the loss of a network of the same weights without it that is printed, and it does change training."""
    more = "{'penalty': self.head.weight.square().sum(), 'size': z.norm(), 'tokens': z}"
    go(*fork('fined', with_more(more)))
    out, plain = tmp_path / 'out', tmp_path / 'plain'
    go(*fork('free', {}), f'--out_dir={plain}')
    assert column(out, 'val')[0] == column(plain, 'val')[0] and column(out, 'train')[0] == column(plain, 'train')[0]
    assert column(out, 'val')[-1] != column(plain, 'val')[-1]
    assert weights(out)['head.weight'].norm() < weights(plain)['head.weight'].norm()
    for split in ('train', 'val'):
        assert all(n > 0 for name in ('penalty', 'size') for n in column(out, split, name))
    assert 'tokens' not in losses(out)[0] and all(n > 0 for n in column(out, 'train', 'grad_norm'))
    assert 'size' in capsys.readouterr().out


def test_a_number_is_a_mean_over_passes_and_names_of_the_task_stay(fork, tmp_path):
    go(*fork('named', with_more("{'loss': 7.0, 'ones': 1.0}")), '--gradient_accumulation_steps=3')
    assert column(tmp_path / 'out', 'train', 'ones') == pytest.approx([1.0] * 4)
    assert 7.0 not in column(tmp_path / 'out', 'train') + column(tmp_path / 'out', 'val')


@pytest.mark.parametrize('target, steps', [('0', 4), ('-1000', 4), ('-2', 2)])
def test_a_loss_below_zero_is_no_end_of_a_run(target, steps, fork, tmp_path):
    """Only a target that it reaches is."""
    words = fork(f'low{target.strip("-")}', {ANSWER: ANSWER + ' - 8.0'})
    go(*[w for w in words if 'eval_interval' not in w], '--eval_interval=2', f'--target_loss={target}')
    rows = column(tmp_path / 'out', 'val')
    assert max(rows) < 0 and {'curve.png', 'best.safetensors'} <= {p.name for p in (tmp_path / 'out').iterdir()}
    assert len(rows) == {4: 3, 2: 1}[steps]


# ---- bugs keep their traceback

BUGS = {'in_forward': {CALL: f'a, b = x.shape + (1,)\n        {CALL}'},
        'in_init': {'self.text, d = config, config.task': 'self.text, d, e = config, config.task'},
        'in_config': {'    @property\n': '    def __post_init__(self):\n        a, b = 1, 2, 3\n\n    @property\n'},
        'in_a_file': {CALL: "z = open('nowhere')"}}


@pytest.mark.parametrize('name', BUGS)
def test_a_bug_in_a_network_keeps_its_traceback(name, fork):
    words = fork(name, BUGS[name])
    with pytest.raises((ValueError, OSError)) as e, one_line_errors():
        train.main(words)
    assert not isinstance(e.value, Mistake) and f'model_{name}.py' in str(e.traceback[-1].path)


def test_what_a_config_refuses_on_purpose_is_a_line(fork, capsys):
    check = ("    def __post_init__(self):\n        if self.n_head > 4:\n"
             "            raise ValueError(f'n_head={self.n_head} is too many; try 4')\n\n    @property\n")
    words = fork('refusing', {'    @property\n': check})
    assert 'n_head=5 is too many; try 4' in fails(capsys, train.main, *words, '--n_head=5')


class Broken(torch.utils.data.Dataset):
    def __init__(self, error):
        self.error = error

    def __len__(self):
        return 4

    def __getitem__(self, i):
        raise self.error('too many values')


def test_an_error_in_a_worker_process_is_what_it_was_there(capsys):
    def load(error):
        list(torch.utils.data.DataLoader(Broken(error), num_workers=1))
    assert fails(capsys, lambda words: load(Mistake)) == 'error: too many values'
    with pytest.raises(ValueError, match='__getitem__'), one_line_errors():
        load(ValueError)


@pytest.mark.slow
def test_a_bug_shows_file_and_line_on_any_rank(house):
    (house / 'model_bug.py').write_text(shown().replace(CALL, BUGS['in_forward'][CALL]))
    said = torchrun('--model=bug', *SHORT, f'--data_dir={house}/data', '--dataset=sums',
                    script=house / 'train.py', code=1, cwd=house)[1]
    assert said.count('model_bug.py", line 5') >= 2 and 'error: rank' not in said


# ---- the five changes of docs/extend.md

def changes():
    return re.findall(r'^```diff\n(.*?)^```', (ROOT / 'docs' / 'extend.md').read_text(), re.M | re.S)


@pytest.fixture(scope='module')
def house(tmp_path_factory, bytes_data):
    """A copy of the project with a small text."""
    here = tmp_path_factory.mktemp('house')
    for file in ROOT.glob('*.py'):
        shutil.copy(file, here)
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, here / folder, ignore=shutil.ignore_patterns('__pycache__'))
    shutil.copytree(bytes_data / 'tiny', here / 'data' / 'sums')
    return here


def test_there_are_five_of_at_most_15_lines_in_at_most_two_files():
    assert len(changes()) == 5
    for change in changes():
        lines = [line for line in change.splitlines() if line[:1] in '+-' and not line.startswith(('+++', '---'))]
        assert len(lines) <= 15 and change.count('\n+++ ') <= 2


@pytest.mark.slow
@pytest.mark.parametrize('number', range(5))
def test_a_change_works_and_what_it_prints_is_the_plain_loss(number, house, tmp_path):
    """The unchanged code measures the same loss of the same weights."""
    change, fork = changes()[number], shutil.copytree(house, tmp_path / 'fork')

    def python(place, *words):
        done = subprocess.run([sys.executable, *words], cwd=place, capture_output=True, text=True, timeout=300)
        assert not done.returncode, done.stderr
        return done.stdout
    subprocess.run(['git', 'apply', '-'], cwd=fork, input=change, text=True, check=True)
    if 'prepare/sums.py' in change:
        shutil.rmtree(fork / 'data' / 'sums')
        assert 'tokens of' in python(fork, 'prepare/sums.py')
    optimizer = 'nadam' if 'nadam' in change else 'adamw'
    words = ['--dataset=sums', f'--data_dir={fork}/data', *SHORT, '--n_head=2', '--dtype=float32',
             f'--optimizer={optimizer}', '--learning_rate=1e-2']
    said = python(fork, 'train.py', *words, '--keep_checkpoints=true', f'--out_dir={tmp_path}/out')
    python(fork, 'train.py', '--init_from=resume', f'--out_dir={tmp_path}/out', '--max_iters=6')
    for name in ('perplexity', 'penalty'):
        assert (name in said) == (f"'{name}'" in ''.join(re.findall(r'^\+.*', change, re.M)))
    last = column(tmp_path / 'out', 'val')[-1]
    assert last < column(tmp_path / 'out', 'val')[0]
    words = [*words, '--optimizer=adamw', '--eval_only=true']
    said = python(house, 'train.py', f'--init_from={tmp_path}/out/step_6.safetensors', *words)
    assert f'validation  loss {last:.4f}' in said
