"""Tokens to fill in, as BERT does (Devlin et al. 2019)."""
import numpy as np
import torch

from engine.mistakes import Mistake
from tasks import accuracies
from tasks.task_text import NextToken
from tasks.text import TextSplit

# BERT's shares
CHOSEN = 0.15   # of the tokens: those to be predicted
MASKED = 0.8    # of the chosen: replaced by [MASK]
RANDOM = 0.1    # of the chosen: replaced by a random token; the others stay

LOGITS_AT_ONCE = 2 ** 26  # no batch of validation has more logits than this


class MaskedTextSplit(TextSplit):
    """One split of a text dataset with tokens to fill in, as in BERT: 15% of the tokens are
    chosen, at least one in each sequence. Of these, 80% become [MASK], whose id is the first after
    the tokenizer's, 10% a random token, and 10% stay. x is the text that remains; y holds the
    chosen tokens, and -1 elsewhere."""

    def draws(self, n, key):
        """Two random numbers for each token, (n, 2, block_size)."""
        return np.random.default_rng(key).random((n, 2, self.block_size))

    def sequences(self, starts, draws=None):
        tokens, _ = super().sequences(starts)
        if draws is None:  # in validation what is hidden depends on the place, so it never changes
            draws = np.concatenate([self.draws(1, (start, 6)) for start in starts.tolist()])
        draws = torch.from_numpy(draws)
        chance = draws[:, 0]  # the smallest are hidden
        which = draws[:, 1]   # the random token that may stand there
        # the smallest of a sequence becomes 0, so that one token at least is chosen
        chance = chance.scatter(1, chance.argmin(1, keepdim=True), 0.0)
        # chance below 0.12: [MASK]; to 0.135: a random token; to 0.15: chosen, but it stays
        random_tokens = (which * self.vocab_size).long()
        x = torch.where(chance < CHOSEN * (MASKED + RANDOM), random_tokens, tokens)
        x = torch.where(chance < CHOSEN * MASKED, self.vocab_size, x)
        y = torch.where(chance < CHOSEN, tokens, -1)
        return x, y


class HiddenTokens(NextToken):
    """The loss is the mean over the hidden tokens of a forward pass. Over several passes or
    processes it is the mean of these means."""
    extra_tokens = 1  # [MASK]
    look = 'sample.py --ckpt={out_dir} --start="def [MASK]ain():"'
    Split = MaskedTextSplit

    @classmethod
    def open_split(cls, c, config, folder, split):
        data = super().open_split(c, config, folder, split)
        if data.counted is not None:
            raise Mistake(f'{folder} says which tokens are to be learnt, but this network hides '
                          'tokens at random; give another --dataset')
        return data

    def __init__(self, c, augment, config, device, train, valid):
        super().__init__(c, augment, config, device, train, valid)
        self.valid_rows = rows_at_once(config, c.batch_size)

    def metrics(self, out, loss, y):
        return accuracies(out, loss, y)


def rows_at_once(config, n):
    """How many sequences, at most n, have so few logits that they fit into memory together."""
    logits_of_a_row = config.block_size * config.vocab_size
    return max(1, min(n, LOGITS_AT_ONCE // logits_of_a_row))


Task = HiddenTokens
