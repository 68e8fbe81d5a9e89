"""CRATE, the coding-rate transformer: every layer compresses tokens against subspaces, then sparsifies them.

    Yu, Buchanan, Pai, Chu, Wu, Tong, Haeffele, Ma. "White-Box Transformers via Sparse Rate Reduction", NeurIPS 2023.
    The longer version, "White-Box Transformers via Sparse Rate Reduction: Compression Is All There Is?" (JMLR 2024),
    trains it on text too.

The idea. Good tokens Z maximize the sparse rate reduction (eq. 1), R(Z) - R^c(Z; U) - lambda |Z|_0: spread out as a
whole, compact along each of K learned subspaces, and sparse. A layer is to improve this objective in two half steps:

    Z^(l+1/2) = Z^l + MSSA(Z^l | U)          compress: derived from a gradient step on R^c, eqs. (8) to (12)
    Z^(l+1)   = ISTA(Z^(l+1/2) | D)          sparsify: a proximal-gradient step on a non-negative LASSO, eqs. (16), (17)

    paper     code               meaning
    N         N                  patches of a picture, or tokens of a text; pictures have a class token besides
    d         n_embd             width of a token
    K         n_head             subspaces, one per attention head
    p         head_dim           dimension of a subspace
    L         n_layer            layers
    Z         z  (B, N, d)       a batch of tokens, one per row; the paper writes d x N, one per column
    U_k       U.weight[k*p:(k+1)*p].T   basis of subspace k, (d, p)
    W         W.weight           output map of eq. (115), (d, K p)
    D         D                  dictionary of a layer, (d, d), applied to tokens as columns: D z
    eta       eta                step size of ISTA
    lambda    lam                weight of sparsity

Departures from the paper's formulas, all as in its Appendix B.1 and in the authors' code, whose outputs this equals:
  * LayerNorm before each half step. The skip of the first goes around the norm; the published diagram has it after;
  * the softmax is scaled by 1/sqrt(p), which eq. (11) does not show; the factors of eqs. (10) and (12) are left out;
  * the output map W is free (eq. 115) and has a bias; `tie_out=True` is that of eq. (12), W = [U_1 .. U_K];
  * a patch is normalized, mapped, and normalized again before it becomes a token.

Text (`image_size=0`): CRATE-GPT predicts the next token with causal attention. It equals the authors' code too, which
has no LayerNorm before the output map. CRATE-BERT (`causal=False`), which they did not release, fills in hidden tokens
and has that LayerNorm; the id of [MASK] is the first after the tokenizer's. ISTA works on each token alone in both.
"""
import math
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

attention = F.scaled_dot_product_attention  # engine/fast.py puts a faster function with the same result here


@dataclass
class CRATEConfig:
    n_layer: int = 12               # layers: a compression and a sparsification each
    n_head: int = 6                 # attention heads, one subspace each
    n_embd: int = 384               # width of a token
    head_dim: int = 0               # dimension of a subspace; 0 means n_embd / n_head
    eta: float = 0.1                # step size of ISTA, eq. (17)
    lam: float = 0.1                # weight lambda of sparsity, eq. (16)
    ista: str = 'relu'              # 'relu' (eq. 17), 'soft' (two-sided, eq. 116; Table 4 has lam=10) or 'mm' (eq. 92)
    alpha: float = 1.0              # with ista='mm': alpha of eq. (92), d / (N eps^2); the paper gives no number
    tie_out: bool = False           # W = [U_1 .. U_K], eq. (12), instead of a free output map, eq. (115)
    dropout: float = 0.0            # on embeddings, attention weights and what attention adds
    image_size: int | tuple = 224   # pictures: pixels, or (height, width); 0 reads text
    patch_size: int | tuple = 16    # pictures: pixels of a patch, or (height, width)
    channels: int = 3               # pictures: 3 for colour, 1 for grey
    num_classes: int = 1000         # pictures: classes
    pool: str = 'cls'               # pictures: classify 'cls', the class token, or 'mean', the mean of all tokens
    label_smoothing: float = 0.0    # pictures: share of the target spread over all classes in training
    patch_norm: bool = True         # pictures: LayerNorm before and after the patch map; CRATE-MAE's encoder has none
    block_size: int = 1024          # text: longest sequence of tokens
    vocab_size: int = 50257         # text: number of different tokens; with causal=False one of them is [MASK]
    causal: bool = True             # text: predict the next token (CRATE-GPT); False fills in hidden ones (CRATE-BERT)
    final_norm: bool = False        # text: LayerNorm before the output map of CRATE-GPT; CRATE-BERT always has one

    def __post_init__(self):
        check(self)

    @property
    def task(self):
        return 'image' if self.image_size else 'text' if self.causal else 'masked_text'


# ---- the operators --------------------------------------------------------------------------------------------------

class MSSA(nn.Module):
    """Multi-head subspace self-attention, eqs. (11), (12) and (115)."""

    def __init__(self, c):
        super().__init__()
        self.K, width = c.n_head, c.n_head * (c.head_dim or c.n_embd // c.n_head)
        self.U = nn.Linear(c.n_embd, width, bias=False)                 # all U_k^T, one below the other
        one_full_head = c.n_head == 1 and width == c.n_embd             # then the authors' code has no output map
        self.W = None if c.tie_out or one_full_head else nn.Linear(width, c.n_embd)
        self.tie_out, self.average, self.drop = c.tie_out, Average(c), nn.Dropout(c.dropout)

    def forward(self, z):
        w = self.U(z)                                   # U_k^T Z, the K heads side by side: (B, N, K p)
        h = self.average(w, w, w)                       # SSA(Z | U_k) in each head, eq. (11): (B, N, K p)
        if self.tie_out:
            return self.drop(F.linear(h, self.U.weight.T))   # sum_k U_k SSA_k, eq. (12) without its factor: (B, N, d)
        return h if self.W is None else self.drop(self.W(h))  # W [SSA_1; ..; SSA_K], eq. (115): (B, N, d)


class ISTA(nn.Module):
    """One proximal-gradient step on the non-negative LASSO of eq. (16), started at Z = Z^(l+1/2): eq. (17).

    (It is that step for lambda |Z|_1 + 1/2 |Z^(l+1/2) - D Z|^2; eq. (16) is written without the half.)
    """

    def __init__(self, c):
        super().__init__()
        self.D = nn.Parameter(torch.empty(c.n_embd, c.n_embd))
        self.kind, self.eta, self.lam, self.alpha = c.ista, c.eta, c.lam, c.alpha

    def forward(self, z):
        if self.kind == 'mm':                                           # eq. (92)
            return F.relu((1 + 4 / (9 * (1 + self.alpha))) * F.linear(z, self.D.T) - 4 * self.lam / (9 * self.alpha))
        residual = z - F.linear(z, self.D)                              # Z - D Z: (B, N, d)
        step = z + self.eta * F.linear(residual, self.D.T)              # Z + eta D^* (Z - D Z), two products in all
        if self.kind == 'soft':                                         # eqs. (116) and (117)
            return F.softshrink(step, self.eta * self.lam)
        return F.relu(step - self.eta * self.lam)                       # eq. (17)


class Layer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.norm1, self.attn = nn.LayerNorm(c.n_embd), MSSA(c)
        self.norm2, self.ista = nn.LayerNorm(c.n_embd), ISTA(c)

    def forward(self, z):
        z = z + self.attn(self.norm1(z))                                # compress: Z^(l+1/2), eq. (18) left
        return self.ista(self.norm2(z))                                 # sparsify: Z^(l+1), eq. (18) right, no skip


# ---- the network ----------------------------------------------------------------------------------------------------

class CRATE(nn.Module):
    """model(x) -> (logits, None); model(x, y) -> (logits, loss). The classes below say what x, y and logits are."""

    def __init__(self, config):
        super().__init__()
        c = self.config = config
        Embedding, Head = (PatchEmbedding, Classifier) if c.task == 'image' else (TokenEmbedding, LanguageHead)
        self.embed = Embedding(c)
        self.layers = nn.Sequential(*(Layer(c) for _ in range(c.n_layer)))
        for layer in self.layers:  # the rest of a picture's is PyTorch's default, as in the authors' code
            nn.init.uniform_(layer.ista.D, -math.sqrt(6 / c.n_embd), math.sqrt(6 / c.n_embd))
        self.read = Head(c, self.embed)
        if c.task != 'image':
            initialize_text(self)

    def forward(self, x, y=None):
        z = self.embed(x)                                               # (B, N, d)
        for layer in self.layers:
            z = layer(z)                                                # eq. (18)
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
        return official.to_crate(self)

    @classmethod
    def from_official(cls, state_dict, *, n_head, image_size, patch_size, **overrides):
        """A network with the authors' weights; see engine/official.py."""
        from engine import official
        return official.from_crate(cls, CRATEConfig, state_dict, n_head=n_head, image_size=image_size,
                                   patch_size=patch_size, **overrides)


# ---- pictures -------------------------------------------------------------------------------------------------------

class PatchEmbedding(nn.Module):
    """Pictures x, float (B, C, H, W) -> tokens (B, N + 1, d), the class token first."""

    def __init__(self, c):
        super().__init__()
        (H, W), (h, w) = c.image_size, c.patch_size
        self.sizes, N, P = (c.channels, H, W, h, w), (H // h) * (W // w), h * w * c.channels
        self.patch_norm = nn.LayerNorm(P) if c.patch_norm else nn.Identity()
        self.patch = nn.Linear(P, c.n_embd)
        self.token_norm = nn.LayerNorm(c.n_embd) if c.patch_norm else nn.Identity()
        self.cls = nn.Parameter(torch.randn(1, 1, c.n_embd))
        self.pos = nn.Parameter(torch.randn(1, N + 1, c.n_embd))
        self.drop = nn.Dropout(c.dropout)

    def forward(self, x):
        z = self.token_norm(self.patch(self.patch_norm(patchify(x, *self.sizes))))              # (B, N, d)
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
    """Tokens (B, N, d) and the ids y to predict, int64 (B, N), -1 where none counts -> (logits (B, N, vocab_size), mean
    cross-entropy in nats). Given y and more than LOGITS_AT_ONCE logits, it returns None in place of the logits."""

    LOGITS_AT_ONCE = 2 ** 26  # more (256 MiB in float32) are never in memory together

    def __init__(self, c, embed):
        super().__init__()
        self.norm = nn.LayerNorm(c.n_embd) if c.final_norm or not c.causal else nn.Identity()
        self.head = nn.Linear(c.n_embd, c.vocab_size, bias=False)
        self.head.weight = embed.tok_emb.weight                         # the output map is the token embedding

    def forward(self, z, y=None):
        return language_loss(self.norm(z), self.head.weight, y, self.LOGITS_AT_ONCE)


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


def initialize_text(model):
    """As the authors' CRATE-GPT: embeddings and U N(0, 0.02^2), W N(0, (0.02 / sqrt(2 L))^2), biases 0."""
    small = 0.02 / math.sqrt(2 * model.config.n_layer)
    for end, std in (('emb.weight', 0.02), ('U.weight', 0.02), ('W.weight', small), ('W.bias', 0.0)):
        for p in (p for name, p in model.named_parameters() if name.endswith(end)):
            nn.init.normal_(p, std=std)


def check(c):
    """Raises ValueError where settings do not fit together; makes image_size and patch_size (height, width)."""
    for name, known in (('ista', ('relu', 'soft', 'mm')), ('pool', ('cls', 'mean'))):
        if getattr(c, name) not in known:
            raise ValueError(f"{name}='{getattr(c, name)}' is unknown; choose {' or '.join(known)}")
    for name in ('block_size', 'vocab_size', 'n_layer', 'n_head', 'n_embd', 'num_classes', 'channels'):
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


Network, Config = CRATE, CRATEConfig  # what --model=crate trains; see docs/extend.md
