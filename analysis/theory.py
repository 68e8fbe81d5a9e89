"""What the commands without a trained network share: their settings, and MSSA and ISTA with subspaces and dictionaries
that one knows. Tokens are rows, Z (N, d), where the papers have columns.
"""
from dataclasses import dataclass

from engine.settings import check_ranges
from model_crate import CRATEConfig, Layer, MSSA

RANGES = {  # between which numbers settings must lie, {name: (least, most or None)}
    'seed': (0, None), 'n_head': (2, None), 'head_dim': (1, None), 'n_embd': (2, None), 'tokens': (2, None),
    'sets': (2, None), 'n_layer': (1, None), 'steps': (1, None), 'step': (1e-9, 1), 'depth': (1e-6, 1e4),
    'delta': (1e-6, 100), 'sigma': (1e-6, 100), 'noise': (0, 100), 'share': (1e-6, 1), 'eps': (1e-3, 1000),
    'eta': (1e-6, 100), 'lam': (0, 1000), 'alpha': (1e-6, 1e6), 'tau': (0, 0.999999), 'cosine': (0, 0.999)}


@dataclass
class Shared:
    """Settings of all commands. `ranges`: those that are not in RANGES, or others there."""
    ranges = {}
    seed: int = 1337                # of random weights and all random choices
    out: str = ''                   # the picture to write, the table is beside it; empty: COMMAND.png
    overwrite: bool = False         # replace what you name with --out if it exists; COMMAND.png always is replaced

    def __post_init__(self):
        for name, (low, high) in (RANGES | self.ranges).items():
            if hasattr(self, name):
                check_ranges(self, {(low, high or float('inf')): [name]})


@dataclass
class TheoryConfig(Shared):
    n_head: int = 8                 # K, subspaces
    head_dim: int = 16              # p, dimension of a subspace; together they fill d = n_head x head_dim dimensions
    tokens: int = 64                # N, tokens of all subspaces together; compress: rounded to a multiple of n_head

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
    mssa = MSSA(CRATEConfig(image_size=0, causal=False, n_head=K, n_embd=d, head_dim=p, tie_out=True))
    mssa.U.weight.data = U.mT.flatten(0, 1)                             # all U_k^T, one below the other: (K p, d)
    return mssa.requires_grad_(False)


def shipped_ista(D, **settings):
    """ISTA of model_crate.py with the dictionary D (d, d); with ista='mm' the one of eq. (92)."""
    ista = Layer(CRATEConfig(n_head=1, n_embd=len(D), **settings)).ista
    ista.D.data = D.contiguous()
    return ista.requires_grad_(False)
