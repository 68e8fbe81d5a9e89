"""Picture files: which files are pictures, and any Pillow image as RGB or grey."""
import functools
import io
import os
import sys
from pathlib import Path, PurePosixPath

import numpy as np

from engine.mistakes import reading
from engine.names import printable

EXTENSIONS = ('.jpg', '.jpeg', '.jpe', '.jfif', '.png', '.webp', '.bmp', '.gif', '.tif', '.tiff',
              '.ppm', '.pgm', '.pbm', '.pnm', '.avif')
# Others can make Pillow start programs. AVIF comes last, because an old Pillow does not know it and
# stops there with a KeyError, after it has tried all others.
FORMATS = ('JPEG', 'PNG', 'WEBP', 'BMP', 'GIF', 'TIFF', 'PPM', 'AVIF')


def is_picture(name):
    """Whether a file of this name is a picture. Hidden files are none."""
    hidden = PurePosixPath(name).name.startswith('.')
    return name.lower().endswith(EXTENSIONS) and not hidden


def files_below(folder):
    """The paths of all files in a folder and in the folders below it, sorted. Hidden files and
    folders are passed over. Links are followed, but not to a folder above, and a folder to which
    several paths lead is read once: no link leads round in a circle. A folder that cannot be read
    comes as a file does."""
    files = []
    unreadable = []
    seen = set(map(str, Path(folder).resolve().parents))
    for place, subfolders, names in os.walk(folder, onerror=unreadable.append, followlinks=True):
        # os.walk goes on in those that stay in its list, in its order
        subfolders[:] = sorted(name for name in subfolders if not name.startswith('.'))
        target = os.path.realpath(place)
        if target in seen:
            subfolders.clear()
            continue
        seen.add(target)
        place = os.path.normpath(place)  # './cat' is 'cat', as pathlib writes it
        files += [os.path.join(place, name) for name in names if not name.startswith('.')]
    files += [error.filename for error in unreadable]
    return sorted(files)


def say_left_out(paths, taken, why):
    """Print how many of the paths are not taken, the first of them, and why."""
    left_out = sorted(set(map(os.path.normpath, paths)) - set(map(os.path.normpath, taken)))
    if left_out:
        more = ', ..' if len(left_out) > 3 else ''
        line = f'left out {len(left_out):,} ({why}): {", ".join(left_out[:3])}{more}'
        print(printable(line), file=sys.stderr)


@functools.cache
def say_once(line):
    """Print a line on standard error, unless this process has already printed it."""
    print(line, file=sys.stderr)


def open_picture(source):
    """A picture file, its path or its bytes -> a Pillow image that is not yet decoded. Raises what
    Pillow raises if the file has none of FORMATS, or more pixels than Pillow takes for safe."""
    from PIL import Image
    if isinstance(source, bytes):
        source = io.BytesIO(source)
    return Image.open(source, formats=FORMATS)


def unpacked(content, offsets, i, name):
    """Decode the i-th of the picture files that lie one after the other in an array of bytes: uint8
    (H, W) or (H, W, C). Raises Mistake if the file is damaged. name: what the message calls it."""
    with reading(f'{name} is damaged', 'prepare the dataset again'):
        file = content[offsets[i]:offsets[i + 1]].tobytes()
        return np.asarray(open_picture(file))


def to_8_bits(image, channels=3):
    """Any Pillow image as RGB; with channels=1, as grey (luma). Grey of more than 8 bits is scaled,
    see upper_bits. Of colours of 16 bits Pillow keeps the upper 8. Transparent areas become white.
    Raises ValueError for pixels with a decimal point, and for numbers beyond 16 bits."""
    from PIL import Image
    if image.mode == 'F':
        raise ValueError('pixels with a decimal point, of unknown range; save it with 8 bits')
    if image.mode.startswith('I'):
        image = Image.fromarray(upper_bits(np.asarray(image)))
    if image.has_transparency_data:
        image = image.convert('RGBA')
        white = Image.new('RGBA', image.size, 'white')
        image = Image.alpha_composite(white, image)
    image = image.convert('RGB')
    grey = image.convert('L')
    if grey.getextrema()[1] < 16:
        say_once('a picture is black, or nearly so; if its file has 16 bits for a colour, save it '
                 'with 8')
    if channels == 1:
        image = grey
    return image


def upper_bits(pixels):
    """Grey integers (H, W) as uint8. Files of 16 or 32 bits may hold numbers of 8 or of 12 bits, as
    cameras, microscopes and CT write them. So white is 255, 4,095 or 65,535, the first that no
    number exceeds. If it is not 65,535, a line on standard error says so. Raises ValueError for
    numbers below 0 or beyond 16 bits."""
    low = pixels.min()
    high = pixels.max()
    if low < 0 or high >= 2 ** 16:
        raise ValueError(f'pixels from {low:,} to {high:,}, of unknown range; save it with 8 bits')
    bits = next(n for n in (8, 12, 16) if high < 2 ** n)
    if bits < 16:
        say_once('a picture of more than 8 bits has no number above '
                 f'{2 ** bits - 1:,}, so that is its white')
    return (pixels >> (bits - 8)).astype(np.uint8)
