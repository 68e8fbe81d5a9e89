"""True masks from files that users have: which object each pixel belongs to. tasks/masks.py says how
datasets hold them."""
import numpy as np

from tasks.masks import UNKNOWN


def labelled(name, source, numbers, classes):
    """A picture as save_pack takes it, [(name, label, source, (numbers, [class of 1, class of 2, ..]))]: without those
    objects that no pixel shows, and with the class of the one that shows the most as its label; [] if none is shown.
    numbers: uint8 (H, W); classes: {number: class}."""
    held, pixels = np.unique(numbers[(numbers > 0) & (numbers < UNKNOWN)], return_counts=True)
    new = np.zeros(UNKNOWN + 1, np.uint8)
    new[held], new[UNKNOWN] = np.arange(1, len(held) + 1), UNKNOWN
    kinds = [classes[m] for m in held]
    return [(name, kinds[pixels.argmax()], source, (new[numbers], kinds))] if kinds else []
