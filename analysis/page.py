"""One HTML file in which a network computes under the mouse, layer by layer.

The file asks for nothing from anywhere. It holds the weights, rounded to 16 bits, some pictures or
texts, and the forward pass in JavaScript. Of a network that reads pictures it also says, for each
atom, which patches use it most. Its parts lie in analysis/page/: network.js is the forward pass,
and page.js is what one sees and touches.
"""
import base64
import html
import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch

from analysis import layers
from analysis.figures import check_out
from analysis.predictions import classes_of
from analysis.subjects import SubjectsConfig, pictures, pixels, started, subjects, texts
from analysis.units import units_of
from engine.mistakes import Mistake
from engine.writing import write_file
from request.trained import from_command_line
from tasks.augment import denormalize, normalize
from tasks.imagenet import readable

FOLDER = Path(__file__).with_suffix('')  # analysis/page/, with the parts of the file
SCRIPTS = ('page.css', 'network.js', 'page.js')  # they go into page.html
# networks that network.js computes: {model: what it is there}
COMPUTED = {'crate': 'crate', 'crate_mae': 'crate_mae', 'aot': 'aot', 'gpt2': 'aot', 'vit': 'vit'}
TOKENIZERS = ('none', 'bytes', 'chars')  # page.js knows these; none: of pictures
KNOWN_WEIGHTS = re.compile(  # names of the weights with which network.js computes
    r'((decoder_)?layers\.\d+\.'
    r'(norm[12]|attn\.(U|QKV|W)|mlp\.(up|down)|ista\.D|E)'
    r'|embed\.(cls|pos|mask_token|patch|patch_norm|token_norm|tok_emb|pos_emb)'
    r'|read\.(norm|head)|norm|decoder_norm|pixels)(\.(weight|bias))?')
MOST_TOKENS = 128  # in a text that somebody writes
MOST_TOKENS_OF_DATASET = 48  # in a text from a dataset
EXAMPLES = 9  # patches that the page shows of an atom


@dataclass
class PageConfig(SubjectsConfig):
    num_samples: int = 0    # in the page; 0: 200 pictures of a dataset, all of --image, 12 texts
    device: str = 'cpu'     # where pictures are prepared; the page itself computes in the browser
    out: str = 'page.html'  # the file to write; page.html is replaced if it exists
    ranges = {'num_samples': (0, 1000)}


def main(words):
    c, run, overrides = from_command_line(words, PageConfig)
    check_out(c, ['.html'])
    nets = subjects(c, run, overrides, 'page')
    check(nets)
    text = page(c, nets)
    write_file(c.out, lambda f: f.write(text))
    megabytes = Path(c.out).stat().st_size / 1e6
    print(f'{c.out}: {megabytes:.1f} MB; open it in a browser, it needs no internet')


# ---- what cannot be shown -----------------------------------------------------------------------

def check(nets):
    """Raises Mistake for more than two networks, for two that cannot get the same input, and for a
    network that network.js does not compute."""
    inputs = set()
    for net in nets:
        check_network(net)
        config = net.model.config
        inputs.add(str(net.run.data.get('tokenizer', (config.image_size, config.channels))))
    if len(nets) > 2 or len(inputs) > 1:
        raise Mistake(f'{nets[-1].name}: a page has room for two networks, which get the same '
                      'input; leave one out')


def check_network(net):
    """Raises Mistake for a network that network.js does not compute."""
    name = net.run.model
    task = net.model.config.task
    tokenizer = net.run.data.get('tokenizer', {'name': 'none'})['name']
    is_known_task = task not in ('masked_text', 'icl')
    if name not in COMPUTED or not is_known_task or tokenizer not in TOKENIZERS:
        raise Mistake(f'{net.name}: a page cannot compute model={name} with task={task}, '
                      f'tokens={tokenizer}; docs/page.md says what it shows')

    weight_names = [weight_name for weight_name, _ in net.model.named_parameters()]
    for weight_name in weight_names:
        if not KNOWN_WEIGHTS.fullmatch(weight_name):
            raise Mistake(f'{net.name}: a page cannot compute with {weight_name}, a weight of a '
                          'network that somebody edited')
    for attention in layers.attentions(net.model):
        layers.bases(attention, 'value')  # raises Mistake if heads share keys and values
    if task == 'text' and 'embed.pos_emb.weight' not in weight_names:
        raise Mistake(f'{net.name}: a page cannot compute without a table of positions, '
                      'embed.pos_emb')


# ---- what the page holds ------------------------------------------------------------------------

def page(c, nets):
    """The text of the file: page.html, in which [[title]], [[data]] and [[the name of a script]]
    are replaced."""
    data = {'networks': [network(net) for net in nets], 'reads': nets[0].reads}
    if nets[0].reads == 'images':
        data.update(picture_samples(c, nets))
    else:
        data.update(text_samples(c, nets))
    for description, net in zip(data['networks'], nets):
        description['expected'] = last_token(net, data['samples'][0])

    title = html.escape(' and '.join(net.label for net in nets))
    data_text = json.dumps(data, separators=(',', ':'))
    data_text = data_text.replace('<', '\\u003c')  # so that no tag in it ends the script
    parts = {'title': title, 'data': data_text}
    for name in SCRIPTS:
        parts[name] = (FOLDER / name).read_text(encoding='utf-8')
    # all at once: a [[..]] in the text of a part stays
    frame = (FOLDER / 'page.html').read_text(encoding='utf-8')
    return re.sub(r'\[\[([\w.]+)\]\]', lambda match: parts[match[1]], frame)


def network(net):
    """A network as page.js reads it: its settings, and its tensors in float16. These are the
    parameters, shared ones once, and fixed positions. `classes` is None for a network without a
    classifier, such as DINO's or CRATE-MAE."""
    config = net.model.config
    tensors = [*net.model.named_parameters(), *net.model.named_buffers()]
    bytes_of_tensors = [tensor.detach().half().cpu().numpy().tobytes() for _, tensor in tensors]
    weights = base64.b64encode(b''.join(bytes_of_tensors)).decode()

    classes = None
    if config.task == 'image' and config.num_classes > 1:
        classes = [readable(name) for name in classes_of(net.run, net.model)]
    return {
        'name': net.label,
        'model': COMPUTED[net.run.model],
        'classes': classes,
        'config': asdict(config),
        'weights': weights,
        'tensors': [(name, tensor.shape) for name, tensor in tensors],
    }


@torch.no_grad()
def last_token(net, sample):
    """The last token of a sample after the last layer, a list of n_embd numbers. By it the page
    finds out whether it computes the same as the network."""
    if net.reads == 'images':
        config = net.model.config
        values = np.frombuffer(base64.b64decode(sample['picture']), np.uint8)
        picture = torch.tensor(values).view(*config.image_size, config.channels)    # (H, W, C)
        x = normalize(picture.permute(2, 0, 1)[None].float())                       # (1, C, H, W)
    else:
        x = torch.tensor(sample['ids'])[None]                                       # (1, N)
    *_, last_step = layers.inside(net.model, x.to(net.device))
    return last_step.after[0, -1].tolist()


def picture_samples(c, nets):
    """Pictures as the first network sees them, in whole numbers from 0 to 255 (H, W, C); for each
    network the patches that use its atoms most, see `examples`; and the numbers of the patches that
    a masked autoencoder does not see at first."""
    named_pictures = list(pictures(c, nets[0], n=200))
    x = pixels(nets[0], named_pictures)                                 # (n, C, H, W)
    samples = []
    for (name, _), picture in zip(named_pictures, denormalize(x).cpu().numpy()):
        encoded = base64.b64encode(picture.tobytes()).decode()
        samples.append({'name': name, 'picture': encoded})

    hidden = []
    masked_models = [net.model for net in nets if net.model.config.task == 'masked_image']
    if masked_models:
        model = masked_models[0]
        noise = np.random.default_rng(c.seed).random((1, model.embed.N))
        is_hidden = model.hide(torch.from_numpy(noise))[0]              # (N,)
        hidden = is_hidden.nonzero()[:, 0].tolist()
    return {'samples': samples, 'atoms': [examples(net, x) for net in nets], 'hidden': hidden}


@torch.no_grad()
def examples(net, x):
    """For each layer and each of its m atoms, the patches of pictures x (n, C, H, W) that use the
    atom most, each from another picture: a list of lists (m, EXAMPLES, 2). A patch is the number of
    its picture and its number in the picture, both from 0. There are fewer patches if n is less,
    and the patch -1 stands for a picture that does not use the atom. A network whose layers are
    attention alone has no atoms."""
    found = []
    if layers.is_dense(net.model.layers[0]):
        return found
    for step in layers.inside(net.model, x):
        units = units_of(step)[:, 1:]                           # without the class token: (n, N, m)
        sizes, patches = units.abs().max(1)                     # of each picture: (n, m)
        patches[sizes == 0] = -1
        best = sizes.argsort(0, descending=True)[:EXAMPLES]     # pictures: (EXAMPLES, m)
        places = torch.stack([best, patches.gather(0, best)], 2)
        found.append(places.transpose(0, 1).tolist())
    return found


def text_samples(c, nets):
    """The token ids of texts, the length of the longest text that the page takes, and the
    tokenizer."""
    tokenizer = nets[0].tokenizer
    most = min(MOST_TOKENS, *(net.model.config.block_size for net in nets))
    if c.start:
        ids_of_texts = [started(c, nets[0], most)]
    else:
        ids_of_dataset = texts(c, nets[0], 12)                              # (n, block_size)
        length = min(MOST_TOKENS_OF_DATASET, most)
        ids_of_texts = ids_of_dataset[:, :length].tolist()
    samples = [{'name': tokenizer.decode(ids), 'ids': ids} for ids in ids_of_texts]
    return {'samples': samples, 'most': most, 'tokenizer': tokenizer.spec}
