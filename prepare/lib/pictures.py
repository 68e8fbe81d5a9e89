"""Pictures to datasets. The files that are written are described in tasks/files.py.

Small pictures of one size become arrays (save_arrays), with any number of channels. Larger ones
become a pack (save_pack): all JPEG files of a split in one array, so that a million pictures are
four files.

In a pack every picture is RGB, or grey with --channels 1. It is turned upright if its EXIF data say
so, and its short side is scaled to --size pixels; smaller pictures keep their size. Transparent
parts become white. Of an animation the first frame is taken. A JPEG file that needs none of this is
kept byte for byte. Pictures that cannot be decoded are named, left out and counted; if their share
is larger than --max_bad, nothing is written.
"""
import contextlib
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
from pathlib import Path

import numpy as np
from tqdm import tqdm

from engine.settings import Mistake
from lib.files import Growing, new_folder, write_meta
from lib.inputs import choice, number, tar_named
from tasks.decode import open_picture, to_8_bits
from tasks.files import cores
from tasks.masks import UNKNOWN

warnings.filterwarnings('ignore', module='PIL')  # about unusual metadata
UPRIGHT = {2: 0, 3: 3, 4: 1, 5: 5, 6: 4, 7: 6, 8: 2}  # EXIF orientation -> PIL.Image.Transpose

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
        for split, (images, labels, *true) in splits.items():
            assert images.dtype == np.uint8 and 0 <= min(labels) and max(labels) < len(classes)
            images = images.reshape(*images.shape[:3], -1)
            for name, a in zip(('images', 'labels', 'masks', 'objects'), (images, np.int64(labels), *true)):
                np.save(new / f'{split}.{name}.npy', a)
            meta['channels'] = images.shape[3]
            meta['splits'][split] = dict(zip(('count', 'height', 'width'), images.shape))
            if len(true) == 2:
                meta['splits'][split]['objects'] = true[1].shape[1]
        write_meta(new, meta)
    for split, s in meta['splits'].items():
        print(f'{out}/{split}.images.npy: {s["count"]:,} pictures of {s["height"]}x{s["width"]}x{meta["channels"]}, '
              f'{len(classes)} classes{", with masks" * (len(splits[split]) > 2)}')


# ---- one picture --------------------------------------------------------------------------------


def shrink(source, size, channels=3):
    """A picture -> the bytes of a JPEG file. source: a path, or the bytes of a file. Raises exceptions of many types if
    the picture cannot be decoded completely."""
    from PIL import Image
    content = source if isinstance(source, bytes) else Path(source).read_bytes()
    image = open_picture(content)
    width, height = image.size
    short = min(width, height)
    if image.format == 'JPEG':  # decode at a half, quarter, .. of the size while at least 2 size pixels remain
        image.draft(None, (2 * size, 2 * size))
    image.load()
    turn = None
    with contextlib.suppress(Exception):  # damaged EXIF data; the picture itself is fine
        turn = UPRIGHT.get(image.getexif().get(0x112))
    if image.format == 'JPEG' and image.mode == {1: 'L', 3: 'RGB'}[channels] and turn is None and short <= size:
        return content
    image = to_8_bits(image, channels)
    if short > size:
        image = image.resize((round(width * size / short), round(height * size / short)), Image.BICUBIC, reducing_gap=3)
    if turn is not None:
        image = image.transpose(turn)
    jpeg = io.BytesIO()
    image.save(jpeg, 'JPEG', quality=92)
    return jpeg.getvalue()


def try_shrink(job):
    """The arguments of shrink -> its result, or the reason, a str, for an undecodable picture."""
    try:
        return shrink(*job)
    except Exception as e:
        return f'{type(e).__name__}: {e}'


# ---- work in several processes ------------------------------------------------------------------


def begin():
    """In a worker: Ctrl-C is for the main process alone, whose end, however it comes, is the end of this one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=lambda: (multiprocessing.parent_process().join(), os._exit(1)), daemon=True).start()


def in_order(function, jobs, workers):
    """Yield (job, function(job[-1])) for each job, in order. The function runs in `workers` processes, or in this one
    if there are fewer than two. Only a few jobs are read ahead, because each may hold a picture."""
    if workers < 2:
        yield from ((job, function(job[-1])) for job in jobs)
        return
    with ProcessPoolExecutor(workers, multiprocessing.get_context('spawn'), begin) as pool:
        submitted = ((job, pool.submit(function, job[-1])) for job in jobs)
        waiting = deque(itertools.islice(submitted, 4 * workers))
        while waiting:
            job, result = waiting.popleft()
            yield job, result.result()
            waiting.extend(itertools.islice(submitted, 1))


# ---- packs --------------------------------------------------------------------------------------

# options of a script that writes one
PACK = (number('--size', 'pixels of the short side', 256, 1, 2 ** 15),
        choice('--channels', '3 keeps colours, 1 makes them grey', 3, 1),
        number('--max_bad', 'share that may be undecodable', 0.01, 0, 1),
        number('--workers', 'processes', cores(), 0, 999))


class Pack:
    """One split of a pack while it is written: add pictures, then complete it."""

    def __init__(self, place):
        self.place, self.jpeg, self.png = place, Growing(f'{place}.jpeg.npy', np.uint8), None
        self.names, self.labels, self.objects = [], [], []

    def add(self, name, label, jpeg, mask=None):
        """mask: (numbers, uint8 (H, W), of the upright picture; the classes of its objects); all pictures of a split
        have one, or none has."""
        self.names.append(os.fsencode(name))
        self.labels.append(label)
        self.jpeg.append(np.frombuffer(jpeg, np.uint8))
        if mask:
            from PIL import Image
            self.png = self.png or Growing(f'{self.place}.masks.npy', np.uint8)
            png, drawn = io.BytesIO(), Image.fromarray(mask[0])
            width, height = open_picture(jpeg).size
            if (width - height) * (drawn.width - drawn.height) < 0:
                raise Mistake(f'{name} is upright, as its EXIF data say, but its mask is not; turn one of them')
            drawn.resize((width, height), Image.NEAREST).save(png, 'PNG')
            self.png.append(np.frombuffer(png.getbuffer(), np.uint8))
            self.objects.append(mask[1])

    def complete(self, numbers):
        """Complete the files; returns the split's entry in meta.json. numbers: the final label for each label."""
        arrays = {'labels': numbers[np.array(self.labels)], 'offsets': self.jpeg.close(),
                  'names': np.array(self.names, 'S')}
        entry = {'count': len(self.names), 'bytes': self.jpeg.ends[-1]}
        if self.png:
            objects = np.array([*itertools.zip_longest(*self.objects, fillvalue=-1)], np.int64).T.copy()  # (N, M)
            arrays |= {'objects': objects, 'mask_offsets': self.png.close()}
            entry |= {'objects': arrays['objects'].shape[1], 'mask_bytes': self.png.ends[-1]}
        for name, a in arrays.items():
            np.save(f'{self.place}.{name}.npy', a)
        return entry


def save_pack(out, splits, classes=None, mixed=None, total=None, size=256, channels=3, max_bad=0.01, workers=cores()):
    """Write a dataset of large pictures and print its counts.

    splits: {'train': iterable of (name, label, source), ..}: the picture's path relative to its split, its label, and a
    path or bytes; perhaps then its mask, as Pack.add takes it. Or the names of the splits alone, and
    mixed: iterable of (split, name, label, source, ..), as they come from an archive that can be read only once.
    classes: their names, of which labels are the numbers; or None if the labels are the names themselves, which are
    then numbered in sorted order.
    total: the number of pictures, for the progress bar. size, channels, max_bad, workers: as in PACK.
    Raises Mistake, and writes nothing, for a split without pictures, or too many undecodable pictures.
    """
    stream = mixed or ((split, *picture) for split in splits for picture in splits[split])
    jobs = ((split, name, label, mask, (source, size, channels)) for split, name, label, source, *mask in stream)
    shrunk = in_order(try_shrink, jobs, workers)
    bad, seen = 0, {}  # seen: class name -> number in order of appearance
    with new_folder(out) as new, contextlib.closing(shrunk):
        packs = {split: Pack(f'{new}/{split}') for split in splits}
        bar = tqdm(shrunk, total=total, unit=' pictures', disable=None)  # only on a terminal
        for (split, name, label, mask, _), jpeg in bar:
            if isinstance(jpeg, bytes):
                packs[split].add(name, label if classes else seen.setdefault(label, len(seen)), jpeg, *mask)
            else:
                bad += 1
                bar.write(f'left out {split}/{name}: {jpeg}', file=sys.stderr)
        count = bad + sum(len(pack.names) for pack in packs.values())
        if bad > max_bad * count:
            raise Mistake(f'{bad:,} of {count:,} pictures cannot be decoded; remove them, or raise --max_bad')
        numbers = np.arange(len(classes)) if classes else np.argsort(np.argsort(list(seen)))
        classes = list(classes or sorted(seen))
        if empty := [split for split, pack in packs.items() if not pack.names]:
            raise Mistake(f'split {empty[0]} has no picture; give more of them')
        entries = {split: pack.complete(numbers) for split, pack in packs.items()}
        write_meta(new, {'kind': 'images', 'storage': 'pack', 'classes': classes, 'channels': channels,
                         'splits': entries})
    for split, s in entries.items():
        print(f'{out}/{split}.jpeg.npy: {s["count"]:,}{" grey" * (channels == 1)} pictures'
              f'{" with masks" * ("objects" in s)}, {s["bytes"] / 1e6:,.1f} MB, {len(classes)} classes')
    if bad:
        print(f'{bad:,} of {count:,} pictures could not be decoded and were left out')


def pack(args, *pictures, **more):
    """save_pack with the options of the command line. pictures, more: its other arguments, beside out."""
    options = {name: getattr(args, name) for name in ('size', 'channels', 'max_bad', 'workers')}
    save_pack(args.out, *pictures, **more, **options)


def save_listed(args, splits, classes, path, pictures):
    """save_pack of those pictures in a tar archive that are listed. pictures: {name: (split, label)}."""
    mixed = ((pictures[name][0], name, pictures[name][1], content)
             for name, content in tar_named(path, lambda name: name in pictures))
    pack(args, splits, classes, mixed, len(pictures))


def labelled(name, source, numbers, classes):
    """A picture as save_pack takes it, [(name, label, source, (numbers, [class of 1, class of 2, ..]))]: without those
    objects that no pixel shows, and with the class of the one that shows the most as its label; [] if none is shown.
    numbers: uint8 (H, W); classes: {number: class}."""
    known = numbers[(numbers > 0) & (numbers < UNKNOWN)]
    held, pixels = np.unique(known, return_counts=True)
    new = np.searchsorted(held, numbers, 'right').astype(np.uint8)
    new[numbers == UNKNOWN] = UNKNOWN
    kinds = [classes[m] for m in held]
    return [(name, kinds[pixels.argmax()], source, (new, kinds))] if kinds else []
