"""True masks from files that users have: which object each pixel belongs to. tasks/masks.py says how
datasets hold them."""
from collections import Counter
from pathlib import Path

import numpy as np

from engine.settings import Mistake
from prepare.lib.archives import reading
from tasks.decode import open_picture
from tasks.masks import MOST_OBJECTS, UNKNOWN, read_png

VALUES = '0 for background, 1, 2, 3, .. for objects and 255 for unknown, or 0 and 255 alone for one object'


def upright_size(source):
    """(height, width) of a picture file, by its path or its bytes, when it is turned as its EXIF data
    say; None if it is no picture, of which save_pack tells."""
    try:
        image = open_picture(source)
        turned = image.getexif().get(0x112, 1) >= 5
    except Exception:  # of many types, depending on the damage
        return None
    return image.size if turned else image.size[::-1]


def same_size(shape, name, size):
    """Raises Mistake unless the shape of a mask is the (height, width) of its upright picture, if that is known."""
    if size and tuple(shape) != tuple(size):
        raise Mistake(f'mask {name} is {shape}, its upright picture {tuple(size)} in height and width; make '
                      'them equal')


def read_mask(path, size):
    """The numbers of a PNG file with a mask, uint8 or bool (H, W). size: that of its upright picture, or None. Raises
    Mistake for another size or type."""
    with reading(f'mask {path} cannot be read'):
        numbers = read_png(path.read_bytes(), path)
    if numbers.ndim != 2 or numbers.dtype not in (np.uint8, bool):
        raise Mistake(f'mask {path} holds {numbers.dtype} {numbers.shape}; save it in grey or with a palette: {VALUES}')
    same_size(numbers.shape, path, size)
    return numbers


def numbered(numbers, name):
    """A mask as people draw it, black and white or with objects from 1 -> uint8 (H, W). Raises Mistake for a gap."""
    held = np.unique(numbers)
    if numbers.dtype == bool or set(held) <= {0, UNKNOWN}:              # black and white
        return (numbers > 0).astype(np.uint8)
    objects = held[(held > 0) & (held < UNKNOWN)]
    if list(objects) != list(range(1, len(objects) + 1)):
        raise Mistake(f'mask {name} has pixels of the values {objects[:9]}, and none between; give {VALUES}')
    return numbers


def compact(numbers, classes):
    """Numbers, uint8 (H, W), and the class of each object, a list, without those objects that no
    pixel shows."""
    held = [m for m in np.unique(numbers) if 0 < m < UNKNOWN]
    new = np.zeros(UNKNOWN + 1, np.uint8)
    new[held], new[UNKNOWN] = np.arange(1, len(held) + 1), UNKNOWN
    return new[numbers], [classes[m - 1] for m in held]


def largest(numbers, classes):
    """The class of the object that shows the most pixels."""
    return classes[np.bincount(numbers.ravel(), minlength=UNKNOWN + 1)[1:len(classes) + 1].argmax()]


def of_folder(folder, root, splits):
    """{split: pictures [(name, label, path)]} with the masks of a folder: PNG files of the same names, below it as the
    pictures are below root. Their pictures are (name, label, path, (numbers, classes)), one at a time; a split without
    any mask stays as it is. Raises Mistake for a split with masks of some pictures, and if there is no mask at all."""
    found = {}
    for split, pictures in splits.items():
        paths = [Path(folder, Path(path).relative_to(root)).with_suffix('.png') for *_, path in pictures]
        missing = [path for path in paths if not path.exists()]
        wrong = missing or [path for path, count in Counter(paths).items() if count > 1]
        if wrong and len(missing) < len(paths):
            raise Mistake(f'{wrong[0]} is missing, or would be the mask of two pictures; {len(missing):,} of '
                          f'{len(paths):,} pictures have none: add masks, or rename or remove pictures')
        if not missing:
            found[split] = with_masks(pictures, paths)
    if not found:
        raise Mistake(f'{folder} has no mask of any picture; the first would be {missing[0]}')
    return splits | found


def with_masks(pictures, paths):
    for (name, label, source), path in zip(pictures, paths):
        numbers = numbered(read_mask(path, upright_size(source)), path)
        count = numbers[numbers < UNKNOWN].max(initial=0)
        yield name, label, source, (numbers, [label] * min(int(count), MOST_OBJECTS))
