"""What tests in every folder share: the golden files, a small text, and properties of any network."""
import copy
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from analysis import layers
from engine import settings

ROOT = Path(__file__).resolve().parent.parent

# 60 kB of text that is the same everywhere and always
WORDS = 'the of and a to in subspace token layer naïve ünd compress, sparsify. 42\n'.split(' ')
TEXT = ' '.join(np.random.default_rng(0).choice(WORDS, 12_000))


def golden(name):
    """A golden file, and the weights that it was made with, by the recipe that it states; without fixed positions."""
    g = json.loads((ROOT / 'tests' / 'golden' / f'{name}.json').read_text())
    sd = {}
    for i, (key, shape, fill, first) in enumerate(g['state_dict']):
        sd[key] = 0.05 * torch.randn(shape, generator=torch.Generator().manual_seed(1000 + i)) + (fill == 'normal+1')
    for key, shape, fill, first in g['state_dict']:
        if fill == 'keep':
            del sd[key]
            continue
        if fill.startswith('tied to '):
            sd[key] = sd[fill.removeprefix('tied to ')]
        assert sd[key].flatten()[0].item() == pytest.approx(first, rel=1e-5)
    return sd, g


def loud(model):
    """The same model with attention far from uniform, in evaluation mode."""
    with torch.no_grad():
        for attention in layers.attentions(model):
            for p in attention.parameters():
                p.mul_(4 if p.std() > 0.1 else 20)
    return model.eval()


def memorize(model, x, y, below, steps=500, lr=1e-2):
    """Train on one batch until its loss is below `below`; fails if that takes more steps, or a parameter has no gradient."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0)
    for _ in range(steps):
        loss = model(x, y)[1]
        if loss < below:
            return
        loss.backward()
        assert all(p.grad is not None for p in model.parameters())
        optimizer.step()
        optimizer.zero_grad()
    pytest.fail(f'the loss is {loss.item():.3f} after {steps} steps')


def same_in_chunks(model, x, y, monkeypatch):
    """The loss and its gradient do not depend on how many logits are held at once; then none come back."""
    chunked = copy.deepcopy(model)
    monkeypatch.setattr(chunked, 'LOGITS_AT_ONCE', 7 * model.config.vocab_size)
    a, b = model(x, y), chunked(x, y)
    assert b[0] is None and a[0].shape == (*x.shape, model.config.vocab_size)
    assert a[1].item() == pytest.approx(b[1].item(), rel=1e-6)
    a[1].backward(), b[1].backward()
    for p, q in zip(model.parameters(), chunked.parameters()):
        assert torch.allclose(p.grad, q.grad, atol=1e-6)


def fails(capsys, main, *words):
    """The one line that a user sees after a mistake; nothing else is printed on standard error."""
    with pytest.raises(SystemExit) as e, settings.one_line_errors():
        main(list(words))
    lines = capsys.readouterr().err.splitlines()
    assert e.value.code == 2 and len(lines) == 1 and lines[0].startswith('error: '), lines
    return lines[0]


def run(*words, cwd=None, **env):
    """A script of the project as a user starts it; returns the finished process."""
    return subprocess.run([sys.executable, str(ROOT / words[0]), *words[1:]], cwd=cwd, capture_output=True, text=True,
                          timeout=300, env=os.environ | env)


def losses(out):
    """Rows of a run's log.csv without the time that they took."""
    return [line.rsplit(',', 1)[0] for line in (Path(out) / 'log.csv').read_text().splitlines()]
