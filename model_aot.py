"""AoT, the attention-only transformer: every layer is one denoising step and nothing else.

    Wang, Lu, Yu, Pai, Qu, Ma. "Attention-Only Transformers via Unrolled Subspace Denoising", ICML 2025.

The idea. Suppose the tokens z_1 .. z_N are noisy draws from K low-dimensional subspaces with bases
U_1 .. U_K (Definition 1). To clean a token, project it onto each subspace and replace what is found
there by an average over the tokens that look alike there. That is multi-head subspace self-attention
(MSSA, eq. 4). One layer is one step with it (eq. 3), and the network is L such steps, each with its own
learned subspaces. Query, key and value are the same projection, and there is no MLP.

    paper   code              meaning
    N       N                 tokens in a sequence (pictures: the class token and the patches)
    d       n_embd            width of a token
    K       n_head            subspaces, one per attention head
    p       head_dim          dimension of a subspace
    L       n_layer           layers = denoising steps
    Z       z  (B, N, d)      a batch of tokens, one per row; the paper writes d x N, one per column
    U_k     U.weight[k*p:(k+1)*p].T   basis of subspace k, (d, p)
    W^O     W.weight          output map, (d, K p)
    eta     eta               step size of eq. (3)

The same file holds the two networks that the paper compares with: `attn='mhsa'` has separate queries,
keys and values (eq. 5), and `attn='mhsa', mlp=True` is exactly GPT-2.

Departures from the paper's formulas, as in nanoGPT, on which the authors build; their own code is not at hand:
  * LayerNorm before each step (Figure 3 allows it) and after the last layer;
  * the softmax is scaled by 1/sqrt(p), which eq. (4) does not show;
  * the output map W is free, as the counts of Table 3 need, with eta absorbed. `tie_out=True` is the derivation itself,
    W = eta [U_1 .. U_K]: eq. (4) for bases U_k p^(-1/4) and step size eta sqrt(p);
  * pictures become patches and a class token as in CRATE, but layers and the last norm have no biases (`bias=True` adds
    them), and weights start from N(0, 0.02^2), as GPT-2's. The paper says neither.
"""
import math
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

attention = F.scaled_dot_product_attention  # engine/fast.py puts a faster function with the same result here


@dataclass
class AoTConfig:
    n_layer: int = 12               # layers, each one step of eq. (3)
    n_head: int = 12                # attention heads, one subspace each
    n_embd: int = 768               # width of a token
    head_dim: int = 0               # dimension of a subspace; 0 means n_embd / n_head
    attn: str = 'mssa'              # 'mssa': one projection for query, key and value (eq. 4); 'mhsa': three (eq. 5)
    mlp: bool = False               # a GPT-2 MLP after each attention
    gelu: str = 'none'              # the MLP's GELU: 'none' is exact, as in nanoGPT; 'tanh' as OpenAI trained GPT-2
    tie_out: bool = False           # W = eta [U_1 .. U_K], the derivation itself, instead of a free output map
    eta: float = 1.0                # step size of eq. (3), used with tie_out
    init: str = 'gpt2'              # first weights: N(0, 0.02^2), as GPT-2's ('gpt2'), or N(0, 1 / inputs) ('fan_in')
    bias: bool = False              # biases in the layers' linear maps and LayerNorms (GPT-2 has them)
    dropout: float = 0.0            # on embeddings, attention weights and what each layer adds
    block_size: int = 1024          # text, functions: longest sequence of tokens
    vocab_size: int = 50257         # text: number of different tokens
    image_size: int | tuple = 0     # pictures: pixels, or (height, width); 0 reads text
    patch_size: int | tuple = 16    # pictures: pixels of a patch, or (height, width)
    channels: int = 3               # pictures: 3 for colour, 1 for grey
    num_classes: int = 1000         # pictures: classes
    pool: str = 'cls'               # pictures: classify 'cls', the class token, or 'mean', the mean of all tokens
    label_smoothing: float = 0.0    # pictures: share of the target spread over all classes in training
    n_dims: int = 0                 # functions in context: numbers in a vector x; 0 reads text

    def __post_init__(self):
        check(self)

    @property
    def task(self):
        return 'image' if self.image_size else 'icl' if self.n_dims else 'text'


# ---- the operators --------------------------------------------------------------------------------------------------

class MSSA(nn.Module):
    """Multi-head subspace self-attention, eq. (4): sum_k U_k (U_k^T Z) softmax((U_k^T Z)^T (U_k^T Z))."""

    def __init__(self, c):
        super().__init__()
        self.K, self.eta, width = c.n_head, c.eta, c.n_head * (c.head_dim or c.n_embd // c.n_head)
        self.U = nn.Linear(c.n_embd, width, bias=c.bias)                # all U_k^T, one below the other
        self.W = None if c.tie_out else nn.Linear(width, c.n_embd, bias=c.bias)
        self.average = Average(c)

    def forward(self, z):
        w = self.U(z)                                   # U_k^T Z, the K heads side by side: (B, N, K p)
        h = self.average(w, w, w)                       # (U_k^T Z) softmax(..) in each head, eq. (4): (B, N, K p)
        if self.W is None:
            return F.linear(h, self.eta * self.U.weight.T)  # eta sum_k U_k head_k, eqs. (3) and (4): (B, N, d)
        return self.W(h)                                # W [head_1; ..; head_K], as in eq. (5): (B, N, d)


class MHSA(nn.Module):
    """Multi-head self-attention, eq. (5): query, key and value each have their own projection."""

    def __init__(self, c):
        super().__init__()
        self.K, width = c.n_head, c.n_head * (c.head_dim or c.n_embd // c.n_head)
        self.QKV = nn.Linear(c.n_embd, 3 * width, bias=c.bias)          # the three in one matrix product
        self.W = nn.Linear(width, c.n_embd, bias=c.bias)
        self.average = Average(c)

    def forward(self, z):
        q, k, v = self.QKV(z).chunk(3, -1)              # the K heads side by side: each (B, N, K p)
        return self.W(self.average(q, k, v))            # W [head_1; ..; head_K], eq. (5): (B, N, d)


class MLP(nn.Module):
    """GPT-2's MLP, which AoT shows it can do without."""

    def __init__(self, c):
        super().__init__()
        self.up, self.gelu = nn.Linear(c.n_embd, 4 * c.n_embd, bias=c.bias), nn.GELU(c.gelu)
        self.down = nn.Linear(4 * c.n_embd, c.n_embd, bias=c.bias)

    def forward(self, z):
        return self.down(self.gelu(self.up(z)))                         # (B, N, d)


class Layer(nn.Module):
    """One denoising step, eq. (3). With mlp=True an MLP follows, as in GPT-2."""

    def __init__(self, c):
        super().__init__()
        self.norm1 = nn.LayerNorm(c.n_embd, bias=c.bias)
        self.attn = MSSA(c) if c.attn == 'mssa' else MHSA(c)
        self.drop = nn.Dropout(c.dropout)
        self.norm2, self.mlp = (nn.LayerNorm(c.n_embd, bias=c.bias), MLP(c)) if c.mlp else (None, None)

    def forward(self, z):
        z = z + self.drop(self.attn(self.norm1(z)))                     # Z^(l+1) = Z^(l) + eta MSSA(Z^(l)), eq. (3)
        return z if self.mlp is None else z + self.drop(self.mlp(self.norm2(z)))


# ---- the network ----------------------------------------------------------------------------------------------------

class AoT(nn.Module):
    """model(x) -> (out, None); model(x, y) -> (out, loss). The classes below say what x, y and out are."""

    def __init__(self, config):
        super().__init__()
        c = self.config = config
        Embedding, Head = {'text': (TokenEmbedding, LanguageHead), 'image': (PatchEmbedding, Classifier),
                           'icl': (ExampleEmbedding, Regressor)}[c.task]
        self.embed = Embedding(c)
        self.layers = nn.Sequential(*(Layer(c) for _ in range(c.n_layer)))
        self.read = Head(c, self.embed)
        initialize(self)

    def forward(self, x, y=None):
        z = self.embed(x, y)                                            # (B, N, d)
        for layer in self.layers:
            z = layer(z)                                                # eq. (3)
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

    @classmethod
    def from_gpt2(cls, state_dict, *, n_head, **overrides):
        """GPT-2 with the weights of nanoGPT, Hugging Face or OpenAI; see engine/official.py."""
        from engine import official
        return official.from_gpt2(cls, AoTConfig, state_dict, n_head=n_head, **overrides)


# ---- text -----------------------------------------------------------------------------------------------------------

class TokenEmbedding(nn.Module):
    """Token ids x, int64 (B, N), at positions first .. first + N - 1 -> tokens (B, N, d)."""

    def __init__(self, c):
        super().__init__()
        self.tok_emb, self.pos_emb = nn.Embedding(c.vocab_size, c.n_embd), nn.Embedding(c.block_size, c.n_embd)
        self.drop = nn.Dropout(c.dropout)

    def forward(self, x, y=None, first=0):
        if first + x.size(1) > len(self.pos_emb.weight):
            raise ValueError(f'{first + x.size(1)} tokens exceed block_size={len(self.pos_emb.weight)}; crop the input')
        return self.drop(self.tok_emb(x) + self.pos_emb.weight[first:first + x.size(1)])


class LanguageHead(nn.Module):
    """Tokens (B, N, d) and the next ids y, int64 (B, N), -1 where none counts -> (logits (B, N, vocab_size), mean
    cross-entropy in nats). Given y and more than LOGITS_AT_ONCE logits, it returns None in place of the logits."""

    LOGITS_AT_ONCE = 2 ** 26  # more (256 MiB in float32) are never in memory together

    def __init__(self, c, embed):
        super().__init__()
        self.norm = nn.LayerNorm(c.n_embd, bias=c.bias)
        self.weight = embed.tok_emb.weight                              # the output map is the token embedding

    def forward(self, z, y=None):
        return language_loss(self.norm(z), self.weight, y, self.LOGITS_AT_ONCE)


# ---- pictures, cut up and read out as in CRATE ----------------------------------------------------------------------

class PatchEmbedding(nn.Module):
    """Pictures x, float (B, C, H, W) -> tokens (B, N + 1, d), the class token first."""

    def __init__(self, c):
        super().__init__()
        (H, W), (h, w) = c.image_size, c.patch_size
        self.sizes, N, P = (c.channels, H, W, h, w), (H // h) * (W // w), h * w * c.channels
        self.patch_norm, self.patch, self.token_norm = nn.LayerNorm(P), nn.Linear(P, c.n_embd), nn.LayerNorm(c.n_embd)
        self.cls = nn.Parameter(torch.randn(1, 1, c.n_embd))
        self.pos = nn.Parameter(torch.randn(1, N + 1, c.n_embd))
        self.drop = nn.Dropout(c.dropout)

    def forward(self, x, y=None):
        z = self.token_norm(self.patch(self.patch_norm(patchify(x, *self.sizes))))              # (B, N, d)
        return self.drop(torch.cat((self.cls.expand(len(z), -1, -1), z), 1) + self.pos)         # (B, N + 1, d)


class Classifier(nn.Module):
    """Tokens (B, N + 1, d) and classes y, int64 (B,) -> (logits (B, num_classes), mean cross-entropy in nats)."""

    def __init__(self, c, embed):
        super().__init__()
        self.pool, self.smoothing = c.pool, c.label_smoothing
        self.norm, self.head = nn.LayerNorm(c.n_embd, bias=c.bias), nn.Linear(c.n_embd, c.num_classes)

    def features(self, z):
        return self.norm(z[:, 0] if self.pool == 'cls' else z.mean(1))                          # (B, d)

    def forward(self, z, y=None):
        logits, smoothing = self.head(self.features(z)), self.smoothing * self.training
        return logits, None if y is None else F.cross_entropy(logits.float(), y, label_smoothing=smoothing)


# ---- functions in context, section 4.2.2 ----------------------------------------------------------------------------

class ExampleEmbedding(nn.Module):
    """Examples of a function g, x (B, n, n_dims) and y = g(x) (B, n) -> tokens (B, 2n, d) of the prompt x_1, y_1, x_2,
    .. The number y_i enters as the vector (y_i, 0, .., 0)."""

    def __init__(self, c):
        super().__init__()
        self.examples, self.pos_emb = nn.Linear(c.n_dims, c.n_embd), nn.Embedding(c.block_size, c.n_embd)
        self.drop = nn.Dropout(c.dropout)

    def forward(self, x, y):
        pairs = torch.stack((x, F.pad(y[..., None], (0, x.size(-1) - 1))), 2).flatten(1, 2)     # (B, 2n, n_dims)
        if pairs.size(1) > len(self.pos_emb.weight):
            raise ValueError(f'{pairs.size(1)} tokens exceed block_size={len(self.pos_emb.weight)}; crop the prompt')
        return self.drop(self.examples(pairs) + self.pos_emb.weight[:pairs.size(1)])


class Regressor(nn.Module):
    """Tokens (B, 2n, d) and y (B, n) -> (predictions (B, n), mean squared error). Each y_i is predicted at x_i, which
    sees the examples before it but not y_i itself."""

    def __init__(self, c, embed):
        super().__init__()
        self.norm, self.head = nn.LayerNorm(c.n_embd, bias=c.bias), nn.Linear(c.n_embd, 1)

    def forward(self, z, y):
        guess = self.head(self.norm(z)[:, ::2]).squeeze(-1)             # (B, n)
        return guess, F.mse_loss(guess.float(), y.float())


# ---- helpers without an equation ------------------------------------------------------------------------------------

class Average(nn.Module):
    """softmax(q k^T / sqrt(p)) v in each head; q, k, v and the result (B, N, K p). Causal unless tokens are patches.
    While text is generated, `past` adds the keys and values of earlier tokens; then q is the last token alone."""

    def __init__(self, c):
        super().__init__()
        self.K, self.causal, self.dropout, self.past = c.n_head, c.task != 'image', c.dropout, None

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


def patchify(x, C, H, W, h, w):
    """Pictures (B, C, H, W) -> patches (B, N, h w C), row by row; inside a patch: row, column, channel."""
    if x.shape[1:] != (C, H, W):
        raise ValueError(f'pictures are {tuple(x.shape[1:])}, the network takes {(C, H, W)}; resize them')
    return x.unflatten(3, (-1, w)).unflatten(2, (-1, h)).permute(0, 2, 4, 3, 5, 1).flatten(3).flatten(1, 2)


def language_loss(z, weight, y, most):
    """(logits z weight^T, mean cross-entropy) of tokens z (B, N, d). More than `most` logits are computed in chunks,
    again in the backward pass, and not returned. (F.linear_cross_entropy of torch 2.13 ignores autocast, so on a CPU
    it took twice the time in bfloat16.)"""
    if y is None:
        return F.linear(z, weight), None

    def loss_sum(z, y):
        return F.cross_entropy(F.linear(z, weight).float(), y, ignore_index=-1, reduction='sum')
    y, size = y.flatten(), max(1, most // len(weight))
    if len(y) <= size:
        logits = F.linear(z, weight)
        return logits, F.cross_entropy(logits.flatten(0, 1).float(), y, ignore_index=-1)
    parts = [checkpoint(loss_sum, *chunk, use_reentrant=False, preserve_rng_state=False)
             for chunk in zip(z.flatten(0, 1).split(size), y.split(size))]
    return None, torch.stack(parts).sum() / (y != -1).sum()


def initialize(model):
    """Weights N(0, s^2), biases zero. s is 0.02 with init='gpt2', and 1 / sqrt(inputs) with 'fan_in'; an embedding's
    inputs are its d numbers. The maps that write to the residual stream get an s smaller by the square root of the
    number of additions to it, one or two per layer."""
    def normal(module, additions=1):
        if isinstance(module, (nn.Linear, nn.Embedding)):
            std = 0.02 if model.config.init == 'gpt2' else 1 / math.sqrt(module.weight.size(-1))
            nn.init.normal_(module.weight, std=std / math.sqrt(additions))
            if getattr(module, 'bias', None) is not None:
                nn.init.zeros_(module.bias)
    for part in (model.embed, model.read, *model.layers):
        part.apply(normal)
        if isinstance(part, Layer):
            for out in filter(None, (part.attn.W, part.mlp and part.mlp.down)):
                normal(out, model.config.n_layer * (1 + model.config.mlp))


def check(c):
    """Raises ValueError where settings do not fit together; makes image_size and patch_size (height, width)."""
    for name, known in (('attn', ('mssa', 'mhsa')), ('gelu', ('none', 'tanh')), ('init', ('gpt2', 'fan_in')),
                        ('pool', ('cls', 'mean'))):
        if getattr(c, name) not in known:
            raise ValueError(f"{name}='{getattr(c, name)}' is unknown; choose {' or '.join(known)}")
    for name in ('block_size', 'vocab_size', 'n_layer', 'n_head', 'n_embd', 'num_classes', 'channels'):
        if getattr(c, name) < 1:
            raise ValueError(f'{name}={getattr(c, name)} must be at least 1')
    if not c.head_dim and c.n_embd % c.n_head:
        raise ValueError(f'n_embd={c.n_embd} is not divisible by n_head={c.n_head}; change one, or set head_dim')
    if c.tie_out and c.attn != 'mssa':
        raise ValueError("tie_out=True needs attn='mssa': only there W can be tied to a basis")
    if c.image_size:
        c.image_size, c.patch_size = (tuple(s) if isinstance(s, (tuple, list)) else (s, s)
                                      for s in (c.image_size, c.patch_size))
        if any(i < 1 or p < 1 or i % p for i, p in zip(c.image_size, c.patch_size)):
            raise ValueError(f'image_size={c.image_size} is not divisible by patch_size={c.patch_size}; choose a '
                             'patch_size that divides height and width')


Network, Config = AoT, AoTConfig  # what --model=aot trains; see docs/extend.md
