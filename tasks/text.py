"""Text: one split of a prepared dataset, and what is learnt from it: the next token, or hidden tokens as in BERT
(Devlin et al. 2019).

No batch depends on a hidden random stream. It is a function of (seed, step), so a resumed run sees
what an uninterrupted one sees, on any number of processes.
"""
from pathlib import Path

import numpy as np
import torch

from engine.settings import Mistake
from tasks import Task, accuracies
from tasks.files import open_array, split_meta

LOGITS_AT_ONCE = 2 ** 26  # the networks return no more logits than this together with a loss
CHOSEN, MASKED, RANDOM = 0.15, 0.8, 0.1  # BERT's: tokens chosen; of these masked, and replaced


class TextSplit:
    """One split of a text dataset, as sequences of block_size tokens."""

    def __init__(self, folder, split, block_size):
        meta, mine = split_meta(folder, split, 'text')
        self.path, self.block_size, self.vocab_size = Path(folder) / f'{split}.npy', block_size, meta['vocab_size']
        self.tokens = open_array(self.path, mine['dtype'], mine['tokens'])
        if len(self.tokens) <= block_size:
            raise Mistake(f'{self.path} has {len(self.tokens)} tokens, too few for block_size={block_size}; prepare '
                          f'more text, or train with --block_size={len(self.tokens) - 1}')
        self.tokens_per_byte = len(self.tokens) / mine['bytes']

    def __len__(self):
        """Number of sequences that do not overlap: what an epoch counts."""
        return (len(self.tokens) - 1) // self.block_size

    def batches(self, n, seed, parts, first, last):
        """Training: for each step, first to last - 1, these parts (slices) of its n sequences. They begin at random
        places that depend on (seed, step) alone."""
        for step in range(first, last):
            starts = np.random.default_rng((seed, step)).integers(0, len(self.tokens) - self.block_size, n)
            x, y = self.at(starts, (seed, step, 5))
            for part in parts:
                yield x[part], y[part]

    def fixed(self, n, batches, rank=0, world=1):
        """Validation: `batches` batches of n sequences, evenly spaced over the split and always the same; of these
        every world-th, from the rank-th on. Fewer in a split that is so short that they would overlap."""
        last = len(self.tokens) - self.block_size - 1
        starts = np.linspace(0, last, min(n * batches, last // self.block_size + 1)).astype(np.int64)
        for i in range(rank * n, len(starts), world * n):
            yield self.at(starts[i:i + n])

    def at(self, starts, key=None):
        """The sequences that begin at these places: x and y (len(starts), block_size), y one token ahead. key: of the
        random numbers of a training step, which hidden text needs."""
        rows = torch.from_numpy(self.tokens[starts[:, None] + np.arange(self.block_size + 1)].astype(np.int64))
        return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()


class NextToken(Task):
    unit, Split = 'tokens', TextSplit

    def __init__(self, c, augment, folder, config, device):
        super().__init__(c, device, *(self.Split(folder, split, config.block_size) for split in ('train', 'val')))
        self.size = config.block_size

    def metrics(self, out, loss, y):
        return len(y), {'loss': loss, 'bits_per_byte': loss / np.log(2) * self.valid.tokens_per_byte}


# ---- hidden tokens --------------------------------------------------------------------------------------------------


class MaskedTextSplit(TextSplit):
    """One split of a text dataset with tokens to fill in, as in BERT: 15% of the tokens are chosen, at least one in
    each sequence. Of these, 80% become [MASK], whose id is the first after the tokenizer's, 10% a random token, and 10%
    stay. x is the text that remains; y holds the chosen tokens, and -1 elsewhere."""

    def at(self, starts, key=None):
        """In validation what is hidden depends on the place in the split, so it never changes."""
        size = 2, self.block_size
        draws = np.random.default_rng(key).random((len(starts), *size)) if key else np.array(
            [np.random.default_rng((start, 6)).random(size) for start in starts.tolist()])
        (tokens, _), (u, which) = super().at(starts), torch.from_numpy(draws).unbind(1)
        u = u.scatter(1, u.argmin(1, keepdim=True), 0.0)
        x = torch.where(u < CHOSEN * (MASKED + RANDOM), (which * self.vocab_size).long(), tokens)
        x = torch.where(u < CHOSEN * MASKED, self.vocab_size, x)
        return x, torch.where(u < CHOSEN, tokens, -1)


class HiddenTokens(NextToken):
    """The loss is the mean over the hidden tokens of a forward pass. Over several passes or
    processes it is the mean of these means."""
    Split, metrics = MaskedTextSplit, staticmethod(accuracies)

    def __init__(self, c, augment, folder, config, device):
        super().__init__(c, augment, folder, config, device)
        self.valid_rows = rows_at_once(config, c.batch_size)


def rows_at_once(config, n):
    """How many sequences, at most n, a network returns all logits of."""
    return max(1, min(n, LOGITS_AT_ONCE // (config.block_size * config.vocab_size)))
