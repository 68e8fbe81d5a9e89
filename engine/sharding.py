"""FSDP2: the processes of a run share the weights, gradients and optimizer states of one network.

Each process keeps a slice of every tensor (a DTensor). The weights of a layer are put together when
it computes, and given up again. Files hold whole tensors under plain names, as one process writes
them, so a run may go on with another number of processes, shared or not.
"""
import contextlib
import warnings

from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from engine.compiling import blocks
from engine.settings import Mistake


def shard(model, kind, world):
    """Share a network among `world` processes, layer by layer, on their devices of this kind.
    Raises Mistake for a network that cannot be."""
    if hasattr(model, 'after_step'):
        raise Mistake(f'fsdp=true is not for {type(model).__name__}, which changes weights itself after a step; '
                      'leave it out: then each process has its own copy')
    for name, parameter in model.named_parameters():
        if not parameter.dim():
            raise Mistake(f'fsdp=true cannot share {name}, a single number; make it a vector of one number')
    warnings.filterwarnings('ignore', rf'FSDP2-wrapped module \(FSDP{type(model).__name__}\) returned a view')
    mesh = init_device_mesh(kind, (world,))  # (nobody writes into what a network returns)
    for part in (*blocks(model), model):
        fully_shard(part, mesh=mesh)


@contextlib.contextmanager
def whole(model):
    """In this context every process has all the weights of a network, and may compute on its own.
    All processes enter it together."""
    parts = [part for part in model.modules() if isinstance(part, FSDPModule)]
    for part in parts:
        part.unshard()
        part.set_reshard_after_forward(False, recurse=False)
    try:
        yield
    finally:
        for part in parts:
            part.set_reshard_after_forward(part is not model, recurse=False)  # the root is needed again at once
            part.reshard()


def slice_like(whole, parameter):
    """This process's slice of a whole tensor, cut as the parameter is; what has another shape, as
    the count of steps has, is not cut."""
    if not isinstance(parameter, DTensor) or getattr(whole, 'shape', None) != parameter.shape:
        return whole
    return distribute_tensor(whole.to(parameter.device), parameter.device_mesh, parameter.placements,
                             src_data_rank=None)  # every process has the whole tensor
