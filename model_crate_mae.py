"""CRATE-MAE, a white-box masked autoencoder: compress and sparsify tokens layer by layer, then undo it layer by layer.

    Pai, Wu, Buchanan, Yu, Ma. "Masked Completion via Structured Diffusion with White-Box Transformers", ICLR 2024.

The idea. To compress tokens against subspaces is to denoise them (Theorem 1): a step along -grad R^c is a step of a
diffusion run backwards, and a deterministic flow can be reversed. So CRATE's layer is the encoder's (eq. 2.14), and
the same steps with the opposite sign, in reverse order, are the decoder's (eq. 2.17):

    Z^(l+1/2) = Z^l + MSSA(Z^l | U)          compress            Y^(l+1/2) = E Y^l                     leave the code
    Z^(l+1)   = ISTA(Z^(l+1/2) | D)          sparsify            Y^(l+1)   = Y^(l+1/2) - MSSA(.. | V)  anti-compress

Most patches of a picture are hidden; the network learns to predict them from the others (eq. 2.22).

    paper     code               meaning
    N         N                  patches of a picture; there are N + 1 tokens, the class token first
    D         P                  numbers in a patch: height x width x channels
    d         n_embd             width of a token, in the encoder and in the decoder
    K         n_head             subspaces, one per attention head
    p         head_dim           dimension of a subspace
    L         n_layer            layers of the encoder
    mu        mask_ratio         share of the patches that are hidden
    Z, Y      z, y  (B, N + 1, d)   tokens in the encoder and in the decoder, one per row; the paper writes d x N
    U_k, V_k  U.weight[k*p:(k+1)*p].T   basis of subspace k, (d, p), of a layer of the encoder and of the decoder
    D         D                  dictionary of an encoder layer, (d, d): D z
    E         E.weight           dictionary of a decoder layer, (d, d): E y
    W^pre     patch.weight       patches to tokens, (d, channels, height, width)
    E^pos     pos                positions, fixed sines and cosines
    W^post    pixels.weight      tokens to patches, (P, d)
    eta       eta                step size of ISTA
    lambda    lam                weight of sparsity

The outputs equal those of the authors' code. Where that departs from the paper:
  * hidden patches become a learned mask token, and positions are added after that; `masking='zero'` is Appendix B.1,
    which sets their pixels to zero. (B.1 says that (1 - mu) N patches are hidden, where it must mean mu N.)
  * the decoder subtracts from E y itself, not from its LayerNorm; `decoder_skip='normed'` is listing 3 of Appendix B.2;
  * LayerNorm before each half step and after encoder and decoder; the softmax is scaled by 1/sqrt(p); W is free and has
    a bias (`tie_out=True` is eq. 2.8 without its factor); all as in `model_crate.py`.
Where this file departs from both: it has no embedding before the decoder (Base: 590,592 parameters), which the
authors' code builds and never uses, and counts no position tables, which are fixed (two of 151,296 there, one here).
The paper counts all three: 44,638,464 parameters, here 43,745,280.
"""
import math
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F

attention = F.scaled_dot_product_attention  # engine/fast.py puts a faster function with the same result here


@dataclass
class CRATEMAEConfig:
    n_layer: int = 12               # layers of the encoder: a compression and a sparsification each
    n_head: int = 12                # attention heads, one subspace each
    n_embd: int = 576               # width of a token, a multiple of 4
    head_dim: int = 0               # dimension of a subspace; 0 means n_embd / n_head
    decoder_n_layer: int = 0        # layers of the decoder; 0 means as many as the encoder's
    decoder_n_head: int = 0         # its attention heads; 0 means as many as the encoder's
    eta: float = 0.1                # step size of ISTA, eq. (2.9)
    lam: float = 0.5                # weight lambda of sparsity, eq. (2.7)
    tie_out: bool = False           # W = [U_1 .. U_K], eq. (2.8), instead of a free output map
    image_size: int | tuple = 224   # pixels, or (height, width)
    patch_size: int | tuple = 16    # pixels of a patch, or (height, width)
    channels: int = 3               # 3 for colour, 1 for grey
    mask_ratio: float = 0.75        # share of the patches that are hidden
    masking: str = 'token'          # hidden patches become 'token', a learned token, or 'zero', pixels of zero (B.1)
    decoder_skip: str = 'raw'       # the decoder's skip comes from 'raw' tokens, or from 'normed' ones (listing 3)
    norm_pix_loss: bool = False     # predict each patch less its mean, divided by its standard deviation
    pool: str = 'cls'               # features of a picture: 'cls', the class token, or 'mean', the mean of all tokens

    task = 'masked_image'

    def __post_init__(self):
        check(self)


# ---- the operators --------------------------------------------------------------------------------------------------

class MSSA(nn.Module):
    """Multi-head subspace self-attention, eq. (2.8), as in `model_crate.py`."""

    def __init__(self, c, n_head):
        super().__init__()
        self.K, width = n_head, n_head * (c.head_dim or c.n_embd // n_head)
        self.U = nn.Linear(c.n_embd, width, bias=False)                 # all U_k^T, one below the other
        one_full_head = n_head == 1 and width == c.n_embd               # then the authors' code has no output map
        self.W = None if c.tie_out or one_full_head else nn.Linear(width, c.n_embd)
        self.tie_out = c.tie_out

    def forward(self, z):
        w = self.U(z)                                   # U_k^T Z, the K heads side by side: (B, N, K p)
        h = average(w, w, w, self.K)                    # (U_k^T Z) softmax(..) in each head, eq. (2.8): (B, N, K p)
        if self.tie_out:
            return F.linear(h, self.U.weight.T)         # [U_1 .. U_K] of them, eq. (2.8): (B, N, d)
        return h if self.W is None else self.W(h)       # or a free map of them: (B, N, d)


class ISTA(nn.Module):
    """One proximal-gradient step on the non-negative LASSO of eq. (2.7), started at Z = Z^(l+1/2): eq. (2.9)."""

    def __init__(self, c):
        super().__init__()
        self.D = nn.Parameter(torch.empty(c.n_embd, c.n_embd))
        self.eta, self.lam = c.eta, c.lam

    def forward(self, z):
        residual = z - F.linear(z, self.D)                              # Z - D Z: (B, N, d)
        step = z + self.eta * F.linear(residual, self.D.T)              # Z - eta D^T (D Z - Z), two products in all
        return F.relu(step - self.eta * self.lam)                       # eq. (2.9)


class EncoderLayer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.norm1, self.attn = nn.LayerNorm(c.n_embd), MSSA(c, c.n_head)
        self.norm2, self.ista = nn.LayerNorm(c.n_embd), ISTA(c)

    def forward(self, z):
        z = z + self.attn(self.norm1(z))                                # compress: Z^(l+1/2), eq. (2.14) left
        return self.ista(self.norm2(z))                                 # sparsify: Z^(l+1), eq. (2.14) right, no skip


class DecoderLayer(nn.Module):
    """The steps of an encoder layer undone, the last one first."""

    def __init__(self, c):
        super().__init__()
        self.norm1, self.E = nn.LayerNorm(c.n_embd), nn.Linear(c.n_embd, c.n_embd, bias=False)
        self.norm2, self.attn = nn.LayerNorm(c.n_embd), MSSA(c, c.decoder_n_head or c.n_head)
        self.skip_normed = c.decoder_skip == 'normed'

    def forward(self, y):
        y = self.E(self.norm1(y))                                       # leave the code: Y^(l+1/2), eq. (2.17) left
        normed = self.norm2(y)
        return (normed if self.skip_normed else y) - self.attn(normed)  # anti-compress: Y^(l+1), eq. (2.17) right


# ---- the network ----------------------------------------------------------------------------------------------------

class CRATEMAE(nn.Module):
    """model(x) or model(x, noise) -> (predicted patches (B, N, P), loss), the squared error of the hidden patches."""

    classifier = 'crate', {'patch_norm': False}  # the network that can start from this encoder, and its settings

    def __init__(self, config):
        super().__init__()
        c = self.config = config
        self.embed = PatchEmbedding(c)
        self.layers = nn.Sequential(*(EncoderLayer(c) for _ in range(c.n_layer)))
        self.norm = nn.LayerNorm(c.n_embd, eps=1e-6)                    # as the authors; inside the layers it is 1e-5
        self.decoder_layers = nn.Sequential(*(DecoderLayer(c) for _ in range(c.decoder_n_layer or c.n_layer)))
        self.decoder_norm = nn.LayerNorm(c.n_embd, eps=1e-6)
        self.pixels = nn.Linear(c.n_embd, math.prod(c.patch_size) * c.channels)
        initialize(self)

    def forward(self, x, noise=None):
        """x float (B, C, H, W), normalized. noise (B, N): the patches with the largest are hidden; random by default.
        Returns (patches (B, N, P), loss); with norm_pix_loss the patches are normalized ones."""
        hidden = self.hide(torch.rand(len(x), self.embed.N, device=x.device) if noise is None else noise)
        z = self.embed(x, hidden)                                       # (B, N + 1, d)
        for layer in self.layers:
            z = layer(z)                                                # eq. (2.14)
        pred = self.decode(self.norm(z))
        return pred, self.loss(x, pred, hidden)

    def hide(self, noise):
        """Which patches are hidden, bool (B, N): all but the `visible` ones with the least noise (B, N)."""
        return noise.argsort(dim=1, stable=True).argsort(1) >= n_visible(noise.size(1), self.config.mask_ratio)

    def decode(self, y):
        """Tokens (B, N + 1, d) to patches (B, N, P), without the class token, eqs. (2.20), (2.21) and (B.2)."""
        for layer in self.decoder_layers:
            y = layer(y)                                                # eq. (2.17)
        return self.pixels(self.decoder_norm(y))[:, 1:]                 # W^post Y, eq. (B.2)

    def target(self, x):
        """The patches (B, N, P) to predict of pictures (B, C, H, W); normalized with norm_pix_loss."""
        patches = patchify(x, *self.embed.sizes)
        if self.config.norm_pix_loss:
            mean, deviation = statistics(patches)
            patches = (patches - mean) / deviation
        return patches

    def loss(self, x, pred, hidden):
        """Mean squared error over the hidden patches, bool (B, N), to which Appendix B.1 restricts eq. (2.22)."""
        error = (pred.float() - self.target(x)).square().mean(-1)       # (B, N)
        return (error * hidden).sum() / hidden.sum()                    # eq. (2.22), over hidden patches

    def encode(self, x):
        """Pictures (B, C, H, W), nothing hidden, to tokens after the final norm (B, N + 1, d)."""
        return self.norm(self.layers(self.embed(x)))

    def features(self, x):
        """Pictures (B, C, H, W), nothing hidden, to what a classifier would see (B, d)."""
        z = self.layers(self.embed(x))
        return self.norm(z[:, 0] if self.config.pool == 'cls' else z.mean(1))

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
        return official.to_crate_mae(self)

    @classmethod
    def from_official(cls, state_dict, *, n_head, image_size, patch_size, decoder_n_head=0, **overrides):
        """A network with the authors' weights; see engine/official.py."""
        from engine import official
        return official.from_crate_mae(cls, CRATEMAEConfig, state_dict, n_head=n_head, image_size=image_size,
                                       patch_size=patch_size, decoder_n_head=decoder_n_head, **overrides)


class PatchEmbedding(nn.Module):
    """Pictures (B, C, H, W) to tokens (B, N + 1, d), the class token first, eqs. (2.18) and (B.1). The patches where
    `hidden`, bool (B, N), are replaced by the mask token."""

    def __init__(self, c):
        super().__init__()
        (H, W), (h, w) = c.image_size, c.patch_size
        self.sizes, self.N = (c.channels, H, W, h, w), (H // h) * (W // w)
        self.patch = nn.Conv2d(c.channels, c.n_embd, (h, w), stride=(h, w))
        self.cls = nn.Parameter(torch.empty(1, 1, c.n_embd))
        self.mask_token = nn.Parameter(torch.empty(1, 1, c.n_embd)) if c.masking == 'token' else None
        self.register_buffer('pos', sines_and_cosines((H // h, W // w), c.n_embd))

    def forward(self, x, hidden=None):
        check_pictures(x, *self.sizes[:3])
        z = self.patch(x).flatten(2).mT                                 # W^pre X: (B, N, d)
        if hidden is not None:  # of pixels of zero, the bias of the patch map remains
            masked = self.patch.bias if self.mask_token is None else self.mask_token
            z = torch.where(hidden[..., None], masked.to(z.dtype), z)
        return torch.cat((self.cls.expand(len(z), -1, -1), z), 1) + self.pos      # eq. (B.1): (B, N + 1, d)


# ---- helpers without an equation ------------------------------------------------------------------------------------

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
    """As the authors: Xavier for linear maps, zero biases except the patch map's, D and E uniform within sqrt(6/d)."""
    def init(module):
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        if isinstance(module, (EncoderLayer, DecoderLayer)):  # `apply` visits a layer after its parts
            dictionary = module.ista.D if isinstance(module, EncoderLayer) else module.E.weight
            nn.init.uniform_(dictionary, -math.sqrt(6 / len(dictionary)), math.sqrt(6 / len(dictionary)))
    model.apply(init)
    nn.init.xavier_uniform_(model.embed.patch.weight.view(model.config.n_embd, -1))
    for token in filter(lambda t: t is not None, (model.embed.cls, model.embed.mask_token)):
        nn.init.normal_(token, std=0.02)


def check(c):
    """Raises ValueError where settings do not fit together; makes image_size and patch_size (height, width)."""
    for name, known in (('pool', ('cls', 'mean')), ('masking', ('token', 'zero')), ('decoder_skip', ('raw', 'normed'))):
        if getattr(c, name) not in known:
            raise ValueError(f"{name}='{getattr(c, name)}' is unknown; choose {' or '.join(known)}")
    for name in ('n_layer', 'n_head', 'n_embd', 'channels'):
        if getattr(c, name) < 1:
            raise ValueError(f'{name}={getattr(c, name)} must be at least 1')
    c.image_size, c.patch_size = (tuple(s) if isinstance(s, (tuple, list)) else (s, s)
                                  for s in (c.image_size, c.patch_size))
    if any(i < 1 or p < 1 or i % p for i, p in zip(c.image_size, c.patch_size)):
        raise ValueError(f'image_size={c.image_size} is not divisible by patch_size={c.patch_size}; choose a '
                         'patch_size that divides height and width')
    if c.n_embd % 4:
        raise ValueError(f'n_embd={c.n_embd} is not a multiple of 4, which the sines and cosines of positions need')
    for name in ('n_head', 'decoder_n_head'):
        if not c.head_dim and getattr(c, name) and c.n_embd % getattr(c, name):
            raise ValueError(f'n_embd={c.n_embd} is not divisible by {name}={getattr(c, name)}; change one')
    N = math.prod(i // p for i, p in zip(c.image_size, c.patch_size))
    if not 0 < c.mask_ratio < 1 or not 0 < n_visible(N, c.mask_ratio) < N:
        raise ValueError(f'mask_ratio={c.mask_ratio} must lie between 0 and 1 and leave some of the {N} patches '
                         'visible and some hidden, such as 0.75')


Network, Config = CRATEMAE, CRATEMAEConfig  # what --model=crate_mae trains; see docs/extend.md
