"""What this machine is and how a run uses it: device, precision, compilation, speed, data-parallel processes."""
import contextlib
import gc
import math
import os
import platform
import signal
import time

import torch
import torch.distributed as dist
from torch.utils.flop_counter import FlopCounterMode


def choose_device(device):
    """The device to use: the one asked for, or the best that the machine has; under torchrun, this process's GPU."""
    if device == 'auto':
        device = 'cuda' if torch.cuda.is_available() else 'mps' if torch.backends.mps.is_available() else 'cpu'
    try:
        if device == 'cuda' and 'LOCAL_RANK' in os.environ:
            device = f'cuda:{os.environ["LOCAL_RANK"]}'
            torch.cuda.set_device(device)
        if torch.ones(1, device=device).item() != 1:
            raise RuntimeError('it does not compute')
    except (RuntimeError, AssertionError, ImportError, NotImplementedError) as e:
        raise ValueError(f'device={device} is not usable here ({str(e).splitlines()[0]}); '
                         'choose another, or --device=auto') from None
    return device


def choose_dtype(dtype, device):
    """The type to multiply in: the one asked for, or bfloat16 where the hardware does that natively."""
    if dtype not in ('auto', 'float32', 'bfloat16', 'float16'):
        raise ValueError(f"dtype='{dtype}' is unknown; choose auto, float32, bfloat16 or float16")
    if dtype == 'auto':
        kind, cpu = torch.device(device).type, torch.cpu.get_capabilities()
        native = torch.cuda.is_bf16_supported(including_emulation=False) if kind == 'cuda' else \
            kind == 'cpu' and (cpu.get('amx_bf16') or cpu.get('avx512_bf16'))
        dtype = 'bfloat16' if native else 'float32'
    return getattr(torch, dtype)


def autocast(device, dtype):
    """The context in which a model multiplies in dtype on a device."""
    return torch.autocast(torch.device(device).type, dtype, enabled=dtype != torch.float32)


def choose_compile(compile, device):
    """Whether to compile: as asked, or on CUDA under Linux."""
    asked = compile.lower()
    if asked not in ('auto', 'true', 'false'):
        raise ValueError(f"compile='{compile}' is unknown; choose auto, true or false")
    on_cuda = torch.device(device).type == 'cuda' and platform.system() == 'Linux'
    return asked == 'true' or asked == 'auto' and on_cuda


def matmul_flops(device, dtype):
    """Operations a second that one large matrix product reaches here: what utilization is measured against."""
    n = 8192 if torch.device(device).type == 'cuda' else 1024
    a, best, begin = torch.randn(n, n, device=device, dtype=dtype), math.inf, time.perf_counter()
    while time.perf_counter() - begin < 0.1:  # at least once, however slow the type is here
        start = time.perf_counter()
        (a @ a)[0, 0].item()
        best = min(best, time.perf_counter() - start)
    return 2 * n ** 3 / best


def train_flops(model):
    """Operations of a forward and a backward pass on one sequence, picture or prompt, as PyTorch counts them. Nothing is
    computed: the passes run on the meta device."""
    c = model.config
    with torch.device('meta'):
        twin = type(model)(c)
        if getattr(c, 'image_size', 0):
            x, y = torch.empty(1, 3, *c.image_size), None if hasattr(c, 'mask_ratio') else torch.empty(1, dtype=torch.long)
        elif getattr(c, 'n_dims', 0):
            x, y = torch.empty(1, c.block_size // 2, c.n_dims), torch.empty(1, c.block_size // 2)
        else:
            x = y = torch.empty(1, c.block_size, dtype=torch.long)
        with FlopCounterMode(display=False) as counter:
            twin(x, y)[1].backward()
    return counter.get_total_flops()


@contextlib.contextmanager
def noted_signals():
    """A list to which Ctrl-C and SIGTERM are noted, so that a loop can end in order. A second Ctrl-C ends it at once."""
    noted = []

    def note(number, frame):
        noted.append(number)
        signal.signal(signal.SIGINT, signal.default_int_handler)
    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield noted
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Processes:
    """The data-parallel group that torchrun makes, or one process alone."""

    def __init__(self):
        self.world, self.rank = int(os.environ.get('WORLD_SIZE', 1)), int(os.environ.get('RANK', 0))
        self.grouped, self.main = 'RANK' in os.environ, self.rank == 0

    def join(self, device):
        if self.grouped:  # gloo beside NCCL lets the processes agree on a signal without waiting for the GPU
            dist.init_process_group('cpu:gloo,cuda:nccl' if torch.device(device).type == 'cuda' else 'gloo')

    def sum(self, tensor):
        if self.grouped:
            dist.all_reduce(tensor)
        return tensor

    def wait(self):
        if self.grouped:
            dist.barrier()

    def share(self, c):
        """(forward passes, sequences in each) of this process, so that the global batch stays what c says."""
        passes, rows = c.gradient_accumulation_steps, c.batch_size
        if passes % self.world == 0:
            return passes // self.world, rows
        if rows % self.world == 0:
            return passes, rows // self.world
        raise ValueError(f'{self.world} processes cannot share gradient_accumulation_steps={passes} of batch_size={rows}; '
                         f'make one of them a multiple of {self.world}')


def leave():
    """End this process's part in the group, if there is one. Call it when the model is gone: DistributedDataParallel holds
    the group, in a cycle of references, and a process whose group outlives the interpreter can abort."""
    if dist.is_initialized():
        dist.barrier()  # so can one that goes while another still talks to it
        gc.collect()
        dist.destroy_process_group()
