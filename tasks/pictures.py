"""Pictures: one split of a prepared dataset, and the two things to learn from it, classes and
hidden patches.

No batch depends on a hidden random stream. It is a function of (seed, step), so a resumed run sees
what an uninterrupted one sees, on any number of processes.
"""
import functools
import math
import multiprocessing.util
import os
import signal
from pathlib import Path

import numpy as np
import torch

from engine.networks import grid
from engine.settings import Mistake, reading
from tasks import Task, accuracies, augment
from tasks.decode import is_picture, open_picture, to_8_bits, unpacked
from tasks.files import cores, open_array, read_meta, split_meta


class ImageSplit:
    """One split of an image dataset, or a share of it. images[request] is a batch, see `__getitem__`."""

    def __init__(self, folder, split, workers=0, share=1.0, seed=0):
        """workers: processes that read ahead; -1 means as many as the cores allow if JPEG must be decoded, else none.
        share: part of each class to keep, at least one picture; the seed says which."""
        meta, self.mine = split_meta(folder, split, 'images')
        self.folder, self.split, self.classes = Path(folder), split, meta['classes']
        self.channels, self.packed = meta['channels'], meta['storage'] == 'pack'
        cores_each = cores() // int(os.environ.get('LOCAL_WORLD_SIZE', 1))  # torchrun's processes share a machine
        self.workers = workers if workers >= 0 else self.packed * max(1, min(16, cores_each))
        self.labels = np.array(self.open('labels', 'int64', self.mine['count']))
        self.pixels  # raises now if a file is missing or cut off
        self.chosen = share_of_each(self.labels, share, seed) if share < 1 else np.arange(len(self.labels))
        multiprocessing.util.register_after_fork(self, signals_are_for_the_loop)

    def open(self, name, dtype, *shape):
        return open_array(self.folder / f'{self.split}.{name}.npy', dtype, *shape)

    @property
    def pixels(self):
        """The array of all pictures; of JPEG files (their bytes, where each begins). Opened anew by who needs it, so
        that reading processes get no copy."""
        mine = self.mine
        if self.packed:
            return self.open('jpeg', 'uint8', mine['bytes']), self.open('offsets', 'int64', mine['count'] + 1)
        return self.open('images', 'uint8', mine['count'], mine['height'], mine['width'], self.channels)

    def __len__(self):
        return len(self.chosen)

    def __getitem__(self, request):
        """(indices (n,), draws (n, any), image_size, columns) -> pictures uint8 (n, H, W, C), sizes int64 (n, 2),
        labels int64 (n,), draws.

        Pictures of different sizes are padded with zeros at the right and the bottom; sizes holds (height, width) of
        each. With an image_size, that of the network, panoramas are cut (see augment.cut), at the place that these
        columns of the draws hold, or in the centre. Draws are passed through, so that a picture and its random numbers
        stay together.
        """
        indices, draws, image_size, columns = request
        indices = self.chosen[indices]
        pixels, what = self.pixels, f'a picture in {self.folder}'
        pictures = [np.atleast_3d(unpacked(*pixels, i, what)) for i in indices] if self.packed else pixels[indices]
        if image_size and self.packed:
            places = draws[:, columns] if columns else np.full((len(indices), 2), 0.5)
            pictures = [augment.cut(p, image_size, place) for p, place in zip(pictures, places)]
        sizes = np.array([p.shape[:2] for p in pictures])
        padded = np.zeros((len(pictures), *sizes.max(0), self.channels), np.uint8)
        for into, p in zip(padded, pictures):
            into[:p.shape[0], :p.shape[1]] = p
        return padded, sizes, self.labels[indices], draws

    def read(self, requests):
        """self[..] for each request, as tensors, read ahead by worker processes if there are any. (With a generator of
        its own, because DataLoader draws a seed for its workers in any case.)"""
        return iter(torch.utils.data.DataLoader(self, sampler=requests, batch_size=None, num_workers=self.workers,
                                                worker_init_fn=signals_are_for_the_loop, generator=torch.Generator()))

    def batches(self, n, seed, parts, first, last, draws=0, image_size=None, columns=None):
        """Training: for each step, first to last - 1, these parts (slices) of its n pictures, each with `draws` random
        numbers in [0, 1). Every epoch has all pictures in another order. Order and numbers depend on (seed, step)
        alone. image_size, columns: see `__getitem__`."""
        def requests():
            for step in range(first, last):
                indices = np.array([order(seed, i // len(self), len(self))[i % len(self)]
                                    for i in range(step * n, (step + 1) * n)])
                numbers = np.random.default_rng((seed, step, 1)).random((n, draws))
                for part in parts:
                    yield indices[part], numbers[part], image_size, columns
        return self.read(requests())

    def fixed(self, n, batches, rank=0, world=1, draws=0, image_size=None):
        """Validation: `batches` batches of n pictures, evenly spaced over the split and always the same; of these every
        world-th, from the rank-th on. Each picture at most once, with `draws` random numbers that never change."""
        places = np.linspace(0, len(self) - 1, min(n * batches, len(self))).round().astype(np.int64)
        parts = (places[i:i + n] for i in range(rank * n, len(places), world * n))
        return self.read((part, np.array([np.random.default_rng((j, 4)).random(draws)
                                          for j in self.chosen[part].tolist()]), image_size, None) for part in parts)


@functools.lru_cache(maxsize=2)
def order(seed, epoch, count):
    """The order of `count` pictures in an epoch of training."""
    return np.random.default_rng((seed, epoch, 2)).permutation(count)


def share_of_each(labels, share, seed):
    """Indices, ascending, of a share of the pictures of each class, at least one; the seed says which."""
    shuffled = np.random.default_rng((seed, 3)).permutation(len(labels))
    classes = labels[shuffled]
    each = [shuffled[classes == k] for k in np.unique(labels)]
    return np.sort(np.concatenate([mine[:max(1, round(len(mine) * share))] for mine in each]))


def signals_are_for_the_loop(_):
    """In a reading process: leave Ctrl-C, and a SIGTERM to the process group, to the training loop, which still needs
    the current batch. (SIGTERM cannot be ignored: Python ends its readers with it.) A forked reader calls this first of
    all, before PyTorch lets SIGTERM end it. A reader that is not forked calls it as worker_init_fn."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(os, 'setpgrp'):
        os.setpgrp()


# ---- pictures to look at --------------------------------------------------------------------------------------------

def labelled_pictures_of(path, count, seed, channels=3):
    """(name, uint8 (H, W, C), class or None) of a picture file, of the picture files in a folder, or of
    `count` pictures, chosen by the seed, of a prepared dataset or of a folder of folders, which are
    classes. Files are read in grey if the network reads one channel, else in colour."""
    path, rng = Path(path), np.random.default_rng(seed)
    if (path / 'meta.json').exists():
        splits = read_meta(path)['splits']
        images = ImageSplit(path, next(split for split in ('test', 'val', 'train') if split in splits))
        if images.channels != channels:
            raise Mistake(f'{path} has {images.channels} channels, the network reads {channels}; give another --image')
        for i in rng.permutation(len(images))[:count]:
            yield *next(named(images, [i])), images.classes[images.labels[i]]
        return
    from PIL import ImageOps
    files = sorted(p for p in path.iterdir() if is_picture(p.name)) if path.is_dir() else [path]
    inside = sorted(p for p in path.glob('*/*') if is_picture(p.name) and not files)
    files += [inside[i] for i in rng.permutation(len(inside))[:count]]
    if not files:
        raise Mistake(f'no pictures in {path}; give --image=PATH of a picture, a folder, or a prepared dataset')
    for file in files:
        with reading(f'{file} cannot be read as a picture', 'give another --image'):
            image = ImageOps.exif_transpose(open_picture(file))
            picture = np.atleast_3d(to_8_bits(image, channels))
        yield (f'{file.parent.name}/{file.name}', picture, file.parent.name) if inside else (file.name, picture, None)


def named(images, chosen):
    """(name, uint8 (H, W, C)) of pictures of an ImageSplit, by index."""
    for i in chosen:
        pictures, _, labels, _ = images[np.array([i]), np.zeros((1, 0)), None, None]
        yield f'{images.split} {i}, {images.classes[labels[0]]}', pictures[0]


def seen(picture, model, run):
    """A picture, uint8 (H, W, C), as evaluation sees it, (1, C, H, W), on the device of the
    model."""
    size, view = model.config.image_size, augment.config_of(run).view
    picture = augment.cut(picture, size, (0.5, 0.5))  # of a panorama the middle; a whole one could fill the memory
    x = torch.tensor(picture)[None].to(next(model.parameters()).device)
    return augment.eval_pictures(x, torch.tensor([picture.shape[:2]]), size, view)


# ---- the tasks ------------------------------------------------------------------------------------------------------

class Classification(Task):
    unit, metrics = 'pictures', staticmethod(accuracies)

    def __init__(self, c, augmentation, folder, config, device):
        held_out = 'val' if 'val' in read_meta(folder)['splits'] else 'test'
        self.note = 'no val split, so it validates on test: judge by the last step, not the best' * (held_out == 'test')
        super().__init__(c, device, ImageSplit(folder, 'train', c.workers, c.train_share, c.seed),
                         ImageSplit(folder, held_out, c.workers))
        self.augmentation, self.image_size = augmentation, config.image_size
        self.valid_wants = {'image_size': self.image_size}
        self.train_wants = self.valid_wants | {'draws': augment.draws_needed(augmentation),
                                               'columns': augment.place_columns(augmentation)}

    def pixels(self, batch, training):
        """Pictures as the network takes them, float32 (B, C, H, W)."""
        pictures, sizes, _, draws = batch
        if training:
            return augment.train_pictures(*self.device.send(pictures), sizes, draws, self.image_size, self.augmentation)
        return augment.eval_pictures(*self.device.send(pictures), sizes, self.image_size, self.augmentation.view)

    def take(self, batch, training=False):
        return self.pixels(batch, training), *self.device.send(batch[2])

    def error(self, metrics):
        return 1 - metrics['top1']


class Reconstruction(Classification):
    """The last random numbers of a picture decide which of its patches are hidden."""

    def __init__(self, c, augmentation, folder, config, device):
        super().__init__(c, augmentation, folder, config, device)
        self.patches = math.prod(grid(config))
        self.train_wants['draws'] += self.patches
        self.valid_wants['draws'] = self.patches

    def take(self, batch, training=False):
        return self.pixels(batch, training), *self.device.send(batch[3][:, -self.patches:].float())

    metrics, error = Task.metrics, Task.error  # there are no classes to get right
