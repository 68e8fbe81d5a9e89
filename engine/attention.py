"""The function `attention` of a model file has two forms: PyTorch's fused kernel, and the lines
below it, which spell out what it computes.

If you edit the lines and leave the kernel, your edit runs in training in bfloat16 on a CPU, and
nowhere else. So a run compares both forms before it begins.
"""
import copy

import torch
from torch import nn

from engine.settings import Mistake

MOST_TOKENS = 512   # with more the kernel runs always


def check_forms(model):
    """Raises Mistake if an attention module of a network computes one thing with the kernel and
    another with the lines.

    Each module gets the same random tokens twice, in float64, where both forms are exact. With
    gradients the lines run, and without them the kernel. A copy of the module does it, with larger
    weights: with those of a new network, each token would take nearly the same from all others.
    """
    tokens = min(MOST_TOKENS, getattr(model.config, 'block_size', MOST_TOKENS))
    with torch.random.fork_rng(devices=[]):     # the run draws the numbers that it would draw
        torch.manual_seed(0)
        for module in model.modules():
            projection = getattr(module, 'U', getattr(module, 'QKV', None))
            if not isinstance(projection, nn.Linear):
                continue
            z = torch.randn(1, tokens, projection.in_features, dtype=torch.float64)
            try:
                attention = random_copy(module)
                with torch.no_grad():
                    of_kernel = attention(z)
                of_lines = attention(z)
            except Exception:   # such as of a module that takes another number of tokens
                continue
            if not torch.allclose(of_kernel, of_lines, rtol=1e-6, atol=1e-9):
                raise Mistake(f'{type(module).__name__} computes one thing with PyTorch\'s kernel, '
                              'and another thing with the lines below the kernel; delete the '
                              'statement that returns F.scaled_dot_product_attention, in '
                              f'{type(module).__module__}.py')


def random_copy(module):
    """A copy of a module in float64 and in evaluation mode, with weights drawn from
    N(0, 1 / inputs)."""
    new = copy.deepcopy(module).double().eval()
    with torch.no_grad():
        for p in new.parameters():
            p.normal_(std=p.size(-1) ** -0.5)
    return new
