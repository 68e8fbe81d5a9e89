"""What the commands without a trained network share: their settings, conditions to tick off, and MSSA with subspaces
that one knows. Tokens are rows, Z (N, d), where the papers have columns.
"""
import math
from dataclasses import dataclass

import torch

from engine.settings import check_ranges
from model_crate import CRATEConfig, MSSA


@dataclass
class Shared:
    """Settings of all commands. `ranges`: between which numbers a setting must lie, {name: (least, most or None)}."""
    ranges = {}
    seed: int = 1337                # of random weights and all random choices
    out: str = ''                   # the picture to write, the table is beside it; empty: COMMAND.png
    overwrite: bool = False         # replace what you name with --out if it exists; COMMAND.png always is replaced

    def __post_init__(self):
        for name, (low, high) in {'seed': (0, None), **self.ranges}.items():
            check_ranges(self, {(low, math.inf if high is None else high): [name]})


@dataclass
class TheoryConfig(Shared):
    n_head: int = 8                 # K, subspaces
    head_dim: int = 16              # p, dimension of a subspace; together they fill d = n_head x head_dim dimensions
    tokens: int = 64                # N, tokens of all subspaces together
    ranges = {'n_head': (2, None), 'head_dim': (1, None), 'tokens': (2, None)}

    @property
    def d(self):
        return self.n_head * self.head_dim


def shipped_attention(U):
    """model_crate.MSSA with the bases U (K, d, p) as its weights, W = [U_1 .. U_K] (CRATE, eq. 12), not causal:
    (B, N, d) -> same.

    Its softmax(w w^T / sqrt(p)) has a scale that eq. (11) lacks, and it lacks gamma: the MSSA of the paper is
    gamma mssa(a Z) / a with a = p^(1/4).
    """
    K, d, p = U.shape
    mssa = MSSA(CRATEConfig(image_size=0, causal=False, n_head=K, n_embd=d, head_dim=p, tie_out=True)).to(U.dtype)
    with torch.no_grad():
        mssa.U.weight.copy_(U.mT.flatten(0, 1))                         # all U_k^T, one below the other: (K p, d)
    return mssa.requires_grad_(False)


def say_conditions(title, conditions):
    """Print pairs: whether a condition is met, and the condition."""
    print(title)
    for met, words in conditions:
        print(f'  {"yes" if met else "no "}  {words}')
