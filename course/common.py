"""What the marks of several lessons share: loops over plain numbers for oracles, and our networks."""
import math


# ---- loops: a vector is a list of numbers, a matrix a list of its rows ----------------------------------------------

def logdet(A):
    """The logarithm of the determinant of a matrix, by elimination."""
    A, total = [row[:] for row in A], 0.0
    for i in range(len(A)):
        top = max(range(i, len(A)), key=lambda r: abs(A[r][i]))
        A[i], A[top] = A[top], A[i]
        total += math.log(abs(A[i][i]))
        for r in range(i + 1, len(A)):
            share = A[r][i] / A[i][i]
            A[r] = [a - share * b for a, b in zip(A[r], A[i])]
    return total


def times(A, z, b=None):
    """A z + b."""
    return [sum(a * v for a, v in zip(row, z)) + (b[i] if b else 0.0) for i, row in enumerate(A)]


def project(z, Uk):
    """U_k^T z."""
    return [sum(z[i] * Uk[i][j] for i in range(len(z))) for j in range(len(Uk[0]))]


def normed(z, weights, name, eps=1e-5):
    """LayerNorm of one token."""
    mean = sum(z) / len(z)
    size = math.sqrt(sum((v - mean) ** 2 for v in z) / len(z) + eps)
    return [(v - mean) / size * a + b for v, a, b in zip(z, weights[f'{name}.weight'], weights[f'{name}.bias'])]


def attend(Z, weights, heads):
    """W [SSA_1; ..; SSA_K] + bias of the tokens of one picture: eqs. (11) and (115) of CRATE."""
    U, p = weights['attn.U.weight'], len(weights['attn.U.weight']) // heads
    side = [[] for _ in Z]
    for k in range(heads):
        W = [times(U[k * p:(k + 1) * p], z) for z in Z]
        for n, own in enumerate(W):
            e = [math.exp(sum(a * b for a, b in zip(own, other)) / math.sqrt(p)) for other in W]
            side[n] += [sum(a * other[j] for a, other in zip(e, W)) / sum(e) for j in range(p)]
    return [times(weights['attn.W.weight'], s, weights['attn.W.bias']) for s in side]


# ---- our networks ---------------------------------------------------------------------------------------------------

def with_weights(module, weights):
    """A part of our networks in float64, with these weights."""
    module = module.double()
    module.load_state_dict(weights)
    return module.requires_grad_(False)
