"""ViT: equal to the authors' code through its own weights."""
import pytest
import torch
from helpers import golden, golden_pictures, same_tokens

from model_vit import ViT, ViTConfig


@pytest.mark.parametrize('pool', ['cls', 'mean'])
def test_vit_equals_the_released_code_layer_by_layer(pool):
    sd, _ = golden('vit')
    if pool == 'cls':
        sd = {k.replace('fc_norm', 'norm'): v for k, v in sd.items()}
    model, g, x = golden_pictures('vit', sd)
    want = g['outputs']['global_pool_true' if pool == 'mean' else 'global_pool_false']
    assert model.config.pool == pool
    logits = want['logits_if_final_norm_applied_once'] if pool == 'mean' else want['logits']
    assert (model(x)[0] - torch.tensor(logits)).abs().max() < 1e-5
    if pool == 'mean':  # timm 1.0.9 applies fc_norm twice
        twice = ViT.from_official(sd, n_head=model.config.n_head, image_size=model.config.image_size,
                                  patch_size=model.config.patch_size, final_norms=2)
        assert (twice(x)[0] - torch.tensor(want['logits'])).abs().max() < 1e-5
    assert model.num_params() == g['parameter_count']['all']
    z = model.embed(x)
    same_tokens(z, want['tokens']['tokens_before_layers'])
    for l, layer in enumerate(model.layers):
        z = layer(z)
        same_tokens(z, want['tokens'][f'layer{l}.output'])


def test_the_papers_sizes():
    for (n_layer, n_embd, n_head), count in {(12, 192, 3): 5_717_416, (12, 384, 6): 22_050_664,
                                             (12, 768, 12): 86_567_656, (24, 1024, 16): 304_326_632}.items():
        with torch.device('meta'):
            assert ViT(ViTConfig(n_layer=n_layer, n_embd=n_embd, n_head=n_head)).num_params() == count
