"""A device 'mps' for machines without one: it computes on the CPU, but has no float64, as Apple's GPUs, and no
operation mixes its tensors with those on the CPU, as on any GPU.

    with FakeMPS():
        x = torch.ones(3, device='mps')
        x.device, x.cpu().double()    # device(type='mps'), and numbers on the CPU
        x.double()                    # TypeError
    x + torch.ones(3)             # RuntimeError; numbers without a dimension, and indices, may stay on the CPU

Inside the block tensors say that they are on 'mps' until they are moved to the CPU, so code that
asks for the device takes the way that it takes there.
"""
import contextlib

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

aten = torch.ops.aten
MOVES = aten._to_copy.default, aten.copy_.default
INDEXES = aten.index.Tensor, aten.index_put_.default, aten._index_put_impl_.default


class OnMPS(torch.Tensor):
    """A tensor that says it is on MPS; `inner` holds its numbers."""
    device = property(lambda self: torch.device('mps'))
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, strides=inner.stride(), dtype=inner.dtype,
                                                   storage_offset=inner.storage_offset())

    def __init__(self, inner):
        self.inner = inner

    def tolist(self):
        return self.inner.tolist()

    def numpy(self):
        raise TypeError("can't convert mps device type tensor to numpy; use .cpu() first")

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return compute(func, types, args, kwargs or {})


class Operations(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return compute(func, types, args, kwargs or {})


class Functions(TorchFunctionMode):
    """The functions that would look for a true MPS before they call an operation."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func in (torch.tensor, torch.as_tensor) and is_mps(kwargs.get('device')):
            return moved(func(*args, **kwargs | {'device': 'cpu'}), 'mps')
        if func is torch.nn.functional.one_hot and isinstance(args[0], OnMPS):  # which would make numbers on the CPU
            return moved(func(args[0].inner, *args[1:], **kwargs), 'mps')
        if func is torch.Tensor.cpu:
            return moved(args[0], 'cpu')
        if func is torch.Tensor.to and not (len(args) > 1 and isinstance(args[1], torch.Tensor)):
            device, dtype, *_ = torch._C._nn._parse_to(*args[1:], **{k: v for k, v in kwargs.items() if k != 'copy'})
            if device is not None:
                return moved(args[0], device, dtype)
        return func(*args, **kwargs)


class FakeMPS(contextlib.ExitStack):
    def __enter__(self):
        for mode in (Operations(), Functions()):
            self.enter_context(mode)
        before = torch.__future__.get_overwrite_module_params_on_conversion()
        self.callback(torch.__future__.set_overwrite_module_params_on_conversion, before)
        torch.__future__.set_overwrite_module_params_on_conversion(True)  # parameters become OnMPS
        return super().__enter__()


def is_mps(device):
    return device is not None and torch.device(device).type == 'mps'


def moved(t, device, dtype=None):
    if isinstance(t, OnMPS) == is_mps(device) and dtype in (None, t.dtype):
        return t
    return Move.apply(t, torch.device(device), dtype or t.dtype)


class Move(torch.autograd.Function):
    """A gradient goes back to where its tensor came from."""

    @staticmethod
    def forward(ctx, t, device, dtype):
        ctx.back = t.device, t.dtype
        return aten._to_copy.default(t, dtype=dtype, device=device)

    @staticmethod
    def backward(ctx, gradient):
        return moved(gradient, *ctx.back), None, None


def compute(func, types, args, kwargs):
    asked = kwargs.get('device')
    # types: those of the arguments that are no plain tensors
    if OnMPS not in types and not is_mps(asked):
        return func(*args, **kwargs)
    tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
    ours = [t for t in tensors if isinstance(t, OnMPS)]
    stray = [t for t in tensors if not isinstance(t, OnMPS) and t.dim()]
    if ours and stray and func not in MOVES and not (func in INDEXES and isinstance(args[0], OnMPS)):
        raise RuntimeError(f'{func}: a tensor of shape {tuple(stray[0].shape)} is on the CPU, others are on MPS')
    there = is_mps(asked) if asked is not None else bool(ours)
    if func is aten.copy_.default:
        there = isinstance(args[0], OnMPS)
    if is_mps(asked):
        kwargs = kwargs | {'device': torch.device('cpu')}
    known = {id(t.inner): t for t in ours}
    out = func(*tree_map(held, args), **tree_map(held, kwargs))

    def result(t):
        if not isinstance(t, torch.Tensor) or not there:
            return t
        if t.dtype in (torch.float64, torch.complex128):
            raise TypeError(f'{func}: MPS has no {t.dtype}; use float32, or move the tensor to the CPU first')
        return known.get(id(t)) if id(t) in known else OnMPS(t)  # known: computed in place
    return tree_map(result, out)


def held(t):
    return t.inner if isinstance(t, OnMPS) else t
