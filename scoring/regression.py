"""In-context regression beside simple estimators, as in AoT's Figure 6.

The error is normalized: (prediction - g(x))^2 / d, for sparse functions / sparsity, so that
predicting zero has error 1 on average.
"""
import torch
from tqdm import tqdm

from tasks.streams import SCORED_PROMPTS

# ---- estimators: examples X (B, i, d), Y (B, i) -> predictions at x (B, d), shape (B,) ----------


def least_squares(X, Y, x):
    """With fewer examples than dimensions, the fit with the smallest norm."""
    w = torch.linalg.lstsq(X.double(), Y.double()[..., None], driver='gelsd').solution  # (B, d, 1)
    return (x[:, None] @ w.to(x.dtype)).flatten()


def lasso(X, Y, x):
    return (x * lasso_weights(X, Y)).sum(1)


def nearest(X, Y, x):
    """The mean of the three nearest examples."""
    distances = (X - x[:, None]).square().sum(2)            # squared: (B, i)
    k = min(3, X.size(1))
    neighbours = distances.topk(k, largest=False).indices   # (B, k)
    return Y.gather(1, neighbours).mean(1)


def lasso_weights(X, Y, alpha=0.01, steps=2000):
    """w (B, d) that minimizes |Y - X w|^2 / 2i + alpha |w|_1.

    By ISTA, the step of a CRATE layer, with the momentum that makes it FISTA (Beck and Teboulle
    2009). The momentum starts again whenever it points uphill. The loop ends when w no longer
    changes. (With fewer examples than dimensions, coordinate descent is much less accurate after
    the same time.)
    """
    n_examples = X.size(1)
    gram = X.mT @ X / n_examples                            # (B, d, d)
    xy = X.mT @ Y[..., None] / n_examples                   # (B, d, 1)
    eta = 1 / torch.linalg.matrix_norm(gram, 2, keepdim=True).clamp_min(1e-12)     # (B, 1, 1)
    w = torch.zeros_like(xy)
    ahead = torch.zeros_like(xy)                            # w, moved on by the momentum
    t = torch.ones_like(eta)                                # how strong the momentum is
    for step in range(steps):
        z = ahead + eta * (xy - gram @ ahead)               # a gradient step,
        w_new = z.sign() * (z.abs() - eta * alpha).relu()   # then the threshold
        change = w_new - w
        uphill = ((ahead - w_new) * change).sum(1, keepdim=True) > 0
        t = torch.where(uphill, 1.0, t)
        t_new = (1 + (1 + 4 * t ** 2).sqrt()) / 2
        ahead = w_new + (t - 1) / t_new * change
        w = w_new
        t = t_new
        if step % 50 == 0 and change.abs().max() < 1e-7:
            break
    return w.squeeze(2)


ESTIMATORS = {'least squares': least_squares, 'Lasso': lasso, '3 nearest neighbours': nearest}


def predictions(estimate, x, y):
    """Predictions of all y (B, n), each from the examples before it. The first one is 0."""
    guesses = torch.zeros_like(y)
    for i in tqdm(range(1, y.size(1)), estimate.__name__, disable=None):
        X = x[:, :i]                                        # (B, i, d)
        Y = y[:, :i]                                        # (B, i)
        guesses[:, i] = estimate(X, Y, x[:, i])
    return guesses


# ---- Figure 6 -----------------------------------------------------------------------------------

@torch.no_grad()
def curves(models, prompts, autocast, count):
    """{name: (mean, standard error)} of the error after 0 .. n - 1 examples, arrays of n numbers.

    The names are those of models, {name: network}, those of the estimators, and 'zero', which is
    the prediction zero. Means are over `count` prompts that are in neither training nor validation.
    """
    x, y = next(prompts.fixed(count, 1, stream=SCORED_PROMPTS))     # (count, n, d) and (count, n)
    guesses = {}
    for name, model in models.items():
        guesses[name] = network_predictions(model, x, y, autocast)
    for name, estimate in ESTIMATORS.items():
        if name == 'Lasso' and not prompts.sparsity:        # it is for sparse functions alone
            continue
        guesses[name] = predictions(estimate, x, y)
    guesses['zero'] = torch.zeros_like(y)

    errors = {}
    for name, guess in guesses.items():
        error = (guess - y).square() / prompts.scale        # (count, n)
        mean = error.mean(0)
        standard_error = error.std(0) / count ** 0.5
        errors[name] = torch.stack((mean, standard_error)).double().numpy()
    return errors


def network_predictions(model, x, y, autocast):
    """Predictions of all y (B, n) by a network, on the CPU. 64 prompts are in a forward pass."""
    device = next(model.parameters()).device
    guesses = []
    with autocast:
        for x_batch, y_batch in zip(x.split(64), y.split(64)):
            returned = model(x_batch.to(device), y_batch.to(device))
            guesses.append(returned[0])  # behind it: the loss, and perhaps numbers to log
    return torch.cat(guesses).float().cpu()
