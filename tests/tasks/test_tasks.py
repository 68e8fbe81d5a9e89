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
    for world, passes, rows, n_parts, length in ((1, 5, 3, 5, 3), (4, 8, 3, 2, 3), (4, 3, 8, 3, 2)):
        seen = []
        for rank in range(world):
            n, parts = share_of_step(passes, rows, rank, world)
            assert n == len(parts) == n_parts
            for part in parts:
                assert part.stop - part.start == length
                seen += range(passes * rows)[part]
        assert seen == list(range(passes * rows))  # each row once
    with pytest.raises(Mistake, match='batch_size'):
        share_of_step(3, 5, 0, 4)


# ---- batches: what every split of a dataset has in common

WHOLE = [slice(None)]
SPLITS = {
    'text': lambda data: TextSplit(data / 'text', 'train', 4),
    'functions': lambda data: Prompts('linear', 4, 6),
    'masked': lambda data: MaskedTextSplit(data / 'text', 'train', 4),
    'pictures': lambda data: ImageSplit(data / 'numbered', 'train'),
}


def same(a, b):
    """Whether batches hold the same rows in the same order, however many are in a batch."""
    a, b = ([torch.cat(parts) for parts in zip(*batches)] for batches in (a, b))
    return all(torch.equal(p, q) for p, q in zip(a, b, strict=True))


@pytest.mark.parametrize('kind', SPLITS)
def test_batches_depend_on_seed_and_step_alone_and_are_shared_among_processes(kind, pictures_data):
    split = SPLITS[kind](pictures_data)
    wants = {'draws': 3} if kind == 'pictures' else {}

    def batches(seed=7, share=WHOLE, first=0, last=9):
        return list(split.batches(12, seed, share, first, last, **wants))
    whole, fixed = batches(), list(split.fixed(4, 6, **wants))
    assert same(whole, batches(share=[slice(0, 1), slice(1, 12)]))  # in passes
    ranks = []
    for step in range(9):
        ranks += batches(share=[slice(0, 6)], first=step, last=step + 1)
        ranks += batches(share=[slice(6, 12)], first=step, last=step + 1)
    assert same(whole, ranks) and same(whole[5:], batches(first=5))
    assert not same(whole, batches(seed=8)) and not same(whole[:1], whole[1:2])
    assert not same(whole[:1], fixed[:3])
    for world in (2, 5):
        shares = [list(split.fixed(4, 6, rank, world, **wants)) for rank in range(world)]
        assert same(fixed, [batch for turn in zip_longest(*shares) for batch in turn if batch])
    # what is validated does not depend on the size of batches
    assert kind == 'functions' or same(fixed, split.fixed(3, 8, **wants))


# ---- tasks

SIZE = dict(image_size=(8, 8), patch_size=(4, 4))
NAMES = {path.stem.removeprefix('task_') for path in (ROOT / 'tasks').glob('task_*.py')}
KINDS = [(NextToken, 'text', 'text', dict(block_size=16, vocab_size=257), {}),
         (HiddenTokens, 'masked_text', 'text', dict(block_size=16, vocab_size=257), {}),
         (Classification, 'image', 'quads', SIZE, dict(randaugment_n=1)),
         (Reconstruction, 'masked_image', 'pack', SIZE, {}),
         (Distillation, 'views', 'quads', SIZE | dict(out_dim=9), dict(local_size=4)),
         (Regression, 'icl', 'linear', dict(block_size=8, n_dims=3), {})]


def test_every_task_is_among_those_of_this_file():
    assert {name for _, name, *_ in KINDS} == NAMES


@pytest.mark.parametrize('kind, task, dataset, config, augmented', KINDS)
def test_a_network_has_its_task_and_what_goes_to_the_device_has_no_gaps(
        kind, task, dataset, config, augmented, pictures_data):
    """A tensor with gaps is copied number by number before CUDA can take it."""
    class Post(Device):
        sent = []

        def send(self, tensor):
            self.sent.append(tensor)
            return super().send(tensor)
    c = TrainConfig(gradient_accumulation_steps=2, batch_size=3, seed=1, eval_iters=2, workers=0,
                    dataset=dataset)
    folder = None if dataset == 'linear' else pictures_data / dataset
    model = SimpleNamespace(config=SimpleNamespace(task=task, **config))
    device = Post('cpu', 'float32', 'false')
    made = tasks.choose(c, AugmentConfig(**augmented), folder, model, device)
    assert type(made) is kind and made.tokens_per_row == (16 if dataset == 'text' else 1)
    steps = list(made.train.batches(made.rows_per_step, c.seed, made.parts, 0, 1,
                                    **made.train_options))
    batches = [made.take(batch, training=True) for batch in steps]
    batches += made.validation_batches()
    assert [len(y) for _, y in batches] == [3] * 4
    assert len(Post.sent) == 8 and all(tensor.is_contiguous() for tensor in Post.sent)
    if 'image_size' in config:  # else panoramas would not be cut, or not at random
        assert made.train_options['image_size'] == made.valid_options['image_size'] == (8, 8)
        assert made.train_options['cut_at_random'] and 'cut_at_random' not in made.valid_options
    if kind is Classification:  # what is validated is not augmented
        assert not torch.equal(*(made.take(steps[0], training)[0] for training in (True, False)))
