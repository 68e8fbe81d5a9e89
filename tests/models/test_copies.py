"""Model files stand alone, so some operators and helpers stand in several files. Where no golden numbers hold a copy,
it computes here what the others compute."""
import importlib

import pytest
import torch

from engine import networks

PICTURES = dict(image_size=(16, 24), patch_size=(8, 4), num_classes=3, n_layer=1, n_head=3, n_embd=12)

# two networks, their settings, and the parts that are copies
COPIES = [
    ('crate', 'aot', dict(bias=True), ['embed', 'read', 'layers.0.attn', 'layers.0.attn.average']),
    ('crate', 'aot', dict(bias=True, tie_out=True, label_smoothing=0.1, pool='mean'), ['read', 'layers.0.attn']),
    ('crate', 'crate_mae', dict(eta=0.3, lam=0.4), ['layers.0.attn', 'layers.0.ista', 'layers.0']),
    ('crate', 'crate_mae', dict(tie_out=True), ['layers.0.attn'])]


@pytest.mark.parametrize('one, other, settings, parts', COPIES)
def test_parts_of_two_networks_compute_the_same(one, other, settings, parts):
    torch.manual_seed(0)
    models = []
    for Network, Config in map(networks.network, (one, other)):
        models.append(Network(Config(**{k: v for k, v in (PICTURES | settings).items() if hasattr(Config, k)})))
    for p in models[0].parameters():
        torch.nn.init.normal_(p)
    z = torch.randn(2, 7, 12)
    inputs = {'embed': (torch.randn(2, 3, 16, 24),), 'read': (z, torch.tensor([0, 2])),
              'layers.0.attn.average': (z, z + 1, z - 1)}
    for part in parts:
        ours, theirs = (model.get_submodule(part) for model in models)
        theirs.load_state_dict(ours.state_dict(), strict=False)     # biases of AoT's U stay
        torch.testing.assert_close(ours(*inputs.get(part, (z,))), theirs(*inputs.get(part, (z,))), rtol=0, atol=1e-5)
        assert part != 'read' or torch.equal(ours.features(z), theirs.features(z))


def test_all_cut_pictures_into_the_same_patches():
    x = torch.randn(2, 3, 16, 24)
    patches = [importlib.import_module(f'model_{name}').patchify(x, 3, 16, 24, 8, 4)
               for name in ('aot', 'crate', 'crate_mae', 'vit_mae')]
    assert all(torch.equal(patches[0], other) for other in patches)
