"""Lesson 7: four runs of lesson 4's network. One is sound, and three have one fault each. Look for
the faults in the figures before you read below how the runs are made.

    python course/runs.py
"""
import sys
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy, layer_norm, linear

# with our functions of lesson 4, whatever is in yours, if your copy has them
sys.path.insert(0, str(Path(__file__).resolve().parent / 'answers'))
import lab  # noqa: E402
import lesson4  # noqa: E402

HEADS = 3
ETA = 0.1
FIGURES = {                     # name in the file's name: label of the axis
    'loss': 'loss, nats',
    'not_zero': 'share of numbers that are not 0',
    'gradient': 'size of the gradient of U',
}


def main(steps=400):
    x, y = lab.shapes('train')
    weights = lab.first_weights('crate', n_layer=2, n_head=HEADS, n_embd=96, image_size=32,
                                patch_size=8, num_classes=10)
    labels_of_others = y[torch.randperm(len(y))]
    curves = {
        'A': trained(weights, x, y, steps, rate=1e-1),
        'B': trained(weights, x, y, steps, lam=100.0),
        'C': trained(weights, x, y, steps),
        'D': trained(weights, x, labels_of_others, steps),
    }
    for what, label in FIGURES.items():
        # gradients differ by factors of a million; a logarithmic axis has no place for 0
        scale = 'log' if what == 'gradient' else 'linear'
        smooth = {name: lab.smooth(numbers[what]) for name, numbers in curves.items()}
        lab.draw(f'lesson7_{what}.png', 'step', label, smooth, yscale=scale)
        for name, numbers in curves.items():
            values = numbers[what]
            print(f'  {name}: {values[0]:.3g} at first, {values[-10:].mean():.3g} '
                  f'in the last 10 of {steps} steps')


def trained(weights, x, y, steps, rate=1e-3, lam=0.1):
    """Train as lesson 4 does. Returns {'loss', 'not_zero', 'gradient': (steps,)}: of each step the
    loss, the share of numbers in the tokens after the last layer that are not 0, and the length of
    the gradient of U in the first layer."""
    weights = {name: weight.clone().requires_grad_() for name, weight in weights.items()}
    optimizer = torch.optim.AdamW(weights.values(), lr=rate)
    rows = []  # for each step the numbers that FIGURES names
    for chosen in torch.randint(len(x), (steps, 64)):
        tokens, logits = forward(weights, x[chosen], lam)
        loss = cross_entropy(logits, y[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        not_zero = (tokens != 0).double().mean()
        rows.append([loss.item(), not_zero, weights['layers.0.attn.U.weight'].grad.norm()])
    return dict(zip(FIGURES, torch.tensor(rows).T))


def forward(weights, x, lam):
    """Pictures (B, C, H, W) -> tokens after the last layer (B, N + 1, d); logits (B, classes)."""
    z = lesson4.tokens(x, lesson4.part(weights, 'embed'), 8, 8)
    for i in range(2):
        z = lesson4.layer(z, lesson4.part(weights, f'layers.{i}'), HEADS, ETA, lam)
    norm = weights['read.norm.weight'], weights['read.norm.bias']
    class_token = layer_norm(z[:, 0], norm[0].shape, *norm)                     # (B, d)
    return z, linear(class_token, weights['read.head.weight'], weights['read.head.bias'])


if __name__ == '__main__':
    lab.run(main, __doc__)
