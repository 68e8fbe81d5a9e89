"""train.py as a whole: what a run leaves, what validation and fine-tuning compute, the optimizer's steps."""
import math
import signal
import sys
from unittest.mock import MagicMock

import pytest
import torch
from helpers import HARD, KINDS, OF_AUTOENCODERS, column, config_of, go, losses, run

from engine.checkpoint import read_log
from engine.settings import show
from engine.trained import load_model, open_run, read_config, read_last, read_weights
from tasks.task_text import NextToken
from tasks.text import TextSplit

pytestmark = pytest.mark.usefixtures('quick')
FIRST = dict.fromkeys(('text', 'tost', 'crate_lm', 'masked_text'), math.log(256)) | {'pictures': math.log(4)}


@pytest.mark.parametrize('kind', KINDS)
def test_a_run_directory_holds_everything(kind, whole):
    out = whole(kind)
    assert {p.name for p in out.iterdir()} >= {'config.json', 'log.jsonl', 'last.pt', 'best.safetensors'}
    rows, val, last = read_log(out), column(out, 'val'), read_last(out)
    assert [row['step'] for row in rows if row['split'] == 'val'] == [0, 3, 6]
    assert [row['step'] for row in rows if row['split'] == 'train'] == list(range(6))
    assert val[0] == pytest.approx(FIRST.get(kind, val[0]), abs=0.4)
    assert kind != 'text' or column(out, 'val', 'bits_per_byte') == pytest.approx([nats / math.log(2) for nats in val])
    config, held = read_config(out), config_of(out)
    rows_of_a_step = held['batch_size'] * held['gradient_accumulation_steps']
    assert rows[-1]['seen'] % (6 * rows_of_a_step) == 0 < rows[-1]['seen'] and last['step'] == 6
    assert (last['average'] is None) == (held['ema'] == 0)
    errors = {'pictures': [1 - n for n in column(out, 'val', 'top1')], 'dino': [math.inf]}.get(kind, val)
    assert last['best'] == min(errors)
    assert kind == 'dino' or read_weights(out / 'best.safetensors')[1] == 3 * errors.index(min(errors))
    text = {'kind': 'text', 'tokenizer': {'name': 'bytes'}}
    assert config['data'] == {'functions': {'kind': 'functions'}}.get(
        kind, text if rows_of_a_step == 4 or kind == 'text' else {'kind': 'images', 'classes': list('abcd')})


@pytest.mark.parametrize('kind', KINDS)
def test_validation_is_that_of_the_run_whatever_the_seed(kind, words_of, whole, capsys):
    """Of its last weights where it goes on, of its best ones where it is fine-tuned. What is masked does not depend on
    the batch either."""
    out, before = whole(kind), losses(whole(kind))
    val, best = column(out, 'val'), read_weights(out / 'best.safetensors')[1] // 3
    other = ['--seed=5'] + ['--batch_size=3', '--eval_iters=50'] * (kind in OF_AUTOENCODERS)
    starts = (val[-1], ['--init_from=resume']), (val[best], [*words_of(kind), f'--init_from={out}', *other])
    for want, words in starts[:1 if 'dino' in kind else 2]:  # whose teacher is another network
        go(*words, f'--out_dir={out}', '--eval_only=true')
        assert f'validation  loss {want:.4f}' in capsys.readouterr().out
    assert losses(out) == before


@pytest.mark.parametrize('kind', KINDS)
def test_all_settings_of_a_config_json_typed_back_are_the_same_run(kind, whole, tmp_path):
    config = read_config(whole(kind))
    settings_of_run = config['settings'] | config['network'] | {'out_dir': tmp_path / 'again'}
    go(*(f'--{name}={show(value)}' for name, value in settings_of_run.items()))
    assert losses(tmp_path / 'again') == losses(whole(kind))


def test_a_validation_that_a_signal_interrupts_is_forgotten(tiny, text_run, tmp_path, monkeypatch):
    """Whatever its first batches said: the resumed run validates again."""
    out = tmp_path / 'a'
    with monkeypatch.context() as patch, pytest.raises(SystemExit) as e:
        def interrupted(self, out, loss, y):
            patch.undo()
            signal.raise_signal(signal.SIGTERM)
            return len(y), {'loss': math.nan}
        patch.setattr(NextToken, 'metrics', interrupted)
        go(*tiny, *HARD, f'--out_dir={out}')
    assert e.value.code == 128 + signal.SIGTERM and read_last(out)['step'] == 0 and not read_log(out)
    go('--init_from=resume', f'--out_dir={out}')
    assert losses(out) == losses(text_run)


def test_how_often_one_looks_changes_nothing(text_run, tiny, tmp_path):
    go(*tiny, *HARD, '--eval_interval=2', '--eval_iters=5', f'--out_dir={tmp_path}/a')
    assert column(text_run, 'train') == column(tmp_path / 'a', 'train')


def test_other_logs_get_what_the_log_gets_and_go_on_where_a_run_does(tiny, tmp_path, monkeypatch):
    tensorboard, wandb, out = MagicMock(), MagicMock(), tmp_path / 'a'
    monkeypatch.setitem(sys.modules, 'torch.utils.tensorboard', tensorboard)
    monkeypatch.setitem(sys.modules, 'wandb', wandb)
    wandb.init.return_value.id = 'abc'
    go(*tiny, '--tensorboard=true', '--wandb_log=true', f'--out_dir={out}')
    assert wandb.init.call_args.kwargs['id'] is None  # W&B makes one up
    rows = [call.args[0] | call.kwargs for call in wandb.log.call_args_list]
    scalars = [call.args for call in tensorboard.SummaryWriter().add_scalar.call_args_list]
    for found in ({(row['step'], row['val/loss']) for row in rows if 'val/loss' in row},
                  {(step, float(value)) for name, value, step in scalars if name == 'val/loss'}):
        assert found == set(zip((0, 3, 6), column(out, 'val')))
    assert {name for name, *_ in scalars} >= {'train/loss', 'train/lr', 'val/bits_per_byte', 'val/seconds'}
    go('--init_from=resume', f'--out_dir={out}', '--max_iters=7')
    assert wandb.init.call_args.kwargs['id'] == 'abc'  # one run there too
    tensorboard.SummaryWriter.assert_any_call(out, purge_step=None)
    tensorboard.SummaryWriter.assert_called_with(out, purge_step=6)
    (out / 'events.out.tfevents.0').write_text('x')
    go(*tiny, '--overwrite=true', '--wandb_log=true', f'--out_dir={out}')
    assert wandb.init.call_args.kwargs['id'] is None  # a new run
    assert not list(out.glob('events.*'))  # of the run that was there


def test_a_config_file_may_say_resume_and_the_run_stays_where_it_is(tiny, tmp_path):
    go(*tiny, '--overwrite=true', f'--out_dir={tmp_path}/a')  # the run's own settings must not come back as orders
    whole = losses(tmp_path / 'a')
    (tmp_path / 'a').rename(tmp_path / 'moved')
    (tmp_path / 'again.py').write_text(f"out_dir = '{tmp_path}/moved'\ninit_from = 'resume'\n")
    go(str(tmp_path / 'again.py'), '--max_iters=8', '--lr_decay_iters=6')
    moved = losses(tmp_path / 'moved')
    assert moved[:len(whole) - 1] == whole[:-1] and moved[-1].startswith('8,val') and not (tmp_path / 'a').exists()


@pytest.mark.slow
def test_training_needs_torch_numpy_safetensors_and_tqdm_alone(tmp_path):
    """So it needs neither the other requirements, nor what they bring."""
    (tmp_path / 'sitecustomize.py').write_text(
        "import sys\nfor name in 'matplotlib PIL tiktoken requests pytest scipy wandb tensorboard'.split():\n"
        "    sys.modules[name] = None\n")
    small = '--n_layer=1', '--n_head=2', '--n_embd=8', '--batch_size=4', '--max_iters=2', '--eval_iters=1'
    for words in (['prepare/shapes.py', '--train', '20', '--val', '9', '--test', '9', '--out', 'data/shapes'],
                  ['train.py', '--model=crate', '--dataset=shapes', '--out_dir=a', *small],
                  ['train.py', '--dataset=linear', '--out_dir=b', *small]):
        done = run(*words, cwd=tmp_path, PYTHONPATH=str(tmp_path))
        assert done.returncode == 0, done.stderr


def test_a_run_takes_the_steps_of_torchs_adamw_with_the_settings_that_are_typed(tiny, bytes_data, tmp_path):
    go(*tiny, '--dtype=float32', '--optimizer=adamw', '--learning_rate=0.01', '--min_lr=0.002', '--schedule=linear',
       '--warmup_iters=1', '--max_iters=4', '--lr_decay_iters=4', '--eval_interval=4', '--beta1=0.5', '--beta2=0.6',
       '--weight_decay=0.3', '--grad_clip=0.05', '--seed=3', '--keep_checkpoints=true', f'--out_dir={tmp_path}/a')
    model = load_model(open_run(tmp_path / 'a' / 'step_0.safetensors')).train()
    of_dim = [[p for p in model.parameters() if (p.dim() == 2) == matrix] for matrix in (True, False)]
    adamw = torch.optim.AdamW([{'params': of_dim[0], 'weight_decay': 0.3}, {'params': of_dim[1], 'weight_decay': 0.0}],
                              betas=(0.5, 0.6))
    rates = 0.005, 0.01, 0.022 / 3, 0.014 / 3           # warm-up, the peak, then a line down to 0.002
    assert column(tmp_path / 'a', 'train', 'lr') == pytest.approx(rates)
    for step, rate in enumerate(rates):
        x, y = next(TextSplit(bytes_data / 'tiny', 'train', 16).batches(4, 3, [slice(None)], step, step + 1))
        model(x, y)[1].backward()
        assert torch.nn.utils.clip_grad_norm_(model.parameters(), 0.05) > 0.1
        for group in adamw.param_groups:
            group['lr'] = rate
        adamw.step()
        adamw.zero_grad()
    after = load_model(open_run(tmp_path / 'a' / 'step_4.safetensors'))
    for p, q in zip(model.parameters(), after.parameters(), strict=True):
        assert torch.allclose(p, q, atol=1e-5)
