import json
import os
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from conftest import ROOT, fails, losses, run

from tasks import files as data
from engine import machine
from engine import checkpoints as models
from engine import run as rundir
import train
from tasks.tokenizer import Tokenizer

HARD = ['--dropout=0.2', '--gradient_accumulation_steps=2', '--optimizer=muon']  # what resuming must get right


def go(*words):
    train.main(list(words))


@pytest.fixture(scope='module')
def trained(tiny, tmp_path_factory):
    """A finished run; tests that change one make a copy."""
    out = tmp_path_factory.mktemp('runs') / 'trained'
    go(*tiny, *HARD, f'--out_dir={out}')
    return out


@pytest.fixture
def copy(trained, tmp_path):
    return shutil.copytree(trained, tmp_path / 'copy')


# ---- what a run leaves

def test_a_run_directory_holds_everything(trained, tiny):
    assert {p.name for p in trained.iterdir()} == {'config.json', 'log.csv', 'last.pt', 'best.pt', 'curve.png'}
    rows = [line.split(',') for line in losses(trained)]
    assert rows[0] == ['step', 'split', 'loss', 'bits_per_byte', 'top1', 'top5', 'lr', 'seen']
    assert [(r[0], r[1]) for r in rows[1:]] == [('0', 'val'), ('0', 'train'), ('1', 'train'), ('2', 'train'), ('3', 'val'), ('3', 'train'),
                                                ('4', 'train'), ('5', 'train'), ('6', 'val')]
    val = [float(r[2]) for r in rows if r[1] == 'val']
    assert 5.3 < val[0] < 5.7 and val[-1] < val[0]  # log 256 = 5.55, then it learns
    assert rows[-1][7] == str(6 * 2 * 4 * 16)
    config = json.loads((trained / 'config.json').read_text())
    assert config['n_layer'] == 2 and config['vocab_size'] == 256 and config['dropout'] == 0.2 and config['optimizer'] == 'muon'
    checkpoint = rundir.load_checkpoint(trained / 'last.pt')
    assert checkpoint['step'] == 6 and checkpoint['data'] == {'kind': 'text', 'tokenizer': {'name': 'bytes'}} and checkpoint['config'] == config
    assert checkpoint['best'] == min(val)


def test_weights_come_back_and_evaluation_agrees(trained, capsys, tiny, tmp_path):
    before = losses(trained)
    go(*tiny[:2], '--init_from=resume', f'--out_dir={trained}', '--eval_only=true')
    assert losses(trained) == before
    said = float(capsys.readouterr().out.split('validation loss ')[1].split(',')[0])
    assert said == pytest.approx(float(before[-1].split(',')[2]), abs=1e-4)
    assert not models.load_model(rundir.load_checkpoint(trained / 'best.pt')).training


def test_validation_does_not_depend_on_the_training_stream(trained, tiny, tmp_path):
    for seed in (1, 2):
        go(*tiny, f'--init_from={trained}/last.pt', f'--seed={seed}', f'--out_dir={tmp_path}/{seed}')
    one, two = losses(tmp_path / '1'), losses(tmp_path / '2')
    assert one[1] == two[1] and one[2] != two[2]


def test_fine_tuning_starts_from_the_weights(trained, tiny, tmp_path):
    go(*tiny[:2], f'--init_from={trained}/last.pt', '--max_iters=0', '--eval_iters=2', '--batch_size=4', f'--out_dir={tmp_path}/f')
    assert losses(tmp_path / 'f')[1].split(',')[2] == losses(trained)[-1].split(',')[2]


def test_target_loss_ends_a_run(tiny, tmp_path, capsys):
    go(*tiny, '--target_loss=100', f'--out_dir={tmp_path}/a')
    assert len(losses(tmp_path / 'a')) == 2 and 'reached' in capsys.readouterr().out


def test_accumulation_is_a_larger_batch(tiny, tmp_path):
    words = [*tiny, '--optimizer=adamw', '--dtype=float32']  # Muon orthogonalizes in bfloat16, which magnifies rounding
    go(*words, '--batch_size=8', f'--out_dir={tmp_path}/a')
    go(*words, '--batch_size=2', '--gradient_accumulation_steps=4', '--eval_iters=8', f'--out_dir={tmp_path}/b')
    for a, b in zip(losses(tmp_path / 'a')[1:], losses(tmp_path / 'b')[1:]):
        assert float(a.split(',')[2]) == pytest.approx(float(b.split(',')[2]), abs=1e-4)


def test_how_often_one_looks_changes_nothing(trained, tiny, tmp_path):
    go(*tiny, *HARD, '--eval_interval=2', '--eval_iters=5', f'--out_dir={tmp_path}/a')
    trains = [[row for row in losses(out) if ',train,' in row] for out in (trained, tmp_path / 'a')]
    assert trains[0] == trains[1]


@pytest.mark.parametrize('dtype', ['float32', 'bfloat16', 'float16'])
def test_every_precision_trains(dtype, tiny, tmp_path):
    go(*tiny, '--optimizer=muon', '--grad_clip=0', f'--dtype={dtype}', '--max_iters=40', '--eval_interval=20', f'--out_dir={tmp_path}/a')
    val = [float(row.split(',')[2]) for row in losses(tmp_path / 'a') if ',val,' in row]
    assert val[-1] < val[0] - 0.5


def test_an_overflow_in_float16_skips_the_step_of_every_optimizer(tiny, tmp_path, monkeypatch):
    step = torch.nn.utils.get_total_norm

    def overflow(grads):
        norm = step(grads)
        return norm * torch.inf  # what the norm is when one gradient overflowed

    monkeypatch.setattr(torch.nn.utils, 'get_total_norm', overflow)
    go(*tiny, '--optimizer=muon', '--grad_clip=0', '--dtype=float16', '--weight_decay=0', f'--out_dir={tmp_path}/a')
    val = [row.split(',')[2] for row in losses(tmp_path / 'a') if ',val,' in row]
    assert len(set(val)) == 1  # not one weight moved


def test_weights_and_biases_gets_what_the_log_gets(tiny, tmp_path, monkeypatch):
    seen = []
    fake = type(sys)('wandb')
    fake.init, fake.log = lambda **k: seen.append(k), lambda row, step: seen.append((step, row))
    monkeypatch.setitem(sys.modules, 'wandb', fake)
    go(*tiny, '--wandb_log=true', f'--out_dir={tmp_path}/a')
    assert seen[0]['config']['n_layer'] == 2 and len(seen) == len(losses(tmp_path / 'a'))
    assert f"{seen[-1][1]['val/loss']}" in losses(tmp_path / 'a')[-1]


# ---- stop and resume

@pytest.mark.parametrize('at', [0, 1, 2, 3, 5])
@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM])
def test_stopped_at_any_step_a_run_goes_on_bit_for_bit(at, number, tiny, trained, tmp_path, monkeypatch):
    batches = data.Text.batches

    def stop_at(self, n, seed, share, first, last):
        for step in range(first, last):
            if step == at:
                os.kill(os.getpid(), number)
            yield from batches(self, n, seed, share, step, step + 1)

    monkeypatch.setattr(data.Text, 'batches', stop_at)
    with pytest.raises(SystemExit) as e:
        go(*tiny, *HARD, f'--out_dir={tmp_path}/a')
    assert e.value.code == 128 + number
    assert rundir.load_checkpoint(tmp_path / 'a' / 'last.pt')['step'] == at + 1
    monkeypatch.undo()
    go('--init_from=resume', f'--out_dir={tmp_path}/a')
    assert losses(tmp_path / 'a') == losses(trained)
    whole, parts = (rundir.load_checkpoint(out / 'last.pt')['weights'] for out in (trained, tmp_path / 'a'))
    assert all(torch.equal(whole[k], parts[k]) for k in whole)


def test_killed_without_warning_a_run_goes_on_bit_for_bit(tiny, tmp_path):
    words = [*tiny, *HARD, '--max_iters=400', '--eval_interval=7']
    go(*words, f'--out_dir={tmp_path}/whole')
    out = tmp_path / 'killed'
    reached = -1
    for resume in ([], ['--init_from=resume']):  # killed twice, each time after some steps and checkpoints
        process = subprocess.Popen([sys.executable, str(ROOT / 'train.py'), *words, *resume, f'--out_dir={out}'],
                                   stdout=subprocess.PIPE, text=True, env=os.environ | {'PYTHONUNBUFFERED': '1'})
        for line in process.stdout:
            if line.startswith('step') and int(line.split()[1]) > reached + 25:
                break
        process.kill()
        assert process.wait() == -signal.SIGKILL
        assert rundir.load_checkpoint(out / 'last.pt')['step'] > reached + 15
        reached = rundir.load_checkpoint(out / 'last.pt')['step']
    with open(out / 'log.csv', 'a') as f:
        f.write('3')  # half a row, as a crash can leave it
    (out / 'last.pt.new').write_bytes(b'half a checkpoint')
    go('--init_from=resume', f'--out_dir={out}')
    assert losses(out) == losses(tmp_path / 'whole')


def test_two_processes_equal_one(tiny, tmp_path):
    words = [*tiny, '--optimizer=adamw', '--dtype=float32']
    torchrun = [sys.executable, '-m', 'torch.distributed.run', '--standalone', '--nproc_per_node=2', str(ROOT / 'train.py')]
    for name, more in (('rows', []), ('passes', ['--gradient_accumulation_steps=4', '--batch_size=1'])):
        go(*words, *more, f'--out_dir={tmp_path}/{name}1')
        done = subprocess.run([*torchrun, *words, *more, f'--out_dir={tmp_path}/{name}2'], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        one, two = losses(tmp_path / f'{name}1'), losses(tmp_path / f'{name}2')
        assert len(one) == len(two)
        for a, b in zip(one[1:], two[1:]):
            assert a.split(',')[:2] == b.split(',')[:2]
            assert float(a.split(',')[2]) == pytest.approx(float(b.split(',')[2]), abs=1e-4)


def test_a_config_file_may_say_resume_and_the_run_stays_where_it_is(tiny, tmp_path):
    go(*tiny, '--overwrite=true', f'--out_dir={tmp_path}/a')  # the run's own settings must not come back as orders
    whole = losses(tmp_path / 'a')
    (tmp_path / 'a').rename(tmp_path / 'moved')
    (tmp_path / 'again.py').write_text(f"out_dir = '{tmp_path}/moved'\ninit_from = 'resume'\n")
    go(str(tmp_path / 'again.py'), '--max_iters=8', '--lr_decay_iters=6')
    assert losses(tmp_path / 'moved')[:len(whole) - 1] == whole[:-1] and losses(tmp_path / 'moved')[-1].startswith('8,val')
    assert not (tmp_path / 'a').exists()


def test_evaluation_in_two_processes_ends_well(trained):
    done = subprocess.run([sys.executable, '-m', 'torch.distributed.run', '--standalone', '--nproc_per_node=2', str(ROOT / 'train.py'),
                           '--init_from=resume', f'--out_dir={trained}', '--eval_only=true'], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.count('validation loss') == 1, done.stderr


def test_shares_keep_the_global_batch(monkeypatch):
    for world, passes, rows, want in ((1, 5, 3, (5, 3)), (4, 8, 3, (2, 3)), (4, 3, 8, (3, 2))):
        monkeypatch.setenv('WORLD_SIZE', str(world))
        got = machine.Processes().share(train.TrainConfig(gradient_accumulation_steps=passes, batch_size=rows))
        assert got == want and got[0] * got[1] * world == passes * rows
    with pytest.raises(ValueError, match='multiple of 4'):
        machine.Processes().share(train.TrainConfig(gradient_accumulation_steps=3, batch_size=5))


# ---- mistakes

def snapshot(folder):
    return {p.name: p.read_bytes() for p in sorted(Path(folder).iterdir())}


def test_a_run_is_not_overwritten_unasked(copy, tiny, capsys):
    before = snapshot(copy)
    said = fails(capsys, train.main, *tiny, f'--out_dir={copy}')
    assert all(word in said for word in ('already holds a run', '--init_from=resume', '--overwrite=true', '--out_dir'))
    assert snapshot(copy) == before
    go(*tiny, f'--out_dir={copy}', '--overwrite=true', '--max_iters=1')
    assert len(losses(copy)) == 4


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
    (['--vocab_size=17'], 'vocab_size=17 is too small'),
    (['--init_from=no_such.pt'], 'no checkpoint no_such.pt'),
    (['--init_from=resume'], 'no checkpoint'),
    (['--log_interval=0'], 'log_interval'),
    (['--learning_rate=0'], 'learning_rate'),
    (['--learning_rate=nan'], 'learning_rate'),
    (['--min_lr=1'], 'min_lr'),
    (['--grad_clip=-1'], 'grad_clip'),
    (['--beta2=1'], 'beta2'),
    (['--head_dim=-4'], 'head_dim'),
    (['--device=meta'], 'device=meta is not usable'),
    (['--n_embd=1000000000'], 'out of memory'),
    (['--seed=-1'], 'seed'),
    (['--wandb_log=true'], 'pip install wandb')])
def test_mistakes_get_one_line_and_touch_nothing(words, message, tiny, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, 'wandb', None)
    assert message in fails(capsys, train.run, *tiny, f'--out_dir={tmp_path}/a', *words)
    assert not (tmp_path / 'a').exists()


def test_an_out_dir_that_cannot_be_made(tiny, tmp_path, capsys):
    (tmp_path / 'file').write_text('')
    assert 'name another --out_dir' in fails(capsys, train.main, *tiny, f'--out_dir={tmp_path}/file')
    assert 'name another --out_dir' in fails(capsys, train.main, *tiny, f'--out_dir={tmp_path}/file/below')


def test_a_script_fails_with_code_2_and_one_line(tiny, tmp_path):
    done = run('train.py', *tiny, '--n_embd=15', f'--out_dir={tmp_path}/a')
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1 and 'Traceback' not in done.stderr


def flip(path):
    blob = bytearray(path.read_bytes())
    blob[len(blob) // 2] ^= 0xFF
    path.write_bytes(blob)


@pytest.mark.parametrize('damage', [lambda p: p.write_bytes(p.read_bytes()[:-1000]), lambda p: p.write_bytes(b''), flip,
                                    lambda p: p.write_bytes(b'foreign' * 1000), lambda p: torch.save([1, 2], p),
                                    lambda p: torch.save({'model': {}}, p)])
def test_a_damaged_checkpoint_is_refused_and_best_is_used_only_when_told(damage, copy, tiny, capsys):
    damage(copy / 'last.pt')
    before = snapshot(copy)
    said = fails(capsys, train.main, '--init_from=resume', f'--out_dir={copy}')
    assert 'last.pt' in said and '--init_from=resume_best' in said and snapshot(copy) == before
    go(*tiny[:2], '--init_from=resume_best', f'--out_dir={copy}')
    assert losses(copy)[-1].startswith('6,val,')


def test_no_step_is_undone_by_resuming_with_fewer(copy, capsys):
    before = snapshot(copy)
    assert 'at step 6 already' in fails(capsys, train.main, '--init_from=resume', f'--out_dir={copy}', '--max_iters=2')
    assert snapshot(copy) == before


@pytest.mark.parametrize('text', [b'\x00\xff\n', b'step,split,loss\nx,train,1\n', b'no,columns\n1,2\n'])
def test_a_damaged_log_is_refused_by_name(text, copy, capsys):
    (copy / 'log.csv').write_bytes(text)
    assert 'log.csv is damaged' in fails(capsys, train.main, '--init_from=resume', f'--out_dir={copy}')
    (copy / 'log.csv').unlink()
    go('--init_from=resume', f'--out_dir={copy}')


def test_a_checkpoint_of_another_model_is_refused(copy, tiny, tmp_path, capsys):
    before = snapshot(copy)
    assert 'n_layer=2' in fails(capsys, train.main, '--n_layer=3', '--init_from=resume', f'--out_dir={copy}')
    assert 'does not fit' in fails(capsys, train.main, '--n_embd=32', f'--init_from={copy}/last.pt', f'--out_dir={tmp_path}/a')
    assert snapshot(copy) == before and not (tmp_path / 'a').exists()


def test_fine_tuning_on_other_tokens_is_refused(copy, tmp_path, capsys):
    tokenizer = Tokenizer('chars', 'abc')
    data.save_text(tmp_path / 'letters', tokenizer, *data.split_text('abc' * 200, tokenizer))
    said = fails(capsys, train.main, f'--data_dir={tmp_path}', '--dataset=letters', f'--init_from={copy}/last.pt', f'--out_dir={tmp_path}/a')
    assert 'reads bytes tokens' in said and not (tmp_path / 'a').exists()


def test_a_loss_that_is_not_finite_stops_the_run_and_keeps_the_checkpoint(copy, tiny, capsys):
    saved = rundir.load_checkpoint(copy / 'last.pt')
    said = fails(capsys, train.main, '--init_from=resume', f'--out_dir={copy}', '--max_iters=60', '--schedule=constant',
                 '--learning_rate=1e30', '--muon_lr=1e30')
    assert 'not finite at step' in said
    kept = rundir.load_checkpoint(copy / 'last.pt')
    assert kept['step'] == saved['step'] and all(torch.equal(w, saved['weights'][k]) for k, w in kept['weights'].items())


@pytest.mark.parametrize('name', ['last.pt', 'config.json'])
def test_a_full_disk_leaves_the_old_files(copy, name):
    before = snapshot(copy)

    limit = len(before[name]) // 2

    def no_room():  # files may not grow beyond the limit, in the child only
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    done = subprocess.run([sys.executable, str(ROOT / 'train.py'), '--init_from=resume', f'--out_dir={copy}', '--max_iters=9'],
                          preexec_fn=no_room, capture_output=True, text=True)
    assert done.returncode == 2 and 'could not write' in done.stderr and 'untouched' in done.stderr and len(done.stderr.splitlines()) == 1
    after = snapshot(copy)
    assert after.keys() == before.keys() and all(after[k] == before[k] for k in ('last.pt', 'best.pt'))
    assert name == 'last.pt' or after[name] == before[name]
    assert rundir.load_checkpoint(copy / 'last.pt')['step'] == 6


def test_import_starts_nothing(tmp_path):
    code = 'import train, sample, bench, optim, data, configurator, machine, rundir, model_aot; import os; assert not os.listdir(".")'
    done = subprocess.run([sys.executable, '-c', code], cwd=tmp_path, env=os.environ | {'PYTHONPATH': str(ROOT)}, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout == '', done.stderr
