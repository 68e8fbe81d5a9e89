"""Lesson 7: four runs of lesson 4's network. One is sound, and three have one fault each. Look for the faults in the
figures before you read how the runs are made.

    python course/answers/runs.py
"""
import sys
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy, linear

sys.path.append(str(Path(__file__).resolve().parents[1]))
import lab  # noqa: E402
import lesson4  # noqa: E402  (the answer)

HEADS, ETA = 3, 0.1


def trained(weights, x, y, rate, lam, steps):
    """Train as lesson 4 does. Returns of each step the loss, the share of numbers in the tokens after the last layer
    that are not 0, and the length of the gradient of U in the first layer."""
    weights = {k: v.clone().requires_grad_() for k, v in weights.items()}
    optimizer, seen = torch.optim.AdamW(weights.values(), lr=rate), []
    for i in torch.randint(len(x), (steps, 64)):
        z = lesson4.tokens(x[i], lesson4.part(weights, 'embed'), 8, 8)
        for l in range(2):
            z = lesson4.layer(z, lesson4.part(weights, f'layers.{l}'), HEADS, ETA, lam)
        read = lesson4.norm(z[:, 0], weights, 'read.norm')
        loss = cross_entropy(linear(read, weights['read.head.weight'], weights['read.head.bias']), y[i])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen.append((loss.item(), (z != 0).double().mean(), weights['layers.0.attn.U.weight'].grad.norm()))
    return torch.tensor(seen).T


def main(steps=400):
    (x, y), weights = lab.shapes('train'), lab.first_weights(
        'crate', n_layer=2, n_head=HEADS, n_embd=96, image_size=32, patch_size=8, num_classes=10)
    of_another = y[torch.randperm(len(y))]
    runs = {'A': (y, 1e-1, 0.1), 'B': (y, 1e-3, 100.0), 'C': (y, 1e-3, 0.1), 'D': (of_another, 1e-3, 0.1)}
    runs = {name: trained(weights, x, *run, steps) for name, run in runs.items()}
    figures = ('loss', 'loss, nats'), ('not_zero', 'share of numbers that are not 0'), ('gradient', 'gradient of U')
    for i, (what, label) in enumerate(figures):
        lab.draw(f'lesson7_{what}.png', 'step', label, {name: lab.smooth(seen[i]) for name, seen in runs.items()})
        for name, seen in runs.items():
            print(f'  {name}: {seen[i, 0]:.3g} at first, {seen[i, -10:].mean():.3g} in the last 10 of {steps} steps')


if __name__ == '__main__':
    main()
