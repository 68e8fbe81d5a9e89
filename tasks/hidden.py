"""Hidden text: tokens to fill in, as in BERT (Devlin et al. 2019)."""
import numpy as np
import torch

from tasks import accuracies
from tasks.text import NextToken, TextSplit

LOGITS_AT_ONCE = 2 ** 26  # the networks return no more logits than this together with a loss
CHOSEN, MASKED, RANDOM = 0.15, 0.8, 0.1  # BERT's: tokens chosen; of these masked, and replaced


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
