"""The next token of a text. Where y is -1 there is nothing to learn."""
import math
from functools import cached_property

import torch

from engine.distributed import print_main
from engine.mistakes import Mistake
from tasks import BaseTask
from tasks.text import TextSplit

# what is shown at validations
SAMPLE_PROMPT = 16
SAMPLE_TOKENS = 60
SAMPLE_TEMPERATURE = 0.8


class NextToken(BaseTask):
    kind = 'text'
    settings = (*BaseTask.settings, 'loss_in_chunks')
    unit = 'tokens'
    look = 'sample.py --ckpt={out_dir}'
    Split = TextSplit

    def begin(self):
        self.tokens_per_row = self.config.block_size
        self.empty_batch_seen = False

    @classmethod
    def open_split(cls, c, config, folder, split):
        return cls.Split(folder, split, config.block_size)

    def take(self, batch, training=False):
        _, y = batch
        if not self.empty_batch_seen and not (y != -1).any():
            self.empty_batch_seen = True
            print_main('a batch has nothing to learn: its loss counts as 0')
        return super().take(batch, training)

    def count(self, x, y):
        return x.numel()

    def metrics(self, out, loss, y):
        count = (y != -1).sum().item()
        if self.valid.some_counted:  # the tokens to learn are not all of the text
            return count, {'loss': loss}
        # bits per token, times the tokens per byte of the whole split
        bits_per_byte = loss / math.log(2) * self.valid.tokens_per_byte
        return count, {'loss': loss, 'bits_per_byte': bits_per_byte}

    @cached_property
    def tokenizer(self):
        """The tokenizer of the dataset; None if GPT-2's is not here, without which a run trains
        too."""
        from tasks.tokenizer import Tokenizer
        try:
            return Tokenizer(**self.valid.tokenizer)
        except (Mistake, ImportError):
            return None

    def sample(self, model):
        """How the network continues the first tokens of the text that is held out."""
        if self.tokenizer is None:
            return ''
        # by model(x) alone, which every network has; weights/generate.py would be faster
        ids = self.valid.tokens()[:SAMPLE_PROMPT].tolist()
        for _ in range(SAMPLE_TOKENS):
            x = torch.tensor([ids[-self.tokens_per_row:]], device=self.device.name)     # (1, N)
            logits = model(x)[0][0, -1].float()                                         # (V,)
            probabilities = (logits / SAMPLE_TEMPERATURE).softmax(0)
            ids.append(torch.multinomial(probabilities, 1).item())
        prompt = self.tokenizer.decode(ids[:SAMPLE_PROMPT])
        text = self.tokenizer.decode(ids[SAMPLE_PROMPT:])
        return f'{prompt!r} {text!r}'  # in one line


Task = NextToken
