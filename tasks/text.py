"""Text: one split of a prepared dataset, as sequences.

Each batch of training is a function of (seed, step) alone. So a resumed run sees what an
uninterrupted one sees, on any number of processes.
"""
from pathlib import Path

import numpy as np
import torch

from engine.mistakes import Mistake
from tasks.files import check_indices, open_array, split_meta
from tasks.streams import HIDDEN_TOKENS


class TextSplit:
    """One split of a text dataset, as sequences of block_size tokens."""

    def __init__(self, folder, split, block_size):
        meta, split_info = split_meta(folder, split, 'text')
        self.path = Path(folder) / f'{split}.npy'
        self.block_size = block_size
        self.vocab_size = meta['vocab_size']
        self.tokenizer = meta['tokenizer']
        self.dtype = split_info['dtype']
        self.count = split_info['tokens']
        self.some_counted = split_info.get('some_counted', False)  # else all are to be learnt
        if self.count <= block_size:
            raise Mistake(f'{self.path} has {self.count} tokens, too few for '
                          f'block_size={block_size}; prepare more text, or give '
                          f'--block_size={self.count - 1}')
        self.tokens_per_byte = self.count / split_info['bytes']
        self.tokens()  # a damaged file stops a run here, and not at its first batch

    def tokens(self):
        """All tokens of the split, (count,). The file is opened anew for each batch. The parts that
        were read of an open one would count as memory of the process, up to the size of the file;
        and a file that was cut off since would end the process. Raises Mistake if its length or its
        type has changed."""
        return open_array(self.path, self.dtype, self.count)

    def __len__(self):
        """Number of sequences that do not overlap: what an epoch counts, though training draws
        sequences that may overlap."""
        return (self.count - 1) // self.block_size

    def batches(self, n, seed, parts, first_step, last_step):
        """Training: for each step, first_step to last_step - 1, these parts (slices) of its n
        sequences. They begin at random places that depend on (seed, step) alone."""
        for step in range(first_step, last_step):
            rng = np.random.default_rng((seed, step))
            starts = rng.integers(0, self.count - self.block_size, n)
            draws = self.draws(n, key=(seed, step, HIDDEN_TOKENS))
            for part in parts:
                yield self.sequences(starts[part], draws[part])

    def draws(self, n, key):
        """Random numbers for each of n sequences of a training step, drawn with the seed `key`: (n,
        ..). Here there are none; hidden text needs some."""
        return np.empty((n, 0))

    def fixed(self, n, n_batches, rank=0, world_size=1):
        """Validation: n_batches batches of n sequences, evenly spaced over the split and always
        the same; of these every world_size-th, from the rank-th on. A short split gives fewer
        sequences, so that none overlap."""
        last = self.count - self.block_size - 1
        count = min(n * n_batches, len(self))
        starts = np.linspace(0, last, count).astype(np.int64)
        for i in range(rank * n, len(starts), world_size * n):
            yield self.sequences(starts[i:i + n])

    def sequences(self, starts, draws=None):
        """The sequences that begin at these places, int64 (B,): x and y, both int64 (B, N), where N
        is block_size. y is one token ahead, and -1 where a token is not to be learnt. draws: a row
        of `draws` for each, in training."""
        places = starts[:, None] + np.arange(self.block_size + 1)           # (B, N + 1)
        rows = self.tokens()[places].astype(np.int64)
        check_indices(rows, self.vocab_size, self.path)
        rows = torch.from_numpy(rows)
        x = rows[:, :-1].contiguous()
        y = rows[:, 1:].clone()
        if self.some_counted:
            path = self.path.with_suffix('.counted.npy')
            counted = open_array(path, 'bool', self.count)[places[:, 1:]]
            y[torch.from_numpy(~counted)] = -1
        return x, y
