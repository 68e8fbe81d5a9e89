"""What the features of a frozen network tell about classes: linear probe, nearest neighbours.

The linear probe follows CRATE-MAE, appendix B.1: full-batch multinomial logistic regression on the
features that the network's own classifier sees, for C = 1, 10, .. 1e5 in scikit-learn's convention.
The paper takes the best C and does not say on which split. Here C is chosen on a held-out fifth of
the training set, and the test set is used once.
"""
import math

import torch
import torch.nn.functional as F
from tqdm import tqdm

from engine.mistakes import Mistake
from tasks import augment

PROBE_C = 1.0, 10.0, 100.0, 1e3, 1e4, 1e5
AT_ONCE = 2 ** 24  # at most so many scores are computed at once


@torch.no_grad()
def features(model, images, task):
    """(features, float32 (N, d), labels (N,)) of an ImageSplit, seen as the task says.

    Raises Mistake for a network without a method `features`.
    """
    if not hasattr(model, 'features'):
        name = type(model).__name__
        raise Mistake(f'--probe and --knn need {name}.features(x); see docs/extend.md')
    device = task.device
    image_size = model.config.image_size
    n_batches = math.ceil(len(images) / task.c.batch_size)
    batches = images.fixed(task.c.batch_size, n_batches, image_size=image_size)
    label = f'{images.folder.name} {images.split}'
    all_features = []
    all_labels = []
    for pictures, sizes, y, _ in tqdm(batches, label, n_batches, disable=None):
        x = augment.eval_pictures(device.send(pictures), sizes, image_size, task.augment.view)
        with device.autocast:
            all_features.append(model.features(x).float())
        all_labels.append(device.send(y))
    return torch.cat(all_features), torch.cat(all_labels)


# ---- linear probe -------------------------------------------------------------------------------

def parts(W, x, y):
    """The scores of features x (N, d), in parts that fit in memory, beside their labels y (N,).

    Yields (labels (n,), scores (n, classes)). W (classes, d + 1) is a matrix of
    `fit_logistic`. Numbers are float64 on the CPU, and float32 on an accelerator, which is slow in
    float64.
    """
    dtype = torch.float64 if x.device.type == 'cpu' else torch.float32
    W = W.to(dtype)
    weight = W[:, :-1]
    bias = W[:, -1]
    numbers_per_row = max(len(W), x.size(1))
    n = max(1, AT_ONCE // numbers_per_row)
    for inputs, labels in zip(x.split(n), y.split(n)):
        scores = F.linear(inputs.to(dtype), weight, bias)
        yield labels, scores


def fit_logistic(x, y, classes, C, start=None):
    """Multinomial logistic regression, full batch.

    Returns weights and bias, one matrix (classes, d + 1), that minimize

        sum_i cross_entropy(W x_i + b, y_i) + |W|^2 / (2 C)

    as scikit-learn does; the bias is not penalized. L-BFGS starts at `start` or zero, and runs on
    the device of the features x (N, d). Nothing of the size (N, classes) is ever in memory. With a
    large C it may end before it has converged.
    """
    # sums are float64, except on MPS, which has no float64
    sum_dtype = torch.float32 if x.device.type == 'mps' else torch.float64
    if start is None:
        W = torch.zeros(classes, x.size(1) + 1, dtype=sum_dtype, device=x.device)
    else:
        W = start.clone()
    W.requires_grad_()
    optimizer = torch.optim.LBFGS(
        [W], max_iter=1000, max_eval=2000, tolerance_grad=1e-6, tolerance_change=1e-10,
        history_size=20, line_search_fn='strong_wolfe')

    def objective():
        """The objective / N, and its gradient in W.grad."""
        optimizer.zero_grad()
        penalty = W[:, :-1].square().sum() / (2 * C * len(x))
        penalty.backward()
        total = penalty.detach()
        # each part has its own backward pass, so that no other part is in memory
        for labels, scores in parts(W, x, y):
            losses = F.cross_entropy(scores, labels, reduction='none')
            loss = losses.sum(dtype=sum_dtype) / len(x)
            loss.backward()
            total = total + loss.detach()
        return total

    optimizer.step(objective)
    return W.detach()


def accuracy_of(W, x, y):
    """The share of the features x (N, d) whose highest score is that of their label."""
    correct = 0
    for labels, scores in parts(W, x, y):
        correct += (scores.argmax(1) == labels).sum().item()
    return correct / len(x)


def linear_probe(train, test, classes):
    """(accuracy on the test set of a linear classifier of frozen features, the C that was chosen).

    train, test: (features (N, d), labels (N,)). C is the best of PROBE_C on a held-out random fifth
    of the training set; the classifier is then fitted to the whole training set.
    """
    x, y = train
    generator = torch.Generator().manual_seed(0)
    place = torch.randperm(len(y), generator=generator).argsort()
    n_held_out = max(1, len(y) // 5)
    held_out = place < n_held_out  # those that come first in a random order

    accuracy = {}
    W = None
    for C in PROBE_C:
        # it starts from the W of the C before
        W = fit_logistic(x[~held_out], y[~held_out], classes, C, W)
        accuracy[C] = accuracy_of(W, x[held_out], y[held_out])
        print(f'  C = {C:<8g} held-out top-1 {accuracy[C]:.2%}')
    best_C = max(PROBE_C, key=accuracy.get)  # of equals the smallest
    W = fit_logistic(x, y, classes, best_C)
    return accuracy_of(W, *test), best_C


# ---- nearest neighbours -------------------------------------------------------------------------

def nearest_neighbours(train, test, classes, k, temperature=0.07):
    """Accuracy on the test set of a vote of the k nearest training pictures.

    Near means a large cosine similarity s of features. Each neighbour votes for its class with
    weight exp(s / temperature), as is usual since Wu et al. 2018. Memory: beside the features, the
    similarities of 256 pictures. train, test: (features (N, d), labels (N,)).
    """
    x, y = train
    lengths = torch.linalg.vector_norm(x, dim=1).clamp_min(1e-12)              # (N,)
    k = min(k, len(x))
    test_features, test_labels = test
    correct = 0
    for queries, labels in zip(test_features.split(256), test_labels.split(256)):
        similarity = F.normalize(queries) @ x.mT / lengths                      # (n, N)
        similarity, neighbours = similarity.topk(k)                             # (n, k) each
        votes = torch.zeros(len(queries), classes, device=x.device)
        votes.scatter_add_(1, y[neighbours], (similarity / temperature).exp())  # (n, classes)
        correct += (votes.argmax(1) == labels).sum().item()
    return correct / len(test_labels)


# ---- during training ----------------------------------------------------------------------------

def probe(model, task):
    """What the features of a network tell about classes while it trains.

    Returns {'knn': accuracy of 20 nearest neighbours, 'probe': that of a linear probe with C = 1},
    of the training split on the validation split. Of several processes each computes all of it.
    """
    model.eval()
    with task.device.uncompiled():  # batches have other sizes than in training
        train = features(model, task.train, task)
        test = features(model, task.valid, task)
    model.train()

    classes = len(task.train.classes)
    W = fit_logistic(*train, classes, 1.0)
    return {
        'knn': nearest_neighbours(train, test, classes, 20),
        'probe': accuracy_of(W, *test),
    }
