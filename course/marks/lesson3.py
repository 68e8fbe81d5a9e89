"""The inputs for lesson 3, ISTA."""
import torch
from analysis.measures import gaussian
from grade import Exercise, normal, of_size, seeded

# N, d, eta, lam, steps for each seed
SIZES = (
    (5, 4, 0.1, 2.0, 3),
    (3, 6, 0.3, 0.7, 5),
    (7, 3, 0.2, 1.5, 200),
)


def step_inputs(seed):
    """(Z (N, d), D (d, d), eta, lam). D has columns of about unit length, and eta lam cuts a half
    of the numbers off."""
    N, d, eta, lam, steps = of_size(SIZES, seed)
    generator = seeded(seed)
    Z = gaussian(generator, N, d)
    D = gaussian(generator, d, d)
    lengths = 1 + 0.2 * torch.rand(d, generator=generator, dtype=torch.float64)
    return Z, D / D.norm(dim=0) * lengths, eta, lam


def objective_inputs(seed):
    """(Z (N, d) >= 0, Y (N, d), D (d, d), lam)"""
    Y, D, eta, lam = step_inputs(seed)
    return normal(seed + 50)(*Y.shape).relu(), Y, D, lam


def prox_inputs(seed):
    """(Z (N, d), the threshold)"""
    Z, D, eta, lam = step_inputs(seed)
    return Z, eta * lam


def solve_inputs(seed):
    """(Y (N, d), D (d, d), lam, steps)"""
    Y, D, eta, lam = step_inputs(seed)
    return Y, D, 0.2 * lam, of_size(SIZES, seed)[-1]


EXERCISES = [
    Exercise('lasso_objective', objective_inputs),
    Exercise('prox', prox_inputs, gradient=(0,)),
    Exercise('ista', step_inputs, gradient=(0, 1), products_count=True),
    Exercise('solve', solve_inputs),
]
