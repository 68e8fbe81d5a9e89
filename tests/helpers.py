"""What tests in every folder share: the golden files, a small text, properties of any network, and
training runs."""
import functools
import io
import itertools
import json
import math
import multiprocessing
import multiprocessing.connection
import os
import runpy
import subprocess
import sys
import tempfile
import traceback
from argparse import Namespace
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import prepared
import pytest
import torch
from PIL import Image
from torch.distributed.elastic.utils.distributed import get_free_port

import train
from analysis import layers
from engine import networks, optim
from engine.checkpoint import read_log
from engine.mistakes import one_line_errors
from lib import pictures
from lib.texts import write_tokens
from weights.runs import read_last, read_weights, write_run

ROOT = Path(__file__).resolve().parent.parent

# 60 kB of text that is the same everywhere and always
WORDS = 'the of and a to in subspace token layer naïve ünd compress, sparsify. 42\n'.split(' ')
TEXT = ' '.join(np.random.default_rng(0).choice(WORDS, 12_000))


def save_text(out, tokenizer, splits, n_bytes):
    """A prepared dataset of a text in memory. splits: {'train': ids, 'val': ids}; n_bytes: {split:
    its length in UTF-8}."""
    rows = [(name, ids, n_bytes[name]) for name, ids in splits.items()]
    write_tokens(out, tokenizer, rows)


def save_pack(out, splits, classes=None, size=256, channels=3, max_bad=0.01, workers=0):
    """A dataset of large pictures, as a script writes it for whom these words are typed."""
    args = Namespace(out=out, size=size, channels=channels, max_bad=max_bad, workers=workers)
    pictures.save_pack(args, splits, classes)


def split_text(text, tokenizer):
    """(splits, n_bytes) for save_text. The validation split is the last tenth of the characters."""
    cut = int(len(text) * 0.9)
    texts = {'train': text[:cut], 'val': text[cut:]}
    splits = {name: tokenizer.encode(part) for name, part in texts.items()}
    n_bytes = {name: len(part.encode()) for name, part in texts.items()}
    return splits, n_bytes


def generator(seed):
    return torch.Generator().manual_seed(seed)


# ---- golden files -------------------------------------------------------------------------------

def golden(name):
    """The weights that a golden file was made with, by the recipe that it states, and the file.
    Positions that are fixed are left out of the weights."""
    g = json.loads((ROOT / 'tests' / 'golden' / f'{name}.json').read_text())
    return golden_weights(g['state_dict']), g


def golden_weights(rows):
    """{name: tensor} of the rows (name, shape, fill, first value) of a golden file."""
    sd = {}
    for i, (name, shape, fill, _) in enumerate(rows):
        sd[name] = 0.05 * torch.randn(shape, generator=generator(1000 + i))
        if fill == 'normal+1':
            sd[name] += 1
    for name, _, fill, first in rows:
        if fill.startswith('keep'):
            del sd[name]
            continue
        if fill.startswith('tied to '):
            sd[name] = sd[fill.removeprefix('tied to ')]
        assert sd[name].flatten()[0].item() == pytest.approx(first, rel=1e-5)
    return sd


def golden_pictures(name, sd=None, **settings):
    """(network, golden file, pictures) of a classifier or masked autoencoder, by the golden file's
    recipe."""
    made, g = golden(name)
    c = g['constructor']
    if 'decoder_heads' in c:
        settings['decoder_n_head'] = c['decoder_heads']
    model_name = name.removesuffix('_vision')
    if model_name not in networks.names():
        model_name = 'crate'

    Network = networks.network_class(model_name)
    model = Network.from_official(sd or made, n_head=c['heads'], image_size=c['image_size'],
                                  patch_size=c['patch_size'], **settings)
    return model.eval(), g, torch.randn(g['input']['shape'], generator=generator(7))


def golden_text(name, sd=None, **settings):
    """(network, golden file, token ids, targets) of a language model, by the golden file's
    recipe."""
    made, g = golden(name)
    names = {'gpt': 'aot', 'crate_gpt': 'crate', 'crate_lm': 'crate_alpha'}
    model_name = names.get(name.split('_bias')[0], 'tost')
    Network = networks.network_class(model_name)
    settings.setdefault('n_head', g['constructor']['n_head'])
    if model_name == 'crate':
        settings.update(image_size=0, patch_size=0)
    load = Network.from_gpt2 if model_name == 'aot' else Network.from_official

    model = load(made if sd is None else sd, **settings)
    ids = torch.tensor(g['input']['tokens'])
    return model.eval(), g, ids, torch.tensor(g['input']['targets'])


def agree(actual, expected):
    """Fails unless a tensor, or a list of them, is what a golden file says: all its numbers, or
    its shape and statistics."""
    if isinstance(actual, (list, tuple)):
        for pair in zip(actual, expected, strict=True):
            agree(*pair)
    elif isinstance(expected, dict):
        agree_in_statistics(actual, expected)
    else:
        expected = torch.tensor(expected)
        assert actual.shape == expected.shape
        assert (actual - expected).abs().max() < 1e-5


def agree_in_statistics(tensor, expected):
    flat = tensor.flatten()
    statistics = {'first8': flat[:8], 'last8': flat[-8:], 'first4': flat[:4], 'mean': flat.mean()}
    if 'std' in expected:  # it is not defined for a single number
        statistics['std'] = flat.std()
    names = expected.keys() & statistics.keys()
    assert names
    for name in names:
        agree(statistics[name], expected[name])
    assert flat.numel() == math.prod(expected['shape'])
    if 'sum_abs' in expected:  # a gradient, which may have another shape than the authors'
        assert flat.abs().sum().item() == pytest.approx(expected['sum_abs'], rel=1e-5)
    else:
        assert list(tensor.shape) == expected['shape']


def noise_of(g):
    """The random numbers of a golden file of a masked autoencoder, which decide what is hidden."""
    recipe = g['masking_noise']
    noise = torch.rand(recipe['shape'], generator=generator(recipe['generator_seed']))
    assert noise.sum().item() == pytest.approx(recipe['sum'], rel=1e-6)
    return noise


# ---- small networks -----------------------------------------------------------------------------

def masked_autoencoder(name, **settings):
    """A fresh small network, and pictures and noise for it. No side has the length of another."""
    Network, Config = networks.network_class(name), networks.config_class(name)
    torch.manual_seed(0)
    small = dict(image_size=(8, 12), patch_size=(2, 4), n_layer=2, n_head=2, n_embd=16)
    if name == 'vit_mae':
        small.update(decoder_n_layer=1, decoder_n_head=2, decoder_n_embd=24)
    return Network(Config(**small | settings)), torch.randn(3, 3, 8, 12), torch.rand(3, 12)


# networks of text: the model file, and settings other than the defaults
CAUSAL = [
    ('aot', {}),
    ('aot', dict(tie_out=True, eta=0.5)),
    ('aot', dict(attn='mhsa')),
    ('aot', dict(attn='mhsa', mlp=True, bias=True)),
    ('aot', dict(mlp=True, head_dim=12)),
    ('crate', {}),
    ('crate', dict(tie_out=True, ista='soft')),
    ('crate', dict(head_dim=12, ista='mm')),
    ('crate_alpha', {}),
    ('crate_alpha', dict(decoupled=False, skip=False)),
    ('tost', dict(layer_scale=1.0)),
    ('tost', dict(layer_scale=1.0, bias=True, head_dim=12)),
]
TEXT_NETWORKS = [*CAUSAL, ('crate', dict(causal=False))]


def text_network(name, seed=0, **settings):
    """A small network for sequences of at most 16 of 11 tokens, in evaluation mode."""
    Network, Config = networks.network_class(name), networks.config_class(name)
    torch.manual_seed(seed)
    small = dict(image_size=0, block_size=16, vocab_size=11, n_layer=3, n_head=2, n_embd=16)
    return Network(Config(**small | settings)).eval()


def picture_network(name='crate', **settings):
    """A small classifier of pictures of 8 x 8, with attention far from uniform."""
    small = dict(image_size=8, patch_size=4, num_classes=4, n_layer=1)
    return loud(text_network(name, **small | settings))


def tokens(*shape, seed=1, vocab_size=11):
    return torch.randint(vocab_size, shape, generator=generator(seed))


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


# ---- commands -----------------------------------------------------------------------------------

def fails(capsys, main, *words):
    """The one line that a user sees after a mistake. Nothing else is printed on standard error."""
    with pytest.raises(SystemExit) as e, one_line_errors():
        main(list(words))
    mistake = e.value.__context__
    while mistake:
        # Its traceback keeps the variables of all functions, and with them the processes that read
        # pictures. Deleted here, these end at once. The garbage collector would find them in a
        # later test, and wait five seconds for each.
        traceback.clear_frames(mistake.__traceback__)
        mistake = mistake.__cause__

    lines = capsys.readouterr().err.splitlines()
    assert e.value.code == 2
    assert len(lines) == 1, lines
    assert lines[0].startswith('error: ')
    return lines[0]


# To import torch takes seconds, so these processes are forked from one that has imported it, and
# what most runs import beside it
PREPARED = multiprocessing.get_context('forkserver')
PREPARED.set_forkserver_preload(['torch._dynamo', 'torch.distributed.nn', 'matplotlib.figure'])


def run(*words, cwd=None, **env):
    """A script of the project as a user starts it, in a process that has torch already. Returns
    what subprocess.run returns."""
    return run_in_processes([ROOT / words[0], *words[1:]], [env], cwd)[0]


class PreparedPopen:
    """Takes the place of subprocess.Popen for a script of the project. The script runs to its end,
    in a process that has torch already, before anything can be asked of this object."""

    def __init__(self, words, **settings):
        self.args = words
        self.finished = run(*words[1:])
        self.returncode = self.finished.returncode

    def communicate(self, *_, **settings):
        return self.finished.stdout, self.finished.stderr

    def poll(self):
        return self.returncode

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


def run_in_processes(words, environments, cwd=None):
    """Run one command in several processes at once, one for each dict of variables, which are added
    to the environment. If one fails, the others are ended, as by torchrun. Returns them,
    finished."""
    words = [str(word) for word in words]
    with tempfile.TemporaryDirectory() as folder:
        processes = []
        for number, variables in enumerate(environments):
            arguments = (words, cwd or os.getcwd(), os.environ | variables, f'{folder}/{number}')
            process = PREPARED.Process(target=prepared.run_script, args=arguments)
            process.start()
            processes.append(process)
        wait_for(processes)

        finished = []
        for number, process in enumerate(processes):
            output = Path(f'{folder}/{number}.stdout').read_text()
            errors = Path(f'{folder}/{number}.stderr').read_text()
            finished.append(
                subprocess.CompletedProcess(words, process.exitcode, output, errors))
        return finished


def wait_for(processes):
    """Wait until all have ended. If one fails, end the others. Fails if none ends within 300
    seconds."""
    running = {process.sentinel: process for process in processes}
    while running:
        ended = multiprocessing.connection.wait(running, timeout=300)
        if not ended:
            for process in running.values():
                process.kill()
            pytest.fail('processes had not ended after 300 seconds')

        for sentinel in ended:
            process = running.pop(sentinel)
            process.join()
            if process.exitcode != 0:
                for other in running.values():
                    other.terminate()


# runs all commands in one process, because each start of Python takes seconds
RUN_ALL = """
import json, os, runpy, sys

root, commands = sys.argv[1:]
for words in json.loads(commands):
    # as Python decodes the words of a command line in the code page of this process
    sys.argv = [os.fsdecode(word.encode()) for word in words]
    script = os.path.join(root, words[0])
    sys.path[0] = os.path.dirname(script)
    try:
        runpy.run_path(script, run_name='__main__')
    except SystemExit as e:
        assert not e.code, words
"""


def run_anew(commands, cwd, first='', **env):
    """Run scripts of the project, one after the other, in a new Python that has imported nothing:
    for what run() and run_here() cannot show. It begins with the lines of code `first`. Fails if a
    script fails. Returns the finished process."""
    words = [sys.executable, '-c', first + RUN_ALL, str(ROOT), json.dumps(commands)]
    process = subprocess.run(words, cwd=cwd, capture_output=True, text=True, timeout=300,
                             env=os.environ | env)
    assert process.returncode == 0, process.stderr
    return process


def run_here(*words):
    """A script of the project as a user starts it, in this process, which takes seconds less than
    run(). Fails if it ends with another exit code than 0."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, 'argv', [str(word) for word in words])
        try:
            runpy.run_path(str(ROOT / words[0]), run_name='__main__')
        except SystemExit as e:
            assert not e.code, words


def torchrun(*words, script=ROOT / 'train.py', code=0):
    """Two processes with the variables that torchrun sets, by default of train.py. code: 0 if both
    must end well, anything else if one must fail. Returns what they printed: (output, errors)."""
    port = get_free_port()
    environments = []
    for rank in ('0', '1'):
        environments.append({'RANK': rank, 'LOCAL_RANK': rank, 'WORLD_SIZE': '2',
                             'LOCAL_WORLD_SIZE': '2', 'MASTER_ADDR': 'localhost',
                             'MASTER_PORT': str(port), 'PYTHONPATH': str(ROOT)})
    finished = run_in_processes([script, *words], environments)
    output = ''.join(process.stdout for process in finished)
    errors = ''.join(process.stderr for process in finished)
    codes = [process.returncode for process in finished]
    assert any(codes) == (code != 0), errors
    return output, errors


# ---- training runs ------------------------------------------------------------------------------

def config(name):
    """A config file as a word of the command line."""
    return str(ROOT / 'config' / f'{name}.py')


# words for runs of a tenth of a second, each with what is hard to get right when a run goes on
HARD = ['--dropout=0.2', '--gradient_accumulation_steps=2', '--optimizer=muon']
HARD_PICTURES = ['--ema=0.9', '--gradient_accumulation_steps=2', '--batch_size=4', '--dropout=0.2',
                 '--label_smoothing=0.1']
SHORT = '''--n_layer=1 --n_head=2 --n_embd=16 --batch_size=8 --max_iters=6 --eval_interval=3
           --log_interval=1 --warmup_iters=2 --optimizer=adamw --dtype=float32'''.split()
OF_PICTURES = [*SHORT, '--model=crate', '--patch_size=4', '--randaugment_n=1',
               config('train_crate_shapes')]
OF_MAE = [*SHORT, '--patch_size=2', '--min_lr=0', '--learning_rate=1e-2']
OF_CRATE_MAE = [*OF_MAE, '--model=crate_mae', config('pretrain_crate_mae_shapes')]
OF_VIT_MAE = [*OF_MAE, '--model=vit_mae', '--decoder_n_layer=1', '--decoder_n_head=2',
              '--decoder_n_embd=16', config('pretrain_vit_mae_shapes')]
OF_AUTOENCODERS = {'crate_mae': OF_CRATE_MAE, 'vit_mae': OF_VIT_MAE}
OF_DINO = [*SHORT, '--model=dino', '--patch_size=4', '--out_dim=32', '--hidden_dim=16',
           '--bottleneck_dim=8', '--local_crops=2', '--local_size=4', '--crop_scale=0.4', '--freeze_share=0.2',
           '--weight_decay_end=0.4', config('train_crate_dino_shapes')]
# kinds of runs: words that stand behind those of the fixture `tiny`
TINY_KINDS = {
    'text': HARD,
    'tost': ['--model=tost', '--layer_scale=1', '--optimizer=lion', config('train_tost_stdlib')],
    'crate_lm': ['--model=crate_alpha', '--decoupled=false', '--skip=false', '--dropout=0.2',
                 '--optimizer=muon', config('base/stdlib')],
    'masked_text': ['--model=crate', '--causal=false', '--optimizer=adam', '--dropout=0.1',
                    config('train_crate_bert_stdlib')],
    'functions': ['--dataset=sparse_linear', '--n_dims=4', '--block_size=8', '--recompute=true',
                  '--sparsity=2', '--curriculum=2', config('train_aot_linear')],
}
PICTURE_KINDS = {
    'pictures': [*OF_PICTURES, *HARD_PICTURES],
    'crate_mae': OF_CRATE_MAE,
    'vit_mae': OF_VIT_MAE,
    'dino': OF_DINO,
    'simdino': [*OF_DINO, '--objective=simdino', '--eps=0.4', '--alignment_weight=2'],
}
KINDS = TINY_KINDS | PICTURE_KINDS


def go(*words):
    """Train, in this process. Raises SystemExit if a signal ended the run."""
    code = train.main([str(word) for word in words])
    if code:
        sys.exit(code)


def before_step(patch, step, act):
    """From now on act() is called just before this step of a run, counted from its start."""
    set_rates = optim.set_rates
    steps = itertools.count()

    def act_and_set_rates(*args):
        if next(steps) == step:
            act()
        return set_rates(*args)
    patch.setattr(optim, 'set_rates', act_and_set_rates)


def losses(out):
    """A run's log as a table without the time: a line of names, then one for each row."""
    rows = read_log(out)
    names = {}  # in the order in which they come
    for row in rows:
        row.pop('seconds', None)
        names.update(row)
    lines = [','.join(names)]
    for row in rows:
        lines.append(','.join(str(row.get(name, '')) for name in names))
    return lines


def compile_graphs_alone(patch):
    """From now on torch.compile makes graphs, and no C++ of them, which takes most of the time."""
    patch.setattr(torch, 'compile', functools.partial(torch.compile, backend='aot_eager'))


def column(out, split, name='loss'):
    """The numbers in a column of a run's log; NaN where it is empty."""
    return [row.get(name, float('nan')) for row in read_log(out) if row['split'] == split]


def config_of(out):
    """All settings in a run's config.json."""
    c = json.loads((Path(out) / 'config.json').read_text())
    return c['settings'] | c['network']


def weights(out, name='last'):
    """{name: tensor} of a run: the last ones, their 'average', or those of a file, such as
    'best'."""
    if name == 'last':
        return read_last(out)['weights']
    if name == 'average':
        return read_last(out)['average']
    return read_weights(Path(out) / f'{name}.safetensors')[0]


def equal(a, b):
    """Whether tensors, in dicts and lists or alone, are the same bit for bit. What stands beside
    them must be equal too."""
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(equal, a, b))
    if torch.is_tensor(a):
        return a.dtype == b.dtype and torch.equal(a, b)
    return a == b


@contextmanager
def files_of_at_most(n_bytes):
    """As on a full disk, no file can grow beyond so many bytes."""
    import resource  # which Windows has not
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextmanager
def edited(path):
    """with edited(path) as values: what a JSON file holds, which is written anew after the block."""
    values = json.loads(path.read_text())
    yield values
    path.write_text(json.dumps(values))


def snapshot(folder):
    return {path.name: path.read_bytes() for path in sorted(Path(folder).iterdir())}


def save_run(out, model, data, **settings):
    """A run directory with this network, and settings of its training. data: what config.json says
    of its dataset, such as BYTES. Returns the directory."""
    write_run(out, model, {'sparsity': 3, 'eval_crop': 1.0} | settings, data, overwrite=True)
    return Path(out)


# what config.json of a run says of its dataset
BYTES = {'kind': 'text', 'tokenizer': {'name': 'bytes'}}
CLASSES = {'kind': 'images', 'classes': list('abcd')}


# ---- pictures -----------------------------------------------------------------------------------

def quadrants(n, seed=0, size=8, classes=4, channels=3):
    """(pictures, labels): dark noise with a light. The class is the quadrant of the light and, from
    the fifth class on, its channel."""
    shape = (n, size, size, channels)
    pictures = np.random.default_rng(seed).integers(0, 60, shape, np.uint8)
    labels = np.arange(n) % classes
    for picture, label in zip(pictures, labels):
        row = size // 2 * (label // 2 % 2) + 1
        column = size // 2 * (label % 2) + 1
        picture[row:row + size // 4, column:column + size // 4, label // 4] += 180
    return pictures, labels


def normalized(pictures):
    """uint8 (N, H, W, C) -> what a network sees of pictures that have its size, float32 (N, C, H,
    W)."""
    mean = torch.tensor([0.485, 0.456, 0.406])
    deviation = torch.tensor([0.229, 0.224, 0.225])
    if pictures.shape[3] != 3:
        mean = torch.tensor(0.449)
        deviation = torch.tensor(0.226)
    x = torch.from_numpy(np.array(pictures)).double() / 255
    return ((x - mean) / deviation).permute(0, 3, 1, 2).float()


def by_hand(model, folder, split, function=None):
    """(outputs float64, labels) of all pictures of a split that have the network's size, without
    the project's pipeline. function: what gives the outputs, in the place of the network."""
    x = normalized(np.load(Path(folder) / f'{split}.images.npy'))
    y = np.load(Path(folder) / f'{split}.labels.npy')
    with torch.no_grad():
        out = model(x)[0] if function is None else function(x)
    return out.double(), torch.from_numpy(y)


def margin(scores, y=None):
    """How far scores (N, C) are from a tie that rounding could decide: the smallest distance of a
    row's highest score from the next; with y (N,), of the score of y from the highest and the fifth
    highest of the others."""
    decisive = [0]
    if y is None:
        y = scores.argmax(1)
    elif scores.size(1) > 5:
        decisive = [0, 4]
    y = y[:, None]
    others = scores.scatter(1, y, -torch.inf).sort(1, descending=True).values
    return (others[:, decisive] - scores.gather(1, y)).abs().min().item()


def jpeg(height, width, seed):
    """The bytes of a JPEG file of noise."""
    out = io.BytesIO()
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    Image.fromarray(pixels).save(out, 'JPEG')
    return out.getvalue()


def jpegs(split, n, first_seed):
    """n rows (name, label, file), of pictures of five sizes."""
    sizes = [(9, 12), (16, 8), (8, 8), (11, 30), (12, 9)]
    rows = []
    for i in range(n):
        rows.append((f'{split}/{i}.jpg', i % 4, jpeg(*sizes[i % 5], first_seed + i)))
    return rows


JPEGS = {'train': jpegs('train', 13, 0), 'val': jpegs('val', 7, 50)}


def masked_folders(place, voc, coco):
    """Pictures with masks as Pascal VOC and COCO publish them, in the folders voc and coco; and
    FOLDER and MASKS in `place`, of two classes."""
    from small_files import box, coco_files, jpeg, png, squares, thing, tree, voc_files
    mask = squares((1, 8, 8))
    things = [thing(box(8, 8, 12), area=144)]
    tree(place, {f'FOLDER/class{i % 2}/{i}.jpg': jpeg() for i in range(4)})
    tree(place, {f'MASKS/class{i % 2}/{i}.png': png(mask) for i in range(4)})
    tree(voc, voc_files(mask, mask))
    for split in ('train', 'val'):
        tree(coco, coco_files(things, f'instances_{split}', split))
