"""Prepared datasets to batches.

A text dataset is a folder that a script in prepare/ wrote: one 1-D array of tokens a split (train.npy, val.npy)
and meta.json, which names the tokenizer and the length and type of each array. Nothing here draws from a hidden
random stream: a batch is a function of (seed, step), so a resumed run sees what an uninterrupted one sees.
"""
import json
import os
import shutil
from pathlib import Path

import numpy as np

# ---- tokenizers ---------------------------------------------------------------------------------------------------


class Tokenizer:
    """Text to token ids and back, described by a small dict that travels in meta.json and in checkpoints:
    {'name': 'bytes'}, {'name': 'chars', 'alphabet': '..'} or {'name': 'gpt2'}."""

    def __init__(self, name, alphabet=''):
        self.spec = {'name': name} | ({'alphabet': alphabet} if name == 'chars' else {})
        if name == 'bytes':
            self.vocab_size = 256
        elif name == 'chars':
            self.alphabet, self.ids = alphabet, {c: i for i, c in enumerate(alphabet)}
            self.vocab_size = len(alphabet)
        elif name == 'gpt2':
            self.bpe = gpt2_bpe()
            self.vocab_size = self.bpe.n_vocab
        else:
            raise ValueError(f"tokenizer '{name}' is unknown; choose bytes, chars or gpt2")

    @property
    def beginning(self):
        """The token to begin a text with when there is no prompt: end of the text before, or a new line."""
        if self.spec['name'] == 'gpt2':
            return self.bpe.eot_token
        return 10 if self.spec['name'] == 'bytes' else self.ids.get('\n', 0)

    def encode(self, text):
        """str -> list of ids; of GPT-2's, <|endoftext|> alone is that token. Raises ValueError for a character that the
        alphabet lacks."""
        name = self.spec['name']
        if name == 'bytes':
            return list(text.encode())
        if name == 'gpt2':
            return [self.bpe.eot_token] if text == '<|endoftext|>' else self.bpe.encode_ordinary(text)
        unknown = sorted(set(text) - self.ids.keys())
        if unknown:
            raise ValueError(f'the tokenizer has no character {unknown[0]!r}; it knows only {self.alphabet!r}')
        return [self.ids[c] for c in text]

    def decode_bytes(self, ids):
        """ids -> UTF-8 bytes; a part of a character stays a part, so that output can be streamed."""
        name, ids = self.spec['name'], [i for i in ids if i < self.vocab_size]  # ids beyond are padding of the model
        if name == 'bytes':
            return bytes(ids)
        if name == 'chars':
            return ''.join(self.alphabet[i] for i in ids).encode()
        return self.bpe.decode_bytes(ids)

    def decode(self, ids):
        return self.decode_bytes(ids).decode('utf-8', errors='replace')


def gpt2_bpe():
    import requests
    import tiktoken
    try:
        return tiktoken.get_encoding('gpt2')
    except (requests.RequestException, OSError) as e:
        raise ValueError(
            f"GPT-2's tokenizer could not be downloaded ({type(e).__name__}); without a network, copy tiktoken's cache "
            'from a machine that has it and set TIKTOKEN_CACHE_DIR to that folder') from None


# ---- writing ------------------------------------------------------------------------------------------------------


def check_free(out, overwrite):
    """Refuse to prepare into a folder that exists; only a prepared dataset can be replaced. Call it before the work."""
    out = Path(out)
    if out.is_dir() and not any(out.iterdir()) or not out.exists():
        return
    if not (out / 'meta.json').exists():
        raise ValueError(f'{out} exists and is no prepared dataset; give another --out')
    if not overwrite:
        raise ValueError(f'{out} exists; give another --out, or --overwrite to replace it')


def save_text(out, tokenizer, splits, n_bytes):
    """Write a text dataset and print its counts. The folder appears whole or not at all.

    splits: {'train': ids, 'val': ids}, 1-D. n_bytes: UTF-8 bytes of text a split, for bits per byte.
    """
    out = Path(out)
    for name, ids in splits.items():
        if len(ids) < 2:
            raise ValueError(f'too little text: {len(ids)} tokens for {name}; give more, or another --val')
    dtype = np.uint16 if tokenizer.vocab_size <= 2 ** 16 else np.uint32
    arrays = {name: np.asarray(ids, dtype=dtype) for name, ids in splits.items()}
    meta = {'kind': 'text', 'tokenizer': tokenizer.spec, 'vocab_size': tokenizer.vocab_size,
            'splits': {name: {'tokens': len(a), 'dtype': str(a.dtype), 'bytes': n_bytes[name]} for name, a in arrays.items()}}
    new, old = out.with_name(out.name + '.unfinished'), out.with_name(out.name + '.replaced')
    try:
        for left_over in (new, old):
            shutil.rmtree(left_over, ignore_errors=True)
        new.mkdir(parents=True)
        for name, a in arrays.items():
            np.save(new / f'{name}.npy', a)
        (new / 'meta.json').write_text(json.dumps(meta, indent=1))
        if out.exists():
            os.replace(out, old)
        os.replace(new, out)
        shutil.rmtree(old, ignore_errors=True)
    except OSError as e:
        raise ValueError(f'{out} cannot be written ({e.strerror}); make room or give another --out') from None
    for name, a in arrays.items():
        print(f'{out}/{name}.npy: {len(a):,} tokens of {n_bytes[name]:,} bytes, {tokenizer.vocab_size} in the vocabulary')


def split_text(text, tokenizer, val_share=0.1):
    """Text -> (splits, n_bytes) for save_text: the last share of the characters is for validation."""
    cut = int(len(text) * (1 - val_share))
    parts = {'train': text[:cut], 'val': text[cut:]}
    as_bytes = tokenizer.spec['name'] == 'bytes'  # without a Python int for every byte
    ids = {name: np.frombuffer(part.encode(), np.uint8) if as_bytes else tokenizer.encode(part)
           for name, part in parts.items()}
    return ids, {name: len(part.encode()) for name, part in parts.items()}


# ---- reading ------------------------------------------------------------------------------------------------------


def read_meta(folder):
    """meta.json of a prepared text dataset. Raises ValueError where there is none or it is not ours."""
    path = Path(folder) / 'meta.json'
    try:
        meta = json.loads(path.read_text())
        assert meta['kind'] == 'text' and meta['tokenizer']['name'] in ('bytes', 'chars', 'gpt2') and meta['vocab_size'] > 0
        assert all(s['tokens'] > 0 and s['bytes'] > 0 and s['dtype'] for s in meta['splits'].values())
    except OSError:
        raise ValueError(f'no prepared data in {folder} (no {path})') from None
    except (ValueError, KeyError, TypeError, AttributeError, AssertionError):
        raise ValueError(f'{path} is not the meta.json of a text dataset; prepare it again') from None
    return meta


class Text:
    """One split of a text dataset: `batch` for training, `fixed` for validation."""

    SCANNED = 10 ** 8  # up to so many tokens all ids are checked when the file is opened; longer files batch by batch

    def __init__(self, folder, split, block_size):
        meta = read_meta(folder)
        self.path, self.block_size, self.vocab_size = Path(folder) / f'{split}.npy', block_size, meta['vocab_size']
        again = 'prepare the dataset again'
        if split not in meta['splits']:
            raise ValueError(f'{folder} has no split {split}, only {", ".join(meta["splits"])}')
        try:
            self.tokens = np.lib.format.open_memmap(self.path, mode='r')
        except Exception as e:  # of many types, depending on where the damage is
            raise ValueError(f'{self.path} is missing, cut off or no .npy file ({type(e).__name__}); {again}') from None
        found = f'{self.tokens.ndim}-D {self.tokens.dtype} of {self.tokens.size}'
        wanted = f'1-D {meta["splits"][split]["dtype"]} of {meta["splits"][split]["tokens"]}'
        if found != wanted:
            raise ValueError(f'{self.path} holds {found}, meta.json says {wanted}; {again}')
        if len(self.tokens) < block_size + 1:
            raise ValueError(f'{self.path} has {len(self.tokens)} tokens, too few for block_size={block_size}; '
                             f'set --block_size={max(1, len(self.tokens) - 1)} or less, or prepare more text')
        if len(self.tokens) <= self.SCANNED:
            self.check_ids(self.tokens.max())
        self.tokens_per_byte = len(self.tokens) / meta['splits'][split]['bytes']

    def check_ids(self, largest):
        if largest >= self.vocab_size:
            raise ValueError(f'{self.path} holds token {largest}, but its vocabulary ends at {self.vocab_size - 1}; '
                             'prepare the dataset again')

    def at(self, starts):
        """Sequences that begin at the given places: x and y (len(starts), block_size), y one token ahead."""
        rows = np.stack([self.tokens[s:s + self.block_size + 1] for s in starts]).astype(np.int64)
        self.check_ids(rows.max())
        import torch  # here, so that the scripts in prepare/ start without it
        rows = torch.from_numpy(rows)
        return rows[:, :-1], rows[:, 1:]

    def batch(self, n, seed, step, rank=0, world=1):
        """The n sequences of a training step, drawn at random places that depend on (seed, step) alone; of these
        the share of process `rank` of `world`."""
        starts = np.random.default_rng((seed, step)).integers(0, len(self.tokens) - self.block_size, n)
        return self.at(starts[rank * n // world:(rank + 1) * n // world])

    def fixed(self, n, batches):
        """Validation: `batches` batches of n sequences, spread evenly over the split, the same every time.
        Fewer where the split is so small that they would overlap."""
        last = len(self.tokens) - self.block_size - 1
        count = max(1, min(n * batches, last // self.block_size + 1))
        starts = np.linspace(0, last, count).astype(np.int64)
        for i in range(0, count, n):
            yield self.at(starts[i:i + n])
