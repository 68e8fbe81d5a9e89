"""train.py on masked autoencoders: masks that depend on seed and step alone, resuming, processes, mistakes."""
import os
import signal

import numpy as np
import pytest
import torch
from helpers import OF_AUTOENCODERS, column, config_of, equal, fails, go, losses, torchrun, weights

import eval as scores
import train
from model_crate_mae import CRATEMAE
from tasks.augment import AugmentConfig, draws_needed
from tasks.pictures import ImageSplit
from engine.trained import read_last

pytestmark = pytest.mark.usefixtures('quick')
BOTH = list(OF_AUTOENCODERS)


@pytest.fixture
def data(pictures_data):
    return [f'--data_dir={pictures_data}', '--dataset=quads']


@pytest.fixture
def words(data):
    """Command-line words for a pre-training of a tenth of a second."""
    return [*data, *OF_AUTOENCODERS['crate_mae']]


@pytest.mark.parametrize('name', BOTH)
def test_a_masked_autoencoder_learns_the_colours_of_pictures(name, data, tmp_path, capsys):
    out = tmp_path / 'a'
    go(*data, *OF_AUTOENCODERS[name], '--max_iters=150', '--eval_interval=50', f'--out_dir={out}')
    loss = column(out, 'val')
    scores.main([f'--ckpt={out}', data[0], '--dtype=float32'])
    flat = float(capsys.readouterr().out.split('visible patches: ')[1].split()[0])
    assert loss[-1] < 0.97 * flat and flat < loss[0]
    assert read_last(out)['best'] == min(loss)  # the best is that of the least loss


@pytest.mark.parametrize('name', BOTH)
def test_of_grey_pictures_too(name, data, tmp_path):
    go(*data, *OF_AUTOENCODERS[name], '--dataset=grey', '--max_iters=20', '--eval_interval=20',
       f'--out_dir={tmp_path}/a')
    first, last = column(tmp_path / 'a', 'val')
    assert last < first and config_of(tmp_path / 'a')['channels'] == 1


# ---- masks


def test_what_is_masked_in_validation_never_changes(words, tmp_path, pretrained, capsys):
    """Whatever the seed and the size of a batch; and eval.py sees the same masks."""
    at = pretrained / 'crate_mae'
    capsys.readouterr()
    said = []
    for more in ([], ['--seed=5'], ['--batch_size=3'], ['--eval_iters=50']):
        go(*words, f'--init_from={at}', '--eval_only=true', *more)
        said.append(capsys.readouterr().out.splitlines()[-1])
    assert len(set(said)) == 1 and 'validation  loss' in said[0]
    scores.main([f'--ckpt={at}', words[0], '--split=val', '--dtype=float32'])
    assert said[0].split()[-1] in capsys.readouterr().out


def test_masks_of_a_step_depend_on_seed_and_step_alone(pictures_data):
    images = ImageSplit(pictures_data / 'quads', 'train')
    whole = [batch[3] for batch in images.batches(8, 7, [slice(0, 8)], 0, 5, draws=9)]
    parts = [batch[3] for batch in images.batches(8, 7, [slice(0, 4), slice(4, 8)], 2, 5, draws=9)]
    assert torch.equal(torch.cat(parts), torch.cat(whole[2:])) and not torch.equal(whole[0], whole[1])


def test_masks_are_drawn_apart_from_the_augmentation(words, tmp_path, monkeypatch):
    """The masks of a step come from the last of its random numbers, so they are independent of
    crops, flips and operations."""
    seen, forward = [], CRATEMAE.forward

    def note(self, x, noise=None):
        seen.append(noise)
        return forward(self, x, noise)
    monkeypatch.setattr(CRATEMAE, 'forward', note)
    go(*words, '--randaugment_n=2', '--max_iters=2', '--seed=3', '--batch_size=4', '--gradient_accumulation_steps=2',
       f'--out_dir={tmp_path}/a')
    trained = [noise for noise in seen if noise is not None and len(noise) == 4 and noise.device.type == 'cpu']
    for step in range(2):
        draws = draws_needed(AugmentConfig(randaugment_n=2))
        numbers = np.random.default_rng((3, step, 1)).random((8, draws + 16))[:, -16:]
        numbers = torch.from_numpy(numbers).float()
        for part in numbers.split(4):
            assert sum(torch.equal(part, noise) for noise in trained) == 1


def test_accumulation_masks_the_same(words, tmp_path):
    go(*words, f'--out_dir={tmp_path}/a')
    go(*words, '--batch_size=4', '--gradient_accumulation_steps=2', f'--out_dir={tmp_path}/b')
    assert column(tmp_path / 'a', 'train') == pytest.approx(column(tmp_path / 'b', 'train'), rel=1e-4)


# ---- stop, resume, share


@pytest.mark.parametrize('name', BOTH)
def test_stopped_a_pretraining_goes_on_bit_for_bit(name, data, tmp_path, pretrained, monkeypatch):
    batches = ImageSplit.batches

    def stop_at(*args, **kw):
        for i, batch in enumerate(batches(*args, **kw)):
            if i == 4:
                os.kill(os.getpid(), signal.SIGINT)
            yield batch
    monkeypatch.setattr(ImageSplit, 'batches', stop_at)
    with pytest.raises(SystemExit):
        go(*data, *OF_AUTOENCODERS[name], f'--out_dir={tmp_path}/a')
    monkeypatch.setattr(ImageSplit, 'batches', batches)
    go('--init_from=resume', f'--out_dir={tmp_path}/a')
    assert losses(tmp_path / 'a') == losses(pretrained / name)
    assert equal(weights(tmp_path / 'a'), weights(pretrained / name))


@pytest.mark.slow
def test_two_processes_pretrain_as_one(words, pretrained, tmp_path):
    torchrun(*words, f'--out_dir={tmp_path}/a')
    for split in ('train', 'val'):
        assert column(tmp_path / 'a', split) == pytest.approx(column(pretrained / 'crate_mae', split), rel=1e-4)


@pytest.mark.parametrize('name', BOTH)
def test_pretraining_on_jpegs_of_all_sizes_with_readers_in_bfloat16(name, data, tmp_path):
    words = [*data, *OF_AUTOENCODERS[name], '--dataset=pack', '--image_size=8,12', '--patch_size=4', '--dtype=bfloat16']
    for workers in (2, 0):
        go(*words, f'--workers={workers}', f'--out_dir={tmp_path}/{workers}')
    assert losses(tmp_path / '2') == losses(tmp_path / '0') and column(tmp_path / '2', 'val')[-1] < 5
    scores.main([f'--ckpt={tmp_path}/2', data[0], '--dtype=bfloat16', '--split=val'])


def test_a_pretraining_can_go_on_elsewhere(words, pretrained, tmp_path):
    words.remove('--model=crate_mae')  # the checkpoint says so
    at = f'--init_from={pretrained}/crate_mae'
    go(*words, at, '--dataset=colours', f'--out_dir={tmp_path}/a')  # pictures of other classes
    assert config_of(tmp_path / 'a')['model'] == 'crate_mae'


def test_the_seed_says_which_pictures_are_shared_in_training_and_probing(words, pretrained, tmp_path, monkeypatch):
    asked, init = [], ImageSplit.__init__

    def note(self, folder, split, *args):
        init(self, folder, split, *args)
        if split == 'train':
            asked.append(self.chosen.tolist())
    monkeypatch.setattr(ImageSplit, '__init__', note)
    few = f'--init_from={pretrained}/crate_mae', '--model=crate', '--train_share=0.3', '--max_iters=1'
    probe = words[0], '--knn=1', '--train_share=0.3'
    for seed in (5, 6):
        go(*words, *few, f'--seed={seed}', f'--out_dir={tmp_path}/{seed}')
        scores.main([f'--ckpt={tmp_path}/{seed}', *probe])
    scores.main([f'--ckpt={tmp_path}/5', *probe, '--seed=6'])
    assert asked[0] == asked[1] != asked[2] and asked[2] == asked[3] == asked[4] and len(asked[0]) == 12
    with pytest.raises(ValueError, match='train_share'):
        go('--init_from=resume', f'--out_dir={tmp_path}/5', '--train_share=0.5', '--max_iters=2')


# ---- mistakes


@pytest.mark.parametrize('more, message', [
    (['--mask_ratio=1'], 'must lie between 0 and 1'), (['--mask_ratio=0'], 'must lie between 0 and 1'),
    (['--mask_ratio=0.99'], 'leave some of the 16 patches'), (['--mask_ratio=abc'], 'mask_ratio'),
    (['--num_classes=4'], 'num_classes'), (['--train_share=0'], 'train_share'), (['--train_share=1.5'], 'train_share'),
    (['--new_head=true'], 'needs a network'), (['--dataset=text'], 'model=crate_mae does not read that')])
def test_mistakes_get_one_line(more, message, words, tmp_path, capsys):
    assert message in fails(capsys, train.main, *words, *more, f'--out_dir={tmp_path}/a')
    assert not (tmp_path / 'a').exists()
