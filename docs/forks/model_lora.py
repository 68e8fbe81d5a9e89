"""LoRA (Hu et al. 2021): a trained AoT whose layers have W + B A in the place of each matrix W.
Only A and B learn, two matrices of low rank, and a run saves them alone."""
from dataclasses import dataclass, replace

import torch
from torch import nn
from torch.nn.utils.parametrize import register_parametrization

from model_aot import AoT, AoTConfig, ConfigError
from weights.runs import open_run


@dataclass
class LoRAConfig:
    base: str = 'out/aot_stdlib'    # run directory of the trained AoT
    rank: int = 4                   # rows of A, columns of B
    vocab_size: int = 0             # this and what follows is that of base
    image_size: int | tuple = 0
    n_dims: int = 0

    def __post_init__(self):
        run = open_run(self.base)
        if run.model != 'aot':
            raise ConfigError(f'{self.base} holds model={run.model}; give --base of an AoT')
        vars(self).update(run.network)
        self.task = AoTConfig(**run.network).task


class Sum(nn.Module):
    matrices = ('A', 'B')           # they have weight decay, and Muon may train them

    def __init__(self, W, rank):
        super().__init__()
        self.A = nn.Parameter(torch.randn(rank, W.size(1)) / W.size(1) ** 0.5)
        self.B = nn.Parameter(torch.zeros(W.size(0), rank))

    def forward(self, W):
        return W + self.B @ self.A


class LoRA(AoT):
    def __init__(self, config):
        run = open_run(config.base)
        super().__init__(AoTConfig(**run.network))
        self.load_state_dict(run.weights, strict=False)  # a shared weight is there once
        self.requires_grad_(False)
        self.config = config
        for module in list(self.layers.modules()):
            if isinstance(module, nn.Linear):
                register_parametrization(module, 'weight', Sum(module.weight, config.rank))

    def state_dict(self, *args, **settings):
        weights = super().state_dict(*args, **settings)
        return {name: weights[name] for name in weights if name.endswith(('.A', '.B'))}

    @staticmethod
    def opened(run):
        """The run as one of AoT, whose matrices are the sums."""
        base = open_run(run.network['base'])
        for name, B in run.weights.items():
            if name.endswith('.B'):
                A = run.weights[name.removesuffix('B') + 'A']
                base.weights[name.replace('parametrizations.weight.0.B', 'weight')] += B @ A
        return replace(run, model='aot', network=base.network, weights=base.weights)


Network, Config = LoRA, LoRAConfig
