"""Pictures to datasets. The files that are written are described in tasks/files.py.

Small pictures of one size become arrays (save_arrays), with any number of channels. Larger ones
become packs (save_pack), one for each split: all its JPEG files are in one array, so that a million
pictures are four files.

In a pack every picture is RGB, or grey with --channels 1. It is turned upright if its EXIF data say
so, and its short side is scaled to --size pixels; smaller pictures keep their size. Transparent
parts become white. Of an animation the first frame is taken. A JPEG file that needs none of this is
kept byte for byte. Pictures that cannot be decoded are named, left out and counted; if their share
is larger than --max_bad, nothing is written.
"""
import contextlib
import functools
import io
import itertools
import multiprocessing
import os
import signal
import sys
import threading
import warnings
from collections import deque
from concurrent.futures import ProcessPoolExecutor

import numpy as np
from tqdm import tqdm

from engine.mistakes import Mistake, regular
from engine.names import printable
from lib.files import Growing, new_folder, write_meta
from lib.inputs import choice, number, tar_named
from tasks.decode import open_picture, to_8_bits
from tasks.files import cores
from tasks.masks import UNKNOWN

warnings.filterwarnings('ignore', module='PIL')  # about unusual metadata
UPRIGHT = {2: 0, 3: 3, 4: 1, 5: 5, 6: 4, 7: 6, 8: 2}  # EXIF orientation -> PIL.Image.Transpose
MODES = {1: 'L', 3: 'RGB'}  # channels -> what Pillow calls them


# ---- arrays -------------------------------------------------------------------------------------

def save_arrays(out, splits, classes):
    """Write a dataset of small pictures and print its counts.

    splits: {'train': (images, labels) or (images, labels, masks) or (images, labels, masks,
    objects), ..}, where images are uint8 (N, H, W, C) with C the same in all splits, or (N, H, W)
    for C = 1; labels integers (N,); masks bool (N, H, W), or with objects uint8, as in
    tasks/masks.py; objects integers (N, M), the class of each object, -1 where there is none.
    classes: their names.
    """
    meta = {'kind': 'images', 'storage': 'arrays', 'classes': list(classes), 'splits': {}}
    with new_folder(out) as new:
        for split, arrays in splits.items():
            arrays = dict(zip(('images', 'labels', 'masks', 'objects'), arrays))
            images = arrays['images']
            images = images.reshape(*images.shape[:3], -1)      # (N, H, W, C)
            count, height, width, channels = images.shape
            entry = {'count': count, 'height': height, 'width': width}

            if 'objects' in arrays:
                entry['objects'] = arrays['objects'].shape[1]
            arrays |= {'images': images, 'labels': np.int64(arrays['labels'])}
            for name, array in arrays.items():
                np.save(new / f'{split}.{name}.npy', array)
            meta['splits'][split] = entry
            meta['channels'] = channels
            masks = ', with masks' if 'masks' in arrays else ''
            print(f'{out}/{split}.images.npy: {count:,} pictures of {height}x{width}x{channels}, '
                  f'{len(classes)} classes{masks}')
        write_meta(new, meta)


# ---- one picture --------------------------------------------------------------------------------

def shrink(source, size, channels=3):
    """A picture -> the bytes of a JPEG file, whose short side has at most `size` pixels. source: a
    path, or the bytes of a file. Raises exceptions of many types if the picture cannot be decoded
    completely."""
    from PIL import Image
    content = source if isinstance(source, bytes) else regular(source).read_bytes()
    image = open_picture(content)
    is_jpeg = image.format == 'JPEG'
    width, height = image.size  # of the file; `draft` changes image.size
    short = min(width, height)
    if is_jpeg:  # decode at a half, a quarter, .. of the file's size, but not below 2 * size
        image.draft(None, (2 * size, 2 * size))
    image.load()

    turn = None
    with contextlib.suppress(Exception):  # damaged EXIF data; the picture itself is fine
        turn = UPRIGHT.get(image.getexif().get(0x112))      # the tag Orientation
    has_mode = image.mode == MODES[channels]
    if is_jpeg and has_mode and turn is None and short <= size:
        return content

    image = to_8_bits(image, channels)
    if short > size:
        new_size = round(width * size / short), round(height * size / short)
        image = image.resize(new_size, Image.BICUBIC, reducing_gap=3)
    if turn is not None:
        image = image.transpose(turn)
    jpeg = io.BytesIO()
    image.save(jpeg, 'JPEG', quality=92)
    return jpeg.getvalue()


def try_shrink(source, size, channels):
    """What shrink returns, or the reason, a str, for an undecodable picture."""
    try:
        return shrink(source, size, channels)
    except Exception as e:
        return f'{type(e).__name__}: {e}'


# ---- work in several processes ------------------------------------------------------------------

def begin():
    """A worker calls this first. Ctrl-C is for the main process alone, and the end of that process,
    however it comes, is the end of the worker."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=end_with_main_process, daemon=True).start()


def end_with_main_process():
    multiprocessing.parent_process().join()
    os._exit(1)


def in_order(function, jobs, workers):
    """Yield (job, function(job[-1])) for each job, in order: the last item of a job is for the
    function, the items before it are for the caller. The function runs in `workers` processes, or
    in this one if there are fewer than two. Only a few jobs are read ahead, because each may hold a
    picture."""
    if workers < 2:
        for job in jobs:
            yield job, function(job[-1])
        return

    waiting = deque()  # (job, its future)
    with ProcessPoolExecutor(workers, multiprocessing.get_context('spawn'), begin) as pool:
        for job in jobs:
            waiting.append((job, pool.submit(function, job[-1])))
            if len(waiting) == 4 * workers:
                oldest, future = waiting.popleft()
                yield oldest, future.result()
        for job, future in waiting:
            yield job, future.result()


# ---- packs --------------------------------------------------------------------------------------

# the options of a script that writes packs
PACK = (
    number('--size', 'pixels of the short side', 256, 1, 2 ** 15),
    choice('--channels', '3 keeps colours, 1 makes them grey', 3, 1),
    number('--max_bad', 'share that may be undecodable', 0.01, 0, 1),
    number('--workers', 'processes', cores(), 0, 999),
)


class Pack:
    """The pictures of one split while they are written: add them, then complete the pack."""

    def __init__(self, place):
        """place: what the paths of its files begin with, such as data/mine/train."""
        self.place = place
        self.jpeg = Growing(f'{place}.jpeg.npy', np.uint8)
        self.png = None  # the file of the masks, once there is one
        self.names = []
        self.labels = []
        self.objects = []  # of each picture with a mask, the classes of its objects

    def add(self, name, label, jpeg, mask=None):
        """mask: a pair. Its first is the upright mask, uint8 (H, W), the number of the object at
        each pixel; its second is the list of the objects' classes. The caller gives one with all
        pictures of a split, or with none."""
        self.names.append(os.fsencode(name))
        self.labels.append(label)
        self.jpeg.append(np.frombuffer(jpeg, np.uint8))
        if mask:
            object_at_pixel, objects = mask
            self.add_mask(name, jpeg, object_at_pixel)
            self.objects.append(objects)

    def add_mask(self, name, jpeg, object_at_pixel):
        """Scale a mask to the size of its picture, and append it. Raises Mistake if one of the two
        is wide and the other one high."""
        from PIL import Image
        mask = Image.fromarray(object_at_pixel)
        width, height = open_picture(jpeg).size
        if (width - height) * (mask.width - mask.height) < 0:
            raise Mistake(f'{name} is upright, as its EXIF data say, but its mask is not; turn one '
                          'of them')
        png = io.BytesIO()
        mask.resize((width, height), Image.NEAREST).save(png, 'PNG')
        if self.png is None:
            self.png = Growing(f'{self.place}.masks.npy', np.uint8)
        self.png.append(np.frombuffer(png.getvalue(), np.uint8))

    def complete(self, numbers):
        """Complete the files. Returns the split's entry in meta.json. numbers: numbers[label] is
        what becomes of a label."""
        entry = {'count': len(self.names), 'bytes': self.jpeg.length}
        arrays = {
            'labels': np.array([numbers[label] for label in self.labels]),
            'offsets': self.jpeg.close(),
            'names': np.array(self.names, 'S'),
        }
        if self.png is not None:
            # rows of one length, with -1 behind the shorter ones
            columns = itertools.zip_longest(*self.objects, fillvalue=-1)
            arrays['objects'] = np.array(list(zip(*columns)), np.int64)     # (N, M)
            entry['objects'] = arrays['objects'].shape[1]
            entry['mask_bytes'] = self.png.length
            arrays['mask_offsets'] = self.png.close()
        for name, a in arrays.items():
            np.save(f'{self.place}.{name}.npy', a)
        return entry


def save_pack(args, splits, classes=None, mixed=None, total=None):
    """Write a dataset of large pictures and print its counts.

    args: the values of --out and of the options in PACK, as `arguments` returns them.
    splits: {'train': iterable of pictures, ..}. A picture is (name, label, source) or (name, label,
    mask, source): its path relative to its split, its label, a mask as Pack.add takes it, a path or
    bytes.
    classes: the names of the classes. A label is a number, the place of its class there. With None
    labels are names, which are numbered in sorted order.
    mixed: an iterable of (split, name, label, .., source), for pictures that come in any order from
    an archive that can be read only once. Then `splits` are the names of the splits alone.
    total: the number of pictures, for the progress bar.
    Raises Mistake, and writes nothing, for a split without pictures, or too many undecodable
    pictures.
    """
    jobs = mixed or one_after_the_other(splits)
    function = functools.partial(try_shrink, size=args.size, channels=args.channels)
    shrunk = in_order(function, jobs, args.workers)
    with new_folder(args.out) as new, contextlib.closing(shrunk):  # ends the workers on an error
        packs = {split: Pack(f'{new}/{split}') for split in splits}
        bar = tqdm(shrunk, total=total, unit=' pictures', disable=None)  # only on a terminal
        bad = add_pictures(packs, bar)

        count = bad + sum(len(pack.names) for pack in packs.values())
        if bad > args.max_bad * count:
            raise Mistake(f'{bad:,} of {count:,} pictures cannot be decoded; remove them, or raise '
                          '--max_bad')
        for split, pack in packs.items():
            if not pack.names:
                raise Mistake(f'split {split} has no picture; give more of them')

        if classes:
            numbers = range(len(classes))  # a label is a number already
        else:
            classes = sorted(set().union(*[pack.labels for pack in packs.values()]))
            numbers = {name: i for i, name in enumerate(classes)}
        entries = {split: pack.complete(numbers) for split, pack in packs.items()}
        write_meta(new, {'kind': 'images', 'storage': 'pack', 'classes': list(classes),
                         'channels': args.channels, 'splits': entries})

    for split, entry in entries.items():
        masks = ' with masks' if 'objects' in entry else ''
        print(f'{args.out}/{split}.jpeg.npy: {entry["count"]:,} pictures{masks}, '
              f'{entry["bytes"] / 1e6:,.1f} MB, {len(classes)} classes')
    if bad > 0:
        print(f'{bad:,} of {count:,} pictures could not be decoded and were left out')


def one_after_the_other(splits):
    """Yield (split, name, label, .., source) of the pictures of all splits."""
    for split, pictures in splits.items():
        for picture in pictures:
            yield split, *picture


def add_pictures(packs, bar):
    """Add pictures to packs, {split: Pack}. bar: a progress bar over pairs, a picture (split, name,
    label, .., source) and what try_shrink returns. Returns how many pictures could not be decoded,
    which are named on standard error."""
    bad = 0
    for (split, name, label, *mask, _), result in bar:
        if isinstance(result, str):
            bad += 1
            bar.write(printable(f'left out {split}/{name}: {result}'), file=sys.stderr)
        else:
            packs[split].add(name, label, result, *mask)
    return bad


def listed(path, pictures):
    """Yield (split, name, label, bytes) of those pictures in a tar archive that are listed, as
    save_pack takes `mixed`. pictures: {name without folders: (split, label)}."""
    for name, content in tar_named(path, lambda name: name in pictures):
        split, label = pictures[name]
        yield split, name, label, content


def labelled(name, source, object_at_pixel, classes):
    """A list of one picture (name, label, mask, source) as save_pack takes it; or [] if its mask
    shows no object. Its label is the class of the object that covers the most pixels. The objects
    that the mask shows are numbered 1, 2, 3, .. object_at_pixel: uint8 (H, W), the number of the
    object, 0 for none, UNKNOWN; classes: {number: class}."""
    is_object = (object_at_pixel > 0) & (object_at_pixel < UNKNOWN)
    present, pixels = np.unique(object_at_pixel[is_object], return_counts=True)
    if len(present) == 0:
        return []
    objects = [classes[m] for m in present]
    label = objects[pixels.argmax()]
    # how many of the numbers in `present`, which are sorted, are not above that of a pixel
    renumbered = np.searchsorted(present, object_at_pixel, 'right').astype(np.uint8)
    renumbered[object_at_pixel == UNKNOWN] = UNKNOWN
    return [(name, label, (renumbered, objects), source)]
