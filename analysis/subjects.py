"""What analyze.py looks at: trained networks, the same ones with random weights, and the
pictures, texts or prompts that they read."""
import itertools
from dataclasses import dataclass, replace

import numpy as np
import torch
from tqdm import tqdm

from analysis import layers
from analysis.theory import Shared
from engine import figures, networks
from engine.device import choose_device
from engine.settings import Mistake, check_ranges
from engine.trained import heading, load_model, open_run, own_or_shipped
from tasks.dataset import dataset_of
from tasks.pictures import ImageSplit, labelled_pictures_of, named, seen
from tasks.regression import Prompts
from tasks.text import TextSplit
from tasks.tokenizer import Tokenizer, prompt_of, with_masks


@dataclass
class SubjectsConfig(Shared):
    """Settings of all commands that look at trained networks."""
    ckpt: str = 'out/crate_shapes'  # a run directory, for its best weights, or a .safetensors file in one
    beside: str = ''                # other runs in the same picture, with commas between them; page: one
    dataset: str = ''               # folder in data_dir; empty: what the network was trained on
    data_dir: str = 'data'          # where prepared datasets lie
    split: str = ''                 # its split; empty: test, or val if there is no test
    image: str = ''                 # your own pictures instead: a file or a folder of files
    start: str = ''                 # your own text instead; \n is a new line, FILE:path reads a file
    device: str = 'auto'            # cpu, cuda, cuda:1, mps


@dataclass(eq=False)
class Subject:
    """A network to look at."""
    name: str
    run: dict               # what open_run gives
    model: torch.nn.Module
    label: str              # its name in figures: without folders, as far as that tells networks apart
    colour: str             # of its lines; random weights have that of the first network with the same config
    kind: str = 'trained'   # or 'random'
    device: str = 'cpu'

    @property
    def reads(self):
        """'text', 'images' or 'functions'."""
        return networks.kind_of(self.model.config)

    @property
    def patches(self):
        """The grid of patches, (down, across)."""
        return networks.grid(self.model.config)


def subjects(c, run, changes, command):
    """The networks of --ckpt and --beside. changes: settings that were typed for that of --ckpt. Commands that compare
    with them get also one with random weights for each different config."""
    device, found, firsts = choose_device(c.device), [], {}
    beside = [own_or_shipped(path) for path in c.beside.split(',') if path]
    paths = dict.fromkeys((c.ckpt, *beside))
    for path, label in figures.told_apart(paths).items():
        held, own = (run, changes) if path == c.ckpt else (open_run(path), {})
        model = load_model(held, new_head='headless' in held, **own).to(device)
        print(heading(path, held, model))
        found.append(Subject(path, held, model, label, f'C{len(found)}', device=device))
        check_shown(c, command, found[-1])
        firsts.setdefault(repr(model.config), found[-1])
    for first in firsts.values() if command not in ALONE else ():
        torch.manual_seed(c.seed)
        model = type(first.model)(first.model.config).eval().to(device)
        name = 'random weights' if len(firsts) == 1 else f'{first.name}, random weights'
        found.append(replace(first, name=name, label=f'{first.label}, random weights', model=model, kind='random'))
    return found


# what networks must read
NEED = {'pca': ['images'], 'segment': ['images'], 'objects': ['images'], 'tokens': ['images', 'text'],
        'attention': ['images', 'text']}
ALONE = 'tokens', 'pca', 'objects', 'page'  # commands without random weights


def check_shown(c, command, net):
    """Raises Mistake, before any work, for a network of which a command has nothing to show, and for samples of yours
    that it cannot read."""
    without = any(getattr(layer, 'attn', None) is None for layer in layers.needed(net.model, 'layers'))
    if without and command not in ('layers', 'tokens', 'ista', 'page'):
        raise Mistake(f'{net.name} has layers without `attn`, and {command} is about attention; take --ckpt of another run')
    found = ''
    if c.image and net.reads != 'images' or c.start and net.reads != 'text':
        found = f'reads {net.reads}; leave --{"image" if c.image else "start"} out'
    if net.reads not in NEED.get(command, [net.reads]):
        found = f'reads {net.reads}, and {command} is for {" or ".join(NEED[command])}; take --ckpt of another run'
    if command in NEED.keys() - {'tokens'} and hasattr(layers.attentions(net.model)[0], 'memberships'):
        found = 'is of ToST: its TSSA compares no tokens and has no class token; take --ckpt of another run'
    if command in ('denoise', 'subspaces') and getattr(net.model.config, 'n_head', 0) == 1:
        found = 'has one head, and this command is about several subspaces; take --ckpt of another run'
    if command == 'ista' and not hasattr(net.model.layers[0], 'ista'):
        found = 'has layers without `ista`; take --ckpt of a CRATE'
    elif command == 'ista' and not layers.lowers_lasso(net.model.layers[0]):
        kind = getattr(net.model.config, 'ista', '')
        found = f"has ista='{kind}', which does not lower the LASSO of eq. (16); leave it out"
    if found:
        raise Mistake(f'{net.name} {found}')


def which_layer(c, model):
    """The layer asked for, from 1; the last but one by default."""
    check_ranges(c, {(0, len(model.layers)): ['layer']})
    return c.layer or max(1, len(model.layers) - 1)


def which_heads(c, attention):
    """The heads asked for, from 1; all by default."""
    K, asked = layers.needed(attention, 'K'), [h.strip() for h in c.heads.split(',') if h.strip()]
    if not {*asked} <= {*map(str, range(1, K + 1))}:
        raise Mistake(f'heads={c.heads}: the network has heads 1 to {K}; give some of them with commas between them')
    return [int(h) for h in dict.fromkeys(asked)] or [*range(1, K + 1)]


# ---- pictures -------------------------------------------------------------------------------------------------------

def choose(c, net, n, label=None):
    """A split of a dataset, and the indices of n of its pictures, chosen at random. label: their
    class; '' means the first class that occurs."""
    folder, split = dataset_of(c, net.run, net.name)
    images = ImageSplit(folder, split)
    fits = np.arange(len(images))
    if label is not None:
        held = [images.classes[k] for k in np.unique(images.labels)]
        if label and label not in held:
            raise Mistake(f'label={label}: no picture of {folder} {split} has it; choose {", ".join(held[:20])}')
        fits = np.flatnonzero(images.labels == images.classes.index(label or held[0]))
    return images, np.sort(np.random.default_rng(c.seed).permutation(fits)[:n])


def pictures(c, net, n, label=None):
    """[(name, uint8 (H, W, C))]: your own, all of them unless --num_samples is given, or n of a
    dataset."""
    if c.image:
        found = labelled_pictures_of(c.image, n, c.seed, net.model.config.channels)
        return [(name, picture) for name, picture, _ in itertools.islice(found, c.num_samples or None)]
    return list(named(*choose(c, net, c.num_samples or n, label)))


def pixels(net, shown):
    """Pictures [(name, uint8 (H, W, C))] as a network sees them, (B, C, H, W), on its device."""
    return torch.cat([seen(picture, net.model, net.run) for _, picture in shown])


# ---- anything -------------------------------------------------------------------------------------------------------

def batches(c, net, n):
    """Batches of what `inside` takes: pictures, texts as long as the context, or prompts;
    c.num_samples of them, or n."""
    n, images = c.num_samples or n, net.reads == 'images'
    whole = [pictures(c, net, n)] if images else texts(c, net, n) if net.reads == 'text' else prompts(c, net, n)
    for i in tqdm(range(0, len(whole[0]), c.batch_size), net.name, disable=None, leave=False):
        part = [t[i:i + c.batch_size] for t in whole]
        yield [pixels(net, *part)] if images else [t.to(net.device) for t in part]


def texts(c, net, n):
    """n sequences of a dataset, as long as the context: (x,)."""
    return next(TextSplit(*dataset_of(c, net.run, net.name), net.model.config.block_size).fixed(n, 1))[:1]


def prompts(c, net, n):
    """n prompts: (x, y)."""
    held, d = net.run['settings'], net.model.config.n_dims
    drawn = Prompts(c.dataset or held['dataset'], d, net.model.config.block_size // 2, min(held['sparsity'], d))
    return next(drawn.fixed(n, 1))


def started(c, net, most):
    """The ids of --start, at most so many."""
    tokenizer, most = Tokenizer(**net.run['data']['tokenizer']), min(most, net.model.config.block_size)
    masked = net.model.config.task == 'masked_text'
    ids = with_masks(tokenizer, prompt_of(c.start)) if masked else tokenizer.encode(prompt_of(c.start))
    if not 2 <= len(ids) <= most:
        raise Mistake(f'--start has {len(ids)} tokens; give between 2 and {most}')
    return ids


def tokens_of(c, net, usual=None, most=torch.inf):
    """One text: its ids (1, N), and each as a label. --start with at most `most` ids, or the first
    `usual` ids of a sample; both at most as many as the context holds."""
    ids = started(c, net, most) if c.start else next(batches(c, net, 1))[0][0, :usual].tolist()
    tokenizer = Tokenizer(**net.run['data']['tokenizer'])
    labels = [repr(tokenizer.decode([i]))[1:-1] if i < tokenizer.vocab_size else '[MASK]' for i in ids]
    return torch.tensor([ids], device=net.device), labels
