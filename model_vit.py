"""ViT and ViT-MAE, the black boxes that CRATE and CRATE-MAE are compared with.

    Dosovitskiy et al. "An Image is Worth 16x16 Words", ICLR 2021; sizes tiny to large as in Touvron et al. (DeiT).
    He et al. "Masked Autoencoders Are Scalable Vision Learners", CVPR 2022.

Pre-norm blocks of multi-head attention and a GELU MLP over patches of a picture. Written beside `model_crate.py` line
for line, so that the diff is the lesson: three projections where CRATE has one subspace basis, and an MLP of 8 d^2
weights with a skip where CRATE has a d x d dictionary without.

    N patches, d = n_embd width, K = n_head heads, p = head_dim width of a head; z is (B, N + 1, d), the class token first

The forward pass equals the ViT of the CRATE repository (timm's) to rounding: exact GELU, biases everywhere, LayerNorm
eps 1e-6, and either the class token after the final LayerNorm (pool='cls') or, as the papers train it, the mean of the
patch tokens, class token left out, and then LayerNorm (pool='mean'). That of ViT-MAE equals the original's: the encoder
is given the visible patches only, at their fixed positions; mask tokens enter before the decoder, which is another,
usually smaller, stack of the same blocks.
"""
import math
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn as nn
import torch.nn.functional as F

LayerNorm = partial(nn.LayerNorm, eps=1e-6)


@dataclass
class ViTConfig:
    image_size: int | tuple = 224   # pixels, or (height, width)
    patch_size: int | tuple = 16    # pixels, or (height, width)
    num_classes: int = 1000         # classes of the classifier
    n_layer: int = 12               # layers: an attention and an MLP each
    n_head: int = 3                 # attention heads
    n_embd: int = 192               # width of a token
    pool: str = 'mean'              # what is classified: 'cls' the class token, 'mean' the mean of the patch tokens
    dropout: float = 0.0            # on embeddings, attention weights and what each half layer adds
    label_smoothing: float = 0.0    # share of the target spread over all classes, in training

    def __post_init__(self):
        check_sizes(self, ('num_classes', 'n_layer', 'n_head', 'n_embd'))
        for name in ('dropout', 'label_smoothing'):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f'{name}={getattr(self, name)} must be in [0, 1)')


def check_sizes(c, at_least_1):
    for name in ('image_size', 'patch_size'):
        size = getattr(c, name)
        setattr(c, name, tuple(size) if isinstance(size, (tuple, list)) else (size, size))
    if c.pool not in ('cls', 'mean'):
        raise ValueError(f"pool='{c.pool}' is unknown; choose cls or mean")
    for name in at_least_1:
        if getattr(c, name) < 1:
            raise ValueError(f'{name}={getattr(c, name)} must be at least 1')
    if any(i < 1 or p < 1 or i % p for i, p in zip(c.image_size, c.patch_size)):
        raise ValueError(f'image_size={c.image_size} is not divisible by patch_size={c.patch_size}; choose '
                         'a patch_size that divides height and width')
    if c.n_embd % c.n_head:
        raise ValueError(f'n_embd={c.n_embd} is not divisible by n_head={c.n_head}')


class Attention(nn.Module):
    """Multi-head self-attention: query, key and value each have their own projection."""

    def __init__(self, n_embd, n_head, dropout):
        super().__init__()
        self.K, self.dropout = n_head, dropout
        self.QKV, self.W = nn.Linear(n_embd, 3 * n_embd), nn.Linear(n_embd, n_embd)

    def project(self, z):
        """Queries, keys and values of tokens (B, N, d): (3, B, K, N, p)."""
        return self.QKV(z).unflatten(2, (3, self.K, -1)).permute(2, 0, 3, 1, 4)

    def forward(self, z):
        q, k, v = self.project(z)                                                        # each (B, K, N, p)
        h = attend(q, k, v, self.dropout * self.training)                                # (B, K, N, p)
        return self.W(h.transpose(1, 2).flatten(2))                                      # (B, N, d)


def attend(q, k, v, dropout=0.0):
    """softmax(q k^T / sqrt(p)) v over all tokens; q, k, v and the result (B, K, N, p)."""
    if q.device.type == 'cpu' and q.dtype == torch.bfloat16 and not dropout:
        # In bfloat16 on CPUs the fused kernel is slower than plain matmuls up to several hundred tokens.
        s = torch.bmm(q.flatten(0, 1) * q.size(-1) ** -0.5, k.flatten(0, 1).mT)
        return (s.softmax(-1) @ v.flatten(0, 1)).view_as(q)
    return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout)


class MLP(nn.Module):
    def __init__(self, n_embd):
        super().__init__()
        self.up, self.down = nn.Linear(n_embd, 4 * n_embd), nn.Linear(4 * n_embd, n_embd)

    def forward(self, z):
        return self.down(F.gelu(self.up(z)))


class Layer(nn.Module):
    def __init__(self, n_embd, n_head, dropout=0.0):
        super().__init__()
        self.norm1, self.attn = LayerNorm(n_embd), Attention(n_embd, n_head, dropout)
        self.norm2, self.mlp = LayerNorm(n_embd), MLP(n_embd)
        self.drop = nn.Dropout(dropout)

    def mix(self, z):
        return z + self.drop(self.attn(self.norm1(z)))

    def transform(self, half):
        return half + self.drop(self.mlp(self.norm2(half)))

    def forward(self, z):
        return self.transform(self.mix(z))


class ViT(nn.Module):
    """pictures -> tokens -> L layers -> classes.

    model(x) -> (logits, None); model(x, y) -> (logits, loss), loss in nats a picture.
    """

    def __init__(self, config):
        super().__init__()
        c = self.config = config
        (H, W), (h, w) = c.image_size, c.patch_size
        self.patch = nn.Conv2d(3, c.n_embd, (h, w), stride=(h, w))
        self.cls = nn.Parameter(torch.zeros(1, 1, c.n_embd))
        self.pos = nn.Parameter(torch.zeros(1, (H // h) * (W // w) + 1, c.n_embd))
        self.drop = nn.Dropout(c.dropout)
        self.layers = nn.ModuleList(Layer(c.n_embd, c.n_head, c.dropout) for _ in range(c.n_layer))
        self.norm, self.head = LayerNorm(c.n_embd), nn.Linear(c.n_embd, c.num_classes)
        self.apply(self._init)

    def _init(self, module):
        """timm's: truncated normal 0.02 for linear maps and positions, 1e-6 for the class token, zero biases; the
        patch map stays at PyTorch's default."""
        if isinstance(module, nn.Linear):
            nn.init.trunc_normal_(module.weight, std=0.02)
            nn.init.zeros_(module.bias)
        elif module is self:
            nn.init.trunc_normal_(self.pos, std=0.02)
            nn.init.normal_(self.cls, std=1e-6)

    def num_params(self):
        return sum(t.numel() for t in self.parameters())

    def embed(self, x):
        """Pictures (B, 3, H, W) to tokens (B, N + 1, d), the class token first."""
        if x.shape[1:] != (3, *self.config.image_size):
            raise ValueError(f'pictures are {tuple(x.shape[1:])}, the model takes {(3, *self.config.image_size)}; resize them, '
                             'or build the model with another image_size')
        z = self.patch(x).flatten(2).mT                                              # (B, N, d)
        return self.drop(torch.cat((self.cls.expand(len(z), -1, -1), z), 1) + self.pos)  # (B, N + 1, d)

    def inside(self, x):
        """To look inside, layer by layer: (attention, what it is given, then tokens after it and after the layer), tokens
        (B, N + 1, d). Nothing is hidden."""
        z = self.embed(x)
        for layer in self.layers:
            normed, half = layer.norm1(z), layer.mix(z)
            z = layer.transform(half)
            yield layer.attn, normed, half, z

    def features(self, x):
        """Pictures (B, 3, H, W) to what is classified (B, d)."""
        z = self.embed(x)
        for layer in self.layers:
            z = layer(z)                                                  # (B, N + 1, d)
        return self.norm(z[:, 0] if self.config.pool == 'cls' else z[:, 1:].mean(1))

    def forward(self, x, y=None):
        """x float (B, 3, H, W), normalized; y int64 (B,). Returns (logits (B, num_classes), loss or None)."""
        logits = self.head(self.features(x))
        if y is None:
            return logits, None
        return logits, F.cross_entropy(logits.float(), y, label_smoothing=self.config.label_smoothing * self.training)

    # ---- the authors' weights -------------------------------------------------------------------------------------

    def official_names(self):
        """{our tensor name: timm's, as the CRATE repository uses it}, in the order of its state dict."""
        names = {'cls': 'cls_token', 'pos': 'pos_embed'} | {f'patch.{t}': f'patch_embed.proj.{t}' for t in ('weight', 'bias')}
        names |= block_names('layers', 'blocks', self.config.n_layer)
        for ours, theirs in (('norm', 'norm' if self.config.pool == 'cls' else 'fc_norm'), ('head', 'head')):
            names |= {f'{ours}.{t}': f'{theirs}.{t}' for t in ('weight', 'bias')}
        return names

    def to_official(self):
        """This model's weights as the released code's state dict."""
        weights = self.state_dict()
        return {theirs: weights[ours] for ours, theirs in self.official_names().items()}

    @classmethod
    def from_official(cls, state_dict, *, n_head, image_size, patch_size, **overrides):
        """A model from the released code's weights: a state dict, or a checkpoint that nests one under `state_dict`
        or `model`, with or without the `module.` prefix of data-parallel training.

        Widths, depth, classes and pooling are read off the tensors; overrides are other settings, such as dropout.
        Raises ValueError that names the tensors which are missing, unexpected or of a wrong shape.
        """
        from engine import official  # here, so that this file stands alone
        sd = official.unnested(state_dict)
        if not {'head.weight', 'pos_embed', 'blocks.0.attn.qkv.weight'} <= sd.keys():
            raise ValueError('not a ViT state dict: no head.weight, pos_embed or blocks.0.attn.qkv.weight among '
                             f'{sorted(sd)[:4]} ..')
        num_classes, n_embd = sd['head.weight'].shape
        sizes = dict(image_size=image_size, patch_size=patch_size, num_classes=num_classes, n_head=n_head, n_embd=n_embd,
                     n_layer=official.depth(sd, 'blocks'), pool='mean' if 'fc_norm.weight' in sd else 'cls')
        return official.fill(cls(ViTConfig(**sizes | overrides)), sd)


def block_names(layers, blocks, n):
    """{our tensor name: timm's} of n layers."""
    parts = (('norm1', 'norm1'), ('attn.QKV', 'attn.qkv'), ('attn.W', 'attn.proj'),
             ('norm2', 'norm2'), ('mlp.up', 'mlp.fc1'), ('mlp.down', 'mlp.fc2'))
    return {f'{layers}.{l}.{ours}.{t}': f'{blocks}.{l}.{theirs}.{t}' for l in range(n) for ours, theirs in parts
            for t in ('weight', 'bias')}


# ---- ViT-MAE ---------------------------------------------------------------------------------------------------------


@dataclass
class ViTMAEConfig:
    image_size: int | tuple = 224   # pixels, or (height, width)
    patch_size: int | tuple = 16    # pixels, or (height, width)
    n_layer: int = 12               # layers of the encoder: an attention and an MLP each
    n_head: int = 6                 # its attention heads
    n_embd: int = 384               # its width of a token, a multiple of 4
    decoder_n_layer: int = 8        # layers of the decoder
    decoder_n_head: int = 16        # its attention heads
    decoder_n_embd: int = 512       # its width of a token, a multiple of 4
    mask_ratio: float = 0.75        # share of the patches that is hidden
    norm_pix_loss: bool = False     # predict pixels of each patch less their mean, over their deviation
    pool: str = 'cls'               # features of a picture: 'cls' the class token, 'mean' the mean of the patch tokens

    def __post_init__(self):
        check_sizes(self, ('n_layer', 'n_head', 'n_embd', 'decoder_n_layer', 'decoder_n_head', 'decoder_n_embd'))
        for width, heads in ((self.n_embd, self.n_head), (self.decoder_n_embd, self.decoder_n_head)):
            if width % 4 or width % heads:
                raise ValueError(f'a width of {width} is not divisible by {heads} heads, or not by 4, as sines and cosines of '
                                 'rows and columns need; change n_embd, n_head, decoder_n_embd or decoder_n_head')
        N = math.prod(i // p for i, p in zip(self.image_size, self.patch_size))
        if not 0 < self.mask_ratio < 1 or not 0 < int(N * (1 - self.mask_ratio)) < N:
            raise ValueError(f'mask_ratio={self.mask_ratio} must lie between 0 and 1 and leave some of the {N} patches '
                             'visible and some hidden, such as 0.75')


def patchify(x, patch_size):
    """Pictures (B, C, H, W) to patches (B, N, P), row by row; inside a patch: row, column, channel."""
    (B, C, H, W), (h, w) = x.shape, patch_size
    x = x.reshape(B, C, H // h, h, W // w, w).permute(0, 2, 4, 3, 5, 1)  # (B, H/h, W/w, h, w, C)
    return x.reshape(B, (H // h) * (W // w), h * w * C)


def unpatchify(patches, image_size, patch_size):
    """Patches (B, N, P) to pictures (B, C, H, W), the way back."""
    B, (H, W), (h, w) = len(patches), image_size, patch_size
    x = patches.reshape(B, H // h, W // w, h, w, -1).permute(0, 5, 1, 3, 2, 4)  # (B, C, H/h, h, W/w, w)
    return x.reshape(B, -1, H, W)


def statistics(patches):
    """Mean and deviation, with divisor P - 1, of every patch (.., P): two tensors (.., 1)."""
    variance, mean = torch.var_mean(patches, -1, keepdim=True)
    return mean, (variance + 1e-6).sqrt()


def sines_and_cosines(grid, d):
    """Positions (1, N + 1, d) of a grid (down, across): zeros for the class token, then for every patch half of the
    channels for its column and half for its row, each half sines, then cosines, of frequencies 10000^(-4 j / d)."""
    down, across = (torch.arange(n, dtype=torch.float64) for n in grid)
    frequencies = 10000 ** -(torch.arange(d // 4, dtype=torch.float64) / (d / 4))
    rows, columns = (torch.cat(((a := n[:, None] * frequencies).sin(), a.cos()), 1) for n in (down, across))  # (n, d/2)
    pos = torch.cat((columns.repeat(len(down), 1), rows.repeat_interleave(len(across), 0)), 1)                # (N, d)
    return F.pad(pos, (0, 0, 1, 0)).float()[None]


class ViTMAE(nn.Module):
    """pictures -> visible patches -> encoder -> mask tokens for the others -> decoder -> pictures.

    model(x, noise) -> (predicted patches (B, N, P), loss): mean squared error of the hidden ones.
    """

    def __init__(self, config):
        super().__init__()
        c = self.config = config
        (H, W), (h, w) = c.image_size, c.patch_size
        grid, P, width = (H // h, W // w), h * w * 3, c.decoder_n_embd
        self.cls = nn.Parameter(torch.empty(1, 1, c.n_embd))
        self.register_buffer('pos', sines_and_cosines(grid, c.n_embd))
        self.patch = nn.Conv2d(3, c.n_embd, (h, w), stride=(h, w))
        self.layers = nn.Sequential(*(Layer(c.n_embd, c.n_head) for _ in range(c.n_layer)))
        self.norm = LayerNorm(c.n_embd)
        self.decoder_embed = nn.Linear(c.n_embd, width)
        self.mask_token = nn.Parameter(torch.empty(1, 1, width))
        self.register_buffer('decoder_pos', sines_and_cosines(grid, width))
        self.decoder_layers = nn.Sequential(*(Layer(width, c.decoder_n_head) for _ in range(c.decoder_n_layer)))
        self.decoder_norm, self.pixels = LayerNorm(width), nn.Linear(width, P)
        self.apply(self._init)

    def _init(self, module):
        """The original's: Xavier for linear maps and patches, zero biases but the patch map's, tokens normal 0.02."""
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            nn.init.zeros_(module.bias)
        elif module is self:
            nn.init.xavier_uniform_(self.patch.weight.view(self.config.n_embd, -1))
            nn.init.normal_(self.cls, std=0.02)
            nn.init.normal_(self.mask_token, std=0.02)

    def visible(self, noise):
        """Indices of the visible patches: the int(N * (1 - mask_ratio)) with the least noise (B, N), the least first."""
        return noise.argsort(dim=1, stable=True)[:, :int(noise.size(1) * (1 - self.config.mask_ratio))]

    def hide(self, noise):
        """Which patches are hidden, bool (B, N)."""
        return torch.ones_like(noise, dtype=torch.bool).scatter(1, self.visible(noise), False)

    def embed(self, x, visible=None):
        """Pictures (B, 3, H, W) to tokens of the patches at indices visible (B, n), else of all, the class token first."""
        if x.shape[1:] != (3, *self.config.image_size):
            raise ValueError(f'pictures are {tuple(x.shape[1:])}, the model takes {(3, *self.config.image_size)}; resize them, '
                             'or build the model with another image_size')
        z = self.patch(x).flatten(2).mT + self.pos[:, 1:]                            # (B, N, d)
        if visible is not None:
            z = z.gather(1, visible[..., None].expand(-1, -1, z.size(2)))            # (B, n, d)
        return torch.cat((self.cls.expand(len(z), -1, -1) + self.pos[:, :1], z), 1)  # (B, n + 1, d)

    def encode(self, x):
        """Pictures (B, 3, H, W), nothing hidden, to normalized tokens (B, N + 1, d), the class token first."""
        return self.norm(self.layers(self.embed(x)))

    def features(self, x):
        """Pictures (B, 3, H, W) to what a classifier would look at (B, d)."""
        z = self.layers(self.embed(x))
        return self.norm(z[:, 0] if self.config.pool == 'cls' else z[:, 1:].mean(1))

    def decode(self, z, visible):
        """Tokens (B, n + 1, d) of the class and the patches at indices visible (B, n) to all patches (B, N, P)."""
        y, N = self.decoder_embed(z), self.pos.size(1) - 1
        full = self.mask_token.to(y.dtype).expand(len(y), N, -1)
        full = full.scatter(1, visible[..., None].expand(-1, -1, y.size(2)), y[:, 1:])
        y = self.decoder_layers(torch.cat((y[:, :1], full), 1) + self.decoder_pos)   # (B, N + 1, width)
        return self.pixels(self.decoder_norm(y))[:, 1:]

    def forward(self, x, noise=None):
        """x float (B, 3, H, W), normalized. noise (B, N): the patches with the least are visible; random by default.
        Returns (patches (B, N, P), loss); with norm_pix_loss the patches are normalized ones."""
        if noise is None:
            noise = torch.rand(len(x), self.pos.size(1) - 1, device=x.device)
        visible = self.visible(noise)
        pred = self.decode(self.norm(self.layers(self.embed(x, visible))), visible)
        return pred, self.loss(x, pred, self.hide(noise))

    def target(self, x):
        """What is to be predicted of pictures (B, 3, H, W): their patches (B, N, P), normalized with norm_pix_loss."""
        patches = patchify(x, self.config.patch_size)
        if self.config.norm_pix_loss:
            mean, deviation = statistics(patches)
            patches = (patches - mean) / deviation
        return patches

    def loss(self, x, pred, hidden):
        """Squared error, mean over the pixels of the hidden patches."""
        error = (pred.float() - self.target(x)).square().mean(-1)                    # (B, N)
        return (error * hidden).sum() / hidden.sum()

    def reconstruct(self, x, noise=None):
        """Pictures (B, 3, H, W) as they are predicted from their visible patches, (B, 3, H, W), everywhere, visible
        patches included. With norm_pix_loss each patch is given the true picture's mean and deviation."""
        pred = self(x, noise)[0].float()
        if self.config.norm_pix_loss:
            mean, deviation = statistics(patchify(x, self.config.patch_size))
            pred = pred * deviation + mean
        return unpatchify(pred, self.config.image_size, self.config.patch_size)

    def official_names(self):
        """{our tensor name: the original MAE's}, in the order of its state dict."""
        names = {'cls': 'cls_token', 'pos': 'pos_embed', 'mask_token': 'mask_token', 'decoder_pos': 'decoder_pos_embed'}
        names |= {f'patch.{t}': f'patch_embed.proj.{t}' for t in ('weight', 'bias')}
        names |= block_names('layers', 'blocks', self.config.n_layer)
        names |= {f'{k}.{t}': f'{k}.{t}' for k in ('norm', 'decoder_embed') for t in ('weight', 'bias')}
        names |= block_names('decoder_layers', 'decoder_blocks', self.config.decoder_n_layer)
        for ours, theirs in (('decoder_norm', 'decoder_norm'), ('pixels', 'decoder_pred')):
            names |= {f'{ours}.{t}': f'{theirs}.{t}' for t in ('weight', 'bias')}
        return names

    num_params, inside, to_official, FIXED = ViT.num_params, ViT.inside, ViT.to_official, ('pos_embed', 'decoder_pos_embed')

    @classmethod
    def from_official(cls, state_dict, *, n_head, image_size, patch_size, decoder_n_head, **overrides):
        """A model from the original MAE's weights: a state dict, or a checkpoint that nests one under `model` or
        `state_dict`, with or without the `module.` prefix of data-parallel training.

        Widths and depths are read off the tensors; overrides are other settings, such as norm_pix_loss. The file may lack
        the two tables of fixed positions; if it has them they must equal ours.
        Raises ValueError that names the tensors which are missing, unexpected, of a wrong shape or other positions.
        """
        from engine import official  # here, so that this file stands alone
        sd = official.unnested(state_dict)
        if not {'blocks.0.attn.qkv.weight', 'cls_token'} <= sd.keys():
            raise ValueError(f'not a ViT-MAE state dict: no blocks.0.attn.qkv.weight or cls_token among {sorted(sd)[:4]} ..')
        if 'decoder_embed.weight' not in sd:
            raise ValueError('this ViT-MAE state dict has no decoder, so nothing can be reconstructed with it; take the '
                             'checkpoint that has one, which the authors offer for visualization')
        width, n_embd = sd['decoder_embed.weight'].shape
        sizes = dict(image_size=image_size, patch_size=patch_size, n_head=n_head, n_embd=n_embd,
                     n_layer=official.depth(sd, 'blocks'), decoder_n_layer=official.depth(sd, 'decoder_blocks'),
                     decoder_n_head=decoder_n_head, decoder_n_embd=width)
        return official.fill(cls(ViTMAEConfig(**sizes | overrides)), sd)
