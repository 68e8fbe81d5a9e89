"""Lesson 8: your own network. Fill in the gaps; lesson8.md says what they are about.

    python course/check.py 8
"""
from dataclasses import dataclass

import torch
from torch import nn


@dataclass
class Config:
    """The settings of your network. You may add others, if they have a default."""
    n_layer: int = 2                # layers
    n_head: int = 4                 # attention heads
    n_embd: int = 64                # width of a token, d
    patch_size: int | tuple = 4     # pixels of a patch, or (height, width)
    image_size: int | tuple = 32    # pixels, or (height, width), which the dataset fills in
    channels: int = 3               # 3 for colour, 1 for grey
    num_classes: int = 10           # classes

    task = 'image'                  # not a setting: what a network of this kind learns


def sides(size):
    """(height, width) of a size, which may be one number for both."""
    return tuple(size) if isinstance(size, (tuple, list)) else (size, size)


class Network(nn.Module):
    """A network for pictures that keeps the contract of docs/extend.md. Which layers it has is your
    choice.

        model.config            the config that it was made with
        model.embed(x)          pictures, float (B, channels, H, W) -> tokens (B, N, d), a token for
                                each patch at least
        model.layers            a module of n_layer layers, with weights of their own;
                                layer(z): (B, N, d) -> (B, N, d)
        model(x)                (out, None), out (B, num_classes): logits, so any numbers
        model(x, y)             (out, loss) with classes y, int64 (B,): the mean cross-entropy, nats
    """

    def __init__(self, config):
        super().__init__()
        raise NotImplementedError

    def forward(self, x, y=None):
        raise NotImplementedError


def parameters(network: str, n_layer: int, d: int) -> int:
    """The parameters of n_layer layers of width d, biases and norms included, without what is
    before and after the layers. network: 'crate' or 'vit', for the layers of model_crate.py (with
    its free output map) and model_vit.py. In CRATE only the output map has a bias, in ViT every
    map. A LayerNorm has 2 d."""
    raise NotImplementedError


def width_for(network: str, n_layer: int, budget: int, heads: int) -> int:
    """The width d, a multiple of the number of heads, with which n_layer layers have a number of
    parameters nearest to the budget; of two that are equally near the smaller."""
    raise NotImplementedError


def operations(network: str, d: int, N: int) -> int:
    """The multiply-adds of one layer for one of N tokens of width d: in the linear maps, in the
    scores and in the average. Softmax, norms and biases are not counted. 'crate' or 'vit', as
    above, with heads of width p = d / K."""
    raise NotImplementedError


def best_of(losses: torch.Tensor, tries: int) -> torch.Tensor:
    """What trying more settings is worth. losses (n,): those of n settings of one network. If
    somebody tries only so many of the n, chosen at random without repeating one, and reports the
    lowest loss: which loss is that on average, over all choices? Returns one number, exactly and
    not by drawing."""
    raise NotImplementedError


def verdict(ours: dict, theirs: dict, least: float) -> tuple:
    """What a report may say. ours, theirs: {seed: loss}, of which lower is better; only seeds that
    both have count, each paired with itself. The gain of a seed is theirs - ours. Returns three
    numbers: the lower and the upper end of the 95% interval of the mean gain, and what they say. 1,
    better: the lower end is above `least`, the smallest gain that matters. -1, worse: the upper end
    is below -least. 0: these seeds do not tell. As in lesson 7, the interval reaches
    scipy.stats.t.ppf(0.975, n - 1) standard errors to each side, for n common seeds. With fewer
    than three the third number is 0, and with fewer than two the ends do not matter. The losses are
    Python's floats: make tensors of float64."""
    raise NotImplementedError


# ---- the experiment: your network by heart, what it costs, its rate, and the verdict on your runs

def main(steps=100):
    learn_a_batch_by_heart(steps)
    show_costs()
    try_rates(2 * steps)
    judge_runs()


def trained(model, x, y, batches, rate):
    """Take a step for each batch, the indices of its pictures. Returns the loss of each,
    (steps,)."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    losses = []
    for chosen in batches:
        _, loss = model(x[chosen], y[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return torch.tensor(losses)


def learn_a_batch_by_heart(steps):
    import lab
    x, y = lab.shapes('train')
    losses = trained(Network(Config(patch_size=8)), x, y, steps * [slice(32)], rate=3e-3)
    print(f'one batch of 32 pictures by heart: loss {losses[0]:.3f}, '
          f'after {steps} steps {losses[-1]:.3f}')


def show_costs():
    """Of CRATE, of a ViT with as many parameters, and of your network."""
    import lab
    print('cost of layers: parameters, multiply-adds for a token, ms of a step with 32 pictures, '
          'MB that it keeps')
    sizes = {'image_size': 32, 'patch_size': 4, 'n_head': 4, 'num_classes': 10}
    crate = lab.new('crate', n_layer=4, n_embd=96, **sizes)
    d = width_for('vit', 2, parameters('crate', 4, 96), 4)
    vit = lab.new('vit', n_layer=2, n_embd=d, **sizes)
    # a picture has 65 tokens: 64 patches and a class token
    rows = [('CRATE, 4 x 96', crate, 4 * operations('crate', 96, 65)),
            (f'ViT, 2 x {d}', vit, 2 * operations('vit', d, 65)),
            ('yours, 2 x 96', Network(Config(n_embd=96)), 'you know')]
    x, y = lab.shapes('train')
    for name, model, multiply_adds in rows:
        milliseconds, megabytes = lab.cost(model, x[:32].clone(), y[:32])
        count = sum(weight.numel() for weight in model.layers.parameters())
        print(f'  {name}: {count}, {multiply_adds}, {milliseconds:.0f}, {megabytes:.1f}')


def try_rates(steps):
    import lab
    print(f'256 pictures by heart, loss of the last 10 of {steps} steps')
    x, y = lab.shapes('train')
    batches = torch.randint(256, (steps, 64))
    ends = []
    for rate in (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2):
        losses = trained(Network(Config(patch_size=8)), x, y, batches, rate)
        ends.append(losses[-10:].mean())
        print(f'  with a rate of {rate}: {ends[-1]:.3f}', flush=True)
    ends = torch.stack(ends)
    lowest = [f'{best_of(ends, tries):.3f}' for tries in range(1, len(ends) + 1)]
    print('the best of 1, 2, .. of these rates', ', '.join(lowest))


def judge_runs():
    """What may be said of CRATE's runs out/look_1 of lesson 7, and of out/fair_own_1 and so on,
    beside out/fair_vit_1."""
    import lab
    theirs = lab.last_losses('fair_vit')
    for name in ('look', 'fair_own'):
        ours = lab.last_losses(name)
        if ours and theirs:
            low, high, said = verdict(ours, theirs, least=0.05)
            print(f'gain of out/{name} over out/fair_vit: {low:+.3f} to {high:+.3f}, '
                  f'verdict {said}')


if __name__ == '__main__':
    import lab
    lab.run(main, __doc__)
