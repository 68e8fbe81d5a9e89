"""What analyze.py looks at: the networks that checkpoints hold, others with random weights beside them, and the pictures, texts
or prompts that they are given."""
import math
from dataclasses import dataclass, replace

import numpy as np
import torch

import augment
import data
import icl
from machine import choose_device
from models import load_model, load_weights, reads
from sample import pictures_of, prompt_of, with_masks
from tasks import dataset_of
from tokenizer import Tokenizer


@dataclass
class Network:
    name: str
    checkpoint: dict
    model: torch.nn.Module
    colour: str            # of its lines; that of the trained one in the same architecture
    trained: bool = True

    @property
    def weights(self):
        return 'trained' if self.trained else 'random'


def networks(c, checkpoint, overrides):
    """The networks of --ckpt and --beside, and for every different architecture one with random weights."""
    device, found = choose_device(c.device), []
    for path in (c.ckpt, *filter(None, c.beside.split(','))):
        own = overrides if path == c.ckpt or path.startswith('official:') else \
            {k: v for k, v in overrides.items() if k == 'image_size'}  # what an official file does not say, ours do
        held = checkpoint if path == c.ckpt else load_weights(path, c.model if path.startswith('official:') else '', **own)
        if held['data']['kind'] != checkpoint['data']['kind']:
            raise ValueError(f'{path} reads {held["data"]["kind"]}, {c.ckpt} reads {checkpoint["data"]["kind"]}; leave one out')
        model = load_model(held, new_head='headless' in held, **own)
        found.append(Network(path.removeprefix('official:'), held, model.to(device), f'C{len(found)}'))
    untrained = {repr(n.model.config): n for n in reversed(found)}.values()  # of each architecture the first
    for n in reversed(untrained):
        torch.manual_seed(c.seed)
        model = type(n.model)(n.model.config).eval().to(device)
        name = 'random weights' if len(untrained) == 1 else f'{n.name}, random weights'
        found.append(replace(n, name=name, model=model, trained=False))
    return found


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
    return [int(h) for h in asked] or list(range(1, K + 1))


def pictures(c, net, n, label=None):
    """n pictures chosen at random, or the user's own: [(name, uint8 (H, W, 3))], and of a dataset also its Images and which
    of its pictures they are. label: the class that they must be of, '' for the first."""
    if c.image:
        return list(pictures_of(c.image, n, c.seed)), None, None
    folder, split = dataset_of(c, net.checkpoint)
    images = data.Images(folder, split)
    fits = np.arange(len(images))
    if label is not None:
        label = label or str(images.classes[0])
        if label not in images.classes:
            raise ValueError(f'label={label}: {folder} has no such class; choose {", ".join(map(str, images.classes[:20]))}')
        fits = np.flatnonzero(images.labels == images.classes.index(label))
    chosen = np.sort(np.random.default_rng(c.seed).permutation(fits)[:n])
    shown = []
    for i in chosen:
        picture, _, labels, _ = images[np.array([i]), np.zeros((1, 0))]
        shown.append((f'{split} {i}, {images.classes[labels[0]]}', picture[0]))
    return shown, images, chosen


def pixels(net, shown):
    """Pictures [(name, uint8 (H, W, 3))] as a network sees them, (B, 3, H, W), where it is."""
    crop = net.checkpoint['config'].get('eval_crop', augment.AugmentConfig.eval_crop)
    device, size = next(net.model.parameters()).device, net.model.config.image_size
    return torch.cat([augment.eval_pictures(torch.tensor(p)[None].to(device), torch.tensor([p.shape[:2]]), size, crop)
                      for _, p in shown])


def samples(c, net, n):
    """Batches of what `inside` takes: of pictures, of texts as long as the context, or of prompts; n samples in all."""
    mc, b, device = net.model.config, min(n, c.batch_size), next(net.model.parameters()).device
    if reads(mc) == 'images':
        shown = pictures(c, net, n)[0]
        for i in range(0, len(shown), b):
            yield pixels(net, shown[i:i + b]),
        return
    if c.image:
        raise ValueError(f'{net.name} reads {reads(mc)}, not pictures; leave --image out')
    if reads(mc) == 'text':
        batches = ((x,) for x, _ in data.Text(*dataset_of(c, net.checkpoint), mc.block_size).fixed(b, math.ceil(n / b)))
    else:
        held = net.checkpoint['config']
        prompts = icl.Prompts(c.dataset or held['dataset'], mc.n_dims, mc.block_size // 2, min(held['sparsity'], mc.n_dims))
        batches = prompts.fixed(b, math.ceil(n / b))
    for batch in batches:
        yield tuple(t[:n].to(device) for t in batch)
        n -= len(batch[0])


def tokens_of(c, net, at_most):
    """One text: its ids (1, N), the first `at_most` of a sample if --start does not say, and each of them as a label."""
    if reads(net.model.config) != 'text':
        raise ValueError(f'{net.name} reads {reads(net.model.config)}; there is no picture or text to draw')
    tokenizer, size = Tokenizer(**net.checkpoint['data']['tokenizer']), net.model.config.block_size
    if c.start:
        causal = getattr(net.model.config, 'causal', True)
        ids = tokenizer.encode(prompt_of(c.start)) if causal else with_masks(tokenizer, prompt_of(c.start))
        if not 2 <= len(ids) <= min(size, 64):
            raise ValueError(f'--start has {len(ids)} tokens; give between 2 and {min(size, 64)}')
    else:
        ids = next(samples(replace(c, batch_size=1), net, 1))[0][0, :at_most].tolist()
    labels = [repr(tokenizer.decode([i]))[1:-1] if i < tokenizer.vocab_size else '[MASK]' for i in ids]
    return torch.tensor([ids], device=next(net.model.parameters()).device), labels


def only_pictures(net, what):
    if reads(net.model.config) != 'images':
        raise ValueError(f'{what} is for pictures, and {net.name} reads {reads(net.model.config)}; take --ckpt of another run')
