"""Look at what a trained network does: write or complete text, classify or reconstruct pictures.

    python sample.py                                              # from the run of a bare `python train.py`
    python sample.py --ckpt=out/aot_owt --start="Once upon a time" --num_samples=3
    python sample.py --ckpt=out/aot_owt --start=FILE:prompt.txt
    python sample.py --ckpt=out/aot_stdlib --interactive          # continues each line that you type
    python sample.py --ckpt=out/crate_bert_stdlib --start="def __[MASK]nit__(self):"
    python sample.py --ckpt=out/crate_cifar10 --image=cat.jpg     # a picture, or a folder of them
    python sample.py --ckpt=out/crate_shapes --image=data/shapes --num_samples=12 --out=grid.png
    python sample.py --ckpt=out/crate_mae_shapes --image=cat.jpg --out=cat_masked.png --mask_ratio=0.5
    python sample.py --help

It needs no dataset: config.json holds the tokenizer or the names of the classes.
"""
import codecs
import contextlib
import math
import sys
from dataclasses import dataclass

import engine  # before torch
import torch

from engine import figures, plots, settings
from engine.device import autocast, choose_device, choose_dtype
from engine.generate import stream
from engine.networks import grid, kind_of
from engine.settings import Mistake
from engine.trained import check_labelled, from_command_line, heading, is_small, load_model
from tasks import augment
from tasks.imagenet import readable
from tasks.pictures import labelled_pictures_of, seen
from tasks.tokenizer import Tokenizer, prompt_of, with_masks


@dataclass
class SampleConfig:
    ckpt: str = 'out/aot_stdlib'     # a run directory, for its best weights, or a .safetensors file in one
    image: str = ''                  # pictures to look at: a file, a folder of files or classes, or a prepared dataset
    out: str = ''                    # where pictures are drawn; empty: reconstructions in reconstruction.png
    overwrite: bool = False          # replace that file if it exists
    start: str = ''                  # the prompt; with [MASK] for CRATE-BERT; \n is a new line, FILE:path reads a file
    interactive: bool = False        # continue each line that is typed, or piped in; an empty one ends it
    num_samples: int = 1             # texts to write; of a prepared dataset or of classes, pictures to look at
    max_new_tokens: int = 500        # length of each text
    temperature: float = 0.8         # below 1 more careful, above 1 more varied; 0 always takes the most likely token
    top_k: int = 200                 # sample from the k most likely tokens; 0 from all
    top_p: float = 1.0               # sample from the most likely tokens that together have this probability
    stop: str = ''                   # end a text at this token, given as text
    seed: int = 1337                 # of all random choices
    device: str = 'auto'             # cpu, cuda, cuda:1, mps
    dtype: str = 'auto'              # float32, bfloat16, float16; auto: as in training for 50M parameters or more


MOST_DRAWN = 60  # pictures in a grid; a reconstruction is four
TASKS = ('text', 'masked_text', 'image', 'masked_image')
ONLY_FOR = {'image': ['images'], 'out': ['images'], 'start': ['text'], 'interactive': ['text']}


def look_at_texts(c, run, model):
    """Continue --start or fill its gaps; or each line of standard input until an empty one or the end. A mistake in a
    line is said, and the next line may do better."""
    look = continue_text if model.config.task == 'text' else fill_gaps
    tokenizer = Tokenizer(**run['data']['tokenizer'])
    if not c.interactive:
        return look(c, prompt_of(c.start), tokenizer, model)
    with contextlib.suppress(EOFError):
        while line := input('> ' if sys.stdin.isatty() else ''):
            try:
                look(c, prompt_of(line), tokenizer, model)
            except Mistake as e:
                print('error:', e, file=sys.stderr)


def continue_text(c, text, tokenizer, model):
    """Print texts that continue this one."""
    prompt, stop = tokenizer.encode(text), tokenizer.encode(prompt_of(c.stop))
    if len(stop) > 1:
        raise Mistake(f'--stop={c.stop} is {len(stop)} tokens; it must be one')
    idx = torch.tensor([prompt or [tokenizer.beginning]], device=next(model.parameters()).device)
    for i in range(c.num_samples):
        line = '-' * 40 + '\n' if i else ''
        print(line + text, end='', flush=True)
        decode = codecs.getincrementaldecoder('utf-8')('replace').decode  # holds back half a character
        for token in stream(model, idx, c.max_new_tokens, c.temperature, c.top_k or None, c.top_p, *stop):
            print(decode(tokenizer.decode_bytes(token[0].tolist())), end='', flush=True)
        print(decode(b'', final=True))


def fill_gaps(c, text, tokenizer, model):
    """Print the five most likely tokens for each [MASK] of the text, then the text with the most likely ones."""
    ids, mask, most = with_masks(tokenizer, text), tokenizer.vocab_size, model.config.block_size
    if mask not in ids or len(ids) > most:
        raise Mistake(f'give a text with [MASK] in it and up to block_size={most} tokens: --start="def [MASK]ain():"')
    x = torch.tensor([ids], device=next(model.parameters()).device)
    logits = model(x)[0][0, :, :mask]                                   # (N, vocab_size)
    gaps = [i for i, token in enumerate(ids) if token == mask]
    for number, i in enumerate(gaps, 1):
        best = likeliest(logits[i])
        print(f'[MASK] {number}: ' + ', '.join(f'{tokenizer.decode([token])!r} {p:.1%}' for token, p in best))
        ids[i] = best[0][0]
    print(tokenizer.decode(ids))


def likeliest(logits):
    """The five most likely indices of logits (V,), each with its probability."""
    best = logits.float().softmax(0).topk(min(5, len(logits)))
    return list(zip(best.indices.tolist(), best.values.tolist()))


def look_at_pictures(c, run, model):
    """Print what the network makes of each picture that --image names. Draw the first ones, if it reconstructs or --out
    says where."""
    masked = model.config.task == 'masked_image'
    look, out = reconstruct if masked else name_picture, c.out or 'reconstruction.png' * masked
    if not c.image:
        raise Mistake('this network looks at pictures: give --image=PATH of a picture, a folder or a prepared dataset')
    if out:
        figures.check_free(out, c.overwrite or not c.out)
    drawn, channels = [], getattr(model.config, 'channels', 3)
    for name, picture, own in labelled_pictures_of(c.image, c.num_samples, c.seed, channels):
        said, panels = look(seen(picture, model, run), name, own, run, model)
        print(f'{name}: {said}')
        if len(drawn) < MOST_DRAWN:
            drawn += panels
    if out:
        draw(out, drawn)


def name_picture(x, name, own, run, model):
    """The five most likely classes of a picture, pixels x (1, C, H, W): in words, and what to draw."""
    check_labelled(run)
    classes = run['data']['classes'] or [f'class {i}' for i in range(model.config.num_classes)]
    best = [(readable(classes[i]), p) for i, p in likeliest(model(x)[0][0])]
    title = readable(own) if own in classes else name
    below = '\n'.join(f'{called:.22} {p:.0%}' for called, p in best[:3])
    panel = augment.visible(x)[0], title, below, 'C0' if title == best[0][0] else 'black'
    return ', '.join(f'{called} {p:.1%}' for called, p in best), [panel]


def reconstruct(x, name, own, run, model):
    """The error at the hidden patches of a picture, pixels x (1, C, H, W): in words, and what to draw: the original,
    its visible patches, the reconstruction, and the visible patches pasted into it."""
    mc = model.config
    noise = torch.rand(1, math.prod(grid(mc))).to(x.device)
    rebuilt = model.reconstruct(x, noise).float()
    hidden = torch.kron(model.hide(noise).view(grid(mc)), x.new_ones(mc.patch_size)).bool()                 # (H, W)
    error = (rebuilt - x)[hidden.expand_as(x)].square().mean()
    row = torch.cat((x, x.masked_fill(hidden, 0.0), rebuilt, torch.where(hidden, rebuilt, x)))
    titles = 'original', f'{hidden.float().mean():.0%} masked', 'reconstruction', 'pasted'
    note = ' (true patch statistics undo norm_pix_loss)' * mc.norm_pix_loss
    return (f'squared error of the masked patches {error:.4f}{note}',
            [(pixels, title, '', 'black') for pixels, title in zip(augment.visible(row), titles)])


def draw(out, drawn):
    """Write a grid of pictures, four in a row: (pixels, words above, words below, their colour) of each."""
    across, down = min(4, len(drawn)), math.ceil(len(drawn) / 4)
    figure = plots.pyplot().figure(figsize=(2.1 * across, 2.8 * down), layout='constrained')
    for i, (pixels, above, below, colour) in enumerate(drawn, 1):
        axis = figure.add_subplot(down, across, i, xticks=[], yticks=[])
        axis.imshow(pixels)
        axis.set_title(f'{above:.22}', fontsize=9)
        axis.set_xlabel(below, fontsize=9, color=colour)
    plots.save_picture(out, figure)
    print(out)


@torch.no_grad()
def main(argv):
    c, run, changes = from_command_line(argv, SampleConfig)
    settings.check_ranges(c, {(1, 1e30): ['num_samples'], (0, 1e30): ['temperature', 'top_k', 'seed'],
                              (1e-9, 1): ['top_p']})
    model = load_model(run, **changes)
    reads = kind_of(model.config)
    if reads == 'functions':
        raise Mistake(f'this network learns functions in context: python eval.py --ckpt={c.ckpt} draws how well')
    if model.config.task not in TASKS:
        raise Mistake(f'sample.py shows nothing of task={model.config.task}; python eval.py --ckpt={c.ckpt} scores it')
    settings.check_meant(c, ONLY_FOR, reads)
    device = choose_device(c.device)
    dtype = choose_dtype('float32' if c.dtype == 'auto' and is_small(model) else c.dtype, device)
    torch.manual_seed(c.seed)
    with autocast(device, dtype):
        (look_at_texts if reads == 'text' else look_at_pictures)(c, run, model.to(device))
    print(f'({heading(c.ckpt, run, model)})', file=sys.stderr)  # not among what a network writes


if __name__ == '__main__':
    settings.run(main, __doc__, SampleConfig)
