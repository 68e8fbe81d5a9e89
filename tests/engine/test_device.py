"""Device, precision, shares of a batch between processes, and what a step costs."""
import shutil
from types import SimpleNamespace

import pytest
import torch
from helpers import column, fails, go, run, text_network, weights
from torch._dynamo.utils import counters

import train
from engine import device
from engine.device import Device, choose_compile, choose_device, choose_dtype
from engine.settings import one_line_errors
from model_aot import AoT, AoTConfig
from model_crate import CRATE, CRATEConfig
from model_dino import DINO, DINOConfig
from scoring.watch import matmul_flops, train_flops
from tasks import Task
from tasks.augment import AugmentConfig


def test_what_is_asked_for_is_what_one_gets():
    assert choose_device('cpu') == 'cpu' and choose_dtype('float32', 'cpu') == torch.float32
    assert choose_dtype('auto', 'cpu') in (torch.float32, torch.bfloat16)
    assert choose_compile('true', 'cpu') and not choose_compile('auto', 'cpu') and not choose_compile('false', 'cuda')
    here = Device('cpu', 'bfloat16', 'false')
    assert (here.kind, here.dtype, here.compiles, here.main, here.world) == ('cpu', torch.bfloat16, False, True, 1)
    with here.autocast:
        assert text_network('aot')(torch.zeros(1, 4, dtype=torch.long))[0].dtype == torch.bfloat16


def test_shares_keep_the_global_batch():
    for world, passes, rows, want in ((1, 5, 3, (5, 3)), (4, 8, 3, (2, 3)), (4, 3, 8, (3, 2))):
        c = SimpleNamespace(gradient_accumulation_steps=passes, batch_size=rows)
        here = SimpleNamespace(world=world, rank=0)
        task = Task(c, here, None, None)
        assert (task.n_passes, task.rows) == want and want[0] * want[1] * world == passes * rows == task.batch
    with pytest.raises(ValueError, match='multiple of 4'):
        Task(SimpleNamespace(gradient_accumulation_steps=3, batch_size=5), here, None, None)


@pytest.mark.parametrize('most', [1e-3, 1e9, 0])
def test_gradients_are_clipped_to_the_norm_asked_for(most, tiny, tmp_path, monkeypatch):
    """The step of plain gradient descent at rate 1 is as long as the clipped gradient."""
    def build(model, *rest):
        return [torch.optim.SGD([{'params': list(model.parameters()), 'base_lr': 1.0, 'lr': 1.0}])]
    monkeypatch.setattr(train.optim, 'build', build)
    go(*tiny, f'--grad_clip={most}', '--max_iters=1', '--warmup_iters=0', '--dtype=float32', '--keep_checkpoints=true',
       f'--out_dir={tmp_path}/a')
    before, after = (weights(tmp_path / 'a', f'step_{i}') for i in (0, 1))
    moved = torch.stack([(after[k] - before[k]).norm() for k in before]).norm().item()
    norm = column(tmp_path / 'a', 'train', 'grad_norm')[0]
    assert moved == pytest.approx(min(most or norm, norm), rel=2e-3) and norm > 1e-3


def test_a_part_of_torchruns_variables_starts_no_group(monkeypatch):
    """As batch systems leave them in the environment."""
    monkeypatch.setenv('WORLD_SIZE', '4')
    assert Device('cpu', 'float32', 'false').world == 1
    monkeypatch.setenv('RANK', '0'), monkeypatch.delenv('MASTER_ADDR', raising=False)
    assert Device('cpu', 'float32', 'false').world == 1


@pytest.mark.parametrize('dtype', ['float32', 'bfloat16', 'float16'])
def test_every_precision_trains(dtype, tiny, tmp_path):
    go(*tiny, '--optimizer=muon', '--grad_clip=0', f'--dtype={dtype}', '--max_iters=40', '--eval_interval=20',
       f'--out_dir={tmp_path}/a')
    val = column(tmp_path / 'a', 'val')
    assert val[-1] < val[0] - 0.5


def test_an_overflow_in_float16_skips_the_step_of_every_optimizer(tiny, tmp_path, monkeypatch):
    norm = torch.nn.utils.get_total_norm
    monkeypatch.setattr(torch.nn.utils, 'get_total_norm', lambda grads: norm(grads) * torch.inf)  # one gradient's
    go(*tiny, '--optimizer=muon', '--grad_clip=0', '--dtype=float16', '--weight_decay=0', f'--out_dir={tmp_path}/a')
    assert len(set(column(tmp_path / 'a', 'val'))) == 1  # not one weight moved


def test_work_is_counted_for_pictures_too():
    pictures = dict(image_size=(8, 12), patch_size=(4, 2), num_classes=5, n_layer=2, n_head=2, n_embd=16)
    flops = train_flops(AoT(AoTConfig(**pictures)))
    matrices = 6 * (13 * 2 * 2 * 16 * 16 + 12 * 24 * 16 + 5 * 16)  # 13 tokens; 12 patches; one classified token
    attention = 2 * 12 * 13 * 13 * 16
    assert 0.85 * (matrices + attention) < flops < 1.3 * (matrices + attention)


def test_work_on_small_crops_counts():
    """Each costs the student as much as any picture of its size, and the teacher nothing."""
    model = DINO(DINOConfig(n_layer=2, n_head=2, n_embd=16, image_size=16, patch_size=4, n_out=32, hidden=24))
    none, two, four, eight = (train_flops(model, AugmentConfig(local_crops=n, local_size=side))
                              for n, side in ((0, 16), (2, 16), (4, 16), (8, 8)))
    assert four - two == two - none > 2 * none / 3  # of two crops the student's three passes, of four in all
    assert two < eight < four  # 5 tokens each, not 17


def test_work_is_not_counted_where_a_network_looks_at_values():
    class Looks(AoT):
        def forward(self, x, y=None):
            out, loss = super().forward(x, y)
            return out, loss * (2 if loss.item() > 9 else 1)
    assert train_flops(Looks(AoTConfig(n_layer=1, n_head=2, n_embd=8, block_size=4, vocab_size=5))) == 0


@pytest.mark.parametrize('error', [
    torch.OutOfMemoryError('CUDA out of memory. Tried to allocate 2 GiB'), MemoryError(),
    RuntimeError('MPS backend out of memory (MPS allocated: 18 GB)'), RuntimeError('CUDA error: out of memory'),
    RuntimeError('[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: not enough memory: you tried to allocate 8 '
                 'bytes.')])
def test_every_lack_of_memory_gets_advice(error, capsys):
    def fail(*argv):
        raise error
    said = fails(capsys, fail)
    assert 'memory' in said and '--batch_size' in said and '--recompute=true' in said


@pytest.mark.parametrize('error', [
    RuntimeError('CUDA error: an illegal memory access was encountered'),
    RuntimeError('Expected all tensors to be in the same memory format')])
def test_other_errors_about_memory_keep_their_traceback(error):
    with pytest.raises(RuntimeError, match='memory'), one_line_errors():
        raise error


# ---- GPUs that are not here


@pytest.mark.parametrize('native, capability, want', [
    (True, (8, 0), torch.bfloat16), (False, (7, 5), torch.float16), (False, (7, 0), torch.float16),
    (False, (6, 1), torch.float32)])
def test_a_gpu_takes_the_precision_that_it_multiplies_fast(native, capability, want, monkeypatch):
    monkeypatch.setattr(torch.cuda, 'is_bf16_supported', lambda including_emulation=True: native)
    monkeypatch.setattr(torch.cuda, 'get_device_capability', lambda device=None: capability)
    assert choose_dtype('auto', 'cuda') == want


@pytest.mark.parametrize('has, want', [
    ({'amx_bf16': True}, torch.bfloat16), ({'avx512_bf16': True, 'cpu_name': 'AMD EPYC'}, torch.bfloat16),
    ({'avx512_bf16': True, 'cpu_name': 'Intel(R) Xeon(R)'}, torch.float32),
    ({'avx512_fp16': True}, torch.float32), ({}, torch.float32)])
def test_a_cpu_takes_bfloat16_if_it_multiplies_it_faster(has, want, monkeypatch):
    monkeypatch.setattr(torch.cpu, 'get_capabilities', lambda: has)
    assert choose_dtype('auto', 'cpu') == want


def test_measuring_the_speed_draws_no_random_numbers():
    before = torch.get_rng_state()
    assert matmul_flops('cpu', torch.float32, 64, 0) > 1e6
    assert torch.equal(torch.get_rng_state(), before)


def test_float32_is_multiplied_fast_on_gpus_alone(monkeypatch):
    try:
        Device('cpu', 'float32', 'false')
        assert torch.get_float32_matmul_precision() == 'highest'
        monkeypatch.setattr(device, 'choose_device', lambda device: device)
        monkeypatch.setattr(device, 'choose_dtype', lambda dtype, device: torch.float32)
        Device('cuda', 'float32', 'false')
        assert torch.backends.cuda.matmul.fp32_precision == 'tf32'  # what inductor looks at
        assert torch.get_float32_matmul_precision() == 'high'       # and what it looks at elsewhere
    finally:
        torch.set_float32_matmul_precision('highest')


# ---- settings that do not go together


def test_sharing_needs_several_processes(tiny, tmp_path, capsys):
    said = fails(capsys, train.main, *tiny, '--fsdp=true', f'--out_dir={tmp_path}/a')
    assert 'torchrun' in said and '--fsdp=false' in said and not (tmp_path / 'a').exists()


def test_only_layers_can_be_computed_twice():
    with pytest.raises(ValueError, match='recompute=true is for networks with `layers`, and Linear has none'):
        Device('cpu', 'float32', 'false').wrap(torch.nn.Linear(2, 2), recompute=True)


def test_layers_that_are_computed_twice_keep_little():
    """What a forward pass keeps for the backward pass, without the network's weights."""
    kept = {}
    for recompute in (False, True):
        here, model = Device('cpu', 'float32', 'false'), text_network('aot')
        names = list(model.state_dict())
        here.wrap(model, recompute)
        assert list(model.state_dict()) == names
        weights, sizes = {p.data_ptr() for p in model.parameters()}, {}

        def keep(t):
            if t.data_ptr() not in weights:
                sizes[t.data_ptr()] = t.numel()
            return t
        x = torch.zeros(4, 8, dtype=torch.long)
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
            model(x, x)
        kept[recompute] = sum(sizes.values())
    assert kept[True] < 0.8 * kept[False]


# ---- threads

@pytest.fixture
def steps(monkeypatch, capsys):
    """steps(n, busy) makes n steps of 0.3 s, of which another program takes the second core in those that are busy;
    returns how many threads each had."""
    monkeypatch.delenv('OMP_NUM_THREADS', raising=False)
    clock, before = SimpleNamespace(wall=0.0, used=0.0), torch.get_num_threads()
    monkeypatch.setattr(device, 'time', SimpleNamespace(perf_counter=lambda: clock.wall,
                                                        process_time=lambda: clock.used))
    torch.set_num_threads(2)

    def steps(n, busy=()):
        here, found = Device('cpu', 'float32', 'false'), []
        for step in range(n):
            here.adapt_threads()
            found.append(torch.get_num_threads())
            clock.wall += 0.3
            clock.used += 0.3 * (1 if step in busy else 0.97 * found[-1])
        return found
    yield steps
    torch.set_num_threads(before)


def test_one_thread_fewer_while_another_program_takes_a_core(steps, capsys):
    found = steps(1000, busy=range(100, 600))
    assert found[:100] == [2] * 100 and found[-100:] == [2] * 100  # it comes back
    assert found[110:600].count(2) < 25 and capsys.readouterr().out.count('\n') == 1


def test_threads_that_the_user_chose_stay(steps, monkeypatch):
    monkeypatch.setenv('OMP_NUM_THREADS', '2')
    assert steps(50, busy=range(50)) == [2] * 50


# ---- compilation

COMPILER = pytest.mark.skipif(not shutil.which('g++') and not shutil.which('clang++'), reason='no C++ compiler')


@pytest.mark.slow
@COMPILER
def test_a_compiled_run_compiles_one_graph_once(pictures_data, tmp_path):
    """Steps, validations and smaller last batches: no second graph, no break in it, and the losses of plain steps."""
    words = ['--data_dir=' + str(pictures_data), '--dataset=quads', '--model=crate', '--n_layer=3', '--n_head=2',
             '--n_embd=32', '--patch_size=4', '--max_iters=12', '--eval_interval=4', '--batch_size=12',
             '--dtype=float32', '--log_interval=1']
    torch._dynamo.reset()
    counters.clear()
    plain, compiled = tmp_path / 'plain', tmp_path / 'compiled'
    go(*words, f'--out_dir={plain}', '--compile=false')
    with torch._dynamo.config.patch(error_on_recompile=True):
        go(*words, f'--out_dir={compiled}', '--compile=true')
    assert counters['stats']['unique_graphs'] == 1 and not counters['graph_break']
    assert column(compiled, 'train') == pytest.approx(column(plain, 'train'), rel=1e-4)
    assert column(compiled, 'val') == pytest.approx(column(plain, 'val'), rel=1e-4)


@pytest.mark.slow
@COMPILER
def test_layers_of_one_kind_are_compiled_once():
    torch.manual_seed(0)
    model = CRATE(CRATEConfig(image_size=16, patch_size=4, num_classes=5, n_layer=6, n_head=2, n_embd=32))
    x, y = torch.randn(4, 3, 16, 16), torch.randint(5, (4,))
    want = model(x, y)[1]
    torch._dynamo.reset()
    counters.clear()
    device.compile_network(model, whole=False)
    loss = model(x, y)[1]
    loss.backward()
    assert counters['stats']['unique_graphs'] == 1 and not counters['graph_break']
    assert torch.allclose(loss, want, atol=1e-5)


@pytest.mark.slow
def test_without_a_compiler_a_run_is_plain_and_says_so(tiny, tmp_path):
    go(*tiny, '--dtype=float32', f'--out_dir={tmp_path}/plain')
    done = run('train.py', *tiny, '--dtype=float32', '--compile=true', f'--out_dir={tmp_path}/asked', CXX='no-such-one',
               TORCHINDUCTOR_CACHE_DIR=str(tmp_path / 'cache'))
    assert done.returncode == 0 and 'No working C++ compiler' in done.stderr
    assert column(tmp_path / 'plain', 'val') == column(tmp_path / 'asked', 'val')
