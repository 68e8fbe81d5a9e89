"""Tokens to fill in, as BERT does (Devlin et al. 2019)."""
from engine.settings import Mistake
from tasks import accuracies
from tasks.task_text import NextToken
from tasks.text import MaskedTextSplit

LOGITS_AT_ONCE = 2 ** 26  # no batch of validation has more logits than this


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
