"""prepare/openwebtext.py on archives in the true nested layout, from a folder and from a bad
server."""
import itertools
import os
import re
import subprocess
import sys

import numpy as np
import pytest
from helpers import ROOT, fails, snapshot
from small_files import document, subset, tree

from lib.files import Growing
from prepare import openwebtext
from tasks import files as data
from tasks.tokenizer import Tokenizer

BYTES = '--tokenizer', 'bytes', '--val', '0.1'


@pytest.fixture(scope='module')
def archives(tmp_path_factory):
    files = {f'urlsf_subset{i:02}.tar': subset(i) for i in range(3)}
    return tree(tmp_path_factory.mktemp('owt'), files)


@pytest.fixture(scope='module')
def whole(archives, tmp_path_factory):
    """The folder of three subsets, prepared by two workers."""
    out = tmp_path_factory.mktemp('whole') / 'owt'
    prepare('--from', archives, '--subsets', 3, '--workers', 2, '--out', out)
    return out


def prepare(*words):
    openwebtext.main([*BYTES, '--workers', '0', *map(str, words)])


def cleaned(content):
    return re.sub('\n\n\n+', '\n\n', content.decode('utf-8', 'replace')).strip()


def texts(subsets):
    """{split: its documents, cleaned}"""
    splits = {'train': [], 'val': []}
    for number, pack, i in itertools.product(range(subsets), range(3), range(20)):
        text = cleaned(document(number, pack, i))
        splits['val' if openwebtext.held_out(text, 0.1) else 'train'].append(text)
    return splits


def test_every_document_is_there_once_and_the_counts_are_exact(archives, whole, tmp_path, capsys):
    """Whatever the number of workers."""
    prepare('--from', archives, '--subsets', 3, '--out', tmp_path / 'owt')
    meta = data.read_meta(tmp_path / 'owt')
    out = capsys.readouterr().out
    splits = texts(3)
    for split, documents in splits.items():
        tokens = np.load(tmp_path / 'owt' / f'{split}.npy')
        size = sum(len(text.encode()) for text in documents)
        assert bytes(tokens.tolist()) == b''.join(text.encode() + b'\n' for text in documents)
        assert meta['splits'][split] == {'tokens': len(tokens), 'dtype': 'uint16', 'bytes': size}
        assert f'{len(tokens):,} tokens of {size:,} bytes' in out
    assert 2 < len(splits['val']) < len(splits['train']) / 3
    assert [path.name for path in tmp_path.glob('owt*')] == ['owt']
    assert snapshot(tmp_path / 'owt') == snapshot(whole)


@pytest.mark.skipif('TIKTOKEN_CACHE_DIR' not in os.environ,
                    reason='set TIKTOKEN_CACHE_DIR to a folder that has the tokenizer')
def test_tokens_are_gpt2s_with_an_end_after_each_document(archives, tmp_path):
    prepare('--tokenizer', 'gpt2', '--from', archives, '--subsets', 1, '--out', tmp_path / 'owt')
    text = Tokenizer('gpt2').decode(np.load(tmp_path / 'owt' / 'train.npy').tolist())
    assert text.split('<|endoftext|>') == [*texts(1)['train'], '']


def test_the_choice_for_validation_is_fixed_random_and_of_the_text_alone():
    chosen = [i for i in range(20000) if openwebtext.held_out(f'document {i}', 0.01)]
    assert 150 < len(chosen) < 250 and chosen[:3] == [64, 231, 282]
    assert all(openwebtext.held_out(f'document {i}', 0.05) for i in chosen)


def test_killed_outright_it_goes_on(archives, whole, tmp_path):
    """In the second subset; the first is not read again."""
    stuck = ('import os, sys, time; sys.path.insert(0, sys.argv.pop(1))\n'
             'from prepare import openwebtext as o; f = o.tokenize; calls = []\n'
             'def g(*a, **k):\n'
             '    calls.append(a)\n'  # each subset has three files
             '    if len(calls) == 5:\n'
             '        print("stuck", flush=True)\n'
             '        time.sleep(100)\n'
             '    return f(*a, **k)\n'
             'o.tokenize = g; o.main()')
    words = [*BYTES, '--workers', '0', '--subsets', '3', '--out', str(tmp_path / 'owt'), '--from']
    child = subprocess.Popen([sys.executable, '-c', stuck, str(ROOT), *words, str(archives)],
                             stdout=subprocess.PIPE)
    assert b'stuck' in child.stdout.readline()
    child.kill()
    child.communicate()
    assert not (tmp_path / 'owt').exists()
    later = snapshot(archives)
    del later['urlsf_subset00.tar']
    openwebtext.main([*words, str(tree(tmp_path / 'in', later))])
    assert snapshot(tmp_path / 'owt') == snapshot(whole)


def test_what_was_written_after_the_counts_is_cut_off(tmp_path):
    for keep, more in (0, [1, 2, 3]), (1, [9]):
        file = Growing(tmp_path / 'x.npy', np.uint16, keep)
        file.append(more)
        file.close()
    assert np.load(tmp_path / 'x.npy').tolist() == [1, 9]


def test_a_damaged_subset_does_not_cost_those_before_it(archives, whole, tmp_path, capsys):
    """It goes on with the same --val and at least as many --subsets alone."""
    good = snapshot(archives)
    words = '--from', tree(tmp_path / 'in', good), '--out', tmp_path / 'owt', '--subsets'
    for content in good['urlsf_subset02.tar'][:4000], b'':
        tree(tmp_path / 'in', {'urlsf_subset02.tar': content})
        assert 'urlsf_subset02.tar' in fails(capsys, lambda *_: prepare(*words, 3))
    for other in ['1'], ['3', '--val', '0.2']:
        assert '--tokenizer bytes --val 0.1' in fails(capsys, lambda *_: prepare(*words, *other))
    tree(tmp_path / 'in', good)
    prepare(*words, 3)
    assert snapshot(tmp_path / 'owt') == snapshot(whole)


def test_a_bad_network_changes_nothing(serve, archives, tmp_path):
    """The archive is kept until its subset is whole."""
    server = serve((archives / 'urlsf_subset00.tar').read_bytes(), ['drop', 'fine'])
    prepare('--url', server.url.rpartition('/')[0], '--subsets', 1, '--out', tmp_path / 'served')
    prepare('--from', archives, '--subsets', 1, '--out', tmp_path / 'local')
    assert snapshot(tmp_path / 'served') == snapshot(tmp_path / 'local')
    assert not list((tmp_path / 'downloads' / 'openwebtext').glob('*.tar'))
