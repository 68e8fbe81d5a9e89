"""Pictures to datasets: what cifar10.py, flowers102.py, pets.py, imagefolder.py and imagenet.py share.

Small pictures of one size become arrays (save_arrays). Larger ones become a pack (save_pack): the JPEG files of a split
one after the other in a single array, so that a million pictures are four files. The layout is in data.py's docstring.

In a pack every picture is RGB and upright (EXIF says which way), its short side has `size` pixels, 256 unless --size
says otherwise; smaller pictures keep their size. Transparent parts become white, of animations the first picture
counts. A JPEG file that is already so is kept byte for byte. Pictures that cannot be decoded are named, left out
and counted, and if they are more than --max_bad of all, nothing is written.
"""
import collections
import contextlib
import io
import json
import lzma
import multiprocessing
import os
import signal
import sys
import tarfile
import threading
import warnings
import zlib
from array import array
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path, PurePosixPath

import numpy as np

from tasks.files import cores, new_folder, write_header
from prepare.text import parser

EXTENSIONS = ('.jpg', '.jpeg', '.png', '.webp', '.bmp', '.gif', '.tif', '.tiff')
FORMATS = ('JPEG', 'PNG', 'WEBP', 'BMP', 'GIF', 'TIFF')  # by content; of others, some make Pillow start programs
QUALITY = 92
# EXIF orientation -> what turns the picture upright, as numbers of PIL.Image.Transpose
UPRIGHT = {2: 0, 3: 3, 4: 1, 5: 5, 6: 4, 7: 6, 8: 2}

# ---- arrays -------------------------------------------------------------------------------------------------------


def check_label(label, n_classes, split, what):
    if not 0 <= label < n_classes:
        raise ValueError(f'split {split} has label {label} ({what}), but there are {n_classes} classes, from 0')


def save_arrays(out, splits, classes):
    """Write a dataset of small pictures and print its counts.

    splits: {'train': (images, labels) or (images, labels, masks)}: uint8 (N, H, W, 3), integers (N,), bool (N, H, W).
    classes: their names. Raises ValueError for other shapes and types, no picture, or a label that is no class.
    """
    meta = {'kind': 'images', 'storage': 'arrays', 'classes': list(classes), 'splits': {}}
    arrays = {}
    for split, (images, labels, *masks) in splits.items():
        images, labels = np.asanyarray(images), np.asanyarray(labels)
        if images.dtype != np.uint8 or images.ndim != 4 or images.shape[3] != 3 or not images.size:
            raise ValueError(f'split {split}: expected pictures as uint8 (N, H, W, 3), not {images.dtype} {images.shape}')
        n, height, width, _ = images.shape
        if labels.dtype.kind not in 'iu' or labels.shape != (n,):
            raise ValueError(f'split {split}: expected {n} whole numbers as labels, not {labels.dtype} {labels.shape}')
        for i in (labels.argmin(), labels.argmax()):
            check_label(labels[i], len(classes), split, f'picture {i}')
        arrays |= {f'{split}.images': images, f'{split}.labels': labels.astype(np.int64)}
        for mask in map(np.asanyarray, masks):
            if mask.dtype != bool or mask.shape != (n, height, width):
                raise ValueError(f'split {split}: expected masks as bool {images.shape[:3]}, not {mask.dtype} {mask.shape}')
            arrays[f'{split}.masks'] = mask
        meta['splits'][split] = {'count': n, 'height': height, 'width': width}
    with new_folder(out) as new:
        for name, a in arrays.items():
            np.save(new / f'{name}.npy', a)
        (new / 'meta.json').write_text(json.dumps(meta, indent=1))
    for split, s in meta['splits'].items():
        masks = ' with masks' if f'{split}.masks' in arrays else ''
        print(f'{out}/{split}.images.npy: {s["count"]:,} pictures{masks} of {s["height"]}x{s["width"]}, '
              f'{len(classes)} classes')


# ---- packs --------------------------------------------------------------------------------------------------------


def to_rgb(image):
    """Any picture of Pillow's as RGB: 16-bit grey by its upper byte, transparent parts white."""
    from PIL import Image
    if image.mode.startswith('I'):  # 16 bits, which Pillow's own convert would cut off at 255
        image = Image.fromarray((np.asarray(image).clip(0, 65535) >> 8).astype(np.uint8))
    if image.has_transparency_data:
        image = image.convert('RGBA')
        image = Image.alpha_composite(Image.new('RGBA', image.size, 'white'), image)
    return image.convert('RGB')


def shrink(source, size):
    """A picture, given as its file's path or as bytes -> (JPEG bytes, whether its short side is below size).
    Raises exceptions of many types where it cannot be decoded whole."""
    from PIL import Image
    content = source if isinstance(source, bytes) else Path(source).read_bytes()
    if not content:
        raise ValueError('the file is empty')
    try:
        image = Image.open(io.BytesIO(content), formats=FORMATS)
    except Image.UnidentifiedImageError:
        raise ValueError('not a picture') from None
    width, height = image.size
    short = min(width, height)
    if image.format == 'JPEG':  # decode at half the size or less where twice the pixels needed remain
        image.draft(None, (2 * size, 2 * size))
    image.load()
    try:
        turn = UPRIGHT.get(image.getexif().get(0x112))
    except Exception:  # damaged EXIF, of which the picture itself does not suffer
        turn = None
    if image.format == 'JPEG' and image.mode == 'RGB' and turn is None and short <= size:
        return content, short < size
    image = to_rgb(image)
    if short > size:
        image = image.resize((round(width * size / short), round(height * size / short)), Image.BICUBIC, reducing_gap=3)
    if turn is not None:
        image = image.transpose(turn)
    jpeg = io.BytesIO()
    image.save(jpeg, 'JPEG', quality=QUALITY)
    return jpeg.getvalue(), short < size


def try_shrink(job):
    """(source, size) -> (JPEG bytes, small), or (None, the reason) for a picture that cannot be decoded."""
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')  # Pillow's, about odd metadata
        try:
            return shrink(*job)
        except Exception as e:
            return None, ' '.join(str(e).split()) or type(e).__name__


def leave_with_parent():
    """In a worker process: end when the program that started it has ended in whatever way."""
    threading.Thread(target=lambda: (multiprocessing.parent_process().join(), os._exit(1)), daemon=True).start()


@contextlib.contextmanager
def ctrl_c_blocked():
    """Processes started in here inherit that Ctrl-C is blocked, so it reaches this one alone. (Windows cannot block it.)"""
    if not hasattr(signal, 'pthread_sigmask'):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def ctrl_c_noted():
    """A list that Ctrl-C makes longer. Raised wherever Python happens to be, it can be swallowed, by a destructor for one;
    a second Ctrl-C is raised all the same."""
    noted = []

    def note(number, frame):
        noted.append(number)
        signal.signal(signal.SIGINT, before)
    before = signal.signal(signal.SIGINT, note)
    try:
        yield noted
    finally:
        signal.signal(signal.SIGINT, before)


def in_order(function, jobs, workers):
    """(job, function(job[-1])) for every job, in order, computed in `workers` processes, or here if fewer than two.
    Few jobs are under way at a time, because a job may hold a picture and all of them the whole archive."""
    if workers < 2:
        for job in jobs:
            yield job, function(job[-1])
        return
    pool = ProcessPoolExecutor(workers, multiprocessing.get_context('spawn'), leave_with_parent)
    waiting = collections.deque()
    try:
        for job in jobs:
            with ctrl_c_blocked():
                waiting.append((job, pool.submit(function, job[-1])))
            if len(waiting) >= 4 * workers:
                job, future = waiting.popleft()
                yield job, future.result()
        for job, future in waiting:
            yield job, future.result()
    except BrokenProcessPool:
        raise ValueError('a worker process was killed, perhaps for want of memory; set fewer --workers') from None
    finally:
        pool.shutdown(cancel_futures=True)


class Pack:
    """One split of a pack while it is written: pictures are appended, and `close` completes its files."""

    def __init__(self, file, folder, split):
        self.file, self.path = file, str(folder / split)
        self.names, self.labels, self.offsets = [], array('q'), array('q', [0])
        self.start = self.header()

    def header(self):
        return write_header(self.file, np.uint8, self.offsets[-1])

    def add(self, name, label, jpeg):
        self.file.write(jpeg)
        self.names.append(os.fsencode(name))
        self.labels.append(label)
        self.offsets.append(self.offsets[-1] + len(jpeg))

    def close(self, numbers):
        """numbers: the final label of each label so far, or None if these are final."""
        assert self.header() == self.start
        labels = np.array(self.labels, np.int64)
        np.save(self.path + '.labels.npy', labels if numbers is None else numbers[labels])
        np.save(self.path + '.offsets.npy', np.array(self.offsets, np.int64))
        np.save(self.path + '.names.npy', np.array(self.names, 'S'))
        return {'count': len(self.names), 'bytes': self.offsets[-1]}


def save_pack(out, splits, classes, **options):
    """Write a dataset of large pictures and print its counts; returns its meta.

    splits: {'train': iterable of (name, label, source)}: the picture's path relative to its split, a number, and the
    path of a file or the bytes of one. For the rest see save_stream.
    """
    stream = ((split, *picture) for split, pictures in splits.items() for picture in pictures)
    if all(hasattr(pictures, '__len__') for pictures in splits.values()):
        options.setdefault('total', sum(map(len, splits.values())))
    return save_stream(out, list(splits), stream, classes, **options)


def save_stream(out, names, stream, classes=None, size=256, max_bad=0.01, workers=None, total=None):
    """save_pack for pictures whose splits alternate, as an archive that is read once has them.

    names: of the splits. stream: (split, name, label, source). classes: their names; None if labels are the names and
    all of them are known only at the end; numbers are then given in sorted order. total: how many, for the progress bar.
    Raises ValueError, and writes nothing, for a split without pictures, a label that is no class, or too many bad ones.
    """
    from tqdm import tqdm
    if size < 1 or not 0 <= max_bad <= 1:
        raise ValueError(f'--size={size} must be at least 1 and --max_bad={max_bad} between 0 and 1')
    if workers is None:
        workers = cores()
    good = bad = small = 0
    seen = {}  # class name -> number in order of appearance
    jobs = ((split, name, label, (source, size)) for split, name, label, source in stream)
    with contextlib.ExitStack() as stack:
        new = stack.enter_context(new_folder(out))
        packs = {split: Pack(stack.enter_context(open(new / f'{split}.jpeg.npy', 'wb')), new, split) for split in names}
        bar = stack.enter_context(tqdm(total=total, unit=' pictures', disable=None))  # on a terminal only
        results = stack.enter_context(contextlib.closing(in_order(try_shrink, jobs, workers)))
        ctrl_c = stack.enter_context(ctrl_c_noted())
        for (split, name, label, (source, _)), (jpeg, note) in results:
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
                packs[split].add(name, label, jpeg)
        if bad and bad / (good + bad) > max_bad:
            raise ValueError(f'{bad} of {good + bad} pictures cannot be decoded, more than the share --max_bad={max_bad}; '
                             'nothing was written. Mend or remove them, or raise --max_bad')
        for split, pack in packs.items():
            if not pack.names:
                raise ValueError(f'split {split} has no picture; nothing was written: add some, or hold back more with --val')
        numbers = None
        if classes is None:
            classes = sorted(seen)
            numbers = np.argsort(np.argsort(list(seen)))  # rank of each name
        meta = {'kind': 'images', 'storage': 'pack', 'classes': list(classes),
                'splits': {split: pack.close(numbers) for split, pack in packs.items()}}
        (new / 'meta.json').write_text(json.dumps(meta, indent=1))
    for split, s in meta['splits'].items():
        print(f'{out}/{split}.jpeg.npy: {s["count"]:,} pictures, {s["bytes"] / 1e6:,.1f} MB, {len(classes)} classes')
    if small:
        print(f'{small:,} pictures are smaller than {size} on their short side and keep their size')
    if bad:
        print(f'{bad:,} of {good + bad:,} pictures could not be decoded and were left out')
    return meta


# ---- for the scripts ----------------------------------------------------------------------------------------------


def pack_parser(doc, out):
    """The command line of a script that writes a pack; pack_options(args) are save_pack's options."""
    p = parser(doc, out)
    p.add_argument('--size', type=int, default=256, help='pixels of the short side (default: %(default)s)')
    p.add_argument('--max_bad', type=float, default=0.01,
                   help='share of pictures that may be undecodable (default: %(default)s)')
    p.add_argument('--workers', type=int, help='processes (default: one for every core)')
    return p


def pack_options(args):
    return {'size': args.size, 'max_bad': args.max_bad, 'workers': args.workers}


def is_picture(name):
    name = PurePosixPath(name).name
    return name.lower().endswith(EXTENSIONS) and not name.startswith('.')


def archive_error(path, e, expected):
    return ValueError(f'{path} is damaged, cut off or no tar archive ({e}); expected {expected}')


ARCHIVE_ERRORS = (tarfile.TarError, EOFError, OSError, zlib.error, lzma.LZMAError)


def tar_files(path, wanted, expected, fileobj=None):
    """(name, bytes) of those files in a tar archive, compressed or not, for which wanted(name), in its order and one at
    a time. Archives in the archive are opened too: the files of STEM.tar are named STEM/name. Nothing is written.
    Raises ValueError for a damaged archive, saying what was `expected`."""
    try:
        with tarfile.open(path, 'r|*' if fileobj is None else 'r|', fileobj, 1 << 20) as tar:
            while (member := tar.next()) is not None:
                tar.members.clear()  # else tarfile remembers every one of millions
                name = PurePosixPath(member.name)
                if member.isfile() and name.suffix == '.tar' and fileobj is None:
                    if member.size:
                        inner = tar_files(path, wanted, expected, tar.extractfile(member))
                        yield from ((f'{name.stem}/{n}', content) for n, content in inner)
                elif member.isfile() and wanted(member.name):
                    yield member.name, tar.extractfile(member).read()
    except ARCHIVE_ERRORS as e:
        raise archive_error(path, e, expected) from None


def listed_pictures(path, wanted, pictures, expected):
    """Those pictures of a tar archive that {name without its ending: (split, label)} lists, for save_stream, each once.
    `wanted` and `expected` as in tar_files. Raises ValueError where the archive lacks some."""
    seen = set()
    for name, content in tar_files(path, wanted, expected):
        name = name.rpartition('/')[2]
        stem = name.rpartition('.')[0]
        if stem in pictures and stem not in seen:
            seen.add(stem)
            split, label = pictures[stem]
            yield split, name, label, content
    missing = sorted(pictures.keys() - seen)
    if missing:
        raise ValueError(f'{path} lacks {len(missing)} pictures, such as {missing[0]}.jpg')
