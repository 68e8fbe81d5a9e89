"""What tests in every folder share: the golden files, a small text, and properties of any
network."""
import io
import itertools
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import train
from analysis import layers
from engine import networks, optim, settings
from engine.checkpoint import read_log
from engine.trained import read_last, read_weights, write_run
from lib.texts import write_tokens

ROOT = Path(__file__).resolve().parent.parent

# 60 kB of text that is the same everywhere and always
WORDS = 'the of and a to in subspace token layer naïve ünd compress, sparsify. 42\n'.split(' ')
TEXT = ' '.join(np.random.default_rng(0).choice(WORDS, 12_000))


def save_text(out, tokenizer, splits, n_bytes):
    """A prepared dataset of a text in memory. splits: {'train': ids, 'val': ids}; n_bytes: of UTF-8 a split."""
    write_tokens(out, tokenizer, ((name, ids, n_bytes[name]) for name, ids in splits.items()))


def split_text(text, tokenizer):
    """(splits, n_bytes) for save_text; the last tenth of the characters is held out."""
    cut = int(len(text) * 0.9)
    parts = {'train': text[:cut], 'val': text[cut:]}
    return {k: tokenizer.encode(v) for k, v in parts.items()}, {k: len(v.encode()) for k, v in parts.items()}


def golden(name):
    """A golden file, and the weights that it was made with, by the recipe that it states; without
    fixed positions."""
    g = json.loads((ROOT / 'tests' / 'golden' / f'{name}.json').read_text())
    return golden_weights(g['state_dict']), g


def golden_weights(rows):
    """{name: tensor} of the rows (name, shape, fill, first value) of a golden file."""
    sd = {}
    for i, (key, shape, fill, first) in enumerate(rows):
        sd[key] = 0.05 * torch.randn(shape, generator=torch.Generator().manual_seed(1000 + i)) + (fill == 'normal+1')
    for key, shape, fill, first in rows:
        if fill.startswith('keep'):
            del sd[key]
            continue
        if fill.startswith('tied to '):
            sd[key] = sd[fill.removeprefix('tied to ')]
        assert sd[key].flatten()[0].item() == pytest.approx(first, rel=1e-5)
    return sd


def golden_pictures(name, sd=None, **settings):
    """(network, golden file, pictures) of a classifier or masked autoencoder, by the golden file's
    recipe."""
    made, g = golden(name)
    c, model = g['constructor'], name.removesuffix('_vision')
    Network = networks.network(model if model in networks.names() else 'crate')[0]
    settings |= {'decoder_n_head': c['decoder_heads']} if 'decoder_heads' in c else {}
    model = Network.from_official(sd or made, n_head=c['heads'], image_size=c['image_size'], patch_size=c['patch_size'],
                                  **settings).eval()
    return model, g, torch.randn(g['input']['shape'], generator=torch.Generator().manual_seed(7))


def golden_text(name, sd=None, **settings):
    """(network, golden file, token ids, targets) of a language model, by the golden file's recipe."""
    made, g = golden(name)
    model = {'gpt': 'aot', 'crate_gpt': 'crate', 'crate_lm': 'crate_alpha'}.get(name.split('_bias')[0], 'tost')
    Network = networks.network(model)[0]
    load = Network.from_gpt2 if model == 'aot' else Network.from_official
    settings = {'n_head': g['constructor']['n_head']} | settings
    settings |= dict(image_size=0, patch_size=0) if model == 'crate' else {}
    model = load(made if sd is None else sd, **settings).eval()
    return model, g, *(torch.tensor(g['input'][k]) for k in ('tokens', 'targets'))


def agree(found, want):
    """Fails unless a tensor, or a list of them, is what a golden file says: all its numbers, or shape and statistics.
    A gradient may have another shape than the authors' parameter."""
    if isinstance(found, (list, tuple)):
        for pair in zip(found, want, strict=True):
            agree(*pair)
    elif isinstance(want, dict):
        of = {'first8': lambda t: t[:8], 'last8': lambda t: t[-8:], 'first4': lambda t: t[:4], 'mean': torch.mean,
              'std': torch.std}
        assert found.numel() == math.prod(want['shape']) and want.keys() & of.keys()
        assert 'sum_abs' in want or list(found.shape) == want['shape']
        for name in want.keys() & of.keys():
            agree(of[name](found.flatten()), want[name])
        assert found.abs().sum().item() == pytest.approx(want.get('sum_abs', found.abs().sum().item()), rel=1e-5)
    else:
        want = torch.tensor(want)
        assert found.shape == want.shape and (found - want).abs().max() < 1e-5


def noise_of(g):
    """The random numbers of a golden file of a masked autoencoder, which decide what is hidden."""
    made = g['masking_noise']
    noise = torch.rand(made['shape'], generator=torch.Generator().manual_seed(made['generator_seed']))
    assert noise.sum().item() == pytest.approx(made['sum'], rel=1e-6)
    return noise


def masked_autoencoder(name, **settings):
    """A fresh small network, and pictures and noise for it; nothing is square."""
    Network, Config = networks.network(name)
    torch.manual_seed(0)
    small = dict(image_size=(8, 12), patch_size=(2, 4), n_layer=2, n_head=2, n_embd=16)
    small |= dict(decoder_n_layer=1, decoder_n_head=2, decoder_n_embd=24) if name == 'vit_mae' else {}
    return Network(Config(**small | settings)), torch.randn(3, 3, 8, 12), torch.rand(3, 12)


# networks of text: the model file, and settings other than the defaults
CAUSAL = [('aot', {}), ('aot', dict(tie_out=True, eta=0.5)), ('aot', dict(attn='mhsa')),
          ('aot', dict(attn='mhsa', mlp=True, bias=True)), ('aot', dict(mlp=True, head_dim=12)),
          ('crate', {}), ('crate', dict(tie_out=True, ista='soft')), ('crate', dict(head_dim=12, ista='mm')),
          ('crate_alpha', {}), ('crate_alpha', dict(decoupled=False, skip=False)),
          ('tost', dict(layer_scale=1.0)), ('tost', dict(layer_scale=1.0, bias=True, head_dim=12))]
TEXT_NETWORKS = [*CAUSAL, ('crate', dict(causal=False))]


def text_network(name, seed=0, **settings):
    """A small network for sequences of at most 16 of 11 tokens, in evaluation mode."""
    Network, Config = networks.network(name)
    torch.manual_seed(seed)
    small = dict(image_size=0, block_size=16, vocab_size=11, n_layer=3, n_head=2, n_embd=16)
    return Network(Config(**small | settings)).eval()


def picture_network(name='crate', **settings):
    """A small classifier of pictures of 8 x 8, with attention far from uniform."""
    return loud(text_network(name, **dict(image_size=8, patch_size=4, num_classes=4, n_layer=1) | settings))


def tokens(*shape, seed=1, vocab_size=11):
    return torch.randint(vocab_size, shape, generator=torch.Generator().manual_seed(seed))


def loud(model):
    """The same model with attention far from uniform, in evaluation mode."""
    with torch.no_grad():
        for attention in layers.attentions(model):
            for p in attention.parameters():
                p.mul_(4 if p.std() > 0.1 else 20)
    return model.eval()


def memorize(model, x, y, below, steps=500, lr=1e-2):
    """Train on one batch until its loss is below `below`. Fails if that takes more steps, or if a
    parameter has no gradient."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0)
    for _ in range(steps):
        loss = model(x, y)[1]
        if loss < below:
            return
        loss.backward()
        assert all(p.grad is not None for p in model.parameters())
        optimizer.step()
        optimizer.zero_grad()
    pytest.fail(f'the loss is {loss.item():.3f} after {steps} steps')


def fails(capsys, main, *words):
    """The one line that a user sees after a mistake; nothing else is printed on standard error."""
    with pytest.raises(SystemExit) as e, settings.one_line_errors():
        main(list(words))
    lines = capsys.readouterr().err.splitlines()
    assert e.value.code == 2 and len(lines) == 1 and lines[0].startswith('error: '), lines
    return lines[0]


def run(*words, cwd=None, **env):
    """A script of the project as a user starts it; returns the finished process."""
    return subprocess.run([sys.executable, str(ROOT / words[0]), *words[1:]], cwd=cwd, capture_output=True, text=True,
                          timeout=300, env=os.environ | env)


def torchrun(*words, script=ROOT / 'train.py', code=0):
    """Two processes, by default of train.py. Returns what they printed: (output, errors)."""
    command = [sys.executable, '-m', 'torch.distributed.run', '--standalone', '--nproc_per_node=2', script, *words]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=120,
                          env=os.environ | {'PYTHONPATH': str(ROOT)})
    assert (done.returncode == 0) == (code == 0), done.stderr
    return done.stdout, done.stderr


# ---- training runs

# words for runs of a tenth of a second: what resuming must get right; small networks of pictures
HARD = ['--dropout=0.2', '--gradient_accumulation_steps=2', '--optimizer=muon']
HARD_PICTURES = ['--ema=0.9', '--gradient_accumulation_steps=2', '--batch_size=4', '--dropout=0.2',
                 '--label_smoothing=0.1']
def config(name):
    """A config file as a word of the command line."""
    return str(ROOT / 'config' / f'{name}.py')


SHORT = ['--n_layer=1', '--n_head=2', '--n_embd=16', '--batch_size=8', '--max_iters=6', '--eval_interval=3',
         '--log_interval=1', '--warmup_iters=2', '--optimizer=adamw', '--dtype=float32']
OF_PICTURES = [*SHORT, '--model=crate', '--patch_size=4', '--randaugment_n=1', config('train_crate_shapes')]
OF_MAE = [*SHORT, '--patch_size=2', '--min_lr=0', '--learning_rate=1e-2']
OF_CRATE_MAE = [*OF_MAE, '--model=crate_mae', config('pretrain_crate_mae_shapes')]
OF_AUTOENCODERS = {'crate_mae': OF_CRATE_MAE, 'vit_mae': [
    *OF_MAE, '--model=vit_mae', '--decoder_n_layer=1', '--decoder_n_head=2', '--decoder_n_embd=16',
    config('pretrain_vit_mae_shapes')]}
OF_DINO = [*SHORT, '--model=dino', '--patch_size=4', '--n_out=32', '--hidden=16', '--bottleneck=8', '--local_crops=2',
           '--local_size=4', '--crop_scale=0.4', '--freeze_share=0.2', '--weight_decay_end=0.4',
           config('train_crate_dino_shapes')]
KINDS = {  # of runs, each with what is hard to get right; `tiny` stands before those without SHORT
    'text': HARD, 'tost': ['--model=tost', '--layer_scale=1', '--optimizer=lion', config('train_tost_stdlib')],
    'crate_lm': ['--model=crate_alpha', '--decoupled=false', '--skip=false', '--dropout=0.2', '--optimizer=muon',
                 config('base/stdlib')],
    'masked_text': ['--model=crate', '--causal=false', '--optimizer=adam', '--dropout=0.1',
                    config('train_crate_bert_stdlib')],
    'functions': ['--dataset=sparse_linear', '--n_dims=4', '--block_size=8', '--recompute=true', '--sparsity=2',
                  '--curriculum=2', config('train_aot_linear')],
    'pictures': [*OF_PICTURES, *HARD_PICTURES], **OF_AUTOENCODERS, 'dino': OF_DINO,
    'simdino': [*OF_DINO, '--objective=simdino', '--eps=0.4', '--c=2']}


def go(*words):
    """Train, in this process. Raises SystemExit if a signal ended the run."""
    if code := train.main(list(words)):
        sys.exit(code)


def before_step(patch, step, act):
    """From now on act() is called just before this step of a run, counted from its start."""
    set_rates, steps = optim.set_rates, itertools.count()

    def rates(*args):
        if next(steps) == step:
            act()
        return set_rates(*args)
    patch.setattr(optim, 'set_rates', rates)


def losses(out):
    """A run's log as a table without the time: a line of columns, then one for each row."""
    rows = read_log(out)
    columns = list(dict.fromkeys(k for row in rows for k in row if k != 'seconds'))
    return [','.join(columns)] + [','.join(str(row.get(k, '')) for k in columns) for row in rows]


def column(out, split, name='loss'):
    """The numbers in a column of a run's log; NaN where it is empty."""
    return [row.get(name, float('nan')) for row in read_log(out) if row['split'] == split]


def config_of(out):
    """All settings in a run's config.json."""
    held = json.loads((Path(out) / 'config.json').read_text())
    return held['settings'] | held['network']


def weights(out, name='last'):
    """{name: tensor} of a run: the last ones, their 'average', or those of a file, such as 'best'."""
    return read_last(out)[{'last': 'weights'}.get(name, name)] if name in ('last', 'average') else \
        read_weights(Path(out) / f'{name}.safetensors')[0]


def equal(a, b):
    """Whether tensors, in dicts and lists or alone, are the same bit for bit, and so what stands beside them."""
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(equal, a, b))
    return a.dtype == b.dtype and torch.equal(a, b) if torch.is_tensor(a) else a == b


def snapshot(folder):
    return {p.name: p.read_bytes() for p in sorted(Path(folder).iterdir())}


# ---- pictures and runs that are made fast

# what config.json of a run says of its dataset
BYTES, CLASSES = {'kind': 'text', 'tokenizer': {'name': 'bytes'}}, {'kind': 'images', 'classes': list('abcd')}


def quadrants(n, seed=0, size=8, classes=4, channels=3):
    """(pictures, labels): dark noise with a light. The class is the quadrant of the light and, from
    the fifth class on, its channel."""
    pictures = np.random.default_rng(seed).integers(0, 60, (n, size, size, channels), np.uint8)
    labels = np.arange(n) % classes
    for picture, k in zip(pictures, labels):
        top, left = (size // 2 * i + 1 for i in (k // 2 % 2, k % 2))
        picture[top:top + size // 4, left:left + size // 4, k // 4] += 180
    return pictures, labels


def normalized(pictures):
    """uint8 (N, H, W, C) -> what a network sees of pictures that have its size, float32 (N, C, H,
    W)."""
    mean, deviation = ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]) if pictures.shape[3] == 3 else (0.449, 0.226)
    x = (torch.from_numpy(np.array(pictures)).double() / 255 - torch.tensor(mean)) / torch.tensor(deviation)
    return x.permute(0, 3, 1, 2).float()


def by_hand(model, folder, split, function=None):
    """(outputs float64, labels) of all pictures of a split that have the network's size, without
    the project's pipeline."""
    x, y = (np.load(Path(folder) / f'{split}.{name}.npy') for name in ('images', 'labels'))
    with torch.no_grad():
        return (function or (lambda x: model(x)[0]))(normalized(x)).double(), torch.from_numpy(y)


def margin(scores, y=None):
    """How far scores (N, C) are from a tie that rounding could decide: the smallest distance of a
    row's highest score from the next; with y (N,), of the score of y from the highest and the fifth
    highest of the others."""
    own = (scores.argmax(1) if y is None else y)[:, None]
    others = scores.scatter(1, own, -torch.inf).sort(1, descending=True).values
    decisive = [0] if y is None else [place for place in (0, 4) if place < scores.size(1) - 1]
    return (others[:, decisive] - scores.gather(1, own)).abs().min().item()


def save_run(out, model, data, **settings):
    """A run directory with this network, and settings of its training. data: what config.json says of its dataset, such
    as {'kind': 'text', 'tokenizer': {'name': 'bytes'}}. Returns the directory."""
    write_run(out, model, {'sparsity': 3, 'eval_crop': 1.0} | settings, data, overwrite=True)
    return Path(out)


def train_fast(*words):
    """A training run that draws no curve, which takes most of the time of a short run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr('engine.plots.draw_curve', lambda run: None)
        go(*map(str, words))


def jpeg(height, width, seed):
    """The bytes of a JPEG file of noise."""
    out = io.BytesIO()
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    Image.fromarray(pixels).save(out, 'JPEG')
    return out.getvalue()


def masked_folders(place, voc, coco):
    """Pictures with masks as Pascal VOC and COCO publish them in the folders voc and coco; and FOLDER and MASKS in
    `place`, of two classes."""
    from small_files import box, coco_files, jpeg, png, squares, thing, tree, voc_files
    mask, things = squares((1, 8, 8)), [thing(box(8, 8, 12), area=144)]
    tree(place, {f'FOLDER/class{i % 2}/{i}.jpg': jpeg() for i in range(4)})
    tree(place, {f'MASKS/class{i % 2}/{i}.png': png(mask) for i in range(4)})
    tree(voc, voc_files(mask, mask))
    for split in ('train', 'val'):
        tree(coco, coco_files(things, f'instances_{split}', split))


SHAPES = [(9, 12), (16, 8), (8, 8), (11, 30), (12, 9)]  # of the pictures in turn
JPEGS = {split: [(f'{split}/{i}.jpg', i % 4, jpeg(*SHAPES[i % 5], seed + i)) for i in range(n)]
         for split, n, seed in (('train', 13, 0), ('val', 7, 50))}
