"""What the features of a frozen network tell about classes: linear probe, nearest neighbours.

The linear probe follows CRATE-MAE, appendix B.1: full-batch multinomial logistic regression on the
features that the network's own classifier sees, for C = 1, 10, .. 1e5 in scikit-learn's convention.
The paper chooses the C with the best test accuracy. Here C is chosen on a held-out fifth of the
training set, and the test set is used once."""
import torch
import torch.nn.functional as F

from scoring.splits import outputs

PROBE_C = tuple(10.0 ** k for k in range(6))


def features(model, images, autocast, batch_size, eval_crop):
    """(features (N, d), labels (N,)) of an ImageSplit. Raises ValueError without model.features."""
    if not hasattr(model, 'features'):
        raise ValueError(f'--probe and --knn need {type(model).__name__}.features(x), pictures to (B, d); see '
                         'docs/extend.md')
    return outputs(model, images, model.features, autocast, batch_size, eval_crop)


def fit_logistic(x, y, classes, C, start=None):
    """Multinomial logistic regression, full batch: weights and bias, one matrix (classes, d + 1),
    that minimize

        sum_i cross_entropy(W x_i + b, y_i) + |W|^2 / (2 C)

    as scikit-learn does; the bias is not penalized. By L-BFGS, from `start` or zero, in the
    precision and on the device of x."""
    W = torch.zeros(classes, x.size(1) + 1, dtype=x.dtype, device=x.device) if start is None else start.clone()
    W.requires_grad_()
    optimizer = torch.optim.LBFGS([W], max_iter=1000, max_eval=2000, tolerance_grad=1e-6, tolerance_change=1e-10,
                                  history_size=20, line_search_fn='strong_wolfe')

    def objective():
        optimizer.zero_grad()
        loss = F.cross_entropy(scores(W, x), y) + W[:, :-1].square().sum() / (2 * C * len(x))
        loss.backward()
        return loss
    optimizer.step(objective)
    return W.detach()


def scores(W, x):
    return F.linear(x, W[:, :-1], W[:, -1])


def linear_probe(train, test, classes, say=print):
    """(accuracy on the test set of a linear classifier of frozen features, the C that was chosen).

    train, test: (features (N, d), labels (N,)). C is the best of PROBE_C on a held-out random fifth
    of the training set; the classifier is then fitted to the whole training set. say: called with a
    line for each C."""
    x, y = train
    x = x.double() if x.device.type == 'cpu' else x.float()
    held_out = torch.zeros(len(y), dtype=torch.bool, device=y.device)
    shuffled = torch.randperm(len(y), generator=torch.Generator().manual_seed(0)).to(y.device)
    held_out[shuffled[:max(1, len(y) // 5)]] = True
    accuracy, W = {}, None
    for C in PROBE_C:
        W = fit_logistic(x[~held_out], y[~held_out], classes, C, W)
        accuracy[C] = share_right(scores(W, x[held_out]), y[held_out])
        say(f'  C = {C:<8g} held-out top-1 {accuracy[C]:.2%}')
    C = max(PROBE_C, key=accuracy.get)  # of equals the smallest
    W = fit_logistic(x, y, classes, C)
    return share_right(scores(W, test[0].to(x.dtype)), test[1]), C


def nearest_neighbours(train, test, classes, k, temperature=0.07):
    """Accuracy on the test set of a vote of the k nearest training pictures, by cosine similarity s
    of features. Each votes for its class with weight exp(s / temperature), as is usual since Wu et
    al. 2018."""
    x, y = F.normalize(train[0].float(), dim=1), train[1]
    votes = []
    for part in test[0].split(256):
        s, i = (F.normalize(part.float(), dim=1) @ x.T).topk(min(k, len(y)))
        votes.append(torch.zeros(len(part), classes, device=s.device).scatter_add_(1, y[i], (s / temperature).exp()))
    return share_right(torch.cat(votes), test[1])


def share_right(scores, y):
    return (scores.argmax(1) == y).sum().item() / len(y)
