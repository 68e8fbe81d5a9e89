"""In-context regression beside simple estimators, as in AoT's Figure 6.

The error is normalized: (prediction - g(x))^2 / d, for sparse functions / 3, so that predicting
zero has error 1 on average."""
import torch
from tqdm import tqdm

from engine import figures, plots

# ---- estimators: examples X (B, i, d) and Y (B, i) -> predictions at x (B, d), of shape (B,) ------------------------


def least_squares(X, Y, x):
    """With fewer examples than dimensions, the fit with the smallest norm."""
    w = torch.linalg.lstsq(X.double(), Y.double()[..., None], driver='gelsd').solution
    return (x[:, None] @ w.to(x.dtype)).flatten()


def lasso(X, Y, x):
    return (x * lasso_weights(X, Y)).sum(1)


def nearest(X, Y, x, k=3):
    """The mean of the k nearest examples."""
    near = (X - x[:, None]).square().sum(2).topk(min(k, X.size(1)), largest=False).indices
    return Y.gather(1, near).mean(1)


def lasso_weights(X, Y, alpha=0.01, steps=2000):
    """w (B, d) that minimizes |Y - X w|^2 / 2i + alpha |w|_1.

    By ISTA, the step of a CRATE layer, with the momentum that makes it FISTA (Beck and Teboulle
    2009), restarted whenever the momentum points uphill, until w no longer changes. (With fewer
    examples than dimensions, coordinate descent is much less accurate after the same time.) """
    gram, xy = X.mT @ X / X.size(1), X.mT @ Y[..., None] / X.size(1)               # (B, d, d), (B, d, 1)
    eta = 1 / torch.linalg.matrix_norm(gram, 2, keepdim=True).clamp_min(1e-12)     # (B, 1, 1)
    w, ahead, t = torch.zeros_like(xy), torch.zeros_like(xy), torch.ones_like(eta)
    for step in range(steps):
        z = ahead + eta * (xy - gram @ ahead)                                      # a gradient step,
        new = z.sign() * (z.abs() - eta * alpha).relu()                            # then the threshold
        moved = new - w
        uphill = ((ahead - new) * moved).sum(1, keepdim=True) > 0
        t = torch.where(uphill, 1.0, t)
        t_new = (1 + (1 + 4 * t ** 2).sqrt()) / 2
        w, ahead, t = new, new + (t - 1) / t_new * moved, t_new
        if step % 50 == 0 and moved.abs().max() < 1e-7:
            break
    return w.squeeze(2)


ESTIMATORS = {'least squares': least_squares, 'Lasso': lasso, '3 nearest neighbours': nearest}


def predictions(estimate, x, y):
    """Of all y (B, n), each from the examples before it; 0 of the first."""
    found = torch.zeros_like(y)
    for i in tqdm(range(1, y.size(1)), estimate.__name__, disable=None):
        found[:, i] = estimate(x[:, :i], y[:, :i], x[:, i])
    return found


# ---- Figure 6 -------------------------------------------------------------------------------------------------------

@torch.no_grad()
def curves(models, prompts, autocast, count):
    """{name: (mean, standard error)} of the error after 0 .. n - 1 examples, two arrays of n
    numbers, for the networks {name: model} and the estimators, over `count` prompts that are in
    neither training nor validation."""
    x, y = next(prompts.fixed(count, 1, stream=9))
    guesses = {}
    for name, model in models.items():
        device = next(model.parameters()).device
        with autocast:
            parts = [model(a.to(device), b.to(device))[0] for a, b in zip(x.split(64), y.split(64))]
        guesses[name] = torch.cat(parts).float().cpu()
    for name, estimate in ESTIMATORS.items():
        if name != 'Lasso' or prompts.sparsity:
            guesses[name] = predictions(estimate, x, y)
    guesses['zero'] = torch.zeros_like(y)
    found = {}
    for name, guess in guesses.items():
        error = (guess - y).square() / prompts.scale                                # (count, n)
        found[name] = torch.stack((error.mean(0), error.std(0) / count ** 0.5)).double().numpy()
    return found


def draw(found, models, title, table):
    """Write curves to a table and as a picture next to it, with bands of two standard errors: networks
    as solid lines, estimators dashed."""
    figure, axis = plots.pyplot().subplots(figsize=(6.4, 4), layout='constrained')
    called, rows = figures.told_apart(models), []
    for name, (mean, error) in found.items():
        line, = axis.plot(mean, '-' if name in models else '--', label=called.get(name, name))
        axis.fill_between(range(len(mean)), mean - 2 * error, mean + 2 * error, color=line.get_color(), alpha=0.2)
        rows += [(name, i, *both) for i, both in enumerate(zip(mean, error))]
    axis.set(xlabel='examples in the prompt', ylabel='squared error, normalized', title=title, ylim=(-0.03, 1.3))
    axis.legend(fontsize='small')
    figures.save(table.with_suffix('.png'), figure, ['estimator', 'examples', 'error', 'standard_error'], rows)
