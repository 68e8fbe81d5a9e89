"""Look at what a trained model does: continue a text.

    python sample.py                                              # from the run of a bare `python train.py`
    python sample.py --ckpt=out/aot_owt --start="Once upon a time" --num_samples=3
    python sample.py --ckpt=out/aot_owt/last.pt --start=FILE:prompt.txt
    python sample.py --help

The checkpoint is all it needs: the tokenizer travels inside.
"""
import codecs
import sys
from dataclasses import dataclass
from pathlib import Path

import torch

import configurator
from tokenizer import Tokenizer
from machine import choose_device, choose_dtype
from rundir import load_checkpoint
from generate import stream
from models import load_model


@dataclass
class SampleConfig:
    ckpt: str = 'out/aot_stdlib'     # a checkpoint, or a run directory for its best.pt
    start: str = ''                  # the prompt; \n is a new line; FILE:path reads a file; empty lets the model begin
    num_samples: int = 1             # texts to write
    max_new_tokens: int = 500        # length of each
    temperature: float = 0.8         # below 1 more careful, above 1 more daring, 0 always the likeliest token
    top_k: int = 200                 # choose among the k likeliest tokens; 0 among all
    top_p: float = 1.0               # choose among the likeliest tokens that together have this probability
    stop: str = ''                   # end a text at this token, written as text
    seed: int = 1337                 # of the choice
    device: str = 'auto'             # cpu, cuda, cuda:1, mps
    dtype: str = 'float32'           # float32, bfloat16, float16; auto takes bfloat16 where the hardware multiplies it


def prompt_of(start, tokenizer):
    """The prompt's token ids. Raises ValueError for an unreadable file or a character that the tokenizer lacks."""
    if start.startswith('FILE:'):
        try:
            start = Path(start[5:]).read_text(encoding='utf-8')
        except (OSError, UnicodeDecodeError) as e:
            raise ValueError(f'--start={start}: cannot be read as UTF-8 text ({type(e).__name__})') from None
    else:
        start = start.replace('\\n', '\n')
    return tokenizer.encode(start)


def main(argv):
    if '--help' in argv or '-h' in argv:
        print(configurator.help_text(__doc__, SampleConfig))
        return
    c = SampleConfig(**configurator.check(configurator.collect(argv), SampleConfig))
    if c.num_samples < 1 or c.max_new_tokens < 0 or not 0 <= c.seed < 2 ** 63:
        raise ValueError('need num_samples >= 1, max_new_tokens >= 0 and seed >= 0; '
                         f'got {c.num_samples}, {c.max_new_tokens} and {c.seed}')
    checkpoint = load_checkpoint(c.ckpt)
    tokenizer = Tokenizer(**checkpoint['data']['tokenizer'])
    device = choose_device(c.device)
    dtype = choose_dtype(c.dtype, device)
    model = load_model(checkpoint).to(device)
    prompt = prompt_of(c.start, tokenizer)
    stop = tokenizer.encode(c.stop.replace('\\n', '\n'))
    if len(stop) > 1:
        raise ValueError(f'--stop={c.stop} is {len(stop)} tokens; it must be one')
    torch.manual_seed(c.seed)
    idx = torch.tensor([prompt or [tokenizer.beginning]], device=device)
    with torch.autocast(torch.device(device).type, dtype, enabled=dtype != torch.float32):
        for i in range(c.num_samples):
            decode = codecs.getincrementaldecoder('utf-8')('replace').decode  # holds back half a character
            print(decode(tokenizer.decode_bytes(prompt)), end='', flush=True)
            for token in stream(model, idx, c.max_new_tokens, c.temperature, c.top_k or None, c.top_p,
                                      stop_token=stop[0] if stop else None):
                print(decode(tokenizer.decode_bytes(token[0].tolist())), end='', flush=True)
            print(decode(b'', final=True))
            if i + 1 < c.num_samples:
                print('-' * 40)


if __name__ == '__main__':
    with configurator.one_line_errors():
        main(sys.argv[1:])
