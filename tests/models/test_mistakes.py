"""Settings that no network can have, and inputs that do not fit one, are refused by name."""
import dataclasses
import math

import pytest
import torch
from helpers import TEXT_NETWORKS, masked_autoencoder, text_network, tokens

from engine import networks

# ---- settings

# what every network refuses that has these settings, and a word of its message
OF_MANY = [
    (dict(n_embd=20, n_head=3), 'n_head'),
    (dict(pool='max'), 'pool'),
    (dict(image_size=32, patch_size=5), 'patch_size'),
    (dict(image_size=(32, 30), patch_size=4), 'image_size'),
    (dict(mask_ratio=0.0), 'mask_ratio'),
    (dict(mask_ratio=1.0), 'mask_ratio'),
    (dict(mask_ratio=math.nan), 'mask_ratio'),
    (dict(image_size=8, patch_size=4, mask_ratio=0.9), 'mask_ratio'),
    (dict(image_size=16, mask_ratio=0.7), 'mask'),
]
for setting in ('dropout', 'label_smoothing'):
    for value in (-0.1, 1.0, math.nan):
        OF_MANY.append(({setting: value}, setting))
for setting in ('n_layer', 'n_head', 'n_embd', 'channels', 'num_classes', 'block_size',
                'vocab_size', 'atoms', 'steps', 'final_norms'):
    OF_MANY.append(({setting: 0}, setting))
for setting in ('n_layer', 'head_dim'):
    OF_MANY.append(({setting: -1}, setting))

SMALL = dict(n_layer=1, n_head=2, n_embd=16, image_size=16, patch_size=4)
OF_ONE = [
    ('aot', dict(attn='mha'), 'attn'),
    ('aot', dict(gelu='relu'), 'gelu'),
    ('aot', dict(init='one'), 'init'),
    ('aot', dict(attn='mhsa', tie_out=True), 'tie_out'),
    ('aot', dict(n_dims=-3), 'n_dims'),
    ('crate', dict(ista='hard'), 'ista'),
    ('crate_mae', dict(n_embd=30, n_head=5), 'n_embd'),
    ('vit_mae', dict(n_embd=30, n_head=5), 'n_embd'),
    ('crate_mae', dict(masking='none'), 'masking'),
    ('crate_mae', dict(decoder_skip='paper'), 'decoder_skip'),
    ('crate_mae', dict(decoder_n_head=5), 'decoder_n_head'),
    ('crate_mae', dict(decoder_n_head=-1), 'decoder_n_head'),
    ('crate_mae', dict(decoder_n_layer=-1), 'decoder_n_layer'),
    ('vit_mae', dict(decoder_n_layer=0), 'decoder_n_layer'),
    ('vit_mae', dict(decoder_n_embd=30), 'decoder_n_embd'),
    ('tost', dict(image_size=16, patch_size=(4, 8)), 'patch_size'),
    ('dino', SMALL | dict(backbone='crate_mae'), 'backbone'),
    ('dino', SMALL | dict(backbone='what'), 'backbone'),
    ('dino', SMALL | dict(objective='what'), 'objective'),
]
for setting in ('out_dim', 'hidden_dim', 'bottleneck_dim', 'head_layers', 'student_temp',
                'teacher_temp', 'warmup_teacher_temp', 'eps', 'alignment_weight'):
    OF_ONE.append(('dino', SMALL | {setting: 0}, setting))
for setting in ('centre_momentum', 'momentum_teacher', 'momentum_teacher_end', 'freeze_share',
                'warmup_temp_share'):
    OF_ONE.append(('dino', SMALL | {setting: -0.1}, setting))
    OF_ONE.append(('dino', SMALL | {setting: 1.1}, setting))


def of_many():
    """(network, settings, word) for each network that has the settings of a row of OF_MANY."""
    rows = []
    for name in networks.names():
        Config = networks.config_class(name)
        setting_names = {field.name for field in dataclasses.fields(Config)}
        for settings, word in OF_MANY:
            if settings.keys() <= setting_names:
                rows.append((name, settings, word))
    return rows


@pytest.mark.parametrize('name, settings, word', [*of_many(), *OF_ONE])
def test_a_setting_that_cannot_be_is_named(name, settings, word):
    Config = networks.config_class(name)

    with pytest.raises(ValueError, match=word):
        Config(**settings)


# ---- inputs


@pytest.mark.parametrize('name', ['aot', 'crate', 'crate_alpha', 'tost', 'vit', 'crate_mae',
                                  'vit_mae'])
def test_pictures_of_another_size_are_refused(name):
    if name in ('crate_mae', 'vit_mae'):
        model = masked_autoencoder(name)[0]
    else:
        Network, Config = networks.network_class(name), networks.config_class(name)
        model = Network(Config(image_size=(8, 12), patch_size=4, n_layer=1, n_head=2, n_embd=16))

    for shape in ((1, 3, 12, 8), (1, 3, 8, 8), (1, 1, 8, 12)):
        with pytest.raises(ValueError, match='resize'):
            model(torch.zeros(shape))


@pytest.mark.parametrize('name', dict(TEXT_NETWORKS))
def test_too_many_tokens_are_refused(name):
    with pytest.raises(ValueError, match='block_size=16'):
        text_network(name)(tokens(1, 17))


def test_too_many_examples_are_refused():
    """Each is two tokens."""
    with pytest.raises(ValueError, match='block_size=16'):
        text_network('aot', n_dims=4)(torch.zeros(1, 9, 4), torch.zeros(1, 9))


@pytest.mark.parametrize('name', ['aot', 'crate', 'crate_alpha', 'tost'])
def test_a_task_that_somebody_adds_is_not_taken_for_text(name):
    Network, Config = networks.network_class(name), networks.config_class(name)

    class Segments(Config):
        task = 'segments'

    with pytest.raises(NotImplementedError, match='segments'):
        Network(Segments(n_layer=1, n_head=2, n_embd=16))
