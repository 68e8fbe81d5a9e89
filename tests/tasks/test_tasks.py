"""What tasks share: ranks and shares, batches of a step, a task for every network."""
from types import SimpleNamespace

import pytest
import torch
from helpers import text_network

import tasks
from engine.device import Device
from engine.networks import TASKS
from tasks import AugmentConfig, Task, top1_top5
from tasks.pictures import Classification, Reconstruction
from tasks.regression import Regression
from tasks.hidden import HiddenTokens
from tasks.text import NextToken
from tasks.views import Distillation
from train import TrainConfig


def passes(task, step):
    """The batches of a training step, as train.py takes them."""
    parts = task.train.batches(task.batch, task.c.seed, task.parts, step, step + 1, **task.train_wants)
    return [task.take(batch, training=True) for batch in parts]


def test_ranks_by_a_naive_loop():
    logits = torch.randn(4, 3, 9, generator=torch.Generator().manual_seed(0))
    y = torch.randint(-1, 9, (4, 3), generator=torch.Generator().manual_seed(1))
    count, right, five = 0, 0, 0
    for row, t in zip(logits.flatten(0, 1), y.flatten().tolist()):
        if t != -1:
            order = row.argsort(descending=True).tolist()[:5]
            count, right, five = count + 1, right + (order[0] == t), five + (t in order)
    weight, shares = top1_top5(logits, y)
    assert weight == count and {k: float(v) for k, v in shares.items()} == {'top1': right / count, 'top5': five / count}


def test_shares_of_few_classes_are_exact():
    """Of two classes both are among the likeliest five."""
    count, shares = top1_top5(torch.eye(2)[[0, 1, 1, 0, 1, 1, 0]], torch.tensor([1, 1, 0, 1, 0, 0, 1]))
    assert count == 7 and float(shares['top1']) == 1 / 7 and float(shares['top5']) == 1


@pytest.mark.parametrize('model, dataset, more, kind', [
    ('aot', 'tiny', {}, NextToken), ('crate', 'tiny', dict(causal=False), HiddenTokens)])
def test_the_network_says_which_task_it_is_for_text(model, dataset, more, kind, bytes_data):
    c = TrainConfig(gradient_accumulation_steps=2, batch_size=3, seed=1, max_iters=5, eval_iters=2)
    net = text_network(model, vocab_size=257, **more)
    task = tasks.choose(c, AugmentConfig(), bytes_data / dataset, net, Device('cpu', 'float32', 'false'))
    assert type(task) is kind and (task.n_passes, task.rows, task.batch, task.size) == (2, 3, 6, 16)
    whole = next(task.train.batches(6, 1, [slice(None)], 2, 5))
    x, y = (torch.cat(parts) for parts in zip(*passes(task, 2)))
    assert torch.equal(x, whole[0]) and torch.equal(y, whole[1])
    assert sum(len(x) for x, _ in task.validation()) == 6


@pytest.mark.parametrize('dataset, config, augmented', [
    ('text', dict(task='text', block_size=16), {}), ('text', dict(task='masked_text', block_size=16), {}),
    ('quads', dict(task='image', image_size=(8, 8)), dict(randaugment_n=1)),
    ('pack', dict(task='image', image_size=(8, 8)), {}),
    ('pack', dict(task='masked_image', image_size=(8, 8), patch_size=(4, 4)), {}),
    ('quads', dict(task='views', image_size=(8, 8), patch_size=(4, 4), n_out=9), dict(local_size=4)),
    ('linear', dict(task='icl', block_size=8, n_dims=3), {})])
def test_what_is_sent_to_the_device_has_no_gaps(dataset, config, augmented, pictures_data):
    """A tensor with gaps is copied number by number before CUDA can take it."""
    class Post(Device):
        sent = []

        def send(self, *tensors):
            self.sent.extend(tensors)
            return super().send(*tensors)
    c = TrainConfig(gradient_accumulation_steps=2, batch_size=3, seed=1, max_iters=5, eval_iters=2, workers=0,
                    dataset=dataset)
    folder = None if dataset == 'linear' else pictures_data / dataset
    model = SimpleNamespace(config=SimpleNamespace(**dict(vocab_size=257) | config))
    task = tasks.choose(c, AugmentConfig(**augmented), folder, model, Post('cpu', 'float32', 'false'))
    batches = [*passes(task, 0), *task.validation()]
    assert len(batches) == 4 and len(Post.sent) == 8
    assert all(t.is_contiguous() for t in Post.sent)


def test_every_task_has_a_class():
    kinds = {'text': NextToken, 'masked_text': HiddenTokens, 'image': Classification, 'masked_image': Reconstruction,
             'views': Distillation, 'icl': Regression}
    assert kinds.keys() == TASKS.keys() and all(issubclass(kind, Task) for kind in kinds.values())
    made = []
    for name, kind in kinds.items():
        config = SimpleNamespace(task=name, block_size=4, vocab_size=9, n_dims=2, image_size=(8, 8), patch_size=(4, 4))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(kind, '__init__', lambda self, *args: made.append(type(self)))
            tasks.choose(TrainConfig(), AugmentConfig(), None, SimpleNamespace(config=config), None)
    assert made == list(kinds.values())
