"""True masks of pictures: which object each pixel belongs to.

They lie beside the pictures of a prepared dataset and are read when networks are looked at, never
in training:

  small pictures  SPLIT.masks.npy, bool or uint8 (N, H, W)
  large pictures  SPLIT.masks.npy, the bytes of PNG files one after the other, SPLIT.mask_offsets.npy, int64 (N + 1,)
  both            SPLIT.objects.npy, int64 (N, M): the class of each object of a picture, -1 where there are fewer

A pixel is 0 for background, m for the m-th object of its picture, and UNKNOWN if it is not known what
it shows. A bool mask is one object; without SPLIT.objects.npy it has the class of its picture.
"""
import numpy as np

from engine.settings import Mistake
from tasks.decode import unpacked

UNKNOWN = 255


class Masks:
    """The true masks of a split of pictures, an ImageSplit. masks[i]: (numbers, uint8 (H, W); the
    class of each object, a list) of its i-th picture. Raises Mistake if there are none, or they
    do not fit."""

    def __init__(self, images):
        self.images, self.path = images, images.folder / f'{images.split}.masks.npy'
        if not self.path.exists():
            raise Mistake(f'no {self.path}: this needs the true masks of the pictures; python prepare/shapes.py '
                          'draws some')
        mine = images.mine
        if images.packed:
            self.stored = images.open('masks', 'uint8', mine['mask_bytes'])
            self.offsets = images.open('mask_offsets', 'int64', mine['count'] + 1)
        else:
            kind = 'uint8' if 'objects' in mine else 'bool'
            self.stored = images.open('masks', kind, mine['count'], mine['height'], mine['width'])
        self.objects = images.open('objects', 'int64', mine['count'], mine['objects']) if 'objects' in mine else \
            images.labels[:, None]

    def __getitem__(self, i):
        i = self.images.chosen[i]
        if self.images.packed:
            numbers = unpacked(self.stored, self.offsets, i, f'a mask in {self.images.folder}')
        else:
            numbers = self.stored[i].astype(np.uint8)
        return numbers, self.objects[i][self.objects[i] >= 0].tolist()
