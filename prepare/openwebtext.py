"""OpenWebText (Gokaslan and Cohen 2019), 8 million documents of the web, as GPT-2 tokens.

    python prepare/openwebtext.py                 # downloads 13 GB, writes 18 GB of tokens
    python prepare/openwebtext.py --subsets 1     # only the first of 21 subsets
    python prepare/openwebtext.py --from DIR      # your urlsf_subset00.tar, urlsf_subset01.tar, ..

Subsets are downloaded one at a time. If the script is killed, run it again: it continues with the
subset it was at. Documents are cleaned as in Hugging Face's loader and in nanoGPT: stripped, with
at most one empty line in a row. <|endoftext|> follows each. A fixed random 0.05% of them are held
out for validation, chosen by a hash of their text, so that copies of a document are in the same
split. The archives are compared with the checksums that Hugging Face sends with them.

Expect about 9.0 billion tokens for training and 4.4 million for validation.
"""
import functools
import hashlib
import io
import json
import lzma
import os
import re

import lib  # noqa: F401 (first: it says what to type where a library is missing)
import numpy as np
from tqdm import tqdm

from lib.files import Growing, new_folder
from lib.inputs import (
    Mistake, arguments, choice, local, local_or_fetch, number, option, run, tar_files)
from lib.pictures import in_order
from lib.texts import write_text_meta
from tasks.files import cores
from tasks.tokenizer import Tokenizer

URL = 'https://huggingface.co/datasets/Skylion007/openwebtext/resolve/main/subsets'
SUBSETS = 21
SPLITS = ('train', 'val')
PROGRESS = 'progress.json'


# ---- documents ----------------------------------------------------------------------------------

def held_out(text, val_share):
    """Whether a document belongs to the held-out share. This depends only on its text."""
    digest = hashlib.blake2b(text.encode(), digest_size=8, key=b'nanoCRATE').digest()
    return int.from_bytes(digest, 'big') < val_share * 2 ** 64


def tokenize(packed, archive, tokenizer_name, val_share):
    """The bytes of a tar.xz of documents, which lies in an archive -> {split: (ids (n,), UTF-8
    bytes)}."""
    tokenizer = Tokenizer(tokenizer_name)
    ids = {split: [] for split in SPLITS}
    n_bytes = dict.fromkeys(SPLITS, 0)
    unpacked = lzma.open(io.BytesIO(packed))
    for _, content in tar_files(archive, lambda name: name.endswith('.txt'), unpacked):
        text = content.decode('utf-8-sig', errors='replace')
        text = re.sub('\n\n\n+', '\n\n', text).strip()
        split = 'val' if held_out(text, val_share) else 'train'
        ids[split] += tokenizer.encode(text)
        ids[split].append(tokenizer.beginning)  # which ends the text before
        n_bytes[split] += len(text.encode())
    return {split: (np.array(ids[split], np.uint16), n_bytes[split]) for split in SPLITS}


# ---- progress -----------------------------------------------------------------------------------
# progress.json says what is true after the last whole subset: how many are `done`, and of each
# split what write_text_meta takes. Tokens that were written later are cut off.

def read_state(folder, args):
    """The state of progress.json, or that of a beginning. Raises Mistake if the options are other
    ones than those with which it began."""
    path = folder / PROGRESS
    options = f'--tokenizer {args.tokenizer} --val {args.val}'
    if not path.exists():
        splits = {split: {'tokens': 0, 'dtype': 'uint16', 'bytes': 0} for split in SPLITS}
        return {'begun': options, 'done': 0, 'splits': splits}
    state = json.loads(path.read_text(encoding='utf-8'))
    if state['begun'] != options or state['done'] > args.subsets:
        raise Mistake(f'{folder} has {state["done"]} subsets of {state["begun"]}; pass these, or '
                      'remove it')
    return state


def save_state(folder, state, files):
    """Write progress.json, once the tokens that it counts are on the disk."""
    for file in files.values():
        file.flush()
    path = folder / PROGRESS
    new = path.with_suffix('.new')
    new.write_text(json.dumps(state), encoding='utf-8')
    os.replace(new, path)


def append_subset(archive, name, files, splits, args):
    """Append the tokens of an archive to the files, {split: Growing}, and count them in `splits`.
    Raises Mistake if it has no documents. name: what the progress bar says."""
    tokens_before = splits['train']['tokens']
    jobs = tar_files(archive, lambda file: file.endswith('_data.xz'))  # (file, bytes)
    function = functools.partial(tokenize, archive=archive, tokenizer_name=args.tokenizer,
                                 val_share=args.val)
    results = in_order(function, jobs, args.workers)
    for _, result in tqdm(results, name, disable=None, unit=' files'):  # (job, its result)
        for split, (ids, n_bytes) in result.items():
            files[split].append(ids)
            splits[split]['tokens'] += len(ids)
            splits[split]['bytes'] += n_bytes
    if splits['train']['tokens'] == tokens_before:
        raise Mistake(f'{archive} holds no *_data.xz with .txt files; get it again')


def main(argv=None):
    args = arguments(
        __doc__, argv,
        local('a folder with the archives, instead of the download'),
        number('--subsets', 'how many, from the first', SUBSETS, 1, SUBSETS),
        choice('--tokenizer', 'bytes end with a new line', 'gpt2', 'bytes'),
        number('--val', 'share of documents held out', 0.0005, 1e-4, 0.5),
        number('--workers', 'processes that tokenize', cores(), 0, 999),
        option('--url', 'where the archives are', default=URL),
        out='data/openwebtext')
    tokenizer = Tokenizer(args.tokenizer)  # fails before the download if there is no tokenizer

    with new_folder(args.out, PROGRESS) as folder:  # that of an earlier try, if it had progress
        state = read_state(folder, args)
        files = {}
        for split, entry in state['splits'].items():
            files[split] = Growing(folder / f'{split}.npy', np.uint16, entry['tokens'])

        while state['done'] < args.subsets:
            name = f'urlsf_subset{state["done"]:02}.tar'
            archive = local_or_fetch(args, f'{args.url}/{name}', name=f'openwebtext/{name}')
            append_subset(archive, name, files, state['splits'], args)
            state['done'] += 1
            save_state(folder, state, files)
            if args.source is None:
                archive.unlink()

        for file in files.values():
            file.close()
        write_text_meta(folder, args.out, tokenizer, state['splits'])
        (folder / PROGRESS).unlink()


if __name__ == '__main__':
    run(main)
