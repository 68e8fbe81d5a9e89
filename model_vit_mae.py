"""ViT-MAE, the masked autoencoder that CRATE-MAE is compared with: ViT's blocks as encoder and as decoder.

    He, Chen, Xie, Li, Dollar, Girshick. "Masked Autoencoders Are Scalable Vision Learners", CVPR 2022.

The encoder sees the visible patches only, at their fixed positions. Mask tokens take the place of the others before
the decoder, another, usually smaller, stack of the same blocks. The outputs equal those of the authors' code.

    N patches of P numbers, d = n_embd width, K = n_head heads of width p = d / K; tokens z are (B, n + 1, d), the class
    token first, then the n visible patches
"""
import math
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn as nn
import torch.nn.functional as F

LayerNorm = partial(nn.LayerNorm, eps=1e-6)

attention = F.scaled_dot_product_attention  # engine/fast.py puts a faster function with the same result here


@dataclass
class ViTMAEConfig:
    n_layer: int = 12               # layers of the encoder: an attention and an MLP each
    n_head: int = 6                 # its attention heads
    n_embd: int = 384               # its width of a token, a multiple of 4
    decoder_n_layer: int = 8        # layers of the decoder
    decoder_n_head: int = 16        # its attention heads
    decoder_n_embd: int = 512       # its width of a token, a multiple of 4
    image_size: int | tuple = 224   # pixels, or (height, width)
    patch_size: int | tuple = 16    # pixels of a patch, or (height, width)
    channels: int = 3               # 3 for colour, 1 for grey
    mask_ratio: float = 0.75        # share of the patches that are hidden
    norm_pix_loss: bool = False     # predict each patch less its mean, divided by its standard deviation
    pool: str = 'cls'               # features of a picture: 'cls' (class token) or 'mean' (of the patch tokens)

    task = 'masked_image'

    def __post_init__(self):
        check(self)


# ---- the operators, as in model_vit.py ------------------------------------------------------------------------------

class Attention(nn.Module):
    def __init__(self, n_embd, n_head):
        super().__init__()
        self.K, self.QKV, self.W = n_head, nn.Linear(n_embd, 3 * n_embd), nn.Linear(n_embd, n_embd)

    def forward(self, z):
        q, k, v = self.QKV(z).chunk(3, -1)                              # the K heads side by side: each (B, N, d)
        return self.W(average(q, k, v, self.K))                         # (B, N, d)


class MLP(nn.Module):
    def __init__(self, n_embd):
        super().__init__()
        self.up, self.down = nn.Linear(n_embd, 4 * n_embd), nn.Linear(4 * n_embd, n_embd)

    def forward(self, z):
        return self.down(F.gelu(self.up(z)))                            # (B, N, d)


class Layer(nn.Module):
    def __init__(self, n_embd, n_head):
        super().__init__()
        self.norm1, self.attn = LayerNorm(n_embd), Attention(n_embd, n_head)
        self.norm2, self.mlp = LayerNorm(n_embd), MLP(n_embd)

    def forward(self, z):
        z = z + self.attn(self.norm1(z))
        return z + self.mlp(self.norm2(z))


# ---- the network ----------------------------------------------------------------------------------------------------

class ViTMAE(nn.Module):
    """model(x) or model(x, noise) -> (predicted patches (B, N, P), loss), the squared error of the hidden patches."""

    classifier = 'vit', {}  # the network that can start from this encoder, and its settings

    def __init__(self, config):
        super().__init__()
        c = self.config = config
        width, grid = c.decoder_n_embd, [i // p for i, p in zip(c.image_size, c.patch_size)]
        self.embed = PatchEmbedding(c)
        self.layers = nn.Sequential(*(Layer(c.n_embd, c.n_head) for _ in range(c.n_layer)))
        self.norm = LayerNorm(c.n_embd)
        self.decoder_embed = nn.Linear(c.n_embd, width)
        self.mask_token = nn.Parameter(torch.empty(1, 1, width))
        self.register_buffer('decoder_pos', sines_and_cosines(grid, width))
        self.decoder_layers = nn.Sequential(*(Layer(width, c.decoder_n_head) for _ in range(c.decoder_n_layer)))
        self.decoder_norm = LayerNorm(width)
        self.pixels = nn.Linear(width, math.prod(c.patch_size) * c.channels)
        initialize(self)

    def forward(self, x, noise=None):
        """x float (B, C, H, W), normalized. noise (B, N): the patches with the largest are hidden; random by default.
        Returns (patches (B, N, P), loss); with norm_pix_loss the patches are normalized ones."""
        noise = torch.rand(len(x), self.embed.N, device=x.device) if noise is None else noise
        visible = self.visible(noise)
        z = self.embed(x, visible)                                      # (B, n + 1, d)
        for layer in self.layers:
            z = layer(z)
        pred = self.decode(self.norm(z), visible)
        return pred, self.loss(x, pred, self.hide(noise))

    def visible(self, noise):
        """Indices (B, n) of the visible patches: those with the least noise, in order."""
        return noise.argsort(dim=1, stable=True)[:, :n_visible(noise.size(1), self.config.mask_ratio)]

    def hide(self, noise):
        """Which patches are hidden, bool (B, N)."""
        return torch.ones_like(noise, dtype=torch.bool).scatter(1, self.visible(noise), False)

    def decode(self, z, visible):
        """Tokens (B, n + 1, d) of the class and the patches at indices visible (B, n) to all patches (B, N, P)."""
        y = self.decoder_embed(z)                                                    # (B, n + 1, width)
        full = self.mask_token.to(y.dtype).expand(len(y), self.embed.N, -1)
        full = full.scatter(1, visible[..., None].expand(-1, -1, y.size(2)), y[:, 1:])
        y = self.decoder_layers(torch.cat((y[:, :1], full), 1) + self.decoder_pos)   # (B, N + 1, width)
        return self.pixels(self.decoder_norm(y))[:, 1:]

    def target(self, x):
        """The patches (B, N, P) to predict of pictures (B, C, H, W); normalized with norm_pix_loss."""
        patches = patchify(x, *self.embed.sizes)
        if self.config.norm_pix_loss:
            mean, deviation = statistics(patches)
            patches = (patches - mean) / deviation
        return patches

    def loss(self, x, pred, hidden):
        """Mean squared error over the hidden patches, bool (B, N)."""
        error = (pred.float() - self.target(x)).square().mean(-1)       # (B, N)
        return (error * hidden).sum() / hidden.sum()

    def encode(self, x):
        """Pictures (B, C, H, W), nothing hidden, to tokens after the final norm (B, N + 1, d)."""
        return self.norm(self.layers(self.embed(x)))

    def features(self, x):
        """Pictures (B, C, H, W), nothing hidden, to what a classifier would see (B, d)."""
        z = self.layers(self.embed(x))
        return self.norm(z[:, 0] if self.config.pool == 'cls' else z[:, 1:].mean(1))

    def reconstruct(self, x, noise=None):
        """Pictures (B, C, H, W) as predicted from their visible patches, visible patches included. With norm_pix_loss
        each patch gets the true picture's mean and standard deviation back."""
        pred = self(x, noise)[0].float()
        if self.config.norm_pix_loss:
            mean, deviation = statistics(patchify(x, *self.embed.sizes))
            pred = pred * deviation + mean
        return unpatchify(pred, *self.embed.sizes)

    def num_params(self):
        """Number of trainable parameters; the fixed positions are none."""
        return sum(t.numel() for t in self.parameters())

    def to_official(self):
        """The weights as a state dict of the authors' code; see engine/official.py."""
        from engine import official
        return official.give(self, official.VIT_MAE)

    @classmethod
    def from_official(cls, state_dict, *, n_head, image_size, patch_size, decoder_n_head, **overrides):
        """A network with the authors' weights; see engine/official.py."""
        from engine import official
        given = dict(n_head=n_head, image_size=image_size, patch_size=patch_size, decoder_n_head=decoder_n_head)
        return official.load(cls, ViTMAEConfig, official.unnested(state_dict), official.VIT_MAE, given | overrides)


class PatchEmbedding(nn.Module):
    """Pictures (B, C, H, W) to tokens (B, n + 1, d) of the patches at indices `visible` (B, n), or of all N, the class
    token first."""

    def __init__(self, c):
        super().__init__()
        (H, W), (h, w) = c.image_size, c.patch_size
        self.sizes, self.N = (c.channels, H, W, h, w), (H // h) * (W // w)
        self.patch = nn.Conv2d(c.channels, c.n_embd, (h, w), stride=(h, w))
        self.cls = nn.Parameter(torch.empty(1, 1, c.n_embd))
        self.register_buffer('pos', sines_and_cosines((H // h, W // w), c.n_embd))

    def forward(self, x, visible=None):
        check_pictures(x, *self.sizes[:3])
        z = self.patch(x).flatten(2).mT + self.pos[:, 1:]                            # (B, N, d)
        if visible is not None:
            z = z.gather(1, visible[..., None].expand(-1, -1, z.size(2)))            # (B, n, d)
        return torch.cat((self.cls.expand(len(z), -1, -1) + self.pos[:, :1], z), 1)  # (B, n + 1, d)


# ---- helpers, as in model_crate_mae.py ------------------------------------------------------------------------------

def average(q, k, v, K):
    """softmax(q k^T / sqrt(p)) v in each of K heads; q, k, v and the result (B, N, K p)."""
    def heads(t):
        return t.unflatten(-1, (K, -1)).transpose(1, 2)                           # (B, K, N, p)
    w = heads(q)
    h = attention(w, w, w) if q is v else attention(w, heads(k), heads(v))
    return h.transpose(1, 2).flatten(2)


def check_pictures(x, C, H, W):
    if x.shape[1:] != (C, H, W):
        raise ValueError(f'pictures are {tuple(x.shape[1:])}, the network takes {(C, H, W)}; resize them')


def patchify(x, C, H, W, h, w):
    """Pictures (B, C, H, W) -> patches (B, N, h w C), row by row; inside a patch: row, column, channel."""
    check_pictures(x, C, H, W)
    return x.unflatten(3, (-1, w)).unflatten(2, (-1, h)).permute(0, 2, 4, 3, 5, 1).flatten(3).flatten(1, 2)


def unpatchify(patches, C, H, W, h, w):
    """Patches (B, N, h w C) -> pictures (B, C, H, W)."""
    x = patches.unflatten(2, (h, w, C)).unflatten(1, (H // h, W // w))            # (B, H/h, W/w, h, w, C)
    return x.permute(0, 5, 1, 3, 2, 4).flatten(4).flatten(2, 3)


def statistics(patches):
    """Mean and standard deviation, with divisor P - 1, of every patch (.., P): two tensors (.., 1)."""
    variance, mean = torch.var_mean(patches, -1, keepdim=True)
    return mean, (variance + 1e-6).sqrt()


def n_visible(N, mask_ratio):
    """How many of N patches stay visible, N (1 - mask_ratio) without its fraction. (1 - 0.9 is below 0.1 in floats.)"""
    return int(N * (1 - mask_ratio) + 1e-6)


def sines_and_cosines(grid, d):
    """Positions (1, N + 1, d) of a grid (rows, columns): zeros for the class token; for a patch, half of the channels
    encode its column and half its row, each as sines, then cosines, of frequencies 10000^(-4 j / d)."""
    down, across = (torch.arange(n, dtype=torch.float64) for n in grid)
    frequencies = 10000 ** -(torch.arange(d // 4, dtype=torch.float64) / (d / 4))
    rows, columns = (torch.cat(((a := n[:, None] * frequencies).sin(), a.cos()), 1) for n in (down, across))  # (n, d/2)
    pos = torch.cat((columns.repeat(len(down), 1), rows.repeat_interleave(len(across), 0)), 1)                # (N, d)
    return F.pad(pos, (0, 0, 1, 0)).float()[None]


def initialize(model):
    """As the authors: Xavier for linear maps and patches, zero biases except the patch map's, tokens normal 0.02."""
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            nn.init.zeros_(module.bias)
    nn.init.xavier_uniform_(model.embed.patch.weight.view(model.config.n_embd, -1))
    nn.init.normal_(model.embed.cls, std=0.02)
    nn.init.normal_(model.mask_token, std=0.02)


def check(c):
    """Raises ValueError where settings do not fit together; makes image_size and patch_size (height, width)."""
    if c.pool not in ('cls', 'mean'):
        raise ValueError(f"pool='{c.pool}' is unknown; choose cls or mean")
    for name in ('n_layer', 'n_head', 'n_embd', 'decoder_n_layer', 'decoder_n_head', 'decoder_n_embd', 'channels'):
        if getattr(c, name) < 1:
            raise ValueError(f'{name}={getattr(c, name)} must be at least 1')
    for width, heads in ((c.n_embd, c.n_head), (c.decoder_n_embd, c.decoder_n_head)):
        if width % 4 or width % heads:
            raise ValueError(f'a width of {width} must be divisible by its {heads} heads, and by 4 for the positions; '
                             'change n_embd, n_head, decoder_n_embd or decoder_n_head')
    c.image_size, c.patch_size = (tuple(s) if isinstance(s, (tuple, list)) else (s, s)
                                  for s in (c.image_size, c.patch_size))
    if any(i < 1 or p < 1 or i % p for i, p in zip(c.image_size, c.patch_size)):
        raise ValueError(f'image_size={c.image_size} is not divisible by patch_size={c.patch_size}; choose a '
                         'patch_size that divides height and width')
    N = math.prod(i // p for i, p in zip(c.image_size, c.patch_size))
    if not 0 < c.mask_ratio < 1 or not 0 < n_visible(N, c.mask_ratio) < N:
        raise ValueError(f'mask_ratio={c.mask_ratio} must lie between 0 and 1 and leave some of the {N} patches '
                         'visible and some hidden, such as 0.75')


Network, Config = ViTMAE, ViTMAEConfig  # what --model=vit_mae trains; see docs/extend.md
