"""train.py in several processes: each with its own copy of the network (DDP), or sharing one (FSDP2); resuming
with any number of them; stopping; mistakes of one process."""
import os
import shutil
import signal

import pytest
import torch
from helpers import HARD, OF_AUTOENCODERS, OF_PICTURES, column, equal, go, losses, snapshot, torchrun, weights
from torch._dynamo.utils import counters

from engine.checkpoint import RunDirectory
from engine.trained import read_last
from tasks.text import TextSplit

WAYS = {'one': None, 'ddp': [], 'fsdp': ['--fsdp=true']}


def train_by(way, *words):
    """Train in one process, or in two."""
    if WAYS[way] is None:
        go(*words, '--fsdp=false')
    else:
        torchrun(*words, *WAYS[way])


def close(a, b):
    """Whether the logs of two runs have the same rows, and losses that differ by rounding alone."""
    assert [row.split(',')[:2] for row in losses(a)] == [row.split(',')[:2] for row in losses(b)]
    for split in ('train', 'val'):
        assert column(a, split) == pytest.approx(column(b, split), abs=1e-4)


@pytest.fixture
def words(tiny):
    return [*tiny, '--dtype=float32', '--optimizer=adamw', '--gradient_accumulation_steps=4', '--batch_size=2',
            '--eval_iters=5']


# ---- the same run, however many processes


@pytest.mark.slow
@pytest.mark.parametrize('optimizer', ['adamw', 'lion', 'muon'])
@pytest.mark.parametrize('way', ['ddp', 'fsdp'])
def test_two_processes_equal_one(way, optimizer, words, tmp_path):
    words = [*words, f'--optimizer={optimizer}', '--ema=0.9', '--telemetry=true']
    if optimizer == 'muon':
        words += ['--max_iters=4', '--muon_lr=0.002']  # whose bfloat16 magnifies rounding
    for name in ('one', way):
        train_by(name, *words, f'--out_dir={tmp_path}/{name}')
    close(tmp_path / 'one', tmp_path / way)
    for layer in (1, 2):
        rates = [column(tmp_path / name, 'val', f'rate_{layer}') for name in ('one', way)]
        assert rates[0] == pytest.approx(rates[1], rel=1e-3) and min(rates[0]) > 0


@pytest.mark.slow
def test_networks_of_pictures_are_shared_too(pictures_data, tmp_path):
    for name, words in {'crate': OF_PICTURES, **OF_AUTOENCODERS}.items():
        words = [f'--data_dir={pictures_data}', '--dataset=quads', *words, '--telemetry=true', '--eval_iters=3']
        for way in ('one', 'fsdp'):
            train_by(way, *words, f'--out_dir={tmp_path}/{name}/{way}')
        close(tmp_path / name / 'one', tmp_path / name / 'fsdp')


@pytest.mark.slow
def test_tost_is_shared_too(words, tmp_path):
    for way in WAYS:
        train_by(way, *words, '--model=tost', '--layer_scale=1', f'--out_dir={tmp_path}/{way}')
    close(tmp_path / 'one', tmp_path / 'ddp')
    close(tmp_path / 'one', tmp_path / 'fsdp')


@pytest.mark.slow
def test_functions_in_context_and_few_rows_are_shared_too(tmp_path, words):
    words = [*words, '--dataset=linear', '--n_dims=4', '--block_size=8', '--eval_iters=1', '--n_layer=1']
    for way in ('one', 'fsdp'):
        train_by(way, *words, f'--out_dir={tmp_path}/{way}')  # of one validation batch the second process has none
    close(tmp_path / 'one', tmp_path / 'fsdp')


# ---- resuming


@pytest.fixture(scope='module')
def whole_run(tiny, tmp_path_factory):
    """A run of eight steps in one process."""
    out = tmp_path_factory.mktemp('whole')
    go(*long(tiny), f'--out_dir={out}/a')
    return out / 'a'


def long(tiny):
    return [*tiny, '--dtype=float32', '--optimizer=adamw', '--gradient_accumulation_steps=4', '--batch_size=2',
            '--eval_iters=5', '--ema=0.9', '--max_iters=8', '--eval_interval=4', '--lr_decay_iters=8']


def states(last):
    """The optimizer states in last.pt: {(optimizer, parameter, name): tensor}."""
    return {(n, i, k): v for n, state in enumerate(last['optimizers'])
            for i, kept in state['state'].items() for k, v in kept.items()}


@pytest.mark.slow
@pytest.mark.parametrize('writer', WAYS)
def test_what_one_way_writes_every_way_goes_on_with(writer, whole_run, tiny, tmp_path):
    first = tmp_path / 'first'
    train_by(writer, *long(tiny), '--max_iters=4', '--checkpoint_minutes=1e-9', f'--out_dir={first}')
    written = read_last(first)
    assert written.keys() == read_last(whole_run).keys() and written['step'] == 4
    assert all(type(v) is torch.Tensor for v in [*written['weights'].values(), *states(written).values()])
    assert equal(weights(first, 'best'), written['average'])
    assert (first / 'last.pt').stat().st_size < 1.05 * (whole_run / 'last.pt').stat().st_size  # tied weights once
    for reader in WAYS:
        out = shutil.copytree(first, tmp_path / reader)
        more = ['--init_from=resume', f'--out_dir={out}', *['--fsdp=false'] * (reader == 'ddp')]
        (out / 'log.jsonl').unlink()
        train_by(reader, *more, '--max_iters=8', '--target_loss=100')  # it writes all again, without a step
        held = read_last(out)
        assert [row[:5] for row in losses(out)[1:]] == ['4,val']
        assert all(equal(held[k], written[k]) for k in ('weights', 'average')) and held['step'] == 4
        assert equal(states(held), states(written)) and held['best'] == written['best']
        shutil.copy(first / 'log.jsonl', out)
        train_by(reader, *more, '--target_loss=0')
        close(out, whole_run)


@pytest.mark.slow
def test_evaluation_in_two_processes_ends_well(text_run):
    before = snapshot(text_run)
    said, _ = torchrun('--init_from=resume', f'--out_dir={text_run}', '--eval_only=true')
    assert said.count('validation  loss') == 1 and snapshot(text_run) == before


def test_a_checkpoint_between_validations_goes_on_bit_for_bit(tiny, text_run, tmp_path, monkeypatch):
    batches, out = TextSplit.batches, tmp_path / 'a'

    def die_at_5(self, n, seed, share, first, last):
        yield from batches(self, n, seed, share, first, 5)
        raise KeyboardInterrupt

    monkeypatch.setattr(TextSplit, 'batches', die_at_5)
    with pytest.raises(KeyboardInterrupt):
        go(*tiny, *HARD, f'--out_dir={out}', '--checkpoint_minutes=1e-9')
    monkeypatch.undo()
    assert read_last(out)['step'] == 5  # the last validation was at 3
    go('--init_from=resume', f'--out_dir={out}')
    assert losses(out) == losses(text_run) and equal(weights(out), weights(text_run))


def test_no_checkpoint_between_validations_if_not_asked(tiny, tmp_path, monkeypatch):
    saved, save = [], RunDirectory.save_last

    def noted(self, *state):
        save(self, *state)
        saved.append(read_last(self.out)['step'])
    monkeypatch.setattr(RunDirectory, 'save_last', noted)
    go(*tiny, '--checkpoint_minutes=0', f'--out_dir={tmp_path}/a')
    assert saved == [0, 3, 6]
    saved.clear()
    go(*tiny, '--checkpoint_minutes=1e-9', f'--out_dir={tmp_path}/b')
    assert saved == [0, 1, 2, 3, 4, 5, 6]


# ---- memory


def test_layers_computed_twice_give_the_same_run(text_run, tiny, tmp_path):
    go(*tiny, *HARD, '--recompute=true', f'--out_dir={tmp_path}/a')  # with dropout
    assert losses(tmp_path / 'a') == losses(text_run) and equal(weights(tmp_path / 'a'), weights(text_run))


@pytest.mark.slow
def test_compiled_layers_may_be_computed_twice_shared_and_looked_into(words, tmp_path):
    words = [*words, '--compile=true', '--telemetry=true', '--n_layer=3']
    torch._dynamo.reset()  # what other tests have compiled would be used again
    counters['stats'].clear()
    go(*words, '--recompute=true', f'--out_dir={tmp_path}/one')
    assert 0 < counters['stats']['unique_graphs'] < 6  # of three layers, training and validating
    torchrun(*words, '--recompute=true', '--fsdp=true', f'--out_dir={tmp_path}/fsdp')
    torchrun(*words, '--recompute=true', f'--out_dir={tmp_path}/ddp')
    close(tmp_path / 'one', tmp_path / 'fsdp')
    close(tmp_path / 'one', tmp_path / 'ddp')


# ---- scripts that two processes run

OVERFLOW = '''
import sys, torch, torch.distributed as dist
from engine import optim
from engine.device import Device, leave, whole
from model_aot import AoT, AoTConfig
here = Device('cpu', 'float16', 'false', fsdp=sys.argv[1] == 'fsdp')
torch.manual_seed(0)
model = AoT(AoTConfig(n_layer=2, n_head=2, n_embd=16, block_size=8, vocab_size=32))
parallel = here.wrap(model)
optimizers = optim.build(model, 'muon', 1e-2, weight_decay=0.0)
before = {k: whole(v).clone() for k, v in model.state_dict().items()}
x = torch.randint(32, (2, 8))
for overflows in (True, False):
    here.sync(parallel, now=True)
    with here.autocast:
        loss = parallel(x, x)[1]
    here.scaler.scale(loss * (torch.inf if overflows and here.rank == 1 else 1)).backward()  # in one process alone
    for optimizer in optimizers:
        here.scaler.unscale_(optimizer)
    norm = whole(torch.nn.utils.get_total_norm([p.grad for p in model.parameters()]))
    for optimizer in optimizers:  # as in train.py
        if norm.isfinite():
            here.scaler.step(optimizer)
        optimizer.zero_grad()
    here.scaler.update()
    after = {k: whole(v) for k, v in model.state_dict().items()}
    if here.main:
        print('moved', *(not torch.equal(before[k], after[k]) for k in before), flush=True)
    scales = [None] * 2
    dist.all_gather_object(scales, here.scaler.get_scale())
    here.say('scales', *scales)
del parallel, model, optimizers
leave()
'''


@pytest.mark.slow
@pytest.mark.parametrize('way', ['ddp', 'fsdp'])
def test_an_overflow_in_one_process_is_seen_by_all(way, tmp_path):
    (tmp_path / 'overflow.py').write_text(OVERFLOW)
    lines = torchrun(way, script=tmp_path / 'overflow.py')[0].splitlines()
    assert set(lines[0].split()[1:]) == {'False'} and lines[1] == 'scales 32768.0 32768.0'
    assert 'True' in lines[2] and lines[3] == 'scales 32768.0 32768.0'


STOP = '''
import os, signal, sys, train
from engine import device
from tasks.text import TextSplit
fixed, validations = TextSplit.fixed, []
def signalled(self, n, batches, rank=0, world=1):
    validations.append(0)
    for i, batch in enumerate(fixed(self, n, batches, rank, world)):
        if rank == 1 and len(validations) == 2 and i == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        print('batch', rank, len(validations), i, flush=True)
        yield batch
TextSplit.fixed = signalled
if __name__ == '__main__':
    code = train.main(sys.argv[1:])
    device.leave()
    sys.exit(code)
'''


@pytest.mark.slow
@pytest.mark.parametrize('way', ['ddp', 'fsdp'])
def test_a_signal_to_one_process_ends_the_validation_of_all(way, words, tmp_path):
    (tmp_path / 'stop.py').write_text(STOP)
    words, out = [*words, '--eval_iters=9'], tmp_path / 'a'  # 5 batches in one process, 4 in the other
    said, _ = torchrun(*words, *WAYS[way], f'--out_dir={out}', script=tmp_path / 'stop.py', code=1)
    assert 'stopped at step 3; go on with: python train.py --init_from=resume' in said and 'done:' not in said
    assert read_last(out)['step'] == 3 and 'batch 0 2 2' not in said and 'batch 0 1 4' in said
    torchrun('--init_from=resume', f'--out_dir={out}')
    torchrun(*words, *WAYS[way], f'--out_dir={tmp_path}/whole')
    assert losses(out) == losses(tmp_path / 'whole')


@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_validation_and_the_run_repeats_it(number, tiny, text_run, tmp_path, monkeypatch):
    fixed, seen = TextSplit.fixed, []

    def signalled(self, *args):
        seen.append(0)
        for batch in fixed(self, *args):
            seen[-1] += 1
            if len(seen) == 2:
                os.kill(os.getpid(), number)
            yield batch

    monkeypatch.setattr(TextSplit, 'fixed', signalled)
    with pytest.raises(SystemExit) as e:
        go(*tiny, *HARD, f'--out_dir={tmp_path}/a')
    assert e.value.code == 128 + number and seen == [2, 1]
    assert read_last(tmp_path / 'a')['step'] == 3
    monkeypatch.undo()
    go('--init_from=resume', f'--out_dir={tmp_path}/a')
    assert losses(tmp_path / 'a') == losses(text_run) and equal(weights(tmp_path / 'a'), weights(text_run))
