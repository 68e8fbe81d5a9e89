"""What this machine is and how a run uses it: device, precision, compilation, speed, and the
processes that share the work."""
import contextlib
import gc
import os
import platform
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from engine import compiling
from engine.settings import Mistake


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
        raise Mistake(f'device={device} is not usable here ({str(e).splitlines()[0]}); '
                      'choose another, or --device=auto') from None
    return device


def choose_dtype(dtype, device):
    """The precision of matrix products: what is asked for, or what the hardware multiplies fast:
    bfloat16; else, on a GPU with tensor cores (V100, T4), float16; else float32."""
    if dtype not in ('auto', 'float32', 'bfloat16', 'float16'):
        raise Mistake(f"dtype='{dtype}' is unknown; choose auto, float32, bfloat16 or float16")
    kind = torch.device(device).type
    if dtype == 'auto':
        native = torch.cuda.is_bf16_supported(including_emulation=False) if kind == 'cuda' else \
            kind == 'cpu' and cpu_gains_from_bfloat16()
        halves = kind == 'cuda' and torch.cuda.get_device_capability(device) >= (7, 0)
        return torch.bfloat16 if native else torch.float16 if halves else torch.float32
    try:
        a = torch.ones(2, 2, dtype=getattr(torch, dtype), device=device)
        (a @ a).sum().item()
    except (RuntimeError, TypeError) as e:
        raise Mistake(f'dtype={dtype} is not usable on device={device} ({str(e).splitlines()[0]}); choose another, '
                      'or --dtype=auto') from None
    return a.dtype


def cpu_gains_from_bfloat16():
    """Whether this CPU multiplies bfloat16 faster than float32. With AMX it does; with the AVX-512
    instruction alone AMD's do and Intel's do not. A rule and no measurement, so that all processes of
    a run, and the run when it is resumed, choose alike."""
    cpu = torch.cpu.get_capabilities()
    return bool(cpu.get('amx_bf16') or cpu.get('avx512_bf16') and 'AMD' in cpu.get('cpu_name', ''))


def matmul_flops(device, dtype, n, seconds=0.1):
    """Operations per second of a product of two n x n matrices: the best of those that fit in the
    given time, at least two."""
    a = torch.randn(n, n, device=device, generator=torch.Generator(device)).to(dtype)  # not from the run's random state
    took, begin = [], time.perf_counter()
    while len(took) < 2 or time.perf_counter() - begin < seconds:
        start = time.perf_counter()
        (a @ a)[0, 0].item()
        took.append(time.perf_counter() - start)
    return 2 * n ** 3 / min(took)


def choose_compile(compile, device):
    """Whether to compile before the first step: as asked, or on CUDA under Linux."""
    asked = compile.lower()
    if asked not in ('auto', 'true', 'false'):
        raise Mistake(f"compile='{compile}' is unknown; choose auto, true or false")
    on_cuda = torch.device(device).type == 'cuda' and platform.system() == 'Linux'
    return asked == 'true' or asked == 'auto' and on_cuda


def autocast(device, dtype):
    """The context in which a network multiplies in dtype on a device."""
    return torch.autocast(torch.device(device).type, dtype, enabled=dtype != torch.float32)


class Machine:
    """The device, precision and compilation of a training run, and the group of processes that
    torchrun makes, or one process alone. fsdp: whether the processes share one network (FSDP2), or
    each has its own copy."""

    def __init__(self, device, dtype, compile, fsdp=False):
        self.grouped = 'RANK' in os.environ
        lacking = [k for k in ('WORLD_SIZE', 'MASTER_ADDR', 'MASTER_PORT') if k not in os.environ]
        if self.grouped and lacking:
            raise Mistake(f'RANK is set in the environment, but not {" and ".join(lacking)}; start processes with '
                          'torchrun, or unset RANK')
        self.world, self.rank = (int(os.environ[k]) for k in ('WORLD_SIZE', 'RANK')) if self.grouped else (1, 0)
        self.main = self.rank == 0
        if fsdp and self.world == 1:
            raise Mistake('fsdp=true shares a network among processes, and here is one; start several with torchrun '
                          '--standalone --nproc_per_node=N train.py .., or say --fsdp=false')
        self.fsdp, self.device = fsdp, choose_device(device)
        self.kind = torch.device(self.device).type
        if self.grouped and self.kind not in ('cpu', 'cuda'):
            raise Mistake(f'processes cannot talk to each other on device={self.device}; start one, '
                          'without torchrun, or say --device=cpu')
        self.dtype, self.compiled = choose_dtype(dtype, self.device), choose_compile(compile, self.device)
        if self.kind == 'cuda':
            torch.set_float32_matmul_precision('high')  # float32 is multiplied as TF32 where the GPU can
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
        raise Mistake(f'{self.world} processes cannot share gradient_accumulation_steps={passes} of '
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

    def joined(self, *tensors):
        """The rows of these tensors from all processes, on this device in the main process, and () in
        the others. All processes call it together."""
        if not self.grouped:
            return tensors
        parts = [None] * self.world if self.main else None
        dist.gather_object([t.cpu() for t in tensors], parts)
        return tuple(torch.cat(part).to(self.device) for part in zip(*parts)) if self.main else ()

    def wait(self):
        if self.grouped:
            dist.barrier()

    def first(self, function, *args):
        """function(*args), in the main process before the others."""
        if self.main:
            function(*args)
        self.wait()
        return function(*args)

    # ---- one network shared by all processes

    def gather(self, state):
        """Nested dicts and lists with whole tensors on the CPU, in the main process, and None for
        them in the others. All processes call it together. Shared weights stay shared."""
        known = {}

        def whole(value):
            if isinstance(value, torch.Tensor):
                if id(value) not in known:
                    t = value.detach()
                    t = t.full_tensor() if self.fsdp and hasattr(t, 'full_tensor') else t  # of a DTensor
                    known[id(value)] = t.cpu() if self.main else None
                return known[id(value)]
            if isinstance(value, dict):
                return {k: whole(v) for k, v in value.items()}
            return [whole(v) for v in value] if isinstance(value, list) else value
        return whole(state)

    def shares(self, state, like):
        """A dict of whole tensors, each cut to this process's share as the tensor of that name in
        `like` is."""
        if not self.fsdp:
            return state
        from engine import sharding
        return {k: sharding.slice_like(v, like[k]) for k, v in state.items()}

    @contextlib.contextmanager
    def whole(self, network):
        """In this context each process may run a network as often as it likes, and look at its
        weights and at what its layers compute."""
        with contextlib.ExitStack() as stack:
            if self.fsdp:
                from engine import sharding
                stack.enter_context(sharding.whole(network))
            if self.compiled:  # validation has smaller batches too, and compiled layers call no hooks
                stack.enter_context(compiling.without_compiled())
            yield

    # ---- what a step does

    def send(self, *tensors):
        """Tensors on the device. CUDA copies them while the program goes on."""
        if self.kind == 'cuda':
            tensors = [t.pin_memory() for t in tensors]
        return tuple(t.to(self.device, non_blocking=True) for t in tensors)

    def place(self, network):
        """Put a network on the device; with fsdp, this process's share of it. Returns it."""
        if not self.fsdp:
            return network.to(self.device)
        from engine import sharding  # which takes half a second to load
        sharding.shard(network, self.kind, self.world)
        return network

    def wrap(self, model, recompute=False):
        """Place a network, compiled if that is on, and return it as training calls it: gradients are
        averaged between the processes, those of late layers while early ones are still computed.
        recompute: see recompute_layers."""
        if self.compiled and (self.grouped or self.kind != 'cpu'):  # else Pace compiles it as one piece
            compiling.compile_layers(model)
            torch._dynamo.config.optimize_ddp = False  # which cuts layers into parts, so that gradients travel early
        self.place(model)
        if recompute:
            recompute_layers(model)
        if self.fsdp or not self.grouped:
            return model
        return DistributedDataParallel(model, device_ids=[self.device] if self.kind == 'cuda' else None,
                                       forward_sync_buffers=False, gradient_as_bucket_view=True)

    def forward(self, network, last):
        """The context of a forward pass. Gradients travel between processes in the last pass of a
        step alone."""
        if self.fsdp:
            network.set_requires_gradient_sync(last)
        elif self.grouped:
            network.require_backward_grad_sync = last
        return self.autocast

    def backward(self, loss):
        self.scaler.scale(loss).backward()

    def clip(self, model, optimizers, most):
        """Clip the gradient to norm `most`, 0 for no limit. Returns its norm before that."""
        for optimizer in optimizers:
            self.scaler.unscale_(optimizer)
        parameters = [p for p in model.parameters() if p.grad is not None]
        norm = torch.nn.utils.get_total_norm([p.grad for p in parameters])
        if self.fsdp:
            norm = norm.full_tensor()  # of all slices
        if most:
            torch.nn.utils.clip_grads_with_norm_(parameters, most, norm)
        return norm

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
        return matmul_flops(self.device, self.dtype, 8192 if self.kind == 'cuda' else 1024) * self.world


def recompute_layers(model):
    """Activation checkpointing: each layer that repeats keeps only its input, and computes the rest
    again in the backward pass. Raises Mistake for a network without such layers."""
    def again(forward):
        return lambda *args, **more: checkpoint(forward, *args, use_reentrant=False, **more)
    if not compiling.blocks(model):
        raise Mistake(f'recompute=true is for networks with `layers`, and {type(model).__name__} has none; leave it '
                      'out')
    for layer in compiling.blocks(model):
        layer.forward = again(layer.forward)


def train_flops(model, augment=None):
    """Operations of a forward and a backward pass on one sequence, picture or prompt, as PyTorch
    counts them. augment: an AugmentConfig, for self-distillation, which has small crops too. Nothing
    is computed: the passes run on the meta device. 0 for a network that cannot run there."""
    try:
        return flops_on_meta(type(model), model.config, augment)
    except Exception:  # of many types: it looks at values; if it is a bug, the first step shows it
        return 0


def flops_on_meta(Network, c, augment):
    with torch.device('meta'):
        twin = Network(c)
        if c.task == 'views':
            n, side = (augment.local_crops, augment.local_size) if augment else (0, 1)
            x, y = (torch.empty(2, 1, c.channels, *c.image_size), torch.empty(n, 1, c.channels, side, side)), None
        elif c.task in ('image', 'masked_image'):
            x = torch.empty(1, getattr(c, 'channels', 3), *c.image_size)
            y = torch.empty(1, dtype=torch.long) if c.task == 'image' else None
        elif c.task == 'icl':
            x, y = torch.empty(1, c.block_size // 2, c.n_dims), torch.empty(1, c.block_size // 2)
        else:
            x = y = torch.empty(1, c.block_size, dtype=torch.long)
        with FlopCounterMode(display=False) as counter:
            twin(x, y)[1].backward()
    return counter.get_total_flops()


LACKS_MEMORY = ('CUDA error: out of memory', 'MPS backend out of memory', 'not enough memory: you tried to allocate',
                "can't allocate memory: you tried to allocate")
LOST = 'Connection closed by peer', 'Connection reset by peer', 'remote process exited'  # gloo's words, and NCCL's


def advice(error):
    """One line for the user on an error that is none of the program: too little memory, or the end
    of another process. '' for any other error."""
    said = str(error)
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)) or any(words in said for words in LACKS_MEMORY):
        what = said[:120].splitlines()[0] if said else 'of the machine'
        return f'out of memory ({what}); try half the --batch_size and twice the --gradient_accumulation_steps, ' \
               '--recompute=true, or a smaller network'
    if isinstance(error, RuntimeError) and any(words in said for words in LOST):
        return 'another process of this run has ended; its message, or that of torchrun, says why'
    return ''


def leave():
    """End this process's part in the group, if there is one. Call it when the network is gone:
    DistributedDataParallel holds the group, in a cycle of references, and a process whose group
    outlives the interpreter can abort."""
    if dist.is_initialized():
        dist.barrier()  # a process that ends while another still talks to it can abort too
        gc.collect()
        dist.destroy_process_group()
