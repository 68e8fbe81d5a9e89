"""CRATE-MAE, a white-box masked autoencoder: compress and sparsify tokens layer by layer, then undo it layer by layer.

    Pai, Wu, Buchanan, Yu, Ma. "Masked Completion via Structured Diffusion with White-Box Transformers", ICLR 2024.

The idea. Compressing tokens against subspaces is denoising them (Theorem 1): a step along -grad R^c is a step of a
diffusion run backwards, and a deterministic flow can be reversed. So CRATE's layer is an encoder's (eq. 2.14), and the
same steps with the sign turned, in reverse order, are a decoder's (eq. 2.17):

    Z^(l+1/2) = Z^l + MSSA(Z^l | U)          compress                Y^(l+1/2) = E Y^l                     leave the code
    Z^(l+1)   = ISTA(Z^(l+1/2) | D)          sparsify                Y^(l+1)   = Y^(l+1/2) - MSSA(.. | V)  anti-compress

Most patches of a picture are hidden; the network learns to predict them from the others (eq. 2.22).

    paper     code               meaning
    N         N                  patches of a picture; the sequence has N + 1 tokens, the class token first
    D         P                  numbers in a patch: height x width x 3
    d         d, n_embd          width of a token, in the encoder and in the decoder
    K         K, n_head          subspaces, one per attention head
    p         p, head_dim        dimension of a subspace
    L         n_layer            layers of the encoder
    mu        mask_ratio         share of the patches that is hidden
    Z         z  (B, N + 1, d)   tokens in the encoder, one a row; the paper writes d x N, one a column
    Y         y  (B, N + 1, d)   tokens in the decoder
    U_k, V_k  U.weight[k*p:(k+1)*p].T   basis of subspace k, (d, p), of an encoder's and of a decoder's layer
    D         D                  dictionary of an encoder's layer, (d, d), applied to tokens as columns: D z
    E         E.weight           dictionary of a decoder's layer, (d, d): E y
    W^pre     patch.weight       patches to tokens, (d, 3, height, width)
    E^pos     pos                positions, fixed sines and cosines
    W^post    pixels.weight      tokens to patches, (P, d)
    eta       eta                step size of ISTA
    lambda    lam                weight of sparsity

By default this is the authors' released code, whose forward pass it equals to rounding. Where that departs from the paper:
  * hidden patches become a learned mask token, and positions are added after that; `masking='zero'` is appendix B.1,
    the pixels set to zero. (B.1 says that (1 - mu) N patches are hidden where it must mean mu N.)
  * the decoder subtracts from E y itself, not from its LayerNorm; `decoder_skip='normed'` is listing 3 of appendix B.2;
  * LayerNorm before each half step and after the encoder and the decoder; the softmax is scaled by 1/sqrt(p); W is free
    and has a bias (`tie_out=True` is eq. 2.8); all as in `model_crate.py`.
Where this file departs from both: it leaves out the released code's dead weight, an embedding before the decoder and a
second position table that no forward pass reads. The paper's counts have them (base: 44,638,464; here 43,745,280).
"""
import math
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class CRATEMAEConfig:
    image_size: int | tuple = 224     # pixels, or (height, width)
    patch_size: int | tuple = 16      # pixels, or (height, width)
    n_layer: int = 12                 # layers of the encoder: a compression and a sparsification each
    n_head: int = 12                  # attention heads, one subspace each
    n_embd: int = 576                 # width of a token, a multiple of 4
    head_dim: int = 0                 # dimension of a subspace; 0 means n_embd / n_head
    decoder_n_layer: int = 0          # layers of the decoder; 0 means as many as the encoder's
    decoder_n_head: int = 0           # its attention heads; 0 means as many as the encoder's
    mask_ratio: float = 0.75          # share of the patches that is hidden
    masking: str = 'token'            # hidden patches become 'token', a learned token, or 'zero', pixels of zero (B.1)
    decoder_skip: str = 'raw'         # the decoder's skip comes from 'raw' tokens, or from 'normed' ones (listing 3)
    norm_pix_loss: bool = False       # predict pixels of each patch less their mean, over their deviation
    eta: float = 0.1                  # step size of ISTA, eq. (2.9)
    lam: float = 0.5                  # weight lambda of sparsity, eq. (2.7)
    tie_out: bool = False             # W = [U_1 .. U_K], eq. (2.8), instead of a free output map
    pool: str = 'cls'                 # features of a picture: 'cls' the class token, 'mean' the mean of all tokens

    def __post_init__(self):
        for name in ('image_size', 'patch_size'):
            size = getattr(self, name)
            setattr(self, name, tuple(size) if isinstance(size, (tuple, list)) else (size, size))
        for name, choices in (('pool', ('cls', 'mean')), ('masking', ('token', 'zero')), ('decoder_skip', ('raw', 'normed'))):
            if getattr(self, name) not in choices:
                raise ValueError(f"{name}='{getattr(self, name)}' is unknown; choose {' or '.join(choices)}")
        for name in ('n_layer', 'n_head', 'n_embd'):
            if getattr(self, name) < 1:
                raise ValueError(f'{name}={getattr(self, name)} must be at least 1')
        for name in ('head_dim', 'decoder_n_layer', 'decoder_n_head'):
            if getattr(self, name) < 0:
                raise ValueError(f'{name}={getattr(self, name)} must be at least 1, or 0 for the default')
        if any(i < 1 or p < 1 or i % p for i, p in zip(self.image_size, self.patch_size)):
            raise ValueError(f'image_size={self.image_size} is not divisible by patch_size={self.patch_size}; choose '
                             'a patch_size that divides height and width')
        if self.n_embd % 4:
            raise ValueError(f'n_embd={self.n_embd} is not a multiple of 4, as sines and cosines of rows and columns need')
        for name in ('n_head', 'decoder_n_head'):
            if not self.head_dim and getattr(self, name) and self.n_embd % getattr(self, name):
                raise ValueError(f'n_embd={self.n_embd} is not divisible by {name}={getattr(self, name)}; change one, or '
                                 'set head_dim')
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


class MSSA(nn.Module):
    """Multi-head subspace self-attention, eq. (2.8), as in `model_crate.py`."""

    def __init__(self, c, n_head):
        super().__init__()
        self.K, self.p, self.tie_out = n_head, c.head_dim or c.n_embd // n_head, c.tie_out
        self.U = nn.Linear(c.n_embd, self.K * self.p, bias=False)  # all U_k^T, one under the other
        one_full_head = self.K == 1 and self.p == c.n_embd         # then the released code has no output map
        self.W = None if c.tie_out or one_full_head else nn.Linear(self.K * self.p, c.n_embd)

    def project(self, z):
        """Tokens (B, N, d) in the coordinates of each subspace, U_k^T Z: (B, K, N, p)."""
        return self.U(z).unflatten(2, (self.K, self.p)).transpose(1, 2)

    def forward(self, z):
        w = self.project(z)                                               # U_k^T Z: (B, K, N, p)
        h = attend(w, w, w)                                               # averages in each subspace, eq. (2.8): (B, K, N, p)
        h = h.transpose(1, 2).flatten(2)                                  # heads side by side: (B, N, K p)
        if self.tie_out:
            return F.linear(h, self.U.weight.T)                           # [U_1 .. U_K] of them, eq. (2.8)
        return self.W(h) if self.W is not None else h                     # or a free map of them


def attend(q, k, v):
    """softmax(q k^T / sqrt(p)) v over all tokens; q, k, v and the result (B, K, N, p)."""
    if q.device.type == 'cpu' and q.dtype == torch.bfloat16:
        # In bfloat16 on CPUs the fused kernel is slower than plain matmuls up to several hundred tokens.
        s = torch.bmm(q.flatten(0, 1) * q.size(-1) ** -0.5, k.flatten(0, 1).mT)
        return (s.softmax(-1) @ v.flatten(0, 1)).view_as(q)
    return F.scaled_dot_product_attention(q, k, v)


class ISTA(nn.Module):
    """One proximal-gradient step on the non-negative LASSO of eq. (2.7), started at Z = Z^(l+1/2): eq. (2.9)."""

    def __init__(self, c):
        super().__init__()
        self.D = nn.Parameter(torch.empty(c.n_embd, c.n_embd))
        self.eta, self.lam = c.eta, c.lam

    def forward(self, z):
        residual = z - F.linear(z, self.D)                                # Z - D Z: (B, N, d)
        step = z + self.eta * F.linear(residual, self.D.T)                # Z - eta D^T (D Z - Z), two matmuls in all
        return F.relu(step - self.eta * self.lam)                         # eq. (2.9)


class EncoderLayer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.norm1, self.mssa = nn.LayerNorm(c.n_embd), MSSA(c, c.n_head)
        self.norm2, self.ista = nn.LayerNorm(c.n_embd), ISTA(c)

    def compress(self, z):
        return z + self.mssa(self.norm1(z))       # Z^(l+1/2), eq. (2.14) left

    def sparsify(self, half):
        return self.ista(self.norm2(half))        # Z^(l+1), eq. (2.14) right; no skip round it

    def forward(self, z):
        return self.sparsify(self.compress(z))


class DecoderLayer(nn.Module):
    """The steps of an encoder's layer undone, the last one first."""

    def __init__(self, c):
        super().__init__()
        self.norm1, self.E = nn.LayerNorm(c.n_embd), nn.Linear(c.n_embd, c.n_embd, bias=False)
        self.norm2, self.mssa = nn.LayerNorm(c.n_embd), MSSA(c, c.decoder_n_head or c.n_head)
        self.skip_normed = c.decoder_skip == 'normed'

    def forward(self, y):
        half = self.E(self.norm1(y))              # leave the sparse code: Y^(l+1/2), eq. (2.17) left; no skip
        normed = self.norm2(half)
        return (normed if self.skip_normed else half) - self.mssa(normed)  # anti-compress: Y^(l+1), eq. (2.17) right


class CRATEMAE(nn.Module):
    """pictures -> visible patches -> L layers -> code -> as many layers back -> pictures.

    model(x, noise) -> (predicted patches (B, N, P), loss): mean squared error of the hidden ones.
    """

    def __init__(self, config):
        super().__init__()
        c = self.config = config
        (H, W), (h, w) = c.image_size, c.patch_size
        grid, P = (H // h, W // w), h * w * 3
        self.patch = nn.Conv2d(3, c.n_embd, (h, w), stride=(h, w))
        self.cls = nn.Parameter(torch.empty(1, 1, c.n_embd))
        self.mask_token = nn.Parameter(torch.empty(1, 1, c.n_embd)) if c.masking == 'token' else None
        self.register_buffer('pos', sines_and_cosines(grid, c.n_embd))
        self.layers = nn.Sequential(*(EncoderLayer(c) for _ in range(c.n_layer)))
        self.norm = nn.LayerNorm(c.n_embd, eps=1e-6)  # as released; inside the layers it is 1e-5
        self.decoder_layers = nn.Sequential(*(DecoderLayer(c) for _ in range(c.decoder_n_layer or c.n_layer)))
        self.decoder_norm, self.pixels = nn.LayerNorm(c.n_embd, eps=1e-6), nn.Linear(c.n_embd, P)
        self.apply(self._init)

    def _init(self, module):
        """As the released code: Xavier for linear maps, and zero biases but the patch map's; D and E within sqrt(6/d)."""
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        if isinstance(module, (EncoderLayer, DecoderLayer)):
            dictionary = module.ista.D if isinstance(module, EncoderLayer) else module.E.weight
            nn.init.uniform_(dictionary, -math.sqrt(6 / len(dictionary)), math.sqrt(6 / len(dictionary)))
        if module is self:
            nn.init.xavier_uniform_(self.patch.weight.view(self.config.n_embd, -1))
            for token in (self.cls, self.mask_token):
                if token is not None:
                    nn.init.normal_(token, std=0.02)

    def num_params(self):
        """Trainable parameters; the fixed positions are none."""
        return sum(t.numel() for t in self.parameters())

    # ---- masking and embedding --------------------------------------------------------------------------------------

    def hide(self, noise):
        """Which patches are hidden, bool (B, N): all but the int(N * (1 - mask_ratio)) with the least noise (B, N)."""
        visible = int(noise.size(1) * (1 - self.config.mask_ratio))
        return noise.argsort(dim=1, stable=True).argsort(1) >= visible

    def embed(self, x, hidden=None):
        """Pictures (B, 3, H, W) to tokens (B, N + 1, d), the class token first, eqs. (2.18) and (B.1). hidden: bool (B, N)."""
        if x.shape[1:] != (3, *self.config.image_size):
            raise ValueError(f'pictures are {tuple(x.shape[1:])}, the model takes {(3, *self.config.image_size)}; resize them, '
                             'or build the model with another image_size')
        z = self.patch(x).flatten(2).mT                                           # W^pre X: (B, N, d)
        if hidden is not None:  # pixels of zero leave the bias of the patch map
            masked = self.patch.bias if self.mask_token is None else self.mask_token
            z = torch.where(hidden[..., None], masked.to(z.dtype), z)
        return torch.cat((self.cls.expand(len(z), -1, -1), z), 1) + self.pos      # eq. (B.1): (B, N + 1, d)

    # ---- encoder, decoder, loss -------------------------------------------------------------------------------------

    def encode(self, x):
        """Pictures (B, 3, H, W), nothing hidden, to normalized tokens (B, N + 1, d), the class token first."""
        return self.norm(self.layers(self.embed(x)))

    def inside(self, x):
        """To look inside the encoder, nothing hidden, layer by layer: (MSSA, what it is given, LN(Z^l), then Z^(l+1/2) and
        Z^(l+1)), tokens (B, N + 1, d)."""
        z = self.embed(x)
        for layer in self.layers:
            normed, half = layer.norm1(z), layer.compress(z)
            z = layer.sparsify(half)
            yield layer.mssa, normed, half, z

    def features(self, x):
        """Pictures (B, 3, H, W) to what a classifier would look at (B, d)."""
        z = self.layers(self.embed(x))
        return self.norm(z[:, 0] if self.config.pool == 'cls' else z.mean(1))

    def decode(self, y):
        """Tokens (B, N + 1, d) to patches (B, N, P), the class token left out, eqs. (2.20), (2.21) and (B.2)."""
        return self.pixels(self.decoder_norm(self.decoder_layers(y)))[:, 1:]      # W^post Y, eq. (B.2)

    def forward(self, x, noise=None):
        """x float (B, 3, H, W), normalized. noise (B, N): the patches with the least are visible; random by default.
        Returns (patches (B, N, P), loss); with norm_pix_loss the patches are normalized ones."""
        N = self.pos.size(1) - 1
        hidden = self.hide(torch.rand(len(x), N, device=x.device) if noise is None else noise)
        pred = self.decode(self.norm(self.layers(self.embed(x, hidden))))
        return pred, self.loss(x, pred, hidden)

    def target(self, x):
        """What is to be predicted of pictures (B, 3, H, W): their patches (B, N, P), normalized with norm_pix_loss."""
        patches = patchify(x, self.config.patch_size)
        if self.config.norm_pix_loss:
            mean, deviation = statistics(patches)
            patches = (patches - mean) / deviation
        return patches

    def loss(self, x, pred, hidden):
        """Mean squared error of the patches (B, N, P) that are hidden, bool (B, N), as appendix B.1 restricts eq. (2.22)."""
        error = (pred.float() - self.target(x)).square().mean(-1)                 # (B, N)
        return (error * hidden).sum() / hidden.sum()                              # eq. (2.22), over hidden patches

    def reconstruct(self, x, noise=None):
        """Pictures (B, 3, H, W) as they are predicted from their visible patches, (B, 3, H, W), everywhere, visible
        patches included. With norm_pix_loss each patch is given the true picture's mean and deviation."""
        pred = self(x, noise)[0].float()
        if self.config.norm_pix_loss:
            mean, deviation = statistics(patchify(x, self.config.patch_size))
            pred = pred * deviation + mean
        return unpatchify(pred, self.config.image_size, self.config.patch_size)

    # ---- the authors' weights -----------------------------------------------------------------------------------------

    FIXED = 'pos_embed', 'decoder_pos_embed'
    DEAD = 'pos_embed', 'decoder_embed.weight', 'decoder_embed.bias'  # the released code has them and never reads them

    def official_names(self):
        """{our tensor name: the released code's}."""
        names = {'cls': 'cls_token', 'mask_token': 'mask_token', 'pos': 'decoder_pos_embed'}
        pairs = [('patch', 'patch_embed.proj'), ('norm', 'norm'), ('decoder_norm', 'decoder_norm'), ('pixels', 'decoder_pred')]
        for layers, blocks, mssa in (('layers', 'blocks', 0), ('decoder_layers', 'decoder_blocks', 1)):
            for l in range(len(getattr(self, layers))):
                ours, theirs = f'{layers}.{l}', f'{blocks}.{l}.layers.0'
                pairs += [(f'{ours}.norm{i + 1}', f'{theirs}.{i}.norm') for i in (0, 1)]
                pairs += [(f'{ours}.mssa.U', f'{theirs}.{mssa}.fn.qkv'), (f'{ours}.mssa.W', f'{theirs}.{mssa}.fn.to_out.0'),
                          (f'{ours}.E', f'{theirs}.0.fn')]
                names |= {f'{ours}.ista.D': f'{theirs}.1.fn.weight'}
        names |= {f'{ours}.{t}': f'{theirs}.{t}' for ours, theirs in pairs for t in ('weight', 'bias')}
        return {k: names[k] for k in self.state_dict()}

    def to_official(self):
        """This model's weights as the released code's state dict, with zeros for the layer that it never reads."""
        weights, c = self.state_dict(), self.config
        sd = {theirs: weights[ours] for ours, theirs in self.official_names().items()}
        zeros = weights['pos'].new_zeros(c.n_embd, c.n_embd)
        return sd | dict(zip(self.DEAD, (weights['pos'], zeros, zeros[0])))

    @classmethod
    def from_official(cls, state_dict, *, n_head, image_size, patch_size, decoder_n_head=0, **overrides):
        """A model from the released code's weights: a state dict, or a checkpoint that nests one under `model` or
        `state_dict`, with or without the `module.` prefix of data-parallel training.

        Width and depths are read off the tensors; decoder_n_head=0 means n_head; overrides are other settings, such as
        lam. The released code's dead tensors are ignored. Its position tables may be missing; if not they must equal ours.
        Raises ValueError that names the tensors which are missing, unexpected, of a wrong shape or other positions.
        """
        from engine import official  # here, so that this file stands alone
        sd, first = official.unnested(state_dict), 'blocks.0.layers.0.0.fn.qkv.weight'
        if first not in sd:
            raise ValueError(f'not a CRATE-MAE state dict: no {first} among {sorted(sd)[:4]} ..')
        if 'decoder_pred.weight' not in sd:
            raise ValueError('this CRATE-MAE state dict has no decoder, so nothing can be reconstructed with it; take the '
                             'checkpoint of pre-training')
        inner, n_embd = sd[first].shape
        sizes = dict(image_size=image_size, patch_size=patch_size, n_head=n_head, n_embd=n_embd, decoder_n_head=decoder_n_head,
                     head_dim=0 if inner == n_embd else inner // n_head, n_layer=official.depth(sd, 'blocks'),
                     decoder_n_layer=official.depth(sd, 'decoder_blocks'))
        return official.fill(cls(CRATEMAEConfig(**sizes | overrides)), sd)
