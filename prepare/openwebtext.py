"""OpenWebText (Gokaslan and Cohen 2019), 8 million documents of the web, as GPT-2 tokens.

    python prepare/openwebtext.py                 # downloads 13 GB, writes 18 GB of tokens
    python prepare/openwebtext.py --subsets 1     # only the first of 21 subsets
    python prepare/openwebtext.py --from DIR      # your urlsf_subset00.tar, urlsf_subset01.tar, ..

Subsets are downloaded one at a time. If the script is killed, run it again: it continues with the
subset it was at. Documents are cleaned as in Hugging Face's loader and in nanoGPT: stripped, with
at most one empty line in a row. <|endoftext|> follows each. A fixed random 0.05% of them are held
out for validation, chosen by a hash of their text, so that copies of a document are in the same
split.

Expect about 9.0 billion tokens for training and 4.4 million for validation.
"""
import contextlib
import functools
import hashlib
import io
import json
import lzma
import os
import re
import sys
import tarfile
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from engine.settings import Mistake, one_line_errors
from prepare.lib.archives import Header, file_in, files_of, tar_files
from prepare.lib.command_line import parse, parser, share
from prepare.lib.download import local_or_fetch
from prepare.lib.files import new_folder, text_meta, write_header, write_meta
from prepare.lib.texts import decode
from prepare.lib.workers import in_order
from tasks.files import cores
from tasks.tokenizer import Tokenizer

URL = 'https://huggingface.co/datasets/Skylion007/openwebtext/resolve/main/subsets'
SUBSETS, SPLITS, DTYPE = 21, ('train', 'val'), np.dtype(np.uint16)  # 50257 tokens fit, and 256 bytes
PROGRESS = 'progress.json'
EXPECTED = 'a subset of OpenWebText: a tar of openwebtext/*_data.xz, which are tars of .txt files'

tokenizer = functools.cache(Tokenizer)


def held_out(text, val_share):
    """Whether a document belongs to the held-out share. This depends only on its text."""
    digest = hashlib.blake2b(text.encode(), digest_size=8, key=b'nanoCRATE').digest()
    return int.from_bytes(digest, 'big') < val_share * 2 ** 64


def tokenize(job):
    """(name, bytes of a tar.xz of documents, tokenizer, held-out share) -> {split: (tokens, number
    of documents, UTF-8 bytes)}, number of places that were not UTF-8; or a str that says what is
    damaged."""
    name, packed, kind, val_share = job
    encode, end = tokenizer(kind).encode, tokenizer(kind).beginning
    parts, counts, replaced = {s: [] for s in SPLITS}, {s: [0, 0] for s in SPLITS}, 0
    try:
        with tarfile.open(fileobj=io.BytesIO(packed), mode='r:xz', tarinfo=Header) as tar:
            for member in files_of(tar):
                if not member.name.endswith('.txt'):
                    continue
                text, places = decode(file_in(tar, member))
                replaced += places
                text = re.sub('\n\n\n+', '\n\n', text).strip()
                split = 'val' if held_out(text, val_share) else 'train'
                parts[split].append(np.array([*encode(text), end], DTYPE))
                counts[split][0] += 1
                counts[split][1] += len(text.encode())
    except (tarfile.TarError, EOFError, lzma.LZMAError) as e:
        return f'{name} is damaged ({e})'
    return {s: (np.concatenate([np.empty(0, DTYPE), *parts[s]]), *counts[s]) for s in SPLITS}, replaced


class Unfinished:
    """A dataset while it is written. Tokens are appended to train.npy and val.npy. progress.json
    has the counts after the last complete subset; opening the dataset again removes what was
    appended later."""

    def __init__(self, folder, kind, val_share):
        self.path, self.kind = folder / PROGRESS, kind
        self.state = {'begun': {'val': val_share, 'tokenizer': kind}, 'done': [], 'replaced': 0}
        self.state |= {s: {'tokens': 0, 'documents': 0, 'bytes': 0} for s in SPLITS}
        if self.path.exists():
            before, self.state = self.state, json.loads(self.path.read_text(encoding='utf-8'))
            for k, v in self.state['begun'].items():
                if v != before['begun'][k]:
                    raise Mistake(f'{folder} was begun with --{k} {v}; pass this again, or remove the folder')
        self.files = {}
        for s in SPLITS:
            path = folder / f'{s}.npy'
            self.files[s] = open(path, 'r+b' if path.exists() else 'w+b')
            start = write_header(self.files[s], DTYPE, 0)
            self.files[s].truncate(start + self.state[s]['tokens'] * DTYPE.itemsize)
            self.files[s].seek(0, os.SEEK_END)

    def add(self, parts, replaced):
        for s, (tokens, documents, n_bytes) in parts.items():
            tokens.tofile(self.files[s])
            for k, more in (('tokens', len(tokens)), ('documents', documents), ('bytes', n_bytes)):
                self.state[s][k] += more
        self.state['replaced'] += replaced

    def subset_done(self, name):
        for file in self.files.values():
            file.flush()
            os.fsync(file.fileno())
        self.state['done'].append(name)
        new = self.path.with_suffix('.new')
        new.write_text(json.dumps(self.state), encoding='utf-8')
        os.replace(new, self.path)

    def finish(self):
        """Complete the files, write meta.json, and return the counts."""
        for s, file in self.files.items():
            write_header(file, DTYPE, self.state[s]['tokens'])
        counts = {s: (self.state[s]['tokens'], DTYPE, self.state[s]['bytes']) for s in SPLITS}
        meta = text_meta(tokenizer(self.kind), counts)
        self.close()
        write_meta(self.path.parent, meta)
        self.path.unlink()
        return self.state

    def close(self):
        for file in self.files.values():
            file.close()


def prepare(args):
    from tqdm import tqdm
    tokenizer(args.tokenizer)  # fails before the download if there is no tokenizer
    downloads, kept = Path(args.out).parent / 'downloads' / 'openwebtext', args.source is not None
    with new_folder(args.out, PROGRESS) as folder, contextlib.closing(Unfinished(
            folder, args.tokenizer, args.val)) as work:
        names = [f'urlsf_subset{i:02}' for i in range(args.subsets)]
        if work.state['done'] != names[:len(work.state['done'])]:
            raise Mistake(f'{folder} already has {len(work.state["done"])} subsets; pass at least as many '
                          '--subsets, or remove the folder')
        for name in names[len(work.state['done']):]:
            archive = local_or_fetch(args.source, f'{args.url}/{name}.tar', downloads / f'{name}.tar')
            packs = ((f'{archive}: {n}', (n, packed, args.tokenizer, args.val)) for n, packed in
                     tar_files(archive, lambda n: n.endswith('_data.xz'), EXPECTED))
            seen = 0
            for (where, _), result in tqdm(in_order(tokenize, packs, args.workers), name, disable=None, unit=' files'):
                if isinstance(result, str):
                    advice = 'get it again' if kept else 'remove it and run this again'
                    raise Mistake(f'{archive}: {result}; {advice}')
                work.add(*result)
                seen += 1
            if not seen:
                raise Mistake(f'{archive} holds no *_data.xz; expected {EXPECTED}')
            work.subset_done(name)
            if not kept:
                archive.unlink()
        if min(work.state[s]['tokens'] for s in SPLITS) < 2:
            raise Mistake('too few documents: none was held out for validation; pass more --subsets, '
                          'or a larger --val')
        counts = work.finish()
    for s in SPLITS:
        print(f'{args.out}/{s}.npy: {counts[s]["tokens"]:,} tokens of {counts[s]["documents"]:,} documents, '
              f'{counts[s]["bytes"]:,} bytes')
    if counts['replaced']:
        print(f'{counts["replaced"]:,} places that are not UTF-8 were replaced')


def main(argv=None):
    p = parser(__doc__, 'data/openwebtext')
    p.add_argument('--from', dest='source', metavar='DIR', help='a folder with the archives, instead of the download')
    p.add_argument('--subsets', type=int, default=SUBSETS, choices=range(1, SUBSETS + 1), metavar='N',
                   help=f'how many of the {SUBSETS} subsets, from the first (default: all)')
    p.add_argument('--tokenizer', default='gpt2', choices=['gpt2', 'bytes'],
                   help='default: %(default)s; with bytes, a document ends with a new line')
    p.add_argument('--val', type=share, default=0.0005,
                   help='share of the documents that is held out (default: %(default)s)')
    p.add_argument('--workers', type=int, default=cores(), help='processes that tokenize (default: one per core)')
    p.add_argument('--url', default=URL, help='where the archives are (default: %(default)s)')
    prepare(parse(p, argv))


if __name__ == '__main__':
    with one_line_errors():
        main()
