"""A model file runs in an empty folder, with PyTorch alone: it makes a network, takes a step, and
says a next token. Only generation with a cache and the authors' formats call the engine. DINO needs
the file of a network inside it."""
import json
import shutil

import pytest
from helpers import ROOT, run

SIZES = dict(n_layer=2, n_head=2, n_embd=16)
PICTURES = SIZES | dict(image_size=8, patch_size=4)
TEXT = SIZES | dict(block_size=10, vocab_size=11)
CASES = [
    ('aot', TEXT),
    ('aot', TEXT | dict(attn='mhsa', mlp=True)),
    ('aot', TEXT | dict(n_dims=3)),
    ('aot', PICTURES),
    ('crate', PICTURES),
    ('crate', TEXT | dict(image_size=0)),
    ('crate_alpha', PICTURES),
    ('crate_alpha', TEXT | dict(image_size=0)),
    ('crate_mae', PICTURES),
    ('tost', TEXT),
    ('tost', PICTURES),
    ('vit', PICTURES),
    ('vit_mae', PICTURES | dict(decoder_n_embd=16, decoder_n_head=2)),
    ('dino', PICTURES | dict(out_dim=12, hidden_dim=10, bottleneck_dim=6)),
]
SCRIPT = '''
import importlib
import json
import sys

import torch


def batch(task):
    pictures = torch.randn(3, 3, 8, 8)
    if task == 'text':
        return torch.randint(11, (3, 7)), torch.randint(11, (3, 7))
    if task == 'icl':
        return torch.randn(3, 5, 3), torch.randn(3, 5)
    if task == 'views':
        return (torch.stack((pictures, pictures)), torch.empty(0, 3, 3, 4, 4)), None
    if task == 'image':
        return pictures, torch.tensor([0, 1, 2])
    return pictures, None


for folder, name, settings in json.loads(sys.argv[1]):
    # import this folder's files, and none that another case has imported
    sys.path[0] = folder
    for module_name in list(sys.modules):
        if module_name.startswith('model_'):
            del sys.modules[module_name]
    file = importlib.import_module(name)
    assert file.__file__.startswith(folder)

    model = file.Network(file.Config(**settings))
    x, y = batch(model.config.task)
    weights = [p for p in model.parameters() if p.requires_grad]
    loss = model(x, y)[1]
    loss.backward()
    torch.optim.SGD(weights, lr=1e-3).step()
    assert loss.isfinite()

    if model.config.task == 'text':
        logits, _ = model.eval()(x)
        token = logits[:, -1].argmax(dim=1)
        assert token.shape == (3,)
    print(name)
'''


@pytest.mark.slow
def test_a_model_file_stands_alone(tmp_path):
    cases = []
    for name, settings in CASES:
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        shutil.copy(ROOT / f'model_{name}.py', folder)
        cases.append((str(folder), f'model_{name}', settings))
    shutil.copy(ROOT / 'model_crate.py', tmp_path / 'dino')
    script = tmp_path / 'script.py'
    script.write_text(SCRIPT)

    process = run(script, json.dumps(cases), cwd=tmp_path, PYTHONPATH='')

    assert process.returncode == 0, process.stderr
    assert process.stdout.split() == [f'model_{name}' for name, _ in CASES]
