"""Text: one split of a prepared dataset, and the two things to learn from it, the next token and
hidden tokens.

No batch depends on a hidden random stream. It is a function of (seed, step), so a resumed run sees
what an uninterrupted one sees, on any number of processes.
"""
import math
from pathlib import Path

import numpy as np
import torch

from engine.settings import Mistake
from tasks import Task, top1_top5
from tasks.decode import content_of
from tasks.files import open_array, read_meta, split_meta

LOGITS_AT_ONCE = 2 ** 26  # the networks return no more logits than this together with a loss
LONGEST_PROMPT = 2 ** 22  # bytes of a file; "War and Peace" has 3.3 million
CHOSEN, MASKED, RANDOM = 0.15, 0.8, 0.1  # BERT's (Devlin et al. 2019): tokens chosen; of these masked, and replaced


class TextSplit:
    """One split of a text dataset, for sequences of block_size tokens."""

    SCANNED = 10 ** 8  # up to so many tokens are checked when the file is opened, more of them batch by batch

    def __init__(self, folder, split, block_size):
        meta = read_meta(folder)
        mine = split_meta(meta, folder, split, 'text')
        self.path, self.block_size, self.vocab_size = Path(folder) / f'{split}.npy', block_size, meta['vocab_size']
        self.tokens = open_array(self.path, mine['dtype'], mine['tokens'])
        if len(self.tokens) < block_size + 1:
            raise Mistake(f'{self.path} has {len(self.tokens)} tokens, too few for block_size={block_size}; '
                          f'prepare more text, or train a network with --block_size={max(1, len(self.tokens) - 1)} '
                          'or less')
        if len(self.tokens) <= self.SCANNED:
            self.check_ids(self.tokens.max())
        self.windows = np.lib.stride_tricks.sliding_window_view(self.tokens, block_size + 1)  # no copy
        self.tokens_per_byte = len(self.tokens) / mine['bytes']

    def __len__(self):
        """Number of sequences that do not overlap: what an epoch counts."""
        return (len(self.tokens) - 1) // self.block_size

    def check_ids(self, largest):
        if largest >= self.vocab_size:
            raise Mistake(f'{self.path} holds token {largest}, but its vocabulary ends at {self.vocab_size - 1}; '
                          'prepare the dataset again')

    def at(self, starts):
        """The sequences that begin at these places: x and y (len(starts), block_size), y one token
        ahead, each without gaps in memory, so that CUDA can copy it in one piece."""
        rows = self.windows[starts]
        self.check_ids(rows.max())
        pair = np.empty((2, len(rows), self.block_size), np.int64)
        pair[0], pair[1] = rows[:, :-1], rows[:, 1:]
        return torch.from_numpy(pair).unbind()

    def batches(self, n, seed, share, first, last):
        """Training: for each step, first to last - 1, the parts `share` (slices) of its n
        sequences. They begin at random places that depend on (seed, step) alone."""
        for step in range(first, last):
            starts = np.random.default_rng((seed, step)).integers(0, len(self.tokens) - self.block_size, n)
            yield from self.of_step(starts, share, seed, step)

    def of_step(self, starts, share, seed, step):
        for part in share:
            yield self.at(starts[part])

    def fixed(self, n, batches, rank=0, world=1):
        """Validation: `batches` batches of n sequences, evenly spaced over the split and always the
        same; of these every world-th, from the rank-th on. Fewer in a split that is so short that
        they would overlap."""
        last = len(self.tokens) - self.block_size - 1
        count = max(1, min(n * batches, last // self.block_size + 1))
        starts = np.linspace(0, last, count).astype(np.int64)
        for i in range(rank * n, count, world * n):
            yield self.sequences(starts[i:i + n])

    def sequences(self, starts):
        return self.at(starts)


class MaskedTextSplit(TextSplit):
    """One split of a text dataset with tokens to fill in, as in BERT: 15% of the tokens are chosen,
    at least one in each sequence. Of these, 80% become [MASK], whose id is the first after the
    tokenizer's, 10% a random token, and 10% stay. x is the text that remains; y holds the chosen
    tokens, and -1 elsewhere."""

    def hidden(self, starts, draws):
        """The sequences that begin at these places, masked by random numbers in [0, 1),
        (len(starts), 2, block_size)."""
        tokens, (u, which) = self.at(starts)[0], torch.from_numpy(draws).unbind(1)
        u = u.scatter(1, u.argmin(1, keepdim=True), 0.0)
        x = torch.where(u < CHOSEN * (MASKED + RANDOM), (which * self.vocab_size).long(), tokens)
        x = torch.where(u < CHOSEN * MASKED, self.vocab_size, x)
        return x, torch.where(u < CHOSEN, tokens, -1)

    def of_step(self, starts, share, seed, step):
        draws = np.random.default_rng((seed, step, 5)).random((len(starts), 2, self.block_size))
        for part in share:
            yield self.hidden(starts[part], draws[part])

    def sequences(self, starts):
        """What is hidden depends on the place in the split, so it never changes."""
        draws = [np.random.default_rng((start, 6)).random((2, self.block_size)) for start in starts.tolist()]
        return self.hidden(starts, np.array(draws))


def prompt_of(start):
    """The text of a prompt that was typed: \\n is a new line, FILE:path reads a file. Raises
    Mistake if that fails."""
    if not start.startswith('FILE:'):
        return start.replace('\\n', '\n')
    try:
        return content_of(start[5:], LONGEST_PROMPT).decode().replace('\r\n', '\n')
    except (OSError, ValueError) as e:
        raise Mistake(f'--start={start}: cannot be read as UTF-8 text ({e}); name another file') from None


def with_masks(tokenizer, text):
    """The ids of a text in which [MASK] stands for the first id after the tokenizer's."""
    return [i for piece in text.split('[MASK]') for i in (*tokenizer.encode(piece), tokenizer.vocab_size)][:-1]


# ---- the tasks ------------------------------------------------------------------------------------------------------

class NextToken(Task):
    unit, Split = 'tokens', TextSplit

    def __init__(self, c, augment, folder, config, device):
        super().__init__(c, device, *(self.Split(folder, split, config.block_size) for split in ('train', 'val')))
        self.size = config.block_size

    def metrics(self, out, loss, y):
        return len(y), {'loss': loss, 'bits_per_byte': loss / math.log(2) * self.valid.tokens_per_byte}


class HiddenTokens(NextToken):
    """The loss is the mean over the hidden tokens of a forward pass. Over several passes or
    processes it is the mean of these means."""
    Split = MaskedTextSplit

    def __init__(self, c, augment, folder, config, device):
        self.rows_at_once = rows_at_once(config, c.batch_size)
        super().__init__(c, augment, folder, config, device)

    def validation(self, rows=0, batches=0):
        rows = rows or self.rows_at_once
        return super().validation(rows, batches or self.c.eval_iters * self.c.batch_size // rows)

    def metrics(self, out, loss, y):
        count, shares = top1_top5(out, y)
        return count, {'loss': loss} | shares


def rows_at_once(config, n):
    """How many sequences, at most n, a network returns all logits of. Raises Mistake if not even
    one."""
    rows = min(n, LOGITS_AT_ONCE // (config.block_size * config.vocab_size))
    if not rows:
        raise Mistake(f'the logits of block_size={config.block_size} tokens are too many to rank; set '
                      f'--block_size={LOGITS_AT_ONCE // config.vocab_size} or less')
    return rows
