"""layers.py: what a network of one's own must have, and the released code's measures. tests/analysis/test_network_figures.py
compares what is inside every network with loops."""
import pytest
import torch
from helpers import golden_pictures
from insides import fresh

import model_aot
from analysis import layers
from engine.mistakes import Mistake


@pytest.mark.parametrize('part, named', [('embed', 'CRATE.*embed'), ('layers.1.attn.U', 'MSSA.*U')])
def test_what_a_network_lacks_is_named(part, named):
    model, x = fresh('crate'), (torch.randn(3, 3, 16, 24),)
    owner, _, name = part.rpartition('.')
    delattr(model.get_submodule(owner), name)
    with pytest.raises(ValueError, match=named):
        if 'attn.' in part:  # otherwise the forward pass would fail first
            layers.bases(layers.attentions(model)[1])
        layers.measure_layers(model, [x], layers.layer_measures)


@pytest.mark.parametrize('name', ['crate_classifier', 'crate_classifier_mean_pool', 'crate_classifier_one_head'])
def test_the_measures_of_the_released_code(name):
    mean = 'mean' in name
    model, g, x = golden_pictures(name, pool='mean' if mean else 'cls', eta=0.2 if mean else 0.1)
    found = layers.measure_layers(model, [(x,)], lambda step: layers.layer_measures(step, 'released'))
    for rate, share, want in zip(found['rate'], found['sparsity'], g['outputs']['layerwise_measures'], strict=True):
        found = rate.mean().item(), rate.std().item()
        assert found == pytest.approx((want['coding_rate_mean'], want['coding_rate_std']), rel=1e-3)
        found = 1 - share.mean().item(), share.std(correction=0).item()
        assert found == pytest.approx((want['zero_fraction_mean'], want['zero_fraction_std']), abs=2e-4)


def test_a_network_that_does_more_between_its_layers_is_refused():
    class Skips(model_aot.AoT):
        def forward(self, x, y=None):
            z = first = self.embed(x)
            for layer in self.layers:
                z = layer(z) + first
            return self.read(z, y)
    network = Skips(model_aot.AoTConfig(block_size=8, vocab_size=9, n_layer=3, n_head=2, n_embd=16)).eval()
    ids = torch.arange(8)[None] % 9

    with pytest.raises(Mistake, match='before layer 2'):
        list(layers.inside(network, ids))
    assert len(list(layers.inside(model_aot.AoT(network.config).eval(), ids))) == 3
