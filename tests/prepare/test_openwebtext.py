"""prepare/openwebtext.py on archives in the true nested layout, from a folder and from a bad server."""
import json
import lzma
import os
import re
import subprocess
import sys
import threading
import time
from http.server import HTTPServer

import numpy as np
import pytest
from helpers import ROOT, fails, run
from downloads import Flaky, tar

from tasks import files as data
from tasks.text import TextSplit
from tasks.tokenizer import Tokenizer
from prepare import openwebtext

BYTES = '--tokenizer', 'bytes', '--val', '0.1'


def document(subset, pack, i):
    """A document whose text says where it is from; some need cleaning, some are not UTF-8."""
    text = f'  Document {subset}-{pack}-{i}.\n\n\n\nnaïve words ' + 'words ' * (i % 7) + '\n'
    return text.encode() + b'\xff\xfe' * (i % 10 == 3)


def subset(number, packs=3, documents=20):
    """urlsf_subsetNN.tar: xz-compressed tars of documents, and a file that is none."""
    files = {'openwebtext/README': b'not a pack of documents'}
    for k in range(packs):
        inner = {f'{k:04}-{i:08x}.txt': document(number, k, i) for i in range(documents)}
        inner['notes.md'] = b'not a document'
        files[f'openwebtext/urlsf_subset{number:02}-{k}_data.xz'] = tar(inner, 'xz')
    return tar(files)


def cleaned(content):
    return re.sub('\n\n\n+', '\n\n', content.decode('utf-8', 'replace')).strip()


@pytest.fixture(scope='module')
def archives(tmp_path_factory):
    folder = tmp_path_factory.mktemp('owt')
    for number in range(3):
        (folder / f'urlsf_subset{number:02}.tar').write_bytes(subset(number))
    return folder


def prepare(*words):
    openwebtext.main([*BYTES, '--workers', '0', *map(str, words)])


def written(out):
    return {split: np.load(out / f'{split}.npy') for split in ('train', 'val')}


def test_every_document_is_there_once_and_the_counts_are_exact(archives, tmp_path, capsys):
    prepare('--from', archives, '--subsets', 2, '--out', tmp_path / 'owt')
    texts = [cleaned(document(number, k, i)) for number in range(2) for k in range(3) for i in range(20)]
    want = {split: b''.join(t.encode() + b'\n' for t in texts if openwebtext.held_out(t, 0.1) == (split == 'val'))
            for split in ('train', 'val')}
    meta, out = data.read_meta(tmp_path / 'owt'), capsys.readouterr().out
    for split, tokens in written(tmp_path / 'owt').items():
        assert tokens.tobytes() == np.frombuffer(want[split], np.uint8).astype(np.uint16).tobytes()
        documents = sum(openwebtext.held_out(t, 0.1) == (split == 'val') for t in texts)
        size = sum(len(t.encode()) for t in texts if openwebtext.held_out(t, 0.1) == (split == 'val'))
        assert meta['splits'][split] == {'tokens': len(tokens), 'dtype': 'uint16', 'bytes': size}
        assert f'{split}.npy: {len(tokens):,} tokens of {documents:,} documents, {size:,} bytes' in out
    assert '24 places that are not UTF-8 were replaced' in out  # two bytes in each of 12 documents
    assert 2 < len(want['val']) < len(want['train']) / 3
    assert not list(tmp_path.glob('owt.*'))
    assert {p.name for p in (tmp_path / 'owt').iterdir()} == {'train.npy', 'val.npy', 'meta.json'}
    x, y = next(TextSplit(tmp_path / 'owt', 'train', 16).batches(2, 0, [slice(0, 2)], 0, 1))
    assert x.shape == (2, 16) and (x[:, 1:] == y[:, :-1]).all()


@pytest.mark.slow
def test_any_number_of_workers_writes_the_same(archives, tmp_path):
    prepare('--from', archives, '--subsets', 1, '--out', tmp_path / 'here')
    for workers in (1, 2):
        words = '--subsets', '1', '--from', archives, '--workers', workers, '--out', tmp_path / str(workers)
        done = run('prepare/openwebtext.py', *BYTES, *map(str, words))
        assert done.returncode == 0, done.stderr
        for name in ('train.npy', 'val.npy', 'meta.json'):
            assert (tmp_path / 'here' / name).read_bytes() == (tmp_path / str(workers) / name).read_bytes()


def test_tokens_are_gpt2s_with_an_end_after_each_document(archives, tmp_path, monkeypatch):
    """With a tokenizer in the place of GPT-2's, which needs a download."""
    class Words:
        spec, vocab_size, beginning = {'name': 'gpt2'}, 50257, 50256

        def encode(self, text):
            return [len(word) for word in text.split(' ')]
    monkeypatch.setattr(openwebtext, 'tokenizer', lambda name: Words())
    prepare('--tokenizer', 'gpt2', '--from', archives, '--subsets', 1, '--out', tmp_path / 'owt')
    both = written(tmp_path / 'owt')
    texts = [cleaned(document(0, k, i)) for k in range(3) for i in range(20)]
    train = [t for t in texts if not openwebtext.held_out(t, 0.1)]
    assert both['train'].tolist() == [n for t in train for n in (*Words().encode(t), 50256)]
    assert (both['val'] == 50256).sum() == sum(openwebtext.held_out(t, 0.1) for t in texts)


def test_the_choice_for_validation_is_fixed_random_and_of_the_text_alone():
    texts = [f'document {i}' for i in range(20000)]
    chosen = [t for t in texts if openwebtext.held_out(t, 0.01)]
    assert 150 < len(chosen) < 250 and chosen == [t for t in texts if openwebtext.held_out(t, 0.01)]
    assert set(chosen) <= {t for t in texts if openwebtext.held_out(t, 0.05)}


@pytest.mark.parametrize('when', ['second pack', 'second subset', 'its end'])
def test_killed_and_run_again_nothing_is_lost_or_doubled(when, archives, tmp_path, monkeypatch):
    prepare('--from', archives, '--out', tmp_path / 'whole', '--subsets', 3)
    calls, tokenize, save = [], openwebtext.tokenize, openwebtext.save

    def killed_in(job):
        calls.append(job[0])
        if len(calls) == {'second pack': 2, 'second subset': 5}.get(when):
            raise KeyboardInterrupt
        return tokenize(job)

    def killed_before(state, files, path):
        if when == 'its end' and len(state['done']) == 2:
            files['train'].file.flush()
            raise KeyboardInterrupt
        save(state, files, path)
    monkeypatch.setattr(openwebtext, 'tokenize', killed_in)
    monkeypatch.setattr(openwebtext, 'save', killed_before)
    with pytest.raises(KeyboardInterrupt):
        prepare('--from', archives, '--out', tmp_path / 'owt', '--subsets', 3)
    assert not (tmp_path / 'owt').exists()
    assert (tmp_path / 'owt.unfinished').exists() == (when != 'second pack')  # no subset was complete
    monkeypatch.setattr(openwebtext, 'save', save)
    when, before = 'never', len(calls)
    prepare('--from', archives, '--out', tmp_path / 'owt', '--subsets', 3)
    assert len(calls) - before == 9 - 3 * (before > 3)  # whole subsets are not read again
    for name in ('train.npy', 'val.npy', 'meta.json'):
        assert (tmp_path / 'owt' / name).read_bytes() == (tmp_path / 'whole' / name).read_bytes()


def test_killed_outright_it_goes_on(archives, tmp_path):
    prepare('--from', archives, '--out', tmp_path / 'whole', '--subsets', 2)
    stuck = ('import os, sys, time; sys.path.insert(0, sys.argv.pop(1))\n'
             'from prepare import openwebtext as o; f = o.tokenize\n'
             'def g(job): time.sleep(100 * os.path.exists(sys.argv[-1] + ".unfinished/progress.json")); return f(job)\n'
             'o.tokenize = g; o.main()')  # in the second subset
    words = [*BYTES, '--subsets', '2', '--from', str(archives), '--workers', '0', '--out', str(tmp_path / 'owt')]
    child = subprocess.Popen([sys.executable, '-c', stuck, str(ROOT), *words], stderr=subprocess.DEVNULL)
    progress, start = tmp_path / 'owt.unfinished' / 'progress.json', time.time()
    while not progress.exists() and time.time() - start < 60:
        time.sleep(0.02)
    time.sleep(0.4)
    child.kill()
    child.wait()
    assert json.loads(progress.read_text())['done'] == ['urlsf_subset00'] and not (tmp_path / 'owt').exists()
    prepare('--from', archives, '--out', tmp_path / 'owt', '--subsets', 2)
    for name in ('train.npy', 'val.npy', 'meta.json'):
        assert (tmp_path / 'owt' / name).read_bytes() == (tmp_path / 'whole' / name).read_bytes()


def test_more_subsets_can_follow_before_it_is_whole(archives, tmp_path, capsys):
    """A damaged second subset does not cost the first."""
    folder = tmp_path / 'from'
    folder.mkdir()
    for i in range(2):
        whole = (archives / f'urlsf_subset0{i}.tar').read_bytes()
        (folder / f'urlsf_subset0{i}.tar').write_bytes(whole[:None if i == 0 else 4000])
    words = '--from', folder, '--out', tmp_path / 'owt', '--subsets', 2
    told = fails(capsys, lambda _: prepare(*words))
    assert 'urlsf_subset01.tar is damaged, cut off' in told
    (folder / 'urlsf_subset01.tar').write_bytes(whole)
    prepare(*words)
    prepare('--from', archives, '--out', tmp_path / 'whole', '--subsets', 2)
    assert (tmp_path / 'owt' / 'train.npy').read_bytes() == (tmp_path / 'whole' / 'train.npy').read_bytes()


@pytest.mark.parametrize('name, content, message', [
    ('empty', b'', 'damaged, cut off or no tar'), ('page', b'<html>' * 1000, 'damaged, cut off or no tar'),
    ('no packs', tar({'openwebtext/a.txt': b'x'}), 'holds no *_data.xz'),
    ('cut pack', tar({'openwebtext/a_data.xz': tar({'a.txt': b'x' * 50000}, 'xz')[:-40]}), 'a_data.xz is damaged'),
    ('no xz', tar({'openwebtext/a_data.xz': b'hello' * 100}), 'a_data.xz is damaged'),
    ('no tar', tar({'openwebtext/a_data.xz': lzma.compress(b'hello' * 100)}), 'a_data.xz is damaged')])
def test_damaged_archives_are_refused_by_name(name, content, message, tmp_path, capsys):
    (tmp_path / 'urlsf_subset00.tar').write_bytes(content)
    told = fails(capsys, lambda _: prepare('--from', tmp_path, '--subsets', 1, '--out', tmp_path / 'owt'))
    assert message in told and 'urlsf_subset00.tar' in told and not (tmp_path / 'owt').exists()


def test_mistakes_get_one_line(archives, tmp_path, monkeypatch, capsys):
    def told(*words):
        return fails(capsys, lambda _: prepare(*words))
    assert 'no such file' in told('--from', tmp_path, '--out', tmp_path / 'owt')
    for option, value in (('--subsets', 0), ('--subsets', 22), ('--val', 0), ('--val', 1)):
        assert f'{option}: ' in told('--from', archives, '--out', tmp_path / 'owt', option, value)
    assert 'too little text' in told('--from', archives, '--out', tmp_path / 'few', '--subsets', 1, '--val', 1e-9)
    prepare('--from', archives, '--subsets', 1, '--out', tmp_path / 'owt')
    assert 'exists' in told('--from', archives, '--subsets', 1, '--out', tmp_path / 'owt')
    monkeypatch.setattr(openwebtext, 'write_text_meta', lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        prepare('--from', archives, '--subsets', 2, '--out', tmp_path / 'half')
    words = '--from', archives, '--subsets', 2, '--val', 0.2, '--out', tmp_path / 'half'
    assert 'was begun with --val 0.1' in told(*words)
    assert 'has 2 subsets' in told('--from', archives, '--subsets', 1, '--out', tmp_path / 'half')


@pytest.mark.parametrize('plan', [['fine'], ['drop', 'error', 'drop', 'fine'], ['drop', 'no ranges', 'fine']])
def test_a_bad_network_changes_nothing(plan, archives, tmp_path):
    """A server that answers 503, closes half-way and knows no ranges; the archive is kept until its subset is whole."""
    httpd = HTTPServer(('127.0.0.1', 0), Flaky)
    httpd.state = {'content': (archives / 'urlsf_subset00.tar').read_bytes(), 'plan': list(plan), 'resumed': 0}
    threading.Thread(target=httpd.serve_forever, daemon=True).start()
    try:
        prepare('--url', f'http://127.0.0.1:{httpd.server_port}', '--subsets', 1, '--out', tmp_path / 'owt')
    finally:
        httpd.shutdown()
    prepare('--from', archives, '--subsets', 1, '--out', tmp_path / 'whole')
    assert (tmp_path / 'owt' / 'train.npy').read_bytes() == (tmp_path / 'whole' / 'train.npy').read_bytes()
    assert not list((tmp_path / 'downloads' / 'openwebtext').glob('*.tar'))


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith('linux'), reason='reads the peak of memory from /proc')
def test_memory_is_bounded_while_the_archive_grows_tenfold(tmp_path):
    peaks = []
    for packs in (6, 60):
        (tmp_path / str(packs)).mkdir()
        rng = np.random.default_rng(0)
        one = tar({f'{i}.txt': bytes(rng.integers(97, 123, 100_000, np.uint8)) for i in range(5)}, 'xz')  # 0.5 MB
        whole = tar({f'openwebtext/{k}_data.xz': one for k in range(packs)})
        (tmp_path / str(packs) / 'urlsf_subset00.tar').write_bytes(whole)
        code = ('import re, sys; sys.path.insert(0, sys.argv.pop(1))\n'
                'from prepare import openwebtext as o; o.main()\n'
                'print("peak", re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1])')
        words = ['--tokenizer', 'bytes', '--val', '0.5', '--subsets', '1', '--workers', '0',
                 '--from', str(tmp_path / str(packs)), '--out', str(tmp_path / f'out{packs}')]
        done = subprocess.run([sys.executable, '-c', code, str(ROOT), *words], capture_output=True, text=True,
                              timeout=200)
        assert 'peak' in done.stdout, done.stderr
        peaks.append(int(done.stdout.split('peak')[1]) / 1024)
    assert peaks[1] < peaks[0] + 12, peaks  # MB; the tokens alone of the larger are 60 MB


def test_real_gpt2_tokens_if_the_tokenizer_is_at_hand(archives, tmp_path):
    if not os.environ.get('TIKTOKEN_CACHE_DIR'):
        pytest.skip('needs the tokenizer: set TIKTOKEN_CACHE_DIR to a folder that has it')
    prepare('--tokenizer', 'gpt2', '--from', archives, '--subsets', 1, '--out', tmp_path / 'owt')
    text = Tokenizer('gpt2').decode(written(tmp_path / 'owt')['train'].tolist())
    want = [t for k in range(3) for i in range(20) if not openwebtext.held_out(t := cleaned(document(0, k, i)), 0.1)]
    assert text.split('<|endoftext|>') == [*want, '']
