"""ToST, the token statistics transformer: attention that compares no tokens, so its cost is linear in their number.

    Wu, Ding, Lu, Pai, Zhang, Wang, Yu, Ma, Haeffele. "Token Statistics Transformer: Linear-Time Attention via
    Variational Rate Reduction", ICLR 2025. The derivation is section 4.3.2 of the authors' textbook (Buchanan et al.).

The idea. A compact set of tokens has a small coding rate R^c. CRATE's attention, derived from a gradient step on it,
compares all pairs of tokens. ToST steps down an upper bound of R^c, for which one number of each coordinate is enough,
its second moment. Let token j belong to subspace k with probability Pi_jk. Then (the letters are ours)

    R_var = 1/2 sum_k N_k/N sum_i f(m_ki),  with N_k = sum_j Pi_jk  and  m_k = 1/N_k sum_j Pi_jk (U_k^T z_j)^2    (a)
    z_j <- z_j - tau/N sum_k Pi_jk U_k Diag(f'(m_k)) U_k^T z_j       its gradient step, with Pi held fixed        (b)
    Pi_j = softmax over k of |U_k^T z_j|^2 / (2 eta)                 to which subspace token j is closest         (c)

for f(x) = log(1 + d/eps^2 x). The step shrinks a token most along coordinates in which its subspace has little energy.
R_var equals R^c if each U_k is orthogonal and diagonalizes the second moments of its tokens; otherwise it is larger.

    paper   code              meaning
    N       N                 tokens: of a text, or patches of a picture
    d       n_embd            width of a token
    K       n_head            subspaces, one per attention head
    p       head_dim          dimension of a subspace
    L       n_layer           layers
    Z       z  (B, N, d)      a batch of tokens, one per row; the paper writes d x N, one per column
    U_k     U.weight[k*p:(k+1)*p].T   basis of subspace k, (d, p)
            w  (B, N, K, p)   coordinates U_k^T z_j
            e  (B, N, K, p)   their squares, the energies
    Pi      Pi (B, N, K, 1)   to which subspace a token belongs
    N_k     N_k               how many tokens belong to subspace k
    m_k     m                 second moment of each coordinate in subspace k

Departures from (a) to (c), all as in the authors' code (github.com/RobinWu218/ToST), whose outputs this equals. The
lines below bear their numbers:
  (1) Pi compares shares: a coordinate's energy divided by that of all tokens. A learned temp_k takes the place of
      1 / (2 eta), and each head and position has a learned bias b;
  (2) f'(m) = 1 / (1 + m), so d/eps^2 = 1: its size is left to U;
  (3) the map back is a free matrix W, not U_k, which also absorbs tau/N;
  (4) U is not orthogonal, has p = d / K, and has a bias where `bias` says so;
  (5) Pi depends on Z, though the step holds it fixed; gradients of training pass through it;
  (6) in a text, token t uses the statistics of the tokens 1 .. t alone: a step on the R_var of that beginning;
  (7) a LayerNorm comes before each half of a layer, and a learned scale gamma of each coordinate after it;
  (8) the second half of a layer is GPT-2's MLP, not a sparse code;
  (9) pictures are read out by two layers in which a class token attends to all others, by ordinary attention.
The rest of the network is GPT-2's for text and XCiT's (El-Nouby et al., 2021) for pictures.
"""
import math
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F

attention = F.scaled_dot_product_attention  # engine/fast.py puts a faster function with the same result here


@dataclass
class ToSTConfig:
    n_layer: int = 12               # layers: a step of (b) and an MLP each
    n_head: int = 12                # attention heads, one subspace each
    n_embd: int = 768               # width of a token
    head_dim: int = 0               # dimension of a subspace; 0 means n_embd / n_head
    layer_scale: float = 1e-5       # first value of the scales gamma; the authors' 12 layers for pictures have 1.0
    bias: bool = False              # text: biases in linear maps and LayerNorms; pictures: in U, the rest has them
    dropout: float = 0.0            # on embeddings, on f'(m) and on what each half of a layer adds
    block_size: int = 1024          # text: longest sequence of tokens
    vocab_size: int = 50257         # text: number of different tokens
    image_size: int | tuple = 0     # pictures: pixels, or (height, width); 0 reads text
    patch_size: int | tuple = 16    # pictures: pixels of a side of a patch, a power of two
    channels: int = 3               # pictures: 3 for colour, 1 for grey
    num_classes: int = 1000         # pictures: classes
    label_smoothing: float = 0.0    # pictures: share of the target spread over all classes in training

    def __post_init__(self):
        check(self)

    @property
    def task(self):
        return 'image' if self.image_size else 'text'


# ---- the operator ---------------------------------------------------------------------------------------------------

class TSSA(nn.Module):
    """Token statistics self-attention: the step (b) for each token, tokens (B, N, d) to (B, N, d).

    Sums over tokens are in float32. While text is generated, `past` adds those of earlier tokens."""

    def __init__(self, c):
        super().__init__()
        self.K, width = c.n_head, c.n_head * (c.head_dim or c.n_embd // c.n_head)
        self.U = nn.Linear(c.n_embd, width, bias=c.bias)                # all U_k^T, one below the other (4)
        self.W = linear(c, width, c.n_embd)                             # back to d numbers (3)
        self.gamma = scale(c)                                           # (7)
        self.temp = nn.Parameter(torch.ones(c.n_head))                  # in place of 1 / (2 eta) (1)
        self.b = nn.Parameter(torch.zeros(c.n_head, c.block_size, 1)) if c.task == 'text' else None  # (1)
        self.drop, self.past = nn.Dropout(c.dropout), None

    def forward(self, z):
        w = self.U(z).unflatten(-1, (self.K, -1))                       # U_k^T z_j: (B, N, K, p)
        e = w.float().square()                                          # (B, N, K, p)
        Pi = self.memberships(e)                                        # (c), with its gradient (5): (B, N, K, 1)
        N_k = self.total('N_k', Pi)                                     # (a): (B, N or 1, K, 1)
        m = self.total('m', Pi * e) / (N_k + 1e-8)                      # (a): (B, N or 1, K, p)
        h = -Pi * self.drop(1 / (1 + m)) * w                            # (b), f' = 1 / (1 + m) (2): (B, N, K, p)
        return self.gamma * self.W(h.to(w.dtype).flatten(2))            # (3), (7): (B, N, d)

    def memberships(self, e):
        """(c) from energies e (B, N, K, p), as shares of those of all tokens (1): Pi (B, N, K, 1)."""
        s = (e / self.total('e', e).clamp_min(1e-12)).sum(-1)           # (B, N, K)
        if self.b is not None:
            first = self.past.first if self.past else 0
            s = s + e.size(-1) * self.b[:, first:first + e.size(1), 0].T
        return (self.temp * s).softmax(-1).unsqueeze(-1)

    def total(self, name, x):
        """The sum of x (B, N, ..) over all tokens of a picture (B, 1, ..); of text for each t over 1 .. t (6)."""
        if self.b is None:
            return x.sum(1, keepdim=True)
        return x.cumsum(1) if self.past is None else self.past.plus(name, x.cumsum(1))


class MLP(nn.Module):
    """GPT-2's MLP."""

    def __init__(self, c):
        super().__init__()
        self.up, self.down = linear(c, c.n_embd, 4 * c.n_embd), linear(c, 4 * c.n_embd, c.n_embd)
        self.gamma = scale(c)                                           # (7)

    def forward(self, z):
        return self.gamma * self.down(F.gelu(self.up(z)))               # (B, N, d)


class Layer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.norm1, self.attn = norm(c), TSSA(c)
        self.norm2, self.mlp, self.drop = norm(c), MLP(c), nn.Dropout(c.dropout)

    def forward(self, z):
        z = z + self.drop(self.attn(self.norm1(z)))                     # compress, (b), behind a norm (7)
        return z + self.drop(self.mlp(self.norm2(z)))                   # an MLP (8)


# ---- the network ----------------------------------------------------------------------------------------------------

class ToST(nn.Module):
    """model(x) -> (logits, None); model(x, y) -> (logits, loss). The classes below say what x, y and logits are."""

    def __init__(self, config):
        super().__init__()
        c = self.config = config
        Embedding, Head = (TokenEmbedding, LanguageHead) if c.task == 'text' else (PatchEmbedding, Classifier)
        self.embed = Embedding(c)
        self.layers = nn.Sequential(*(Layer(c) for _ in range(c.n_layer)))
        self.read = Head(c, self.embed)
        initialize(self)

    def forward(self, x, y=None):
        z = self.embed(x)                                               # (B, N, d)
        for layer in self.layers:
            z = layer(z)                                                # (b), then an MLP
        return self.read(z, y)

    def features(self, x):
        """Pictures (B, C, H, W) to what the classifier sees (B, d)."""
        return self.read.features(self.layers(self.embed(x)))

    def num_params(self):
        """Number of parameters; shared ones count once."""
        return sum(t.numel() for t in self.parameters())

    def generate(self, idx, max_new_tokens, temperature=1.0, top_k=None, top_p=None, stop_token=None, use_cache=True):
        """Continues token ids (B, N); see engine/generate.py. Returns int64 (B, N + new)."""
        from engine.generate import generate
        return generate(self, idx, max_new_tokens, temperature, top_k, top_p, stop_token, use_cache)

    def to_official(self):
        """The weights as a state dict of the authors' code; see engine/official.py."""
        from engine import official
        return official.to_tost(self)

    @classmethod
    def from_official(cls, state_dict, *, n_head, **overrides):
        """A network with the authors' weights; see engine/official.py. Pictures need image_size and patch_size too."""
        from engine import official
        return official.from_tost(cls, ToSTConfig, state_dict, n_head=n_head, **overrides)


# ---- text, as in GPT-2 ----------------------------------------------------------------------------------------------

class TokenEmbedding(nn.Module):
    """Token ids x, int64 (B, N), at positions first .. first + N - 1 -> tokens (B, N, d)."""

    def __init__(self, c):
        super().__init__()
        self.tok_emb, self.pos_emb = nn.Embedding(c.vocab_size, c.n_embd), nn.Embedding(c.block_size, c.n_embd)
        self.drop = nn.Dropout(c.dropout)

    def forward(self, x, first=0):
        if first + x.size(1) > len(self.pos_emb.weight):
            raise ValueError(f'{first + x.size(1)} tokens exceed block_size={len(self.pos_emb.weight)}; crop the input')
        return self.drop(self.tok_emb(x) + self.pos_emb.weight[first:first + x.size(1)])


class LanguageHead(nn.Module):
    """Tokens (B, N, d) and the next ids y, int64 (B, N), -1 is ignored -> (logits (B, N, vocab_size), mean
    cross-entropy in nats)."""

    def __init__(self, c, embed):
        super().__init__()
        self.norm = norm(c)
        self.weight = embed.tok_emb.weight                              # the output map is the token embedding

    def forward(self, z, y=None):
        logits = F.linear(self.norm(z), self.weight)                    # (B, N, vocab_size)
        if y is None:
            return logits, None
        return logits, F.cross_entropy(logits.flatten(0, 1).float(), y.flatten(), ignore_index=-1)


# ---- pictures, as in XCiT -------------------------------------------------------------------------------------------

class PatchEmbedding(nn.Module):
    """Pictures x, float (B, C, H, W) -> tokens (B, N, d), one a patch. Each convolution halves height and width."""

    def __init__(self, c):
        super().__init__()
        self.shape, halvings = (c.channels, *c.image_size), c.patch_size[0].bit_length() - 1
        widths = [c.channels, *(c.n_embd >> i for i in reversed(range(halvings)))]              # C, .. d/4, d/2, d
        parts = [part for a, b in zip(widths, widths[1:]) for part in (
            nn.Sequential(nn.Conv2d(a, b, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(b)), nn.GELU())]
        self.stem, self.pos, self.drop = nn.Sequential(*parts[:-1]), nn.Conv2d(64, c.n_embd, 1), nn.Dropout(c.dropout)

    def forward(self, x):
        if x.shape[1:] != self.shape:
            raise ValueError(f'pictures are {tuple(x.shape[1:])}, the network takes {self.shape}; resize them')
        z = self.stem(x)                                                # (B, d, rows, columns)
        return self.drop((z + self.pos(waves(*z.shape[2:], x.device))).flatten(2).mT)           # (B, N, d)


class ClassLayer(nn.Module):
    """Ordinary attention of a class token, the first of tokens (B, N + 1, d), to all of them, then its MLP (9)."""

    def __init__(self, c):
        super().__init__()
        self.K, width = c.n_head, c.n_head * (c.head_dim or c.n_embd // c.n_head)
        self.QKV, self.W = linear(c, c.n_embd, 3 * width), linear(c, width, c.n_embd)
        self.norm1, self.gamma, self.norm2, self.mlp = norm(c), scale(c), norm(c), MLP(c)

    def forward(self, z):
        n = self.norm1(z)
        q, k, v = self.QKV(n).unflatten(-1, (3, self.K, -1)).permute(2, 0, 3, 1, 4)             # (B, K, N + 1, p)
        h = self.W(attention(q[:, :, :1], k, v).transpose(1, 2).flatten(2))                     # (B, 1, d)
        z = self.norm2(z + self.gamma * torch.cat((h, n[:, 1:]), 1))
        # The other tokens double, as in the authors' code. Nothing comes of it: a LayerNorm follows, or no reader.
        return z + torch.cat((self.mlp(z[:, :1]), z[:, 1:]), 1)         # (B, N + 1, d)


class Classifier(nn.Module):
    """Tokens (B, N, d) and classes y, int64 (B,) -> (logits (B, num_classes), mean cross-entropy in nats)."""

    def __init__(self, c, embed):
        super().__init__()
        self.cls, self.layers = nn.Parameter(torch.empty(1, 1, c.n_embd)), nn.Sequential(ClassLayer(c), ClassLayer(c))
        self.norm, self.head, self.smoothing = norm(c), nn.Linear(c.n_embd, c.num_classes), c.label_smoothing

    def features(self, z):
        return self.norm(self.layers(torch.cat((self.cls.expand(len(z), -1, -1), z), 1))[:, 0])  # (B, d)

    def forward(self, z, y=None):
        logits, smoothing = self.head(self.features(z)), self.smoothing * self.training
        return logits, None if y is None else F.cross_entropy(logits.float(), y, label_smoothing=smoothing)


def waves(rows, columns, device):
    """Positions of a grid as 32 sines and cosines of the row and 32 of the column: (64, rows, columns)."""
    j = torch.arange(32, device=device)

    def of(n):
        angles = torch.arange(1, n + 1, device=device) / (n + 1e-6) * 2 * math.pi               # (n,)
        angles = angles[:, None] / 10000 ** (j // 2 / 16)                                       # (n, 32)
        return torch.where(j % 2 == 0, angles.sin(), angles.cos())
    return torch.cat((of(rows).T[:, :, None].expand(-1, -1, columns), of(columns).T[:, None].expand(-1, rows, -1)))


# ---- helpers without an equation ------------------------------------------------------------------------------------

def norm(c):
    return nn.LayerNorm(c.n_embd, eps=1e-5 if c.task == 'text' else 1e-6, bias=c.bias or c.task != 'text')


def linear(c, inputs, outputs):
    return nn.Linear(inputs, outputs, bias=c.bias or c.task != 'text')


def scale(c):
    return nn.Parameter(torch.full((c.n_embd,), c.layer_scale))


def initialize(model):
    """As GPT-2: weights N(0, 0.02^2), biases 0; the maps W and `down`, which write to the residual stream, with a
    deviation smaller by sqrt(2 L). Pictures too; convolutions as PyTorch makes them."""
    small = 0.02 / math.sqrt(2 * model.config.n_layer)
    for name, p in model.named_parameters():
        if name.endswith(('W.weight', 'down.weight')):
            nn.init.normal_(p, std=small)
        elif name.endswith(('emb.weight', 'U.weight', 'QKV.weight', 'up.weight', 'head.weight', 'cls')):
            nn.init.normal_(p, std=0.02)
        elif name.endswith(('U.bias', 'QKV.bias', 'W.bias', 'up.bias', 'down.bias', 'head.bias')):
            nn.init.zeros_(p)


def check(c):
    """Raises ValueError where settings do not fit together; makes image_size and patch_size (height, width)."""
    for name in ('block_size', 'vocab_size', 'n_layer', 'n_head', 'n_embd', 'num_classes', 'channels'):
        if getattr(c, name) < 1:
            raise ValueError(f'{name}={getattr(c, name)} must be at least 1')
    if not c.head_dim and c.n_embd % c.n_head:
        raise ValueError(f'n_embd={c.n_embd} is not divisible by n_head={c.n_head}; change one, or set head_dim')
    if c.image_size:
        c.image_size, c.patch_size = (tuple(s) if isinstance(s, (tuple, list)) else (s, s)
                                      for s in (c.image_size, c.patch_size))
        side = c.patch_size[0]
        if c.patch_size != (side, side) or side not in (2, 4, 8, 16, 32):
            raise ValueError(f'patch_size={c.patch_size} must be 2, 4, 8, 16 or 32: a convolution halves a picture')
        if any(i < 1 or i % side for i in c.image_size):
            raise ValueError(f'image_size={c.image_size} is not divisible by patch_size={c.patch_size}; choose a '
                             'patch_size that divides height and width')


Network, Config = ToST, ToSTConfig  # what --model=tost trains; see docs/extend.md
