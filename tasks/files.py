"""Prepared datasets to batches.

A dataset is a folder that a script in prepare/ wrote: .npy arrays and meta.json, which gives their lengths and types.

  text            SPLIT.npy, one 1-D array of token ids; meta.json names the tokenizer
  small pictures  SPLIT.images.npy, uint8 (N, H, W, 3), and SPLIT.labels.npy, int64 (N,); perhaps SPLIT.masks.npy
  large pictures  SPLIT.jpeg.npy, the bytes of all JPEG files one after the other, SPLIT.offsets.npy, int64 (N + 1,),
                  SPLIT.labels.npy, and SPLIT.names.npy, the names of the files

Nothing here draws from a hidden random stream: a batch is a function of (seed, step), so a resumed run sees what an
uninterrupted one sees, on any number of processes.
"""
import contextlib
import functools
import io
import itertools
import json
import os
import shutil
import signal
from pathlib import Path

import numpy as np

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


@contextlib.contextmanager
def new_folder(out, resumed=False):
    """A folder to write into. It becomes `out` when the block ends, and vanishes if the block fails: a dataset appears
    whole or not at all. resumed: it does not vanish, and what an earlier try left is in it."""
    out = Path(out)
    new, old = out.with_name(out.name + '.unfinished'), out.with_name(out.name + '.replaced')
    try:
        for left_over in (old,) if resumed else (new, old):
            shutil.rmtree(left_over, ignore_errors=True)
        new.mkdir(parents=True, exist_ok=resumed)
        yield new
        if out.exists():
            os.replace(out, old)
        os.replace(new, out)
        shutil.rmtree(old, ignore_errors=True)
    except OSError as e:
        raise ValueError(f'{out} cannot be written ({e}); make room or give another --out') from None
    finally:
        if not resumed:
            shutil.rmtree(new, ignore_errors=True)


def write_header(file, dtype, count):
    """Write the header of a 1-D .npy file, and return its length. Numpy leaves room in it for the axis to grow, so it can be
    written again in the same place when it is known how much there is."""
    file.seek(0)
    descr = np.lib.format.dtype_to_descr(np.dtype(dtype))
    np.lib.format.write_array_header_1_0(file, {'descr': descr, 'fortran_order': False, 'shape': (count,)})
    return file.tell()


def text_meta(tokenizer, splits):
    """meta.json of a text dataset. splits: {name: (tokens, dtype, UTF-8 bytes)}."""
    return {'kind': 'text', 'tokenizer': tokenizer.spec, 'vocab_size': tokenizer.vocab_size,
            'splits': {name: {'tokens': n, 'dtype': str(dtype), 'bytes': b} for name, (n, dtype, b) in splits.items()}}


def save_text(out, tokenizer, splits, n_bytes):
    """Write a text dataset and print its counts.

    splits: {'train': ids, 'val': ids}, 1-D. n_bytes: UTF-8 bytes of text a split, for bits per byte.
    """
    for name, ids in splits.items():
        if len(ids) < 2:
            raise ValueError(f'too little text: {len(ids)} tokens for {name}; give more, or another --val')
    dtype = np.uint16 if tokenizer.vocab_size <= 2 ** 16 else np.uint32
    arrays = {name: np.asarray(ids, dtype=dtype) for name, ids in splits.items()}
    meta = text_meta(tokenizer, {name: (len(a), a.dtype, n_bytes[name]) for name, a in arrays.items()})
    with new_folder(out) as new:
        for name, a in arrays.items():
            np.save(new / f'{name}.npy', a)
        (new / 'meta.json').write_text(json.dumps(meta, indent=1))
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
    """meta.json of a prepared dataset. Raises ValueError where there is none or it is not ours."""
    path = Path(folder) / 'meta.json'
    try:
        meta = json.loads(path.read_text())
        if meta['kind'] == 'text':
            assert meta['tokenizer']['name'] in ('bytes', 'chars', 'gpt2') and meta['vocab_size'] > 0
            assert all(s['tokens'] > 0 and s['bytes'] > 0 and s['dtype'] for s in meta['splits'].values())
        elif meta['kind'] != 'benchmark':
            assert meta['kind'] == 'images' and meta['storage'] in ('arrays', 'pack')
            assert isinstance(meta['classes'], list) and meta['classes'] and meta['splits']
            sizes = ('height', 'width') if meta['storage'] == 'arrays' else ('bytes',)
            assert all(s[k] > 0 for s in meta['splits'].values() for k in ('count', *sizes))
    except OSError:
        raise ValueError(f'no prepared data in {folder} (no {path})') from None
    except (ValueError, KeyError, TypeError, AttributeError, AssertionError):
        raise ValueError(f'{path} is not the meta.json of a prepared dataset; prepare it again') from None
    if meta['kind'] == 'benchmark':
        raise ValueError(f'{folder} is a benchmark, not a dataset: python eval.py --ckpt=RUN --benchmarks={Path(folder).name}')
    return meta


def split_meta(meta, folder, split, kind):
    if meta['kind'] != kind:
        raise ValueError(f'{folder} holds {meta["kind"]}, not {kind}; choose another dataset, or a model for {meta["kind"]}')
    if split not in meta['splits']:
        raise ValueError(f'{folder} has no split {split}, only {", ".join(meta["splits"])}')
    return meta['splits'][split]


def open_array(path, dtype, *shape):
    """A .npy file, memory-mapped. Raises ValueError if it is missing, cut off, or not of this shape."""
    try:
        array = np.lib.format.open_memmap(path, mode='r')
    except Exception as e:  # of many types, depending on where the damage is
        raise ValueError(f'{path} is missing, cut off or no .npy file ({type(e).__name__}); '
                         'prepare the dataset again') from None
    found, wanted = (f'{t} of {" x ".join(map(str, s))}' for t, s in ((array.dtype, array.shape), (dtype, shape)))
    if found != wanted:
        raise ValueError(f'{path} holds {found}, and should hold {wanted}; prepare the dataset again')
    return array


def steps(first, last):
    """first, first + 1, .. below last, or without end if that is None."""
    return itertools.count(first) if last is None else range(first, last)


class Text:
    """One split of a text dataset."""

    SCANNED = 10 ** 8  # up to so many tokens all ids are checked when the file is opened; longer files batch by batch

    def __init__(self, folder, split, block_size):
        meta = read_meta(folder)
        mine = split_meta(meta, folder, split, 'text')
        self.path, self.block_size, self.vocab_size = Path(folder) / f'{split}.npy', block_size, meta['vocab_size']
        self.tokens = open_array(self.path, mine['dtype'], mine['tokens'])
        if len(self.tokens) < block_size + 1:
            raise ValueError(f'{self.path} has {len(self.tokens)} tokens, too few for block_size={block_size}; '
                             f'set --block_size={max(1, len(self.tokens) - 1)} or less, or prepare more text')
        if len(self.tokens) <= self.SCANNED:
            self.check_ids(self.tokens.max())
        self.tokens_per_byte = len(self.tokens) / mine['bytes']

    def __len__(self):
        """Sequences that do not overlap: what an epoch counts."""
        return (len(self.tokens) - 1) // self.block_size

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

    def batches(self, n, seed, share, first=0, last=None):
        """Training: for every step from `first` on, the parts `share` (slices) of its n sequences, one after the other.
        The sequences begin at random places that depend on (seed, step) alone."""
        for step in steps(first, last):
            starts = np.random.default_rng((seed, step)).integers(0, len(self.tokens) - self.block_size, n)
            yield from self.of_step(starts, share, seed, step)

    def of_step(self, starts, share, seed, step):
        for part in share:
            yield self.at(starts[part])

    def fixed(self, n, batches, rank=0, world=1):
        """Validation: `batches` batches of n sequences, spread evenly over the split, the same every time; of these
        every world-th from the rank-th on. Fewer where the split is so small that they would overlap."""
        last = len(self.tokens) - self.block_size - 1
        count = max(1, min(n * batches, last // self.block_size + 1))
        starts = np.linspace(0, last, count).astype(np.int64)
        for i in range(rank * n, count, world * n):
            yield self.sequences(starts[i:i + n])

    def sequences(self, starts):
        return self.at(starts)


class MaskedText(Text):
    """One split of a text dataset with tokens to fill in, as BERT (Devlin et al. 2019) learns: of the tokens 15% are chosen,
    at least one in a sequence; of these 80% become the token [MASK], whose id is the first after the tokenizer's, 10% a
    random one, and 10% stay. x is what is left, y the chosen tokens and -1 elsewhere."""

    CHOSEN, MASKED, RANDOM = 0.15, 0.8, 0.1

    def hidden(self, starts, draws):
        """Sequences that begin at the given places, by random numbers in [0, 1), (len(starts), 2, block_size)."""
        import torch  # here, so that the scripts in prepare/ start without it
        tokens, (u, which) = self.at(starts)[0], torch.from_numpy(draws).unbind(1)
        u = u.scatter(1, u.argmin(1, keepdim=True), 0.0)
        x = torch.where(u < self.CHOSEN * (self.MASKED + self.RANDOM), (which * self.vocab_size).long(), tokens)
        x = torch.where(u < self.CHOSEN * self.MASKED, self.vocab_size, x)
        return x, torch.where(u < self.CHOSEN, tokens, -1)

    def of_step(self, starts, share, seed, step):
        draws = np.random.default_rng((seed, step, 5)).random((len(starts), 2, self.block_size))
        for part in share:
            yield self.hidden(starts[part], draws[part])

    def sequences(self, starts):
        """What is hidden depends on the place in the split, so it never changes."""
        draws = [np.random.default_rng((start, 6)).random((2, self.block_size)) for start in starts.tolist()]
        return self.hidden(starts, np.array(draws))


class Images:
    """One split of an image dataset, or a share of it: labels, and pictures by index."""

    def __init__(self, folder, split, workers=0, share=1.0, seed=0):
        """workers: processes that read ahead, -1 as many as there are cores where JPEG must be decoded, else none.
        share: how much of every class there is, at least one picture; the seed says which."""
        meta = read_meta(folder)
        mine = split_meta(meta, folder, split, 'images')
        self.folder, self.split, self.mine, self.classes = Path(folder), split, mine, meta['classes']
        self.packed = meta['storage'] == 'pack'
        self.size = None if self.packed else (mine['height'], mine['width'])  # of every picture, if it is one
        self.workers = workers if workers >= 0 else min(16, cores()) if self.packed else 0
        self.labels = np.array(self.open('labels', np.int64))
        wrong = np.flatnonzero((self.labels < 0) | (self.labels >= len(self.classes)))
        if len(wrong):
            raise ValueError(f'{self.folder}/{split}.labels.npy: label {self.labels[wrong[0]]} of picture {wrong[0]} is not '
                             f'among the {len(self.classes)} classes of meta.json; prepare the dataset again')
        if self.packed:
            offsets = self.open('offsets', np.int64, 1)
            if offsets[0] != 0 or offsets[-1] != mine['bytes'] or (np.diff(offsets) <= 0).any():
                raise ValueError(f'{self.folder}/{split}.offsets.npy is damaged; prepare the dataset again')
        self.pixels  # a missing or cut-off file is noticed now
        self.chosen = np.arange(len(self.labels))
        if share < 1:
            shuffled = np.random.default_rng((seed, 3)).permutation(len(self.labels))
            of_class = [shuffled[self.labels[shuffled] == k] for k in range(len(self.classes))]
            self.chosen = np.sort(np.concatenate([i[:max(1, round(len(i) * share))] for i in of_class]))

    def open(self, name, dtype, more=0):
        return open_array(self.folder / f'{self.split}.{name}.npy', np.dtype(dtype), self.mine['count'] + more)

    @functools.cached_property
    def pixels(self):
        if self.packed:
            return (open_array(self.folder / f'{self.split}.jpeg.npy', np.dtype('uint8'), self.mine['bytes']),
                    self.open('offsets', np.int64, 1))
        return open_array(self.folder / f'{self.split}.images.npy', np.dtype('uint8'), self.mine['count'], *self.size, 3)

    def __getstate__(self):  # what a reading process is sent: it opens the files itself
        return {k: v for k, v in self.__dict__.items() if k != 'pixels'}

    def __len__(self):
        return len(self.chosen)

    def names(self):
        """Names of the picture files, of a dataset that was prepared from files; else None."""
        path = self.folder / f'{self.split}.names.npy'
        if not path.exists():
            return None
        try:
            names = np.load(path, mmap_mode='r')
            assert names.shape == (self.mine['count'],) and names.dtype.kind == 'S'
        except Exception as e:  # of many types, depending on where the damage is
            raise ValueError(f'{path} is cut off or no .npy file of names ({type(e).__name__}); '
                             'prepare the dataset again') from None
        return names[self.chosen]

    def __getitem__(self, request):
        """(indices (n,), draws (n, any)) -> pictures uint8 (n, H, W, 3), sizes int64 (n, 2), labels int64 (n,), draws.

        Pictures of different sizes are padded with zeros at the right and the bottom; sizes says how large each is.
        Draws are passed through, so that a picture and its random numbers stay together on their way.
        """
        indices, draws = self.chosen[request[0]], request[1]
        if not self.packed:
            return self.pixels[indices], np.tile(self.size, (len(indices), 1)), self.labels[indices], draws
        jpeg, offsets = self.pixels
        pictures = [self.decode(i, jpeg[offsets[i]:offsets[i + 1]].tobytes()) for i in indices]
        sizes = np.array([p.shape[:2] for p in pictures])
        padded = np.zeros((len(pictures), *sizes.max(0), 3), np.uint8)
        for into, p in zip(padded, pictures):
            into[:p.shape[0], :p.shape[1]] = p
        return padded, sizes, self.labels[indices], draws

    def decode(self, i, jpeg):
        """Bytes of the i-th JPEG picture -> uint8 (H, W, 3)."""
        try:
            from PIL import Image
        except ImportError:
            raise ValueError('reading JPEG pictures needs Pillow: pip install pillow') from None
        try:
            return np.asarray(Image.open(io.BytesIO(jpeg)).convert('RGB'))
        except Exception as e:  # of many types, depending on where the damage is
            raise ValueError(f'{self.folder}/{self.split}.jpeg.npy: picture {i} is damaged ({type(e).__name__}); prepare the '
                             'dataset again') from None

    def read(self, requests):
        """What self[..] gives for each request, as tensors, read ahead by worker processes if there are any."""
        import torch  # here, so that the scripts in prepare/ start without it
        # a generator of its own, because DataLoader draws a seed for its workers even where nobody uses it
        loader = torch.utils.data.DataLoader(self, sampler=requests, batch_size=None, num_workers=self.workers,
                                             worker_init_fn=signals_are_for_the_loop, generator=torch.Generator())
        try:
            yield from loader
        except ValueError as e:  # a worker sends its traceback as the text
            if os.environ.get('NANOCRATE_DEBUG'):
                raise
            raise ValueError(str(e).strip().splitlines()[-1].removeprefix('ValueError: ')) from None

    def batches(self, n, seed, share, first=0, last=None, draws=0):
        """Training: for every step from `first` on, the parts `share` (slices) of its n pictures, one after the other,
        each picture with that many random numbers in [0, 1). Every epoch goes through all pictures in another order;
        order and numbers depend on (seed, step) alone."""
        def requests():
            for step in steps(first, last):
                numbers = np.random.default_rng((seed, step, 1)).random((n, draws))
                for part in share:
                    yield self.places(np.arange(step * n, (step + 1) * n)[part], seed), numbers[part]
        return self.read(requests())

    def places(self, positions, seed):
        """Indices of the pictures at positions (n,), ascending, of the endless sequence of epochs."""
        epochs, places = np.divmod(positions, len(self))
        return np.concatenate([self.order(seed, epoch)[places[epochs == epoch]] for epoch in np.unique(epochs).tolist()])

    @functools.lru_cache(maxsize=2)
    def order(self, seed, epoch):
        return np.random.default_rng((seed, epoch, 2)).permutation(len(self))

    def fixed(self, n, batches, rank=0, world=1, draws=0):
        """Validation: `batches` batches of n pictures, spread evenly over the split, the same every time; of these
        every world-th from the rank-th on. All pictures once, where these are fewer. Each with that many random numbers,
        which are always the same for a picture."""
        count = min(n * batches, len(self))
        chosen = np.linspace(0, len(self) - 1, count).round().astype(np.int64)

        def requests():
            for i in range(rank * n, count, world * n):
                part = chosen[i:i + n]
                numbers = [np.random.default_rng((j, 4)).random(draws) for j in self.chosen[part].tolist() * bool(draws)]
                yield part, np.array(numbers).reshape(len(part), draws)
        return self.read(requests())


def signals_are_for_the_loop(worker):
    """In a reading process: Ctrl-C, and a SIGTERM to the process group, are for the training loop, which still needs the
    batch at hand. (Ignoring SIGTERM would not do: it is how Python ends its readers.)"""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(os, 'setpgrp'):
        os.setpgrp()


def cores():
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count()
