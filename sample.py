"""Look at what a trained model does: continue a text, fill its gaps, say what is in pictures, or reconstruct masked ones.

    python sample.py                                              # from the run of a bare `python train.py`
    python sample.py --ckpt=out/aot_owt --start="Once upon a time" --num_samples=3
    python sample.py --ckpt=out/aot_owt/last.pt --start=FILE:prompt.txt
    python sample.py --ckpt=out/crate_bert_stdlib --start="def __[MASK]nit__(self):"
    python sample.py --ckpt=out/crate_cifar10 --image=cat.jpg     # a picture, or a folder of them
    python sample.py --ckpt=out/crate_mae_shapes --image=cat.jpg --out=cat_masked.png --mask_ratio=0.5
    python sample.py --ckpt=official:crate_base.pth --model=crate --n_head=12 --image=cat.jpg
    python sample.py --help

The checkpoint is all it needs: the tokenizer, or the names of the classes, travel inside.
"""
import codecs
import math
import sys
from dataclasses import dataclass
from pathlib import Path

import torch

from tasks import augment
from engine import settings as configurator
from engine import machine
from engine.generate import stream
from engine.machine import choose_device, choose_dtype
from engine.checkpoints import from_command_line, grid, load_model
from tasks.pictures import pictures_of, seen
from tasks.text import prompt_of, with_masks
from tasks.tokenizer import Tokenizer


@dataclass
class SampleConfig:
    ckpt: str = 'out/aot_stdlib'     # a checkpoint, a run directory for its best.pt, or official:PATH
    model: str = ''                  # network of an official file: crate, crate_mae, vit or vit_mae
    image: str = ''                  # pictures to look at: a file, a folder of files, or a prepared dataset
    out: str = ''                    # where the grid of reconstructions goes; empty means reconstruction.png
    overwrite: bool = False          # replace that file if it exists
    start: str = ''                  # the prompt; for CRATE-BERT a text with [MASK]; \n is a new line, FILE:path reads a file
    num_samples: int = 1             # texts to write; of a prepared dataset, pictures to look at
    max_new_tokens: int = 500        # length of each
    temperature: float = 0.8         # below 1 more careful, above 1 more daring, 0 always the likeliest token
    top_k: int = 200                 # choose among the k likeliest tokens; 0 among all
    top_p: float = 1.0               # choose among the likeliest tokens that together have this probability
    stop: str = ''                   # end a text at this token, written as text
    seed: int = 1337                 # of the choice
    device: str = 'auto'             # cpu, cuda, cuda:1, mps
    dtype: str = 'float32'           # float32, bfloat16, float16; auto takes bfloat16 where the hardware multiplies it


def write_texts(model, tokenizer, c, autocast):
    prompt = tokenizer.encode(prompt_of(c.start))
    stop = tokenizer.encode(c.stop.replace('\\n', '\n'))
    if len(stop) > 1:
        raise ValueError(f'--stop={c.stop} is {len(stop)} tokens; it must be one')
    idx = torch.tensor([prompt or [tokenizer.beginning]], device=model.tok_emb.weight.device)
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


@torch.no_grad()
def fill_gaps(model, tokenizer, c, autocast):
    """Print the five likeliest tokens for each [MASK] of the text, then the text with the likeliest."""
    ids = with_masks(tokenizer, prompt_of(c.start))
    if tokenizer.vocab_size not in ids:
        raise ValueError(f'this model fills gaps: give a text with [MASK] in it, not "{c.start}", such as '
                         '--start="def [MASK]ain():"')
    if len(ids) > model.config.block_size:
        raise ValueError(f'the text has {len(ids)} tokens, more than block_size={model.config.block_size}; give a shorter '
                         '--start')
    with autocast:
        logits = model(torch.tensor([ids], device=model.tok_emb.weight.device))[0][0, :, :tokenizer.vocab_size]
    chances, likeliest = logits.float().softmax(-1).topk(min(5, tokenizer.vocab_size))
    gaps = [i for i, token in enumerate(ids) if token == tokenizer.vocab_size]
    for number, i in enumerate(gaps, 1):
        shown = (f'{tokenizer.decode([token])!r} {p:.1%}' for token, p in zip(likeliest[i].tolist(), chances[i].tolist()))
        print(f'[MASK] {number}: ' + ', '.join(shown))
        ids[i] = likeliest[i, 0].item()
    print(tokenizer.decode(ids))


def views(model, checkpoint, c):
    """(name, pixels (1, 3, H, W)) of the pictures that c names."""
    for name, picture in pictures_of(c.image, c.num_samples, c.seed, model.config.channels):
        yield name, seen(picture, model, checkpoint)


@torch.no_grad()
def name_pictures(model, checkpoint, c, autocast):
    """Print the five likeliest classes of each picture."""
    classes = checkpoint['data']['classes']
    for name, x in views(model, checkpoint, c):
        with autocast:
            logits = model(x)[0]
        chance, index = logits[0].float().softmax(0).topk(min(5, logits.size(1)))
        print(f'{name}: ' + ', '.join(f'{classes[i] if classes else f"class {i}"} {p:.1%}'
                                      for p, i in zip(chance.tolist(), index.tolist())))


@torch.no_grad()
def reconstruct_pictures(model, checkpoint, c, autocast):
    """Write a grid, a row for each picture: the original, masked, the reconstruction, and that pasted with visible patches."""
    out, mc = Path(c.out or 'reconstruction.png'), model.config
    augment.check_picture(out, c.overwrite)
    numbers, rows = torch.Generator().manual_seed(c.seed), []
    for name, x in views(model, checkpoint, c):
        noise = torch.rand(1, math.prod(grid(mc)), generator=numbers).to(x.device)
        with autocast:
            rebuilt = model.reconstruct(x, noise).float()
        hidden = model.hide(noise).view(1, 1, *grid(mc))
        hidden = hidden.repeat_interleave(mc.patch_size[0], 2).repeat_interleave(mc.patch_size[1], 3)  # (1, 1, H, W)
        rows.append([x, x.masked_fill(hidden, 0.0), rebuilt, torch.where(hidden, rebuilt, x)])
        print(f'{name}: squared error of the masked patches {(rebuilt - x)[hidden.expand_as(x)].square().mean().item():.4f}')
    titles = 'original', f'{hidden.float().mean():.0%} masked', 'reconstruction', 'pasted'
    note = 'norm_pix_loss: true patch statistics were used to undo the normalization' * mc.norm_pix_loss
    pictures = [[augment.denormalize(x)[0].cpu().numpy() for x in row] for row in rows]
    augment.write_picture(with_titles(pictures, titles, note), out)
    print(f'{out}: {", ".join(titles)}' + f'; {note}' * bool(note))


def with_titles(rows, titles, note):
    """A Pillow image of rows of pictures uint8 (H, W, 3), all of one size, columns under their titles, a note below."""
    from PIL import Image, ImageDraw
    height, width = rows[0][0].shape[:2]
    zoom = max(1, math.ceil(112 / width))  # titles need some room
    across, down, margin, line = width * zoom, height * zoom, 4, 18
    size = len(titles) * (across + margin) - margin, line + len(rows) * (down + margin) + line * bool(note)
    sheet = Image.new('RGB', size, 'white')
    pen = ImageDraw.Draw(sheet)
    for i, title in enumerate(titles):
        pen.text((i * (across + margin), 2), title, 'black')
        for j, row in enumerate(rows):
            cell = Image.fromarray(row[i]).resize((across, down), Image.Resampling.NEAREST)
            sheet.paste(cell, (i * (across + margin), line + j * (down + margin)))
    pen.text((0, sheet.height - line + 2), note, 'black')
    return sheet


def main(argv):
    if '--help' in argv or '-h' in argv:
        print(configurator.help_text(__doc__, SampleConfig))
        return
    c, checkpoint, overrides = from_command_line(argv, SampleConfig)
    if c.num_samples < 1 or c.max_new_tokens < 0 or not 0 <= c.seed < 2 ** 63:
        raise ValueError('need num_samples >= 1, max_new_tokens >= 0 and seed >= 0; '
                         f'got {c.num_samples}, {c.max_new_tokens} and {c.seed}')
    device = choose_device(c.device)
    dtype = choose_dtype(c.dtype, device)
    autocast = machine.autocast(device, dtype)
    model = load_model(checkpoint, **overrides).to(device)
    torch.manual_seed(c.seed)
    text, masked = checkpoint['data']['kind'] == 'text', hasattr(model.config, 'mask_ratio')
    if checkpoint['data']['kind'] == 'functions':
        raise ValueError(f'this checkpoint learns functions in context: python eval.py --ckpt={c.ckpt} draws how well')
    if c.out and not masked:
        raise ValueError(f'model={checkpoint["config"]["model"]} has no decoder to reconstruct pictures with, as --out={c.out} '
                         'asks; take the checkpoint of a masked autoencoder, such as python train.py '
                         'config/train_crate_mae_shapes.py leaves')
    if not text and not c.image:
        raise ValueError('this checkpoint looks at pictures: give --image=PATH of a picture, of a folder, or of a prepared '
                         'dataset such as --image=data/shapes --num_samples=5')
    if text and not getattr(model.config, 'causal', True):
        fill_gaps(model, Tokenizer(**checkpoint['data']['tokenizer']), c, autocast)
    elif text:
        write_texts(model, Tokenizer(**checkpoint['data']['tokenizer']), c, autocast)
    elif masked:
        reconstruct_pictures(model, checkpoint, c, autocast)
    else:
        name_pictures(model, checkpoint, c, autocast)


if __name__ == '__main__':
    with configurator.one_line_errors():
        main(sys.argv[1:])
