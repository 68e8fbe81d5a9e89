"""Files that strangers made: they are opened here, and refused before anything is read of them that could hang, fill
the memory or start a program. Then picture files: which files are pictures, and any Pillow image as RGB or grey."""
import io
import logging
import os
import stat
import warnings
from pathlib import PurePosixPath

import numpy as np

from engine.settings import Mistake

EXTENSIONS = ('.jpg', '.jpeg', '.png', '.webp', '.bmp', '.gif', '.tif', '.tiff')
FORMATS = ('JPEG', 'PNG', 'WEBP', 'BMP', 'GIF', 'TIFF')  # other formats can make Pillow start programs
MOST_PIXELS = 2 ** 27          # 134 million: telephones take 108 million, and Pillow needs 4 bytes for each
LONGEST_SIDE = 2 ** 15         # telephones' panoramas end at about 16,000 pixels, Photoshop's .psd files at 30,000
MOST_BYTES = 4 * MOST_PIXELS   # of a file: the largest picture, not compressed


def file_size(path, most):
    """The bytes of a file. Raises Mistake unless it is a regular file of at most `most` bytes: others, such as
    FIFOs and devices, may have no end."""
    status = os.stat(path)
    if not stat.S_ISREG(status.st_mode):
        raise Mistake(f'{path} is no regular file; give one')
    if status.st_size > most:
        raise Mistake(f'{path} has {status.st_size:,} bytes; give a file of at most {most:,}')
    return status.st_size


def content_of(path, most):
    """The content of a file, as bytes. Raises Mistake like file_size."""
    size = file_size(path, most)
    with open(path, 'rb') as f:
        return f.read(size)


def is_picture(name):
    """Whether a file of this name is a picture."""
    name = PurePosixPath(name).name
    return name.lower().endswith(EXTENSIONS) and not name.startswith('.')


def open_picture(content):
    """The bytes of a picture file -> a Pillow image that is not yet decoded. Raises exceptions of many types if it is
    none of FORMATS, or so large that decoding it could fill the memory."""
    from PIL import Image
    if not content:
        raise Mistake('the file is empty')
    logging.getLogger('PIL').setLevel(logging.CRITICAL)  # its errors are raised, and need not be printed too
    try:
        with warnings.catch_warnings():
            warnings.simplefilter('ignore', Image.DecompressionBombWarning)  # from 89 million pixels on
            image = Image.open(io.BytesIO(content), formats=FORMATS)
    except Image.UnidentifiedImageError:
        raise Mistake(f'not a picture of the formats {", ".join(FORMATS)}') from None
    width, height = image.size
    if image.format == 'TIFF':  # its tiles may be larger than itself, and a whole one is decoded
        width, height = max(width, image.tag_v2.get(322, 0)), max(height, image.tag_v2.get(323, 0))
    if max(width, height) > LONGEST_SIDE or width * height > MOST_PIXELS:
        raise Mistake(f'{width:,} x {height:,} pixels, of which {LONGEST_SIDE:,} may be on a side and '
                      f'{MOST_PIXELS:,} in all')
    return image


def to_rgb(image):
    """Any Pillow image as RGB. 16-bit grey keeps its upper byte; transparent parts become white."""
    from PIL import Image
    if image.mode == 'F':
        raise Mistake('pixels with a decimal point, of unknown range; save it with 8 bits')
    if image.mode.startswith('I'):  # 16 bits: Pillow's convert would clip them at 255
        image = Image.fromarray((np.asarray(image).clip(0, 65535) >> 8).astype(np.uint8))
    if image.has_transparency_data:
        image = image.convert('RGBA')
        image = Image.alpha_composite(Image.new('RGBA', image.size, 'white'), image)
    return image.convert('RGB')


def to_grey(image):
    """Any Pillow image as 8-bit grey (luma), otherwise like to_rgb."""
    return to_rgb(image).convert('L')
