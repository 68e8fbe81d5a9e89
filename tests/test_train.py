"""train.py as a whole, on text: what a run leaves, stopping and resuming bit for bit, mistakes."""
import os
import signal
import subprocess
import sys

import pytest
import torch
from helpers import HARD, ROOT, column, equal, fails, go, losses, save_text, split_text, weights

import tasks
import train
from engine.trained import load_model, open_run, read_config, read_last
from tasks.text import NextToken, TextSplit
from tasks.tokenizer import Tokenizer

# ---- what a run leaves


def test_a_run_directory_holds_everything(text_run):
    assert {p.name for p in text_run.iterdir()} == {'config.json', 'log.jsonl', 'last.pt', 'best.safetensors',
                                                    'curve.png'}
    rows = [line.split(',') for line in losses(text_run)]
    assert rows[0] == ['step', 'split', 'loss', 'bits_per_byte', 'grad_norm', 'lr', 'seen']
    assert [(r[0], r[1]) for r in rows[1:]] == [
        ('0', 'val'), ('0', 'train'), ('1', 'train'), ('2', 'train'), ('3', 'val'), ('3', 'train'), ('4', 'train'),
        ('5', 'train'), ('6', 'val')]
    val = column(text_run, 'val')
    assert 5.3 < val[0] < 5.7 and val[-1] < val[0]  # log 256 = 5.55, then it learns
    assert rows[-1][-1] == str(6 * 2 * 4 * 16)
    config, last = read_config(text_run), read_last(text_run)
    assert config['model'] == 'aot' and config['network']['n_layer'] == 2 and config['network']['vocab_size'] == 256
    assert config['network']['dropout'] == 0.2 and config['settings']['optimizer'] == 'muon'
    assert config['data'] == {'kind': 'text', 'tokenizer': {'name': 'bytes'}}
    assert last['step'] == 6 and last['best'] == min(val) and last['average'] is None


def test_weights_come_back_and_evaluation_agrees(text_run, capsys, tiny):
    before = losses(text_run)
    go(*tiny[:2], '--init_from=resume', f'--out_dir={text_run}', '--eval_only=true')
    assert losses(text_run) == before
    said = float(capsys.readouterr().out.split('validation  loss ')[1].split(',')[0])
    assert said == pytest.approx(column(text_run, 'val')[-1], abs=1e-4)
    assert not load_model(open_run(text_run)).training


def test_validation_does_not_depend_on_the_training_stream(text_run, tiny, tmp_path):
    for seed in (1, 2):
        go(*tiny, f'--init_from={text_run}', f'--seed={seed}', f'--out_dir={tmp_path}/{seed}')
    one, two = losses(tmp_path / '1'), losses(tmp_path / '2')
    assert one[1] == two[1] and one[2] != two[2]


def test_how_often_one_looks_changes_nothing(text_run, tiny, tmp_path):
    go(*tiny, *HARD, '--eval_interval=2', '--eval_iters=5', f'--out_dir={tmp_path}/a')
    assert column(text_run, 'train') == column(tmp_path / 'a', 'train')


def test_fine_tuning_starts_from_the_weights(text_run, tiny, tmp_path):
    go(*tiny[:2], f'--init_from={text_run}', '--max_iters=0', '--eval_iters=2', '--batch_size=4',
       f'--out_dir={tmp_path}/f')
    assert column(tmp_path / 'f', 'val')[0] == column(text_run, 'val')[-1]


def test_target_loss_ends_a_run(tiny, tmp_path, capsys):
    go(*tiny, '--target_loss=100', f'--out_dir={tmp_path}/a')
    assert len(losses(tmp_path / 'a')) == 2 and 'reached' in capsys.readouterr().out


def test_checkpoints_are_kept_if_asked(tiny, tmp_path):
    go(*tiny, '--keep_checkpoints=true', f'--out_dir={tmp_path}/a')
    assert {p.name for p in (tmp_path / 'a').glob('step_*')} == {f'step_{i}.safetensors' for i in (0, 3, 6)}
    assert equal(weights(tmp_path / 'a', 'step_6'), weights(tmp_path / 'a'))


def test_accumulation_is_a_larger_batch(tiny, tmp_path):
    words = [*tiny, '--optimizer=adamw', '--dtype=float32']  # Muon's bfloat16 magnifies rounding
    go(*words, '--batch_size=8', f'--out_dir={tmp_path}/a')
    go(*words, '--batch_size=2', '--gradient_accumulation_steps=4', '--eval_iters=8', f'--out_dir={tmp_path}/b')
    for split in ('train', 'val'):
        assert column(tmp_path / 'a', split) == pytest.approx(column(tmp_path / 'b', split), abs=1e-4)


def test_weights_and_biases_gets_what_the_log_gets(tiny, tmp_path, monkeypatch):
    seen = []
    fake = type(sys)('wandb')
    fake.init, fake.log = lambda **k: seen.append(k), lambda row, step: seen.append((step, row))
    monkeypatch.setitem(sys.modules, 'wandb', fake)
    go(*tiny, '--wandb_log=true', f'--out_dir={tmp_path}/a')
    assert seen[0]['config']['network']['n_layer'] == 2 and len(seen) == len(losses(tmp_path / 'a'))
    assert f"{seen[-1][1]['val/loss']}" in losses(tmp_path / 'a')[-1]


def test_tensorboard_gets_what_the_log_gets_and_goes_on_where_a_run_does(tiny, tmp_path, monkeypatch):
    seen = []

    class Writer:
        def __init__(self, folder, purge_step):
            (folder / f'events.out.tfevents.{len(seen)}').write_text('')
            seen.append((str(folder), purge_step))

        def add_scalar(self, *numbers):
            seen.append(numbers)

        def close(self):
            seen.append('closed')
    fake = type(sys)('tensorboard')
    fake.SummaryWriter = Writer
    monkeypatch.setitem(sys.modules, 'torch.utils.tensorboard', fake)
    out = tmp_path / 'a'
    go(*tiny, '--tensorboard=true', f'--out_dir={out}')
    assert seen[0] == (str(out), None) and seen[-1] == 'closed'
    logged = {(float(value), int(step)) for name, value, step in seen[1:-1] if name == 'val/loss'}
    assert logged == set(zip(column(out, 'val'), (0, 3, 6)))
    assert {name for name, *_ in seen[1:-1]} >= {'train/loss', 'train/lr', 'val/bits_per_byte', 'val/seconds'}
    go('--init_from=resume', f'--out_dir={out}', '--max_iters=7')
    assert (str(out), 6) in seen
    go(*tiny, '--overwrite=true', f'--out_dir={out}')
    assert not list(out.glob('events.*'))  # of the run that was there


def test_a_new_number_of_a_task_is_a_new_column_also_when_a_run_goes_on(text_run, tiny, tmp_path, monkeypatch, capsys):
    words = [*tiny, *HARD, f'--out_dir={tmp_path}/a']
    go(*words, '--max_iters=4', '--lr_decay_iters=6')
    metrics = NextToken.metrics

    def more(self, out, loss, y):
        weight, found = metrics(self, out, loss, y)
        return weight, found | {'answer': 42 + 0 * loss}
    monkeypatch.setattr(NextToken, 'metrics', more)
    go('--init_from=resume', f'--out_dir={tmp_path}/a', '--max_iters=6')
    columns, *rows = (line.split(',') for line in losses(tmp_path / 'a'))
    assert columns == ['step', 'split', 'loss', 'bits_per_byte', 'grad_norm', 'answer', 'lr', 'seen']
    assert [float(row[5]) for row in rows if row[5]] == [42.0] and rows[-1][5]  # of the rows after it was there
    without = [row[:5] + row[6:] for row in rows]
    assert [','.join(row) for row in without if row[:2] != ['4', 'val']] == losses(text_run)[1:]
    assert 'answer 42' in capsys.readouterr().out


# ---- stop and resume


@pytest.mark.parametrize('at', [0, 1, 2, 3, 5])
@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM])
def test_stopped_at_any_step_a_run_goes_on_bit_for_bit(at, number, tiny, text_run, tmp_path, monkeypatch):
    batches = TextSplit.batches

    def stop_at(self, n, seed, share, first, last):
        for step in range(first, last):
            if step == at:
                os.kill(os.getpid(), number)
            yield from batches(self, n, seed, share, step, step + 1)

    monkeypatch.setattr(TextSplit, 'batches', stop_at)
    with pytest.raises(SystemExit) as e:
        go(*tiny, *HARD, f'--out_dir={tmp_path}/a')
    assert e.value.code == 128 + number
    assert read_last(tmp_path / 'a')['step'] == at + 1
    monkeypatch.undo()
    go('--init_from=resume', f'--out_dir={tmp_path}/a')
    assert losses(tmp_path / 'a') == losses(text_run)
    assert equal(weights(tmp_path / 'a'), weights(text_run))


def test_a_config_file_may_say_resume_and_the_run_stays_where_it_is(tiny, tmp_path):
    go(*tiny, '--overwrite=true', f'--out_dir={tmp_path}/a')  # the run's own settings must not come back as orders
    whole = losses(tmp_path / 'a')
    (tmp_path / 'a').rename(tmp_path / 'moved')
    (tmp_path / 'again.py').write_text(f"out_dir = '{tmp_path}/moved'\ninit_from = 'resume'\n")
    go(str(tmp_path / 'again.py'), '--max_iters=8', '--lr_decay_iters=6')
    moved = losses(tmp_path / 'moved')
    assert moved[:len(whole) - 1] == whole[:-1] and moved[-1].startswith('8,val')
    assert not (tmp_path / 'a').exists()


# ---- mistakes


@pytest.mark.parametrize('words, message', [
    (['--n_embd=15'], 'not divisible by n_head'),
    (['--n_layers=3'], 'did you mean n_layer?'),
    (['--dataset=nothing_here'], 'no data in'),
    (['--dataset=shakespeare_char'], 'run: python prepare/shakespeare_char.py'),
    (['--model=gpt'], 'choose aot'),
    (['--optimizer=sgd'], 'choose adamw'),
    (['--schedule=cos'], 'choose cosine'),
    (['--dtype=int8'], 'choose auto'),
    (['--compile=maybe'], 'choose auto'),
    (['--device=tpu9'], 'device=tpu9 is not usable'),
    (['--block_size=100000'], '--block_size='),
    (['--vocab_size=17'], 'vocab_size=17 does not fit'),
    (['--init_from=no_such'], 'no run in no_such'),
    (['--init_from=resume'], 'no run in'),
    (['--log_interval=0'], 'log_interval'),
    (['--learning_rate=0'], 'learning_rate'),
    (['--learning_rate=nan'], 'learning_rate'),
    (['--min_lr=1'], 'min_lr'),
    (['--grad_clip=-1'], 'grad_clip'),
    (['--beta2=1'], 'beta2'),
    (['--n_head=0'], 'n_head'),
    (['--device=meta'], 'device=meta is not usable'),
    (['--n_embd=1000000000'], '--batch_size'),
    (['--seed=-1'], 'seed'),
    (['--train_share=0.5'], 'train_share'),
    (['--wandb_log=true'], 'pip install wandb'), (['--tensorboard=true'], 'pip install tensorboard')])
def test_mistakes_get_one_line_and_touch_nothing(words, message, tiny, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, 'wandb', None)
    monkeypatch.setitem(sys.modules, 'torch.utils.tensorboard', None)
    assert message in fails(capsys, train.main, *tiny, f'--out_dir={tmp_path}/a', *words)
    assert not (tmp_path / 'a').exists()


def test_fine_tuning_on_other_tokens_is_refused(text_run, tmp_path, capsys):
    tokenizer = Tokenizer('chars', 'abc')
    save_text(tmp_path / 'letters', tokenizer, *split_text('abc' * 200, tokenizer))
    said = fails(capsys, train.main, f'--data_dir={tmp_path}', '--dataset=letters', f'--init_from={text_run}',
                 f'--out_dir={tmp_path}/a')
    assert 'reads tokenizer' in said and not (tmp_path / 'a').exists()


@pytest.mark.parametrize('dataset, command', [
    ('cifar10', 'python prepare/cifar10.py --out {}'), ('nothing', 'python prepare/imagefolder.py FOLDER --out {}')])
def test_a_dataset_that_is_not_there_says_what_to_run(dataset, command, pictures_data, tmp_path, capsys):
    words = f'--data_dir={pictures_data}', f'--dataset={dataset}', f'--out_dir={tmp_path}/a'
    said, missing = fails(capsys, train.main, *words), pictures_data / dataset
    assert command.format(missing) in said and f'no data in {missing}' in said


def test_a_dataset_that_needs_no_download_is_prepared(tmp_path, monkeypatch, capsys):
    asked, failed = [], subprocess.CompletedProcess([], 1)
    monkeypatch.setattr(tasks.subprocess, 'run', lambda words: asked.append(words) or failed)
    words = f'--data_dir={tmp_path}', '--dataset=shapes', '--model=vit', f'--out_dir={tmp_path}/a'
    said = fails(capsys, train.main, *words)
    assert asked == [[sys.executable, str(ROOT / 'prepare' / 'shapes.py'), '--once', '--out', str(tmp_path / 'shapes')]]
    assert 'python prepare/shapes.py failed' in said


def test_import_starts_nothing(tmp_path):
    names = ', '.join(path.stem for path in ROOT.glob('*.py'))
    code = f'import {names}; import os; assert not os.listdir(".")'
    done = subprocess.run([sys.executable, '-c', code], cwd=tmp_path, env=os.environ | {'PYTHONPATH': str(ROOT)},
                          capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout == '', done.stderr


@pytest.mark.slow
def test_training_needs_torch_numpy_safetensors_and_tqdm_alone(tmp_path):
    """So it needs neither the other dependencies, nor what they bring."""
    code = ("import runpy, sys\n"
            "others = 'matplotlib PIL tiktoken requests pytest scipy wandb tensorboard'\n"
            "for name in others.split(): sys.modules[name] = None\n"
            "del sys.argv[0]\n"
            "sys.path.insert(0, sys.argv[0].rpartition('/')[0])\n"
            "runpy.run_path(sys.argv[0], run_name='__main__')")
    small = '--n_layer=1', '--n_head=2', '--n_embd=8', '--batch_size=4', '--max_iters=2', '--eval_iters=1'
    shapes = 'prepare/shapes.py', '--train', '20', '--val', '9', '--test', '9', '--out', f'{tmp_path}/data/shapes'
    for script, *words in (shapes, ('train.py', '--model=crate', '--dataset=shapes', '--out_dir=a', *small),
                           ('train.py', '--dataset=linear', '--out_dir=b', *small)):
        done = subprocess.run([sys.executable, '-c', code, str(ROOT / script), *words], cwd=tmp_path,
                              capture_output=True, text=True)
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
