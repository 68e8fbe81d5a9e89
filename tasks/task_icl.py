"""Regression in context: the values of a random function, each from the examples before it."""
from tasks import BaseTask
from tasks.regression import Prompts


class Regression(BaseTask):
    kind = 'functions'
    settings = ('ema', 'telemetry', 'curriculum')

    @classmethod
    def open_split(cls, c, config, folder, split):
        return Prompts(c.dataset, config.n_dims, config.block_size // 2, c.sparsity, c.curriculum)

    def metrics(self, out, loss, y):
        # divided by the loss of predicting zero
        return len(y), {'loss': loss, 'relative_loss': loss / self.valid.scale}


Task = Regression
