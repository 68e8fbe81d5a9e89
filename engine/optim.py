"""Optimizers, parameter groups and the learning-rate schedule.

`build` returns a list of torch optimizers. Every parameter is in exactly one group. A group keeps
its peak rate in `base_lr`, which `set_rates` multiplies by the schedule's factor.
"""
import math
from collections import defaultdict

import torch

from engine.device import choose_dtype, share, whole
from engine.settings import Mistake

NAMES, SCHEDULES = ('adamw', 'adam', 'lion', 'muon'), ('cosine', 'linear', 'constant')


class Lion(torch.optim.Optimizer):
    """Lion, "Symbolic Discovery of Optimization Algorithms" (Chen et al. 2023), Algorithm 2.

    The step is the sign of an average of momentum and gradient, so every weight moves by lr. Weight
    decay is decoupled. lr: step size, usually 3 to 10 times smaller than AdamW's. betas: of the
    step, and of the momentum.
    """

    def __init__(self, params, lr=1e-4, betas=(0.9, 0.99), weight_decay=0.0):
        super().__init__(params, dict(lr=lr, betas=betas, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self):
        for group, params, grads, m in with_averages(self, 'exp_avg'):
            (b1, b2), lr = group['betas'], group['lr']
            update = torch._foreach_lerp(m, grads, 1 - b1)              # c = b1 m + (1 - b1) g
            torch._foreach_sign_(update)
            torch._foreach_mul_(params, 1 - lr * group['weight_decay'])
            torch._foreach_add_(params, update, alpha=-lr)              # p -= lr (sign(c) + decay p)
            torch._foreach_lerp_(m, grads, 1 - b2)                      # m = b2 m + (1 - b2) g


class Muon(torch.optim.Muon):
    """torch.optim.Muon with its settings, but matrices of equal shape are orthogonalized together.

    stacked: {matrix: n}, for a matrix that is n of them, one below the other, such as query, key
    and value; each of these is orthogonalized by itself. Under FSDP every process orthogonalizes
    whole matrices and keeps its rows.
    """

    def __init__(self, params, lr, momentum=0.95, weight_decay=0.1, stacked=None):
        super().__init__(params, lr=lr, momentum=momentum, weight_decay=weight_decay)
        self.stacked = stacked or {}

    @torch.no_grad()
    def step(self):
        for group, params, grads, m in with_averages(self, 'momentum_buffer'):
            torch._foreach_lerp_(m, grads, 1 - group['momentum'])       # m = b m + (1 - b) g
            updates = torch._foreach_lerp(grads, m, group['momentum'])  # Nesterov's: b m + (1 - b) g once more
            updates = [whole(update) for update in updates]
            of_shape = defaultdict(list)
            for p, update in zip(params, updates):
                for part in update.chunk(self.stacked.get(p, 1)):
                    of_shape[part.shape].append(part)
            for (rows, columns), parts in of_shape.items():
                directions = orthogonalized(parts, group['ns_coefficients'], group['ns_steps'])
                torch._foreach_copy_(parts, (directions.float() * max(1, rows / columns) ** 0.5).unbind())
            torch._foreach_mul_(params, 1 - group['lr'] * group['weight_decay'])
            torch._foreach_add_(params, [share(u, p) for u, p in zip(updates, params)], alpha=-group['lr'])


def with_averages(optimizer, name):
    """For each group: the group, its parameters that have gradients, these gradients, and the
    average of each, which the optimizer keeps under `name` and which begins with zeros."""
    for group in optimizer.param_groups:
        params = [p for p in group['params'] if p.grad is not None]
        for p in params:
            if not optimizer.state[p]:
                optimizer.state[p][name] = torch.zeros_like(p)
        if params:
            yield group, params, [p.grad for p in params], [optimizer.state[p][name] for p in params]


def orthogonalized(matrices, coefficients, steps):
    """Matrices of one shape -> (n, rows, columns), with all singular values moved close to 1 by
    Newton-Schulz iterations. In bfloat16, as torch.optim.Muon; in float32 where the hardware does
    not multiply bfloat16."""
    (a, b, c), native = coefficients, choose_dtype('auto', matrices[0].device) == torch.bfloat16
    x = torch.stack([matrix.to(torch.bfloat16 if native else torch.float32) for matrix in matrices])
    tall = x.size(1) > x.size(2)
    x = x.mT if tall else x
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x


def build(model, name, lr, muon_lr=0.02, betas=(0.9, 0.95), weight_decay=0.1, momentum=0.95):
    """Optimizers over the model's trainable parameters, each in exactly one group.

    name: 'adamw' (fused), 'adam' (no decay), 'lion', or 'muon': Muon at muon_lr on the matrices in
    `layers` and `decoder_layers` of the model, or of its `student.net`, where query, key and value
    of a fused QKV count as three; AdamW at lr on everything else. Weight decay is on matrices and
    convolutions only, not on norms, biases, class tokens and the positions of pictures, which have
    shape (1, N, d). (In the authors' CRATE script all parameters decay.) Raises Mistake where Muon would find nothing.
    """
    params = {k: p for k, p in model.named_parameters() if p.requires_grad}
    hidden = {k: p for k, p in params.items() if name == 'muon' and p.dim() == 2
              and k.removeprefix('student.net.').startswith(('layers.', 'decoder_layers.'))}
    if name == 'muon' and not hidden:
        raise Mistake(f'optimizer=muon trains the matrices inside `layers`, and {type(model).__name__} has none there; '
                      'say --optimizer=adamw')
    rest = [p for k, p in params.items() if k not in hidden]
    groups = [{'params': [p for p in rest if p.dim() in (2, 4)], 'decays': name != 'adam'},
              {'params': [p for p in rest if p.dim() not in (2, 4)], 'decays': False}]
    # without weight decay AdamW is Adam
    optimizers = [Lion(groups, lr, betas) if name == 'lion' else torch.optim.AdamW(groups, lr, betas, fused=True)]
    if hidden:
        stacked = {p: 3 for k, p in hidden.items() if k.endswith('QKV.weight')}
        optimizers.append(Muon([{'params': [*hidden.values()], 'decays': True}], muon_lr, momentum, stacked=stacked))
    for group in (g for o in optimizers for g in o.param_groups):
        group['base_lr'] = group['lr']
        group['weight_decay'] = weight_decay * group['decays']
    return optimizers


def lr_factor(step, schedule, warmup_iters, lr_decay_iters, min_factor):
    """Share of the peak learning rate at a step, from 0: a linear warm-up, then 'cosine' or
    'linear' down to min_factor at lr_decay_iters and after, or 'constant'."""
    if step < warmup_iters:
        return (step + 1) / (warmup_iters + 1)
    if schedule == 'constant':
        return 1.0
    done = min(1.0, (step - warmup_iters) / max(1, lr_decay_iters - warmup_iters))
    left = (1 + math.cos(math.pi * done)) / 2 if schedule == 'cosine' else 1 - done
    return min_factor + (1 - min_factor) * left


def decay(c, step):
    """The weight decay at a step, by a run's TrainConfig: a cosine to weight_decay_end, if that is not -1."""
    end = c.weight_decay if c.weight_decay_end < 0 else c.weight_decay_end
    return end + (c.weight_decay - end) * lr_factor(step, 'cosine', 0, c.max_iters, 0.0)


def set_rates(optimizers, factor, decay):
    """The learning rate of every group is its peak times the factor; where there is weight decay, it is `decay`."""
    for group in (g for o in optimizers for g in o.param_groups):
        group['lr'] = group['base_lr'] * factor
        group['weight_decay'] = decay * group['decays']
