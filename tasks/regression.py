"""Functions in context: prompts of random functions.

A prompt is n examples (x_i, g(x_i)) of one random function g. A network predicts each g(x_i) from
x_i and the examples before it. AoT, section 4.2.2, after Garg et al., "What Can Transformers Learn
In-Context?", NeurIPS 2022:

  linear          g(x) = w^T x, with x and w from N(0, I) in d = 20 dimensions
  sparse_linear   the same, but only 3 of the numbers in w, chosen at random, are not zero
"""
import numpy as np
import torch

from engine.mistakes import Mistake
from engine.settings import choice_of
from tasks import FUNCTIONS
from tasks.streams import FIXED_PROMPTS, PROMPTS


class Prompts:
    """Random prompts: x float32 (B, n, d) and y = g(x) float32 (B, n). Nothing is stored: a batch
    is a function of (seed, step)."""

    def __init__(self, function, n_dims, n_points, sparsity=3, curriculum=0):
        """curriculum: steps of one stage of training, 0 for none. In the first stage a quarter of
        the dimensions are used, and x is zero in the others. Each stage adds a dimension and two
        examples, up to n_dims and n_points. In Garg et al. these are 20 and 41, so the first stage
        has 5 dimensions and 11 examples."""
        function = choice_of('function', function, FUNCTIONS)
        if function == 'sparse_linear' and not 1 <= sparsity <= n_dims:
            raise Mistake(f'sparsity={sparsity} must lie between 1 and n_dims={n_dims}')
        self.d = n_dims
        self.n = n_points
        self.curriculum = curriculum
        self.sparsity = sparsity if function == 'sparse_linear' else 0
        self.scale = self.sparsity or n_dims  # the mean of g(x)^2

    def __len__(self):
        raise Mistake('functions are drawn anew at every step, so there are no epochs; '
                      'give --max_iters')

    def stage(self, step):
        """(dimensions, examples) of training at a step."""
        if self.curriculum == 0:
            return self.d, self.n
        dims = min(self.d, max(1, self.d // 4) + step // self.curriculum)
        n = self.n - 2 * (self.d - dims)
        return dims, max(2, n)

    def draw(self, rng, B, dims=None, n=None):
        """B prompts, drawn with a NumPy generator: x (B, n, d), y (B, n). dims: the dimensions that
        are used, by default all; n: examples, by default those of a whole prompt."""
        dims = dims or self.d
        x = rng.standard_normal((B, n or self.n, self.d), np.float32)
        w = rng.standard_normal((B, self.d, 1), np.float32)
        if self.sparsity > 0:
            chance = rng.random((B, self.d))            # the smallest stay
            chance[:, dims:] = 1                        # dimensions that are not used come last
            order = chance.argsort(1)                   # (B, d)
            np.put_along_axis(w[..., 0], order[:, self.sparsity:], 0, 1)
        x[..., dims:] = 0
        y = (x @ w)[..., 0]                             # (B, n)
        return torch.from_numpy(x), torch.from_numpy(y)

    def batches(self, B, seed, parts, first_step, last_step):
        """Training: for each step, first_step to last_step - 1, these parts (slices) of its B
        prompts."""
        for step in range(first_step, last_step):
            rng = np.random.default_rng((seed, step, PROMPTS))
            dims, n = self.stage(step)
            x, y = self.draw(rng, B, dims, n)
            for part in parts:
                yield x[part], y[part]

    def fixed(self, B, n_batches, rank=0, world_size=1, stream=FIXED_PROMPTS):
        """Validation: n_batches batches of B prompts of full size, always the same; of these every
        world_size-th, from the rank-th on. Another stream has other prompts."""
        for i in range(rank, n_batches, world_size):
            yield self.draw(np.random.default_rng((i, stream)), B)
