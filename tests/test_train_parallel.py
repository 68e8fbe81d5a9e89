"""A run is the same however it is computed: in more passes, by two processes, each with its own copy of the network
(DDP) or sharing one (FSDP2), with layers that are computed twice, and on another device."""
import json
import shutil

import pytest
import torch
from fake_mps import FakeMPS
from helpers import HARD, KINDS, OF_AUTOENCODERS, column, equal, go, losses, snapshot, torchrun, weights
from torch._dynamo.utils import counters

from engine.checkpoint import read_log
from engine.trained import read_last

WAYS = {'one': None, 'ddp': []}


SCRIPT = '''
import json, os, signal, sys, torch, train
import torch.distributed as dist
from engine import distributed
from tasks.text import TextSplit
begin, me, seen = dist.init_process_group, int(os.environ['RANK']), []
dist.init_process_group = lambda backend: dist.is_initialized() or begin(backend)  # one group for all runs
{}
if __name__ == '__main__':
    codes = [train.main(words) for words in json.loads(sys.argv[1])]
    distributed.leave()
    sys.exit(codes[-1])
'''


@pytest.fixture(scope='module')
def train_by(tmp_path_factory):
    """train_by(way, *runs): train each of these words, in one process, or in two that start once for all and run these
    lines of Python first. Returns what the two printed."""
    script = tmp_path_factory.mktemp('script') / 'all.py'

    def train_by(way, *runs, first='', code=0):
        if WAYS[way] is None:
            return [go(*words) for words in runs]
        script.write_text(SCRIPT.format(first))
        return torchrun(json.dumps([[*words, *WAYS[way]] for words in runs]), script=script, code=code)[0]
    return train_by


def close(a, b):
    """Fails unless the logs of two runs have the same rows, and numbers that differ by rounding alone."""
    for split in ('train', 'val'):
        assert column(a, split) == pytest.approx(column(b, split), abs=1e-4)  # losses
    for mine, other in zip(read_log(a), read_log(b), strict=True):
        mine, other = ({k: v for k, v in row.items() if k != 'seconds'} for row in (mine, other))
        assert mine.pop('split') == other.pop('split') and mine == pytest.approx(other, rel=2e-3, abs=2e-4)


@pytest.fixture
def words(tiny):
    return [*tiny, '--dtype=float32', '--optimizer=adamw', '--gradient_accumulation_steps=4', '--batch_size=2',
            '--eval_iters=5']


def plain(words):
    """Without dropout, which each process draws for itself, and Muon, whose bfloat16 magnifies rounding."""
    return [word for word in words if 'dropout' not in word] + ['--optimizer=adamw', '--dtype=float32']


@pytest.mark.parametrize('kind', ['text', 'pictures', *OF_AUTOENCODERS, 'dino'])
def test_passes_of_a_step_are_one_batch(kind, words_of, quick, tmp_path):
    """Of the same rows, pictures and masks."""
    for rows, passes in (8, 1), (2, 4):
        go(*plain(words_of(kind)), f'--batch_size={rows}', f'--gradient_accumulation_steps={passes}',
           f'--out_dir={tmp_path}/{passes}')
    for name in ('loss', 'grad_norm'):
        one, four = (column(tmp_path / out, 'train', name) for out in '14')
        assert one == pytest.approx(four, rel=1e-3)


def test_layers_computed_twice_give_the_same_run(text_run, tiny, tmp_path):
    go(*tiny, *HARD, '--recompute=true', f'--out_dir={tmp_path}/a')  # with dropout
    assert losses(tmp_path / 'a') == losses(text_run) and equal(weights(tmp_path / 'a'), weights(text_run))


# ---- on another device


@pytest.mark.slow
@pytest.mark.parametrize('kind', [*KINDS, 'pack'])
def test_a_run_on_another_device_is_the_run_on_the_cpu(kind, words_of, tmp_path, capsys):
    """Every tensor is made there, or sent there. (There embedding and output map are two tensors, so gradients differ
    a little.)"""
    words = [*plain(words_of('pictures' if kind == 'pack' else kind)), '--learning_rate=1e-3']
    words += ['--dataset=pack', '--image_size=8', '--workers=0', '--randaugment_n=3'] if kind == 'pack' else []
    words += ['--telemetry=true', '--ema=0.9'] if 'dino' not in kind else []
    go(*words, f'--out_dir={tmp_path}/cpu')
    with FakeMPS():
        go(*words, '--device=mps', f'--out_dir={tmp_path}/mps')
    assert '\non mps x 1' in capsys.readouterr().out
    for split in ('train', 'val'):
        assert column(tmp_path / 'mps', split) == pytest.approx(column(tmp_path / 'cpu', split), rel=2e-3)


# ---- in two processes


OF_TWO = ['--eval_iters=3', '--gradient_accumulation_steps=4', '--batch_size=2', '--ema=0.9', '--telemetry=true']
RUNS = [(kind, OF_TWO + more) for kind, more in (
    ('text', []), ('text', ['--optimizer=lion']), ('text', ['--optimizer=muon', '--muon_lr=0.002', '--max_iters=4']),
    ('tost', []), ('functions', ['--eval_iters=1']),  # of one validation batch the second process has none
    ('pictures', []), ('crate_mae', []), ('vit_mae', []))]
RUNS += [('dino', ['--probe_interval=3']), ('simdino', ['--grad_clip=0']),
         ('simdino', ['--gradient_accumulation_steps=2'])]
BY_TWO = [(i, way) for i, (kind, _) in enumerate(RUNS) for way in ('ddp',)]


@pytest.fixture(scope='module')
def trained(train_by, words_of, tmp_path_factory):
    """A folder with all these runs: WAY/NUMBER."""
    place = tmp_path_factory.mktemp('trained')
    for way in WAYS:
        train_by(way, *([*plain(words_of(kind)), *more, f'--out_dir={place}/{way}/{i}']
                        for i, (kind, more) in enumerate(RUNS) if way == 'one' or (i, way) in BY_TWO))
    return place


@pytest.mark.slow
@pytest.mark.parametrize('i, way', BY_TWO)
def test_two_processes_equal_one(i, way, trained):
    """Of DINO, the centre and the coding rate, and its gradient, are those of all pictures of a pass; so are the
    features that are scored."""
    one, two = trained / 'one' / str(i), trained / way / str(i)
    close(one, two)
    other = weights(two)
    assert all(torch.allclose(v, other[k], atol=1e-4) for k, v in weights(one).items() if 'teacher' in k)


@pytest.mark.slow
def test_what_two_processes_cannot_do_is_refused(words_of, tmp_path):
    for word, named in (('--batch_size=9', 'batch_size=9'),):
        said = torchrun(*words_of('dino'), word, f'--out_dir={tmp_path}/none', code=1)[1]
        assert named in said and 'Traceback' not in said.split('error: ')[0] and not (tmp_path / 'none').exists()


# ---- checkpoints and signals of several processes


@pytest.mark.slow
def test_what_one_way_writes_every_way_goes_on_with(train_by, words, tmp_path):
    words = [*words, '--ema=0.9', '--max_iters=8', '--eval_interval=4', '--lr_decay_iters=8']
    whole = tmp_path / 'whole'
    go(*words, f'--out_dir={whole}')
    for writer in WAYS:
        first = tmp_path / writer
        train_by(writer, [*words, '--max_iters=4', '--checkpoint_minutes=1e-9', f'--out_dir={first}'])
        written = read_last(first)
        assert written.keys() == read_last(whole).keys() and written['step'] == 4
        tensors = written['weights'], *(kept for o in written['optimizers'] for kept in o['state'].values())
        assert all(type(v) is torch.Tensor for part in tensors for v in part.values())
        assert equal(weights(first, 'best'), written['average'])
        assert (first / 'last.pt').stat().st_size < 1.05 * (whole / 'last.pt').stat().st_size  # tied weights once
    for reader in WAYS:
        outs = [shutil.copytree(tmp_path / writer, tmp_path / f'{writer} {reader}') for writer in WAYS]
        train_by(reader, *(['--init_from=resume', f'--out_dir={out}', '--max_iters=8'] for out in outs))
        for out in outs:
            close(out, whole)


LEAVE = '''
import weakref
leave = distributed.leave
def checked():
    group = weakref.ref(dist.group.WORLD)
    leave()
    assert not group()  # threads of a group can abort an interpreter that ends before them
distributed.leave = checked
'''


@pytest.mark.slow
def test_evaluation_in_two_processes_ends_well(text_run, train_by):
    before = snapshot(text_run)
    said = train_by('ddp', ['--init_from=resume', f'--out_dir={text_run}', '--eval_only=true'], first=LEAVE)
    assert said.count('validation  loss') == 1 and snapshot(text_run) == before


@pytest.mark.slow
def test_compiled_layers_may_be_computed_twice_shared_and_looked_into(train_by, words, tmp_path):
    words = [*words, '--compile=true', '--telemetry=true', '--n_layer=3', '--recompute=true']
    torch._dynamo.reset()  # what other tests have compiled would be used again
    counters['stats'].clear()
    go(*words, f'--out_dir={tmp_path}/one')
    assert 0 < counters['stats']['unique_graphs'] < 6  # of three layers, training and validating
    for way in ('ddp',):
        train_by(way, [*words, f'--out_dir={tmp_path}/{way}'])
        close(tmp_path / 'one', tmp_path / way)


STOP = '''
fixed = TextSplit.fixed
def signalled(*args):
    seen.append(0)
    for i, batch in enumerate(fixed(*args)):
        if me == 1 and len(seen) == 2 and i == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        print('batch', me, len(seen), i, flush=True)
        yield batch
TextSplit.fixed = signalled
'''


@pytest.mark.slow
@pytest.mark.parametrize('way', ['ddp'])
def test_a_signal_to_one_process_stops_all(way, train_by, words, tmp_path):
    words, out = [*words, '--eval_iters=9'], tmp_path / 'a'  # 5 batches in one process, 4 in the other
    said = train_by(way, [*words, f'--out_dir={out}'], first=STOP, code=1)
    assert 'stopped at step 3; go on with: python train.py --init_from=resume' in said and 'done:' not in said
    assert read_last(out)['step'] == 3 and 'batch 1 2 1' in said and 'batch 1 2 2' not in said  # its validation ends
    train_by(way, ['--init_from=resume', f'--out_dir={out}'], [*words, f'--out_dir={tmp_path}/whole'])
    assert losses(out) == losses(tmp_path / 'whole')
