"""Lesson 2, MSSA: oracles, mistakes and hints."""
import math

import torch
from common import project, with_weights
from grade import Exercise

SIZES = ((2, 7, 3, 4, 10), (1, 5, 4, 2, 6), (3, 4, 2, 5, 7))  # B, N, K, p, d


def inputs(seed):
    """(Z (B, N, d), U (K, d, p), causal)"""
    g = torch.Generator().manual_seed(seed)
    B, N, K, p, d = SIZES[seed - 1]
    return (torch.randn(B, N, d, generator=g, dtype=torch.float64),
            0.6 * torch.randn(K, d, p, generator=g, dtype=torch.float64), seed == 2)


def with_output(seed):
    """(Z (B, N, d), U (K, d, p), W (d, K p), bias (d,), causal)"""
    Z, U, causal = inputs(seed)
    g = torch.Generator().manual_seed(seed + 100)
    K, d, p = U.shape
    return Z, U, *(torch.randn(*s, generator=g, dtype=torch.float64) for s in ((d, K * p), (d,))), causal


# ---- oracles: loops over numbers ------------------------------------------------------------------------------------

def weights(Z, U, causal):
    """The softmax of eq. (11), one row for each token, scaled by 1 / sqrt(p)."""
    out = []
    for of_one in Z:
        heads = []
        for Uk in U:
            W, rows = [project(z, Uk) for z in of_one], []
            for n in range(len(W)):
                seen = range(n + 1) if causal else range(len(W))
                e = {m: math.exp(sum(a * b for a, b in zip(W[n], W[m])) / math.sqrt(len(Uk[0]))) for m in seen}
                rows.append([e.get(m, 0.0) / sum(e.values()) for m in range(len(W))])
            heads.append(rows)
        out.append(heads)
    return out


def heads_of(Z, U, causal):
    """SSA(Z | U_k) of eq. (11): (B, K, N, p)."""
    out = []
    for of_one, of_heads in zip(Z, weights(Z, U, causal)):
        heads = []
        for Uk, A in zip(U, of_heads):
            W = [project(z, Uk) for z in of_one]
            heads.append([[sum(a * w[j] for a, w in zip(row, W)) for j in range(len(Uk[0]))] for row in A])
        out.append(heads)
    return out


def tied(Z, U, causal):
    """sum_k U_k SSA(Z | U_k): eq. (12) without its factor."""
    return [[[sum(Uk[i][j] * heads[k][n][j] for k, Uk in enumerate(U) for j in range(len(Uk[0])))
              for i in range(len(U[0]))] for n in range(len(heads[0]))] for heads in heads_of(Z, U, causal)]


def free(Z, U, W, bias, causal):
    """W [SSA_1; ..; SSA_K] + bias: eq. (115)."""
    out = []
    for heads in heads_of(Z, U, causal):
        side = [[v for head in heads for v in head[n]] for n in range(len(heads[0]))]
        out.append([[b + sum(w * v for w, v in zip(row, s)) for row, b in zip(W, bias)] for s in side])
    return out


def half_step(Z, U, causal):
    """Z + MSSA(Z | U): eq. (18)."""
    return [[[a + b for a, b in zip(z, m)] for z, m in zip(*both)] for both in zip(Z, tied(Z, U, causal))]


# ---- right ways and mistakes ----------------------------------------------------------------------------------------

def A(Z, U, causal, scale=None, over=-1, before=0, lone=False, fill=-torch.inf, earlier=False):
    W = torch.einsum('bnd,kdp->bknp', Z, U)
    if lone:
        W = W.mean(1, keepdim=True).expand_as(W)
    s = W @ W.mT * (scale or U.shape[-1] ** -0.5)
    if causal:
        hidden = torch.ones(s.shape[-2:], dtype=torch.bool).triu(1 + before)
        s = s.masked_fill(hidden.T if earlier else hidden, fill)
    return s.softmax(over).nan_to_num(0.0)


def M(Z, U, causal, weights=A, back=True, **how):
    W = torch.einsum('bnd,kdp->bknp', Z, U)
    h = weights(Z, U, causal, **how) @ W
    return torch.einsum('bknp,kdp->bnd', h, U) if back else h.transpose(1, 2).flatten(2)


def fused(Z, U, causal):
    W = torch.einsum('bnd,kdp->bknp', Z, U)
    h = torch.nn.functional.scaled_dot_product_attention(W, W, W, is_causal=causal)
    return torch.einsum('bknp,kdp->bnd', h, U)


def of_ours(Z, U, causal):
    """The operator of model_crate.py."""
    from model_crate import MSSA, CRATEConfig
    K, d, p = U.shape
    ours = MSSA(CRATEConfig(n_head=K, n_embd=d, head_dim=p, image_size=0, causal=causal, tie_out=True))
    return with_weights(ours, {'U.weight': U.transpose(1, 2).reshape(K * p, d)})(Z)


def out(Z, U, W, bias, causal, **how):
    return M(Z, U, causal, back=False, **how) @ W.T + bias


def mixed(Z, U, W, bias, causal):
    h = A(Z, U, causal) @ torch.einsum('bnd,kdp->bknp', Z, U)                           # (B, K, N, p)
    return h.permute(0, 2, 3, 1).flatten(2) @ W.T + bias


def scrambled(Z, U, W, bias, causal):
    h = A(Z, U, causal) @ torch.einsum('bnd,kdp->bknp', Z, U)                           # (B, K, N, p)
    return h.reshape(*Z.shape[:2], -1) @ W.T + bias


def root(n):
    return n ** -0.5


EXERCISES = [
    Exercise(
        'attention_weights', inputs, weights,
        {'the softmax over the queries: each column sums to 1, and each row should':
            lambda Z, U, c: A(Z, U, c, over=-2),
         'the softmax over the heads': lambda Z, U, c: A(Z, U, c, over=1),
         'scores that are divided by sqrt(d), not sqrt(p)': lambda Z, U, c: A(Z, U, c, root(Z.shape[-1])),
         'scores that are divided by p, not by its root': lambda Z, U, c: A(Z, U, c, 1 / U.shape[-1]),
         'scores that are not divided by sqrt(p)': lambda Z, U, c: A(Z, U, c, 1.0),
         'a causal mask that is off by one: a token should see itself': lambda Z, U, c: A(Z, U, c, before=-1),
         'a causal mask that is off by one: a token sees the next one': lambda Z, U, c: A(Z, U, c, before=1),
         'no causal mask': lambda Z, U, c: A(Z, U, False),
         'a causal mask the wrong way round: it hides earlier tokens': lambda Z, U, c: A(Z, U, c, earlier=True),
         'scores of later tokens that are 0, and not -inf: the softmax of 0 is not 0': lambda Z, U, c: A(
             Z, U, c, fill=0.0),
         'a causal mask after the softmax: the weights of a row no longer sum to 1': lambda Z, U, c: (
             A(Z, U, False).tril() if c else A(Z, U, c)),
         'weights of the mean of all heads': lambda Z, U, c: A(Z, U, c, lone=True),
         'weights of the tokens themselves: U_k is missing': lambda Z, U, c: A(
             Z, torch.eye(Z.shape[-1], dtype=Z.dtype).expand(len(U), -1, -1), c, root(U.shape[-1]))},
        [A, lambda Z, U, c: torch.stack([A(Z, u[None], c)[:, 0] for u in U], 1)],
        ('A row of the result belongs to the token that looks. Along which axis must the softmax run, so that this '
         'token gets an average of all?',
         'In head k, with W = Z U_k (N, p): softmax(W W^T / sqrt(p)) along each row, eq. (11). With causal, scores of '
         'later tokens are -inf first.',
         "W = torch.einsum('bnd,kdp->bknp', Z, U)\n"
         'scores = W @ ... / ...                # (B, K, N, N)\n'
         'if causal:\n'
         '    later = torch.ones(N, N, dtype=torch.bool).triu(...)\n'
         '    scores = scores.masked_fill(later, -torch.inf)\n'
         'return scores.softmax(...)')),
    Exercise(
        'mssa', inputs, tied,
        {'the softmax over the queries': lambda Z, U, c: M(Z, U, c, over=-2),
         'scores that are divided by sqrt(d), not sqrt(p)': lambda Z, U, c: M(Z, U, c, scale=root(Z.shape[-1])),
         'scores that are not divided by sqrt(p)': lambda Z, U, c: M(Z, U, c, scale=1.0),
         'a causal mask that is off by one: a token should see itself': lambda Z, U, c: M(Z, U, c, before=-1),
         'a causal mask that is off by one: a token sees the next one': lambda Z, U, c: M(Z, U, c, before=1),
         'no causal mask': lambda Z, U, c: M(Z, U, False),
         'the mean over the heads, not the sum': lambda Z, U, c: M(Z, U, c) / len(U),
         'the first head alone': lambda Z, U, c: M(Z, U[:1], c),
         'projections without attention: each token alone, sum_k z U_k U_k^T': lambda Z, U, c: torch.einsum(
             'bnd,kdp,kep->bne', Z, U, U),
         'averages of the tokens, not of their projections: U_k U_k^T is missing': lambda Z, U, c: (
             A(Z, U, c) @ Z[:, None]).sum(1),
         'Z + MSSA(Z): the skip belongs to half_step': lambda Z, U, c: Z + M(Z, U, c)},
        [M, fused, of_ours],
        ('A head averages U_k^T z, which has p numbers. What brings the average back to d numbers?',
         'MSSA(Z | U) = sum_k A_k Z U_k U_k^T with A_k the weights of head k: eqs. (11) and (12) with tokens as rows, '
         'without the factor p / (N eps^2).',
         'A = attention_weights(Z, U, causal)       # (B, K, N, N)\n'
         'W = ...                                   # (B, K, N, p)\n'
         "return torch.einsum('bknp,kdp->bnd', A @ W, ...)")),
    Exercise(
        'mssa_free', with_output, free,
        {'heads that are mixed up: the K p numbers are those of head 1, then head 2, ..': mixed,
         'heads and tokens that are mixed up: transpose (B, K, N, p) before you flatten': scrambled,
         'the output without its bias': lambda Z, U, W, b, c: out(Z, U, W, b, c) - b,
         'the bias once for each head': lambda Z, U, W, b, c: out(Z, U, W, b, c) + (len(U) - 1) * b,
         'the softmax over the queries': lambda Z, U, W, b, c: out(Z, U, W, b, c, over=-2),
         'scores that are divided by sqrt(d), not sqrt(p)': lambda Z, U, W, b, c: out(
             Z, U, W, b, c, scale=root(Z.shape[-1])),
         'no causal mask': lambda Z, U, W, b, c: out(Z, U, W, b, False),
         'the tied output of eq. (12), without W': lambda Z, U, W, b, c: M(Z, U, c)},
        [out, lambda Z, U, W, b, c: torch.nn.functional.linear(M(Z, U, c, back=False), W, b)],
        ('W has K p columns. In which order are the numbers of the heads, one below the other in eq. (115)?',
         'W [SSA_1; ..; SSA_K] + bias, eq. (115): the heads side by side, (B, N, K p), then a linear map.',
         'h = ...                                   # (B, K, N, p)\n'
         'h = h.transpose(1, 2).flatten(2)          # (B, N, K p)\n'
         'return h @ ... + ...')),
    Exercise(
        'half_step', inputs, half_step,
        {'MSSA(Z) without the skip': lambda Z, U, c: M(Z, U, c),
         'Z - MSSA(Z): MSSA already points against the gradient': lambda Z, U, c: Z - M(Z, U, c),
         'no causal mask': lambda Z, U, c: Z + M(Z, U, False),
         'the softmax over the queries': lambda Z, U, c: Z + M(Z, U, c, over=-2),
         'two skips': lambda Z, U, c: 2 * Z + M(Z, U, c),
         'the mean over the heads, not the sum': lambda Z, U, c: Z + M(Z, U, c) / len(U)},
        [lambda Z, U, c: Z + M(Z, U, c), lambda Z, U, c: fused(Z, U, c) + Z],
        ('Eq. (10) is Z minus a gradient step, and yet MSSA is added. Why?',
         'Z^(l+1/2) = Z + MSSA(Z | U), the left half of eq. (18).', 'return ... + mssa(Z, U, causal)')),
]
