"""Where a run computes: device, precision, and the processes of torchrun, or one alone."""
import contextlib
import gc
import os
import platform
import signal
import time
import warnings

import torch
import torch.distributed as dist
import torch.distributed.nn  # now: loaded later, its functions would keep the process group as a default argument
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from engine.settings import Mistake, check_choice


class Device:
    """name: such as cuda:1; kind: cuda. dtype: of matrix products. rank, world: of this process, and how many
    there are. fsdp: whether they share one network (FSDP2), or each has a copy of it."""

    def __init__(self, name='auto', dtype='auto', compile='auto', fsdp=False):
        self.grouped = {'RANK', 'WORLD_SIZE', 'MASTER_ADDR'} <= os.environ.keys()  # batch systems may leave one of them
        self.world, self.rank = (int(os.environ[k]) for k in ('WORLD_SIZE', 'RANK')) if self.grouped else (1, 0)
        if fsdp and self.world == 1:
            raise Mistake('fsdp=true shares a network among processes, and here is one; start several with torchrun '
                          '--standalone --nproc_per_node=N train.py .., or say --fsdp=false')
        self.main, self.fsdp, self.name = self.rank == 0, fsdp, choose_device(name)
        self.kind = torch.device(self.name).type
        self.dtype, self.compiles = choose_dtype(dtype, self.name), choose_compile(compile, self.name)
        self.autocast = autocast(self.name, self.dtype)
        self.scaler = torch.amp.GradScaler(self.kind, enabled=self.dtype == torch.float16)
        free = self.kind == 'cpu' and not self.grouped and 'OMP_NUM_THREADS' not in os.environ
        self.threads, self.patience = torch.get_num_threads() if free else 1, 15.0
        self.looked = time.perf_counter(), time.process_time()
        if self.kind == 'cuda':
            torch.set_float32_matmul_precision('high')  # float32 is multiplied as TF32 where the GPU can
        if self.grouped:  # gloo beside NCCL: the processes can agree on a signal without waiting for the GPU
            dist.init_process_group('cpu:gloo,cuda:nccl' if self.kind == 'cuda' else 'gloo')

    def __str__(self):
        n = torch.get_num_threads()
        threads = f' with {n} thread{"s" * (n > 1)}' * (self.kind == 'cpu')
        return f'{self.kind} x {self.world}{threads}, {str(self.dtype)[6:]}, {"" if self.compiles else "not "}compiled'

    # ---- tensors and networks

    def send(self, *tensors):
        """Tensors on the device. CUDA copies them while the program goes on."""
        tensors = [t.pin_memory() for t in tensors] if self.kind == 'cuda' else tensors
        return tuple(t.to(self.name, non_blocking=True) for t in tensors)

    def place(self, model):
        """A network on the device; with fsdp, this process's share of it."""
        if self.fsdp:
            shard(model, self.kind, self.world)
        return model.to(self.name)

    def wrap(self, model, recompute=False):
        """Place a network and return it as training calls it: compiled if that is on, its gradients averaged between
        the processes. recompute: layers keep only their input, and compute again in the backward pass.
        Raises Mistake where there are none."""
        if self.compiles:
            compile_network(model, whole=self.kind == 'cpu' and not self.grouped)
        self.place(model)
        if recompute and not blocks(model):
            raise Mistake(f'recompute=true is for networks with `layers`, and {type(model).__name__} has none; leave '
                          'it out')
        for layer in blocks(model) if recompute else ():  # activation checkpointing
            layer.forward = lambda *args, own=layer.forward, **more: checkpoint(own, *args, use_reentrant=False, **more)
        if self.fsdp or not self.grouped:
            return model
        return DistributedDataParallel(model, device_ids=[self.name] if self.kind == 'cuda' else None,
                                       gradient_as_bucket_view=True, forward_sync_buffers=False)

    def sync(self, network, now):
        """Gradients travel between processes in the last pass of a step alone."""
        if self.fsdp:
            network.set_requires_gradient_sync(now)
        elif self.grouped:
            network.require_backward_grad_sync = now

    @contextlib.contextmanager
    def whole(self, model):
        """In this context each process may run a network as often as it likes, and look at its weights and at what
        its layers compute: it is neither shared nor compiled. (Validation has smaller batches too, and compiled
        layers call no hooks.)"""
        parts = [part for part in model.modules() if hasattr(part, 'unshard')] if self.fsdp else []
        for part in parts:
            part.unshard()
            part.set_reshard_after_forward(False, recurse=False)
        with torch.compiler.set_stance('force_eager') if self.compiles else contextlib.nullcontext():
            yield
        for part in parts:
            part.set_reshard_after_forward(part is not model, recurse=False)  # the root is needed again at once
            part.reshard()

    def adapt_threads(self, anew=False):
        """Before a step. All threads of a CPU wait for the slowest one: if another program has taken a core, one thread
        fewer is faster. That is so if this process got less than 0.85 of its threads' time (0.97 where nothing else
        runs). One thread more is tried 15 s later, then after twice as long. anew: only start to measure, because a
        validation came before."""
        n, now, used = torch.get_num_threads(), time.perf_counter(), time.process_time()
        before, elapsed = self.looked, now - self.looked[0]
        if self.threads == 1 or elapsed < 0.5 and not anew:
            return
        self.looked = now, used
        crowded = used - before[1] < 0.85 * n * elapsed
        if crowded and n > 1 and not anew:
            if self.patience == 15:
                self.say(f'{n - 1} thread{"s" * (n > 2)} instead of {n}: another program needs a core')
            torch.set_num_threads(n - 1)
            self.again, self.patience = now + self.patience, min(2 * self.patience, 120.0)
        elif not crowded and not anew and n < self.threads and now > self.again:
            torch.set_num_threads(n + 1)

    # ---- between processes

    def say(self, *words):
        if self.main:
            print(*words, flush=True)

    def sum(self, tensor):
        """A tensor, added up over all processes."""
        if self.grouped:
            dist.all_reduce(tensor)
        return tensor

    def any(self, *yes):
        """For each of these, whether it is true in any process."""
        return [bool(n) for n in self.sum(torch.tensor(yes, dtype=torch.int32)).tolist()]

    def gather(self, value):
        """What each process has, as a list."""
        values = [value] * self.world
        if self.grouped:
            dist.all_gather_object(values, value)
        return values

    def first(self, function, *args):
        """function(*args), in the main process before the others."""
        if self.main:
            function(*args)
        if self.grouped:
            dist.barrier()
        return function(*args)


def leave():
    """End this process's part in the group, if there is one. Call it when the network is gone:
    DistributedDataParallel holds the group, in a cycle of references, and a process whose group outlives the
    interpreter can abort."""
    if dist.is_initialized():
        dist.barrier()  # a process that ends while another still talks to it can abort too
        gc.collect()
        dist.destroy_process_group()


# ---- what `auto` means ----------------------------------------------------------------------------------------------

def choose_device(device):
    """The device that is asked for, or the best one here. Under torchrun, this process's own GPU."""
    if device == 'auto':
        device = 'cuda' if torch.cuda.is_available() else 'mps' if torch.backends.mps.is_available() else 'cpu'
    try:
        if device == 'cuda' and 'LOCAL_RANK' in os.environ:
            device = f'cuda:{os.environ["LOCAL_RANK"]}'
            torch.cuda.set_device(device)
        torch.ones(1, device=device).item()
    except (RuntimeError, AssertionError, NotImplementedError) as e:
        raise Mistake(f'device={device} is not usable here ({str(e).splitlines()[0]}); say --device=auto') from None
    return device


def choose_dtype(dtype, device):
    """The precision of matrix products: what is asked for, or what the hardware multiplies fast: bfloat16; else, on
    a GPU with tensor cores (V100, T4), float16; else float32."""
    check_choice('dtype', dtype, ('auto', 'float32', 'bfloat16', 'float16'))
    if dtype != 'auto':
        return getattr(torch, dtype)
    kind = torch.device(device).type
    if kind == 'cuda' and not torch.cuda.is_bf16_supported(including_emulation=False):
        return torch.float16 if torch.cuda.get_device_capability(device) >= (7, 0) else torch.float32
    # CPUs: a rule and no measurement, so that all processes of a run, and the run when it is resumed, choose alike
    cpu = torch.cpu.get_capabilities()
    cpu_gains = cpu.get('amx_bf16') or cpu.get('avx512_bf16') and 'AMD' in cpu.get('cpu_name', '')  # Intel's do not
    return torch.bfloat16 if kind == 'cuda' or kind == 'cpu' and cpu_gains else torch.float32


def choose_compile(compile, device):
    """Whether to compile: as asked, or on CUDA under Linux, where its compiler is at home."""
    return compile == 'true' or compile == 'auto' and device.startswith('cuda') and platform.system() == 'Linux'


def autocast(device, dtype):
    """The context in which a network multiplies in dtype on a device."""
    return torch.autocast(torch.device(device).type, dtype, enabled=dtype != torch.float32)


# ---- layers that repeat ---------------------------------------------------------------------------------------------

def blocks(model):
    """The layers that repeat: those of a network, and of its decoder if it has one."""
    return [layer for name in ('layers', 'decoder_layers') for layer in getattr(model, name, ())]


def compile_network(model, whole):
    """Compile a network in place, for batches of one size: as one piece, or layer by layer, where layers of one kind
    share their code. On a CPU steps of CRATE-T were 1.4 times as fast in one piece; compiling takes two seconds
    longer for each layer. What cannot be compiled computes as written, and PyTorch says so."""
    torch._dynamo.config.suppress_errors = True
    torch._functorch.config.force_non_lazy_backward_lowering = True  # else a backward pass that cannot ends the run
    torch._dynamo.config.recompile_limit = 64   # a curriculum has a graph for each length of its prompts
    torch._dynamo.config.optimize_ddp = False   # it would cut layers into parts, so that gradients travel early
    for part in [model] if whole else blocks(model) or [model]:
        part.compile(dynamic=False)


# ---- FSDP2: processes that share the weights, gradients and optimizer states of one network -------------------------
# Each keeps a slice of every tensor (a DTensor). The weights of a layer are put together when it computes. Files hold
# whole tensors under plain names, so a run may go on with another number of processes, shared or not.

def shard(model, kind, world):
    """Share a network among `world` processes, layer by layer. Raises Mistake for one that cannot be."""
    from torch.distributed.fsdp import fully_shard  # here, as it takes half a second to load
    if hasattr(model, 'after_step'):
        raise Mistake(f'fsdp=true is not for {type(model).__name__}, which changes weights itself after a step; leave '
                      'it out: then each process has its own copy')
    warnings.filterwarnings('ignore', 'FSDP2-wrapped module')  # about views, into which nobody writes here
    mesh = dist.init_device_mesh(kind, (world,))
    for part in (*blocks(model), model):
        fully_shard(part, mesh=mesh)


def whole(tensor):
    """All of a tensor that FSDP shares among processes. They call it together."""
    return tensor.full_tensor() if hasattr(tensor, 'full_tensor') else tensor


def share(tensor, like):
    """This process's slice of a whole tensor, if FSDP shares the tensor `like` of its shape."""
    if not hasattr(like, 'full_tensor') or getattr(tensor, 'shape', None) != like.shape:
        return tensor
    from torch.distributed.tensor import distribute_tensor
    return distribute_tensor(tensor.to(like.device), like.device_mesh, like.placements, src_data_rank=None)


# ---- what happens to a process --------------------------------------------------------------------------------------

def note_signals():
    """A list to which Ctrl-C and SIGTERM are appended, once; a second one ends the program."""
    noted = []

    def note(number, frame):
        noted.append(number)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, note)
    return noted
