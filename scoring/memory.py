"""How much memory a training step needs, without computing one: forward and backward run on tensors
that have shapes but no numbers, and the bytes of those alive are added up."""
import copy
import functools
import weakref

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from engine.device import autocast, recompute_layers
from scoring.speed import batch, build


class Step:
    """A training step of a network by its name, with AdamW, on `rows` pictures or sequences.

    dtype: precision of matrix products. float16 stands for bfloat16 on a GPU: its numbers are as
    large, and the networks use fused attention, as there; in bfloat16 on CPUs they do not. recompute:
    of each layer only the input is kept, and the rest is computed again in the backward pass.
    """

    def __init__(self, name, dtype=torch.float16, recompute=False, way='', more=None):
        self.dtype, self.mode = dtype, FakeTensorMode(allow_non_fake_inputs=True)
        with torch.device('meta'):
            model = build(name, way, more)
        with self.mode:  # a copy with other tensors; weights that are shared stay so
            tensors = {id(p): torch.nn.Parameter(torch.empty_like(p, device='cpu')) for p in model.parameters()}
            tensors |= {id(t): torch.empty_like(t, device='cpu') for t in model.buffers()}
            self.model = copy.deepcopy(model, tensors)
        if recompute:
            recompute_layers(self.model)

    def held(self):
        """Bytes of weights and fixed tensors, and of two moments for each weight."""
        trained = sum(t.nbytes for t in self.model.parameters() if t.requires_grad)
        return sum(t.nbytes for t in (*self.model.parameters(), *self.model.buffers())) + 2 * trained

    @functools.cache
    def bytes(self, rows):
        """Peak bytes: what is held, and the most that gradients and activations take together."""
        with self.mode, Alive(self.model) as alive:
            with autocast('cpu', self.dtype):
                loss = self.model(*batch(self.model.config, rows))[1]
            loss.backward()
        self.model.zero_grad(set_to_none=True)
        return self.held() + alive.most

    def largest(self, memory):
        """The most rows whose step takes at most `memory` bytes, or slightly fewer; 0 if not even one
        fits."""
        if self.bytes(16) > memory:
            return next((rows for rows in range(15, 0, -1) if self.bytes(rows) <= memory), 0)

        def line(a, b):  # where the line through two batches meets the memory
            return int(a + (memory - self.bytes(a)) * (b - a) / (self.bytes(b) - self.bytes(a)))
        rows, far = 16, 128 if 'text' in self.model.config.task else 1024
        if self.bytes(far) <= memory:
            return line(far // 2, far)
        for _ in range(2):  # the curve bends upwards, so it lies below a line between two of its points
            rows = line(rows, far)
        return rows


class Alive(TorchDispatchMode):
    """Adds up the bytes of all tensors that operations make, until they are freed. `most` is the
    greatest sum. The weights and buffers of `model` do not count."""

    def __init__(self, model):
        super().__init__()
        self.now = self.most = 0
        self.known = weakref.WeakSet(t.untyped_storage() for t in (*model.parameters(), *model.buffers()))

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        out = operation(*args, **(kwargs or {}))
        for storage in (t.untyped_storage() for t in tree_leaves(out) if isinstance(t, torch.Tensor)):
            if storage not in self.known:  # a view shares the storage of its tensor
                self.known.add(storage)
                self.now += storage.nbytes()
                self.most = max(self.most, self.now)
                weakref.finalize(storage, self.free, storage.nbytes())
        return out

    def free(self, n):
        self.now -= n
