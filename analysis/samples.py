"""What analyze.py looks at: the networks that checkpoints hold, others with random weights beside them, and the pictures, texts
or prompts that they are given."""
import itertools
import math
from dataclasses import dataclass, replace

import numpy as np
import torch
from tqdm import tqdm

from tasks import files as data
from tasks import regression as icl
from analysis import layers as inside
from engine.machine import choose_device
from engine.checkpoints import grid, load_model, load_weights, reads
from tasks import dataset_of
from tasks.pictures import pictures_of, seen
from tasks.text import prompt_of, with_masks
from tasks.tokenizer import Tokenizer


@dataclass(eq=False)
class Network:
    name: str
    checkpoint: dict
    model: torch.nn.Module
    colour: str             # of its lines; random weights have that of the first network of the same architecture
    kind: str = 'trained'   # or 'random'


def networks(c, checkpoint, overrides, random):
    """The networks of --ckpt and --beside; if random, for every different architecture also one with random weights."""
    device, found, firsts = choose_device(c.device), [], {}
    for path in dict.fromkeys((c.ckpt, *filter(None, c.beside.split(',')))):
        held, own, official = checkpoint, overrides, path.startswith('official:')
        if official and not c.ckpt.startswith('official:'):
            raise ValueError(f'{path}: name the official file with --ckpt, and yours with --beside')
        if path != c.ckpt:  # what was typed about an official file says nothing about a run of ours
            own = overrides if official or not c.ckpt.startswith('official:') else {}
            held = load_weights(path, c.model if official else '', **own)
        if held['data']['kind'] != checkpoint['data']['kind']:
            raise ValueError(f'{path} reads {held["data"]["kind"]}, {c.ckpt} reads {checkpoint["data"]["kind"]}; leave one out')
        model = load_model(held, new_head='headless' in held, **own).to(device)
        found.append(Network(path.removeprefix('official:'), held, model, f'C{len(found)}'))
        firsts.setdefault(repr(model.config), found[-1])
    for first in firsts.values() if random else ():
        torch.manual_seed(c.seed)
        model = type(first.model)(first.model.config).eval().to(device)
        name = 'random weights' if len(firsts) == 1 else f'{first.name}, random weights'
        found.append(replace(first, name=name, model=model, kind='random'))
    return found


def tokens_each(net):
    """Tokens of a sample."""
    c = net.model.config
    return math.prod(grid(c)) + 1 if reads(c) == 'images' else c.block_size


def which_layer(c, model):
    """The layer asked for, from 1; the last but one by default."""
    L = len(model.layers)
    if not 0 <= c.layer <= L:
        raise ValueError(f'layer={c.layer}: the network has layers 1 to {L}')
    return c.layer or max(1, L - 1)


def which_heads(c, model):
    """The heads asked for, from 1; all by default."""
    K, asked = model.config.n_head, [h.strip() for h in c.heads.split(',') if h.strip()]
    if not all(h.isdecimal() and 1 <= int(h) <= K for h in asked):
        raise ValueError(f'heads={c.heads}: the network has heads 1 to {K}; give some of them with commas between them')
    return list(dict.fromkeys(int(h) for h in asked)) or list(range(1, K + 1))


def which_part(c, nets, default):
    """Of networks with three projections, which; of MSSA there is one, and c.part must not be set."""
    if c.part and all(hasattr(a, 'U') for net in nets for a in inside.attentions(net.model)):
        raise ValueError(f'{nets[0].name} has one projection for query, key and value; leave --part out')
    return c.part or default


def only_pictures(net, what):
    if reads(net.model.config) != 'images':
        raise ValueError(f'{what} is for pictures, and {net.name} reads {reads(net.model.config)}; take --ckpt of another run')


# ---- pictures -------------------------------------------------------------------------------------------------------------


def choose(c, net, n, label=None):
    """A dataset's Images, and which n of them, at random. label: the class that they must be of; '' the first there is."""
    folder, split = dataset_of(c, net.checkpoint, net.name)
    images = data.Images(folder, split)
    fits = np.arange(len(images))
    if label is not None:
        held = [str(images.classes[k]) for k in np.unique(images.labels)]
        label = label or held[0]
        if label not in held:
            raise ValueError(f'label={label}: no picture of {folder} {split} has it; choose {", ".join(held[:20])}')
        fits = np.flatnonzero(images.labels == [str(name) for name in images.classes].index(label))
    return images, np.sort(np.random.default_rng(c.seed).permutation(fits)[:n])


def read(images, chosen):
    """[(name, uint8 (H, W, 3))] of pictures of a dataset."""
    found = []
    for i in chosen:
        picture, _, labels, _ = images[np.array([i]), np.zeros((1, 0))]
        found.append((f'{images.split} {i}, {images.classes[labels[0]]}', picture[0]))
    return found


def pictures(c, net, n, label=None):
    """[(name, uint8 (H, W, 3))]: the user's own, all of them if --num_samples does not say, or n of a dataset."""
    if c.start:
        raise ValueError(f'{net.name} looks at pictures: give --image instead of --start')
    if c.image:
        return list(itertools.islice(pictures_of(c.image, n, c.seed), c.num_samples or None))
    return read(*choose(c, net, c.num_samples or n, label))


def view_of(net):
    """What decides how a network sees a picture."""
    return net.model.config.image_size, net.checkpoint['config'].get('eval_crop')


def pixels(net, shown):
    """Pictures [(name, uint8 (H, W, 3))] as a network sees them, (B, 3, H, W), where it is."""
    return torch.cat([seen(picture, net.model, net.checkpoint) for _, picture in shown])


# ---- anything -------------------------------------------------------------------------------------------------------------


def batches(c, net, n):
    """What `inside` takes, batch by batch: pictures, texts as long as the context, or prompts; c.num_samples of them, or n."""
    mc, n, device = net.model.config, c.num_samples or n, next(net.model.parameters()).device
    if c.image and reads(mc) != 'images':
        raise ValueError(f'{net.name} reads {reads(mc)}, not pictures; leave --image out')
    if reads(mc) == 'images':
        shown = pictures(c, net, n)
        parts = ((pixels(net, shown[i:i + c.batch_size]),) for i in range(0, len(shown), c.batch_size))
        count = len(shown)
    else:
        if reads(mc) == 'text':
            whole = next(data.Text(*dataset_of(c, net.checkpoint, net.name), mc.block_size).fixed(n, 1))[:1]
        elif c.split:
            raise ValueError('functions are drawn anew and have no splits; leave --split out')
        else:
            held = net.checkpoint['config']
            prompts = icl.Prompts(c.dataset or held['dataset'], mc.n_dims, mc.block_size // 2, min(held['sparsity'], mc.n_dims))
            whole = next(prompts.fixed(n, 1))
        parts, count = zip(*(t.to(device).split(c.batch_size) for t in whole)), len(whole[0])
    yield from tqdm(parts, net.name, -(-count // c.batch_size), disable=None, leave=False)


def tokens_of(c, net, usual, most):
    """One text: its ids (1, N), at most `most`, or the first `usual` of a sample if --start does not say; each as a label."""
    if reads(net.model.config) != 'text':
        raise ValueError(f'{net.name} reads {reads(net.model.config)}, and this is for pictures and texts; take --ckpt of '
                         'another run')
    if c.image or c.num_samples > 1:
        raise ValueError(f'{net.name} reads one text at a time: give --start=TEXT, and leave --image and --num_samples out')
    tokenizer, size = Tokenizer(**net.checkpoint['data']['tokenizer']), net.model.config.block_size
    if c.start:
        causal = getattr(net.model.config, 'causal', True)
        ids = tokenizer.encode(prompt_of(c.start)) if causal else with_masks(tokenizer, prompt_of(c.start))
        if not 2 <= len(ids) <= min(size, most):
            raise ValueError(f'--start has {len(ids)} tokens; give between 2 and {min(size, most)}')
    else:
        ids = next(batches(c, net, 1))[0][0, :usual].tolist()
    labels = [repr(tokenizer.decode([i]))[1:-1] if i < tokenizer.vocab_size else '[MASK]' for i in ids]
    return torch.tensor([ids], device=next(net.model.parameters()).device), labels
