"""Lesson 3, ISTA: oracles, mistakes and hints."""
import torch
from common import times, with_weights
from grade import Exercise
from torch.utils._python_dispatch import TorchDispatchMode

SIZES = ((5, 4), (3, 6), (7, 3))  # N, d


def dictionary(d, g):
    """Columns of about unit length, not orthogonal."""
    D = torch.randn(d, d, generator=g, dtype=torch.float64)
    return D / D.norm(dim=0) * (1 + 0.2 * torch.rand(d, generator=g, dtype=torch.float64))


def step_inputs(seed):
    """(Z (N, d), D (d, d), eta, lam): the threshold eta lam cuts about a half of the numbers off."""
    g = torch.Generator().manual_seed(seed)
    N, d = SIZES[seed - 1]
    return torch.randn(N, d, generator=g, dtype=torch.float64), dictionary(d, g), (0.1, 0.3, 0.2)[seed - 1], \
        (2.0, 0.7, 1.5)[seed - 1]


def objective_inputs(seed):
    """(Z (N, d) >= 0, Y (N, d), D (d, d), lam)"""
    Y, D, _, lam = step_inputs(seed)
    g = torch.Generator().manual_seed(seed + 50)
    return torch.randn(Y.shape, generator=g, dtype=torch.float64).relu(), Y, D, lam


def prox_inputs(seed):
    Z, _, eta, lam = step_inputs(seed)
    return Z, eta * lam


def solve_inputs(seed):
    """(Y (N, d), D (d, d), lam, steps)"""
    Y, D, _, _ = step_inputs(seed)
    return Y, D, (0.4, 0.1, 0.25)[seed - 1], (1, 7, 40)[seed - 1]


# ---- oracles: loops over numbers ------------------------------------------------------------------------------------

def back(D, r):
    """D^* r."""
    return [sum(D[i][j] * r[i] for i in range(len(r))) for j in range(len(D[0]))]


def objective(Z, Y, D, lam):
    """lam |z|_1 + 1/2 |y - D z|^2 of each token: eq. (16), with the half of docs/papers.md."""
    return [lam * sum(abs(v) for v in z) + 0.5 * sum((a - b) ** 2 for a, b in zip(y, times(D, z)))
            for z, y in zip(Z, Y)]


def prox(Z, t):
    """The minimum of t v + 1/2 (v - z)^2 over v >= 0, searched: the slope t + v - z changes its sign."""
    out = []
    for row in Z:
        out.append([])
        for z in row:
            low, high = 0.0, abs(z) + t + 1
            for _ in range(80):
                v = (low + high) / 2
                low, high = (v, high) if t + v - z < 0 else (low, v)
            out[-1].append(low if low > 1e-15 else 0.0)
    return out


def step(Z, Y, D, eta, lam):
    out = []
    for z, y in zip(Z, Y):
        r = [a - b for a, b in zip(y, times(D, z))]
        out.append([max(0.0, v + eta * s - eta * lam) for v, s in zip(z, back(D, r))])
    return out


def ista(Z, D, eta, lam):
    """Eq. (17): a step from Z, towards a code of Z."""
    return step(Z, Z, D, eta, lam)


def many(Y, D, lam, steps):
    """So many steps from zero, of size 1 / L, L the largest eigenvalue of D^* D by power iteration."""
    v = [1.0 + 0.1 * i for i in range(len(D))]
    for _ in range(400):
        w = back(D, times(D, v))
        L = sum(a * a for a in w) ** 0.5
        v = [a / L for a in w]
    Z = [[0.0] * len(D[0]) for _ in Y]
    for _ in range(steps):
        Z = step(Z, Y, D, 1 / L, lam)
    return Z


# ---- right ways and mistakes ----------------------------------------------------------------------------------------

def I(Z, D, eta, lam, threshold=None, skip=True, T=False, other=None):
    A = D.T if T else D
    t = eta * lam if threshold is None else threshold(eta, lam)
    moved = (Z if skip else 0) + eta * (Z - Z @ A.T) @ (A if other is None else other)
    return (moved - t).relu()


def two(Z, D, eta, lam):
    """With the two products of model_crate.py."""
    residual = Z - torch.nn.functional.linear(Z, D)
    return (torch.nn.functional.linear(residual, eta * D.T) + Z - eta * lam).relu()


def gram(Z, D, eta, lam):
    """With one product, by a matrix made of D once."""
    eye = torch.eye(len(D), dtype=D.dtype)
    return (Z @ (eye + eta * (eye - D.T) @ D) - eta * lam).relu()


def of_ours(Z, D, eta, lam):
    """The operator of model_crate.py."""
    from model_crate import ISTA, CRATEConfig
    return with_weights(ISTA(CRATEConfig(n_embd=len(D), n_head=1, eta=eta, lam=lam)), {'D': D})(Z)


def O(Z, Y, D, lam, half=0.5, square=True, T=False):
    r = Y - Z @ (D if T else D.T)
    return lam * Z.abs().sum(-1) + half * (r.square().sum(-1) if square else r.norm(dim=-1))


def S(Y, D, lam, steps, eta=None, start=None, threshold=None):
    eta = 1 / torch.linalg.matrix_norm(D, 2) ** 2 if eta is None else eta(D)
    Z = torch.zeros_like(Y) if start is None else start(Y)
    for _ in range(steps):
        Z = (Z + eta * (Y - Z @ D.T) @ D - (eta * lam if threshold is None else threshold)).relu()
    return Z


class Products(TorchDispatchMode):
    """Counts products of matrices."""
    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        self.count += name in ('mm', 'bmm', 'addmm', 'baddbmm', 'matmul', 'mv', 'addmv')
        return func(*args, **(kwargs or {}))


def few_products(function):
    given = step_inputs(1)
    with Products() as counted:
        function(*given)
    few = counted.count <= 2
    return '' if few else f'the numbers are right, with {counted.count} products of matrices; two are enough'


def finds_the_minimum(function):
    """At the minimum of the LASSO the slope is 0 where z > 0, and not negative where z = 0."""
    for seed in (1, 2, 3):
        Y, D, lam, _ = solve_inputs(seed)
        Z = function(Y, D, lam, 1_000)
        slope = lam - (Y - Z @ D.T) @ D
        wrong = torch.where(Z > 0, slope.abs(), (-slope).clamp_min(0)).max().item()
        if not wrong < 1e-6:
            return f'seed {seed}: after 1,000 steps it is not at the minimum; the slope there is {wrong:.2g}'
    return ''


EXERCISES = [
    Exercise(
        'lasso_objective', objective_inputs, objective,
        {'the objective without the half of eq. (16); the step of eq. (17) is that of the objective with it':
            lambda Z, Y, D, lam: O(Z, Y, D, lam, half=1.0),
         'the residual with D^T in place of D': lambda Z, Y, D, lam: O(Z, Y, D, lam, T=True),
         'the length of the residual, not its square': lambda Z, Y, D, lam: O(Z, Y, D, lam, square=False),
         'the residual alone, without lambda |z|_1': lambda Z, Y, D, lam: O(Z, Y, D, 0.0),
         'the mean of |z|, not the sum': lambda Z, Y, D, lam: O(Z, Y, D, lam / Z.shape[-1]),
         'the number of non-zeros in place of the sum of |z|': lambda Z, Y, D, lam: O(
             Z, Y, D, 0.0) + lam * (Z != 0).sum(-1),
         'one number for all tokens together': lambda Z, Y, D, lam: O(Z, Y, D, lam).sum()},
        [O, lambda Z, Y, D, lam: lam * Z.sum(-1) + 0.5 * ((D @ Z.T).T - Y).pow(2).sum(1)],
        ('Tokens are rows. If z is a column, D z is a column. What is the row for it?',
         'lambda |z|_1 + 1/2 |y - D z|^2 for each token, eq. (16) with the half that makes eq. (17) its step.',
         'residual = Y - ...                        # (N, d)\nreturn lam * ... + 0.5 * residual.square().sum(...)')),
    Exercise(
        'prox', prox_inputs, prox,
        {'a two-sided threshold: without the condition z >= 0 that would be right':
            lambda Z, t: torch.nn.functional.softshrink(Z, t),
         'a threshold that keeps the numbers above it as they are': lambda Z, t: torch.where(Z > t, Z, 0),
         'ReLU without the threshold': lambda Z, t: Z.relu(),
         'the threshold without ReLU': lambda Z, t: Z - t,
         'the threshold added, not taken away': lambda Z, t: (Z + t).relu(),
         'the threshold taken away after ReLU': lambda Z, t: Z.relu() - t,
         'a two-sided threshold that keeps the numbers outside of it as they are':
             lambda Z, t: torch.nn.functional.hardshrink(Z, t),
         'the absolute value of z - t': lambda Z, t: (Z - t).abs()},
        [lambda Z, t: (Z - t).relu(), lambda Z, t: (Z - t).clamp_min(0), lambda Z, t: torch.maximum(Z - t, Z * 0)],
        ('Where is the slope of t v + 1/2 (v - z)^2 zero? And if that place is below zero?',
         'The minimum over v >= 0 of t v + 1/2 (v - z)^2 is relu(z - t).', 'return (Z - ...).relu()')),
    Exercise(
        'ista', step_inputs, ista,
        {'the step with D^T in place of D': lambda Z, D, eta, lam: I(Z, D, eta, lam, T=True),
         'the threshold lambda, not eta lambda': lambda Z, D, eta, lam: I(Z, D, eta, lam, threshold=lambda e, l: l),
         'the threshold eta, not eta lambda': lambda Z, D, eta, lam: I(Z, D, eta, lam, threshold=lambda e, l: e),
         'no threshold': lambda Z, D, eta, lam: I(Z, D, eta, lam, threshold=lambda e, l: 0.0),
         'a two-sided threshold': lambda Z, D, eta, lam: torch.nn.functional.softshrink(
             Z + eta * (Z - Z @ D.T) @ D, eta * lam),
         'a missing skip: the step starts at Z, not at zero': lambda Z, D, eta, lam: I(Z, D, eta, lam, skip=False),
         'a step with D where D^* belongs': lambda Z, D, eta, lam: I(Z, D, eta, lam, other=D.T),
         'a step in the other direction': lambda Z, D, eta, lam: (Z - eta * (Z - Z @ D.T) @ D - eta * lam).relu(),
         'a step of size 1': lambda Z, D, eta, lam: (Z + (Z - Z @ D.T) @ D - eta * lam).relu()},
        [I, two, gram, of_ours],
        ('The step is from Z towards a code of Z itself. What is the residual, and what brings it back into the space '
         'of codes?',
         'relu(z + eta D^* (z - D z) - eta lambda), eq. (17). As rows: D z is Z @ D.T, and D^* r is R @ D.',
         'residual = Z - ...                        # Z - D Z, one product\nreturn (Z + eta * ... - eta * lam).relu()'),
        also=few_products),
    Exercise(
        'solve', solve_inputs, many,
        {'steps that start at Y, not at zero': lambda Y, D, lam, n: S(Y, D, lam, n, start=lambda Y: Y),
         'one step too many': lambda Y, D, lam, n: S(Y, D, lam, n + 1),
         'one step too few': lambda Y, D, lam, n: S(Y, D, lam, n - 1),
         'steps of the size 1 / |D|, not 1 / |D|^2': lambda Y, D, lam, n: S(
             Y, D, lam, n, eta=lambda D: 1 / torch.linalg.matrix_norm(D, 2)),
         'steps of the size 1 / |D|_F^2, by the Frobenius norm': lambda Y, D, lam, n: S(
             Y, D, lam, n, eta=lambda D: 1 / D.square().sum()),
         'the threshold lambda, not eta lambda': lambda Y, D, lam, n: S(Y, D, lam, n, threshold=lam),
         'steps without a threshold': lambda Y, D, lam, n: S(Y, D, 0.0, n),
         'steps of eq. (17) again and again, each of which has a new target': lambda Y, D, lam, n: again(Y, D, lam, n)},
        [S, lambda Y, D, lam, n: S(Y, D, lam, n, eta=lambda D: 1 / torch.linalg.eigvalsh(D.T @ D)[-1])],
        ('A layer takes one step. What stays the same in every step when you take many, and what changes?',
         'Z <- relu(Z + eta D^* (Y - D Z) - eta lambda), from Z = 0, with eta = 1 / |D|^2, D\'s largest singular value '
         'squared.',
         'eta = 1 / torch.linalg.matrix_norm(D, 2) ** 2\nZ = torch.zeros_like(Y)\nfor _ in range(steps):\n    Z = ...\n'
         'return Z'),
        also=finds_the_minimum),
]


def again(Y, D, lam, n):
    eta, Z = 1 / torch.linalg.matrix_norm(D, 2) ** 2, Y
    for _ in range(n):
        Z = I(Z, D, eta, lam)
    return Z
