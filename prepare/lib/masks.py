"""True masks from files that users have: which object each pixel belongs to. tasks/masks.py says how
datasets hold them."""
import numpy as np

from tasks.decode import open_picture
from tasks.masks import UNKNOWN


def upright_size(source):
    """(height, width) of a picture file, by its path or its bytes, when it is turned as its EXIF data
    say; None if it is no picture, of which save_pack tells."""
    try:
        image = open_picture(source)
        turned = image.getexif().get(0x112, 1) >= 5
    except Exception:  # of many types, depending on the damage
        return None
    return image.size if turned else image.size[::-1]


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
