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
import os
import sys
import warnings
from array import array
from pathlib import Path

import numpy as np

from engine.settings import Mistake
from tasks import masks
from tasks.decode import open_picture, to_grey, to_rgb
from tasks.files import cores

from prepare.lib.command_line import parser
from prepare.lib.files import new_folder, write_header, write_meta
from prepare.lib.workers import ctrl_c_noted, in_order

QUALITY = 92
UPRIGHT = {2: 0, 3: 3, 4: 1, 5: 5, 6: 4, 7: 6, 8: 2}  # EXIF orientation -> PIL.Image.Transpose


def check_label(label, n_classes, split, what):
    if not 0 <= label < n_classes:
        raise Mistake(f'split {split} has label {label} ({what}), but there are {n_classes} classes, from 0')


# ---- arrays -------------------------------------------------------------------------------------


def save_arrays(out, splits, classes):
    """Write a dataset of small pictures and print its counts.

    splits: {'train': (images, labels) or (images, labels, masks) or (images, labels, masks,
    objects), ..}, where images are uint8 (N, H, W, C) with C the same in all splits, or (N, H, W)
    for C = 1; labels integers (N,); masks bool (N, H, W), or with objects uint8, as in
    tasks/masks.py; objects integers (N, M), the class of each object, -1 where there is none.
    classes: their names. Raises Mistake for other shapes and types, an empty split, or a label
    that is not a class.
    """
    splits = {split: [np.asanyarray(a) for a in arrays] for split, arrays in splits.items()}
    files, meta = {}, {'kind': 'images', 'storage': 'arrays', 'classes': list(classes), 'splits': {}}
    for split, (images, labels, *true) in splits.items():
        if images.dtype != np.uint8 or images.ndim not in (3, 4) or not images.size:
            raise Mistake(f'split {split}: expected pictures as uint8 (N, H, W, C) or (N, H, W), '
                          f'not {images.dtype} {images.shape}')
        images = images.reshape(*images.shape[:3], -1)
        n, height, width, channels = images.shape
        if meta.setdefault('channels', channels) != channels:
            raise Mistake(f'split {split} has pictures of {channels} channels, another split of {meta["channels"]}; '
                          'all need the same number')
        if labels.dtype.kind not in 'iu' or labels.shape != (n,):
            raise Mistake(f'split {split}: expected {n} whole numbers as labels, not {labels.dtype} {labels.shape}')
        for i in (labels.argmin(), labels.argmax()):
            check_label(labels[i], len(classes), split, f'picture {i}')
        files |= {f'{split}.images': images, f'{split}.labels': labels.astype(np.int64)}
        mine = meta['splits'][split] = {'count': n, 'height': height, 'width': width}
        if true:
            kind = np.dtype(np.uint8 if true[1:] else bool)
            if true[0].dtype != kind or true[0].shape != (n, height, width):
                raise Mistake(f'split {split}: expected masks as {kind} {images.shape[:3]}, '
                              f'not {true[0].dtype} {true[0].shape}')
            files[f'{split}.masks'] = true[0]
        if true[1:]:
            if true[1].dtype.kind not in 'iu' or true[1].ndim != 2 or len(true[1]) != n:
                raise Mistake(f'split {split}: expected the classes of {n} x M objects, not {true[1].dtype} '
                              f'{true[1].shape}')
            files[f'{split}.objects'] = true[1].astype(np.int64)
            mine['objects'] = true[1].shape[1]
    with new_folder(out) as new:
        for name, a in files.items():
            np.save(new / f'{name}.npy', a)
        write_meta(new, meta)
    shape = '' if meta['channels'] == 3 else f'x{meta["channels"]}'
    for split, s in meta['splits'].items():
        masked = ' with masks' if f'{split}.masks' in files else ''
        print(f'{out}/{split}.images.npy: {s["count"]:,} pictures{masked} of {s["height"]}x{s["width"]}{shape}, '
              f'{len(classes)} classes')


# ---- one picture --------------------------------------------------------------------------------


def shrink(source, size, channels=3):
    """A picture -> (JPEG bytes, whether its short side is below size). source: a path, or the bytes
    of a file. Raises exceptions of many types if the picture cannot be decoded completely."""
    from PIL import Image
    content = source if isinstance(source, bytes) else Path(source).read_bytes()
    image = open_picture(content)
    width, height = image.size
    short = min(width, height)
    if image.format == 'JPEG':  # decode at a half, quarter, .. of the size while at least 2 size pixels remain
        image.draft(None, (2 * size, 2 * size))
    image.load()
    try:
        turn = UPRIGHT.get(image.getexif().get(0x112))
    except Exception:  # damaged EXIF data; the picture itself is fine
        turn = None
    if image.format == 'JPEG' and image.mode == {1: 'L', 3: 'RGB'}[channels] and turn is None and short <= size:
        return content, short < size
    image = to_rgb(image) if channels == 3 else to_grey(image)
    if short > size:
        image = image.resize((round(width * size / short), round(height * size / short)), Image.BICUBIC, reducing_gap=3)
    if turn is not None:
        image = image.transpose(turn)
    jpeg = io.BytesIO()
    image.save(jpeg, 'JPEG', quality=QUALITY)
    return jpeg.getvalue(), short < size


def try_shrink(job):
    """The arguments of shrink -> its result, or (None, the reason) for an undecodable picture."""
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')  # Pillow warns about unusual metadata
        try:
            return shrink(*job)
        except Exception as e:
            return None, ' '.join(str(e).split()) or type(e).__name__


# ---- packs --------------------------------------------------------------------------------------


class Files:
    """The bytes of files, one after the other in an array, FOLDER/SPLIT.NAME.npy."""

    def __init__(self, folder, split, name):
        self.file = open(folder / f'{split}.{name}.npy', 'wb')
        self.offsets = array('q', [0])
        self.start = self.header()

    def header(self):
        return write_header(self.file, np.uint8, self.offsets[-1])

    def add(self, content):
        self.file.write(content)
        self.offsets.append(self.offsets[-1] + len(content))

    def complete(self):
        """Write the final header; returns the offsets as an array."""
        assert self.header() == self.start
        self.file.close()
        return np.array(self.offsets, np.int64)


class Pack:
    """One split of a pack while it is written: add pictures, then complete it."""

    def __init__(self, folder, split):
        self.folder, self.split, self.jpeg, self.png = folder, split, Files(folder, split, 'jpeg'), None
        self.names, self.labels, self.objects = [], array('q'), []

    def close(self):
        for files in filter(None, (self.jpeg, self.png)):
            files.file.close()

    def add(self, name, label, jpeg, mask=None):
        """mask: (numbers, uint8 (H, W), of the upright picture; the classes of its objects)."""
        self.jpeg.add(jpeg)
        self.names.append(os.fsencode(name))
        self.labels.append(label)
        if mask:
            from PIL import Image
            numbers, classes = mask
            size = open_picture(jpeg).size
            self.png = self.png or Files(self.folder, self.split, 'masks')
            png = io.BytesIO()
            Image.fromarray(numbers).resize(size, Image.NEAREST).save(png, 'PNG')
            self.png.add(png.getvalue())
            self.objects.append(classes)
        if self.png and len(self.objects) < len(self.names):
            raise Mistake(f'split {self.split} has masks, but none for {name}; give a mask for each picture of a '
                          'split, or for none')

    def complete(self, numbers):
        """Complete the files; returns the split's entry in meta.json. numbers: the final label for
        each label given to add, or None if those are final."""
        place, labels = f'{self.folder}/{self.split}', np.array(self.labels, np.int64)
        np.save(f'{place}.labels.npy', labels if numbers is None else numbers[labels])
        np.save(f'{place}.offsets.npy', self.jpeg.complete())
        np.save(f'{place}.names.npy', np.array(self.names, 'S'))
        entry = {'count': len(self.names), 'bytes': self.jpeg.offsets[-1]}
        if self.png:
            objects = masks.table(self.objects)
            np.save(f'{place}.objects.npy', objects)
            np.save(f'{place}.mask_offsets.npy', self.png.complete())
            entry |= {'objects': objects.shape[1], 'mask_bytes': self.png.offsets[-1]}
        return entry


def save_pack(out, splits, classes, **options):
    """Write a dataset of large pictures and print its counts; returns its meta.

    splits: {'train': iterable of (name, label, source), ..}: the picture's path relative to its
    split, its label as a number, and a path or bytes; perhaps then its mask, as Pack.add takes it.
    options: those of save_stream.
    """
    stream = ((split, *picture) for split, pictures in splits.items() for picture in pictures)
    if all(hasattr(pictures, '__len__') for pictures in splits.values()):
        options.setdefault('total', sum(map(len, splits.values())))
    return save_stream(out, list(splits), stream, classes, **options)


def save_stream(out, names, stream, classes=None, size=256, channels=3, max_bad=0.01, workers=None, total=None):
    """save_pack for pictures whose splits are mixed, as in an archive that can be read only once.

    names: of the splits. stream: iterable of (split, name, label, source), perhaps with a mask at the
    end. classes: their names; or None if the labels are the names themselves, which are then numbered
    in sorted order at the end.
    total: the number of pictures, for the progress bar. Raises Mistake, and writes nothing, for
    a split without pictures, a label that is not a class, or too many undecodable pictures.
    """
    from tqdm import tqdm
    if size < 1 or channels not in (1, 3) or not 0 <= max_bad <= 1:
        raise Mistake(f'--size={size} must be at least 1, --channels={channels} 1 or 3, '
                      f'and --max_bad={max_bad} between 0 and 1')
    if workers is None:
        workers = cores()
    good = bad = small = 0
    seen = {}  # class name -> number in order of appearance
    jobs = ((split, name, label, mask, (source, size, channels)) for split, name, label, source, *mask in stream)
    with contextlib.ExitStack() as stack:
        new = stack.enter_context(new_folder(out))
        packs = {split: stack.enter_context(contextlib.closing(Pack(new, split))) for split in names}
        bar = stack.enter_context(tqdm(total=total, unit=' pictures', disable=None))  # only on a terminal
        results = stack.enter_context(contextlib.closing(in_order(try_shrink, jobs, workers)))
        ctrl_c = stack.enter_context(ctrl_c_noted())
        for (split, name, label, mask, (source, *_)), (jpeg, note) in results:
            if ctrl_c:
                raise KeyboardInterrupt
            bar.update()
            if classes is None:
                label = seen.setdefault(label, len(seen))
            else:
                check_label(label, len(classes), split, name)
            if jpeg is None:
                bad += 1
                where = f'{split}/{name}' if isinstance(source, bytes) else source
                bar.write(f'left out {where}: {note}', file=sys.stderr)
            else:
                good, small = good + 1, small + note
                packs[split].add(name, label, jpeg, *mask)
        if bad and bad / (good + bad) > max_bad:
            raise Mistake(f'{bad} of {good + bad} pictures cannot be decoded, more than --max_bad={max_bad}; '
                          'nothing was written. Repair or remove them, or raise --max_bad')
        for split, pack in packs.items():
            if not pack.names:
                raise Mistake(f'split {split} has no picture; nothing was written: '
                              'add some, or hold out more with --val')
        numbers = None
        if classes is None:
            classes = sorted(seen)
            numbers = np.argsort(np.argsort(list(seen)))  # the rank of each name
        meta = {'kind': 'images', 'storage': 'pack', 'classes': list(classes), 'channels': channels,
                'splits': {split: pack.complete(numbers) for split, pack in packs.items()}}
        write_meta(new, meta)
    grey = ' grey' * (channels == 1)
    for split, s in meta['splits'].items():
        masked = ' with masks' * ('objects' in s)
        print(f'{out}/{split}.jpeg.npy: {s["count"]:,}{grey} pictures{masked}, {s["bytes"] / 1e6:,.1f} MB, '
              f'{len(classes)} classes')
    if small:
        print(f'{small:,} pictures have a short side below {size} pixels and keep their size')
    if bad:
        print(f'{bad:,} of {good + bad:,} pictures could not be decoded and were left out')
    return meta


def pack_parser(doc, out):
    """The command line of a script that writes a pack; pack_options(args) go to save_pack."""
    p = parser(doc, out)
    p.add_argument('--size', type=int, default=256, help='pixels of the short side (default: %(default)s)')
    p.add_argument('--channels', type=int, default=3, choices=(1, 3),
                   help='3 keeps colours, 1 makes all pictures grey (default: %(default)s)')
    p.add_argument('--max_bad', type=float, default=0.01,
                   help='share of pictures that may be undecodable (default: %(default)s)')
    p.add_argument('--workers', type=int, help='processes (default: one per core)')
    return p


def pack_options(args):
    return {name: getattr(args, name) for name in ('size', 'channels', 'max_bad', 'workers')}
