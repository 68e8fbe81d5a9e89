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

import numpy as np
from tqdm import tqdm

from lib.archives import tar_files
from lib.command_line import Mistake, parse, parser, run, share
from lib.download import local_or_fetch
from lib.files import Growing, new_folder, write_text_meta
from lib.pictures import in_order
from lib.texts import decode
from tasks.files import cores
from tasks.tokenizer import Tokenizer

URL = 'https://huggingface.co/datasets/Skylion007/openwebtext/resolve/main/subsets'
SUBSETS, SPLITS, DTYPE = 21, ('train', 'val'), np.dtype(np.uint16)  # 50257 tokens fit, and 256 bytes
PROGRESS = 'progress.json'

tokenizer = functools.cache(Tokenizer)


def held_out(text, val_share):
    """Whether a document belongs to the held-out share. This depends only on its text."""
    digest = hashlib.blake2b(text.encode(), digest_size=8, key=b'nanoCRATE').digest()
    return int.from_bytes(digest, 'big') < val_share * 2 ** 64


def tokenize(job):
    """(name, bytes of a tar.xz of documents, tokenizer, held-out share) -> {split: (tokens, number of documents, UTF-8
    bytes)}."""
    name, packed, kind, val_share = job
    encode, end = tokenizer(kind).encode, tokenizer(kind).beginning
    texts = {s: [] for s in SPLITS}
    for _, content in tar_files(name, lambda name: name.endswith('.txt'), file=lzma.open(io.BytesIO(packed))):
        text = re.sub('\n\n\n+', '\n\n', decode(content)[0]).strip()
        texts['val' if held_out(text, val_share) else 'train'].append(text)
    return {s: (np.array([token for text in texts[s] for token in (*encode(text), end)], DTYPE), len(texts[s]),
                sum(len(text.encode()) for text in texts[s])) for s in SPLITS}


def save(state, files, path):
    """The counts after a complete subset, once its tokens are on the disk."""
    for file in files.values():
        file.file.flush()
        os.fsync(file.file.fileno())
    path.with_suffix('.new').write_text(json.dumps(state), encoding='utf-8')
    os.replace(path.with_suffix('.new'), path)


def prepare(args):
    """Tokens are appended to train.npy and val.npy. progress.json has the counts after the last complete subset; what
    was appended later is cut off when this goes on."""
    tokenizer(args.tokenizer)  # fails before the download if there is no tokenizer
    with new_folder(args.out, PROGRESS) as folder:
        path, names = folder / PROGRESS, [f'urlsf_subset{i:02}' for i in range(args.subsets)]
        begun = {'val': args.val, 'tokenizer': args.tokenizer}
        state = json.loads(path.read_text(encoding='utf-8')) if path.exists() else {
            'begun': begun, 'done': []} | {s: {'tokens': 0, 'documents': 0, 'bytes': 0} for s in SPLITS}
        if state['begun'] != begun or state['done'] != names[:len(state['done'])]:
            raise Mistake(f'{folder} was begun with --val {state["begun"]["val"]} --tokenizer '
                          f'{state["begun"]["tokenizer"]} and has {len(state["done"])} subsets; pass these, and at '
                          'least as many --subsets, or remove the folder')
        files = {s: Growing(folder / f'{s}.npy', DTYPE, state[s]['tokens']) for s in SPLITS}
        for name in names[len(state['done']):]:
            archive = local_or_fetch(args, f'{args.url}/{name}.tar', name=f'openwebtext/{name}.tar')
            jobs = (((f'{archive}: {n}', packed, args.tokenizer, args.val),) for n, packed in
                    tar_files(archive, lambda n: n.endswith('_data.xz')))
            before = sum(file.length for file in files.values())
            for _, found in tqdm(in_order(tokenize, jobs, args.workers), name, disable=None, unit=' files'):
                for s, (tokens, *counts) in found.items():
                    files[s].append(tokens)
                    state[s] = {k: state[s][k] + n for k, n in zip(state[s], (len(tokens), *counts))}
            if before == sum(file.length for file in files.values()):
                raise Mistake(f'{archive} holds no *_data.xz with .txt files; get it again')
            state['done'].append(name)
            save(state, files, path)
            if args.source is None:
                archive.unlink()
        write_text_meta(folder, tokenizer(args.tokenizer), files, {s: state[s]['bytes'] for s in SPLITS})
        path.unlink()
    for s in SPLITS:
        print(f'{args.out}/{s}.npy: {state[s]["tokens"]:,} tokens of {state[s]["documents"]:,} documents, '
              f'{state[s]["bytes"]:,} bytes')


def main(argv=None):
    p = parser(__doc__, 'data/openwebtext', 'a folder with the archives, instead of the download')
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
    run(main)
