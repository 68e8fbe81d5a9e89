"""Lesson 1: the coding rate. Fill in the gaps; lesson1.md says what they are about.

    python course/check.py 1
    python course/lesson1.py        # tokens run down your gradient
"""
import torch


def coding_rate(Z: torch.Tensor, eps: float = 0.5) -> torch.Tensor:
    """R(Z) of eq. (7), in nats. Z (N, d): N tokens, one in each row. Returns one number, shape ()."""
    raise NotImplementedError


def compressed_rate(Z: torch.Tensor, U: torch.Tensor, eps: float = 0.5) -> torch.Tensor:
    """R^c(Z; U) of eq. (8): the sum of the coding rates of the tokens in each subspace. Z (N, d); U (K,
    d, p): U[k] is the basis U_k of subspace k. Returns one number, shape ()."""
    raise NotImplementedError


def compressed_rate_gradient(Z: torch.Tensor, U: torch.Tensor, eps: float = 0.5) -> torch.Tensor:
    """The gradient of R^c(Z; U) with respect to Z, eq. (9). Z (N, d), U (K, d, p) -> (N, d)."""
    raise NotImplementedError


# ---- the experiment: tokens run down your gradient ------------------------------------------------------------------

def main(steps=20):
    import lab
    Z, U = lab.mixture(K=8, p=16, N=64, d=128, delta=0.2)

    by_torch = torch.autograd.functional.jacobian(lambda Z: compressed_rate(Z, U), Z)
    gap = (compressed_rate_gradient(Z, U) - by_torch).abs().max()
    print(f'your gradient is off from that of autograd by {gap:.1e}')

    free, held, curves = Z, Z, {'R': [], 'R^c': [], 'R, length 1': [], 'R^c, length 1': []}
    for _ in range(steps):
        for end, z in (('', free), (', length 1', held)):
            curves[f'R{end}'].append(coding_rate(z))
            curves[f'R^c{end}'].append(compressed_rate(z, U))
        free = free - 0.5 * compressed_rate_gradient(free, U)
        held = held - 0.5 * compressed_rate_gradient(held, U)
        held = torch.nn.functional.normalize(held, dim=1)               # what a norm does after each step
    for name, values in curves.items():
        print(f'{name:14} {values[0]:6.2f} nats, after {steps - 1} steps {values[-1]:6.2f}')
    lab.draw('lesson1.png', 'step', 'nats for each token', curves)


if __name__ == '__main__':
    main()
