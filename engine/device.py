"""Where a run computes, in which precision, and whether compiled; and the signals that end it."""
import contextlib
import os
import platform
import shutil
import signal
import threading
import time

import torch
from torch.nn.parallel import DistributedDataParallel

from engine.distributed import is_main, world_size
from engine.mistakes import Mistake
from engine.settings import choice_of


# signals that ask a run to save and end: Ctrl-C, those of batch systems, and a lost SSH session.
# Windows has two of them
STOP = [getattr(signal, name) for name in ('SIGINT', 'SIGTERM', 'SIGHUP', 'SIGUSR1', 'SIGUSR2')
        if hasattr(signal, name)]
INSTALL_CUDA = ('to use the GPU, install a PyTorch with CUDA: under Linux '
                'pip install --force-reinstall torch, elsewhere see pytorch.org')


class Device:
    """name: for .to(), such as 'cuda:1'; type: 'cuda'; dtype: the precision of matrix products;
    compiled: whether networks are compiled for training; autocast: the context to call them in."""

    def __init__(self, name='auto', dtype='auto', compile='auto'):
        self.name = choose_device(name)
        device = torch.device(self.name)
        self.type = device.type
        if self.type == 'cuda':
            # products that stay in float32 are computed as TF32 where the GPU can
            torch.set_float32_matmul_precision('high')
            if device.index is not None:
                torch.cuda.set_device(device)  # else pinned memory, and more, is that of GPU 0
        self.dtype = choose_dtype(dtype, self.name)
        self.compiled = choose_compile(compile, self.name)
        self.autocast = autocast(self.name, self.dtype)

    def __str__(self):
        place = f'{self.type} x {world_size()}'
        if self.type == 'cpu':
            place += f', threads: {torch.get_num_threads()}'
        compiled = 'compiled' if self.compiled else 'not compiled'
        line = f'{place}, {name_of(self.dtype)}, {compiled}'
        if self.type == 'cpu' and lacks_cuda():
            line += f'; this PyTorch was built without CUDA; {INSTALL_CUDA}'
        return line

    def send(self, tensor):
        """A tensor from the CPU on this device."""
        return send(tensor, torch.device(self.name))

    def for_training(self, model, recompute, loss_in_chunks=False):
        """A network that lies on this device, as training calls it: compiled if that is on, its
        gradients averaged over the processes if there are several. `model` itself stays the same
        network without a wrapper."""
        if self.compiled:
            from engine.compiled import compile_network  # here and below: few runs need it
            # which is faster on a CPU, see there. What is changed below is compiled too, because
            # PyTorch compiles in the first call
            in_one_piece = self.type == 'cpu' and world_size() == 1
            compile_network(model, in_one_piece)
        if recompute:
            from engine.compiled import recompute_layers
            recompute_layers(model)
        if loss_in_chunks:
            from engine.chunked_loss import spare_logits
            spare_logits(model)
        if world_size() == 1:
            return model
        network = DistributedDataParallel(model, gradient_as_bucket_view=True)
        # no buffer is copied from one process to the others. (Set here, as the argument for it has
        # another name in another version of PyTorch.)
        network.broadcast_buffers = False
        return network

    def uncompiled(self):
        """A context in which networks compute as written. Validation has batches of other sizes,
        for which it would compile again, and compiled layers call no hooks."""
        if self.compiled:
            return torch.compiler.set_stance('force_eager')
        return contextlib.nullcontext()


def name_of(dtype):
    """Such as 'bfloat16'."""
    return str(dtype).removeprefix('torch.')


def send(tensor, device):
    """A tensor from the CPU on a torch.device. CUDA copies it while the program goes on."""
    if device.type == 'cuda':
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


# ---- what `auto` means --------------------------------------------------------------------------

def choose_device(device):
    """The device that is asked for, or the best one here. Under torchrun, this process's GPU.
    Raises Mistake if the device cannot be used, or if several processes cannot know their GPUs."""
    device = device.lower()
    if device == 'auto':
        device = best_device()
    if device == 'cuda' and world_size() > 1:
        if 'LOCAL_RANK' not in os.environ:  # as where somebody starts the processes without it
            raise Mistake('LOCAL_RANK is not set, so all processes would use the same GPU; start '
                          'them with torchrun, or unset WORLD_SIZE')
        device = f'cuda:{os.environ["LOCAL_RANK"]}'
    try:
        torch.ones(1, device=device).item()
    except (RuntimeError, AssertionError, NotImplementedError) as e:
        reason = str(e).splitlines()[0]
        advice = 'say --device=auto'
        if device.startswith('cuda') and lacks_cuda():
            advice = INSTALL_CUDA
        raise Mistake(f'device={device} is not usable here ({reason}); {advice}') from None
    return device


def lacks_cuda():
    """Whether this machine has an NVIDIA GPU that this PyTorch cannot use."""
    return torch.version.cuda is None and shutil.which('nvidia-smi') is not None


def best_device():
    if torch.cuda.is_available():
        return 'cuda'
    if torch.backends.mps.is_available():
        return 'mps'
    return 'cpu'


def choose_dtype(dtype, device):
    """The precision of matrix products: the one that is asked for, or one that the hardware
    multiplies fast."""
    dtype = choice_of('dtype', dtype, ('auto', 'float32', 'bfloat16', 'float16'))
    if dtype != 'auto':
        return getattr(torch, dtype)
    device_type = torch.device(device).type
    if device_type == 'cuda':
        return best_gpu_dtype(device)
    if device_type == 'cpu' and cpu_gains_from_bfloat16():
        return torch.bfloat16
    return torch.float32


def best_gpu_dtype(device):
    capability = torch.cuda.get_device_capability(device)
    if capability >= (8, 0):  # A100, RTX 30 and later
        return torch.bfloat16
    if capability >= (7, 0):  # tensor cores: V100, T4
        return torch.float16
    return torch.float32


def cpu_gains_from_bfloat16():
    """A rule and no measurement, so that all processes of a run, and the run when it is resumed,
    choose alike. Intel's CPUs that have AVX512 alone do not gain."""
    features = torch.cpu.get_capabilities()
    if features.get('amx_bf16'):
        return True
    return bool(features.get('avx512_bf16')) and 'AMD' in features.get('cpu_name', '')


def choose_compile(compile, device):
    """Whether to compile: as asked; by itself on CUDA under Linux only. Raises Mistake if the C++
    compiler is missing that PyTorch needs for a CPU."""
    if compile == 'auto':
        return device.startswith('cuda') and platform.system() == 'Linux'
    if compile == 'false':
        return False
    if torch.device(device).type == 'cpu':
        from engine.compiled import check_compiler
        check_compiler()
    return True


def autocast(device, dtype):
    """The context in which a network multiplies in dtype on a device."""
    return torch.autocast(torch.device(device).type, dtype, enabled=dtype != torch.float32)


# ---- signals ------------------------------------------------------------------------------------

def catch_signals():
    """A list to which the first signal of STOP is appended, so that the loop can end in order.
    Another one, more than two seconds later, ends the program at once. One that comes sooner counts
    as the same, because uv and batch systems send each signal twice. Python lets only the main
    thread of a program catch signals."""
    caught = []
    times = []

    def catch(number, frame):
        times.append(time.monotonic())
        if not caught:
            caught.append(number)
            if is_main():
                say_at_once('stopping after this step')
        elif times[-1] > times[0] + 2:
            raise KeyboardInterrupt

    if threading.current_thread() is threading.main_thread():
        on_stop(catch)
    return caught


def on_stop(handler):
    """Let a handler catch the signals of STOP. One that is ignored stays so, as under nohup."""
    for number in STOP:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, handler)


def say_at_once(line):
    """Write a line on standard error from a signal's handler. print cannot be used there, because
    the signal may have come in the middle of another print."""
    with contextlib.suppress(OSError):
        os.write(2, f'{line}\n'.encode())
