"""Device, precision, threads, what a step costs, and compilation."""
import os
import shlex
import shutil
import sys
from types import SimpleNamespace

import pytest
import torch
from helpers import (JPEGS, OF_PICTURES, column, compile_graphs_alone, fails, go, run_here,
                     loud, snapshot, text_network)
from torch._dynamo.utils import counters

import train
from engine import device, distributed, threads as threads_module
from engine.compiled import compile_network
from engine.device import Device, choose_compile, choose_dtype
from engine.mistakes import Mistake, one_line_errors
from model_aot import AoT, AoTConfig
from scoring.flops import train_flops


def here():
    return Device('cpu', 'float32', 'false')


def test_what_is_asked_for_is_what_one_gets():
    found = Device('cpu', 'bfloat16', 'true')
    assert (found.type, found.dtype, found.compiled) == ('cpu', torch.bfloat16, True)
    assert not choose_compile('auto', 'cpu') and not choose_compile('false', 'cuda')
    with found.autocast:
        assert text_network('aot')(torch.zeros(1, 4, dtype=torch.long))[0].dtype == torch.bfloat16


def test_a_part_of_torchruns_variables_starts_no_group(monkeypatch):
    """As batch systems leave them in the environment."""
    monkeypatch.delenv('MASTER_ADDR', raising=False)
    for name, value in (('WORLD_SIZE', '4'), ('RANK', '0')):
        monkeypatch.setenv(name, value)
        assert distributed.world_size() == 1


def test_torchruns_variables_without_a_port_are_one_line(monkeypatch):
    monkeypatch.delenv('MASTER_PORT', raising=False)
    for name, value in (('WORLD_SIZE', '2'), ('RANK', '0'), ('MASTER_ADDR', 'localhost')):
        monkeypatch.setenv(name, value)

    with pytest.raises(Mistake, match='MASTER_PORT.*torchrun'):
        distributed.join('cpu')


@pytest.mark.parametrize('name, value', [('WORLD_SIZE', '2.0'), ('RANK', '')])
def test_a_variable_of_torchrun_that_is_no_number_is_one_line(name, value, tiny, tmp_path,
                                                              monkeypatch, capsys):
    """Also in the only process, and before anything is written."""
    variables = {'WORLD_SIZE': '1', 'RANK': '0', 'MASTER_ADDR': 'localhost', name: value}
    for variable, text in variables.items():
        monkeypatch.setenv(variable, text)

    line = fails(capsys, train.main, *tiny, f'--out_dir={tmp_path}/a')

    assert f'{name}={value}' in line and 'torchrun' in line
    assert not (tmp_path / 'a').exists()


@pytest.mark.skipif(os.name == 'nt', reason='a script is no program there')
@pytest.mark.parametrize('cuda, named', [(None, True), ('13.0', False)])
def test_a_gpu_that_this_pytorch_cannot_use_is_named_with_what_to_install(cuda, named, monkeypatch, tmp_path):
    (tmp_path / 'nvidia-smi').write_text('#!/bin/sh\n')
    (tmp_path / 'nvidia-smi').chmod(0o755)
    monkeypatch.setenv('PATH', str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(torch.version, 'cuda', cuda)
    assert ('pip install' in str(here())) == named
    if not torch.cuda.is_available():
        with pytest.raises(Mistake) as e:
            Device('cuda')
        assert ('pip install' in str(e.value)) == named


# ---- precision

@pytest.mark.parametrize('kind, has, want', [
    ('cuda', (8, 0), 'bfloat16'), ('cuda', (7, 0), 'float16'), ('cuda', (6, 1), 'float32'),
    ('cpu', {'amx_bf16': True}, 'bfloat16'), ('cpu', {'avx512_bf16': True, 'cpu_name': 'AMD EPYC'}, 'bfloat16'),
    ('cpu', {'avx512_bf16': True, 'cpu_name': 'Intel(R) Xeon(R)'}, 'float32'), ('cpu', {}, 'float32')])
def test_hardware_takes_the_precision_that_it_multiplies_fast(kind, has, want, monkeypatch):
    if kind == 'cuda':
        monkeypatch.setattr(torch.cuda, 'get_device_capability', lambda device=None: has)
    else:
        monkeypatch.setattr(torch.cpu, 'get_capabilities', lambda: has)
    assert choose_dtype('auto', kind) == getattr(torch, want)


@pytest.fixture
def two_gpus(monkeypatch):
    """An A100, and behind it a T4. Returns the GPUs that are made the current one, in a list."""
    capabilities = {None: (8, 0), 0: (8, 0), 1: (7, 5)}
    current = []
    monkeypatch.setattr(torch, 'ones', lambda *shape, device: torch.zeros(shape))
    monkeypatch.setattr(device, 'autocast', lambda *_: None)  # there is no CUDA to compute with
    monkeypatch.setattr(torch.cuda, 'set_device', lambda device: current.append(str(device)))
    monkeypatch.setattr(torch.cuda, 'get_device_capability',
                        lambda name: capabilities[torch.device(name).index])
    yield current
    torch.set_float32_matmul_precision('highest')


def as_process_1_of_torchrun(monkeypatch):
    for name in ('RANK', 'LOCAL_RANK'):
        monkeypatch.setenv(name, '1')
    monkeypatch.setenv('WORLD_SIZE', '2')
    monkeypatch.setenv('MASTER_ADDR', 'localhost')


def test_each_process_of_torchrun_has_its_gpu_and_to_choose_it_changes_nothing(two_gpus,
                                                                               monkeypatch):
    as_process_1_of_torchrun(monkeypatch)

    assert device.choose_device('cuda') == 'cuda:1'
    assert two_gpus == []
    assert Device('cuda', compile='false').dtype == torch.float16
    assert two_gpus == ['cuda:1']


@pytest.mark.parametrize('asked', ['CUDA', 'auto'])
def test_processes_that_cannot_know_their_gpus_are_one_line(asked, two_gpus, monkeypatch):
    """On a CPU they need not."""
    monkeypatch.setattr(torch.cuda, 'is_available', lambda: True)
    as_process_1_of_torchrun(monkeypatch)
    monkeypatch.delenv('LOCAL_RANK')

    assert device.choose_device('cpu') == 'cpu'
    with pytest.raises(Mistake, match='LOCAL_RANK.*torchrun'):
        device.choose_device(asked)


def test_a_local_rank_alone_is_not_torchrun(two_gpus, monkeypatch):
    monkeypatch.setenv('LOCAL_RANK', '1')

    assert device.choose_device('cuda') == 'cuda'


def test_an_overflow_in_float16_skips_the_step_of_every_optimizer(tiny, tmp_path, monkeypatch):
    norm = torch.nn.utils.get_total_norm
    monkeypatch.setattr(torch.nn.utils, 'get_total_norm', lambda grads: norm(grads) * torch.inf)  # one gradient's
    go(*tiny, '--optimizer=muon', '--grad_clip=0', '--dtype=float16', '--weight_decay=0', f'--out_dir={tmp_path}/a')
    assert len(set(column(tmp_path / 'a', 'val'))) == 1  # not one weight moved


# ---- what a step costs

class Looks(AoT):
    """A network whose operations depend on a value, so that they cannot be counted."""

    def forward(self, x, y=None):
        out, loss = super().forward(x, y)
        return out, loss * (2 if loss.item() > 9 else 1)


def test_a_network_that_looks_at_values_has_no_count_of_operations():
    config = AoTConfig(n_layer=1, n_head=2, n_embd=8, block_size=4, vocab_size=5)
    assert train_flops(AoT(config)) > 0
    assert train_flops(Looks(config)) == 0


@pytest.mark.parametrize('error', [
    torch.OutOfMemoryError('CUDA out of memory. Tried to allocate 2 GiB'), MemoryError(),
    RuntimeError('[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: not enough memory: you tried to allocate')])
def test_lack_of_memory_gets_advice_and_other_errors_keep_their_traceback(error, capsys, monkeypatch):
    def fail(error):
        raise error
    for program, has_batches in {'train.py': True, 'eval.py': True, 'text.py': False, 'sample.py': False}.items():
        monkeypatch.setattr(sys, 'argv', [f'../{program}'])
        assert ('--batch_size' in fails(capsys, lambda words: fail(error))) == has_batches
    for other in ('CUDA error: an illegal memory access was encountered', 'not in the same memory format'):
        with pytest.raises(RuntimeError, match='memory'), one_line_errors():
            fail(RuntimeError(other))


def test_layers_that_are_computed_twice_keep_little_and_have_the_same_gradients():
    x, kept, found = torch.arange(8).expand(4, 8), [], []
    for recompute in (False, True):
        model = text_network('aot')
        names = list(model.state_dict())
        here().for_training(model, recompute)
        assert list(model.state_dict()) == names
        with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(recompute) or t, lambda t: t):
            model(x, x)[1].backward()
        found.append([p.grad for p in model.parameters()])
    assert sum(kept) < 0.5 * (len(kept) - sum(kept)) and all(map(torch.equal, *found))
    with pytest.raises(Mistake, match='recompute'):
        here().for_training(torch.nn.Linear(2, 2), recompute=True)


# ---- threads

@pytest.mark.parametrize('chosen', [False, True])
def test_one_thread_fewer_while_another_program_takes_a_core_unless_the_user_chose(chosen, monkeypatch, capsys):
    """Steps of 0.3 s; in those from 100 to 599 another program takes the second core."""
    clock, threads, found = SimpleNamespace(wall=0.0, used=0.0), [2], []
    monkeypatch.setattr(threads_module, 'time', SimpleNamespace(perf_counter=lambda: clock.wall,
                                                        process_time=lambda: clock.used))
    monkeypatch.setattr(torch, 'get_num_threads', lambda: threads[-1])
    monkeypatch.setattr(torch, 'set_num_threads', threads.append)
    monkeypatch.setenv('OMP_NUM_THREADS', '2')
    if not chosen:
        monkeypatch.delenv('OMP_NUM_THREADS')
    run = threads_module.Threads('cpu')
    for step in range(1000):
        run.adapt()
        found.append(threads[-1])
        clock.wall += 0.3
        clock.used += 0.3 * (1 if 100 <= step < 600 else 0.97 * threads[-1])
    assert found[:100] == [2] * 100 and found[-100:] == [2] * 100  # it comes back
    assert found[110:600].count(2) < 25 or chosen and set(found) == {2}
    assert capsys.readouterr().out.count('\n') == (not chosen)


# ---- compilation

COMPILER = pytest.mark.skipif(not shutil.which('g++') and not shutil.which('clang++'), reason='no C++ compiler')


def fresh_compiler():
    torch._dynamo.reset()
    counters.clear()


def one_graph():
    return counters['stats']['unique_graphs'] == 1 and not counters['graph_break']


@pytest.mark.slow
@COMPILER
def test_a_compiled_run_compiles_one_graph_once(pictures_data, tmp_path, monkeypatch):
    """Steps, validations and smaller last batches: no second graph, no break in it, and the losses of plain steps.
    The next test makes C++ of a graph."""
    compile_graphs_alone(monkeypatch)
    words = [f'--data_dir={pictures_data}', '--dataset=quads', *OF_PICTURES, '--n_layer=3', '--batch_size=12']
    fresh_compiler()
    with torch._dynamo.config.patch(error_on_recompile=True):
        for compiled in ('false', 'true'):
            go(*words, f'--out_dir={tmp_path}/{compiled}', f'--compile={compiled}')
    assert one_graph()
    for split in ('train', 'val'):
        assert column(tmp_path / 'true', split) == pytest.approx(column(tmp_path / 'false', split), rel=1e-4)


@pytest.mark.slow
@COMPILER
def test_layers_of_one_kind_are_compiled_once():
    model = loud(text_network('aot', n_layer=6))
    x, y = torch.randint(8, (2, 4, 8))      # (4, 8) each
    results = []
    for compiled in (False, True):
        if compiled:
            fresh_compiler()
            compile_network(model, in_one_piece=False)
        model.zero_grad()
        loss = model(x, y)[1]
        loss.backward()
        results.append([loss, *(p.grad for p in model.parameters())])
    assert one_graph()
    torch.testing.assert_close(*results, rtol=1e-3, atol=1e-5)


@pytest.mark.slow
def test_with_a_compiler_that_fails_a_run_is_plain_and_says_so(tiny, tmp_path, monkeypatch, caplog):
    words = [*tiny, '--n_layer=1', '--max_iters=1', '--dtype=float32']
    go(*words, f'--out_dir={tmp_path}/plain')
    compiler = tmp_path / 'compiler'
    compiler.write_text('#!/bin/sh\ntest "$1" = --version && echo "g++ 12.2.0"\n')
    compiler.chmod(0o755)
    monkeypatch.setenv('TORCHINDUCTOR_CACHE_DIR', str(tmp_path / 'cache'))
    fresh_compiler()

    with torch._inductor.config.patch({'cpp.cxx': (None, str(compiler))}):
        go(*words, '--compile=true', f'--out_dir={tmp_path}/asked')

    assert 'CppCompileError' in caplog.text  # PyTorch prints its log on standard error
    assert column(tmp_path / 'plain', 'val') == column(tmp_path / 'asked', 'val')


# ---- what a run prints last

@pytest.mark.slow
@pytest.mark.parametrize('kind', ['text', 'functions', 'pictures', 'crate_mae'])
def test_the_commands_at_the_end_of_a_run_work(kind, words_of, tmp_path, monkeypatch, capsys, curve):
    """Also where the name of the run needs quotes."""
    monkeypatch.chdir(tmp_path)
    go(*words_of(kind), '--out_dir=out/my run')
    said = capsys.readouterr().out.splitlines()
    holds = next(line for line in said if ' holds ' in line)
    commands = said[-2:]
    files = {name for name in snapshot(tmp_path / 'out' / 'my run') if name != '.lock'}
    assert {*holds.rpartition(' holds ')[2].split(', ')} == files
    (tmp_path / 'picture.jpg').write_bytes(JPEGS['train'][0][2])
    for command in commands:
        run_here(*shlex.split(command.replace('PICTURE', 'picture.jpg').partition('python ')[2]))
