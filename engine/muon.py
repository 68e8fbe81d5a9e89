"""Muon (Jordan et al. 2024, kellerjordan.github.io/posts/muon), for --optimizer=muon, and what Lion
shares with it. Other runs do not load this."""
from collections import defaultdict

import torch

from engine.device import choose_dtype


class Muon(torch.optim.Muon):
    """torch.optim.Muon with its defaults, but matrices of equal shape are orthogonalized together.

    stacked: {parameter: n}, for a parameter that holds n matrices, one below the other, such as
    query, key and value. Each of the n is orthogonalized by itself.
    """

    def __init__(self, params, lr, momentum=0.95, weight_decay=0.1, stacked=None):
        super().__init__(params, lr=lr, momentum=momentum, weight_decay=weight_decay)
        self.stacked = stacked or {}

    @torch.no_grad()
    def step(self):
        for group, params, grads, m in with_averages(self, 'momentum_buffer'):
            momentum = group['momentum']
            torch._foreach_lerp_(m, grads, 1 - momentum)             # m = b m + (1 - b) g
            updates = torch._foreach_lerp(grads, m, momentum)        # Nesterov: (1 - b) g + b m
            self.orthogonalize(params, updates, group)
            torch._foreach_mul_(params, 1 - group['lr'] * group['weight_decay'])
            torch._foreach_add_(params, updates, alpha=-group['lr'])

    def orthogonalize(self, params, updates, group):
        """Replace each update by its orthogonalized form, in place."""
        parts_of_shape = defaultdict(list)
        for p, update in zip(params, updates):
            # parts are views, so what is copied into them below is in the updates
            for part in update.chunk(self.stacked.get(p, 1)):
                parts_of_shape[part.shape].append(part)
        for (rows, columns), parts in parts_of_shape.items():
            directions = orthogonalized(parts, group['ns_coefficients'], group['ns_steps'])
            directions = directions.float() * max(1, rows / columns) ** 0.5
            torch._foreach_copy_(parts, directions.unbind())


def with_averages(optimizer, name):
    """For each group: the group, its parameters that have gradients, these gradients, and the
    average of each, which the optimizer keeps under `name` and which begins with zeros."""
    for group in optimizer.param_groups:
        params = [p for p in group['params'] if p.grad is not None]
        if not params:
            continue
        for p in params:
            if not optimizer.state[p]:
                optimizer.state[p][name] = torch.zeros_like(p)
        gradients = [p.grad for p in params]
        averages = [optimizer.state[p][name] for p in params]
        yield group, params, gradients, averages


def orthogonalized(matrices, coefficients, steps):
    """Matrices of one shape -> (n, rows, columns), with all singular values moved close to 1 by
    Newton-Schulz iterations. In bfloat16, as torch.optim.Muon; in float32 where the hardware does
    not multiply bfloat16."""
    a, b, c = coefficients
    dtype = torch.float32
    if choose_dtype('auto', matrices[0].device) == torch.bfloat16:  # the hardware is fast at it
        dtype = torch.bfloat16
    x = torch.stack(matrices).to(dtype)
    tall = x.size(1) > x.size(2)
    if tall:
        x = x.mT
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        polynomial = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)  # b G + c G G
        x = torch.baddbmm(x, polynomial, x, beta=a)                    # a X + (b G + c G G) X
    if tall:
        x = x.mT
    return x
