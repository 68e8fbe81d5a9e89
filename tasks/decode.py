"""Picture files: which files are pictures, and any Pillow image as RGB or grey."""
import io
from pathlib import PurePosixPath

import numpy as np

from engine.settings import reading

EXTENSIONS = ('.jpg', '.jpeg', '.png', '.webp', '.bmp', '.gif', '.tif', '.tiff')
FORMATS = ('JPEG', 'PNG', 'WEBP', 'BMP', 'GIF', 'TIFF')  # other formats can make Pillow start programs


def is_picture(name):
    """Whether a file of this name is a picture."""
    return name.lower().endswith(EXTENSIONS) and not PurePosixPath(name).name.startswith('.')


def open_picture(source):
    """A picture file, its path or its bytes -> a Pillow image that is not yet decoded. Raises what Pillow raises
    if it is none of FORMATS, or has more pixels than Pillow takes for safe."""
    from PIL import Image
    return Image.open(io.BytesIO(source) if isinstance(source, bytes) else source, formats=FORMATS)


def unpacked(content, offsets, i, what):
    """The i-th of the picture files that lie one after the other in an array of bytes, decoded: uint8 (H, W) or
    (H, W, C). Raises Mistake if it is damaged; what: how to call it then."""
    with reading(f'{what} is damaged', 'prepare the dataset again'):
        return np.asarray(open_picture(content[offsets[i]:offsets[i + 1]].tobytes()))


def to_8_bits(image, channels=3):
    """Any Pillow image as RGB, or with one channel as grey (luma). 16-bit grey keeps its upper byte; transparent parts
    become white."""
    from PIL import Image
    if image.mode == 'F':
        raise ValueError('pixels with a decimal point, of unknown range; save it with 8 bits')
    if image.mode.startswith('I'):  # 16 bits: Pillow's convert would clip them at 255
        image = Image.fromarray((np.asarray(image).clip(0, 65535) >> 8).astype(np.uint8))
    if image.has_transparency_data:
        image = image.convert('RGBA')
        image = Image.alpha_composite(Image.new('RGBA', image.size, 'white'), image)
    return image.convert('RGB').convert('L' if channels == 1 else 'RGB')
