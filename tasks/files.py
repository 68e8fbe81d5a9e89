"""Prepared datasets: folders of .npy arrays and a meta.json with their lengths and types.

  text            SPLIT.npy, one 1-D array of token ids; meta.json names the tokenizer
  small pictures  SPLIT.images.npy, uint8 (N, H, W, C), and SPLIT.labels.npy, int64 (N,)
  large pictures  SPLIT.jpeg.npy, the bytes of all JPEG files one after the other, SPLIT.offsets.npy, int64 (N + 1,),
                  SPLIT.labels.npy, and SPLIT.names.npy, the names of the files
  true masks      beside pictures of either kind; tasks/masks.py says how

meta.json says how many channels pictures have (3 if it does not). It also has the sha256 of each
array, and one of its own contents. Opening a file compares them if it is small, and its length if it
is large; --verify=true of train.py and eval.py compares all. Folders from before there were digests
still open.

While a folder is written, a lock beside it, .NAME.lock, lets other processes wait.
"""
import contextlib
import hashlib
import json
import os
import shutil
from pathlib import Path

import numpy as np

from engine.settings import HERE, Mistake

SMALL = 2 ** 24  # bytes; larger files are compared with their digest by `verify` alone

# ---- writing --------------------------------------------------------------------------------------------------------


def check_free(out, overwrite):
    """Raises Mistake if `out` exists; with overwrite, only if it is no prepared dataset. Call it
    before the work."""
    out = Path(out)
    if out.is_dir() and not any(out.iterdir()) or not out.exists():
        return
    if not (out / 'meta.json').exists():
        raise Mistake(f'{out} exists and is no prepared dataset; give another --out')
    if not overwrite:
        raise Mistake(f'{out} exists; give another --out, or --overwrite to replace it')


def check_room(out, size):
    """Raises Mistake if so many bytes do not fit on the disk of `out`. Call it before the work."""
    free = shutil.disk_usage(next(p for p in Path(out).absolute().parents if p.exists())).free
    if size > free:
        raise Mistake(f'{out} would need {size / 1e9:,.1f} GB, and {free / 1e9:,.1f} GB are free; ask for less, or '
                      'give another --out')


LOCKS = []  # open files, to the end of this process


def hold(path):
    """Let no other process write at `path` before this one has ended; wait for one that does."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    LOCKS.append(open(path.with_name(f'.{path.name}.lock'), 'a'))
    try:
        import fcntl
        try:
            fcntl.lockf(LOCKS[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            print(f'another process writes {path}; waiting for it', flush=True)
            fcntl.lockf(LOCKS[-1], fcntl.LOCK_EX)
    except (ImportError, OSError):  # Windows, or a file system without locks
        pass


@contextlib.contextmanager
def new_folder(out, progress=''):
    """A folder to write into. It becomes `out` when the block ends and is deleted if the block
    fails: a dataset appears whole or not at all. progress: the name of a file; if the folder holds
    it after a failure, the folder is kept, and the next try goes on in it."""
    out = Path(out)
    new, old = out.with_name(out.name + '.unfinished'), out.with_name(out.name + '.replaced')
    try:
        hold(out)
        for left_over in (old,) if progress else (new, old):
            shutil.rmtree(left_over, ignore_errors=True)
        new.mkdir(parents=True, exist_ok=bool(progress))
        yield new
        if out.exists():
            os.replace(out, old)
        os.replace(new, out)
        shutil.rmtree(old, ignore_errors=True)
    except OSError as e:
        if e.filename is not None and not str(e.filename).startswith(str(out.parent)):
            raise  # it is about a file that was read
        raise Mistake(f'{out} cannot be written ({e}); make room or give another --out') from None
    finally:
        if not progress or not (new / progress).exists():
            shutil.rmtree(new, ignore_errors=True)


def write_header(file, dtype, count):
    """Write the header of a 1-D .npy file and return its length. Numpy leaves room in it for a
    longer axis, so it can be written again in the same place once the final length is known."""
    file.seek(0)
    descr = np.lib.format.dtype_to_descr(np.dtype(dtype))
    np.lib.format.write_array_header_1_0(file, {'descr': descr, 'fortran_order': False, 'shape': (count,)})
    return file.tell()


def digest(path, kind='sha256', noted=int):
    """The checksum of a file, in hex; noted(n) is told of every n bytes. (hashlib.file_digest needs
    Python 3.11.)"""
    checksum = hashlib.new(kind)
    with open(path, 'rb', buffering=0) as f:
        while part := f.read(2 ** 20):
            checksum.update(part)
            noted(len(part))
    return checksum.hexdigest()


def digests(paths, label, kind='sha256'):
    """{name: checksum} of files; of large ones it shows its progress on a terminal."""
    size = sum(map(os.path.getsize, paths))
    if size < 2 ** 30:
        return {path.name: digest(path, kind) for path in paths}
    from tqdm import tqdm
    with tqdm(total=size, desc=label, unit='B', unit_scale=True, disable=None) as bar:
        return {path.name: digest(path, kind, bar.update) for path in paths}


def digest_of_meta(meta):
    """The sha256 that meta.json has of its other contents."""
    rest = {k: v for k, v in meta.items() if k != 'sha256'}
    return hashlib.sha256(json.dumps(rest).encode()).hexdigest()


def unchanged(meta):
    """Whether meta.json is what was written, as far as it can say: an old one has no digest."""
    return meta.get('sha256') == digest_of_meta(meta) or not {'sha256', 'files'} & meta.keys()


def write_meta(folder, meta):
    """Write meta.json, with the digests of all arrays in the folder, which must be complete."""
    meta = meta | {'files': digests(sorted(Path(folder).glob('*.npy')), 'checksums')}
    whole = json.dumps(meta | {'sha256': digest_of_meta(meta)}, indent=1)
    (Path(folder) / 'meta.json').write_text(whole, encoding='utf-8', newline='\n')


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
                raise Mistake(f'too little text: {tokens[name]} tokens for {name}; give more, or another --val')
            assert write_header(file, dtype, tokens[name]) == starts[name]
            file.close()
        meta = text_meta(tokenizer, {name: (tokens[name], dtype, n_bytes[name]) for name in names})
        write_meta(new, meta)
    for name in names:
        print(f'{out}/{name}.npy: {tokens[name]:,} tokens of {n_bytes[name]:,} bytes, {tokenizer.vocab_size} in the '
              'vocabulary')


# ---- reading --------------------------------------------------------------------------------------------------------


def read_meta(folder):
    """meta.json of a prepared dataset, as a dict; of functions, which need no folder, for None.
    Raises Mistake if it is missing or not ours."""
    if folder is None:
        return {'kind': 'functions', 'splits': {}}
    path = Path(folder) / 'meta.json'
    if not path.exists():
        raise missing(folder)
    try:
        assert path.is_file()  # a FIFO would be waited for
        meta = json.loads(path.read_text(encoding='utf-8'))
        assert unchanged(meta)
        if meta['kind'] == 'text':
            assert meta['tokenizer']['name'] in ('bytes', 'chars', 'gpt2') and meta['vocab_size'] > 0
            assert all(s['tokens'] > 0 and s['bytes'] > 0 and s['dtype'] for s in meta['splits'].values())
        elif meta['kind'] != 'benchmark':
            assert meta['kind'] == 'images' and meta['storage'] in ('arrays', 'pack')
            assert isinstance(meta['classes'], list) and meta['classes'] and meta['splits']
            assert meta.setdefault('channels', 3) > 0
            sizes = ('height', 'width') if meta['storage'] == 'arrays' else ('bytes',)
            assert all(s[k] > 0 for s in meta['splits'].values() for k in ('count', *sizes))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, AssertionError, RecursionError):
        raise Mistake(f'{path} is not the meta.json of a prepared dataset; prepare it again') from None
    if meta['kind'] == 'benchmark':
        raise Mistake(f'{folder} is a benchmark, not a dataset: python eval.py --ckpt=RUN '
                      f'--benchmarks={Path(folder).name}')
    return meta


def missing(folder):
    """The Mistake for a dataset that is not there."""
    script = Path('prepare', f'{Path(folder).name}.py')
    return Mistake(f'no data in {folder}; run: python {script} --out {folder}' if (HERE / script).exists() else
                   f'no data in {folder}; prepare/ has a script for each dataset; for your own: python prepare/text.py '
                   f'FILES --out {folder}, or python prepare/imagefolder.py FOLDER --out {folder}')


def split_meta(meta, folder, split, kind):
    """What meta.json says of a split. Raises Mistake if there is none, or if it is of another
    kind."""
    if meta['kind'] != kind:
        raise Mistake(f'{folder} holds {meta["kind"]}, not {kind}; choose another dataset, or a network for '
                      f'{meta["kind"]}')
    if split not in meta['splits']:
        raise Mistake(f'{folder} has no split {split}, only {", ".join(meta["splits"])}')
    return meta['splits'][split]


def open_array(path, dtype, *shape):
    """A .npy file, memory-mapped. Raises Mistake if it is missing, cut off, or not of this
    shape."""
    try:
        assert Path(path).is_file()
        array = np.lib.format.open_memmap(path, mode='r')
    except Exception as e:  # of many types, depending on where the damage is
        raise Mistake(f'{path} is missing, cut off or no .npy file ({type(e).__name__}); '
                      'prepare the dataset again') from None
    found, wanted = (f'{t} of {" x ".join(map(str, s))}' for t, s in ((array.dtype, array.shape), (dtype, shape)))
    if found != wanted:
        raise Mistake(f'{path} holds {found}, and should hold {wanted}; prepare the dataset again')
    check_whole(path, array)
    return array


def check_whole(path, array):
    """Raises Mistake unless the .npy file that an array is mapped from has the length that its
    header says, and, if it is small, the digest in meta.json."""
    path = Path(path)
    wanted = read_meta(path.parent).get('files', {}).get(path.name)
    size = path.stat().st_size
    if size != array.offset + array.nbytes or wanted and size <= SMALL and digest(path) != wanted:
        raise damaged(path)


def verify(folder):
    """Compare all files of a prepared dataset with their digests. Raises Mistake for one that
    differs, or if there are no digests."""
    meta = read_meta(folder)
    if meta['kind'] == 'functions':
        return
    if 'files' not in meta:
        raise Mistake(f'{folder} is from before there were digests, so --verify=true cannot check it; prepare it '
                      'again, or leave that out')
    paths = [Path(folder) / name for name in meta['files']]
    for path in paths:
        if not path.is_file():
            raise Mistake(f'{path} is missing; prepare the dataset again')
    for name, found in digests(paths, f'verify {folder}').items():
        if found != meta['files'][name]:
            raise damaged(Path(folder) / name)
    print(f'{folder}: {len(paths)} files are what was written')


def damaged(path):
    return Mistake(f'{path} is damaged: it is not what was written; prepare the dataset again')


def cores():
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count()
