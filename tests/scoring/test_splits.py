"""Scores of a whole split: they are what one computes by hand, picture by picture and token by
token. test_eval.py holds those of classifiers and of next tokens."""
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from helpers import margin, masked_autoencoder, normalized, text_network

from engine.device import Device
from scoring import splits
from tasks import AugmentConfig
from tasks.pictures import ImageSplit
from tasks.task_masked_image import Reconstruction
from tasks.task_masked_text import HiddenTokens, MaskedTextSplit
from train import TrainConfig, sum_metrics


def task_of(Task, model, split, batch_size):
    device = Device('cpu', 'float32', 'false')
    c = TrainConfig(batch_size=batch_size)
    augment = AugmentConfig(eval_crop=1.0)
    return Task(c, augment, model.config, device, train=None, valid=split)


def scores_of(model, task):
    """({name: number}, number of targets) of all of a split, as eval.py scores it."""
    sums, count = sum_metrics(model, task, task.device, task.all_batches())
    return task.finish(sums, count), count


# ---- pictures

@pytest.mark.parametrize('name, channels', [('crate_mae', 1), ('crate_mae', 3), ('vit_mae', 3)])
def test_reconstruction_and_its_baseline(name, channels, pictures_data):
    small = dict(image_size=8, patch_size=2, channels=channels)
    model = masked_autoencoder(name, **small)[0].eval()
    images = ImageSplit(pictures_data / f'quads_{channels}', 'val')
    losses = []
    baseline = []
    for i, x in enumerate(normalized(images.pixels)):
        noise = torch.from_numpy(np.random.default_rng((i, 4)).random(16)).float()
        with torch.no_grad():
            losses.append(model(x[None], noise[None])[1].item())

        patches = torch.stack([x[:, r:r + 2, c:c + 2] for r in range(0, 8, 2)
                               for c in range(0, 8, 2)])
        order = noise.argsort()
        colour = patches[order[:4]].mean((0, 2, 3), keepdim=True)  # of each channel
        baseline.append((patches[order[4:]] - colour).square().mean().item())

    for batch_size in (7, 100):
        task = task_of(Reconstruction, model, images, batch_size)
        assert scores_of(model, task) == ({'loss': pytest.approx(np.mean(losses), abs=1e-5)}, 20)
        hidden_share, of_baseline = splits.hidden_and_baseline(model, task)
        assert hidden_share == 0.75
        assert of_baseline == pytest.approx(np.mean(baseline), abs=1e-5)

    model = masked_autoencoder(name, norm_pix_loss=True, **small)[0]
    _, of_baseline = splits.hidden_and_baseline(model, task)
    P = 4 * channels  # a patch has P numbers of deviation 1, with the divisor P - 1
    assert of_baseline == pytest.approx((P - 1) / P, abs=1e-3)


# ---- text

def test_loss_and_accuracies_of_hidden_tokens(pictures_data, monkeypatch):
    model = text_network('crate', causal=False, vocab_size=257)
    text = MaskedTextSplit(pictures_data / 'text', 'val', 16)
    targets = []
    logits = []
    with torch.no_grad():
        for x, y in text.fixed(1, len(text)):
            targets.append(y[y != -1])
            logits.append(model(x)[0][y != -1].double())
    y = torch.cat(targets)
    logits = torch.cat(logits)
    assert margin(logits, y) > 1e-5  # no tie that rounding could decide
    rank = (logits > logits.gather(1, y[:, None])).sum(1)
    metrics = {
        'top1': pytest.approx((rank < 1).double().mean().item()),
        'top5': pytest.approx((rank < 5).double().mean().item()),
        'loss': pytest.approx(F.cross_entropy(logits, y).item(), abs=1e-5),
    }

    for batch_size in (3, 1000):
        task = task_of(HiddenTokens, model, text, batch_size)
        assert scores_of(model, task) == (metrics, len(y))
        assert splits.commonest_share(task) == y.bincount().max().item() / len(y)
    monkeypatch.setattr('tasks.task_masked_text.LOGITS_AT_ONCE', 2 * 16 * 257)  # two rows
    task = task_of(HiddenTokens, model, text, 1000)
    assert scores_of(model, task) == (metrics, len(y))


# ---- ImageNet-ReaL

@pytest.mark.parametrize('content, name', [
    ('{', 'ILSVRC2012_val_{:08d}.JPEG'),
    ([[0]], 'ILSVRC2012_val_{:08d}.JPEG'),
    ([[0]] * 6, 'Abyssinian_{}.jpg'),
])
def test_no_labels_for_these_pictures(content, name, tmp_path):
    """tests/test_eval.py has labels that fit."""
    (tmp_path / 'real.json').write_text(str(content))
    np.save(tmp_path / 'val.names.npy', np.array([name.format(n) for n in (4, 1, 6)], 'S'))
    with pytest.raises(ValueError, match='real.json'):
        splits.real_labels(tmp_path / 'real.json', SimpleNamespace(folder=tmp_path, split='val'))
