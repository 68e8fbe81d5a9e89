"""Tokens to fill in, as BERT does (Devlin et al. 2019)."""
import numpy as np
import torch

from engine.mistakes import Mistake
from tasks.accuracies import accuracies
from tasks.streams import FIXED_HIDDEN_TOKENS
from tasks.task_text import NextToken
from tasks.text import TextSplit

# BERT's shares
CHOSEN = 0.15   # of the tokens: those to be predicted
MASKED = 0.8    # of the chosen: replaced by [MASK]
RANDOM = 0.1    # of the chosen: replaced by a random token; the others stay

LOGITS_AT_ONCE = 2 ** 26  # in a batch of validation, if it has more than one row; bounds the memory


class MaskedTextSplit(TextSplit):
    """One split of a text dataset with tokens to fill in. Of each sequence some tokens are chosen,
    at least one. Most of these become [MASK], others a random token, and others stay. x is the text
    that remains; y holds the chosen tokens, and -1 elsewhere: both int64 (B, N)."""

    def draws(self, n, key):
        """Two random numbers for each token, (n, 2, N): whether it is chosen, and which random
        token may stand there."""
        return np.random.default_rng(key).random((n, 2, self.block_size))

    def sequences(self, starts, draws=None):
        tokens, _ = super().sequences(starts)
        if draws is None:  # in validation what is hidden depends on the place, so it never changes
            numbers = [self.draws(1, (start, FIXED_HIDDEN_TOKENS)) for start in starts.tolist()]
            draws = np.concatenate(numbers)
        chance, which = torch.from_numpy(draws).unbind(1)                   # (B, N)
        # the smallest of a sequence becomes 0, so that one token at least is chosen
        chance = chance.scatter(1, chance.argmin(1, keepdim=True), 0.0)

        is_chosen = chance < CHOSEN
        is_masked = chance < CHOSEN * MASKED
        is_random = ~is_masked & (chance < CHOSEN * (MASKED + RANDOM))
        random_tokens = (which * self.vocab_size).long()
        mask_id = self.vocab_size  # the first after those of the tokenizer
        x = tokens.masked_fill(is_masked, mask_id)
        x = torch.where(is_random, random_tokens, x)
        y = torch.where(is_chosen, tokens, -1)
        return x, y


class HiddenTokens(NextToken):
    """The loss of a forward pass is the mean over its hidden tokens, whose number differs a little
    from pass to pass. A step that has several passes counts each of them the same."""
    extra_tokens = 1  # [MASK]
    look = 'sample.py --ckpt={out_dir} --start="def [MASK]ain():"'
    Split = MaskedTextSplit

    @classmethod
    def open_split(cls, c, config, folder, split):
        data = super().open_split(c, config, folder, split)
        if data.some_counted:
            raise Mistake(f'{folder} says which tokens are to be learnt, but this network hides '
                          'tokens at random; give another --dataset')
        return data

    def begin(self):
        super().begin()
        logits_of_a_row = self.config.block_size * self.config.vocab_size
        self.valid_rows = max(1, min(self.c.batch_size, LOGITS_AT_ONCE // logits_of_a_row))

    def metrics(self, out, loss, y):
        return accuracies(out, loss, y)

    def sample(self, model):
        return ''


Task = HiddenTokens
