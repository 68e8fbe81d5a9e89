"""Prepared datasets: folders of .npy arrays and a meta.json with their lengths and types.

  text            SPLIT.npy, one 1-D array of token ids; meta.json names the tokenizer
  small pictures  SPLIT.images.npy, uint8 (N, H, W, C), and SPLIT.labels.npy, int64 (N,); perhaps SPLIT.masks.npy
  large pictures  SPLIT.jpeg.npy, the bytes of all JPEG files one after the other, SPLIT.offsets.npy, int64 (N + 1,),
                  SPLIT.labels.npy, and SPLIT.names.npy, the names of the files

meta.json says how many channels pictures have (3 if it does not).
"""
import contextlib
import json
import os
import shutil
from pathlib import Path

import numpy as np

# ---- writing --------------------------------------------------------------------------------------------------------


def check_free(out, overwrite):
    """Raises ValueError if `out` exists; with overwrite, only if it is no prepared dataset. Call it
    before the work."""
    out = Path(out)
    if out.is_dir() and not any(out.iterdir()) or not out.exists():
        return
    if not (out / 'meta.json').exists():
        raise ValueError(f'{out} exists and is no prepared dataset; give another --out')
    if not overwrite:
        raise ValueError(f'{out} exists; give another --out, or --overwrite to replace it')


@contextlib.contextmanager
def new_folder(out, resumed=False):
    """A folder to write into. It becomes `out` when the block ends and is deleted if the block
    fails: a dataset appears whole or not at all. resumed: it is kept after a failure, with the
    files of an earlier try in it."""
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
    """Write the header of a 1-D .npy file and return its length. Numpy leaves room in it for a
    longer axis, so it can be written again in the same place once the final length is known."""
    file.seek(0)
    descr = np.lib.format.dtype_to_descr(np.dtype(dtype))
    np.lib.format.write_array_header_1_0(file, {'descr': descr, 'fortran_order': False, 'shape': (count,)})
    return file.tell()


def text_meta(tokenizer, splits):
    """meta.json of a text dataset. splits: {name: (tokens, dtype, UTF-8 bytes)}."""
    return {'kind': 'text', 'tokenizer': tokenizer.spec, 'vocab_size': tokenizer.vocab_size,
            'splits': {name: {'tokens': n, 'dtype': str(dtype), 'bytes': b} for name, (n, dtype, b) in splits.items()}}


def write_text(out, tokenizer, names, pieces):
    """Write a text dataset and print its counts. Only one piece of the text is in memory at a time.

    names: of the splits. pieces: (split, ids (n,), UTF-8 bytes of their text, for bits per byte),
    each split in its order.
    """
    dtype = np.dtype(np.uint16 if tokenizer.vocab_size <= 2 ** 16 else np.uint32)
    tokens, n_bytes = dict.fromkeys(names, 0), dict.fromkeys(names, 0)
    with new_folder(out) as new, contextlib.ExitStack() as stack:
        files = {name: stack.enter_context(open(new / f'{name}.npy', 'wb')) for name in names}
        starts = {name: write_header(file, dtype, 0) for name, file in files.items()}
        for name, ids, more in pieces:
            np.asarray(ids, dtype).tofile(files[name])
            tokens[name], n_bytes[name] = tokens[name] + len(ids), n_bytes[name] + more
        for name, file in files.items():
            if tokens[name] < 2:
                raise ValueError(f'too little text: {tokens[name]} tokens for {name}; give more, or another --val')
            assert write_header(file, dtype, tokens[name]) == starts[name]
        meta = text_meta(tokenizer, {name: (tokens[name], dtype, n_bytes[name]) for name in names})
        (new / 'meta.json').write_text(json.dumps(meta, indent=1))
    for name in names:
        print(f'{out}/{name}.npy: {tokens[name]:,} tokens of {n_bytes[name]:,} bytes, {tokenizer.vocab_size} in the '
              'vocabulary')


def save_text(out, tokenizer, splits, n_bytes):
    """write_text of a text in memory. splits: {'train': ids, 'val': ids}, 1-D. n_bytes: UTF-8 bytes
    of text a split."""
    write_text(out, tokenizer, list(splits), ((name, ids, n_bytes[name]) for name, ids in splits.items()))


def split_text(text, tokenizer, val_share=0.1):
    """Text -> (splits, n_bytes) for save_text. The last share of the characters is held out for
    validation."""
    cut = int(len(text) * (1 - val_share))
    parts = {'train': text[:cut], 'val': text[cut:]}
    as_bytes = tokenizer.spec['name'] == 'bytes'  # faster, and without a Python int per byte
    ids = {name: np.frombuffer(part.encode(), np.uint8) if as_bytes else tokenizer.encode(part)
           for name, part in parts.items()}
    return ids, {name: len(part.encode()) for name, part in parts.items()}


# ---- reading --------------------------------------------------------------------------------------------------------


def read_meta(folder):
    """meta.json of a prepared dataset, as a dict; of functions, which need no folder, for None.
    Raises ValueError if it is missing or not ours."""
    if folder is None:
        return {'kind': 'functions', 'splits': {}}
    path = Path(folder) / 'meta.json'
    try:
        meta = json.loads(path.read_text())
        if meta['kind'] == 'text':
            assert meta['tokenizer']['name'] in ('bytes', 'chars', 'gpt2') and meta['vocab_size'] > 0
            assert all(s['tokens'] > 0 and s['bytes'] > 0 and s['dtype'] for s in meta['splits'].values())
        elif meta['kind'] != 'benchmark':
            assert meta['kind'] == 'images' and meta['storage'] in ('arrays', 'pack')
            assert isinstance(meta['classes'], list) and meta['classes'] and meta['splits']
            assert meta.setdefault('channels', 3) > 0
            sizes = ('height', 'width') if meta['storage'] == 'arrays' else ('bytes',)
            assert all(s[k] > 0 for s in meta['splits'].values() for k in ('count', *sizes))
    except OSError:
        raise ValueError(f'no prepared data in {folder} (no {path})') from None
    except (ValueError, KeyError, TypeError, AttributeError, AssertionError):
        raise ValueError(f'{path} is not the meta.json of a prepared dataset; prepare it again') from None
    if meta['kind'] == 'benchmark':
        raise ValueError(f'{folder} is a benchmark, not a dataset: python eval.py --ckpt=RUN '
                         f'--benchmarks={Path(folder).name}')
    return meta


def split_meta(meta, folder, split, kind):
    """What meta.json says of a split. Raises ValueError if there is none, or if it is of another
    kind."""
    if meta['kind'] != kind:
        raise ValueError(f'{folder} holds {meta["kind"]}, not {kind}; choose another dataset, or a network for '
                         f'{meta["kind"]}')
    if split not in meta['splits']:
        raise ValueError(f'{folder} has no split {split}, only {", ".join(meta["splits"])}')
    return meta['splits'][split]


def open_array(path, dtype, *shape):
    """A .npy file, memory-mapped. Raises ValueError if it is missing, cut off, or not of this
    shape."""
    try:
        array = np.lib.format.open_memmap(path, mode='r')
    except Exception as e:  # of many types, depending on where the damage is
        raise ValueError(f'{path} is missing, cut off or no .npy file ({type(e).__name__}); '
                         'prepare the dataset again') from None
    found, wanted = (f'{t} of {" x ".join(map(str, s))}' for t, s in ((array.dtype, array.shape), (dtype, shape)))
    if found != wanted:
        raise ValueError(f'{path} holds {found}, and should hold {wanted}; prepare the dataset again')
    return array


def cores():
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count()
