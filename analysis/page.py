"""One HTML file in which a network computes under the mouse, layer by layer.

The file asks for nothing from anywhere. It holds the weights, rounded to 16 bits, some pictures or
texts, and the forward pass in JavaScript. Its parts lie in analysis/page/: network.js is the forward
pass, page.js what one sees and touches.
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
from analysis.subjects import SubjectsConfig, pictures, pixels, started, subjects, texts
from engine.checkpoint import write_file
from engine.figures import check_free
from engine.settings import Mistake
from engine.trained import from_command_line
from tasks.augment import denormalize, normalize
from tasks.tokenizer import Tokenizer

PARTS = Path(__file__).with_suffix('')   # the folder with page.html, page.css, network.js and page.js
SHOWN = 'crate', 'crate_mae', 'aot', 'vit'   # networks that network.js computes
IN_LAYERS = re.compile(              # the weights that network.js knows there
    r'(decoder_)?layers\.\d+\.(norm[12]|attn\.(U|QKV|W)|mlp\.(up|down)|ista\.D|E)(\.(weight|bias))?')
MOST_TOKENS = 128                        # of a text; of one from a dataset 48


@dataclass
class PageConfig(SubjectsConfig):
    num_samples: int = 12           # pictures or texts to choose from
    device: str = 'cpu'             # where pictures are prepared; the page itself computes in the browser
    out: str = 'page.html'          # the file to write; page.html is replaced if it exists
    ranges = {'num_samples': (1, 200)}


def main(words):
    c, run, overrides = from_command_line(words, PageConfig)
    check_free(c.out, c.overwrite or c.out == PageConfig.out, '--out', ['.html'])
    nets = subjects(c, run, overrides, 'page')
    check(nets)
    content = page(c, nets)
    write_file(c.out, lambda f: f.write(content))
    print(f'{c.out}: {Path(c.out).stat().st_size / 1e6:.1f} MB; open it in a browser, it needs no internet')


# ---- what cannot be shown -------------------------------------------------------------------------------------------

def check(nets):
    """Raises Mistake for a network that network.js does not compute, more than two, or two that cannot get the same
    input."""
    inputs = set()
    for net in nets:
        name, config, data = net.run['model'], net.model.config, net.run['data']
        tokens = data.get('tokenizer', {'name': 'none'})['name']
        if name not in SHOWN or config.task in ('masked_text', 'icl') or tokens not in ('none', 'bytes', 'chars'):
            raise Mistake(f'{net.name}: a page cannot compute model={name} with task={config.task}, tokens={tokens}; '
                          'docs/page.md says what it shows')
        names = [name for name, _ in net.model.named_parameters()]
        unknown = [name for name in names if 'layers.' in name and not IN_LAYERS.fullmatch(name)]
        if unknown:
            raise Mistake(f'{net.name}: a page cannot compute with {unknown[0]}, a weight of layers that somebody edited')
        for attention in layers.attentions(net.model):
            layers.bases(attention, 'value')                            # raises Mistake if heads share keys
        if config.task == 'text' and 'embed.pos_emb.weight' not in names:
            raise Mistake(f'{net.name}: a page cannot compute without a table of positions, embed.pos_emb')
        inputs.add(str(data.get('tokenizer') or (config.image_size, config.channels)))
    if len(nets) > 2 or len(inputs) > 1:
        raise Mistake(f'{nets[-1].name}: a page has room for two networks, which get the same input; leave one out')


# ---- what the page holds --------------------------------------------------------------------------------------------

def page(c, nets):
    """The file as a string."""
    held = {'networks': [network(net) for net in nets], 'reads': nets[0].reads}
    held |= picture_samples(c, nets) if nets[0].reads == 'images' else text_samples(c, nets)
    for content, net in zip(held['networks'], nets):
        content['expected'] = last_token(net, held['samples'][0])
    parts = {'title': html.escape(' and '.join(net.label for net in nets)),
             'data': json.dumps(held, separators=(',', ':')).replace('<', '\\u003c')}  # no tag may end the script
    parts |= {name: (PARTS / name).read_text(encoding='utf-8') for name in ('page.css', 'network.js', 'page.js')}
    return re.sub(r'\[\[([\w.]+)\]\]', lambda found: parts[found[1]], (PARTS / 'page.html').read_text(encoding='utf-8'))


def network(net):
    """A network as page.js reads it, its tensors in float16: parameters, shared ones once, and fixed positions.
    `classes`: None for a network without a classifier, as DINO's or CRATE-MAE."""
    tensors, c = [*net.model.named_parameters(), *net.model.named_buffers()], net.model.config
    weights = b''.join(t.detach().half().cpu().numpy().tobytes() for _, t in tensors)
    named = c.task == 'image' and c.num_classes > 1
    classes = net.run['data'].get('classes') or [f'class {k}' for k in range(c.num_classes)] if named else None
    return {'name': net.label, 'model': net.run['model'], 'classes': classes,
            'config': asdict(c), 'weights': base64.b64encode(weights).decode(),
            'tensors': [(k, t.shape) for k, t in tensors]}


@torch.no_grad()
def last_token(net, sample):
    """The last token of a sample behind the layers, a list of n_embd numbers, by which the page finds out whether it
    computes the same as the network."""
    if net.reads == 'images':
        size, channels = net.model.config.image_size, net.model.config.channels
        picture = np.frombuffer(base64.b64decode(sample['picture']), np.uint8).reshape(*size, channels)
        x = normalize(torch.tensor(picture)[None].permute(0, 3, 1, 2).float())
    else:
        x = torch.tensor(sample['ids'])[None]
    *_, last = layers.inside(net.model, x.to(net.device))
    return last.after[0, -1].tolist()


def picture_samples(c, nets):
    """Pictures as the first network sees them, in whole numbers from 0 to 255 (H, W, C); and which
    patches a masked autoencoder does not see at first."""
    shown = pictures(c, nets[0], c.num_samples)
    seen = denormalize(pixels(nets[0], shown)).cpu().numpy()
    samples = [{'name': name, 'picture': base64.b64encode(picture.tobytes()).decode()}
               for (name, _), picture in zip(shown, seen)]
    masked = next((net.model for net in nets if net.model.config.task == 'masked_image'), None)
    if masked is None:
        return {'samples': samples, 'hidden': []}
    noise = torch.from_numpy(np.random.default_rng(c.seed).random((1, masked.embed.N)))
    return {'samples': samples, 'hidden': masked.hide(noise)[0].nonzero()[:, 0].tolist()}


def text_samples(c, nets):
    """Token ids, and the tokenizer."""
    tokenizer = Tokenizer(**nets[0].run['data']['tokenizer'])
    most = min(MOST_TOKENS, *(net.model.config.block_size for net in nets))
    samples = [started(c, nets[0], most)] if c.start else \
        texts(c, nets[0], c.num_samples)[0][:, :min(48, most)].tolist()
    return {'samples': [{'name': tokenizer.decode(ids), 'ids': ids} for ids in samples], 'most': most,
            'tokenizer': tokenizer.spec}
