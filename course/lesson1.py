"""Lesson 1: the coding rate. Fill in the gaps; lesson1.md says what they are about.

    python course/check.py 1
    python course/lesson1.py        # tokens run down your gradient
"""
import torch


def coding_rate(Z: torch.Tensor, eps: float = 0.5) -> torch.Tensor:
    """R(Z) of eq. (7), in nats. Z (N, d): N tokens, one in each row. Returns one number, shape
    ()."""
    raise NotImplementedError


def compressed_rate(Z: torch.Tensor, U: torch.Tensor, eps: float = 0.5) -> torch.Tensor:
    """R^c(Z; U) of eq. (8): the sum of the coding rates of the tokens in each subspace. Z (N, d);
    U (K, d, p): U[k] is the basis U_k of subspace k. Returns one number, shape ()."""
    raise NotImplementedError


def compressed_rate_gradient(Z: torch.Tensor, U: torch.Tensor, eps: float = 0.5) -> torch.Tensor:
    """The gradient of R^c(Z; U) with respect to Z, eq. (9). Z (N, d), U (K, d, p) -> (N, d)."""
    raise NotImplementedError


# ---- the experiment: tokens run down your gradient ----------------------------------------------

def main(steps=20):
    import lab
    from torch.nn.functional import normalize
    K, N = 8, 64
    Z, U = lab.mixture(K, p=16, N=N, d=128, delta=0.2)

    # with labels, each token is coded in its own subspace alone; tokens are sorted by subspace
    groups = Z.unflatten(0, (K, N // K))                                    # (K, N / K, d)
    with_labels = sum(coding_rate(groups[k] @ U[k]) for k in range(K)) / K  # a mean: nats a token
    print(f'R^c {compressed_rate(Z, U):.1f} nats; with labels a token costs {with_labels:.1f} nats')

    by_autograd = torch.autograd.functional.jacobian(lambda tokens: compressed_rate(tokens, U), Z)
    gap = (compressed_rate_gradient(Z, U) - by_autograd).abs().max()
    print(f'your gradient is off from that of autograd by {gap:.1e}')

    free = Z                                                                # tokens of any length
    normed = Z                                                              # tokens of length 1
    curves = {'R, free': [], 'R^c, free': [], 'R, length 1': [], 'R^c, length 1': []}
    for _ in range(steps):
        curves['R, free'].append(coding_rate(free))
        curves['R^c, free'].append(compressed_rate(free, U))
        curves['R, length 1'].append(coding_rate(normed))
        curves['R^c, length 1'].append(compressed_rate(normed, U))
        free = free - 0.5 * compressed_rate_gradient(free, U)
        normed = normed - 0.5 * compressed_rate_gradient(normed, U)
        normed = normalize(normed, dim=1)                                   # as a norm does
    for name, values in curves.items():
        print(f'{name:14} {values[0]:6.2f} nats, after {steps - 1} steps {values[-1]:6.2f}')
    lab.draw('lesson1.png', 'step', 'nats for each token', curves)


if __name__ == '__main__':
    import lab
    lab.run(main, __doc__)
