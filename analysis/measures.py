"""What the theory says about tokens, as numbers: coding rates, sparsity, coherence, the LASSO,
signal to noise.

Tokens are rows here, Z (.., N, d), where the papers have columns. Equation numbers are those of
CRATE (Yu et al., NeurIPS 2023), and in the last part of this file those of AoT (Wang et al., ICML
2025).
"""
import torch
from torch.nn.functional import normalize

from engine.mistakes import Mistake

# ---- coding rates -------------------------------------------------------------------------------

def coding_rate(Z, eps=0.5):
    """R(Z) of eq. (7), 1/2 logdet(I + d / (N eps^2) Z Z^T): about how many nats code each token,
    with a mean squared error of eps^2. Z (.., N, d) -> (..).

    R is the rate of one draw from the Gaussian that has the second moments of the tokens, so ten
    times as many tokens have the same R. All N tokens together cost (N + d) R, of which d R are for
    the code itself (Ma et al. 2007).

    The determinant is the same with Z Z^T (N, N) and with Z^T Z (d, d), and the smaller matrix is
    used. The computation is in float64, because one long token is enough to exceed the precision of
    float32.
    """
    if Z.device.type == 'mps':  # it has no float64
        Z = Z.cpu()
    Z = Z.double()
    N, d = Z.shape[-2:]
    if N < d:
        gram = Z @ Z.mT                                     # (.., N, N)
    else:
        gram = Z.mT @ Z                                     # (.., d, d)
    identity = torch.eye(min(N, d), dtype=Z.dtype, device=Z.device)
    alpha = d / (N * eps ** 2)
    return 0.5 * torch.logdet(identity + alpha * gram)      # eq. (7)


def compressed_rate(W, eps=0.5):
    """R^c(Z; U_[K]) of eq. (8): how many nats a token costs if every subspace codes every token.
    This is an upper bound of what it costs to code each token in its own subspace.

    W (.., K, N, p) holds the projections U_k^T Z of MSSA -> (..).
    """
    rate_of_subspace = coding_rate(W, eps)                  # (.., K)
    return rate_of_subspace.sum(-1)


def objective(Z, W, lam, eps=0.5):
    """What CRATE maximizes, eq. (1): R(Z) - R^c(Z; U_[K]) - lam |Z|_0. Z (.., N, d), W (.., K, N,
    p) as in compressed_rate -> (..). As the paper prints it, the rates are per token, while |Z|_0
    counts the non-zeros of all tokens. lam: a number, or a tensor that broadcasts with Z."""
    rate_reduction = coding_rate(Z, eps) - compressed_rate(W, eps)
    weighted = (lam * (Z != 0)).sum((-2, -1))               # lam |Z|_0
    return rate_reduction - weighted.to(rate_reduction.device)


def compressed_rate_gradient(Z, U, eps=0.5):
    """The gradient of R^c(Z; U_[K]) with respect to Z, eq. (9). Z (.., N, d), U (K, d, p) -> (..,
    N, d). With tokens as rows, W_k (N, p) the projections U_k^T Z and beta = p / (N eps^2), it is

        beta sum_k (I + beta W_k W_k^T)^-1 W_k U_k^T
        = beta sum_k W_k (I + beta W_k^T W_k)^-1 U_k^T

    The second line is computed. It shows that the gradient applies the same linear map to every
    token, whichever subspace the token belongs to.
    """
    N = Z.size(-2)
    p = U.size(-1)
    beta = p / (N * eps ** 2)
    W = Z.unsqueeze(-3) @ U                                 # U_k^T Z: (.., K, N, p)
    identity = torch.eye(p, dtype=Z.dtype, device=Z.device)
    shrunk = torch.linalg.solve(identity + beta * (W.mT @ W), W, left=False)
    return beta * (shrunk @ U.mT).sum(-3)                   # eq. (9)


def released_rate(W, eps=0.01):
    """R^c as the released code measures it: the projections of tokens are scaled to unit norm, and
    eps is not squared. W (.., K, N, p) as in compressed_rate -> (..)."""
    W = normalize(W, dim=-1)
    return compressed_rate(W, eps ** 0.5)                   # which squares it


# ---- tokens, subspaces and steps ----------------------------------------------------------------

def nonzeros(Z):
    """The share of non-zeros in tokens (.., N, d) -> (..): |Z|_0 / (N d)."""
    is_nonzero = (Z != 0).to(torch.get_default_dtype())
    return is_nonzero.mean((-2, -1))


def coherence(U):
    """How much subspaces U (K, d, p) overlap. Returns |U^T U| (K p, K p) of the columns of all
    subspaces, scaled to unit norm, and one number: the mean of its entries between different
    subspaces, divided by the mean of its entries within subspaces."""
    K, _, p = U.shape
    columns = normalize(U, dim=1).permute(1, 0, 2).flatten(1)   # (d, K p)
    G = (columns.mT @ columns).abs()

    blocks = torch.ones(K, p, p, dtype=torch.bool)
    within = torch.block_diag(*blocks)                      # (K p, K p)
    ratio = G[~within].mean() / G[within].mean()
    return G, ratio.item()


def gaussian(generator, *shape):
    """Numbers that are drawn from N(0, 1), float64, in this shape."""
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def random_bases(K, p, d, generator):
    """Orthonormal bases of K subspaces of dimension p in R^d, which are random and orthogonal to
    each other: (K, d, p), float64. Raises Mistake if K p is larger than d."""
    if K * p > d:
        raise Mistake(f'{K * p} vectors cannot be orthogonal to each other in {d} dimensions; '
                      'give fewer')
    columns, _ = torch.linalg.qr(gaussian(generator, d, K * p))         # (d, K p)
    return columns.unflatten(1, (K, p)).permute(1, 0, 2)


def relative_distance(a, b):
    """The distance of tokens a from tokens b, as a share of the length of b."""
    return ((a - b).norm() / b.norm()).item()


def turning(step, Z):
    """The part of a step (.., N, d) that turns the tokens Z (.., N, d): orthogonal to each token,
    so without the part that only makes a token longer or shorter."""
    direction = normalize(Z, dim=-1)
    along = (step * direction).sum(-1, keepdim=True)        # (.., N, 1)
    return step - along * direction


# ---- the non-negative LASSO of eq. (16), with the factor 1/2 that makes eq. (17) its proximal step

def dictionaries(d, generator=None):
    """Three dictionaries {name: D (d, d)}, float64, with columns of unit norm: the columns are
    orthogonal to each other, or random, or random around one direction, so that their cosines are
    about 1/2."""
    columns = normalize(gaussian(generator, d, d), dim=0)
    direction = normalize(gaussian(generator, d, 1), dim=0)
    return {
        'orthogonal': torch.linalg.qr(columns)[0],
        'incoherent (random)': columns,
        'coherent': normalize(columns + direction, dim=0),
    }


def lasso_objective(Z, Y, D, lam):
    """lam |z|_1 + 1/2 |y - D z|^2 of each token: the objective of eq. (16), for Z >= 0, with a
    factor 1/2. Y (.., N, d), D (d, m), Z (.., N, m) -> (.., N); in CRATE m = d. lam: a number, or
    a tensor that broadcasts with Z."""
    error = Y - Z @ D.mT                                    # y - D z: (.., N, d)
    return (lam * Z.abs()).sum(-1) + error.square().sum(-1) / 2


def ista_step(Z, Y, D, eta, lam):
    """relu(Z + eta D^* (Y - D Z) - eta lam), a step of eq. (17) from any Z (.., N, m). A layer of
    CRATE starts at Z = Y."""
    error = Y - Z @ D.mT                                    # y - D z: (.., N, d)
    return (Z + eta * error @ D - eta * lam).relu()


def lasso_minimizer(Y, D, lam, tolerance=1e-9, steps=100_000):
    """The Z >= 0 that minimizes lasso_objective, (.., N, m). ISTA with momentum (FISTA, Beck and
    Teboulle 2009), which is restarted when it goes uphill, runs until the optimality conditions
    hold up to `tolerance`. Raises Mistake if they do not hold after `steps` steps."""
    eta = 1 / torch.linalg.matrix_norm(D, 2) ** 2
    Z = Y.new_zeros(*Y.shape[:-1], D.shape[1])
    ahead = Z                                               # where momentum has carried Z
    t = 1.0
    for _ in range(steps):
        Z_new = ista_step(ahead, Y, D, eta, lam)
        gap = (Z_new - ahead).abs().max() / eta             # 0 at the minimizer, and only there
        if gap < tolerance:
            return Z_new

        move = Z_new - Z
        if ((ahead - Z_new) * move).sum() > 0:              # uphill: momentum starts anew
            t = 1.0
        t_new = (1 + (1 + 4 * t ** 2) ** 0.5) / 2
        ahead = Z_new + (t - 1) / t_new * move
        Z = Z_new
        t = t_new
    raise Mistake(f'after {steps} steps the LASSO is solved only up to {gap:.1e}; '
                  'try a larger lam')


# ---- the denoising theorem: AoT, section 3.2; equation numbers are those of that paper ----------

def noisy_mixture(K, p, n, d, delta, generator=None):
    """Definition 1: n tokens around each of K orthogonal subspaces of dimension p in R^d, K p <= d.
    A token of subspace k is U_k a plus noise of size delta in the coordinates of the other
    subspaces. Returns (Z (K, n, d), U (K, d, p)), float64."""
    U = random_bases(K, p, d, generator)                    # orthogonal to each other, eq. (7)
    a = gaussian(generator, K, n, K, p)
    # a[k, i, j] are the coordinates in subspace j of token i of cluster k: signal where j is k
    is_signal = torch.eye(K, dtype=torch.bool)[:, None, :, None]
    a = torch.where(is_signal, a, delta * a)
    Z = a.flatten(2) @ U.mT.flatten(0, 1)                   # a sum over all subspaces: (K, n, d)
    return Z, U


def snr(Z, U):
    """The signal-to-noise ratio of each cluster, eq. (6): the norm of the part of its tokens Z (K,
    n, d) inside its subspace U (K, d, p), divided by the norm of what is outside -> (K,)."""
    signal = Z @ U @ U.mT
    noise = Z - signal
    return torch.linalg.matrix_norm(signal) / torch.linalg.matrix_norm(noise)


def denoising_weights(Z, U, tau=0):
    """phi(Z^T U_k U_k^T Z) of eq. (4) for tokens Z (K, n, d) and bases U (K, d, p): (K, K n, K n),
    a row for each token. If tau is 0, phi is the softmax. Else it is the phi of Theorem 1: tau
    where the softmax is above tau, and 0 elsewhere."""
    W = Z.flatten(0, 1) @ U                                 # U_k^T Z: (K, K n, p)
    phi = (W @ W.mT).softmax(-1)
    if tau == 0:
        return phi
    return tau * (phi > tau).to(phi.dtype)


def passing(phi):
    """What passes the threshold tau. phi (K, K n, K n): the weights that denoising_weights returns
    with tau. Returns two shares: first, of all tokens, those that attend to themselves in their own
    subspace; second, of all pairs of a token and another subspace, those in which the token attends
    to anything. By eq. (30) the first share is 1 and the second is 0."""
    K, N, _ = phi.shape                                     # N = K n
    in_own_subspace = torch.eye(K, dtype=torch.bool).repeat_interleave(N // K, 1)   # (K, K n)
    attends = phi > 0
    to_itself = attends.diagonal(dim1=1, dim2=2)            # (K, K n)
    to_anything = attends.any(-1)                           # (K, K n)
    share_in_own = to_itself[in_own_subspace].double().mean()
    share_in_others = to_anything[~in_own_subspace].double().mean()
    return share_in_own, share_in_others


def denoise(Z, U, eta, phi):
    """A layer of eq. (3) with the true bases: Z + eta sum_k U_k U_k^T Z phi_k. Z (K, n, d), U (K,
    d, p), phi (K, K n, K n) -> (K, n, d)."""
    W = Z.flatten(0, 1) @ U                                 # U_k^T Z: (K, K n, p)
    update = (phi @ W @ U.mT).sum(0)                        # sum_k U_k U_k^T Z phi_k: (K n, d)
    return Z + eta * update.view_as(Z)
