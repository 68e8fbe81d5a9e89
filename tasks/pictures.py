"""Pictures: one split of a prepared dataset, and the two things to learn from it, classes and
hidden patches.

No batch depends on a hidden random stream. It is a function of (seed, step), so a resumed run sees
what an uninterrupted one sees, on any number of processes.
"""
import copy
import functools
import itertools
import math
import os
import signal
from pathlib import Path

import numpy as np
import torch

from engine.networks import grid
from engine.settings import Mistake
from tasks import Task, augment, top1_top5
from tasks.decode import MOST_BYTES, content_of, is_picture, open_picture, to_grey, to_rgb
from tasks.files import check_whole, cores, open_array, read_meta, split_meta


class ImageSplit:
    """One split of an image dataset, or a share of it: labels, and pictures by index."""

    def __init__(self, folder, split, workers=0, share=1.0, seed=0):
        """workers: processes that read ahead; -1 means as many as the cores allow if JPEG must be
        decoded, else none. share: part of each class to keep, at least one picture; the seed says
        which."""
        meta = read_meta(folder)
        mine = split_meta(meta, folder, split, 'images')
        self.folder, self.split, self.mine, self.classes = Path(folder), split, mine, meta['classes']
        self.channels = meta['channels']
        self.packed = meta['storage'] == 'pack'
        self.size = None if self.packed else (mine['height'], mine['width'])  # of every picture, if all have the same
        self.workers = workers if workers >= 0 else readers() if self.packed else 0
        self.waiting = {}  # validation's workers between two validations
        self.labels = np.array(self.open('labels', np.int64))
        wrong = np.flatnonzero((self.labels < 0) | (self.labels >= len(self.classes)))
        if len(wrong):
            raise Mistake(f'{self.folder}/{split}.labels.npy: label {self.labels[wrong[0]]} of picture {wrong[0]} '
                          f'is not among the {len(self.classes)} classes of meta.json; prepare the dataset again')
        if self.packed:
            offsets = self.open('offsets', np.int64, 1)
            if offsets[0] != 0 or offsets[-1] != mine['bytes'] or (np.diff(offsets) <= 0).any():
                raise Mistake(f'{self.folder}/{split}.offsets.npy is damaged; prepare the dataset again')
        self.pixels  # raises now if the file is missing or cut off
        self.chosen = share_of_each(self.labels, share, seed) if share < 1 else np.arange(len(self.labels))

    def open(self, name, dtype, more=0):
        return open_array(self.folder / f'{self.split}.{name}.npy', np.dtype(dtype), self.mine['count'] + more)

    @functools.cached_property
    def pixels(self):
        if self.packed:
            return (open_array(self.folder / f'{self.split}.jpeg.npy', np.dtype('uint8'), self.mine['bytes']),
                    self.open('offsets', np.int64, 1))
        return open_array(self.folder / f'{self.split}.images.npy', np.dtype('uint8'), self.mine['count'], *self.size,
                          self.channels)

    def __getstate__(self):  # of a copy for reading processes, which opens the files itself
        return {k: v for k, v in self.__dict__.items() if k not in ('pixels', 'waiting')}

    def __len__(self):
        return len(self.chosen)

    def names(self):
        """Names of the picture files; None if the dataset was not prepared from files."""
        path = self.folder / f'{self.split}.names.npy'
        if not path.exists():
            return None
        try:
            names = np.load(path, mmap_mode='r')
            assert names.shape == (self.mine['count'],) and names.dtype.kind == 'S'
        except Exception as e:  # of many types, depending on the damage
            raise Mistake(f'{path} is cut off or no .npy file of names ({type(e).__name__}); '
                          'prepare the dataset again') from None
        check_whole(path, names)
        return names[self.chosen]

    def part(self, first, every):
        """The pictures first, first + every, first + 2 every, .. as a split of their own."""
        mine = copy.copy(self)
        mine.chosen, mine.waiting = self.chosen[first::every], {}
        return mine

    def __getitem__(self, request):
        return self.at(*request)

    def at(self, indices, draws, image_size=None, columns=None):
        """Indices (n,) and draws (n, any) -> pictures uint8 (n, H, W, C), sizes int64 (n, 2),
        labels int64 (n,), draws.

        Pictures of different sizes are padded with zeros at the right and the bottom; sizes holds
        (height, width) of each. With an image_size, that of the network, panoramas are cut (see
        augment.cut), at the place that these columns of the draws hold, or in the centre. Draws are
        passed through, so that a picture and its random numbers stay together.
        """
        indices = self.chosen[indices]
        if not self.packed:
            return self.pixels[indices], np.tile(self.size, (len(indices), 1)), self.labels[indices], draws
        jpeg, offsets = self.pixels
        pictures = [self.decode(i, jpeg[offsets[i]:offsets[i + 1]].tobytes()) for i in indices]
        if image_size:
            places = draws[:, columns] if columns else np.full((len(indices), 2), 0.5)
            pictures = [augment.cut(*each) for each in zip(pictures, itertools.repeat(image_size), places)]
        sizes = np.array([p.shape[:2] for p in pictures])
        padded = np.zeros((len(pictures), *sizes.max(0), self.channels), np.uint8)
        for into, p in zip(padded, pictures):
            into[:p.shape[0], :p.shape[1]] = p
        return padded, sizes, self.labels[indices], draws

    def decode(self, i, jpeg):
        """Bytes of the i-th JPEG picture -> uint8 (H, W, C)."""
        try:
            picture = np.asarray(open_picture(jpeg).convert('L' if self.channels == 1 else 'RGB'))
            return picture.reshape(*picture.shape[:2], self.channels)
        except ModuleNotFoundError:  # Pillow
            raise
        except Exception as e:  # of many types, depending on the damage
            raise Mistake(f'{self.folder}/{self.split}.jpeg.npy: picture {i} is damaged ({type(e).__name__}: {e}); '
                          'prepare the dataset again') from None

    def loader(self, requests, kept=False):
        """self[..] for each request, as tensors, read ahead by worker processes if there are any.
        kept: they wait when the requests have ended, for the loader to be gone through again."""
        # of a copy, so that a loader that the split keeps does not keep the split; with a generator of its own, because
        # DataLoader draws a seed for its workers in any case
        return torch.utils.data.DataLoader(copy.copy(self), sampler=requests, batch_size=None, num_workers=self.workers,
                                           worker_init_fn=signals_are_for_the_loop, generator=torch.Generator(),
                                           persistent_workers=kept and self.workers > 0)

    def batches(self, n, seed, share, first, last, draws=0, image_size=None, columns=None):
        """Training: for each step, first to last - 1, the parts `share` (slices) of its n pictures,
        each with `draws` random numbers in [0, 1). Every epoch has all pictures in another order.
        Order and numbers depend on (seed, step) alone. image_size, columns: see `at`."""
        def requests():
            for step in range(first, last):
                numbers = np.random.default_rng((seed, step, 1)).random((n, draws))
                for part in share:
                    indices = self.places(np.arange(step * n, (step + 1) * n)[part], seed)
                    yield indices, numbers[part], image_size, columns
        return read(self.loader(requests()))

    def places(self, positions, seed):
        """Indices of the pictures at ascending positions (n,) in the endless sequence of epochs."""
        epochs, places = np.divmod(positions, len(self))
        return np.concatenate([order(seed, e, len(self))[places[epochs == e]] for e in np.unique(epochs).tolist()])

    def fixed(self, n, batches, rank=0, world=1, draws=0, image_size=None):
        """Validation: `batches` batches of n pictures, evenly spaced over the split and always the
        same; of these every world-th, from the rank-th on. Each picture at most once, with `draws`
        random numbers that never change. The workers wait for the next time that the same batches
        are asked for. image_size: see `at`."""
        asked = n, batches, rank, world, draws, image_size
        loader = self.waiting.pop(asked) if asked in self.waiting else self.loader(Fixed(self, *asked), kept=True)
        yield from read(loader)
        self.waiting = {asked: loader}


class Fixed:
    """The requests of ImageSplit.fixed; they can be gone through again."""

    def __init__(self, images, n, batches, rank, world, draws, image_size):
        self.count = min(n * batches, len(images))
        self.places = np.linspace(0, len(images) - 1, self.count).round().astype(np.int64)
        self.pictures = images.chosen[self.places]  # indices in the whole split
        self.n, self.rank, self.world, self.draws, self.image_size = n, rank, world, draws, image_size

    def __iter__(self):
        for i in range(self.rank * self.n, self.count, self.world * self.n):
            part = slice(i, i + self.n)
            numbers = [np.random.default_rng((j, 4)).random(self.draws) for j in self.pictures[part].tolist()]
            yield self.places[part], np.array(numbers).reshape(len(numbers), self.draws), self.image_size, None


def read(loader):
    """The batches of a DataLoader; a mistake that one of its workers found is one line, as
    everywhere."""
    try:
        yield from loader
    except Mistake as e:  # a worker sends its traceback as the text
        raise Mistake(str(e).strip().splitlines()[-1].removeprefix('engine.settings.Mistake: ')) from None


@functools.lru_cache(maxsize=2)
def order(seed, epoch, count):
    """The order of `count` pictures in an epoch of training."""
    return np.random.default_rng((seed, epoch, 2)).permutation(count)


def readers():
    """Worker processes by default: one per core, at most 16. The processes that torchrun starts on
    a machine share its cores."""
    return max(1, min(16, cores() // int(os.environ.get('LOCAL_WORLD_SIZE', 1))))


def share_of_each(labels, share, seed):
    """Indices, ascending, of a share of the pictures of each class, at least one; the seed says
    which. One sort, however many classes there are."""
    shuffled = np.random.default_rng((seed, 3)).permutation(len(labels))
    shuffled = shuffled[labels[shuffled].argsort(kind='stable')]         # class after class, each still in random order
    counts = np.bincount(labels)
    place = np.arange(len(labels)) - (counts.cumsum() - counts).repeat(counts)           # of each within its class
    return np.sort(shuffled[place < np.maximum(1, (counts * share).round()).repeat(counts)])


def signals_are_for_the_loop(worker):
    """In a reading process: leave Ctrl-C, and a SIGTERM to the process group, to the training loop,
    which still needs the current batch. (SIGTERM cannot be ignored: Python ends its readers with
    it.)"""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(os, 'setpgrp'):
        os.setpgrp()


# ---- pictures to look at --------------------------------------------------------------------------------------------

def pictures_of(path, count, seed, channels=3):
    """(name, uint8 (H, W, channels)) of the pictures of labelled_pictures_of."""
    return ((name, picture) for name, picture, _ in labelled_pictures_of(path, count, seed, channels))


def labelled_pictures_of(path, count, seed, channels=3):
    """(name, uint8 (H, W, channels), class or None) of a picture file, of the picture files in a
    folder, or of `count` pictures, chosen by the seed, of a prepared dataset or of a folder of
    folders, which are classes."""
    path = Path(path)
    if (path / 'meta.json').exists():
        splits = read_meta(path)['splits']
        images = ImageSplit(path, next(split for split in ('test', 'val', 'train') if split in splits))
        if images.channels != channels:
            raise Mistake(f'{path} has pictures of {images.channels} channels, the network reads {channels}; give '
                          'another --image')
        for i in np.random.default_rng(seed).permutation(len(images))[:count]:
            yield *next(named(images, [i])), images.classes[images.labels[i]]
        return
    from PIL import ImageOps
    if channels not in (1, 3):
        raise Mistake(f'picture files are grey or RGB, the network reads {channels} channels; give a prepared '
                      'dataset, such as --image=data/mine')
    files = sorted(p for p in path.iterdir() if is_picture(p.name)) if path.is_dir() else [path]
    inside = sorted(p for p in path.glob('*/*') if is_picture(p.name) and not files)
    files += [inside[i] for i in np.random.default_rng(seed).permutation(len(inside))[:count]]
    if not files:
        raise Mistake(f'no pictures in {path}; give --image=PATH of a picture, a folder, or a prepared dataset')
    for file in files:
        try:
            image = ImageOps.exif_transpose(open_picture(content_of(file, MOST_BYTES)))
            picture = np.array(to_rgb(image) if channels == 3 else to_grey(image))
        except Exception as e:  # of many types, depending on where the damage is
            raise Mistake(f'{file} cannot be read as a picture ({str(e) or type(e).__name__}); give another '
                          '--image, or save this one as JPEG or PNG') from None
        name, own = (f'{file.parent.name}/{file.name}', file.parent.name) if inside else (file.name, None)
        yield name, picture.reshape(*picture.shape[:2], channels), own


def named(images, chosen):
    """(name, uint8 (H, W, C)) of pictures of an ImageSplit, by index."""
    for i in chosen:
        pictures, _, labels, _ = images.at(np.array([i]), np.zeros((1, 0)))
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
    unit = 'pictures'

    def __init__(self, c, augmentation, folder, config, device):
        held_out = 'val' if 'val' in read_meta(folder)['splits'] else 'test'
        if held_out == 'test':
            self.note = f'{folder} has no val split, so this validates on test: judge by last.pt, not by best.pt'
        train = ImageSplit(folder, 'train', c.workers, c.train_share, c.seed)
        super().__init__(c, device, train, ImageSplit(folder, held_out, c.workers))
        self.augmentation, self.image_size = augmentation, config.image_size
        self.train_wants = {'draws': augment.draws_needed(augmentation), 'image_size': self.image_size,
                            'columns': augment.place_columns(augmentation)}
        self.valid_wants = {'image_size': self.image_size}

    def pixels(self, batch, training):
        """Pictures as the network takes them, float32 (B, C, H, W)."""
        pictures, sizes, _, draws = batch
        pictures, = self.device.send(pictures)
        if training:
            return augment.train_pictures(pictures, sizes, draws, self.image_size, self.augmentation)
        return augment.eval_pictures(pictures, sizes, self.image_size, self.augmentation.view)

    def take(self, batch, training=False):
        return self.pixels(batch, training), *self.device.send(batch[2])

    def metrics(self, out, loss, y):
        count, shares = top1_top5(out, y)
        return count, {'loss': loss} | shares

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
