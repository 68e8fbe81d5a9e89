"""What analyze.py looks at: trained networks, the same ones with random weights, and the pictures,
texts or prompts that they read."""
import itertools
import math
from dataclasses import dataclass, replace

import numpy as np
import torch
from tqdm import tqdm

from analysis import figures, layers
from analysis.theory import Shared
from engine import networks
from engine.device import choose_device
from engine.mistakes import Mistake
from engine.settings import check_ranges
from tasks import kind_of
from tasks.arrays import ArraySplit
from tasks.dataset import dataset_of
from tasks.pictures import ImageSplit, labelled_pictures_of, named, seen
from tasks.regression import Prompts
from tasks.text import TextSplit
from tasks.prompts import prompt_of, with_masks
from tasks.tokenizer import Tokenizer
from weights.runs import Run, heading, open_run, own_or_shipped
from weights.surgery import load_model

# the kinds of data that a network may read for a command; for other commands any kind
KINDS = {
    'pca': ['images'],
    'segment': ['images'],
    'objects': ['images'],
    'tokens': ['images', 'text'],
    'attention': ['images', 'text'],
    'atoms': ['images', 'text'],
}
# commands about the class token and the patches of pictures
OF_PATCHES = 'pca', 'segment', 'objects', 'attention'
# commands that show no random weights beside a network
WITHOUT_RANDOM_WEIGHTS = 'tokens', 'pca', 'objects', 'page'
MOST_DRAWN = 40  # pictures in a figure with a panel for each
# commands that can show layers without `attn`
WITHOUT_ATTENTION = 'layers', 'tokens', 'ista', 'page', 'atoms'


@dataclass
class SubjectsConfig(Shared):
    """Settings of all commands that look at trained networks."""
    ckpt: str = 'out/crate_shapes'  # a run, for its best weights, or a .safetensors file in it
    beside: str = ''                # other runs in the same picture, with commas; page: one run
    dataset: str = ''               # folder in data_dir; empty: what the network was trained on
    data_dir: str = 'data'          # where prepared datasets lie
    split: str = ''                 # its split; empty: test, or val if there is no test
    image: str = ''                 # your own pictures instead: a file or a folder of files
    start: str = ''                 # your own text instead; \n: a new line, FILE:path: from a file
    device: str = 'auto'            # cpu, cuda, cuda:1, mps


@dataclass(eq=False)
class Subject:
    """A network to look at."""
    name: str               # the path of its run, or that it has random weights
    run: Run
    model: torch.nn.Module
    label: str              # its name in figures: without folders, if that tells networks apart
    colour: str             # C0, C1, ..; random weights: of the first network with their config
    kind: str = 'trained'   # or 'random'
    device: str = 'cpu'

    @property
    def reads(self):
        """'text', 'images', 'arrays' or 'functions'."""
        return kind_of(self.model.config)

    @property
    def patches(self):
        """The grid of patches, (down, across)."""
        return networks.grid(self.model.config)

    @property
    def tokenizer(self):
        """The Tokenizer of a network of text."""
        return Tokenizer(**self.run.data['tokenizer'])


def subjects(c, run, changes, command):
    """The networks of --ckpt and --beside, a list of Subjects. Commands that compare with random
    weights also get one network with random weights for each different config. run: that of
    --ckpt; changes: settings of that network that were typed. Raises Mistake if the command has
    nothing to show of a network."""
    device = choose_device(c.device)
    beside = [own_or_shipped(path) for path in c.beside.split(',') if path]
    # a path that comes twice counts once
    labels = figures.told_apart(dict.fromkeys([c.ckpt, *beside]))

    nets = []
    first_with_config = {}
    for path, label in labels.items():
        if path == c.ckpt:
            run_of_path = run
            typed = changes
        else:
            run_of_path = open_run(path)
            typed = {}
        is_headless = run_of_path.headless != ''
        model = load_model(run_of_path, new_head=is_headless, **typed).to(device)
        print(heading(path, run_of_path, model))
        net = Subject(path, run_of_path, model, label, colour=f'C{len(nets)}', device=device)
        problem = problem_with(c, command, net)
        if problem:  # before any work
            raise Mistake(f'{path} {problem}')
        nets.append(net)
        first_with_config.setdefault(repr(model.config), net)

    if command in WITHOUT_RANDOM_WEIGHTS:
        return nets
    for net in first_with_config.values():
        name = 'random weights'
        if len(first_with_config) > 1:
            name = f'{net.name}, random weights'
        torch.manual_seed(c.seed)
        model = type(net.model)(net.model.config).eval().to(net.device)
        nets.append(replace(net, name=name, label=f'{net.label}, random weights', model=model,
                            kind='random'))
    return nets


def problem_with(c, command, net):
    """Why a command has nothing to show of a network, or why the network cannot read what the user
    gave with --image or --start. It is the end of a sentence that begins with the name of the
    network, and '' if there is no problem."""
    another_run = 'take --ckpt of another run'
    all_layers = layers.needed(net.model, 'layers')
    lacks_attention = any(getattr(layer, 'attn', None) is None for layer in all_layers)
    if lacks_attention and command not in WITHOUT_ATTENTION:
        return f'has layers without `attn`, and {command} is about attention; {another_run}'

    if command == 'ista':
        if getattr(all_layers[0], 'ista', None) is None:
            return 'has layers without `ista`; take --ckpt of a CRATE'
        if not layers.lowers_lasso(all_layers[0]):
            kind_of_ista = getattr(net.model.config, 'ista', '')
            return (f"has ista='{kind_of_ista}', which does not lower the LASSO of eq. (16); "
                    'leave it out')
    if command == 'atoms' and any(map(layers.is_dense, all_layers)):
        return ('has layers of attention alone, without atoms; take --ckpt of CRATE, CRATE-alpha, '
                'ViT or GPT-2')
    if command in ('denoise', 'subspaces') and getattr(net.model.config, 'n_head', 0) == 1:
        return f'has one head, and this command is about several subspaces; {another_run}'
    if command in OF_PATCHES and hasattr(layers.attentions(net.model)[0], 'memberships'):
        return f'is of ToST: its TSSA compares no tokens and has no class token; {another_run}'

    if net.reads not in KINDS.get(command, [net.reads]):
        kinds = ' or '.join(KINDS[command])
        return f'reads {net.reads}, and {command} is for {kinds}; {another_run}'
    if command in OF_PATCHES and net.reads == 'images':
        n_patches = math.prod(net.patches)
        config = net.model.config
        channels = getattr(config, 'channels', 3)
        picture = torch.zeros(1, channels, *config.image_size, device=net.device)
        n_tokens = net.model.embed(picture).size(1)
        if n_tokens != 1 + n_patches:
            return (f'makes {n_tokens} tokens of a picture, and {command} is for a class token and '
                    f'{n_patches} patches; {another_run}')
    if c.image and net.reads != 'images':
        return f'reads {net.reads}; leave --image out'
    if c.start and net.reads != 'text':
        return f'reads {net.reads}; leave --start out'
    return ''


def which_layer(c, model):
    """The layer that the user asked for, from 1; by default the last but one. Raises Mistake if
    the network has no such layer."""
    check_ranges(c, {(0, len(model.layers)): ['layer']})
    return c.layer or max(1, len(model.layers) - 1)


def which_heads(c, attention):
    """The heads of an attention module that the user asked for, a list of numbers from 1; by
    default all. Raises Mistake if it has no such heads."""
    K = layers.needed(attention, 'K')
    known = [str(k) for k in range(1, K + 1)]
    words = c.heads.replace(',', ' ').split()
    for word in words:
        if word not in known:
            raise Mistake(f'heads={c.heads}: the network has heads 1 to {K}; give some of them '
                          'with commas between them')
    # a head that comes twice counts once
    return [int(word) for word in dict.fromkeys(words or known)]


# ---- pictures -----------------------------------------------------------------------------------

def choose(c, net, n, label=None):
    """A split of a dataset, an ImageSplit, and the ascending indices of c.num_samples of its
    pictures, or n by default, which the seed chooses. label: the class of these pictures; '' means
    the first class that occurs, and None any class. Raises Mistake if no picture has this class."""
    folder, split = dataset_of(c, net.run, net.name)
    images = ImageSplit(folder, split)
    candidates = np.arange(len(images))
    if label is not None:
        classes = [images.classes[k] for k in np.unique(images.labels)]
        if label and label not in classes:
            raise Mistake(f'label={label}: no picture of {folder} {split} has it; choose '
                          f'{", ".join(classes[:20])}')
        wanted = images.classes.index(label or classes[0])
        candidates = np.flatnonzero(images.labels == wanted)
    shuffled = np.random.default_rng(c.seed).permutation(candidates)
    return images, np.sort(shuffled[:c.num_samples or n])


def pictures(c, net, n, label=None):
    """Yields pictures to show, (name, uint8 (H, W, C)). Of --image they are all that lie in a
    folder, unless the user gives --num_samples; of a dataset or of a folder of classes,
    c.num_samples of them, or n by default. Without --image see `choose`."""
    if c.image:
        channels = getattr(net.model.config, 'channels', 3)
        labelled = labelled_pictures_of(c.image, c.num_samples or n, c.seed, channels)
        for name, picture, _ in itertools.islice(labelled, c.num_samples or None):
            yield name, picture
    else:
        images, chosen = choose(c, net, n, label)
        yield from named(images, chosen)


def drawn_pictures(c, net, n, label=None):
    """The same in a list, for a figure that has a panel for each picture. Raises Mistake for more
    than MOST_DRAWN, with which a figure would take minutes."""
    check_ranges(c, {(0, MOST_DRAWN): ['num_samples']})
    shown = list(itertools.islice(pictures(c, net, n, label), MOST_DRAWN + 1))
    if len(shown) > MOST_DRAWN:
        raise Mistake(f'{c.image} has more than {MOST_DRAWN} pictures, too many for one figure; '
                      f'give --num_samples={MOST_DRAWN}')
    return shown


def pixels(net, shown):
    """Pictures [(name, uint8 (H, W, C))] as a network sees them, (B, C, H, W), on its device."""
    return torch.cat([seen(picture, net.model, net.run) for _, picture in shown])


# ---- anything -----------------------------------------------------------------------------------

def batches(c, net, n):
    """Yields batches of samples: pictures, texts as long as the context, rows of arrays, or
    prompts, whichever the network reads. A batch is a list of what layers.inside takes. There are
    c.num_samples samples, or n by default."""
    n = c.num_samples or n
    if net.reads == 'images':
        x = [pixels(net, [picture]).cpu() for picture in pictures(c, net, n)]
        samples = [torch.cat(x)]
    elif net.reads == 'text':
        samples = [texts(c, net, n)]
    elif net.reads == 'arrays':
        split = ArraySplit(*dataset_of(c, net.run, net.name))
        samples = next(split.fixed(n, 1))[:1]               # (x,)
    else:
        samples = prompts(c, net, n)

    starts = range(0, len(samples[0]), c.batch_size)
    for start in tqdm(starts, net.name, disable=None, leave=False):
        yield [tensor[start:start + c.batch_size].to(net.device) for tensor in samples]


def measured(c, nets, n, measure):
    """What layers.measure_layers gives for each of the networks, a list. They are shown
    c.num_samples samples, or n by default."""
    return [layers.measure_layers(net.model, batches(c, net, n), measure) for net in nets]


def sequences_of(c, net):
    """The split of a dataset in sequences as long as the context, a TextSplit."""
    return TextSplit(*dataset_of(c, net.run, net.name), net.model.config.block_size)


def texts(c, net, n):
    """c.num_samples sequences of a dataset, or n by default, as long as the context: int64
    (n, N)."""
    x, _ = next(sequences_of(c, net).fixed(c.num_samples or n, 1))
    return x


def chunk(c, net, n):
    """The first n texts of a dataset, one after the other, as long as the context: their tokens and
    the next ones, int64 (n, N) each. There are fewer if the dataset is shorter."""
    sequences = sequences_of(c, net)
    starts = np.arange(min(n, len(sequences))) * sequences.block_size
    return sequences.sequences(starts)


def prompts(c, net, n):
    """n prompts: (x, y)."""
    trained_with = net.run.settings
    d = net.model.config.n_dims
    n_points = net.model.config.block_size // 2  # an example is two tokens, x and y
    sparsity = min(trained_with['sparsity'], d)
    return next(Prompts(c.dataset, d, n_points, sparsity).fixed(n, 1))


def started(c, net, most):
    """The token ids of the text of --start, a list. Raises Mistake if there are fewer than two, or
    more than `most` or than the context holds."""
    most = min(most, net.model.config.block_size)
    text = prompt_of(c.start)
    if net.model.config.task == 'masked_text':
        ids = with_masks(net.tokenizer, text)
    else:
        ids = net.tokenizer.encode(text)
    if not 2 <= len(ids) <= most:
        raise Mistake(f'--start has {len(ids)} tokens; give between 2 and {most}')
    return ids


def tokens_of(c, net, usual=None, most=torch.inf):
    """One text: its ids, int64 (1, N), and a label for each, a list. It is the text of --start,
    which may have `most` ids, or else the beginning of a text of the dataset, `usual` ids long. In
    both cases there are no more ids than the context holds."""
    if c.start:
        ids = started(c, net, most)
    else:
        ids = texts(c, net, 1)[0, :usual].tolist()

    tokenizer = net.tokenizer
    labels = []
    for i in ids:
        if i < tokenizer.vocab_size:
            quoted = repr(tokenizer.decode([i]))  # a new line becomes '\\n'
            labels.append(quoted[1:-1])
        else:
            labels.append('[MASK]')
    return torch.tensor([ids], device=net.device), labels
