"""CRATE-alpha: CRATE with a richer sparse coding half step, which scales to large networks and data.

    Yang, Li, Pai, Zhou, Ma, Yu, Xie. "Scaling White-Box Transformers for Vision", NeurIPS 2024.

The first half step, compression, is CRATE's. The second codes the tokens in a dictionary with more atoms than a token
has dimensions, and decodes them with another one:

    z = z + MSSA(LN(z))                compress, as in CRATE
    z = z + D1 A(LN(z))                sparsify: A holds the sparse codes of the tokens in D, and D1 decodes them

    A   approximates  argmin over A >= 0 of  lambda |A|_1 + 1/2 |X - D A|^2,  by two proximal-gradient steps from A = 0

Three changes to CRATE, each of which is a setting: an overcomplete dictionary (`atoms` times d atoms), decoding that is
decoupled from coding (`decoupled`), and a skip around the half step (`skip`).

    paper     code               meaning
    N         N                  patches of a picture; there is a class token besides
    d         n_embd             width of a token
    K         n_head             subspaces, one per attention head
    p         head_dim           dimension of a subspace
    X         x  (B, N + 1, d)   the tokens that are coded, one per row; the paper writes one per column
    A         a  (B, N + 1, m)   their codes, m = atoms * d
    D, D1     D, D1  (d, m)      the dictionary that codes, and the one that decodes
    eta       eta                step size
    lambda    lam                weight of sparsity

The outputs equal those of the authors' inference code (github.com/UCSC-VLAA/CRATE-alpha), and its weights can be read
and written: a patch map without norms, no bias in the output map of attention, LayerNorm eps 1e-6 in the layers and
1e-5 before the classifier. Weights start as in their training code in JAX (which has 1e-6 before the classifier).
"""
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F

attention = F.scaled_dot_product_attention  # engine/fast.py puts a faster function with the same result here


@dataclass
class CRATEAlphaConfig:
    n_layer: int = 12               # layers: a compression and a sparsification each
    n_head: int = 12                # attention heads, one subspace each
    n_embd: int = 768               # width of a token
    head_dim: int = 0               # dimension of a subspace; 0 means n_embd / n_head
    eta: float = 0.1                # step size of sparse coding
    lam: float = 0.1                # weight lambda of sparsity
    steps: int = 2                  # proximal-gradient steps, the first from A = 0
    atoms: int = 4                  # atoms of a dictionary, in widths of a token; 1 is not overcomplete
    decoupled: bool = True          # decode with a dictionary D1 of its own, instead of D
    skip: bool = True               # add what is decoded to the tokens, instead of putting it in their place
    dropout: float = 0.0            # on embeddings, attention weights and what attention adds
    image_size: int | tuple = 224   # pixels, or (height, width)
    patch_size: int | tuple = 16    # pixels of a patch, or (height, width)
    channels: int = 3               # 3 for colour, 1 for grey
    num_classes: int = 1000         # classes
    pool: str = 'cls'               # classify 'cls', the class token, or 'mean', the mean of all tokens
    label_smoothing: float = 0.0    # share of the target spread over all classes in training

    task = 'image'

    def __post_init__(self):
        check(self)


# ---- the operators --------------------------------------------------------------------------------------------------

class MSSA(nn.Module):
    """Multi-head subspace self-attention, as in CRATE, eqs. (11) and (115) there, without a bias."""

    def __init__(self, c):
        super().__init__()
        self.K, width = c.n_head, c.n_head * (c.head_dim or c.n_embd // c.n_head)
        self.U = nn.Linear(c.n_embd, width, bias=False)                 # all U_k^T, one below the other
        one_full_head = c.n_head == 1 and width == c.n_embd             # then the authors' code has no output map
        self.W = None if one_full_head else nn.Linear(width, c.n_embd, bias=False)
        self.dropout, self.drop = c.dropout, nn.Dropout(c.dropout)

    def forward(self, z):
        w = self.U(z).unflatten(-1, (self.K, -1)).transpose(1, 2)       # U_k^T Z: (B, K, N + 1, p)
        h = attention(w, w, w, dropout_p=self.dropout * self.training).transpose(1, 2).flatten(2)
        return h if self.W is None else self.drop(self.W(h))            # (B, N + 1, d)


class ISTA(nn.Module):
    """Sparse codes of tokens in an overcomplete dictionary, decoded by another one. One proximal-gradient step on
    lambda |A|_1 + 1/2 |X - D A|^2 over A >= 0 is A <- relu(A + eta D^T (X - D A) - eta lambda)."""

    def __init__(self, c):
        super().__init__()
        self.eta, self.lam, self.steps = c.eta, c.lam, c.steps
        self.D = nn.Parameter(torch.empty(c.n_embd, c.atoms * c.n_embd))
        self.D1 = nn.Parameter(torch.empty(c.n_embd, c.atoms * c.n_embd)) if c.decoupled else None

    def code(self, x):
        """Tokens x (B, N + 1, d) -> codes (B, N + 1, m)."""
        a = F.relu(self.eta * F.linear(x, self.D.T) - self.eta * self.lam)                      # from A = 0
        for _ in range(self.steps - 1):
            residual = x - F.linear(a, self.D)                          # X - D A: (B, N + 1, d)
            a = F.relu(a + self.eta * F.linear(residual, self.D.T) - self.eta * self.lam)
        return a

    def forward(self, x):
        return F.linear(self.code(x), self.D if self.D1 is None else self.D1)                   # D1 A: (B, N + 1, d)


class Layer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.norm1, self.attn = nn.LayerNorm(c.n_embd, eps=1e-6), MSSA(c)
        self.norm2, self.ista = nn.LayerNorm(c.n_embd, eps=1e-6), ISTA(c)
        self.skip = c.skip

    def forward(self, z):
        z = z + self.attn(self.norm1(z))                                # compress
        x = self.ista(self.norm2(z))                                    # sparsify
        return z + x if self.skip else x


# ---- the network ----------------------------------------------------------------------------------------------------

class CRATEAlpha(nn.Module):
    """Pictures x, float (B, C, H, W), to (logits (B, num_classes), None); with classes y, int64 (B,), to (logits, mean
    cross-entropy in nats)."""

    def __init__(self, config):
        super().__init__()
        c = self.config = config
        self.embed = PatchEmbedding(c)
        self.layers = nn.Sequential(*(Layer(c) for _ in range(c.n_layer)))
        self.read = Classifier(c)
        initialize(self)

    def forward(self, x, y=None):
        z = self.embed(x)                                               # (B, N + 1, d)
        for layer in self.layers:
            z = layer(z)
        return self.read(z, y)

    def features(self, x):
        """Pictures (B, C, H, W) to what the classifier sees (B, d)."""
        return self.read.features(self.layers(self.embed(x)))

    def num_params(self):
        """Number of parameters."""
        return sum(t.numel() for t in self.parameters())

    def to_official(self):
        """The weights as a state dict of the authors' code; see engine/official.py."""
        from engine import official
        return official.to_crate_alpha(self)

    @classmethod
    def from_official(cls, state_dict, *, n_head, image_size, patch_size, **overrides):
        """A network with the authors' weights; see engine/official.py."""
        from engine import official
        return official.from_crate_alpha(cls, CRATEAlphaConfig, state_dict, n_head=n_head, image_size=image_size,
                                         patch_size=patch_size, **overrides)


class PatchEmbedding(nn.Module):
    """Pictures (B, C, H, W) to tokens (B, N + 1, d), the class token first."""

    def __init__(self, c):
        super().__init__()
        (H, W), (h, w) = c.image_size, c.patch_size
        self.shape = c.channels, H, W
        self.patch = nn.Conv2d(c.channels, c.n_embd, (h, w), stride=(h, w))
        self.cls = nn.Parameter(torch.empty(1, 1, c.n_embd))
        self.pos = nn.Parameter(torch.empty(1, (H // h) * (W // w) + 1, c.n_embd))
        self.drop = nn.Dropout(c.dropout)

    def forward(self, x):
        if x.shape[1:] != self.shape:
            raise ValueError(f'pictures are {tuple(x.shape[1:])}, the network takes {self.shape}; resize them')
        z = self.patch(x).flatten(2).mT                                 # (B, N, d)
        return self.drop(torch.cat((self.cls.expand(len(z), -1, -1), z), 1) + self.pos)         # (B, N + 1, d)


class Classifier(nn.Module):
    """Tokens (B, N + 1, d) and classes y, int64 (B,) -> (logits (B, num_classes), mean cross-entropy in nats)."""

    def __init__(self, c):
        super().__init__()
        self.pool, self.smoothing = c.pool, c.label_smoothing
        self.norm, self.head = nn.LayerNorm(c.n_embd), nn.Linear(c.n_embd, c.num_classes)

    def features(self, z):
        return self.norm(z[:, 0] if self.pool == 'cls' else z.mean(1))                          # (B, d)

    def forward(self, z, y=None):
        logits, smoothing = self.head(self.features(z)), self.smoothing * self.training
        return logits, None if y is None else F.cross_entropy(logits.float(), y, label_smoothing=smoothing)


def initialize(model):
    """As the authors' training code: dictionaries uniform in +-sqrt(6 / d), the patch map in +-sqrt(6 / P) for patches
    of P numbers; other maps and positions N(0, 0.02^2), the class token N(0, 1e-12), biases 0."""
    for name, p in model.named_parameters():
        if name.endswith(('.D', '.D1')):
            nn.init.kaiming_uniform_(p, mode='fan_out')                 # within +-sqrt(6 / d)
        elif name.endswith('patch.weight'):
            nn.init.kaiming_uniform_(p)                                 # within +-sqrt(6 / P)
        elif name.endswith(('U.weight', 'W.weight', 'head.weight', 'pos')):
            nn.init.normal_(p, std=0.02)
        elif name.endswith('cls'):
            nn.init.normal_(p, std=1e-6)
        elif name.endswith(('patch.bias', 'head.bias')):
            nn.init.zeros_(p)


def check(c):
    """Raises ValueError where settings do not fit together; makes image_size and patch_size (height, width)."""
    if c.pool not in ('cls', 'mean'):
        raise ValueError(f"pool='{c.pool}' is unknown; choose cls or mean")
    for name in ('n_layer', 'n_head', 'n_embd', 'num_classes', 'channels', 'atoms', 'steps'):
        if getattr(c, name) < 1:
            raise ValueError(f'{name}={getattr(c, name)} must be at least 1')
    if not c.head_dim and c.n_embd % c.n_head:
        raise ValueError(f'n_embd={c.n_embd} is not divisible by n_head={c.n_head}; change one, or set head_dim')
    c.image_size, c.patch_size = (tuple(s) if isinstance(s, (tuple, list)) else (s, s)
                                  for s in (c.image_size, c.patch_size))
    if any(i < 1 or p < 1 or i % p for i, p in zip(c.image_size, c.patch_size)):
        raise ValueError(f'image_size={c.image_size} is not divisible by patch_size={c.patch_size}; choose a '
                         'patch_size that divides height and width')


Network, Config = CRATEAlpha, CRATEAlphaConfig  # what --model=crate_alpha trains; see docs/extend.md
