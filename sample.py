"""Look at what a trained network does: write or complete text, classify or reconstruct pictures.

    python sample.py                                            # the run of `python train.py`
    python sample.py --ckpt=out/aot_owt --start="Once upon a time" --num_samples=3
    python sample.py --ckpt=out/aot_owt --start=FILE:prompt.txt
    python sample.py --ckpt=out/aot_stdlib --interactive        # continues each line that you type
    python sample.py --ckpt=out/crate_bert_stdlib --start="def __[MASK]nit__(self):"
    python sample.py --ckpt=out/crate_cifar10 --image=assets/cat.jpg    # or a folder of pictures
    python sample.py --ckpt=out/crate_shapes --image=data/shapes --num_samples=12 --out=grid.png
    python sample.py --ckpt=out/crate_mae_shapes --image=assets/cat.jpg --mask_ratio=0.5
    python sample.py --help

It needs no dataset: config.json holds the tokenizer or the names of the classes.
"""
import os
import sys
from dataclasses import dataclass

from engine.process import prepare_process

if __name__ == '__main__':
    prepare_process()  # before torch is loaded

import torch

from analysis.predictions import likeliest, look_at_pictures
from engine import settings
from engine.device import autocast, choose_device, choose_dtype
from engine.mistakes import Mistake, print_error
from engine.names import printable
from request.help import run_program
from request.trained import from_command_line
from tasks.prompts import as_utf8, prompt_of, texts_of, until, with_masks
from tasks.tokenizer import Tokenizer
from weights.generate import stream
from weights.runs import heading, is_small
from weights.surgery import load_model


@dataclass
class SampleConfig:
    ckpt: str = 'out/aot_stdlib'    # a run directory, for its best weights, or a .safetensors file
    image: str = ''                 # pictures: a file, a folder of files or classes, or a dataset
    out: str = ''                   # pictures: x.png draws them, x.csv: guesses, x.npy: features
    overwrite: bool = False         # replace the file of --out if it exists
    start: str = ''                 # a prompt; \n: new line, \\: one \, [MASK]: gap; or FILE:path
    interactive: bool = False       # continue each line that comes, as it is, until an empty one
    num_samples: int = 1            # texts to write, or pictures to look at of a dataset or classes
    max_new_tokens: int = 500       # length of each text
    temperature: float = 0.8        # below 1 more careful, above 1 more varied; 0: always likeliest
    top_k: int = 200                # sample from the k most likely tokens; 0 from all
    top_p: float = 1.0              # sample from the likeliest tokens that together reach this
    stop: str = ''                  # end a text before this one, such as \n\n or <|endoftext|>
    seed: int = 1337                # of all random choices
    device: str = 'auto'            # cpu, cuda, cuda:1, mps
    dtype: str = 'auto'             # float32, bfloat16, float16; auto: float32 below 50M parameters


PICTURES = ('image', 'masked_image')
TEXTS = ('text', 'masked_text')
# {setting: the tasks that it is for}
ONLY_FOR = {
    'image': PICTURES,
    'out': PICTURES,
    'overwrite': PICTURES,
    'start': TEXTS,
    'interactive': TEXTS,
    'num_samples': (*PICTURES, 'text'),
    'max_new_tokens': ['text'],
    'temperature': ['text'],
    'top_k': ['text'],
    'top_p': ['text'],
    'stop': ['text'],
}


# ---- text; analysis/predictions.py looks at pictures --------------------------------------------

def look_at_text(c, run, model):
    """Continue --start or fill its gaps. With --interactive do so with each line that comes, as it
    is: a line may be a stranger's, so it reads no file. After a mistake in a line the next one is
    read."""
    tokenizer = Tokenizer(**run.data['tokenizer'])
    complete = continue_text if model.config.task == 'text' else fill_gaps
    if not c.interactive:
        complete(c, prompt_of(c.start), tokenizer, model)
        return
    for line in typed_lines():
        try:
            complete(c, as_utf8(line), tokenizer, model)
        except Mistake as e:
            print_error(e)


def typed_lines():
    """Yield the lines of standard input, until an empty one or the end."""
    prompt_sign = '> ' if sys.stdin.isatty() else ''
    if hasattr(sys.stdin, 'reconfigure'):
        # a line with bytes that are not UTF-8 comes as it is, and the tokenizer refuses it
        sys.stdin.reconfigure(errors='surrogateescape')
    while True:
        try:
            line = input(prompt_sign)
        except EOFError:
            return
        # Windows pipes a mark before the first line, and a carriage return at the end of each
        line = line.removeprefix('\ufeff').removesuffix('\r')
        if not line:
            return
        yield line


def continue_text(c, text, tokenizer, model):
    """Print texts that continue this one."""
    prompt = tokenizer.encode(text) or [tokenizer.beginning]
    stop = prompt_of(c.stop)
    tokenizer.encode(stop)  # raises Mistake for a text that can never come

    device = next(model.parameters()).device
    idx = torch.tensor([prompt], device=device)             # (1, N)
    for i in range(c.num_samples):
        if i > 0:
            print('-' * 40)
        show(text)
        tokens = stream(model, idx, c.max_new_tokens, c.temperature, c.top_k, c.top_p)
        ids = (token.item() for token in tokens)            # token: (1, 1)
        for new_text in until(stop, texts_of(tokenizer, ids)):
            show(new_text)
        print(flush=True)


def show(text):
    """Print a text, or a part of one. A network may write any character, also those that a terminal
    obeys; such a character becomes an escape."""
    print(printable(text, keep='\n\t'), end='', flush=True)


def fill_gaps(c, text, tokenizer, model):
    """Print the five most likely tokens for each [MASK] of the text, then the text with the most
    likely ones."""
    ids = with_masks(tokenizer, text)
    gaps = [i for i, token in enumerate(ids) if token == tokenizer.mask_id]
    block_size = model.config.block_size
    if not gaps or len(ids) > block_size:
        raise Mistake(f'give a text with [MASK] in it and up to block_size={block_size} tokens: '
                      '--start="def [MASK]ain():"')
    x = torch.tensor([ids], device=next(model.parameters()).device)     # (1, N)
    logits = model(x)[0]                                    # (1, N, vocab_size)
    logits = logits[0, :, :tokenizer.mask_id]               # without that of [MASK]
    for number, i in enumerate(gaps, 1):
        best = likeliest(logits[i].float().softmax(0))
        guesses = [f'{tokenizer.decode([token])!r} {p:.1%}' for token, p in best]
        print(f'[MASK] {number}: {", ".join(guesses)}')
        ids[i] = best[0][0]
    show(tokenizer.decode(ids) + '\n')


def main(argv):
    c, run, changes = from_command_line(argv, SampleConfig)
    settings.check_ranges(c, {
        (1, 1e30): ['num_samples'],
        (0, 1e30): ['max_new_tokens', 'temperature', 'top_k'],
        (0, 2 ** 32 - 1): ['seed'],
        (1e-9, 1): ['top_p'],
    })
    model = load_model(run, **changes)
    task = model.config.task
    if task not in PICTURES + TEXTS:
        raise Mistake(f'sample.py shows nothing of task={task}; '
                      f'python eval.py --ckpt={c.ckpt} scores it')
    settings.check_meant(c, ONLY_FOR, task)
    if c.interactive and c.start:
        raise Mistake('with --interactive each line that you type is a prompt; leave --start out')

    device = choose_device(c.device)
    dtype = c.dtype
    if dtype == 'auto' and is_small(model):
        dtype = 'float32'
    if is_small(model) and device == 'cpu' and 'OMP_NUM_THREADS' not in os.environ:
        # One thread is as fast where nothing else runs. Where another program needs a core it is
        # many times faster: threads wait for each other in every layer of every token.
        torch.set_num_threads(1)
    torch.manual_seed(c.seed)
    model = model.to(device)
    with torch.no_grad(), autocast(device, choose_dtype(dtype, device)):
        if task in TEXTS:
            look_at_text(c, run, model)
        else:
            look_at_pictures(c, run, model)
    print(f'({heading(c.ckpt, run, model)})', file=sys.stderr)  # not among what a network writes


if __name__ == '__main__':
    run_program(main, __doc__, SampleConfig)
