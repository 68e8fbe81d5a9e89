"""An optimizer that keeps numbers in its groups, and that validates other weights than it trains."""
import pytest
import torch
from helpers import before_step, equal, go, losses, weights

from weights.runs import read_last


class ScheduleFree(torch.optim.Optimizer):
    """Schedule-free gradient descent (Defazio et al., 2024). It trains y, a mix of z and of the
    average x of all z. eval() puts x in the place of y. As in the authors' library, train() mixes
    y of x and z again, up to rounding, and the groups hold the number of steps and the mode."""

    def __init__(self, params, lr, beta=0.9):
        super().__init__(params, dict(lr=lr, beta=beta, steps=0, trains=False))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            assert group['trains'], 'call train() before a step'
            group['steps'] += 1
            for p in group['params']:
                if p.grad is None:
                    continue
                z = self.state[p].setdefault('z', p.clone())
                x = p.lerp(z, 1 - 1 / group['beta'])
                z.sub_(group['lr'] * p.grad)
                x.lerp_(z, 1 / group['steps'])
                p.copy_(z.lerp(x, group['beta']))

    def train(self):
        self.mix(True, lambda beta: 1 - beta)

    def eval(self):
        self.mix(False, lambda beta: 1 - 1 / beta)

    @torch.no_grad()
    def mix(self, trains, share_of_z):
        for group in self.param_groups:
            if group['trains'] != trains:
                group['trains'] = trains
                for p in group['params']:
                    if 'z' in self.state[p]:
                        p.lerp_(self.state[p]['z'], share_of_z(group['beta']))


@pytest.fixture
def schedule_free(tiny, monkeypatch):
    """The words of a run with this optimizer, which is made in the place of AdamW."""
    def adamw(groups, lr, betas, fused):
        return ScheduleFree(groups, lr)
    monkeypatch.setattr(torch.optim, 'AdamW', adamw)
    return [*tiny, '--optimizer=adamw', '--learning_rate=0.5', '--schedule=constant',
            '--eval_interval=3']


def state_of(out):
    return read_last(out)['optimizers']


def test_a_killed_run_goes_on_bit_for_bit(schedule_free, tmp_path, monkeypatch):
    go(*schedule_free, f'--out_dir={tmp_path}/whole')

    def die():
        raise KeyboardInterrupt
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        before_step(patch, 5, die)
        go(*schedule_free, f'--out_dir={tmp_path}/killed')
    go('--init_from=resume', f'--out_dir={tmp_path}/killed')

    assert losses(tmp_path / 'killed') == losses(tmp_path / 'whole')
    assert equal(state_of(tmp_path / 'killed'), state_of(tmp_path / 'whole'))
    for name in ('last', 'best'):
        assert equal(weights(tmp_path / 'killed', name), weights(tmp_path / 'whole', name))
    steps = {group['steps'] for o in state_of(tmp_path / 'whole') for group in o['param_groups']}
    assert steps == {read_last(tmp_path / 'whole')['step']}


def test_a_rate_that_is_typed_anew_counts(schedule_free, tmp_path):
    go(*schedule_free, '--max_iters=3', f'--out_dir={tmp_path}')
    go('--init_from=resume', '--max_iters=6', '--learning_rate=0.25', f'--out_dir={tmp_path}')

    groups = state_of(tmp_path)[0]['param_groups']
    assert {group['base_lr'] for group in groups} == {0.25}
    assert {group['steps'] for group in groups} == {6}


def test_the_average_is_validated_and_kept_as_the_best(schedule_free, tmp_path):
    go(*schedule_free, '--max_iters=6', f'--out_dir={tmp_path}')

    best = weights(tmp_path, 'best')
    zs = [entry['z'] for entry in state_of(tmp_path)[0]['state'].values()]
    for name, y in weights(tmp_path, 'last').items():
        x = best[name]
        assert not torch.equal(x, y)
        assert any(z.shape == y.shape and torch.allclose(z.lerp(x, 0.9), y, atol=1e-6) for z in zs)
