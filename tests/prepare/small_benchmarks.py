"""Small benchmarks in the formats of the published ones, prepared, and scored token by token."""
import io
import json
import os
import zipfile

import pytest
import torch
from downloads import tar
from small_files import tree

from lib import inputs
from prepare import cbt, lambada, ptb, wikitext
from scoring import benchmarks

WIKI = (' \n = Robert <unk> = \n \n He had a guest @-@ starring role in 1 @,@ 000 episodes of'
        ' " The <unk> " , naïve ones . \n')
PTB = " no it was n't black monday \n but while the <unk> stock exchange did n't fall apart \n"
PASSAGES = ['the cat sat on the mat and the dog sat on the rug',
            '"Well," said\nthe naïve cat. "Who is the dog?" said the cat']


def question(sentences, asked, answer, choices):
    """As in cbtest_.._2500ex.txt."""
    lines = [f'{i} {s}' for i, s in enumerate(sentences, 1)]
    last_line = f'{len(lines) + 1} {asked}\t{answer}\t\t{"|".join(choices)}'
    return '\n'.join([*lines, last_line]) + '\n\n'


SENTENCES = [f'the dog saw the cat , number {i} , and ran .' for i in range(20)]
CN = (question(SENTENCES, "`` Where is the XXXXX ? '' said the king .", 'cat',
               ['bee', 'cat', 'dog', 'egg'])
      + question(SENTENCES[::-1], 'XXXXX sat on the rug .', 'ant', ['ant', 'bee', 'cat']))
NE = question(SENTENCES, 'and XXXXX was happy .', 'Jack', ['Alice', 'Jack', 'Bo'])
CBT = {'cbtest_CN_test_2500ex.txt': CN, 'cbtest_NE_test_2500ex.txt': NE}


def zipped(files):
    out = io.BytesIO()
    with zipfile.ZipFile(out, 'w', zipfile.ZIP_DEFLATED) as z:
        for name, content in files.items():
            z.writestr(name, content)
    return out.getvalue()


def write_archives(folder):
    """The archives as they are published, only smaller. Returns the folder."""
    raw = WIKI.replace('<unk>', 'Boulter')
    passages = ''.join(json.dumps({'text': passage}) + '\n' for passage in PASSAGES)
    books = {f'CBTest/data/{name}': text.encode() for name, text in CBT.items()}
    return tree(folder, {
        'wikitext-2-v1.zip': zipped({'wikitext-2/wiki.train.tokens': 'x',
                                     'wikitext-2/wiki.test.tokens': WIKI}),
        'wikitext-2-raw-v1.zip': zipped({'wikitext-2-raw/wiki.test.raw': raw}),
        'ptb.test.txt': PTB.encode(),
        'lambada_test.jsonl': passages.encode(),
        'CBTest.tgz': tar({'CBTest/x.txt': os.urandom(300_000)} | books, 'gz')})


def prepare(archives, out):
    """All six benchmarks from these archives, which are not the published ones. Returns the
    data_dir."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inputs, 'has_checksum', lambda path, checksum: True)
        wikitext.main(['--from', f'{archives}', '--out', f'{out}/wikitext2'])
        wikitext.main(['--size', '103', '--from', f'{archives}', '--raw',
                       '--out', f'{out}/wikitext103'])
        for script in ptb, lambada, cbt:
            name = script.__name__.removeprefix('prepare.')
            script.main(['--from', f'{archives}', '--out', f'{out}/{name}'])
    return out


def rows(folder, name):
    return benchmarks.read(name, folder)[name][0]


def naive(model, tokens, first, stride):
    """What the protocol says, token by token: (nats, whether it was the most likely one). No token
    is so nearly a tie that rounding could decide."""
    B = model.config.block_size
    n = len(tokens) - 1
    nats = []
    right = []
    for i in range(first, n + 1):
        if n - first + 1 <= B:
            end = n
        else:
            end = max(B, first - 1 + stride)
            while end < i:
                end += stride
            end = min(end, n)
        logits = model(torch.tensor([tokens[max(0, end - B):i]]))[0][0, -1]
        first_two = logits.topk(2).values
        assert first_two[0] - first_two[1] > 1e-5
        nats.append(-logits.double().log_softmax(0)[tokens[i]].item())
        right.append(logits.argmax().item() == tokens[i])
    return nats, right
