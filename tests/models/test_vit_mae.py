"""ViT-MAE: equal to the original code layer by layer, and its sizes."""
import torch
from helpers import golden_pictures, noise_of, same_tokens

from model_vit_mae import ViTMAE, ViTMAEConfig


def test_vit_mae_equals_the_original_layer_by_layer():
    model, g, x = golden_pictures('vit_mae')
    want, visible = g['outputs']['tokens'], model.visible(noise_of(g))
    same_tokens(model.embed.patch(x).flatten(2).mT, want['patch_embedding'])
    z = model.embed(x, visible)
    same_tokens(z, want['tokens_before_encoder'])
    for l, layer in enumerate(model.layers):
        z = layer(z)
        same_tokens(z, want[f'encoder{l}.output'])
    z = model.norm(z)
    same_tokens(z, want['encoder_norm'])
    seen, checked = [], []
    model.decoder_layers[0].register_forward_pre_hook(lambda layer, args: seen.append(args[0]))
    for l, layer in enumerate(model.decoder_layers):
        layer.register_forward_hook(lambda layer, args, out, l=l: checked.append(
            same_tokens(out, want[f'decoder{l}.output'])))
    model.decode(z, visible)
    assert len(checked) == 2
    same_tokens(seen[0], want['tokens_before_decoder'])
    same_tokens(model.decoder_norm(model.decoder_layers(seen[0])), want['decoder_norm'])


def test_parameters_counted_both_ways():
    """The paper's counts, 47.6 and 143.8 million, have two fixed position tables too."""
    table = 197
    for d, n_head, width, ours in ((384, 6, 512, 47_401_728), (768, 12, 768, 143_533_824), (768, 12, 512, 111_655_680)):
        with torch.device('meta'):
            model = ViTMAE(ViTMAEConfig(n_embd=d, n_head=n_head, decoder_n_embd=width))
        theirs = sum(t.numel() for t in model.to_official().values())
        assert model.num_params() == ours and theirs == ours + table * (d + width)
    assert round((47_401_728 + table * 896) / 1e5) == 476 and round((143_533_824 + table * 1536) / 1e5) == 1438
