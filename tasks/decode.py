"""Picture files: which files are pictures, and any Pillow image as RGB or grey."""
import io
import sys
from pathlib import PurePosixPath

import numpy as np

from engine.mistakes import reading

EXTENSIONS = ('.jpg', '.jpeg', '.jpe', '.jfif', '.png', '.webp', '.bmp', '.gif', '.tif', '.tiff',
              '.ppm', '.pgm', '.pbm', '.pnm', '.avif')
# Others can make Pillow start programs. AVIF comes last, because an old Pillow does not know it and
# stops there with a KeyError, after it has tried all others.
FORMATS = ('JPEG', 'PNG', 'WEBP', 'BMP', 'GIF', 'TIFF', 'PPM', 'AVIF')


def is_picture(name):
    """Whether a file of this name is a picture. Hidden files are none."""
    hidden = PurePosixPath(name).name.startswith('.')
    return name.lower().endswith(EXTENSIONS) and not hidden


def say_left_out(paths, taken, why):
    """Print how many of the paths are not taken, the first of them, and why; hidden ones do not
    count."""
    left_out = sorted(str(path) for path in set(paths) - set(taken))
    visible = [path for path in left_out if not PurePosixPath(path).name.startswith('.')]
    if visible:
        more = ', ..' if len(visible) > 3 else ''
        print(f'left out {len(visible):,} ({why}): {", ".join(visible[:3])}{more}', file=sys.stderr)


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
    """Any Pillow image as RGB; with channels=1, as grey (luma). Grey of 16 bits keeps its upper
    byte. Transparent areas become white. Raises ValueError for pixels with a decimal point."""
    from PIL import Image
    if image.mode == 'F':
        raise ValueError('pixels with a decimal point, of unknown range; save it with 8 bits')
    if image.mode.startswith('I'):  # 16 bits: Pillow's convert would clip them at 255
        pixels = np.asarray(image).clip(0, 65535) >> 8
        image = Image.fromarray(pixels.astype(np.uint8))
    if image.has_transparency_data:
        image = image.convert('RGBA')
        white = Image.new('RGBA', image.size, 'white')
        image = Image.alpha_composite(white, image)
    image = image.convert('RGB')
    if channels == 1:
        image = image.convert('L')
    return image
