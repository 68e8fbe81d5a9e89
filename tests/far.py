"""A device that is a CPU in disguise, and train.py on it:

    python tests/far.py WORDS_OF_TRAIN --device=far
    python tests/far.py stray WORDS_OF_TRAIN --device=far     # with a mistake planted in a network

Tensors on `far` compute on the CPU, but as on a GPU, an operator that mixes them with tensors on
the CPU raises an error. Numbers without a dimension, and indices, may stay on the CPU, as on a GPU.
"""
import sys
from pathlib import Path

import torch
from torch.utils import backend_registration as backends
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map_only

aten = torch.ops.aten
MOVES = aten._to_copy.default, aten.copy_.default
INDEXES = aten.index.Tensor, aten.index_put_.default, aten._index_put_impl_.default


class Far(torch.Tensor):
    """A tensor that says it is on the device. `near` holds its numbers, on the CPU."""

    @staticmethod
    def __new__(cls, near):
        return torch.Tensor._make_wrapper_subclass(
            cls, near.shape, strides=near.stride(), storage_offset=near.storage_offset(), dtype=near.dtype,
            device=torch.device('far', 0))

    def __init__(self, near):
        self.near = near

    def tolist(self):
        return self.near.tolist()

    @classmethod
    def __torch_dispatch__(cls, operator, types, args=(), kwargs=None):
        return compute(operator, args, kwargs or {})


class Watch(TorchDispatchMode):
    """In this context every operator passes through `compute`."""

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        return compute(operator, args, kwargs or {})


def compute(operator, args, kwargs):
    """The result of an operator, on the device that it is asked for or that its tensors are on.
    Raises RuntimeError where they are on two."""
    tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
    far = any(isinstance(t, Far) for t in tensors)
    stray = [t for t in tensors if not isinstance(t, Far) and t.dim()]
    if far and stray and operator not in MOVES and not (operator in INDEXES and isinstance(args[0], Far)):
        raise RuntimeError(f'{operator}: a tensor of shape {tuple(stray[0].shape)} is on the CPU, others are on far')
    asked = kwargs.get('device') and torch.device(kwargs['device']).type
    if asked == 'far':
        kwargs = kwargs | {'device': torch.device('cpu')}
    near_args, near_kwargs = tree_map_only(Far, lambda t: t.near, (args, kwargs))
    result = operator(*near_args, **near_kwargs)
    goes_far = isinstance(args[0], Far) if operator == aten.copy_.default else asked == 'far' if asked else far
    if not goes_far:
        return result
    result = tree_map_only(torch.Tensor, Far, result)
    return return_and_correct_aliasing(operator, args, kwargs, result) if far else result


class Backend(backends._DummyBackendModule):
    def get_amp_supported_dtype(self):
        return [torch.float16, torch.bfloat16]


if __name__ == '__main__':
    sys.path[:0] = [str(Path(__file__).parent.parent)]
    backends._setup_privateuseone_for_python_backend('far', Backend())
    import model_aot
    import train
    words = sys.argv[1:]
    if words[0] == 'stray':
        forward, words = model_aot.Layer.forward, words[1:]
        model_aot.Layer.forward = lambda self, z: forward(self, z) + torch.zeros(z.size(-1))
    with Watch():
        train.main(words)
