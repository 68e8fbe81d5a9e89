"""ViT, the vision transformer with which CRATE is compared: attention, then an MLP.

    Alexey Dosovitskiy, Lucas Beyer, Alexander Kolesnikov, Dirk Weissenborn, Xiaohua Zhai, Thomas
    Unterthiner, Mostafa Dehghani, Matthias Minderer, Georg Heigold, Sylvain Gelly, Jakob Uszkoreit,
    Neil Houlsby. "An Image is Worth 16x16 Words: Transformers for Image Recognition at Scale",
    ICLR 2021, arXiv:2010.11929. The sizes tiny, small and base are those of DeiT (Touvron et al.,
    ICML 2021, arXiv:2012.12877).

A layer of ViT was found by experiments. Nobody knows an objective that it optimizes:

    Z^(l+1/2) = Z^l + MHSA(Z^l)              separate queries, keys and values
    Z^(l+1)   = Z^(l+1/2) + MLP(Z^(l+1/2))   two maps, together of 8 d^2 weights, and a skip

This file has the order and the names of model_crate.py, so that their difference shows the idea of
CRATE:

    git diff --no-index model_vit.py model_crate.py

CRATE has one projection where ViT has three, and a dictionary of d^2 weights without a skip where
ViT has the MLP. The rest of the difference is not the idea: CRATE reads text too, and from the
released codes come other patch maps, dropout, initial weights and eps, and that `pool='mean'` is
over the patches here, over all tokens there.

    paper     code               meaning
    N         N                  tokens of a picture: its class token and its patches
    D         n_embd, d          width of a token
    k         n_head, K          number of attention heads
    D_h       p                  width of a head, d / K
    L         n_layer            number of layers
    z         z  (B, N, d)       a batch of tokens, one per row

The outputs are those of the ViT in the code of CRATE's authors, who use timm:
  * GELU is exact, LayerNorms have eps 1e-6, and all linear maps have biases.
  * The classifier reads the class token after the last LayerNorm (`pool='cls'`), or the LayerNorm
    of the mean of the patches (`pool='mean'`), as they train it. With timm 1.0.9, which is newer
    than their code, `pool='mean'` applies this LayerNorm twice; `final_norms=2` does so too.
"""
import math
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


class ConfigError(ValueError):
    """Settings that make no sense. Programs print it in one line, and no traceback."""


@dataclass
class ViTConfig:
    n_layer: int = 12               # layers: an attention and an MLP each
    n_head: int = 3                 # attention heads
    n_embd: int = 192               # width of a token
    dropout: float = 0.0            # on embeddings, attention weights and what a layer adds
    image_size: int | tuple = 224   # pixels, or (height, width)
    patch_size: int | tuple = 16    # pixels of a patch, or (height, width)
    channels: int = 3               # 3 for colour, 1 for grey
    num_classes: int = 1000         # number of classes
    pool: str = 'mean'              # classify 'cls', the class token, or 'mean' of the patches
    label_smoothing: float = 0.0    # share of the target spread over all classes
    final_norms: int = 1            # how often the last LayerNorm is applied; 2 as with timm 1.0.9

    task = 'image'

    def __post_init__(self):
        check(self)


# ---- the operators ------------------------------------------------------------------------------

def attention(q, k, v, dropout_p=0.0):
    """Each head averages the values v of the tokens. A token counts more, the more similar its k is
    to q.

    q, k, v and the result: (B, K, N, p).

    There are two forms of one computation: PyTorch's fused kernel, and the lines below it. The
    lines are faster in training in bfloat16 on a CPU, with up to 512 tokens. There they run, and
    everywhere else the kernel runs. If you edit the lines, delete the `if` with the kernel, and
    they run everywhere.
    """
    N = k.size(2)
    lines_are_faster = q.is_cpu and q.requires_grad and q.dtype != torch.float32 and N <= 512
    if not lines_are_faster:
        return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout_p)

    q = q / math.sqrt(q.size(-1))
    scores = q @ k.mT                                       # of all pairs of tokens: (B, K, N, N)
    weights = scores.softmax(dim=-1)                        # row n: what token n takes from each
    weights = F.dropout(weights, dropout_p)                 # the caller says 0 outside training
    return weights @ v                                      # (B, K, N, p)


class MHSA(nn.Module):
    """Multi-head self-attention: query, key and value each have their own projection."""

    def __init__(self, c):
        super().__init__()
        self.K = c.n_head
        self.QKV = nn.Linear(c.n_embd, 3 * c.n_embd)        # all three, stacked
        self.W = nn.Linear(c.n_embd, c.n_embd)
        self.dropout = c.dropout

    def forward(self, z):
        qkv = self.QKV(z).chunk(3, dim=2)                   # query, key, value: (B, N, d) each
        # cut into heads, and heads first: (B, K, N, p) each
        q, k, v = [x.unflatten(2, (self.K, -1)).transpose(1, 2) for x in qkv]

        dropout = self.dropout if self.training else 0.0
        heads = attention(q, k, v, dropout_p=dropout)       # (B, K, N, p)

        heads = heads.transpose(1, 2).flatten(2)            # heads in a row again: (B, N, d)
        return self.W(heads)                                # (B, N, d)


class MLP(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.up = nn.Linear(c.n_embd, 4 * c.n_embd)
        self.down = nn.Linear(4 * c.n_embd, c.n_embd)

    def forward(self, z):
        hidden = F.gelu(self.up(z))                         # (B, N, 4 d)
        return self.down(hidden)                            # (B, N, d)


class Layer(nn.Module):
    """Attention, then an MLP."""

    def __init__(self, c):
        super().__init__()
        self.norm1 = nn.LayerNorm(c.n_embd, eps=1e-6)
        self.attn = MHSA(c)
        self.norm2 = nn.LayerNorm(c.n_embd, eps=1e-6)
        self.mlp = MLP(c)
        self.drop = nn.Dropout(c.dropout)

    def forward(self, z):
        z = z + self.drop(self.attn(self.norm1(z)))         # (B, N, d)
        z = z + self.drop(self.mlp(self.norm2(z)))          # (B, N, d)
        return z


# ---- the network --------------------------------------------------------------------------------

class ViT(nn.Module):
    """model(x) -> (logits, None), and model(x, y) -> (logits, loss).

    Pictures: x float (B, C, H, W), classes y int64 (B,), logits (B, num_classes).
    """

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.embed = PatchEmbedding(config)
        self.layers = nn.Sequential(*[Layer(config) for _ in range(config.n_layer)])
        self.read = Classifier(config)
        initialize(self)

    def forward(self, x, y=None):
        z = self.embed(x)                                   # (B, N, d)
        for layer in self.layers:
            z = layer(z)                                    # (B, N, d)
        return self.read(z, y)

    def features(self, x):
        """Pictures (B, C, H, W) -> what the classifier sees (B, d)."""
        z = self.embed(x)                                   # (B, N, d)
        z = self.layers(z)                                  # one layer after the other: (B, N, d)
        return self.read.features(z)

    # What follows calls another file: weights/official.py.

    def to_official(self):
        """The weights under the names of the authors' code, as a state dict."""
        from weights.official import VIT, give
        return give(self, VIT[self.config.pool])

    @classmethod
    def from_official(cls, state_dict, *, n_head, image_size, patch_size, **settings):
        """A network with weights of the authors' code. Other sizes are read off the tensors."""
        from weights.official import from_vit
        return from_vit(cls, ViTConfig, state_dict, n_head=n_head, image_size=image_size,
                        patch_size=patch_size, **settings)


# ---- pictures: from patches to a class ----------------------------------------------------------

class PatchEmbedding(nn.Module):
    """Pictures, float (B, C, H, W) -> tokens (B, N, d), the class token first."""

    def __init__(self, c):
        super().__init__()
        H, W = c.image_size
        h, w = c.patch_size
        n_patches = (H // h) * (W // w)                     # N - 1
        self.picture_shape = (c.channels, H, W)
        self.patch = nn.Conv2d(c.channels, c.n_embd, (h, w), stride=(h, w))
        self.cls = nn.Parameter(torch.zeros(1, 1, c.n_embd))
        self.pos = nn.Parameter(torch.zeros(1, 1 + n_patches, c.n_embd))
        self.drop = nn.Dropout(c.dropout)

    def forward(self, x):
        if x.shape[1:] != self.picture_shape:
            raise ValueError(f'pictures are {tuple(x.shape[1:])}, the network takes '
                             f'{self.picture_shape}; resize them')
        z = self.patch(x)                                   # (B, d, H/h, W/w)
        z = z.flatten(2).mT                                 # (B, N - 1, d)
        cls = self.cls.expand(z.shape[0], -1, -1)           # (B, 1, d)
        z = torch.cat((cls, z), dim=1)                      # (B, N, d)
        z = z + self.pos
        if z.is_cpu and torch.is_autocast_enabled('cpu'):   # on a CPU tokens stay in bfloat16 from
            z = z.to(torch.get_autocast_dtype('cpu'))       # layer to layer, which is faster
        return self.drop(z)


class Classifier(nn.Module):
    """Tokens (B, N, d) and classes y (B,) -> logits (B, num_classes) and cross-entropy in nats."""

    def __init__(self, c):
        super().__init__()
        self.pool = c.pool
        self.label_smoothing = c.label_smoothing
        self.final_norms = c.final_norms
        self.norm = nn.LayerNorm(c.n_embd, eps=1e-6)
        self.head = nn.Linear(c.n_embd, c.num_classes)

    def features(self, z):
        z = z[:, 0] if self.pool == 'cls' else z[:, 1:].mean(dim=1)     # (B, d)
        for _ in range(self.final_norms):
            z = self.norm(z)
        return z

    def forward(self, z, y=None):
        logits = self.head(self.features(z))                # (B, num_classes)
        loss = None
        if y is not None:
            smoothing = self.label_smoothing if self.training else 0.0
            loss = F.cross_entropy(logits.float(), y, label_smoothing=smoothing)
        return logits, loss


# ---- helpers ------------------------------------------------------------------------------------

def initialize(model):
    """As in timm. Linear maps and positions have a standard deviation of 0.02 (they are cut off at
    -2 and 2, which happens to none), and biases are 0. That of the class token is 1e-6. The patch
    map starts as PyTorch makes it.
    """
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.trunc_normal_(module.weight, std=0.02)
            nn.init.zeros_(module.bias)
    nn.init.trunc_normal_(model.embed.pos, std=0.02)
    nn.init.normal_(model.embed.cls, std=1e-6)


def as_pair(size):
    """A number or (height, width) -> (height, width), as in model_crate.py."""
    return (size, size) if isinstance(size, int) else tuple(size)


def check(c):
    """Raise ConfigError if settings do not fit together. Sizes become (height, width)."""
    if c.pool not in ('cls', 'mean'):
        raise ConfigError(f"pool='{c.pool}' is unknown; choose cls or mean")
    for name in ('n_layer', 'n_head', 'n_embd', 'channels', 'num_classes', 'final_norms'):
        if getattr(c, name) < 1:
            raise ConfigError(f'{name}={getattr(c, name)} must be at least 1')
    for name in ('dropout', 'label_smoothing'):
        if not 0 <= getattr(c, name) < 1:
            raise ConfigError(f'{name}={getattr(c, name)} must be at least 0 and below 1')
    if c.n_embd % c.n_head != 0:
        raise ConfigError(f'n_embd={c.n_embd} is not divisible by n_head={c.n_head}; change one')
    c.image_size = as_pair(c.image_size)
    c.patch_size = as_pair(c.patch_size)
    for pixels, patch in zip(c.image_size, c.patch_size):
        if pixels < 1 or patch < 1 or pixels % patch != 0:
            raise ConfigError(f'image_size={c.image_size} is not divisible by '
                              f'patch_size={c.patch_size}; choose one that divides both sides')


Network, Config = ViT, ViTConfig  # what --model=vit trains; see docs/extend.md
