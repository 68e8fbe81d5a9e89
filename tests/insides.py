"""Small networks of every kind, and their insides computed in another way: layers by their modules,
heads by slices of weights."""
import re

import numpy as np
import pytest
import torch
from helpers import loud, normalized

import tasks
from engine import networks
from tasks.regression import Prompts
from weights.runs import open_run
from weights.surgery import load_model

SMALL = dict(n_layer=3, n_head=2, n_embd=16)
PICTURES = dict(image_size=(16, 24), patch_size=(4, 8), **SMALL)  # 4 patches down, 3 across
CLASSES = dict(PICTURES, num_classes=3)
TEXT = dict(block_size=12, vocab_size=256, image_size=0, **SMALL)
NETWORKS = {  # the model file and its settings
    'crate': ('crate', dict(CLASSES, head_dim=5)), 'vit': ('vit', CLASSES), 'crate_mae': ('crate_mae', PICTURES),
    'vit_mae': ('vit_mae', dict(PICTURES, decoder_n_layer=1, decoder_n_head=2, decoder_n_embd=16)),
    'aot_pictures': ('aot', CLASSES), 'aot_text': ('aot', TEXT),
    'gpt2': ('gpt2', TEXT), 'crate_gpt': ('crate', TEXT),
    'crate_bert': ('crate', dict(TEXT, causal=False, vocab_size=257)), 'functions': ('aot', dict(TEXT, n_dims=5))}
OTHERS = {  # which some tests alone need
    'crate_alpha': ('crate_alpha', CLASSES), 'mean': ('crate', dict(CLASSES, pool='mean')),
    'tied': ('crate', dict(CLASSES, tie_out=True)), 'one_head': ('crate', dict(CLASSES, n_head=1)),
    'wide': ('crate', dict(CLASSES, image_size=(18, 30), patch_size=(9, 10))), 'elsewhere': ('vit', CLASSES),
    'soft': ('crate', dict(CLASSES, ista='soft')), 'grey': ('crate', dict(CLASSES, channels=1)),
    'letters': ('aot', dict(TEXT, vocab_size=5)), 'mhsa': ('aot', dict(TEXT, attn='mhsa')), 'bpe': ('aot', TEXT)}
MORE = {  # kinds of layers that no run of tests/analysis/conftest.py has
    'mm': ('crate', dict(CLASSES, ista='mm', alpha=0.5)), 'bare': ('crate', dict(CLASSES, patch_norm=False)),
    'soft text': ('crate', dict(TEXT, ista='soft', final_norm=True, tie_out=True)),
    'class token': ('vit', dict(CLASSES, pool='cls')), 'two norms': ('vit', dict(CLASSES, final_norms=2)),
    'tie': ('aot', dict(TEXT, tie_out=True, eta=0.3)), 'gelu': ('aot', dict(TEXT, mlp=True, gelu='tanh', head_dim=5)),
    'mean of all': ('aot', dict(CLASSES, pool='mean', bias=True)),
    'zeros': ('crate_mae', dict(PICTURES, masking='zero', norm_pix_loss=True)),
    'listing 3': ('crate_mae', dict(PICTURES, decoder_skip='normed', decoder_n_layer=2, decoder_n_head=4)),
    'tied mae': ('crate_mae', dict(PICTURES, tie_out=True, lam=0.1, eta=0.3))}
ALL = NETWORKS | OTHERS | MORE
THREE = 'vit', 'vit_mae', 'gpt2', 'mhsa', 'elsewhere'  # projections per head, so there is no one subspace


WITHOUT_UNITS = 'aot_pictures', 'aot_text', 'mhsa', 'letters', 'bpe'  # layers of attention alone


def config_of(name):
    model, settings = ALL[name]
    return networks.config_class(model)(**settings)


def kind_of(name):
    return tasks.kind_of(config_of(name))


def fresh(name, seed=1337):
    """The network with random weights that analyze.py draws beside a trained one."""
    torch.manual_seed(seed)
    return networks.network_class(ALL[name][0])(config_of(name)).eval()


def loud_network(name):
    """A network whose attention is far from uniform, and whose biases are not 0."""
    model = loud(fresh(name, 0))
    for k, p in model.named_parameters():
        if k.endswith('bias'):
            torch.nn.init.normal_(p, std=0.3)
    return model


def walk(model, *x):
    """Layer by layer: attention, LN(Z^l), Z^l, Z^(l+1/2), Z^(l+1)."""
    z = model.embed(*x)
    for layer in model.layers:
        normed = layer.norm1(z)
        half = z + layer.attn(normed)
        if hasattr(layer, 'ista'):
            after = layer.ista(layer.norm2(half)) + (half if getattr(layer, 'skip', False) else 0)
        else:
            after = half + layer.mlp(layer.norm2(half)) if layer.mlp else half
        yield layer.attn, normed, z, half, after
        z = after


def projections(attention, part):
    """[(matrix (d, p), bias) of every head]; part: 0 query, 1 key, 2 value."""
    maps, part = (attention.U, 0) if hasattr(attention, 'U') else (attention.QKV, part)
    p = len(maps.weight) // attention.K // (1 if hasattr(attention, 'U') else 3)
    first = [(part * attention.K + k) * p for k in range(attention.K)]
    return [(maps.weight[i:i + p].T, 0 if maps.bias is None else maps.bias[i:i + p]) for i in first]


def heads_of(attention, z, part=2):
    """Tokens (.., N, d) as each head sees them, (.., K, N, p)."""
    return torch.stack([z @ U + b for U, b in projections(attention, part)], -3)


# ---- the runs and datasets that tests/analysis/conftest.py makes


def load(place, name, **overrides):
    return load_model(open_run(place / 'runs' / name), **overrides)


def cropped(place, i):
    """Picture i of `pics` as a network sees it, (1, 3, 16, 24)."""
    return normalized(np.load(place / 'data' / 'pics' / 'test.images.npy')[i:i + 1, 2:18, 3:27])


def inputs(place, name):
    """All pictures of the test split, the text of the val split, or 7 prompts of 6 values of functions that depend on 3
    of 5 numbers."""
    if name == 'functions':
        return next(Prompts('sparse_linear', 5, 6, 3).fixed(7, 1))
    if kind_of(name) == 'images':
        return torch.cat([cropped(place, i) for i in range(18)]),
    return torch.tensor(np.load(place / 'data' / 'text' / 'val.npy')[:72].astype(np.int64)).view(6, 12),


def layer_of(place, name, i, l):
    """The attention of layer l (from 0) of a run, and its input for picture i, (N, d)."""
    attention, normed, *_ = list(walk(load(place, name), cropped(place, i)))[l]
    return attention, normed[0]


def chosen(rows):
    """The numbers of the pictures that a table is about, in its order."""
    return list(dict.fromkeys(int(re.match(r'test (\d+), ', row['picture'])[1]) for row in rows))


def close(a, b, rel, abs):
    """Fails unless two tables are the same up to rounding."""
    for row, other in zip(a, b, strict=True):
        for k in row:
            try:
                assert float(row[k]) == pytest.approx(float(other[k]), rel=rel, abs=abs), (k, row, other)
            except ValueError:
                assert row[k] == other[k]


def floats(rows, *columns):
    return [tuple(float(row[k]) for k in columns) for row in rows]


def shows(command, name):
    """Whether a command has a meaning for a network."""
    kind = kind_of(name)
    return not (kind != 'images' and command in ('pca', 'segment', 'objects')
                or kind == 'functions' and command in ('tokens', 'attention', 'atoms')
                or command == 'atoms' and name in WITHOUT_UNITS
                or command == 'ista' and 'crate' not in ALL[name][0]
                or command in ('denoise', 'compress') and name in THREE)
