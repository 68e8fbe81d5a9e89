"""What the features of a frozen network tell about classes: linear probe, nearest neighbours.

The linear probe follows CRATE-MAE, appendix B.1: full-batch multinomial logistic regression on the
features that the network's own classifier sees, for C = 1, 10, .. 1e5 in scikit-learn's convention.
The paper takes the best C and does not say on which split. Here C is chosen on a held-out fifth of
the training set, and the test set is used once."""
import torch
import torch.nn.functional as F

from engine.settings import Mistake
from scoring.splits import batches

PROBE_C = tuple(10.0 ** k for k in range(6))
AT_ONCE = 2 ** 24  # at most so many scores, or numbers of the features, are computed with at once


@torch.no_grad()
def features(model, images, autocast, batch_size, view):
    """(features, float32 (N, d), labels (N,)) of an ImageSplit. Raises Mistake without model.features."""
    if not hasattr(model, 'features'):
        raise Mistake(f'--probe and --knn need {type(model).__name__}.features(x), pictures to (B, d); see '
                      'docs/extend.md')
    found, labels = [], []
    for x, y, _ in batches(model, images, batch_size, view):
        with autocast:
            found.append(model.features(x).float())
        labels.append(y)
    return torch.cat(found), torch.cat(labels)


def fit_logistic(x, y, classes, C, start=None, rows=None):
    """Multinomial logistic regression, full batch: weights and bias, one matrix (classes, d + 1),
    that minimize

        sum_i cross_entropy(W x_i + b, y_i) + |W|^2 / (2 C)

    as scikit-learn does; the bias is not penalized. By L-BFGS, from `start` or zero, over all rows
    of the features x (N, d), or over those with the indices `rows`, on the device of x.

    Memory: nothing of the size (N, classes) is ever there, and x is not copied. Beside it there are
    three matrices of AT_ONCE numbers, the scores of a part of the rows, and 45 of the size of W,
    which L-BFGS remembers."""
    wide = torch.float32 if x.device.type == 'mps' else torch.float64  # of sums; MPS has no float64
    W = torch.zeros(classes, x.size(1) + 1, dtype=wide, device=x.device) if start is None else start.clone()
    count = len(x) if rows is None else len(rows)
    optimizer = torch.optim.LBFGS([W], max_iter=1000, max_eval=2000, tolerance_grad=1e-6, tolerance_change=1e-10,
                                  history_size=20, line_search_fn='strong_wolfe')

    def objective():
        loss, W.grad = torch.zeros((), dtype=wide, device=x.device), torch.zeros_like(W)
        for part, labels, s in parts(W, x, y, rows):
            log_p = F.log_softmax(s, 1)                                                     # (n, classes)
            loss -= log_p.gather(1, labels[:, None]).sum(dtype=wide)
            g = log_p.exp_()  # soon the gradient of the summed loss by the scores                  # (n, classes)
            g.scatter_add_(1, labels[:, None], g.new_full((len(g), 1), -1.0))
            W.grad[:, :-1] += g.mT @ part
            W.grad[:, -1] += g.sum(0)
        W.grad /= count
        W.grad[:, :-1] += W[:, :-1] / (C * count)
        return loss / count + W[:, :-1].square().sum() / (2 * C * count)
    optimizer.step(objective)
    return W


def parts(W, x, y, rows=None):
    """Parts of some rows of the features x (N, d), all by default: (features (n, d), labels (n,),
    scores (n, classes)). In float64 on the CPU, in float32 on an accelerator, which is slow in
    float64."""
    dtype = torch.float64 if x.device.type == 'cpu' else torch.float32
    W = W.to(dtype)
    rows = torch.arange(len(x), device=x.device) if rows is None else rows
    for which in rows.split(max(1, AT_ONCE // max(len(W), x.size(1)))):
        part = x[which].to(dtype)
        yield part, y[which], F.linear(part, W[:, :-1], W[:, -1])


def accuracy_of(W, x, y, rows=None):
    """The share of some rows of the features x, all by default, whose highest score is that of
    their label."""
    right = sum((s.argmax(1) == labels).sum().item() for _, labels, s in parts(W, x, y, rows))
    return right / len(x if rows is None else rows)


def linear_probe(train, test, classes, say=print):
    """(accuracy on the test set of a linear classifier of frozen features, the C that was chosen).

    train, test: (features (N, d), labels (N,)). C is the best of PROBE_C on a held-out random fifth
    of the training set; the classifier is then fitted to the whole training set. say: called with a
    line for each C."""
    x, y = train
    order, fifth = torch.randperm(len(y), generator=torch.Generator().manual_seed(0)), max(1, len(y) // 5)
    held_out, kept = order[:fifth].sort().values.to(x.device), order[fifth:].sort().values.to(x.device)
    accuracy, W = {}, None
    for C in PROBE_C:
        W = fit_logistic(x, y, classes, C, W, kept)
        accuracy[C] = accuracy_of(W, x, y, held_out)
        say(f'  C = {C:<8g} held-out top-1 {accuracy[C]:.2%}')
    C = max(PROBE_C, key=accuracy.get)  # of equals the smallest
    W = fit_logistic(x, y, classes, C)
    return accuracy_of(W, *test), C


def nearest_neighbours(train, test, classes, k, temperature=0.07):
    """Accuracy on the test set of a vote of the k nearest training pictures, by cosine similarity s
    of features. Each votes for its class with weight exp(s / temperature), as is usual since Wu et
    al. 2018. Memory: beside the features, a matrix of at most 16 AT_ONCE similarities (1 GiB in
    float32), or one row of them."""
    x, y = train
    lengths = torch.linalg.vector_norm(x.float(), dim=1).clamp_min(1e-12)
    right = 0
    n = min(256, max(1, 16 * AT_ONCE // len(y)))
    for part, labels in zip(test[0].split(n), test[1].split(n)):
        s = F.normalize(part.float(), dim=1) @ x.float().mT
        s, i = s.div_(lengths).topk(min(k, len(y)))
        votes = torch.zeros(len(part), classes, device=s.device).scatter_add_(1, y[i], (s / temperature).exp())
        right += (votes.argmax(1) == labels).sum().item()
    return right / len(test[1])


class Probe:
    """What the features of a network tell about classes while it trains: `knn`, the accuracy of 20
    nearest neighbours, and `probe`, that of a linear probe with C = 1, of the training split on the
    validation split. Each process computes the features of its share of the pictures; the main one
    scores them."""

    NEIGHBOURS, C = 20, 1.0

    def __init__(self, task, here):
        self.task, self.here = task, here
        if min(len(task.train), len(task.valid)) < here.world:
            raise Mistake(f'--probe_interval needs at least {here.world} pictures in each split, one a process; '
                          'leave it out')

    def __call__(self, model):
        was_training, classes, here = model.training, len(self.task.train.classes), self.here
        how = here.autocast, self.task.c.batch_size, self.task.augmentation.view
        train, test = (here.joined(*features(model.eval(), split.part(here.rank, here.world), *how))
                       for split in (self.task.train, self.task.valid))
        model.train(was_training)
        if not here.main:
            return {}
        W = fit_logistic(*train, classes, self.C)
        return {'knn': nearest_neighbours(train, test, classes, self.NEIGHBOURS), 'probe': accuracy_of(W, *test)}
