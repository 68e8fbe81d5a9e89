"""In-context regression beside simple estimators, as in AoT's Figure 6.

The error is normalized: (prediction - g(x))^2 / d, for sparse functions / 3, so that predicting
zero has error 1 on average."""
import numpy as np
import torch
from tqdm import tqdm

from engine import plots
from engine.settings import Mistake
from tasks.regression import Prompts

# ---- estimators: x (B, n, d), y (B, n) -> predictions (B, n), each from the examples before it -----------------------


def from_examples(estimate):
    """An estimator of all y, made from one that predicts y of x (B, d) from the examples before it,
    X (B, i, d) and Y (B, i)."""
    def predict(x, y):
        lengths = tqdm(range(1, x.size(1)), estimate.__name__, disable=None)
        first = torch.zeros(len(x), dtype=x.dtype)
        return torch.stack([first, *(estimate(x[:, :i], y[:, :i], x[:, i]) for i in lengths)], 1)
    return predict


@from_examples
def least_squares(X, Y, x):
    """With fewer examples than dimensions, the fit with the smallest norm."""
    w = torch.linalg.lstsq(X.double(), Y.double()[..., None], driver='gelsd').solution
    return (x[:, None] @ w.to(x.dtype)).flatten()


@from_examples
def nearest(X, Y, x, k=3):
    """The mean of the k nearest examples."""
    near = (X - x[:, None]).square().sum(2).topk(min(k, X.size(1)), largest=False).indices
    return Y.gather(1, near).mean(1)


@from_examples
def lasso(X, Y, x):
    return (x * lasso_weights(X, Y)).sum(1)


def lasso_weights(X, Y, alpha=0.01, steps=2000):
    """w (B, d) that minimizes |Y - X w|^2 / 2i + alpha |w|_1.

    By ISTA, the step of a CRATE layer, with the momentum that makes it FISTA (Beck and Teboulle
    2009), restarted whenever the momentum points uphill, until w no longer changes. (With fewer
    examples than dimensions, coordinate descent is much less accurate after the same time.) """
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


def estimators(sparse):
    """{name: estimator} of Figure 6; the Lasso only for sparse functions."""
    found = {'least squares': least_squares, 'Lasso': lasso, '3 nearest neighbours': nearest,
             'zero': lambda x, y: torch.zeros_like(y)}
    if not sparse:
        del found['Lasso']
    return found


# ---- Figure 6 -------------------------------------------------------------------------------------------------------

def prompts_for(models, function, sparsity):
    """The Prompts that all these networks {name: model} read. Raises Mistake if they differ."""
    first = next(iter(models.values())).config
    for name, model in models.items():
        c = model.config
        if c.task != 'icl' or (c.n_dims, c.block_size) != (first.n_dims, first.block_size):
            raise Mistake(f'--beside={name} does not read prompts with n_dims={first.n_dims} and '
                          f'block_size={first.block_size}; leave it out')
    return Prompts(function, first.n_dims, first.block_size // 2, min(sparsity, first.n_dims))


@torch.no_grad()
def curves(models, prompts, autocast, count=1280, batch_size=64):
    """{name: (mean, standard error)} of the error after 0 .. n - 1 examples, two lists of n
    numbers, for the networks {name: model} and the estimators, over `count` prompts that are in
    neither training nor validation."""
    x, y = next(prompts.fixed(count, 1, stream=9))
    guesses, found = {}, {}
    for name, model in models.items():
        device = next(model.parameters()).device
        with autocast:
            parts = [model(a.to(device), b.to(device))[0] for a, b in zip(x.split(batch_size), y.split(batch_size))]
        guesses[name] = torch.cat(parts).float().cpu()
    guesses |= {name: predict(x, y) for name, predict in estimators(prompts.sparsity).items()}
    for name, guess in guesses.items():
        error = (guess - y).square() / prompts.scale  # (count, n)
        found[name] = error.mean(0).tolist(), (error.std(0) / len(error) ** 0.5).tolist()
    return found


def draw(found, models, title, table):
    """Write curves to a table and as a picture next to it: networks as solid lines with a band of
    two standard errors, estimators dashed."""
    figure, axis = plots.pyplot().subplots(figsize=(6.4, 4), layout='constrained')
    called = plots.told_apart(models)
    for name, (mean, error) in found.items():
        solid = name in models
        line, = axis.plot(mean, label=called.get(name, name), linewidth=1.6 if solid else 1,
                          linestyle='-' if solid else '--')
        if solid:
            mean, band = np.array(mean), 2 * np.array(error)
            axis.fill_between(range(len(mean)), mean - band, mean + band, color=line.get_color(), alpha=0.2,
                              linewidth=0)
    axis.set(xlabel='examples in the prompt', ylabel='squared error, normalized', title=title, ylim=(-0.03, 1.3))
    axis.legend(fontsize='small')
    rows = [(name, i, *both) for name, pair in found.items() for i, both in enumerate(zip(*pair))]
    columns = 'estimator', 'examples', 'error', 'standard_error'
    plots.save(table.with_suffix('.png'), figure, columns, rows, '--results')
