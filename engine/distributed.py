"""Several processes that train one network together, on one machine or on several.

torchrun starts them, and tells each one which it is in environment variables. Where there is only
one process, every function here does the obvious thing.

Two processes, say, share a step of four forward passes: each computes two of them, on other rows of
the step's batch. DistributedDataParallel makes the mean of their gradients in the last pass, so
both take the same step. The main process, whose rank is 0, prints and writes files.
"""
import gc
import os

import torch
import torch.distributed as dist
import torch.distributed.nn  # before there is a process group: loaded later it holds on to it

SET_BY_TORCHRUN = {'RANK', 'WORLD_SIZE', 'MASTER_ADDR'}


def started_by_torchrun():
    """Whether these variables are all there. Batch systems may set some of them."""
    return SET_BY_TORCHRUN <= os.environ.keys()


def rank():
    """The number of this process, from 0, over all machines."""
    return int(os.environ['RANK']) if started_by_torchrun() else 0


def world_size():
    """The number of processes, over all machines."""
    return int(os.environ['WORLD_SIZE']) if started_by_torchrun() else 1


def is_main():
    """Whether this is the process that prints and writes files."""
    return rank() == 0


def is_first_on_machine():
    """Whether this is the process that does what each machine needs once."""
    return not started_by_torchrun() or os.environ.get('LOCAL_RANK', '0') == '0'


# ---- joining and leaving ------------------------------------------------------------------------

def join(device_type):
    """Meet the other processes. Gradients on GPUs travel by NCCL. Everything on the CPU travels by
    gloo, so that processes can agree about a signal without waiting for their GPUs."""
    if world_size() == 1:
        return
    backend = 'cpu:gloo,cuda:nccl' if device_type == 'cuda' else 'gloo'
    dist.init_process_group(backend)


def leave():
    """Part from the other processes. Call this when the network is no longer used: a network in
    DistributedDataParallel keeps the process group alive, and a process can abort at its end if its
    group is still there."""
    if not dist.is_initialized():
        return
    barrier()  # a process that ends while another still talks to it can abort too
    gc.collect()
    dist.destroy_process_group()


# ---- talking ------------------------------------------------------------------------------------
# All processes must call these together, at the same place of the program.

def barrier():
    """Wait until every process has come to this call."""
    if world_size() > 1:
        dist.barrier()


def all_sum(tensor):
    """The tensor, added up in place over all processes."""
    if world_size() > 1:
        dist.all_reduce(tensor)
    return tensor


def all_means(numbers):
    """{name: tensor of one number} -> {name: its mean over all processes, a Python float}. They
    travel together, in one tensor."""
    tensors = list(numbers.values())
    device = tensors[0].device
    sums = all_sum(torch.cat([tensor.to(device).reshape(1) for tensor in tensors]))
    return {name: value / world_size() for name, value in zip(numbers, sums.tolist())}


def any_process(*flags):
    """For each flag, whether it is true in at least one process."""
    counts = all_sum(torch.tensor(flags).int())
    return (counts > 0).tolist()


def gather(value):
    """The list of the values that the processes have, in the order of their ranks."""
    values = [value] * world_size()
    if world_size() > 1:
        dist.all_gather_object(values, value)
    return values


def main_first(function, *args):
    """function(*args) in every process. The main process calls it first, so the others find the
    files that it has made."""
    if is_main():
        result = function(*args)
    barrier()
    if not is_main():
        result = function(*args)
    return result


def print_main(*words, file=None):
    """Print only in the main process."""
    if is_main():
        print(*words, file=file, flush=True)
