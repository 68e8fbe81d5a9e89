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

from engine import plots, settings
from engine.device import autocast, choose_device, choose_dtype
from engine.generate import stream
from engine.networks import grid, is_small
from engine.settings import Mistake
from engine.trained import check_labelled, from_command_line, heading, load_model
from tasks import augment
from tasks.imagenet import readable
from tasks.pictures import labelled_pictures_of, seen
from tasks.tokenizer import Tokenizer, prompt_of, with_masks


@dataclass
class SampleConfig:
    ckpt: str = 'out/aot_stdlib'     # a run directory, for its best weights, or a .safetensors file in one
    image: str = ''                  # pictures to look at: a file, a folder of files or classes, or a prepared dataset
    out: str = ''                    # where a grid of pictures goes; of reconstructions, empty is reconstruction.png
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


MOST_DRAWN = 60  # pictures in a grid
PICTURES = 'image', 'masked_image'
ONLY_FOR = {'image': PICTURES, 'out': PICTURES, 'overwrite': PICTURES, 'start': ('text', 'masked_text'),
            'interactive': ('text', 'masked_text'), 'num_samples': ('text', *PICTURES), 'max_new_tokens': ('text',),
            'temperature': ('text',), 'top_k': ('text',), 'top_p': ('text',), 'stop': ('text',)}


def look_at_texts(c, run, model, autocast):
    """Continue --start or fill its gaps; or each line of standard input until an empty one or the end. A mistake in a
    line is said, and the next line may do better."""
    look = continue_text if model.config.task == 'text' else fill_text
    tokenizer = Tokenizer(**run['data']['tokenizer'])
    if not c.interactive:
        return look(c, c.start, tokenizer, model, autocast)
    if c.start:
        raise Mistake('--start does not go with --interactive=true; leave one of them out')
    if hasattr(sys.stdin, 'reconfigure'):
        sys.stdin.reconfigure(errors='replace')
    with contextlib.suppress(EOFError):
        while line := input('> ' if sys.stdin.isatty() else ''):
            try:
                look(c, line, tokenizer, model, autocast)
            except Mistake as e:
                settings.say_error(str(e))


def continue_text(c, start, tokenizer, model, autocast):
    """Print texts that continue this one."""
    prompt, stop = tokenizer.encode(prompt_of(start)), tokenizer.encode(c.stop.replace('\\n', '\n'))
    if len(stop) > 1:
        raise Mistake(f'--stop={c.stop} is {len(stop)} tokens; it must be one')
    idx = torch.tensor([prompt or [tokenizer.beginning]], device=next(model.parameters()).device)
    with autocast:
        for i in range(c.num_samples):
            decode = codecs.getincrementaldecoder('utf-8')('replace').decode  # holds back half a character
            print(decode(tokenizer.decode_bytes(prompt)), end='', flush=True)
            for token in stream(model, idx, c.max_new_tokens, c.temperature, c.top_k or None, c.top_p,
                                stop_token=stop[0] if stop else None):
                print(decode(tokenizer.decode_bytes(token[0].tolist())), end='', flush=True)
            print(decode(b'', final=True))
            if i + 1 < c.num_samples:
                print('-' * 40)


def fill_text(c, start, tokenizer, model, autocast):
    """Print the five most likely tokens for each [MASK] of the text, then the text with the most
    likely ones."""
    ids, mask = with_masks(tokenizer, prompt_of(start)), tokenizer.vocab_size
    if mask not in ids:
        raise Mistake(f'this network fills gaps: give a text with [MASK] in it, not "{start}", such as '
                      '--start="def [MASK]ain():"')
    if len(ids) > model.config.block_size:
        raise Mistake(f'the text has {len(ids)} tokens, more than block_size={model.config.block_size}; give a '
                      'shorter one')
    with autocast:
        logits = model(torch.tensor([ids], device=next(model.parameters()).device))[0][0, :, :mask]  # (N, vocab_size)
    chances, likeliest = (t.tolist() for t in logits.float().softmax(-1).topk(min(5, mask)))
    for number, i in enumerate((i for i, token in enumerate(ids) if token == mask), 1):
        shown = (f'{tokenizer.decode([token])!r} {p:.1%}' for token, p in zip(likeliest[i], chances[i]))
        print(f'[MASK] {number}: ' + ', '.join(shown))
        ids[i] = likeliest[i][0]
    print(tokenizer.decode(ids))


def views(c, run, model):
    """(name, pixels (1, C, H, W), class or None) of the pictures that --image names."""
    if not c.image:
        raise Mistake('this network looks at pictures: give --image=PATH of a picture, of a folder, or of a '
                      'prepared dataset such as --image=data/shapes --num_samples=5')
    channels = getattr(model.config, 'channels', 3)
    for name, picture, own in labelled_pictures_of(c.image, c.num_samples, c.seed, channels):
        yield name, seen(picture, model, run), own


def name_pictures(c, run, model, autocast):
    """Print the five most likely classes of each picture; with --out also draw them."""
    classes, drawn, count = run['data']['classes'] or [], [], 0
    check_labelled(run)
    if c.out:
        plots.check_figure(c.out, c.overwrite, '--out', table=False)
    for count, (name, x, own) in enumerate(views(c, run, model), 1):
        with autocast:
            logits = model(x)[0]
        best = logits[0].float().softmax(0).topk(min(5, logits.size(1)))
        called = [(readable(classes[i]) if i < len(classes) else f'class {i}', p)
                  for p, i in zip(best.values.tolist(), best.indices.tolist())]
        print(f'{name}: ' + ', '.join(f'{k} {p:.1%}' for k, p in called))
        if c.out and count <= MOST_DRAWN:
            drawn.append((augment.visible(x)[0], readable(own) if own in classes else None, name, called[:3]))
    if c.out:
        plots.save_picture(c.out, grid_of(drawn), '--out')
        print(f'{c.out}: {len(drawn)} pictures' + f', the first of {count:,}' * (count > len(drawn)))


def grid_of(drawn):
    """A figure of pictures (pixels, true class or None, name, [(class, probability)]): above each its class or its
    name, below it what it is taken for."""
    across = min(6, max(1, round(math.sqrt(len(drawn) * 1.5))))
    down = math.ceil(len(drawn) / across)
    figure, axes = plots.pyplot().subplots(down, across, squeeze=False, layout='constrained',
                                           figsize=(max(4, 2.1 * across), 2.8 * down + 0.4))                # inches
    for axis in axes.flat:
        axis.axis('off')
    for axis, (pixels, own, name, called) in zip(axes.flat, drawn):
        axis.imshow(pixels)
        axis.set_title(shorten(own or name), fontsize=9)
        guesses = '\n'.join(f'{shorten(k)} {p:.0%}' for k, p in called)
        axis.text(0.5, -0.02, guesses, transform=axis.transAxes, ha='center', va='top', fontsize=9,
                  color='black' if own is None else 'C0' if own == called[0][0] else 'C1')
    known = any(own is not None for _, own, *_ in drawn)
    figure.suptitle('above: the true class; ' * known + 'below: guesses' + ', blue if right, orange if not' * known,
                    fontsize=10)
    return figure


def shorten(words, most=22):
    return words if len(words) <= most else f'{words[:most - 1]}..'


def reconstruct_pictures(c, run, model, autocast):
    """Write a grid with a row for each picture: the original, its visible patches, the reconstruction, and the visible
    patches pasted into it."""
    out, mc, rows = c.out or 'reconstruction.png', model.config, []
    plots.check_figure(out, c.overwrite or not c.out, '--out', table=False)
    generator = torch.Generator().manual_seed(c.seed)
    for name, x, _ in views(c, run, model):
        noise = torch.rand(1, math.prod(grid(mc)), generator=generator).to(x.device)
        with autocast:
            rebuilt = model.reconstruct(x, noise).float()
        hidden = torch.kron(model.hide(noise).view(grid(mc)), x.new_ones(mc.patch_size)).bool()             # (H, W)
        row = torch.cat((x, x.masked_fill(hidden, 0.0), rebuilt, torch.where(hidden, rebuilt, x)))
        rows.append(augment.visible(row))
        error = (rebuilt - x)[hidden.expand_as(x)].square().mean().item()
        print(f'{name}: squared error of the masked patches {error:.4f}')
    titles = 'original', f'{hidden.float().mean():.0%} masked', 'reconstruction', 'pasted'
    note = 'norm_pix_loss: true patch statistics were used to undo the normalization' * mc.norm_pix_loss
    figure = plots.pyplot().figure(figsize=(8, 2 * len(rows) + 0.5), layout='constrained')
    for i, axis in enumerate(figure.subplots(len(rows), 4, squeeze=False).flat):
        axis.imshow(rows[i // 4][i % 4])
        axis.set_title(titles[i] if i < 4 else '', fontsize=10)
        axis.axis('off')
    figure.suptitle(note, fontsize=8)
    plots.save_picture(out, figure, '--out')
    print(f'{out}: {", ".join(titles)}' + f'; {note}' * bool(note))


@torch.no_grad()
def main(argv):
    if '--help' in argv or '-h' in argv:
        return print(settings.help_text(__doc__, SampleConfig))
    c, run, overrides = from_command_line(argv, SampleConfig)
    settings.check_least(c, num_samples=1, max_new_tokens=0, temperature=0, top_k=0)
    settings.check_ranges(c, {(0, 2 ** 63 - 1): ('seed',), (1e-9, 1): ('top_p',)})
    model = load_model(run, **overrides)
    task = model.config.task
    if task == 'icl':
        raise Mistake(f'this network learns functions in context: python eval.py --ckpt={c.ckpt} draws how well')
    settings.check_meant(c, ONLY_FOR, task)
    look = {'text': look_at_texts, 'masked_text': look_at_texts, 'image': name_pictures,
            'masked_image': reconstruct_pictures}[task]
    device = choose_device(c.device)
    dtype = choose_dtype('float32' if c.dtype == 'auto' and is_small(model) else c.dtype, device)
    torch.manual_seed(c.seed)
    look(c, run, model.to(device), autocast(device, dtype))
    print(f'({heading(c.ckpt, run, model)})', file=sys.stderr)  # not among what a network writes


if __name__ == '__main__':
    with settings.one_line_errors():
        main(sys.argv[1:])
