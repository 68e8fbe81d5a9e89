"""What the theory says about tokens, as numbers: coding rates, sparsity, coherence, the LASSO,
signal to noise.

Tokens are rows here, Z (.., N, d), where the papers have columns. Equation numbers are CRATE's (Yu
et al., NeurIPS 2023), in the last part AoT's (Wang et al., ICML 2025).
"""
import torch
from torch.nn.functional import normalize

from engine.settings import Mistake

# ---- coding rates ---------------------------------------------------------------------------------------------------

def coding_rate(Z, eps=0.5):
    """R(Z), eq. (7): about how many nats code each token, with a mean squared error of eps^2. Z (.., N, d) -> (..).

    It is the rate of one draw from the Gaussian with the tokens' second moments, so ten times as many tokens have
    the same R. All N tokens together cost (N + d) R, d R of them for the code itself (Ma et al. 2007).

    1/2 logdet(I + d / (N eps^2) Z Z^T), computed with the smaller of the two Gram matrices: their
    determinants are equal. In float64, because one long token is enough to exceed the precision of
    float32.
    """
    Z = (Z.cpu() if Z.device.type == 'mps' else Z).double()
    N, d = Z.shape[-2:]
    gram = Z @ Z.mT if N < d else Z.mT @ Z
    return 0.5 * torch.logdet(torch.eye(min(N, d), dtype=Z.dtype, device=Z.device) + d / (N * eps ** 2) * gram)


def compressed_rate(W, eps=0.5):
    """R^c(Z; U_[K]), eq. (8): nats for each token if every subspace codes every token, an upper bound of what it costs
    to code each in its own.

    W (.., K, N, p) holds the projections U_k^T Z of MSSA -> (..).
    """
    return coding_rate(W, eps).sum(-1)


def objective(Z, W, lam, eps=0.5):
    """What CRATE maximizes, eq. (1): R(Z) - R^c(Z; U_[K]) - lam |Z|_0. Z (.., N, d), W (.., K, N, p) as above -> (..).
    The rates are per token, |Z|_0 counts the non-zeros of all tokens, as printed."""
    rate = coding_rate(Z, eps) - compressed_rate(W, eps)
    return rate - lam * (Z != 0).sum((-2, -1)).to(rate.device)


def compressed_rate_gradient(Z, U, eps=0.5):
    """The gradient of R^c(Z; U_[K]) with respect to Z, eq. (9). Z (.., N, d), U (K, d, p) -> (..,
    N, d).

    The inverse is computed with the smaller Gram matrix. In terms of the (p, p) one, the gradient
    applies the same linear map to every token, whichever subspace the token belongs to.
    """
    N, p = Z.size(-2), U.size(-1)
    W = Z.unsqueeze(-3) @ U                                             # U_k^T Z: (.., K, N, p)
    beta = p / (N * eps ** 2)
    inner = torch.eye(min(N, p), dtype=Z.dtype, device=Z.device) + beta * (W @ W.mT if N < p else W.mT @ W)
    W = torch.linalg.solve(inner, W) if N < p else torch.linalg.solve(inner, W, left=False)
    return beta * (W @ U.mT).sum(-3)


def released_rate(W, eps=0.01):
    """R^c as the released code measures it: projected tokens are scaled to unit norm, and eps is
    not squared. W (.., K, N, p) -> (..)."""
    return compressed_rate(normalize(W, dim=-1), eps ** 0.5)


# ---- tokens, subspaces and steps ------------------------------------------------------------------------------------

def nonzeros(Z):
    """The share of non-zeros in tokens (.., N, d) -> (..): |Z|_0 / (N d)."""
    return (Z != 0).to(torch.get_default_dtype()).mean((-2, -1))


def coherence(U):
    """How much subspaces overlap. U (K, d, p) -> |U^T U| of all columns, scaled to unit norm, (K p,
    K p); and one number, its mean between different subspaces divided by its mean within
    subspaces."""
    K, _, p = U.shape
    columns = normalize(U, dim=1).permute(1, 0, 2).flatten(1)           # (d, K p)
    G = (columns.mT @ columns).abs()
    within = torch.block_diag(*torch.ones(K, p, p, dtype=torch.bool)).to(U.device)
    return G, (G[~within].mean() / G[within].mean()).item()


def random_bases(K, p, d, generator):
    """Orthonormal bases of K subspaces of dimension p in R^d, at random and orthogonal to each other: (K, d, p),
    float64."""
    if K * p > d:
        raise Mistake(f'{K * p} vectors cannot be orthogonal to each other in {d} dimensions; give fewer')
    U = torch.linalg.qr(torch.randn(d, K * p, generator=generator, dtype=torch.float64))[0]
    return U.unflatten(1, (K, p)).permute(1, 0, 2)


def turning(step, Z):
    """The part of a step (.., N, d) that turns the tokens Z (.., N, d): orthogonal to each token,
    so without the part that only makes a token longer or shorter."""
    z = normalize(Z, dim=-1)
    return step - (step * z).sum(-1, keepdim=True) * z


# ---- the non-negative LASSO of eq. (16), with the factor 1/2 for which eq. (17) is a proximal step ------------------

def dictionaries(d, generator=None):
    """{name: D (d, d), float64} with columns of unit norm: orthogonal; random; random around one
    direction, where the cosines are about 1/2."""
    G, common = (normalize(torch.randn(d, n, generator=generator, dtype=torch.float64), dim=0) for n in (d, 1))
    return {'orthogonal': torch.linalg.qr(G)[0], 'incoherent (random)': G, 'coherent': normalize(G + common, dim=0)}


def lasso_objective(Z, Y, D, lam):
    """lam |z|_1 + 1/2 |y - D z|^2 of each token: the objective of eq. (16), for Z >= 0, with a
    factor 1/2. Y (.., N, d), D (d, m), Z (.., N, m) -> (.., N); in CRATE m = d."""
    return lam * Z.abs().sum(-1) + (Y - Z @ D.mT).square().sum(-1) / 2


def ista_step(Z, Y, D, eta, lam):
    """relu(Z + eta D^* (Y - D Z) - eta lam), a step of eq. (17) from any Z (.., N, m). A layer of
    CRATE starts at Z = Y."""
    return (Z + eta * (Y - Z @ D.mT) @ D - eta * lam).relu()


def lasso_minimizer(Y, D, lam, tolerance=1e-9, steps=100_000):
    """The Z >= 0 that minimizes lasso_objective, (.., N, m): ISTA with momentum (FISTA, Beck
    and Teboulle 2009), which is restarted when it goes uphill, until the optimality conditions hold
    up to `tolerance`."""
    eta = 1 / torch.linalg.matrix_norm(D, 2) ** 2
    Z = ahead = Y.new_zeros(*Y.shape[:-1], D.shape[1])
    t = 1.0
    for _ in range(steps):
        new = ista_step(ahead, Y, D, eta, lam)
        gap = (new - ahead).abs().max() / eta                           # 0 at the minimizer, and only there
        if gap < tolerance:
            return new
        t = 1.0 if ((ahead - new) * (new - Z)).sum() > 0 else t
        t_new = (1 + (1 + 4 * t ** 2) ** 0.5) / 2
        Z, ahead, t = new, new + (t - 1) / t_new * (new - Z), t_new
    raise Mistake(f'after {steps} steps the LASSO is solved only up to {gap:.1e}; try a larger lam')


# ---- the denoising theorem: AoT, section 3.2; equation numbers are that paper's -------------------------------------

def noisy_mixture(K, p, n, d, delta, generator=None):
    """Definition 1: n tokens around each of K orthogonal subspaces of dimension p in R^d, K p <= d.
    A token is U_k a plus noise of size delta in the coordinates of the other subspaces. Returns (Z
    (K, n, d), U (K, d, p)), float64."""
    U = random_bases(K, p, d, generator)                                # orthogonal to each other, eq. (7)
    coordinates = torch.randn(K, n, K, p, generator=generator, dtype=torch.float64)
    own = torch.eye(K, dtype=torch.bool)[:, None, :, None]
    return torch.where(own, coordinates, delta * coordinates).flatten(2) @ U.mT.flatten(0, 1), U


def snr(Z, U):
    """The signal-to-noise ratio of each cluster, eq. (6): the norm of the part of its tokens Z (K,
    n, d) inside its subspace U (K, d, p), divided by the norm of the rest -> (K,)."""
    signal = Z @ U @ U.mT
    return torch.linalg.matrix_norm(signal) / torch.linalg.matrix_norm(Z - signal)


def denoising_weights(Z, U, tau=None):
    """phi(Z^T U_k U_k^T Z) of eq. (4) for tokens Z (K, n, d) and bases U (K, d, p): (K, K n, K n), a
    row for each token. phi is the softmax; with tau it is as in Theorem 1: tau where the softmax is
    above tau, else 0."""
    W = Z.flatten(0, 1) @ U                                             # U_k^T Z: (K, K n, p)
    phi = (W @ W.mT).softmax(-1)
    return phi if tau is None else tau * (phi > tau).to(phi.dtype)


def passing(phi):
    """What passes the threshold, for the weights phi (K, K n, K n) that it leaves. Two shares: of the
    tokens, those that attend to themselves in their own subspace; of all pairs of a token and
    another subspace, those in which the token attends to anything. By eq. (30) all, and none."""
    K, N, _ = phi.shape
    own = torch.eye(K, dtype=torch.bool).repeat_interleave(N // K, 1)   # (K, K n)
    return (phi.diagonal(dim1=1, dim2=2)[own] > 0).double().mean(), (phi > 0).any(-1)[~own].double().mean()


def denoise(Z, U, eta, phi):
    """A layer of eq. (3) with the true bases: Z + eta sum_k U_k U_k^T Z phi_k. Z (K, n, d), U (K, d,
    p), phi (K, K n, K n) -> (K, n, d)."""
    return Z + eta * (phi @ (Z.flatten(0, 1) @ U) @ U.mT).sum(0).view_as(Z)
