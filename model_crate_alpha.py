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
    N         N                  patches of a picture, or tokens of a text; pictures have a class token besides
    d         n_embd             width of a token
    K         n_head             subspaces, one per attention head
    p         head_dim           dimension of a subspace
    X         x  (B, N, d)       the tokens that are coded, one per row; the paper writes one per column
    A         a  (B, N, m)       their codes, m = atoms * d
    D, D1     D, D1  (d, m)      the dictionary that codes, and the one that decodes
    eta       eta                step size
    lambda    lam                weight of sparsity

The outputs equal those of the authors' inference code (github.com/UCSC-VLAA/CRATE-alpha), and its weights can be read
and written: a patch map without norms, no bias in the output map of attention, LayerNorm eps 1e-6 in the layers and
1e-5 before the classifier. Weights start as in their training code in JAX (which has 1e-6 before the classifier).

Text (`image_size=0`): causal attention predicts the next token. With decoupled=False and skip=False this is CRATE-LM:

    Bai, Ma. "Improving Neuron-level Interpretability with White-box Language Models", CPAL 2025.

The outputs equal those of its code (github.com/crate-lm/crate-lm). As in CRATE-GPT, the output map of attention has
a bias, the token embedding is the map to logits too, and weights start as in GPT-2. CRATE-GPT has no LayerNorm before
that map. LayerNorm eps is 1e-5 everywhere. With the default settings, text goes through CRATE-alpha's layers.
"""
import math
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
    image_size: int | tuple = 224   # pictures: pixels, or (height, width); 0 reads text
    patch_size: int | tuple = 16    # pictures: pixels of a patch, or (height, width)
    channels: int = 3               # pictures: 3 for colour, 1 for grey
    num_classes: int = 1000         # pictures: classes
    pool: str = 'cls'               # pictures: classify 'cls', the class token, or 'mean', the mean of all tokens
    label_smoothing: float = 0.0    # pictures: share of the target spread over all classes in training
    block_size: int = 1024          # text: longest sequence of tokens
    vocab_size: int = 50257         # text: number of different tokens

    def __post_init__(self):
        check(self)

    @property
    def task(self):
        return 'image' if self.image_size else 'text'


# ---- the operators --------------------------------------------------------------------------------------------------

class MSSA(nn.Module):
    """Multi-head subspace self-attention, as in CRATE, eqs. (11) and (115) there; without a bias on pictures."""

    def __init__(self, c):
        super().__init__()
        self.K, width = c.n_head, c.n_head * (c.head_dim or c.n_embd // c.n_head)
        self.U = nn.Linear(c.n_embd, width, bias=False)                 # all U_k^T, one below the other
        text, one_full_head = c.task == 'text', c.n_head == 1 and width == c.n_embd
        no_map = one_full_head and not text                             # as in the authors' code
        self.W = None if no_map else nn.Linear(width, c.n_embd, bias=text)
        self.average, self.drop = Average(c), nn.Dropout(c.dropout)

    def forward(self, z):
        w = self.U(z)                                   # U_k^T Z, the K heads side by side: (B, N, K p)
        h = self.average(w, w, w)                       # SSA(Z | U_k) in each head: (B, N, K p)
        return h if self.W is None else self.drop(self.W(h))            # (B, N, d)


class ISTA(nn.Module):
    """Sparse codes of tokens in an overcomplete dictionary, decoded by another one. One proximal-gradient step on
    lambda |A|_1 + 1/2 |X - D A|^2 over A >= 0 is A <- relu(A + eta D^T (X - D A) - eta lambda)."""

    def __init__(self, c):
        super().__init__()
        self.eta, self.lam, self.steps = c.eta, c.lam, c.steps
        self.D = nn.Parameter(torch.empty(c.n_embd, c.atoms * c.n_embd))
        self.D1 = nn.Parameter(torch.empty(c.n_embd, c.atoms * c.n_embd)) if c.decoupled else None

    def code(self, x):
        """Tokens x (B, N, d) -> codes (B, N, m)."""
        a = F.relu(self.eta * F.linear(x, self.D.T) - self.eta * self.lam)                      # from A = 0
        for _ in range(self.steps - 1):
            residual = x - F.linear(a, self.D)                          # X - D A: (B, N, d)
            a = F.relu(a + self.eta * F.linear(residual, self.D.T) - self.eta * self.lam)
        return a

    def forward(self, x):
        return F.linear(self.code(x), self.D if self.D1 is None else self.D1)                   # D1 A: (B, N, d)


class Layer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.skip, eps = c.skip, 1e-6 if c.task == 'image' else 1e-5
        self.norm1, self.attn = nn.LayerNorm(c.n_embd, eps=eps), MSSA(c)
        self.norm2, self.ista = nn.LayerNorm(c.n_embd, eps=eps), ISTA(c)

    def forward(self, z):
        z = z + self.attn(self.norm1(z))                                # compress
        x = self.ista(self.norm2(z))                                    # sparsify
        return z + x if self.skip else x


# ---- the network ----------------------------------------------------------------------------------------------------

class CRATEAlpha(nn.Module):
    """model(x) -> (logits, None); model(x, y) -> (logits, loss). The classes below say what x, y and logits are."""

    def __init__(self, config):
        super().__init__()
        c = self.config = config
        Embedding, Head = (PatchEmbedding, Classifier) if c.task == 'image' else (TokenEmbedding, LanguageHead)
        self.embed = Embedding(c)
        self.layers = nn.Sequential(*(Layer(c) for _ in range(c.n_layer)))
        self.read = Head(c, self.embed)
        initialize(self)

    def forward(self, x, y=None):
        z = self.embed(x)                                               # (B, N, d)
        for layer in self.layers:
            z = layer(z)
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
        return official.to_crate_alpha(self)

    @classmethod
    def from_official(cls, state_dict, *, n_head, image_size=0, patch_size=16, **overrides):
        """A network with the authors' weights, CRATE-LM's without an image_size; see engine/official.py."""
        from engine import official
        return official.from_crate_alpha(cls, CRATEAlphaConfig, state_dict, n_head=n_head, image_size=image_size,
                                         patch_size=patch_size, **overrides)


# ---- pictures -------------------------------------------------------------------------------------------------------

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

    def __init__(self, c, embed):
        super().__init__()
        self.pool, self.smoothing = c.pool, c.label_smoothing
        self.norm, self.head = nn.LayerNorm(c.n_embd), nn.Linear(c.n_embd, c.num_classes)

    def features(self, z):
        return self.norm(z[:, 0] if self.pool == 'cls' else z.mean(1))                          # (B, d)

    def forward(self, z, y=None):
        logits, smoothing = self.head(self.features(z)), self.smoothing * self.training
        return logits, None if y is None else F.cross_entropy(logits.float(), y, label_smoothing=smoothing)


# ---- text -----------------------------------------------------------------------------------------------------------

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
        self.norm, self.head = nn.LayerNorm(c.n_embd), nn.Linear(c.n_embd, c.vocab_size, bias=False)
        self.head.weight = embed.tok_emb.weight                         # the output map is the token embedding

    def forward(self, z, y=None):
        logits = self.head(self.norm(z))                                # (B, N, vocab_size)
        if y is None:
            return logits, None
        return logits, F.cross_entropy(logits.flatten(0, 1).float(), y.flatten(), ignore_index=-1)


# ---- helpers without an equation ------------------------------------------------------------------------------------

class Average(nn.Module):
    """softmax(q k^T / sqrt(p)) v in each head; q, k, v and the result (B, N, K p). Causal where the next
    token is predicted.
    While text is generated, `past` adds the keys and values of earlier tokens; then q is the last token alone."""

    def __init__(self, c):
        super().__init__()
        self.K, self.causal, self.dropout, self.past = c.n_head, c.task == 'text', c.dropout, None

    def forward(self, q, k, v):
        if self.past is not None:
            k, v = self.past(k, v)
        w = self.heads(q)                                               # (B, K, N, p)
        q, k, v = (w, w, w) if q is v else (w, self.heads(k), self.heads(v))
        causal = self.causal and (self.past is None or q.size(2) == k.size(2))
        h = attention(q, k, v, dropout_p=self.dropout * self.training, is_causal=causal)
        return h.transpose(1, 2).flatten(2)

    def heads(self, t):
        return t.unflatten(-1, (self.K, -1)).transpose(1, 2)            # (B, N, K p) to (B, K, N, p)


def initialize(model):
    """As the authors' training code: dictionaries uniform in +-sqrt(6 / d), the patch map in +-sqrt(6 / P) for patches
    of P numbers; other maps and positions N(0, 0.02^2), the class token N(0, 1e-12), biases 0. On text embeddings are
    N(0, 0.02^2) too, and W is N(0, (0.02 / sqrt(2 L))^2)."""
    c = model.config
    std_of_W = 0.02 if c.task == 'image' else 0.02 / math.sqrt(2 * c.n_layer)
    for name, p in model.named_parameters():
        if name.endswith(('.D', '.D1')):
            nn.init.kaiming_uniform_(p, mode='fan_out')                 # within +-sqrt(6 / d)
        elif name.endswith('patch.weight'):
            nn.init.kaiming_uniform_(p)                                 # within +-sqrt(6 / P)
        elif name.endswith('W.weight'):
            nn.init.normal_(p, std=std_of_W)
        elif name.endswith(('U.weight', 'head.weight', 'pos', 'emb.weight')):
            nn.init.normal_(p, std=0.02)
        elif name.endswith('cls'):
            nn.init.normal_(p, std=1e-6)
        elif name.endswith(('patch.bias', 'head.bias', 'W.bias')):
            nn.init.zeros_(p)


def check(c):
    """Raises ValueError where settings do not fit together; makes image_size and patch_size (height, width)."""
    if c.pool not in ('cls', 'mean'):
        raise ValueError(f"pool='{c.pool}' is unknown; choose cls or mean")
    for name in ('block_size', 'vocab_size', 'n_layer', 'n_head', 'n_embd', 'num_classes', 'channels', 'atoms',
                 'steps'):
        if getattr(c, name) < 1:
            raise ValueError(f'{name}={getattr(c, name)} must be at least 1')
    if not c.head_dim and c.n_embd % c.n_head:
        raise ValueError(f'n_embd={c.n_embd} is not divisible by n_head={c.n_head}; change one, or set head_dim')
    if c.image_size:
        c.image_size, c.patch_size = (tuple(s) if isinstance(s, (tuple, list)) else (s, s)
                                      for s in (c.image_size, c.patch_size))
        if any(i < 1 or p < 1 or i % p for i, p in zip(c.image_size, c.patch_size)):
            raise ValueError(f'image_size={c.image_size} is not divisible by patch_size={c.patch_size}; choose a '
                             'patch_size that divides height and width')


Network, Config = CRATEAlpha, CRATEAlphaConfig  # what --model=crate_alpha trains; see docs/extend.md
