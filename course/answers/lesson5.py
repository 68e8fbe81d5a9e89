"""Lesson 5, solved."""
import torch
from torch.linalg import matrix_norm
from torch.nn.functional import layer_norm


def snr(Z, U):
    signal = Z @ U @ U.mT                                       # (K, n, d): cluster k meets U[k]
    # Frobenius norms: one length for all tokens of a cluster
    return matrix_norm(signal) / matrix_norm(Z - signal)


def membership(Z, U, tau):
    P = Z @ U                                                   # (K, N, p), of all tokens
    phi = (P @ P.mT).softmax(-1)
    # a bool times tau would be float32: the default of PyTorch, not the dtype of phi
    return tau * (phi > tau).to(phi.dtype) if tau else phi


def denoise(Z, U, eta, tau):
    # (K, N, N) times (K, N, p), back to (K, N, d), and the sum over subspaces
    return Z + eta * (membership(Z, U, tau) @ (Z @ U) @ U.mT).sum(0)


def passing(phi):
    K, N, _ = phi.shape
    # own[k, n]: is k the subspace of token n? For K = 2, N = 4: 1 1 0 0, then 0 0 1 1
    own = torch.eye(K, dtype=torch.bool).repeat_interleave(N // K, 1)
    itself, anything = phi.diagonal(dim1=1, dim2=2) > 0, (phi > 0).any(-1)  # (K, N) each
    return torch.stack((itself[own].double().mean(), anything[~own].double().mean()))


def attention(z, weights, heads):
    w = (z @ weights['attn.U.weight'].T).unflatten(-1, (heads, -1)).transpose(1, 2)
    # w is (B, K, N, p)
    scores = w @ w.mT / w.shape[-1] ** 0.5
    later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    h = scores.masked_fill(later, -torch.inf).softmax(-1) @ w
    return h.transpose(1, 2).flatten(2) @ weights['attn.W.weight'].T


def aot_layer(Z, weights, heads):
    n = layer_norm(Z, Z.shape[-1:], weights['norm1.weight'])
    return Z + attention(n, weights, heads)


def next_token_loss(logits, y):
    counts = y >= 0
    # log_softmax and not the logarithm of softmax: tiny probabilities round to 0, and log 0 is -inf
    # gather needs an index that exists, so -1 becomes 0 here, and does not count below
    log_p = logits.log_softmax(-1).gather(-1, y.clamp_min(0)[..., None])[..., 0]
    return -log_p[counts].mean()


def sample(predict, ids, new, block, temperature, seed):
    # one generator for all draws: made anew in the loop, it would draw the same number each time
    generator = torch.Generator().manual_seed(seed)
    for _ in range(new):
        logits = predict(ids[None, -block:])[0, -1]             # (V,), those of the last token
        drawn = torch.multinomial((logits / temperature).softmax(-1), 1, generator=generator)
        ids = torch.cat((ids, drawn))
    return ids
