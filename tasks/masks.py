"""True masks of pictures: which object each pixel belongs to.

They lie beside the pictures of a prepared dataset. They are read when one looks at networks. No
task of this folder learns from them:

  small pictures  SPLIT.masks.npy: bool or uint8 (N, H, W)
  large pictures  SPLIT.masks.npy: the bytes of PNG files, one after the other
                  SPLIT.mask_offsets.npy: where each file begins, and the end, int64 (N + 1,)
  both            SPLIT.objects.npy: the class of each object of a picture, int64 (N, M), and -1
                  where a picture has fewer than M objects

A pixel is 0 for background, m for the m-th object of its picture, and UNKNOWN if nobody knows what
it shows. A bool mask is one object; without SPLIT.objects.npy, its class is that of its picture.
"""
import numpy as np

from engine.mistakes import Mistake
from tasks.decode import unpacked

UNKNOWN = 255


class Masks:
    """The true masks of a split of pictures, which is an ImageSplit. masks[i] is that of the i-th
    picture: its pixels, uint8 (H, W), and the class of each object, a list. Raises Mistake if there
    are no masks, or if they do not fit the pictures."""

    def __init__(self, images):
        self.images = images
        self.path = images.folder / f'{images.split}.masks.npy'
        if not self.path.exists():
            raise Mistake(f'no {self.path}: this needs the true masks of the pictures; '
                          'python prepare/shapes.py draws some')
        info = images.split_info
        count = info['count']
        if images.packed:
            self.stored = images.open('masks', 'uint8', info['mask_bytes'])
            self.offsets = images.open('mask_offsets', 'int64', count + 1)
        else:
            dtype = 'uint8' if 'objects' in info else 'bool'
            self.stored = images.open('masks', dtype, count, info['height'], info['width'])
        if 'objects' in info:
            self.objects = images.open('objects', 'int64', count, info['objects'])
        else:
            self.objects = images.labels[:, None]  # (N, 1)

    def __getitem__(self, i):
        i = self.images.chosen[i]
        if self.images.packed:
            numbers = unpacked(self.stored, self.offsets, i, f'a mask in {self.images.folder}')
        else:
            numbers = self.stored[i].astype(np.uint8)
        objects = self.objects[i]
        return numbers, objects[objects >= 0].tolist()
