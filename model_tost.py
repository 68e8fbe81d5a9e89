"""ToST, the token statistics transformer: attention that compares no tokens, so its cost is linear in their number.

    Wu, Ding, Lu, Pai, Zhang, Wang, Yu, Ma, Haeffele. "Token Statistics Transformer: Linear-Time Attention via
    Variational Rate Reduction", ICLR 2025. The derivation is section 4.3.2 of the authors' textbook (Buchanan et al.).

The idea. A compact set of tokens has a small coding rate R^c. Its gradient needs all second moments in each subspace,
and with them products of all pairs of tokens. ToST bounds R^c from above with the diagonal alone, one number for each
coordinate. Let token j belong to subspace k with probability Pi_jk. Then, with letters of ours for the equations,

    R_var = 1/2 sum_k N_k/N sum_i f(m_ki),  with N_k = sum_j Pi_jk  and  m_k = 1/N_k sum_j Pi_jk (U_k^T z_j)^2    (a)
    z_j <- z_j - tau/N sum_k Pi_jk U_k Diag(f'(m_k)) U_k^T z_j       its gradient step, with Pi held fixed        (b)
    Pi_j = softmax over k of |U_k^T z_j|^2 / (2 eta)                 to which subspace token j is closest         (c)

for f(x) = log(1 + d/eps^2 x). The step shrinks a token most along coordinates in which its subspace has little energy.
R_var is R^c where each U_k diagonalizes the second moments of its tokens, and larger elsewhere.

    paper   code              meaning
    N       N                 tokens in a sequence
    d       n_embd            width of a token
    K       n_head            subspaces, one per attention head
    p       head_dim          dimension of a subspace
    L       n_layer           layers
    Z       z  (B, N, d)      a batch of tokens, one per row; the paper writes d x N, one per column
    U_k     U.weight[k*p:(k+1)*p].T   basis of subspace k, (d, p)
            w  (B, N, K, p)   coordinates U_k^T z_j
            e  (B, N, K, p)   their squares, the energies
    Pi      Pi (B, N, K, 1)   to which subspace a token belongs
    m_k     m  (B, N, K, p)   second moment of each coordinate under Pi, of the tokens 1 .. t for each t

Departures from (a) to (c), all as in the authors' code (github.com/RobinWu218/ToST), whose outputs this equals. The
lines below bear their numbers:
  (1) Pi compares shares: a coordinate's energy divided by that of all tokens. A learned temp_k takes the place of
      1 / (2 eta), and each head and position has a learned bias b;
  (2) f'(m) = 1 / (1 + m), so d/eps^2 = 1: its size is left to U;
  (3) the map back is a free matrix W, not U_k, which also absorbs tau/N;
  (4) U is not orthogonal, has p = d / K, and has a bias where `bias` says so;
  (5) Pi depends on Z, though the step holds it fixed; gradients of training pass through it;
  (6) token t uses the statistics of the tokens 1 .. t alone: its update is the step on R_var of that beginning;
  (7) a LayerNorm comes before each half of a layer, and a learned scale gamma of each coordinate after it;
  (8) the second half of a layer is GPT-2's MLP, not a sparse code.
"""
import math
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint


@dataclass
class ToSTConfig:
    n_layer: int = 12               # layers: a step of (b) and an MLP each
    n_head: int = 12                # attention heads, one subspace each
    n_embd: int = 768               # width of a token
    head_dim: int = 0               # dimension of a subspace; 0 means n_embd / n_head
    layer_scale: float = 1e-5       # first value of the scales gamma
    bias: bool = False              # biases in linear maps and LayerNorms
    dropout: float = 0.0            # on embeddings, on f'(m) and on what each half of a layer adds
    block_size: int = 1024          # longest sequence of tokens
    vocab_size: int = 50257         # number of different tokens

    task = 'text'

    def __post_init__(self):
        check(self)


# ---- the operator ---------------------------------------------------------------------------------------------------

class TSSA(nn.Module):
    """Token statistics self-attention: the step (b) for each token, tokens (B, N, d) to (B, N, d).

    All sums over tokens are in float32. While text is generated, `past` adds those of earlier tokens."""

    def __init__(self, c):
        super().__init__()
        self.K, width = c.n_head, c.n_head * (c.head_dim or c.n_embd // c.n_head)
        self.U = nn.Linear(c.n_embd, width, bias=c.bias)                # all U_k^T, one below the other (4)
        self.W = nn.Linear(width, c.n_embd, bias=c.bias)                # back to d numbers (3)
        self.temp = nn.Parameter(torch.ones(c.n_head))                  # 1 / (2 eta) of each head (1)
        self.b = nn.Parameter(torch.zeros(c.n_head, c.block_size, 1))   # of each head and position (1)
        self.drop, self.past = nn.Dropout(c.dropout), None

    def forward(self, z):
        w = self.U(z).unflatten(-1, (self.K, -1))                       # U_k^T z_j: (B, N, K, p)
        e = w.float().square()                                          # (B, N, K, p)
        Pi = self.memberships(e)                                        # (c): (B, N, K, 1)
        N_k = self.upto('N_k', Pi)                                      # tokens in subspace k (6): (B, N, K, 1)
        m = self.upto('N_k m_k', Pi * e) / (N_k + 1e-8)                 # second moments m_k of (a): (B, N, K, p)
        h = -Pi * self.drop(1 / (1 + m)) * w                            # (b) with f' = 1 / (1 + m) (2): (B, N, K, p)
        return self.W(h.to(w.dtype).flatten(2))                         # (3): (B, N, d)

    def memberships(self, e):
        """Pi of tokens with energies e (B, N, K, p): (B, N, K, 1)."""
        share = e / self.upto('e', e).clamp_min(1e-12)                  # of the energy of all tokens (1)
        first, p = self.past.first if self.past else 0, e.size(-1)
        b = self.b[:, first:first + e.size(1), 0].T                     # (N, K)
        return (self.temp * (share.sum(-1) + p * b)).softmax(-1).unsqueeze(-1)

    def upto(self, name, x):
        """For each token t, the sum of x (B, N, ..) over the tokens 1 .. t (6)."""
        x = x.cumsum(1)
        return x if self.past is None else self.past.plus(name, x)


class MLP(nn.Module):
    """GPT-2's MLP."""

    def __init__(self, c):
        super().__init__()
        self.up, self.gelu = nn.Linear(c.n_embd, 4 * c.n_embd, bias=c.bias), nn.GELU()
        self.down = nn.Linear(4 * c.n_embd, c.n_embd, bias=c.bias)

    def forward(self, z):
        return self.down(self.gelu(self.up(z)))                         # (B, N, d)


class Layer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.norm1, self.attn = nn.LayerNorm(c.n_embd, bias=c.bias), TSSA(c)
        self.norm2, self.mlp = nn.LayerNorm(c.n_embd, bias=c.bias), MLP(c)
        self.gamma1, self.gamma2 = (nn.Parameter(torch.full((c.n_embd,), c.layer_scale)) for _ in range(2))
        self.drop = nn.Dropout(c.dropout)

    def forward(self, z):
        z = z + self.gamma1 * self.drop(self.attn(self.norm1(z)))       # compress, (b); norm and gamma (7)
        return z + self.gamma2 * self.drop(self.mlp(self.norm2(z)))     # (8)


# ---- the network ----------------------------------------------------------------------------------------------------

class ToST(nn.Module):
    """Token ids x, int64 (B, N), to (logits (B, N, vocab_size), None); with the next ids y to (logits, loss)."""

    def __init__(self, config):
        super().__init__()
        c = self.config = config
        self.embed = TokenEmbedding(c)
        self.layers = nn.Sequential(*(Layer(c) for _ in range(c.n_layer)))
        self.read = LanguageHead(c, self.embed)
        initialize(self)

    def forward(self, x, y=None):
        z = self.embed(x)                                               # (B, N, d)
        for layer in self.layers:
            z = layer(z)
        return self.read(z, y)

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
        """A network with the authors' weights; see engine/official.py."""
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
    """Tokens (B, N, d) and the next ids y, int64 (B, N), -1 where none counts -> (logits (B, N, vocab_size), mean
    cross-entropy in nats). Given y and more than LOGITS_AT_ONCE logits, it returns None in place of the logits."""

    LOGITS_AT_ONCE = 2 ** 26  # more (256 MiB in float32) are never in memory together

    def __init__(self, c, embed):
        super().__init__()
        self.norm = nn.LayerNorm(c.n_embd, bias=c.bias)
        self.weight = embed.tok_emb.weight                              # the output map is the token embedding

    def forward(self, z, y=None):
        return language_loss(self.norm(z), self.weight, y, self.LOGITS_AT_ONCE)


# ---- helpers without an equation ------------------------------------------------------------------------------------

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
    """As GPT-2: weights N(0, 0.02^2), biases 0; the maps W and `down`, which write to the residual stream, with a
    deviation smaller by sqrt(2 L)."""
    small = 0.02 / math.sqrt(2 * model.config.n_layer)
    for name, module in model.named_modules():
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=small if name.endswith(('.W', '.down')) else 0.02)
            if getattr(module, 'bias', None) is not None:
                nn.init.zeros_(module.bias)


def check(c):
    """Raises ValueError where settings do not fit together."""
    for name in ('block_size', 'vocab_size', 'n_layer', 'n_head', 'n_embd'):
        if getattr(c, name) < 1:
            raise ValueError(f'{name}={getattr(c, name)} must be at least 1')
    if not c.head_dim and c.n_embd % c.n_head:
        raise ValueError(f'n_embd={c.n_embd} is not divisible by n_head={c.n_head}; change one, or set head_dim')


Network, Config = ToST, ToSTConfig  # what --model=tost trains; see docs/extend.md
