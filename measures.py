"""What the theory says a layer does, as numbers: how many nats code the tokens, how sparse they are, how far apart subspaces.

Tokens are rows here, Z (.., N, d), where the paper has columns. Equation numbers are CRATE's (Yu et al., NeurIPS 2023).
"""
import torch


def coding_rate(Z, eps=0.5):
    """R(Z), eq. (7): about the nats that N tokens take if each may be off by eps. Z (.., N, d) -> (..).

    1/2 logdet(I + d / (N eps^2) Z Z^T), by the smaller of the two Gram matrices, which have the same determinant.
    """
    N, d = Z.shape[-2:]
    gram = Z @ Z.mT if N < d else Z.mT @ Z
    return 0.5 * torch.logdet(torch.eye(min(N, d), dtype=Z.dtype, device=Z.device) + d / (N * eps ** 2) * gram)


def compressed_rate(W, eps=0.5):
    """R^c(Z; U_[K]), eq. (8): the rates of the tokens in the coordinates of each subspace, added up.

    W (.., K, N, p) holds U_k^T Z, as MSSA's projection gives it -> (..).
    """
    return coding_rate(W, eps).sum(-1)


def compressed_rate_gradient(Z, U, eps=0.5):
    """The gradient of R^c(Z; U_[K]) with respect to Z, eq. (9). Z (.., N, d), U (K, d, p) -> (.., N, d)."""
    (N, d), p = Z.shape[-2:], U.size(-1)
    W = Z.unsqueeze(-3) @ U                                                         # U_k^T Z: (.., K, N, p)
    beta = p / (N * eps ** 2)
    inner = torch.eye(N, dtype=Z.dtype, device=Z.device) + beta * W @ W.mT          # (.., K, N, N)
    return beta * (torch.linalg.solve(inner, W) @ U.mT).sum(-3)


def released_rate(W, eps=0.01):
    """R^c as the released code measures it: every projected token is made one long first, and eps is not squared.
    W (.., K, N, p) -> (..)."""
    return compressed_rate(torch.nn.functional.normalize(W, dim=-1), eps ** 0.5)


def nonzeros(Z):
    """The share of numbers in tokens (.., N, d) that are not zero -> (..): |Z|_0 / N d."""
    return (Z != 0).to(torch.get_default_dtype()).mean((-2, -1))


def coherence(U):
    """How much subspaces overlap. U (K, d, p) -> (|U^T U| of all columns, made one long: (K p, K p), and one number: its mean
    between subspaces over its mean inside them)."""
    K, _, p = U.shape
    columns = torch.nn.functional.normalize(U, dim=1).permute(1, 0, 2).flatten(1)   # (d, K p)
    G = (columns.mT @ columns).abs()
    inside = torch.block_diag(*[torch.ones(p, p, dtype=torch.bool)] * K).to(U.device)
    return G, (G[~inside].mean() / G[inside].mean()).item()


# ---- the denoising theorem: AoT (Wang et al., ICML 2025), section 3.2; equation numbers are that paper's -----------------


def noisy_mixture(K, p, n, d, delta, generator=None):
    """Definition 1: n tokens around each of K orthogonal subspaces of dimension p in R^d, K p <= d. Each is U_k a plus noise of
    size delta in the coordinates of the other subspaces. Returns (Z (K, n, d), U (K, d, p)), float64."""
    if K * p > d:
        raise ValueError(f'{K} orthogonal subspaces of dimension {p} do not fit into {d} dimensions')
    U = torch.linalg.qr(torch.randn(d, K * p, generator=generator, dtype=torch.float64))[0]  # (d, K p), eq. (7)
    coordinates = torch.randn(K, n, K, p, generator=generator, dtype=torch.float64)
    own = torch.eye(K, dtype=torch.bool)[:, None, :, None]
    return torch.where(own, coordinates, delta * coordinates).flatten(2) @ U.mT, U.unflatten(1, (K, p)).permute(1, 0, 2)


def snr(Z, U):
    """Signal to noise of each cluster, eq. (6): what of its tokens Z (K, n, d) lies in its subspace U (K, d, p), over what does
    not -> (K,)."""
    inside = Z @ U @ U.mT
    return torch.linalg.matrix_norm(inside) / torch.linalg.matrix_norm(Z - inside)


def denoise(Z, U, eta, tau=None):
    """One layer of eq. (3) with the true bases: Z + eta sum_k U_k U_k^T Z phi(Z^T U_k U_k^T Z), eq. (4). phi is the softmax,
    and with tau what Theorem 1 makes of it: tau where it is above tau, else 0. Z (K, n, d), U (K, d, p) -> (K, n, d)."""
    W = Z.flatten(0, 1) @ U                                                         # U_k^T Z: (K, K n, p)
    phi = (W @ W.mT).softmax(-1)                                                    # (K, K n, K n), a row for each token
    if tau is not None:
        phi = tau * (phi > tau).to(phi.dtype)
    return Z + eta * (phi @ W @ U.mT).sum(0).view_as(Z)
