"""A model file computes attention in two forms: PyTorch's fused kernel, and the lines below it.

Whoever edits these lines must delete the kernel. Else the edit counts in training in bfloat16 on a
CPU alone. So a run compares both forms before it begins.
"""
import copy

import torch
from torch import nn

from engine.settings import Mistake

MOST_TOKENS = 512   # with more the kernel runs always


def check_forms(model):
    """Raises Mistake if a module with attention computes one thing with PyTorch's kernel, and
    another thing by the lines below it.

    Each module gets the same random tokens twice. In float64 the lines run if there is a gradient,
    and the kernel runs if there is none. The modules are copies with random weights of usual size,
    because with small weights attention is nearly the same everywhere.
    """
    tokens = min(MOST_TOKENS, getattr(model.config, 'block_size', MOST_TOKENS))
    with torch.random.fork_rng(devices=[]):     # the run draws the numbers that it would draw
        torch.manual_seed(0)
        for module in model.modules():
            projection = getattr(module, 'U', getattr(module, 'QKV', None))
            if not isinstance(projection, nn.Linear):
                continue
            attention = random_copy(module)
            z = torch.randn(1, tokens, projection.in_features, dtype=torch.float64)
            try:
                with torch.no_grad():
                    kernel = attention(z)
                lines = attention(z)
            except Exception:   # such as of a module that takes another number of tokens
                continue
            if not torch.allclose(kernel, lines, rtol=1e-6, atol=1e-9):
                raise Mistake('attention gives one result by PyTorch\'s kernel, and another by the '
                              f'lines below it, in {type(module).__module__}.py; delete the '
                              'statement that returns F.scaled_dot_product_attention there')


def random_copy(module):
    """A copy of a module in float64 and in evaluation mode, with weights drawn from
    N(0, 1 / inputs)."""
    new = copy.deepcopy(module).double().eval()
    with torch.no_grad():
        for p in new.parameters():
            p.normal_(std=p.size(-1) ** -0.5)
    return new
