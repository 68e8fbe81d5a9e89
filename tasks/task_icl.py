"""Regression in context: the values of a random function, each from the examples before it."""
from tasks import BaseTask
from tasks.regression import Prompts


class Regression(BaseTask):
    kind = 'functions'
    settings = (*BaseTask.settings, 'sparsity', 'curriculum')
    look = 'analyze.py layers --ckpt={out_dir}'

    @classmethod
    def open_split(cls, c, config, folder, split):
        n_points = config.block_size // 2  # an example is two tokens, x and y
        return Prompts(c.dataset, config.n_dims, n_points, c.sparsity, c.curriculum)

    def metrics(self, out, loss, y):
        loss_of_zero = self.valid.scale  # of predicting zero
        return len(y), {'loss': loss, 'relative_loss': loss / loss_of_zero}


Task = Regression
