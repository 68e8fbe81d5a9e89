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
from lib.inputs import Mistake, choice, dataset, local, local_or_fetch, number, option, tar_files
from lib.pictures import in_order
from lib.texts import write_text_meta
from tasks.files import cores
from tasks.tokenizer import Tokenizer

URL = 'https://huggingface.co/datasets/Skylion007/openwebtext/resolve/main/subsets'
SUBSETS, SPLITS = 21, ('train', 'val')
PROGRESS = 'progress.json'


def held_out(text, val_share):
    """Whether a document belongs to the held-out share. This depends only on its text."""
    digest = hashlib.blake2b(text.encode(), digest_size=8, key=b'nanoCRATE').digest()
    return int.from_bytes(digest, 'big') < val_share * 2 ** 64


def tokenize(job):
    """(name, bytes of a tar.xz of documents, tokenizer, held-out share) -> {split: (tokens, number of documents, UTF-8
    bytes)}."""
    name, packed, kind, val_share = job
    tokenizer, found = Tokenizer(kind), {}
    texts = {s: [] for s in SPLITS}
    for _, content in tar_files(name, lambda name: name.endswith('.txt'), file=lzma.open(io.BytesIO(packed))):
        text = re.sub('\n\n\n+', '\n\n', content.decode('utf-8-sig', errors='replace')).strip()
        texts['val' if held_out(text, val_share) else 'train'].append(text)
    for s, held in texts.items():
        tokens = [token for text in held for token in (*tokenizer.encode(text), tokenizer.beginning)]
        found[s] = np.array(tokens, np.uint16), len(held), sum(len(text.encode()) for text in held)
    return found


@dataset(__name__, 'data/openwebtext', local('a folder with the archives, instead of the download'),
         number('--subsets', 'how many, from the first', SUBSETS, 1, SUBSETS),
         choice('--tokenizer', 'bytes end with a new line', 'gpt2', 'bytes'),
         number('--val', 'share of documents held out', 0.0005, 1e-4, 0.5),
         number('--workers', 'processes that tokenize', cores(), 0, 999),
         option('--url', 'where the archives are', default=URL))
def main(args):
    tokenizer = Tokenizer(args.tokenizer)  # fails before the download if there is no tokenizer
    with new_folder(args.out, PROGRESS) as folder:
        # progress.json has the counts after the last complete subset; what was appended later is cut off
        progress, begun = folder / PROGRESS, f'--val {args.val} --tokenizer {args.tokenizer}'
        state = {'begun': begun, 'done': 0} | {s: [0, 0, 0] for s in SPLITS}  # of a split: tokens, documents, bytes
        if progress.exists():
            state = json.loads(progress.read_text(encoding='utf-8'))
        if state['begun'] != begun or state['done'] > args.subsets:
            raise Mistake(f'{folder} has {state["done"]} subsets of {state["begun"]}; pass these, or remove it')
        files = {s: Growing(folder / f'{s}.npy', np.uint16, state[s][0]) for s in SPLITS}
        while state['done'] < args.subsets:
            name, before = f'urlsf_subset{state["done"]:02}.tar', state['train'][0]
            archive = local_or_fetch(args, f'{args.url}/{name}', name=f'openwebtext/{name}')
            jobs = (((f'{archive}: {file}', packed, args.tokenizer, args.val),) for file, packed in
                    tar_files(archive, lambda file: file.endswith('_data.xz')))
            for _, found in tqdm(in_order(tokenize, jobs, args.workers), name, disable=None, unit=' files'):
                for s, (tokens, documents, size) in found.items():
                    files[s].append(tokens)
                    state[s] = np.add(state[s], (len(tokens), documents, size)).tolist()
            if before == state['train'][0]:
                raise Mistake(f'{archive} holds no *_data.xz with .txt files; get it again')
            state['done'] += 1
            for file in files.values():  # the counts are written once the tokens are on the disk
                file.file.flush()
                os.fsync(file.file)
            progress.with_suffix('.new').write_text(json.dumps(state), encoding='utf-8')
            os.replace(progress.with_suffix('.new'), progress)
            if args.source is None:
                archive.unlink()
        for file in files.values():
            file.close()
        write_text_meta(folder, tokenizer, {
            s: {'tokens': state[s][0], 'dtype': 'uint16', 'bytes': state[s][2]} for s in SPLITS})
        progress.unlink()
    for s in SPLITS:
        print('{}/{}.npy: {:,} tokens of {:,} documents, {:,} bytes'.format(args.out, s, *state[s]))
