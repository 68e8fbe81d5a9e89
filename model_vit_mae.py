"""ViT-MAE, the masked autoencoder with which CRATE-MAE is compared, made of layers of ViT.

    Kaiming He, Xinlei Chen, Saining Xie, Yanghao Li, Piotr Dollár, Ross Girshick. "Masked
    Autoencoders Are Scalable Vision Learners", CVPR 2022, arXiv:2111.06377.

Most patches of a picture are hidden. The encoder sees the visible patches alone, so it has little
to compute. Before the decoder, a learned mask token takes the place of each hidden patch. The
decoder is a smaller stack of the same layers, and predicts the pixels of the hidden patches.

This file has the order and the names of model_crate_mae.py, so that their difference shows the idea
of CRATE-MAE:

    git diff --no-index model_vit_mae.py model_crate_mae.py

CRATE-MAE has other layers, and those of its decoder are to undo those of its encoder. Its encoder
sees mask tokens too, and its decoder has the width of its encoder. The rest of the difference is
not the idea: from the released codes come other eps and biases, and that `pool='mean'` is over the
patches here, over all tokens there.

    letter  code               meaning
    N       N                  patches of a picture, without the class token
    n                          patches that are visible; with the class token there are n + 1 tokens
    P                          numbers in a patch: height x width x channels
    d       n_embd             width of a token in the encoder
    e       decoder_n_embd     width of a token in the decoder
    K       n_head             number of attention heads
    p                          width of a head, d / K
    z       z  (B, n + 1, d)   tokens in the encoder, one per row, the class token first
    y       y  (B, N + 1, e)   tokens in the decoder, the class token first

The outputs are those of the authors' code.
"""
import math
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


class ConfigError(ValueError):
    """Settings that make no sense. Programs print it in one line, and no traceback."""


@dataclass
class ViTMAEConfig:
    n_layer: int = 12               # layers of the encoder: an attention and an MLP each
    n_head: int = 6                 # attention heads of the encoder
    n_embd: int = 384               # width of a token in the encoder, a multiple of 4
    decoder_n_layer: int = 8        # layers of the decoder
    decoder_n_head: int = 16        # attention heads of the decoder
    decoder_n_embd: int = 512       # width of a token in the decoder, a multiple of 4
    image_size: int | tuple = 224   # pixels, or (height, width)
    patch_size: int | tuple = 16    # pixels of a patch, or (height, width)
    channels: int = 3               # 3 for colour, 1 for grey
    mask_ratio: float = 0.75        # share of the patches that are hidden
    norm_pix_loss: bool = False     # predict patches minus their mean, over their deviation
    pool: str = 'cls'               # features: 'cls', the class token, or 'mean' of the patches

    task = 'masked_image'

    def __post_init__(self):
        check(self)


# ---- the operators, as in model_vit.py ----------------------------------------------------------

def attention(q, k, v):
    """Each head averages the values v of the tokens. A token counts more, the more similar its k is
    to q, as in model_crate_mae.py.

    q, k, v and the result: (B, K, n + 1, p), in the decoder (B, K, N + 1, p).

    There are two forms of one computation: PyTorch's fused kernel, and the lines below it. The
    lines are faster in training in bfloat16 on a CPU, with up to 512 tokens. There they run, and
    everywhere else the kernel runs. If you edit the lines, delete the `if` with the kernel, and
    they run everywhere.
    """
    N = k.size(2)
    lines_are_faster = q.is_cpu and q.requires_grad and q.dtype != torch.float32 and N <= 512
    if not lines_are_faster:
        return F.scaled_dot_product_attention(q, k, v)

    q = q / math.sqrt(q.size(-1))
    scores = q @ k.mT                                       # of all pairs: (B, K, n + 1, n + 1)
    weights = scores.softmax(dim=-1)                        # row i: what token i takes from each
    return weights @ v                                      # (B, K, n + 1, p)


class MHSA(nn.Module):
    """Multi-head self-attention: query, key and value each have their own projection."""

    def __init__(self, n_embd, n_head):
        super().__init__()
        self.K = n_head
        self.QKV = nn.Linear(n_embd, 3 * n_embd)            # all three, stacked
        self.W = nn.Linear(n_embd, n_embd)

    def forward(self, z):
        qkv = self.QKV(z).chunk(3, dim=2)                   # query, key, value: (B, n + 1, d) each
        # cut into heads, and heads first: (B, K, n + 1, p) each
        q, k, v = [x.unflatten(2, (self.K, -1)).transpose(1, 2) for x in qkv]

        heads = attention(q, k, v)                          # (B, K, n + 1, p), as q, k and v

        heads = heads.transpose(1, 2).flatten(2)            # heads in a row again: (B, n + 1, d)
        return self.W(heads)                                # (B, n + 1, d)


class MLP(nn.Module):
    def __init__(self, n_embd):
        super().__init__()
        self.up = nn.Linear(n_embd, 4 * n_embd)
        self.down = nn.Linear(4 * n_embd, n_embd)

    def forward(self, z):
        hidden = F.gelu(self.up(z))                         # (B, n + 1, 4 d)
        return self.down(hidden)                            # (B, n + 1, d)


class Layer(nn.Module):
    """Attention, then an MLP. In the decoder tokens are (B, N + 1, e)."""

    def __init__(self, n_embd, n_head):
        super().__init__()
        self.norm1 = nn.LayerNorm(n_embd, eps=1e-6)
        self.attn = MHSA(n_embd, n_head)
        self.norm2 = nn.LayerNorm(n_embd, eps=1e-6)
        self.mlp = MLP(n_embd)

    def forward(self, z):
        z = z + self.attn(self.norm1(z))                    # (B, n + 1, d)
        z = z + self.mlp(self.norm2(z))                     # (B, n + 1, d)
        return z


# ---- the network --------------------------------------------------------------------------------

class ViTMAE(nn.Module):
    """model(x) or model(x, noise) -> (predicted patches (B, N, P), loss)."""

    # for weights/runs.py: the classifier that can start from this encoder, and settings to change
    classifier = ('vit', {})

    def __init__(self, config):
        super().__init__()
        c = config
        self.config = config
        H, W = c.image_size
        h, w = c.patch_size
        e = c.decoder_n_embd
        self.embed = PatchEmbedding(c)
        self.layers = nn.Sequential(*[Layer(c.n_embd, c.n_head) for _ in range(c.n_layer)])
        self.norm = nn.LayerNorm(c.n_embd, eps=1e-6)
        self.decoder_embed = nn.Linear(c.n_embd, e)
        self.mask_token = nn.Parameter(torch.empty(1, 1, e))
        self.register_buffer('decoder_pos', sines_and_cosines(H // h, W // w, e))
        self.decoder_layers = nn.Sequential(
            *[Layer(e, c.decoder_n_head) for _ in range(c.decoder_n_layer)])
        self.decoder_norm = nn.LayerNorm(e, eps=1e-6)
        self.pixels = nn.Linear(e, h * w * c.channels)
        initialize(self)

    def forward(self, x, noise=None):
        """Pictures x, float (B, C, H, W), and a random number for each patch, noise (B, N).

        The patches with the largest numbers are hidden.
        """
        if noise is None:
            noise = torch.rand(x.shape[0], self.embed.N, device=x.device)
        visible = self.visible(noise)                       # (B, n)
        z = self.embed(x, visible)                          # (B, n + 1, d)
        for layer in self.layers:
            z = layer(z)                                    # (B, n + 1, d)
        pred = self.decode(self.norm(z), visible)           # (B, N, P)
        return pred, self.loss(x, pred, self.hide(noise))

    def visible(self, noise):
        """Random numbers (B, N) -> the places of the visible patches, int64 (B, n).

        `hide` makes the same choice, in the form of a mask: both sort alike.
        """
        order = noise.argsort(dim=1, stable=True)           # the patches by increasing number
        return order[:, :n_visible(noise.size(1), self.config.mask_ratio)]

    def hide(self, noise):
        """Random numbers (B, N) -> which patches are hidden, bool (B, N)."""
        N = noise.size(1)
        order = noise.argsort(dim=1, stable=True)           # the patches by increasing number
        rank = order.argsort(dim=1)                         # of .9, .2, .5 the ranks are 2, 0, 1
        return rank >= n_visible(N, self.config.mask_ratio)

    def decode(self, z, visible):
        """Tokens (B, n + 1, d) of the class and of the visible patches -> patches (B, N, P)."""
        y = self.decoder_embed(z)                           # (B, n + 1, e)
        cls = y[:, :1]                                      # (B, 1, e)
        # put the visible tokens at their places into a row of N mask tokens
        places = visible.unsqueeze(-1).expand(-1, -1, y.size(2))        # (B, n, e)
        filled = self.mask_token.to(y.dtype).expand(y.shape[0], self.embed.N, -1)
        filled = filled.scatter(1, places, y[:, 1:])        # (B, N, e)
        y = torch.cat((cls, filled), dim=1)                 # (B, N + 1, e)
        y = y + self.decoder_pos
        for layer in self.decoder_layers:
            y = layer(y)                                    # (B, N + 1, e)
        patches = self.pixels(self.decoder_norm(y))         # (B, N + 1, P)
        return patches[:, 1:]                               # without the class token: (B, N, P)

    def target(self, x):
        """Pictures (B, C, H, W) -> the patches to predict (B, N, P)."""
        patches = patchify(x, self.config.patch_size)
        if self.config.norm_pix_loss:
            mean, deviation = statistics(patches)
            patches = (patches - mean) / deviation
        return patches

    def loss(self, x, pred, hidden):
        """Mean squared error over the hidden patches."""
        error = pred.float() - self.target(x)               # (B, N, P)
        error = error.square().mean(dim=2)                  # of each patch: (B, N)
        return (error * hidden).sum() / hidden.sum()        # of hidden patches alone

    def features(self, x):
        """Pictures (B, C, H, W) with nothing hidden -> what a classifier would see (B, d). As in
        the classifiers, the norm comes after the mean."""
        z = self.embed(x)                                   # (B, N + 1, d)
        z = self.layers(z)                                  # (B, N + 1, d)
        z = z[:, 0] if self.config.pool == 'cls' else z[:, 1:].mean(dim=1)
        return self.norm(z)

    def reconstruct(self, x, noise=None):
        """Pictures (B, C, H, W) -> pictures, every patch as predicted from the visible ones. (The
        visible ones are predicted too, but training does not count their errors.)

        With norm_pix_loss a predicted patch gets the mean and deviation of the true one back.
        """
        c = self.config
        pred, loss = self(x, noise)
        pred = pred.float()
        if c.norm_pix_loss:
            mean, deviation = statistics(patchify(x, c.patch_size))
            pred = pred * deviation + mean
        return unpatchify(pred, c.image_size, c.patch_size)

    # What follows calls another file: weights/official.py.

    def to_official(self):
        """The weights under the names of the authors' code, as a state dict."""
        from weights.official import VIT_MAE, give
        return give(self, VIT_MAE)

    @classmethod
    def from_official(cls, state_dict, *, n_head, image_size, patch_size, decoder_n_head,
                      **settings):
        """A network with weights of the authors' code. Other sizes are read off the tensors."""
        from weights.official import VIT_MAE, load, unnested
        settings |= dict(n_head=n_head, image_size=image_size, patch_size=patch_size,
                         decoder_n_head=decoder_n_head)
        return load(cls, ViTMAEConfig, unnested(state_dict), VIT_MAE, settings)


# ---- pictures: from patches to tokens -----------------------------------------------------------

class PatchEmbedding(nn.Module):
    """Pictures, float (B, C, H, W) -> tokens (B, n + 1, d), the class token first.

    The tokens are those of the patches at the places `visible`, int64 (B, n), or of all patches.
    """

    def __init__(self, c):
        super().__init__()
        H, W = c.image_size
        h, w = c.patch_size
        self.N = (H // h) * (W // w)
        self.picture_shape = (c.channels, H, W)
        self.patch = nn.Conv2d(c.channels, c.n_embd, (h, w), stride=(h, w))
        self.cls = nn.Parameter(torch.empty(1, 1, c.n_embd))
        self.register_buffer('pos', sines_and_cosines(H // h, W // w, c.n_embd))

    def forward(self, x, visible=None):
        if x.shape[1:] != self.picture_shape:
            raise ValueError(f'pictures are {tuple(x.shape[1:])}, the network takes '
                             f'{self.picture_shape}; resize them')
        z = self.patch(x)                                   # (B, d, H/h, W/w)
        z = z.flatten(2).mT                                 # (B, N, d)
        z = z + self.pos[:, 1:]                             # before some are left out
        if visible is not None:
            places = visible.unsqueeze(-1).expand(-1, -1, z.size(2))    # (B, n, d)
            z = z.gather(1, places)                         # (B, n, d)
        cls = self.cls.expand(z.shape[0], -1, -1)           # (B, 1, d)
        cls = cls + self.pos[:, :1]
        z = torch.cat((cls, z), dim=1)                      # (B, n + 1, d)
        if z.is_cpu and torch.is_autocast_enabled('cpu'):   # on a CPU tokens stay in bfloat16 from
            z = z.to(torch.get_autocast_dtype('cpu'))       # layer to layer, which is faster
        return z


# ---- helpers ------------------------------------------------------------------------------------

def patchify(x, patch_size):
    """Pictures (B, C, H, W) -> patches (B, N, P), from left to right, then downwards.

    The numbers of a patch are in the order row, column, channel, as in model_crate.py.
    """
    B, C, H, W = x.shape
    h, w = patch_size
    x = x.view(B, C, H // h, h, W // w, w)
    x = x.permute(0, 2, 4, 3, 5, 1)                         # (B, H/h, W/w, h, w, C)
    return x.flatten(3).flatten(1, 2)


def unpatchify(patches, image_size, patch_size):
    """Patches (B, N, P) -> pictures (B, C, H, W), as in model_crate_mae.py."""
    H, W = image_size
    h, w = patch_size
    x = patches.unflatten(2, (h, w, -1))                    # (B, N, h, w, C)
    x = x.unflatten(1, (H // h, W // w))                    # (B, H/h, W/w, h, w, C)
    x = x.permute(0, 5, 1, 3, 2, 4)                         # (B, C, H/h, h, W/w, w)
    return x.flatten(4).flatten(2, 3)


def statistics(patches):
    """Patches (B, N, P) -> mean and standard deviation of each, two tensors (B, N, 1), as in
    model_crate_mae.py."""
    # with correction=1 the variance has the divisor P - 1
    variance, mean = torch.var_mean(patches, dim=-1, correction=1, keepdim=True)
    deviation = (variance + 1e-6).sqrt()
    return mean, deviation


def n_visible(N, mask_ratio):
    """How many of N patches stay visible: N (1 - mask_ratio), rounded down, as in
    model_crate_mae.py."""
    return int(N * (1 - mask_ratio) + 1e-6)                 # 10 (1 - 0.9) is a little below 1


def sines_and_cosines(rows, columns, d):
    """Fixed positions of a class token and a grid of patches, (1, N + 1, d), as in
    model_crate_mae.py.

    Those of the class token are zero. Of a patch, the first half of its d numbers encodes the
    column, the second half the row.
    """
    of_row = waves(rows, d // 2)                            # (rows, d/2)
    of_column = waves(columns, d // 2)                      # (columns, d/2)
    of_row = of_row.repeat_interleave(columns, dim=0)       # row 0, row 0, .., row 1, ..: (N, d/2)
    of_column = of_column.repeat(rows, 1)                   # column 0, column 1, ..: (N, d/2)
    pos = torch.cat((of_column, of_row), dim=1)             # (N, d)
    pos = F.pad(pos, (0, 0, 1, 0))                          # zeros in front: (N + 1, d)
    return pos.float().unsqueeze(0)


def waves(length, width):
    """Places 0 .. length - 1 as sines, then cosines, of width / 2 frequencies: (length, width), as
    in model_crate_mae.py."""
    places = torch.arange(length, dtype=torch.float64)
    i = torch.arange(width // 2, dtype=torch.float64)
    frequencies = 10000 ** -(i / (width / 2))
    angles = places[:, None] * frequencies                  # (length, width / 2)
    return torch.cat((angles.sin(), angles.cos()), dim=1)


def initialize(model):
    """As in the authors' code. Linear maps start as Xavier's, with biases 0. The class token and
    the mask token are N(0, 0.02^2). The bias of the patch map starts as PyTorch's."""
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            nn.init.zeros_(module.bias)
    nn.init.xavier_uniform_(model.embed.patch.weight.view(model.config.n_embd, -1))
    nn.init.normal_(model.embed.cls, std=0.02)
    nn.init.normal_(model.mask_token, std=0.02)


def as_pair(size):
    """A number or (height, width) -> (height, width), as in model_crate.py."""
    return (size, size) if isinstance(size, int) else tuple(size)


def check(c):
    """Raise ConfigError if settings do not fit together. Sizes become (height, width)."""
    if c.pool not in ('cls', 'mean'):
        raise ConfigError(f"pool='{c.pool}' is unknown; choose cls or mean")
    for name in ('n_layer', 'n_head', 'n_embd', 'decoder_n_layer', 'decoder_n_head',
                 'decoder_n_embd', 'channels'):
        if getattr(c, name) < 1:
            raise ConfigError(f'{name}={getattr(c, name)} must be at least 1')
    for width, heads in ((c.n_embd, c.n_head), (c.decoder_n_embd, c.decoder_n_head)):
        if width % 4 != 0 or width % heads != 0:
            raise ConfigError(f'a width of {width} must be divisible by its {heads} heads, and by '
                              '4 for the positions; change n_embd, n_head, decoder_n_embd or '
                              'decoder_n_head')
    c.image_size = as_pair(c.image_size)
    c.patch_size = as_pair(c.patch_size)
    for pixels, patch in zip(c.image_size, c.patch_size):
        if pixels < 1 or patch < 1 or pixels % patch != 0:
            raise ConfigError(f'image_size={c.image_size} is not divisible by '
                              f'patch_size={c.patch_size}; choose one that divides both sides')
    H, W = c.image_size
    h, w = c.patch_size
    N = (H // h) * (W // w)
    if not 0 < c.mask_ratio < 1 or not 0 < n_visible(N, c.mask_ratio) < N:
        raise ConfigError(f'mask_ratio={c.mask_ratio} must be between 0 and 1, and leave some of '
                          f'the {N} patches visible and some hidden, such as 0.75')


Network, Config = ViTMAE, ViTMAEConfig  # what --model=vit_mae trains; see docs/extend.md
