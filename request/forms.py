"""The function `attention` of a model file has two forms: PyTorch's fused kernel, and the lines
below it, which spell out what it computes.

The lines run with gradients, on a CPU, in any precision but float32. If you edit them and leave the
kernel, your edit runs there, and nowhere else. So a run compares both forms before it begins.
"""
import copy
from bdb import BdbQuit

import torch
from torch import nn

from engine.mistakes import Mistake

MOST_TOKENS = 512   # with more tokens the kernel runs everywhere


@torch.enable_grad()
def check_forms(model):
    """Raises Mistake if a module of a network computes one thing with the kernel and another with
    the lines. Looked at are the modules that have a linear map `U` or `QKV`.

    A module gets the same random tokens twice, in float64: with gradients, where the lines run, and
    without, where the kernel runs. In float64 both agree to rounding. A copy with larger random
    weights does this: with the small weights of a new network attention is almost uniform, and a
    difference could hide.
    """
    tokens = min(MOST_TOKENS, getattr(model.config, 'block_size', MOST_TOKENS))
    generator = torch.Generator().manual_seed(0)    # the run's own random numbers stay the same
    for module in model.modules():
        projection = getattr(module, 'U', getattr(module, 'QKV', None))
        if not isinstance(projection, nn.Linear):
            continue
        z = torch.randn(1, tokens, projection.in_features, dtype=torch.float64, generator=generator)
        try:
            attention = random_copy(module, generator)
            with torch.no_grad():
                kernel_result = attention(z)
            lines_result = attention(z.requires_grad_())
        except BdbQuit:     # somebody ends the program in a debugger
            raise
        except Exception:   # such as of a module that takes other tokens; it is not compared
            continue
        if not torch.allclose(kernel_result, lines_result, rtol=1e-6, atol=1e-9, equal_nan=True):
            raise Mistake(f'{type(module).__name__} computes one thing with PyTorch\'s kernel, and '
                          'another thing with the lines below the kernel; delete the `if` that '
                          'returns F.scaled_dot_product_attention, in '
                          f'{type(module).__module__}.py')


def random_copy(module, generator):
    """A copy of a module in float64 and in evaluation mode. Its matrices are drawn from
    N(0, 1 / inputs), so that they keep the size of tokens."""
    new = copy.deepcopy(module).double().eval()
    for p in new.parameters():
        if p.dim() > 1:
            nn.init.normal_(p, std=p.size(-1) ** -0.5, generator=generator)
    return new
