"""train.py as a whole: what a run leaves, what validation and fine-tuning compute, and the steps
of the optimizer."""
import math
import signal
import subprocess
import sys
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
import torch
from helpers import (BYTES, CLASSES, HARD, KINDS, OF_AUTOENCODERS, before_step, column, config_of,
                     go, losses, run_anew)

from engine.checkpoint import read_log
from engine.mistakes import Mistake
from engine.settings import show
from tasks.task_text import NextToken
from tasks.text import TextSplit
from weights.runs import open_run, read_config, read_last, read_weights
from weights.surgery import load_model

WITHOUT_DINO = [kind for kind in KINDS if kind != 'dino']


@pytest.fixture(params=KINDS)
def any_run(request, whole):
    return whole(request.param)


# ---- what a run leaves

def test_each_step_and_each_validation_is_logged(any_run):
    assert column(any_run, 'train', 'step') == [0, 1, 2, 3, 4, 5]
    assert column(any_run, 'val', 'step') == [0, 3, 6]


@pytest.mark.parametrize('kind', ['text', 'tost', 'crate_lm', 'masked_text', 'pictures'])
def test_a_fresh_network_guesses(kind, whole):
    choices = 4 if kind == 'pictures' else 256
    first_loss = column(whole(kind), 'val')[0]

    assert first_loss == pytest.approx(math.log(choices), abs=0.4)


def test_bits_per_byte_are_the_loss_in_bits(text_run):
    bits = [loss / math.log(2) for loss in column(text_run, 'val')]

    assert column(text_run, 'val', 'bits_per_byte') == pytest.approx(bits)


@pytest.mark.parametrize('kind', WITHOUT_DINO)
def test_the_best_weights_have_the_least_error(kind, whole):
    errors = column(whole(kind), 'val')
    if kind == 'pictures':
        errors = [1 - top1 for top1 in column(whole(kind), 'val', 'top1')]
    least_error = min(errors)

    _, step = read_weights(whole(kind) / 'best.safetensors')
    assert step == 3 * errors.index(least_error)
    assert read_last(whole(kind))['best'] == least_error


@pytest.mark.parametrize('kind, data', [
    ('text', BYTES), ('functions', {'kind': 'functions'}), ('pictures', CLASSES)])
def test_config_json_says_what_the_data_are(kind, data, whole):
    of_run = read_config(whole(kind)).data

    checksum = of_run.pop('sha256', None)
    assert of_run == data
    assert (kind == 'functions') == (checksum is None)


# ---- the same run again

def validate(capsys, out, *words):
    """What --eval_only=true prints of a run. Fails if it changes the log."""
    before = losses(out)
    capsys.readouterr()  # what training has printed
    go(*words, f'--out_dir={out}', '--eval_only=true')
    assert losses(out) == before
    return capsys.readouterr().out


def test_a_run_that_goes_on_validates_its_last_weights(any_run, capsys):
    printed = validate(capsys, any_run, '--init_from=resume')

    last_loss = column(any_run, 'val')[-1]
    assert f'validation  loss {last_loss:.4f}' in printed
    assert 'learns' not in printed and 'steps' not in printed


# without DINO and SimDINO, whose teacher becomes a network of another kind
@pytest.mark.parametrize('kind', [kind for kind in WITHOUT_DINO if kind != 'simdino'])
def test_fine_tuning_validates_the_best_weights_whatever_the_seed(kind, words_of, whole, capsys):
    words = [*words_of(kind), f'--init_from={whole(kind)}', '--seed=5']
    if kind in OF_AUTOENCODERS:  # what is masked does not depend on the batch either
        words += ['--batch_size=3', '--eval_iters=50']

    printed = validate(capsys, whole(kind), *words)

    _, step = read_weights(whole(kind) / 'best.safetensors')
    best_loss = column(whole(kind), 'val')[step // 3]
    assert f'validation  loss {best_loss:.4f}' in printed


@pytest.mark.slow
def test_all_settings_of_a_config_json_typed_back_are_the_same_run(any_run, tmp_path):
    settings = config_of(any_run) | {'out_dir': tmp_path}

    go(*[f'--{name}={show(value)}' for name, value in settings.items()])

    assert losses(tmp_path) == losses(any_run)


@pytest.fixture
def interrupted_run(tiny, tmp_path, monkeypatch, curve):
    """A signal comes in its first validation, which computes a loss that is not a number. Its curve
    has no point."""
    def interrupted(self, out, loss, y):
        patch.undo()
        signal.raise_signal(signal.SIGTERM)
        return len(y), {'loss': math.nan}

    with monkeypatch.context() as patch, pytest.raises(SystemExit) as e:
        patch.setattr(NextToken, 'metrics', interrupted)
        go(*tiny, *HARD, f'--out_dir={tmp_path}')
    assert e.value.code == 128 + signal.SIGTERM
    return tmp_path


def test_a_validation_that_a_signal_interrupts_is_not_logged(interrupted_run):
    assert read_last(interrupted_run)['step'] == 0
    assert not read_log(interrupted_run)


def test_a_run_goes_on_with_the_validation_that_was_interrupted(interrupted_run, text_run):
    go('--init_from=resume', f'--out_dir={interrupted_run}')

    assert losses(interrupted_run) == losses(text_run)


def test_how_often_one_looks_changes_nothing(text_run, tiny, tmp_path):
    go(*tiny, *HARD, '--eval_interval=2', '--eval_iters=5', f'--out_dir={tmp_path}')

    assert column(tmp_path, 'train') == column(text_run, 'train')


def test_a_config_file_resumes_a_run_where_it_was_moved(tiny, tmp_path):
    # --overwrite=true must not come back as an order when the run goes on
    go(*tiny, '--overwrite=true', f'--out_dir={tmp_path}/old')
    before = losses(tmp_path / 'old')
    (tmp_path / 'old').rename(tmp_path / 'moved')
    config = tmp_path / 'again.py'
    config.write_text(f"out_dir = '{tmp_path}/moved'\ninit_from = 'resume'\n")

    go(str(config), '--max_iters=8', '--lr_decay_iters=6')

    after = losses(tmp_path / 'moved')
    assert after[:len(before) - 1] == before[:-1]
    assert after[-1].startswith('8,val')
    assert not (tmp_path / 'old').exists()


# ---- a run that fails

LOCK = """
import fcntl, sys
fcntl.lockf(open(sys.argv[1], 'a'), fcntl.LOCK_EX | fcntl.LOCK_NB)
"""


def is_locked(path):
    """Whether another process is refused the lock of a file."""
    return subprocess.run([sys.executable, '-c', LOCK, path], capture_output=True).returncode != 0


def fail_in_step_1(monkeypatch):
    def fail():
        raise ZeroDivisionError

    before_step(monkeypatch, 1, fail)


def test_a_run_that_fails_leaves_its_directory_to_others(tiny, tmp_path, monkeypatch):
    """As long as the exception is there, too: a notebook keeps the last one."""
    fail_in_step_1(monkeypatch)
    with pytest.raises(ZeroDivisionError) as kept:
        go(*tiny, f'--out_dir={tmp_path}')

    assert kept.traceback
    assert not is_locked(tmp_path / '.lock')


def test_a_run_that_cannot_begin_leaves_its_directory_to_others(tiny, tmp_path):
    (tmp_path / 'config.json').mkdir()
    with pytest.raises(Mistake) as kept:
        go(*tiny, f'--out_dir={tmp_path}')

    assert kept.traceback
    assert not is_locked(tmp_path / '.lock')


# ---- Weights & Biases

@pytest.fixture
def wandb_runs(tmp_path, monkeypatch):
    """The W&B runs that have ended, in a list: of each the id, the config, the last numbers and the
    exit code. They stay on this machine."""
    wandb = pytest.importorskip('wandb')
    monkeypatch.setenv('WANDB_MODE', 'offline')
    monkeypatch.setenv('WANDB_DIR', str(tmp_path))
    monkeypatch.setenv('WANDB_SILENT', 'true')
    runs = []
    finish = wandb.Run.finish

    def keep_and_finish(run, exit_code=0):
        run.log({}, commit=True)  # W&B holds the last row back until the next one, or the end
        runs.append(SimpleNamespace(id=run.id, settings=run.config.get('settings'),
                                    numbers=dict(run.summary), exit_code=exit_code))
        finish(run, exit_code)

    monkeypatch.setattr(wandb.Run, 'finish', keep_and_finish)
    return runs


def test_each_run_is_a_wandb_run_of_its_own_which_goes_on_with_it(wandb_runs, tiny, tmp_path):
    words = [*tiny, '--wandb_log=true']
    out = tmp_path / 'a'
    go(*words, '--learning_rate=0.001', f'--out_dir={out}')
    go(*words, f'--out_dir={tmp_path}/b')
    go('--init_from=resume', f'--out_dir={out}', '--max_iters=7')
    go(*words, '--overwrite=true', f'--out_dir={tmp_path}/b')

    first, second, resumed, replaced = wandb_runs
    assert resumed.id == first.id
    assert len({run.id for run in wandb_runs}) == 3
    assert (tmp_path / 'b' / 'wandb_id.txt').read_text() == replaced.id
    assert first.settings['learning_rate'] == 0.001
    assert resumed.numbers['val/loss'] == column(out, 'val')[-1]


def test_a_wandb_run_of_the_caller_goes_on(wandb_runs, tiny, tmp_path):
    import wandb
    own = wandb.init(project='own')
    go(*tiny, '--wandb_log=true', f'--out_dir={tmp_path}/a')

    assert wandb.run is own
    wandb.log({'x': 1})
    own.finish()
    numbers = wandb_runs[1].numbers
    assert numbers['x'] == 1
    assert 'val/loss' not in numbers


def test_wandb_learns_that_a_run_has_failed(wandb_runs, tiny, tmp_path, monkeypatch):
    fail_in_step_1(monkeypatch)
    with pytest.raises(ZeroDivisionError):
        go(*tiny, '--wandb_log=true', f'--out_dir={tmp_path}')

    assert [run.exit_code for run in wandb_runs] == [1]


def test_wandb_that_does_not_start_is_one_line(tiny, tmp_path, monkeypatch):
    wandb = pytest.importorskip('wandb')
    error = wandb.errors.UsageError('no API key configured')
    monkeypatch.setattr(wandb, 'init', MagicMock(side_effect=error))

    with pytest.raises(Mistake, match='no API key configured.*WANDB_MODE'):
        go(*tiny, '--wandb_log=true', f'--out_dir={tmp_path}')


# ---- TensorBoard

@pytest.fixture
def tensorboard(monkeypatch):
    tensorboard = MagicMock()
    monkeypatch.setitem(sys.modules, 'torch.utils.tensorboard', tensorboard)
    return tensorboard


@pytest.fixture
def logged_run(tensorboard, tiny, tmp_path):
    go(*tiny, '--tensorboard=true', f'--out_dir={tmp_path}')
    return tmp_path


def test_tensorboard_gets_all_columns_and_goes_on_with_the_run(tensorboard, logged_run):
    curves = {}
    for call in tensorboard.SummaryWriter().add_scalar.call_args_list:
        name, value, step = call.args
        curves.setdefault(name, {})[step] = float(value)

    assert curves['val/loss'] == dict(zip([0, 3, 6], column(logged_run, 'val')))
    assert curves.keys() >= {'train/loss', 'train/lr', 'val/bits_per_byte', 'val/seconds'}

    go('--init_from=resume', f'--out_dir={logged_run}', '--max_iters=7')

    tensorboard.SummaryWriter.assert_called_with(logged_run, purge_step=6)


def test_a_run_that_fails_closes_tensorboard(tensorboard, tiny, tmp_path, monkeypatch):
    fail_in_step_1(monkeypatch)
    with pytest.raises(ZeroDivisionError):
        go(*tiny, '--tensorboard=true', f'--out_dir={tmp_path}')

    tensorboard.SummaryWriter().close.assert_called()


# ---- libraries

NOT_NEEDED = """
import sys
for name in 'matplotlib PIL tiktoken requests pytest scipy wandb tensorboard'.split():
    sys.modules[name] = None
"""


@pytest.mark.slow
def test_training_needs_torch_numpy_safetensors_and_tqdm_alone(tmp_path):
    """It needs no other library of the requirements, nor what such a library brings."""
    small = ['--n_layer=1', '--n_head=2', '--n_embd=8', '--batch_size=4', '--max_iters=1',
             '--eval_iters=1']
    commands = [
        ['prepare/shapes.py', '--size=8', '--train=9', '--val=9', '--test=9', '--out=data/shapes'],
        ['train.py', '--model=crate', '--patch_size=4', '--dataset=shapes', '--out_dir=a', *small],
        ['train.py', '--dataset=linear', '--out_dir=b', *small],
    ]

    run_anew(commands, tmp_path, first=NOT_NEEDED)


# ---- the steps of the optimizer

RATES = [0.005, 0.01, 0.022 / 3, 0.014 / 3]  # warm-up, the peak, then a line down to 0.002


@pytest.fixture(scope='module')
def adamw_run(tiny, tmp_path_factory):
    out = tmp_path_factory.mktemp('adamw')
    go(*tiny, '--dtype=float32', '--optimizer=adamw', '--learning_rate=0.01',
       '--min_lr=0.002', '--schedule=linear', '--warmup_iters=1', '--max_iters=4',
       '--lr_decay_iters=4', '--eval_interval=4', '--beta1=0.5', '--beta2=0.6',
       '--weight_decay=0.3', '--grad_clip=0.05', '--seed=3', '--keep_checkpoints=true',
       f'--out_dir={out}')
    return out


def test_the_learning_rate_follows_the_settings(adamw_run):
    assert column(adamw_run, 'train', 'lr') == pytest.approx(RATES)


def test_a_run_takes_the_steps_of_torchs_adamw(adamw_run, bytes_data):
    model = load_model(open_run(adamw_run / 'step_0.safetensors')).train()
    matrices = [p for p in model.parameters() if p.dim() == 2]
    vectors = [p for p in model.parameters() if p.dim() != 2]
    groups = [{'params': matrices, 'weight_decay': 0.3}, {'params': vectors, 'weight_decay': 0.0}]
    adamw = torch.optim.AdamW(groups, betas=(0.5, 0.6))
    split = TextSplit(bytes_data / 'tiny', 'train', 16)

    for step, rate in enumerate(RATES):
        x, y = next(split.batches(4, 3, [slice(None)], step, step + 1))
        model(x, y)[1].backward()
        # the gradient is longer, so it is clipped
        assert torch.nn.utils.clip_grad_norm_(model.parameters(), 0.05) > 0.1
        for group in adamw.param_groups:
            group['lr'] = rate
        adamw.step()
        adamw.zero_grad()

    trained = load_model(open_run(adamw_run / 'step_4.safetensors'))
    for p, q in zip(model.parameters(), trained.parameters(), strict=True):
        assert torch.allclose(p, q, atol=1e-5)


def test_tokens_are_counted_of_the_batches_that_the_network_gets(bytes_data, tiny, tmp_path, monkeypatch):
    """Also where a task gives shorter sequences at first, and the run is stopped and goes on."""
    def shorter_at_first(self, batch, training=False):
        x, y = take(self, batch, training)
        self.calls = getattr(self, 'calls', 0) + training
        return (x[:, :4], y[:, :4]) if training and self.calls <= 2 else (x, y)
    take = NextToken.take
    monkeypatch.setattr(NextToken, 'take', shorter_at_first)

    go(*tiny, '--max_iters=3', f'--out_dir={tmp_path}')
    go('--init_from=resume', '--max_iters=6', f'--out_dir={tmp_path}')

    # 4 sequences of 4 tokens and then of 16; the task of the resumed run begins anew
    assert column(tmp_path, 'train', 'seen') == [16, 32, 96, 112, 128, 192]
