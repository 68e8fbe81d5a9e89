"""Arrays of floats that are no pictures, such as spectrograms or tables: nothing scales or crops
them. prepare/arrays.py writes such a dataset.
"""
from pathlib import Path

import numpy as np
import torch

from tasks import BaseTask
from tasks.files import check_indices, open_array, split_meta
from tasks.pictures import fixed_places, indices_of_step


class ArraySplit:
    """One split of a dataset of arrays: x float32 (N, ..), and y, which is classes int64 (N,), or
    numbers float32 (N, num_targets)."""

    def __init__(self, folder, split):
        meta, info = split_meta(folder, split, 'arrays')
        count = info['count']
        self.x = open_array(Path(folder, f'{split}.x.npy'), 'float32', count, *meta['shape'])
        y_path = Path(folder, f'{split}.y.npy')
        if 'classes' in meta:
            self.y = np.array(open_array(y_path, 'int64', count))
            check_indices(self.y, len(meta['classes']), y_path)
        else:
            self.y = open_array(y_path, 'float32', count, meta['num_targets'])

    def __len__(self):
        return len(self.x)

    def batch(self, indices):
        """(x, y) of some rows, two tensors."""
        return torch.from_numpy(self.x[indices]), torch.from_numpy(self.y[indices])

    def batches(self, n, seed, parts, first_step, last_step):
        """Training: for each step, first_step to last_step - 1, these parts (slices) of its n rows.
        Every epoch has all rows in another order, which depends on (seed, epoch) alone."""
        for step in range(first_step, last_step):
            indices = indices_of_step(step, n, seed, len(self))
            for part in parts:
                yield self.batch(indices[part])

    def fixed(self, n, n_batches, rank=0, world_size=1):
        """Validation: n_batches batches of n rows, evenly spaced over the split and always the
        same; of these every world_size-th, from the rank-th on."""
        for places in fixed_places(n, n_batches, rank, world_size, len(self)):
            yield self.batch(places)


class ArrayTask(BaseTask):
    """What tasks have in common that read arrays. x and y come to the network as they are."""
    kind = 'arrays'
    unit = 'rows'

    @classmethod
    def open_split(cls, c, config, folder, split):
        return ArraySplit(folder, split)


def sizes_of_arrays(meta):
    """The config fields that a dataset of arrays decides: the shape of a row, and num_classes, or
    num_targets, how many numbers y has. Rows (C, H, W) have channels and an image_size too."""
    shape = meta['shape']
    decided = {'shape': tuple(shape)}
    if len(shape) == 3:
        decided |= {'channels': shape[0], 'image_size': tuple(shape[1:])}
    if 'classes' in meta:
        return decided | {'num_classes': len(meta['classes'])}
    return decided | {'num_targets': meta['num_targets']}
