"""Lesson 3, ISTA: inputs."""
import torch
from grade import Exercise
from torch.utils._python_dispatch import TorchDispatchMode

SIZES = ((5, 4, 0.1, 2.0, 3), (3, 6, 0.3, 0.7, 5), (7, 3, 0.2, 1.5, 200))    # N, d, eta, lam, steps


def step_inputs(seed):
    """(Z (N, d), D (d, d), eta, lam): D has columns of about unit length, eta lam cuts a half of the numbers off."""
    (N, d, eta, lam, _), g = SIZES[seed - 1], torch.Generator().manual_seed(seed)
    Z, D = (torch.randn(n, d, generator=g, dtype=torch.float64) for n in (N, d))
    return Z, D / D.norm(dim=0) * (1 + 0.2 * torch.rand(d, generator=g, dtype=torch.float64)), eta, lam


def objective_inputs(seed):
    """(Z (N, d) >= 0, Y (N, d), D (d, d), lam)"""
    (Y, D, _, lam), g = step_inputs(seed), torch.Generator().manual_seed(seed + 50)
    return torch.randn(Y.shape, generator=g, dtype=torch.float64).relu(), Y, D, lam


def prox_inputs(seed):
    Z, _, eta, lam = step_inputs(seed)
    return Z, eta * lam


def solve_inputs(seed):
    """(Y (N, d), D (d, d), lam, steps)"""
    Y, D, _, lam = step_inputs(seed)
    return Y, D, 0.2 * lam, SIZES[seed - 1][-1]


class Products(TorchDispatchMode):
    """Counts products of matrices."""
    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        self.count += name in ('mm', 'bmm', 'addmm', 'baddbmm', 'matmul', 'mv', 'addmv')
        return func(*args, **(kwargs or {}))


def few_products(function):
    with Products() as counted:
        function(*step_inputs(1))
    few = counted.count <= 2
    return '' if few else f'the numbers are right, with {counted.count} products of matrices; two are enough'


EXERCISES = [
    Exercise('lasso_objective', objective_inputs),
    Exercise('prox', prox_inputs),
    Exercise('ista', step_inputs, also=few_products),
    Exercise('solve', solve_inputs),
]
