"""In-context regression beside simple estimators: their errors by the number of examples, as in AoT's Figure 6.

Errors are normalized: (prediction - g(x))^2 / d, for sparse functions / 3, so that predicting zero has error 1 on average.
"""
import numpy as np
import torch
from tqdm import tqdm

from engine import plots


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
    figure, axis = plots.pyplot().subplots(figsize=(6.4, 4), layout='constrained')
    for name, (mean, spread) in found.items():
        full = name in models
        line, = axis.plot(mean, label=name, linewidth=1.6 if full else 1, linestyle='-' if full else '--')
        if full:
            mean, spread = np.array(mean), np.array(spread)
            axis.fill_between(range(n), mean - 2 * spread, mean + 2 * spread, color=line.get_color(), alpha=0.2, linewidth=0)
    axis.set(xlabel='examples in the prompt', ylabel='squared error, normalized', title=title, ylim=(-0.03, 1.3))
    axis.legend(fontsize='small')
    plots.save(table.with_suffix('.png'), figure, ('estimator', 'examples', 'error', 'standard_error'), rows, '--results')
