"""What tasks share: ranks and shares, batches of a step, a task for every network."""
from itertools import zip_longest
from types import SimpleNamespace

import pytest
import torch

import tasks
from engine.device import Device
from engine.mistakes import Mistake
from helpers import ROOT
from tasks import AugmentConfig, share_of_step
from tasks.pictures import ImageSplit
from tasks.regression import Prompts
from tasks.task_icl import Regression
from tasks.task_image import Classification
from tasks.task_masked_image import Reconstruction
from tasks.task_masked_text import HiddenTokens, MaskedTextSplit
from tasks.task_text import NextToken
from tasks.task_views import Distillation
from tasks.text import TextSplit
from train import TrainConfig


def test_shares_keep_the_global_batch():
    for world, passes, rows, want in ((1, 5, 3, (5, 3)), (4, 8, 3, (2, 3)), (4, 3, 8, (3, 2)), (4, 3, 5, None)):
        if not want:
            with pytest.raises(Mistake, match='batch_size'):
                share_of_step(passes, rows, 0, world)
            break
        found = [share_of_step(passes, rows, rank, world) for rank in range(world)]
        assert all(n == want[0] and all(part.stop - part.start == want[1] for part in parts) for n, parts in found)
        mine = [i for _, parts in found for part in parts for i in range(passes * rows)[part]]
        assert mine == list(range(passes * rows))  # each row once


# ---- batches: what every split of a dataset has in common

WHOLE = [slice(None)]
SPLITS = {'text': lambda at: TextSplit(at / 'text', 'train', 4), 'functions': lambda at: Prompts('linear', 4, 6),
          'masked': lambda at: MaskedTextSplit(at / 'text', 'train', 4),
          'pictures': lambda at: ImageSplit(at / 'numbered', 'train')}


def same(a, b):
    """Whether batches hold the same rows in the same order, however many are in a batch."""
    a, b = ([torch.cat(parts) for parts in zip(*batches)] for batches in (a, b))
    return all(torch.equal(p, q) for p, q in zip(a, b, strict=True))


@pytest.mark.parametrize('kind', SPLITS)
def test_batches_depend_on_seed_and_step_alone_and_are_shared_among_processes(kind, pictures_data):
    split, wants = SPLITS[kind](pictures_data), {'draws': 3} if kind == 'pictures' else {}

    def batches(seed=7, share=WHOLE, first=0, last=9):
        return list(split.batches(12, seed, share, first, last, **wants))
    whole, fixed = batches(), list(split.fixed(4, 6, **wants))
    for share in ([slice(0, 6), slice(6, 12)], [slice(0, 1), slice(1, 12)], [slice(0, 4), slice(4, 8), slice(8, 12)]):
        assert same(whole, batches(share=share))  # in passes
    ranks = [batches(7, [slice(6 * rank, 6 * rank + 6)], i, i + 1) for i in range(9) for rank in (0, 1)]
    assert same(whole, sum(ranks, [])) and same(whole[5:], batches(first=5))
    assert not same(whole, batches(seed=8)) and not same(whole[:1], whole[1:2]) and not same(whole[:1], fixed[:3])
    for world in (1, 2, 3, 5):
        shares = [list(split.fixed(4, 6, rank, world, **wants)) for rank in range(world)]
        assert same(fixed, [batch for turn in zip_longest(*shares) for batch in turn if batch])
    assert kind == 'functions' or same(fixed, split.fixed(3, 8, **wants))  # what is seen is no matter of batches


# ---- tasks

SIZE = dict(image_size=(8, 8), patch_size=(4, 4))
NAMES = {path.stem.removeprefix('task_') for path in (ROOT / 'tasks').glob('task_*.py')}
KINDS = [(NextToken, 'text', 'text', dict(block_size=16, vocab_size=257), {}),
         (HiddenTokens, 'masked_text', 'text', dict(block_size=16, vocab_size=257), {}),
         (Classification, 'image', 'quads', SIZE, dict(randaugment_n=1)), (Classification, 'image', 'pack', SIZE, {}),
         (Reconstruction, 'masked_image', 'pack', SIZE, {}),
         (Distillation, 'views', 'quads', SIZE | dict(out_dim=9), dict(local_size=4)),
         (Regression, 'icl', 'linear', dict(block_size=8, n_dims=3), {})]


@pytest.mark.parametrize('kind, task, dataset, config, augmented', KINDS)
def test_a_network_has_its_task_and_what_goes_to_the_device_has_no_gaps(kind, task, dataset, config, augmented,
                                                                        pictures_data):
    """A tensor with gaps is copied number by number before CUDA can take it."""
    class Post(Device):
        sent = []

        def send(self, tensor):
            self.sent.append(tensor)
            return super().send(tensor)
    c = TrainConfig(gradient_accumulation_steps=2, batch_size=3, seed=1, eval_iters=2, workers=0, dataset=dataset)
    folder = None if dataset == 'linear' else pictures_data / dataset
    model = SimpleNamespace(config=SimpleNamespace(task=task, **config))
    made = tasks.choose(c, AugmentConfig(**augmented), folder, model, Post('cpu', 'float32', 'false'))
    assert type(made) is kind and made.tokens_per_row == (16 if dataset == 'text' else 1)
    steps = list(made.train.batches(made.rows_per_step, c.seed, made.parts, 0, 1, **made.train_options))
    batches = [*(made.take(batch, training=True) for batch in steps), *made.validation_batches()]
    assert [len(y) for _, y in batches] == [3] * 4 and {kind for _, kind, *_ in KINDS} == NAMES
    assert len(Post.sent) == 8 and all(t.is_contiguous() for t in Post.sent)
    if 'image_size' in config:  # else panoramas would not be cut, or not at random
        assert made.train_options['image_size'] == made.valid_options['image_size'] == (8, 8)
        assert made.train_options['cut_at_random'] and 'cut_at_random' not in made.valid_options
    if kind is Classification:  # what is validated is not augmented
        assert not torch.equal(*(made.take(steps[0], training)[0] for training in (True, False)))
