"""What the features of a frozen network tell about classes: linear probe, nearest neighbours.

The linear probe follows CRATE-MAE, appendix B.1: full-batch multinomial logistic regression on the
features that the network's own classifier sees, for C = 1, 10, .. 1e5 in scikit-learn's convention.
The paper takes the best C and does not say on which split. Here C is chosen on a held-out fifth of
the training set, and the test set is used once."""
import torch
import torch.nn.functional as F

from engine.settings import Mistake
from scoring.splits import batches

PROBE_C = 1.0, 10.0, 100.0, 1e3, 1e4, 1e5
AT_ONCE = 2 ** 24  # at most so many scores are computed at once


@torch.no_grad()
def features(model, images, autocast, batch_size, view):
    """(features, float32 (N, d), labels (N,)) of an ImageSplit. Raises Mistake without model.features."""
    if not hasattr(model, 'features'):
        raise Mistake(f'--probe and --knn need {type(model).__name__}.features(x); see docs/extend.md')
    found, labels = [], []
    for x, y, _ in batches(model, images, batch_size, view):
        with autocast:
            found.append(model.features(x).float())
        labels.append(y)
    return torch.cat(found), torch.cat(labels)


def parts(W, x, y):
    """Parts of the features x (N, d): (features (n, d), labels (n,), scores (n, classes)). In float64 on the CPU, in
    float32 on an accelerator, which is slow in float64."""
    dtype = torch.float64 if x.device.type == 'cpu' else torch.float32
    W, n = W.to(dtype), max(1, AT_ONCE // max(len(W), x.size(1)))
    for part, labels in zip(x.split(n), y.split(n)):
        part = part.to(dtype)
        yield part, labels, F.linear(part, W[:, :-1], W[:, -1])


def fit_logistic(x, y, classes, C, start=None):
    """Multinomial logistic regression, full batch: weights and bias, one matrix (classes, d + 1),
    that minimize

        sum_i cross_entropy(W x_i + b, y_i) + |W|^2 / (2 C)

    as scikit-learn does; the bias is not penalized. By L-BFGS, from `start` or zero, on the device
    of the features x (N, d). Nothing of the size (N, classes) is ever in memory. With a large C it may end before it
    has converged."""
    wide = torch.float32 if x.device.type == 'mps' else torch.float64  # of sums; MPS has no float64
    W = torch.zeros(classes, x.size(1) + 1, dtype=wide, device=x.device) if start is None else start.clone()
    optimizer = torch.optim.LBFGS([W.requires_grad_()], max_iter=1000, max_eval=2000, tolerance_grad=1e-6,
                                  tolerance_change=1e-10, history_size=20, line_search_fn='strong_wolfe')

    def objective():
        optimizer.zero_grad()
        total = W[:, :-1].square().sum() / (2 * C * len(x))
        total.backward()
        for _, labels, s in parts(W, x, y):
            loss = F.cross_entropy(s, labels, reduction='none').sum(dtype=wide) / len(x)
            loss.backward()  # of each part by itself, so that no other is in memory
            total = total.detach() + loss.detach()
        return total
    optimizer.step(objective)
    return W.detach()


def accuracy_of(W, x, y):
    """The share of the features x (N, d) whose highest score is that of their label."""
    return sum((s.argmax(1) == labels).sum().item() for _, labels, s in parts(W, x, y)) / len(x)


def linear_probe(train, test, classes):
    """(accuracy on the test set of a linear classifier of frozen features, the C that was chosen).

    train, test: (features (N, d), labels (N,)). C is the best of PROBE_C on a held-out random fifth
    of the training set; the classifier is then fitted to the whole training set."""
    x, y = train
    # those that come first in a random order
    held_out = torch.randperm(len(y), generator=torch.Generator().manual_seed(0)).argsort() < max(1, len(y) // 5)
    accuracy, W = {}, None
    for C in PROBE_C:
        W = fit_logistic(x[~held_out], y[~held_out], classes, C, W)
        accuracy[C] = accuracy_of(W, x[held_out], y[held_out])
        print(f'  C = {C:<8g} held-out top-1 {accuracy[C]:.2%}')
    C = max(PROBE_C, key=accuracy.get)  # of equals the smallest
    return accuracy_of(fit_logistic(x, y, classes, C), *test), C


def nearest_neighbours(train, test, classes, k, temperature=0.07):
    """Accuracy on the test set of a vote of the k nearest training pictures, by cosine similarity s
    of features. Each votes for its class with weight exp(s / temperature), as is usual since Wu et
    al. 2018. Memory: beside the features, the similarities of 256 pictures."""
    x, y = train
    lengths, right = torch.linalg.vector_norm(x, dim=1).clamp_min(1e-12), 0
    for part, labels in zip(test[0].split(256), test[1].split(256)):
        s = F.normalize(part) @ x.mT / lengths
        s, i = s.topk(min(k, len(x)))
        votes = torch.zeros(len(part), classes, device=s.device).scatter_add_(1, y[i], (s / temperature).exp())
        right += (votes.argmax(1) == labels).sum().item()
    return right / len(test[1])


def probe(model, task):
    """What the features of a network tell about classes while it trains: `knn`, the accuracy of 20
    nearest neighbours, and `probe`, that of a linear probe with C = 1, of the training split on the
    validation split. Of several processes each computes all of it."""
    was_training = model.training
    model.eval()
    sets = []
    with task.device.uncompiled():  # batches have other sizes than in training
        for split in (task.train, task.valid):
            sets.append(features(model, split, task.device.autocast, task.c.batch_size,
                                 task.augment.view))
    model.train(was_training)

    train, test = sets
    classes = len(task.train.classes)
    W = fit_logistic(*train, classes, 1.0)
    return {'knn': nearest_neighbours(train, test, classes, 20), 'probe': accuracy_of(W, *test)}
