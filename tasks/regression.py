"""In-context regression: prompts of random functions, what simple estimators make of them, and the curves of both.

A prompt is n examples (x_i, g(x_i)) of one random function g. A model predicts each g(x_i) from x_i and the examples before
it; so does an estimator that is fitted to these. AoT, section 4.2.2 and Figure 6, after Garg et al., "What Can Transformers
Learn In-Context?", NeurIPS 2022:

  linear          g(x) = w^T x, with x and w from N(0, I) in d = 20 dimensions
  sparse_linear   the same, but all of w is zero except 3 of its numbers, chosen at random

Errors are normalized: (prediction - g(x))^2 / d, of sparse functions / 3, so that predicting zero has error 1 on average.
"""
import numpy as np
import torch
from tqdm import tqdm

from engine import plots as figures
from tasks.files import steps

FUNCTIONS = 'linear', 'sparse_linear'
META = {'kind': 'functions', 'splits': {}}  # what meta.json would say, if there were a folder


class Prompts:
    """Random prompts: x float32 (B, n, d) and y = g(x) float32 (B, n). Nothing is stored: a batch is a function of
    (seed, step)."""

    def __init__(self, function, n_dims, n_points, sparsity=3, curriculum=0):
        """curriculum: steps from one stage of training to the next, 0 for none. The first stage has a quarter of the
        dimensions, the others being zero; each next one has a dimension more, and two examples more, up to n_dims and
        n_points (from 5 and 11 to 20 and 41, as Garg et al.)."""
        if function not in FUNCTIONS:
            raise ValueError(f"function '{function}' is unknown; choose {' or '.join(FUNCTIONS)}")
        if function == 'sparse_linear' and not 1 <= sparsity <= n_dims:
            raise ValueError(f'sparsity={sparsity} must lie between 1 and n_dims={n_dims}')
        if n_points < 2:
            raise ValueError(f'a prompt of {n_points} examples is too short; set --block_size=4 or more: an example is two')
        self.d, self.n, self.curriculum = n_dims, n_points, curriculum
        self.sparsity = sparsity if function == 'sparse_linear' else 0
        self.scale = self.sparsity or n_dims  # the mean of g(x)^2

    def __len__(self):
        raise ValueError('functions are drawn anew at every step, so there are no epochs; give --max_iters')

    def stage(self, step):
        """(dimensions, examples) of training at a step."""
        if not self.curriculum:
            return self.d, self.n
        first = max(1, self.d // 4)
        dims = min(self.d, first + step // self.curriculum)
        return dims, self.n if dims == self.d else max(2, self.n - 2 * (self.d - dims))

    def draw(self, rng, B, dims=None, n=None):
        """B prompts with the numbers of a NumPy generator."""
        x = rng.standard_normal((B, n or self.n, self.d), np.float32)
        w = rng.standard_normal((B, self.d, 1), np.float32)
        if self.sparsity:
            w *= rng.random((B, self.d)).argsort(1).argsort(1)[..., None] < self.sparsity  # random ranks: a random choice
        x[..., self.d if dims is None else dims:] = 0
        return torch.from_numpy(x), torch.from_numpy((x @ w)[..., 0])

    def batches(self, B, seed, share, first=0, last=None):
        """Training: for every step from `first` on, the parts `share` (slices) of its B prompts, one after the other."""
        for step in steps(first, last):
            x, y = self.draw(np.random.default_rng((seed, step, 7)), B, *self.stage(step))
            for part in share:
                yield x[part], y[part]

    def fixed(self, B, batches, rank=0, world=1, stream=8):
        """Validation: `batches` batches of B whole prompts, the same every time; every world-th from the rank-th on. Another
        stream has other prompts."""
        for i in range(rank, batches, world):
            yield self.draw(np.random.default_rng((i, stream)), B)


# ---- estimators: x (B, n, d), y (B, n) -> predictions (B, n), each from the examples before it ------------------------


def from_the_past(estimate):
    """An estimator of all examples, by one that predicts y of x (B, d) from examples before it: X (B, i, d), Y (B, i)."""
    def predict(x, y):
        lengths = tqdm(range(1, x.size(1)), estimate.__name__, disable=None, leave=False)
        return torch.stack([torch.zeros(len(x), dtype=x.dtype), *(estimate(x[:, :i], y[:, :i], x[:, i]) for i in lengths)], 1)
    return predict


@from_the_past
def least_squares(X, Y, x):
    """Of all weights that fit best the smallest."""
    w = torch.linalg.lstsq(X.double(), Y.double()[..., None], driver='gelsd').solution
    return (x[:, None] @ w.to(x.dtype)).flatten()


@from_the_past
def nearest(X, Y, x, k=3):
    """The mean of the k examples that are nearest."""
    near = (X - x[:, None]).square().sum(2).topk(min(k, X.size(1)), largest=False).indices
    return Y.gather(1, near).mean(1)


@from_the_past
def lasso(X, Y, x, **settings):
    return (x * lasso_weights(X, Y, **settings)).sum(1)


def lasso_weights(X, Y, alpha=0.01, steps=2000):
    """w (B, d) that minimizes |Y - X w|^2 / 2i + alpha |w|_1: by ISTA, the step that is a layer's in CRATE, here with the
    momentum that makes it FISTA (Beck and Teboulle 2009), restarted whenever that leads uphill, until w stands still. (Of
    fewer examples than dimensions coordinate descent is much further off after the same time.)"""
    gram, xy = X.mT @ X / X.size(1), (X.mT @ Y[..., None])[..., 0] / X.size(1)
    eta = 1 / torch.linalg.matrix_norm(gram, 2)[:, None].clamp_min(1e-12)          # (B, 1)
    w, ahead, t = torch.zeros_like(xy), torch.zeros_like(xy), torch.ones_like(eta)
    for step in range(steps):
        z = ahead + eta * (xy - (gram @ ahead[..., None])[..., 0])                 # a gradient step,
        new = z.sign() * (z.abs() - eta * alpha).relu()                            # then the threshold
        uphill = ((ahead - new) * (new - w)).sum(1, keepdim=True) > 0
        t = torch.where(uphill, 1.0, t)
        t_new = (1 + (1 + 4 * t ** 2).sqrt()) / 2
        moved, w, ahead, t = new - w, new, new + (t - 1) / t_new * (new - w), t_new
        if step % 50 == 0 and moved.abs().max() < 1e-7:
            break
    return w


def zero(x, y):
    return torch.zeros_like(y)


def estimators(sparse):
    """{name: estimator} that Figure 6 draws beside the models."""
    found = {'least squares': least_squares, 'Lasso': lasso, '3 nearest neighbours': nearest, 'zero': zero}
    return found if sparse else {k: v for k, v in found.items() if v is not lasso}


# ---- Figure 6 -----------------------------------------------------------------------------------------------------------


@torch.no_grad()
def curves(models, prompts, autocast, count=1280, B=64):
    """{name: (mean, standard error) of the error before each example, each (n,)}, of models {name: model} and of the
    estimators, over `count` prompts that neither training nor validation has."""
    def asked(model):
        device = next(model.parameters()).device

        def predict(x, y):
            with autocast:
                parts = [model(*(t.to(device) for t in part))[0].float().cpu() for part in zip(x.split(B), y.split(B))]
            return torch.cat(parts)
        return predict
    x, y = next(prompts.fixed(count, 1, stream=9))
    found = {}
    for name, predict in ({k: asked(m) for k, m in models.items()} | estimators(prompts.sparsity)).items():
        e = (predict(x, y) - y).square() / prompts.scale  # (count, n)
        found[name] = e.mean(0).tolist(), (e.std(0) / len(e) ** 0.5).tolist()
    return found


def report(found, models, title, table):
    """Print the errors, and write them to table, a row for every estimator and number of examples before the one that is
    predicted, and as a picture beside it: models in full lines, with a band of two standard errors, estimators dashed."""
    wide, n = max(map(len, found)), len(next(iter(found.values()))[0])
    shown = sorted({round(i * (n - 1) / 8) for i in range(9)})
    print(f'{title}: squared error, normalized, after so many examples')
    print(' ' * wide + ''.join(f'{i:7d}' for i in shown) + '   mean')
    for name, (mean, _) in found.items():
        print(f'{name:<{wide}}' + ''.join(f'{mean[i]:7.3f}' for i in shown) + f'{sum(mean) / n:7.3f}')
    rows = [(name, i, *both) for name, pair in found.items() for i, both in enumerate(zip(*pair))]
    figure, axis = figures.pyplot().subplots(figsize=(6.4, 4), layout='constrained')
    for name, (mean, spread) in found.items():
        full = name in models
        line, = axis.plot(mean, label=name, linewidth=1.6 if full else 1, linestyle='-' if full else '--')
        if full:
            mean, spread = np.array(mean), np.array(spread)
            axis.fill_between(range(n), mean - 2 * spread, mean + 2 * spread, color=line.get_color(), alpha=0.2, linewidth=0)
    axis.set(xlabel='examples in the prompt', ylabel='squared error, normalized', title=title, ylim=(-0.03, 1.3))
    axis.legend(fontsize='small')
    figures.save(table.with_suffix('.png'), figure, ('estimator', 'examples', 'error', 'standard_error'), rows, '--results')
