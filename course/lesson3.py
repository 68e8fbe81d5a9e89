"""Lesson 3: ISTA. Fill in the gaps; lesson3.md says what they are about.

    python course/check.py 3
    python course/lesson3.py        # your ISTA looks for a sparse code
"""
import torch


def lasso_objective(Z: torch.Tensor, Y: torch.Tensor, D: torch.Tensor, lam: float) -> torch.Tensor:
    """lambda |z|_1 + 1/2 |y - D z|^2 of each token, eq. (16) with a half. Z (N, d): codes, not
    negative; Y (N, d): what they stand for; D (d, d). A token is a row of Z, and a column in the
    formula. Returns (N,)."""
    raise NotImplementedError


def prox(Z: torch.Tensor, t: float) -> torch.Tensor:
    """The v >= 0 that makes t v + 1/2 (v - z)^2 smallest, for each number z of Z (N, d): (N, d)."""
    raise NotImplementedError


def ista(Z: torch.Tensor, D: torch.Tensor, eta: float, lam: float) -> torch.Tensor:
    """The step of a layer, eq. (17): from Z (N, d) towards a sparse code of Z. D (d, d) -> (N, d).
    With at most two products of matrices."""
    raise NotImplementedError


def solve(Y: torch.Tensor, D: torch.Tensor, lam: float, steps: int) -> torch.Tensor:
    """So many steps from zero towards the minimum of lasso_objective for Y (N, d), each of the size
    eta = 1 / |D|^2, where |D| is the largest singular value: (N, d)."""
    raise NotImplementedError


# ---- the experiment: your ISTA looks for a sparse code ------------------------------------------

def main(steps=64, lam=0.1):
    import lab
    N, d = 64, 128
    D = torch.nn.functional.normalize(torch.randn(d, d, dtype=torch.float64), dim=0)
    codes = torch.rand(N, d, dtype=torch.float64) * (torch.rand(N, d) < 0.1)
    Y = codes @ D.T

    def share_not_zero(name, Z):
        """Print what codes Z are worth, and return the share of their numbers that are not zero."""
        share = (Z != 0).double().mean()
        objective = lasso_objective(Z, Y, D, lam).mean()
        print(f'{name:28} {share:6.1%} not zero, objective {objective:.3f}')
        return share

    share_not_zero('relu(y)', Y.relu())
    for eta in (0.1, 0.5, 2.0):
        share_not_zero(f'your layer, eta = {eta}', ista(Y, D, eta, lam))

    step_counts = [1, 2, 4, 8, 16, 32, steps, 16 * steps]
    shares = []
    for count in step_counts:
        shares.append(share_not_zero(f'your solve, {count} steps', solve(Y, D, lam, count)))
    share_of_codes = share_not_zero('the codes that made y', codes)

    curves = {'your solve': (step_counts, shares),
              'the codes that made y': (step_counts, [share_of_codes] * len(step_counts))}
    lab.draw('lesson3.png', 'steps', 'share of numbers that are not zero', curves,
             xscale='log', ylim=(0, 1))


if __name__ == '__main__':
    import lab
    lab.run(main, __doc__)
