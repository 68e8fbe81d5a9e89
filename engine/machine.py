"""What this machine is and how a run uses it: device, precision, compilation, speed, data-parallel
processes."""
import gc
import math
import os
import platform
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.flop_counter import FlopCounterMode


def choose_device(device):
    """The device that is asked for, or the best one here. Under torchrun, this process's own
    GPU."""
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
    """The precision of matrix products: what is asked for, or bfloat16 where the hardware
    multiplies it natively."""
    if dtype not in ('auto', 'float32', 'bfloat16', 'float16'):
        raise ValueError(f"dtype='{dtype}' is unknown; choose auto, float32, bfloat16 or float16")
    if dtype == 'auto':
        kind, cpu = torch.device(device).type, torch.cpu.get_capabilities()
        native = torch.cuda.is_bf16_supported(including_emulation=False) if kind == 'cuda' else \
            kind == 'cpu' and (cpu.get('amx_bf16') or cpu.get('avx512_bf16'))
        dtype = 'bfloat16' if native else 'float32'
    return getattr(torch, dtype)


def choose_compile(compile, device):
    """Whether to compile: as asked, or on CUDA under Linux."""
    asked = compile.lower()
    if asked not in ('auto', 'true', 'false'):
        raise ValueError(f"compile='{compile}' is unknown; choose auto, true or false")
    on_cuda = torch.device(device).type == 'cuda' and platform.system() == 'Linux'
    return asked == 'true' or asked == 'auto' and on_cuda


def autocast(device, dtype):
    """The context in which a network multiplies in dtype on a device."""
    return torch.autocast(torch.device(device).type, dtype, enabled=dtype != torch.float32)


class Machine:
    """The device, precision and compilation of a training run, and the data-parallel group that
    torchrun makes, or one process alone."""

    def __init__(self, device, dtype, compile):
        self.world, self.rank = int(os.environ.get('WORLD_SIZE', 1)), int(os.environ.get('RANK', 0))
        self.grouped, self.main = 'RANK' in os.environ, self.rank == 0
        self.device = choose_device(device)
        self.kind = torch.device(self.device).type
        self.dtype, self.compiled = choose_dtype(dtype, self.device), choose_compile(compile, self.device)
        self.autocast = autocast(self.device, self.dtype)
        self.scaler = torch.amp.GradScaler(self.kind, enabled=self.dtype == torch.float16)
        if self.grouped:  # gloo beside NCCL: the processes can agree on a signal without waiting for the GPU
            dist.init_process_group('cpu:gloo,cuda:nccl' if self.kind == 'cuda' else 'gloo')

    # ---- between processes

    def share(self, passes, rows):
        """(forward passes, rows in each) of this process, of a step of `passes` x `rows` over all
        processes."""
        if passes % self.world == 0:
            return passes // self.world, rows
        if rows % self.world == 0:
            return passes, rows // self.world
        raise ValueError(f'{self.world} processes cannot share gradient_accumulation_steps={passes} of '
                         f'batch_size={rows}; make one of them a multiple of {self.world}')

    def say(self, *words):
        if self.main:
            print(*words, flush=True)

    def sum(self, tensor):
        if self.grouped:
            dist.all_reduce(tensor)
        return tensor

    def total(self, numbers):
        """A dict of numbers, added up over all processes, of which some may have none."""
        parts = [numbers]
        if self.grouped:
            parts = [None] * self.world
            dist.all_gather_object(parts, numbers)
        return {k: sum(part.get(k, 0.0) for part in parts) for k in dict.fromkeys(k for part in parts for k in part)}

    def wait(self):
        if self.grouped:
            dist.barrier()

    def first(self, function, *args):
        """function(*args), in the main process before the others."""
        if self.main:
            function(*args)
        self.wait()
        return function(*args)

    # ---- what a step does

    def send(self, *tensors):
        """Tensors on the device. CUDA copies them while the program goes on."""
        if self.kind == 'cuda':
            tensors = [t.pin_memory() for t in tensors]
        return tuple(t.to(self.device, non_blocking=True) for t in tensors)

    def wrap(self, model):
        """(the network compiled, if that is on; the same with gradients averaged between the
        processes)."""
        forward = torch.compile(model) if self.compiled else model
        if not self.grouped:
            return forward, forward
        return forward, DistributedDataParallel(forward, device_ids=[self.device] if self.kind == 'cuda' else None)

    def forward(self, network, last):
        """The context of a forward pass. Gradients travel between processes in the last pass of a
        step alone."""
        if self.grouped:
            network.require_backward_grad_sync = last
        return self.autocast

    def backward(self, loss):
        self.scaler.scale(loss).backward()

    def clip(self, model, optimizers, most):
        """Clip the gradient to norm `most`, 0 for no limit. Returns its norm before that."""
        for optimizer in optimizers:
            self.scaler.unscale_(optimizer)
        if most:
            return torch.nn.utils.clip_grad_norm_(model.parameters(), most)
        return torch.nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])

    def step(self, optimizers, norm):
        """One step of all optimizers; none if float16 overflowed."""
        for optimizer in optimizers:
            if not self.scaler.is_enabled() or norm.isfinite():
                self.scaler.step(optimizer)
            optimizer.zero_grad(set_to_none=True)
        self.scaler.update()

    # ---- speed

    def matmul_flops(self):
        """Operations per second of one large matrix product, here and in all processes: the measure
        of utilization."""
        n = 8192 if self.kind == 'cuda' else 1024
        a, best, begin = torch.randn(n, n, device=self.device, dtype=self.dtype), math.inf, time.perf_counter()
        while time.perf_counter() - begin < 0.1:  # at least once, however slow the type is here
            start = time.perf_counter()
            (a @ a)[0, 0].item()
            best = min(best, time.perf_counter() - start)
        return 2 * n ** 3 / best * self.world


def train_flops(model):
    """Operations of a forward and a backward pass on one sequence, picture or prompt, as PyTorch
    counts them. Nothing is computed: the passes run on the meta device."""
    c = model.config
    with torch.device('meta'):
        twin = type(model)(c)
        if c.task in ('image', 'masked_image'):
            x = torch.empty(1, getattr(c, 'channels', 3), *c.image_size)
            y = torch.empty(1, dtype=torch.long) if c.task == 'image' else None
        elif c.task == 'icl':
            x, y = torch.empty(1, c.block_size // 2, c.n_dims), torch.empty(1, c.block_size // 2)
        else:
            x = y = torch.empty(1, c.block_size, dtype=torch.long)
        with FlopCounterMode(display=False) as counter:
            twin(x, y)[1].backward()
    return counter.get_total_flops()


def leave():
    """End this process's part in the group, if there is one. Call it when the network is gone:
    DistributedDataParallel holds the group, in a cycle of references, and a process whose group
    outlives the interpreter can abort."""
    if dist.is_initialized():
        dist.barrier()  # a process that ends while another still talks to it can abort too
        gc.collect()
        dist.destroy_process_group()
