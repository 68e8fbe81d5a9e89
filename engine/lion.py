"""Lion, for --optimizer=lion. Only runs that ask for it load this."""
import torch

from engine.muon import with_averages


class Lion(torch.optim.Optimizer):
    """Lion, "Symbolic Discovery of Optimization Algorithms" (Chen et al. 2023,
    arXiv:2302.06675), Algorithm 2.

    The step is the sign of an average of momentum and gradient, so every weight moves by lr. Weight
    decay is decoupled. lr: step size, usually 3 to 10 times smaller than AdamW's. betas: of the
    step, and of the momentum.
    """

    def __init__(self, params, lr=1e-4, betas=(0.9, 0.99), weight_decay=0.0):
        super().__init__(params, dict(lr=lr, betas=betas, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self):
        for group, params, grads, m in with_averages(self, 'exp_avg'):
            beta1, beta2 = group['betas']
            lr = group['lr']
            update = torch._foreach_lerp(m, grads, 1 - beta1)        # c = b1 m + (1 - b1) g
            torch._foreach_sign_(update)
            torch._foreach_mul_(params, 1 - lr * group['weight_decay'])
            torch._foreach_add_(params, update, alpha=-lr)           # p -= lr (sign(c) + decay p)
            torch._foreach_lerp_(m, grads, 1 - beta2)                # m = b2 m + (1 - b2) g
