"""ViT, the black box that CRATE is compared with: blocks of multi-head attention and an MLP over patches of a picture.

    Dosovitskiy et al. "An Image is Worth 16x16 Words", ICLR 2021; sizes tiny to large as in Touvron et al. (DeiT).

Compare `Layer` here and in `model_crate.py`. Attention has three projections where CRATE has one basis of each
subspace; an MLP of 8 d^2 weights with a skip stands where CRATE has a d x d dictionary without a skip.

    N patches, d = n_embd width, K = n_head heads of width p = d / K; tokens z are (B, N + 1, d), the class token first

The outputs equal those of the ViT in the authors' CRATE code (timm's): exact GELU, biases everywhere, LayerNorm eps
1e-6, and either the class token after the final LayerNorm (pool='cls') or, as the authors' script trains it, the mean
of the patch tokens, without the class token, and then LayerNorm (pool='mean'). With timm 1.0.9 the authors' code
applies that LayerNorm twice: final_norms=2.
"""
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn as nn
import torch.nn.functional as F

LayerNorm = partial(nn.LayerNorm, eps=1e-6)

attention = F.scaled_dot_product_attention  # engine/fast.py puts a faster function with the same result here


@dataclass
class ViTConfig:
    n_layer: int = 12               # layers: an attention and an MLP each
    n_head: int = 3                 # attention heads
    n_embd: int = 192               # width of a token
    dropout: float = 0.0            # on embeddings, attention weights and what each half of a layer adds
    image_size: int | tuple = 224   # pixels, or (height, width)
    patch_size: int | tuple = 16    # pixels of a patch, or (height, width)
    channels: int = 3               # 3 for colour, 1 for grey
    num_classes: int = 1000         # classes
    pool: str = 'mean'              # classify 'cls', the class token, or 'mean', the mean of the patch tokens
    final_norms: int = 1            # how often the last LayerNorm is applied; timm 1.0.9 with 'mean' does it twice
    label_smoothing: float = 0.0    # share of the target spread over all classes in training

    task = 'image'

    def __post_init__(self):
        check(self)


# ---- the operators --------------------------------------------------------------------------------------------------

class Attention(nn.Module):
    """Multi-head self-attention: query, key and value each have their own projection."""

    def __init__(self, c):
        super().__init__()
        self.K, self.dropout = c.n_head, c.dropout
        self.QKV, self.W = nn.Linear(c.n_embd, 3 * c.n_embd), nn.Linear(c.n_embd, c.n_embd)

    def forward(self, z):
        q, k, v = self.QKV(z).chunk(3, -1)                              # the K heads side by side: each (B, N, d)
        return self.W(average(q, k, v, self.K, self.dropout * self.training))     # (B, N, d)


class MLP(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.up, self.down = nn.Linear(c.n_embd, 4 * c.n_embd), nn.Linear(4 * c.n_embd, c.n_embd)

    def forward(self, z):
        return self.down(F.gelu(self.up(z)))                            # (B, N, d)


class Layer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.norm1, self.attn = LayerNorm(c.n_embd), Attention(c)
        self.norm2, self.mlp = LayerNorm(c.n_embd), MLP(c)
        self.drop = nn.Dropout(c.dropout)

    def forward(self, z):
        z = z + self.drop(self.attn(self.norm1(z)))
        return z + self.drop(self.mlp(self.norm2(z)))


# ---- the network ----------------------------------------------------------------------------------------------------

class ViT(nn.Module):
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
        return official.give(self, official.VIT[self.config.pool])

    @classmethod
    def from_official(cls, state_dict, *, n_head, image_size, patch_size, **overrides):
        """A network with the authors' weights; see engine/official.py."""
        from engine import official
        return official.from_vit(cls, ViTConfig, state_dict, n_head=n_head, image_size=image_size,
                                 patch_size=patch_size, **overrides)


class PatchEmbedding(nn.Module):
    """Pictures (B, C, H, W) to tokens (B, N + 1, d), the class token first."""

    def __init__(self, c):
        super().__init__()
        (H, W), (h, w) = c.image_size, c.patch_size
        self.shape = c.channels, H, W
        self.patch = nn.Conv2d(c.channels, c.n_embd, (h, w), stride=(h, w))
        self.cls = nn.Parameter(torch.zeros(1, 1, c.n_embd))
        self.pos = nn.Parameter(torch.zeros(1, (H // h) * (W // w) + 1, c.n_embd))
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
        self.pool, self.norms, self.smoothing = c.pool, c.final_norms, c.label_smoothing
        self.norm, self.head = LayerNorm(c.n_embd), nn.Linear(c.n_embd, c.num_classes)

    def features(self, z):
        z = z[:, 0] if self.pool == 'cls' else z[:, 1:].mean(1)                                 # (B, d)
        for _ in range(self.norms):
            z = self.norm(z)
        return z

    def forward(self, z, y=None):
        logits, smoothing = self.head(self.features(z)), self.smoothing * self.training
        return logits, None if y is None else F.cross_entropy(logits.float(), y, label_smoothing=smoothing)


# ---- helpers --------------------------------------------------------------------------------------------------------

def average(q, k, v, K, dropout):
    """softmax(q k^T / sqrt(p)) v in each of K heads; q, k, v and the result (B, N, K p)."""
    q, k, v = (t.unflatten(-1, (K, -1)).transpose(1, 2) for t in (q, k, v))       # (B, K, N, p)
    h = attention(q, k, v, dropout_p=dropout)
    return h.transpose(1, 2).flatten(2)


def initialize(model):
    """timm's: truncated normal 0.02 for linear maps and positions, normal 1e-6 for the class token, zero biases; the
    patch map keeps PyTorch's default."""
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.trunc_normal_(module.weight, std=0.02)
            nn.init.zeros_(module.bias)
    nn.init.trunc_normal_(model.embed.pos, std=0.02)
    nn.init.normal_(model.embed.cls, std=1e-6)


def check(c):
    """Raises ValueError where settings do not fit together; makes image_size and patch_size (height, width)."""
    if c.pool not in ('cls', 'mean'):
        raise ValueError(f"pool='{c.pool}' is unknown; choose cls or mean")
    for name in ('n_layer', 'n_head', 'n_embd', 'num_classes', 'channels', 'final_norms'):
        if getattr(c, name) < 1:
            raise ValueError(f'{name}={getattr(c, name)} must be at least 1')
    if c.n_embd % c.n_head:
        raise ValueError(f'n_embd={c.n_embd} is not divisible by n_head={c.n_head}; change one')
    c.image_size, c.patch_size = (tuple(s) if isinstance(s, (tuple, list)) else (s, s)
                                  for s in (c.image_size, c.patch_size))
    if any(i < 1 or p < 1 or i % p for i, p in zip(c.image_size, c.patch_size)):
        raise ValueError(f'image_size={c.image_size} is not divisible by patch_size={c.patch_size}; choose a '
                         'patch_size that divides height and width')


Network, Config = ViT, ViTConfig  # what --model=vit trains; see docs/extend.md
