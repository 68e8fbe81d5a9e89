"""prepare/openwebtext.py on archives in the true nested layout, from a folder and from a bad server."""
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
    return tree(tmp_path_factory.mktemp('owt'), {f'urlsf_subset{i:02}.tar': subset(i) for i in range(3)})


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
    found = {'train': [], 'val': []}
    for text in (cleaned(document(s, k, i)) for s in range(subsets) for k in range(3) for i in range(20)):
        found['val' if openwebtext.held_out(text, 0.1) else 'train'].append(text)
    return found


def test_every_document_is_there_once_and_the_counts_are_exact(archives, whole, tmp_path, capsys):
    """Whatever the number of workers."""
    prepare('--from', archives, '--subsets', 3, '--out', tmp_path / 'owt')
    meta, out, documents = data.read_meta(tmp_path / 'owt'), capsys.readouterr().out, texts(3)
    for split, held in documents.items():
        tokens, size = np.load(tmp_path / 'owt' / f'{split}.npy'), sum(len(t.encode()) for t in held)
        assert bytes(tokens.tolist()) == b''.join(t.encode() + b'\n' for t in held)
        assert meta['splits'][split] == {'tokens': len(tokens), 'dtype': 'uint16', 'bytes': size}
        assert f'{len(tokens):,} tokens of {size:,} bytes' in out
    assert 2 < len(documents['val']) < len(documents['train']) / 3
    assert [p.name for p in tmp_path.glob('owt*')] == ['owt'] and snapshot(tmp_path / 'owt') == snapshot(whole)


def test_tokens_are_gpt2s_with_an_end_after_each_document(archives, tmp_path):
    if not os.environ.get('TIKTOKEN_CACHE_DIR'):
        pytest.skip('needs the tokenizer: set TIKTOKEN_CACHE_DIR to a folder that has it')
    prepare('--tokenizer', 'gpt2', '--from', archives, '--subsets', 1, '--out', tmp_path / 'owt')
    text = Tokenizer('gpt2').decode(np.load(tmp_path / 'owt' / 'train.npy').tolist())
    assert text.split('<|endoftext|>') == [*texts(1)['train'], '']


def test_the_choice_for_validation_is_fixed_random_and_of_the_text_alone():
    chosen = [[i for i in range(20000) if openwebtext.held_out(f'document {i}', share)] for share in (0.01, 0.05)]
    assert 150 < len(chosen[0]) < 250 and {*chosen[0]} < {*chosen[1]} and chosen[0][:3] == [64, 231, 282]


def test_killed_outright_it_goes_on(archives, whole, tmp_path):
    """In the second subset; the first is not read again."""
    stuck = ('import os, sys, time; sys.path.insert(0, sys.argv.pop(1))\n'
             'from prepare import openwebtext as o; f = o.tokenize; calls = []\n'
             'def g(*a, **k):\n'
             '    calls.append(a)\n'  # each subset has three files
             '    return print("stuck", flush=True) or time.sleep(100) if len(calls) == 5 else f(*a, **k)\n'
             'o.tokenize = g; o.main()')
    words = [*BYTES, '--workers', '0', '--subsets', '3', '--out', str(tmp_path / 'owt'), '--from']
    child = subprocess.Popen([sys.executable, '-c', stuck, str(ROOT), *words, str(archives)], stdout=subprocess.PIPE)
    assert b'stuck' in child.stdout.readline()
    child.kill()
    child.communicate()
    assert not (tmp_path / 'owt').exists()
    later = {f'urlsf_subset0{i}.tar': (archives / f'urlsf_subset0{i}.tar').read_bytes() for i in (1, 2)}
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
    good = {path.name: path.read_bytes() for path in archives.iterdir()}
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
    server = serve((archives / 'urlsf_subset00.tar').read_bytes(), ['drop', 'busy', 'drop', 'fine'])
    for i, source in enumerate((['--url', server.url.rpartition('/')[0]], ['--from', archives])):
        prepare(*source, '--subsets', 1, '--out', tmp_path / f'{i}')
    assert snapshot(tmp_path / '0') == snapshot(tmp_path / '1')
    assert not list((tmp_path / 'downloads' / 'openwebtext').glob('*.tar'))
