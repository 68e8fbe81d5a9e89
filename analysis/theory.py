"""What the commands without a trained network share: their settings, and MSSA and ISTA with
subspaces and dictionaries that one knows. Tokens are rows, Z (N, d), where the papers have columns.
"""
from dataclasses import dataclass

import torch

from analysis.measures import random_bases
from engine.settings import check_ranges
from model_crate import CRATEConfig, Layer, MSSA

RANGES = {  # the range of a setting: {name: (least, most)}; None: it has no upper limit
    'seed': (0, 2 ** 32 - 1),
    'n_head': (2, None),
    'head_dim': (1, None),
    'n_embd': (2, None),
    'tokens': (2, None),
    'sets': (2, None),
    'n_layer': (1, None),
    'steps': (1, None),
    'step': (1e-9, 1),
    'depth': (1e-6, 1e4),
    'delta': (1e-6, 100),
    'sigma': (1e-6, 100),
    'noise': (0, 100),
    'share': (1e-6, 1),
    'eps': (1e-3, 1000),
    'eta': (1e-6, 100),
    'lam': (0, 1000),
    'alpha': (1e-6, 1e6),
    'tau': (0, 0.999999),
    'cosine': (0, 0.999),
}


@dataclass
class Shared:
    """The settings that all commands have. A command with a setting that is not in RANGES, or that
    has another range, gives its range in `ranges`. Raises Mistake for a setting outside its
    range."""
    ranges = {}
    seed: int = 1337         # of random weights and all random choices
    out: str = ''            # the picture to write, the table is beside it; empty: COMMAND.png
    overwrite: bool = False  # replace what --out names if it exists; COMMAND.png always is replaced

    def __post_init__(self):
        ranges = RANGES | self.ranges
        for name, (least, most) in ranges.items():
            if hasattr(self, name):
                check_ranges(self, {(least, most or float('inf')): [name]})

    def generator(self):
        """A new generator of random numbers, torch's, which `seed` starts."""
        return torch.Generator().manual_seed(self.seed)


@dataclass
class TheoryConfig(Shared):
    n_head: int = 8     # K, subspaces
    head_dim: int = 16  # p, dimension of a subspace; all together fill d = n_head x head_dim
    tokens: int = 64    # N, tokens of all subspaces; compress: rounded to a multiple of n_head

    @property
    def d(self):
        return self.n_head * self.head_dim

    def random_bases(self, generator):
        """Bases of K subspaces that fill the space and are random, (K, d, p)."""
        return random_bases(self.n_head, self.head_dim, self.d, generator)


def shipped_attention(U):
    """model_crate.MSSA with the bases U (K, d, p) as its weights, not causal, and with the output
    map W = [U_1 .. U_K] (CRATE, eq. 12): (B, N, d) -> (B, N, d).

    Its softmax(w w^T / sqrt(p)) has a scale that eq. (11) lacks, and it lacks the factor gamma of
    the paper. The MSSA of the paper is gamma mssa(a Z) / a with a = p^(1/4).
    """
    K, d, p = U.shape
    config = CRATEConfig(image_size=0, causal=False, n_head=K, n_embd=d, head_dim=p, tie_out=True)
    mssa = MSSA(config)
    mssa.U.weight.data = U.mT.flatten(0, 1)                 # all U_k^T, stacked: (K p, d)
    return mssa.requires_grad_(False)


def shipped_ista(D, **settings):
    """ISTA of model_crate.py with the dictionary D (d, d), or with ista='mm' the step of eq. (92).
    settings: of CRATEConfig, such as eta and lam."""
    config = CRATEConfig(n_head=1, n_embd=len(D), **settings)
    ista = Layer(config).ista
    ista.D.data = D.contiguous()
    return ista.requires_grad_(False)
