"""ViT, the black box that CRATE is compared with.

    Dosovitskiy et al. "An Image is Worth 16x16 Words", ICLR 2021; sizes tiny to large as in Touvron et al. (DeiT).

Pre-norm blocks of multi-head attention and a GELU MLP over patches of a picture. Written beside `model_crate.py` line
for line, so that the diff is the lesson: three projections where CRATE has one subspace basis, and an MLP of 8 d^2
weights with a skip where CRATE has a d x d dictionary without.

    N patches, d = n_embd width, K = n_head heads, p = head_dim width of a head; z is (B, N + 1, d), the class token first

The forward pass equals the ViT of the CRATE repository (timm's) to rounding: exact GELU, biases everywhere, LayerNorm
eps 1e-6, and either the class token after the final LayerNorm (pool='cls') or, as the papers train it, the mean of the
patch tokens, class token left out, and then LayerNorm (pool='mean').
"""
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
        for name in ('image_size', 'patch_size'):
            size = getattr(self, name)
            setattr(self, name, tuple(size) if isinstance(size, (tuple, list)) else (size, size))
        if self.pool not in ('cls', 'mean'):
            raise ValueError(f"pool='{self.pool}' is unknown; choose cls or mean")
        for name in ('num_classes', 'n_layer', 'n_head', 'n_embd'):
            if getattr(self, name) < 1:
                raise ValueError(f'{name}={getattr(self, name)} must be at least 1')
        for name in ('dropout', 'label_smoothing'):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f'{name}={getattr(self, name)} must be in [0, 1)')
        if any(i < 1 or p < 1 or i % p for i, p in zip(self.image_size, self.patch_size)):
            raise ValueError(f'image_size={self.image_size} is not divisible by patch_size={self.patch_size}; choose '
                             'a patch_size that divides height and width')
        if self.n_embd % self.n_head:
            raise ValueError(f'n_embd={self.n_embd} is not divisible by n_head={self.n_head}')


class Attention(nn.Module):
    """Multi-head self-attention: query, key and value each have their own projection."""

    def __init__(self, c):
        super().__init__()
        self.K, self.dropout = c.n_head, c.dropout
        self.QKV, self.W = nn.Linear(c.n_embd, 3 * c.n_embd), nn.Linear(c.n_embd, c.n_embd)

    def forward(self, z):
        B, N, d = z.shape
        q, k, v = self.QKV(z).view(B, N, 3, self.K, d // self.K).permute(2, 0, 3, 1, 4)  # each (B, K, N, p)
        h = attend(q, k, v, self.dropout * self.training)                                # (B, K, N, p)
        return self.W(h.transpose(1, 2).reshape(B, N, d))                                # (B, N, d)


def attend(q, k, v, dropout=0.0):
    """softmax(q k^T / sqrt(p)) v over all tokens; q, k, v and the result (B, K, N, p)."""
    if q.device.type == 'cpu' and q.dtype == torch.bfloat16 and not dropout:
        # In bfloat16 on CPUs the fused kernel is slower than plain matmuls up to several hundred tokens.
        s = torch.bmm(q.flatten(0, 1) * q.size(-1) ** -0.5, k.flatten(0, 1).mT)
        return (s.softmax(-1) @ v.flatten(0, 1)).view_as(q)
    return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout)


class MLP(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.up, self.down = nn.Linear(c.n_embd, 4 * c.n_embd), nn.Linear(4 * c.n_embd, c.n_embd)

    def forward(self, z):
        return self.down(F.gelu(self.up(z)))


class Layer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.norm1, self.attn = LayerNorm(c.n_embd), Attention(c)
        self.norm2, self.mlp = LayerNorm(c.n_embd), MLP(c)
        self.drop = nn.Dropout(c.dropout)

    def forward(self, z):
        z = z + self.drop(self.attn(self.norm1(z)))
        return z + self.drop(self.mlp(self.norm2(z)))


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
        self.layers = nn.ModuleList(Layer(c) for _ in range(c.n_layer))
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
        parts = (('norm1', 'norm1'), ('attn.QKV', 'attn.qkv'), ('attn.W', 'attn.proj'),
                 ('norm2', 'norm2'), ('mlp.up', 'mlp.fc1'), ('mlp.down', 'mlp.fc2'))
        for l in range(self.config.n_layer):
            for ours, theirs in parts:
                names |= {f'layers.{l}.{ours}.{t}': f'blocks.{l}.{theirs}.{t}' for t in ('weight', 'bias')}
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
        for nest in ('state_dict', 'model'):
            state_dict = state_dict.get(nest, state_dict)
        sd = {k.removeprefix('module.'): v for k, v in state_dict.items()}
        if not {'head.weight', 'pos_embed', 'blocks.0.attn.qkv.weight'} <= sd.keys():
            raise ValueError('not a ViT state dict: no head.weight, pos_embed or blocks.0.attn.qkv.weight among '
                             f'{sorted(sd)[:4]} ..')
        num_classes, n_embd = sd['head.weight'].shape
        n_layer = 1 + max(int(k.split('.')[1]) for k in sd if k.startswith('blocks.'))
        sizes = dict(image_size=image_size, patch_size=patch_size, num_classes=num_classes, n_layer=n_layer, n_head=n_head,
                     n_embd=n_embd, pool='mean' if 'fc_norm.weight' in sd else 'cls')
        model = cls(ViTConfig(**sizes | overrides))
        names, weights = model.official_names(), model.state_dict()
        missing, extra = sorted(set(names.values()) - sd.keys()), sorted(sd.keys() - set(names.values()))
        if missing or extra:
            raise ValueError(f'ViT state dict does not fit: missing {missing}, unexpected {extra}')
        for ours, theirs in names.items():
            if sd[theirs].shape != weights[ours].shape:
                raise ValueError(f'{theirs} has shape {tuple(sd[theirs].shape)}, n_head={n_head}, image_size={image_size} and '
                                 f'patch_size={patch_size} need {tuple(weights[ours].shape)}')
        model.load_state_dict({ours: sd[theirs] for ours, theirs in names.items()})
        return model
