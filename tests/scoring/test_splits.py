"""Scores of a whole split: they are what one computes by hand, picture by picture and token by
token."""
import contextlib
import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from helpers import TEXT, by_hand, margin, normalized, quadrants, save_text, split_text, text_network

from engine import networks
from prepare.lib.pictures import save_arrays
from scoring import splits
from tasks.pictures import ImageSplit
from tasks.hidden import MaskedTextSplit
from tasks.text import TextSplit
from tasks.tokenizer import Tokenizer

PLAIN = contextlib.nullcontext()
NUMBERS = 4, 1, 6, 2, 3, 5  # in the names of pictures, which are not in the order of their numbers


def network(name, channels=3, **settings):
    """A fresh network for 8 x 8 pictures of 7 classes."""
    Network, Config = networks.network(name)
    small = dict(image_size=8, patch_size=2, channels=channels, n_layer=1, n_head=2, n_embd=16)
    small |= dict(decoder_n_layer=1, decoder_n_head=2, decoder_n_embd=16) if name == 'vit_mae' else {}
    small |= {} if name.endswith('_mae') else dict(num_classes=7)
    torch.manual_seed(0)
    return Network(Config(**small | settings)).eval()


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    """A data_dir: `lights_C` with pictures of C channels, and a `text`."""
    out = tmp_path_factory.mktemp('data')
    for C in (1, 2, 3, 5):
        save_arrays(out / f'lights_{C}', {'test': quadrants(20, 2, classes=4, channels=C)}, 'abcdefg')
    tokenizer = Tokenizer('bytes')
    save_text(out / 'text', tokenizer, *split_text(TEXT[:3000], tokenizer))
    return out


# ---- pictures

@pytest.mark.parametrize('channels', [1, 2, 3, 5])
@pytest.mark.parametrize('batch_size', [1, 7, 100])
def test_loss_and_accuracies_of_a_classifier(batch_size, channels, folder):
    model = network('crate', channels)
    logits, y = by_hand(model, folder / f'lights_{channels}', 'test')
    assert margin(logits) > 1e-5 and margin(logits, y) > 1e-5  # no tie that rounding could decide
    images = ImageSplit(folder / f'lights_{channels}', 'test')
    found, guesses = splits.classification(model, images, PLAIN, batch_size, 1.0)
    rank = (logits > logits.gather(1, y[:, None])).sum(1)
    assert found['loss'] == pytest.approx(F.cross_entropy(logits, y).item(), abs=1e-5)
    assert (found['top1'], found['top5']) == pytest.approx(((rank < 1).sum().item() / 20, (rank < 5).sum().item() / 20))
    assert guesses == logits.argmax(1).tolist()


@pytest.mark.parametrize('channels', [1, 2, 3])
@pytest.mark.parametrize('name', ['crate_mae', 'vit_mae'])
def test_reconstruction_and_its_baseline(name, channels, folder):
    model = network(name, channels)
    images, losses, baseline = ImageSplit(folder / f'lights_{channels}', 'test'), [], []
    for i, x in enumerate(normalized(images.pixels)):
        noise = torch.from_numpy(np.random.default_rng((i, 4)).random(16)).float()
        patches = [x[:, r:r + 2, c:c + 2] for r in range(0, 8, 2) for c in range(0, 8, 2)]
        shown, hidden = noise.argsort()[:4].tolist(), noise.argsort()[4:].tolist()
        colour = torch.stack([patches[n] for n in shown]).mean((0, 2, 3))[:, None, None]  # of each channel
        baseline.append(sum((patches[n] - colour).square().mean().item() for n in hidden) / 12)
        with torch.no_grad():
            losses.append(model(x[None], noise[None])[1].item())
    for batch_size in (7, 100):
        found = splits.reconstruction(model, images, PLAIN, batch_size, 1.0)
        assert (found['count'], found['hidden']) == (20, 0.75)
        assert found['loss'] == pytest.approx(np.mean(losses), abs=1e-5)
        assert found['baseline'] == pytest.approx(np.mean(baseline), abs=1e-5)


@pytest.mark.parametrize('name', ['crate_mae', 'vit_mae'])
def test_normalized_patches_are_compared_with_their_own_mean(name, folder):
    images = ImageSplit(folder / 'lights_3', 'test')
    found = splits.reconstruction(network(name, norm_pix_loss=True), images, PLAIN, 7, 1.0)
    assert found['baseline'] == pytest.approx(11 / 12, abs=1e-3)  # 12 numbers of deviation 1, with divisor 11


@pytest.mark.parametrize('channels', [1, 2, 3, 5])
def test_the_visible_colour_is_a_mean_for_each_channel(channels):
    patches = torch.arange(channels).repeat(6).expand(2, 4, -1) + torch.tensor([0.0, 10, 20, 30])[:, None]
    hidden = torch.tensor([[True, False, False, True], [False, True, True, True]])
    flat = splits.visible_colour(patches, hidden, channels).unflatten(2, (6, channels))
    for colour, mean in zip(flat, (15, 0)):
        assert (colour == mean + torch.arange(channels)).all()


# ---- text

def test_loss_of_the_next_tokens(folder):
    model, text = text_network('aot', vocab_size=256), TextSplit(folder / 'text', 'val', 16)
    x = torch.from_numpy(np.load(folder / 'text' / 'val.npy').astype(np.int64))
    starts = np.linspace(0, len(x) - 17, len(text)).astype(int)
    with torch.no_grad():
        want = np.mean([F.cross_entropy(model(x[s:s + 16][None])[0][0], x[s + 1:s + 17]).item() for s in starts])
    for batch_size in (1, 3, 1000):
        found = splits.tokens(model, text, PLAIN, batch_size)
        assert (found['count'], found['loss']) == (16 * len(text), pytest.approx(want, abs=1e-5))


def test_loss_and_accuracies_of_hidden_tokens(folder, monkeypatch):
    model = text_network('crate', causal=False, vocab_size=257)
    text, chosen, logits = MaskedTextSplit(folder / 'text', 'val', 16), [], []
    with torch.no_grad():
        for x, y in text.fixed(1, len(text)):
            chosen.append(y[y != -1])
            logits.append(model(x)[0][y != -1].double())
    y, logits = torch.cat(chosen), torch.cat(logits)
    assert margin(logits, y) > 1e-5
    rank = (logits > logits.gather(1, y[:, None])).sum(1)
    want = {'count': len(y), 'loss': pytest.approx(F.cross_entropy(logits, y).item(), abs=1e-5),
            'top1': pytest.approx((rank < 1).double().mean().item()),
            'top5': pytest.approx((rank < 5).double().mean().item()),
            'commonest': max(map(y.tolist().count, y.tolist())) / len(y)}
    for batch_size in (1, 3, 1000):
        assert splits.tokens(model, text, PLAIN, batch_size) == want
    monkeypatch.setattr('tasks.hidden.LOGITS_AT_ONCE', 2 * 16 * 257)  # two rows
    assert splits.tokens(model, text, PLAIN, 1000) == want


# ---- ImageNet-ReaL

def real_labels(tmp_path, labels, names):
    """The labels of pictures with these names, from a file with this content."""
    path = tmp_path / 'real.json'
    if labels is not None:
        path.write_text(labels if isinstance(labels, str) else json.dumps(labels))
    np.save(tmp_path / 'val.names.npy', np.array(names, 'S'))
    return splits.real_labels(path, SimpleNamespace(folder=tmp_path, split='val'))


def test_real_labels_are_looked_up_by_the_number_in_the_name(tmp_path):
    names = [f'x/ILSVRC2012_val_{n:08d}.JPEG' for n in NUMBERS]  # 4 1 6 2 3 5; 3 and 5 have no label
    labels = real_labels(tmp_path, [[0], [1, 5], [], [3], [], [2]], names)  # of pictures 1 .. 6
    assert labels == [[3], [0], [2], [1, 5], [], []]
    for guesses, share in (([3, 0, 2, 5, 9, 9], 1), ([3, 9, 2, 1, 0, 0], 3 / 4), ([0, 1, 3, 2, 0, 0], 0)):
        assert splits.real_accuracy(guesses, labels) == share


@pytest.mark.parametrize('content', [None, '{', [[0]] * 3, 7, {'a': [1]}])
def test_a_file_other_than_real_json_is_refused_by_name(content, tmp_path):
    with pytest.raises(ValueError, match='real.json has no labels for these pictures'):
        real_labels(tmp_path, content, [f'ILSVRC2012_val_{n:08d}.JPEG' for n in NUMBERS])


@pytest.mark.parametrize('name', ['n0001_{}.JPEG', 'Abyssinian_{}.jpg'])
def test_names_that_are_not_imagenets_validation_are_refused(name, tmp_path):
    with pytest.raises(ValueError, match='val split of imagenet'):
        real_labels(tmp_path, [[0]] * 6, [name.format(n) for n in NUMBERS])


def test_means_are_weighted():
    means = splits.Means()
    means.add(1, {'loss': torch.tensor(4.0)})
    means.add(3, {'loss': 0.0})
    assert means.result() == {'count': 4, 'loss': 1.0}
