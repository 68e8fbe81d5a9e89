"""prepare/lib/download.py against a server that fails as real ones do."""
import hashlib
import threading
from argparse import Namespace
from http.server import HTTPServer

import numpy as np
import pytest
from downloads import Flaky

from prepare.lib import download


def test_checksums_are_md5_or_sha256_by_their_length(tmp_path):
    tmp_path = tmp_path / 'downloads'
    tmp_path.mkdir()
    (tmp_path / 'f').write_bytes(b'content')
    for kind in ('md5', 'sha256'):
        right = hashlib.new(kind, b'content').hexdigest()
        given, kept = Namespace(source=tmp_path, out='d'), Namespace(source=None, out=f'{tmp_path.parent}/d')
        assert download.local_or_fetch(given, 'http://x/f', right) == tmp_path / 'f'
        for args in given, kept:  # also one that was downloaded
            with pytest.raises(ValueError, match=f'f is not the published file .its {kind} is not'):
                download.local_or_fetch(args, 'http://x/f', right[::-1])


@pytest.fixture
def server():
    httpd = HTTPServer(('127.0.0.1', 0), Flaky)
    httpd.state = {'content': np.random.default_rng(0).bytes(3_000_000), 'plan': ['fine'], 'resumed': 0}
    httpd.url = f'http://127.0.0.1:{httpd.server_port}/file'
    threading.Thread(target=httpd.serve_forever, daemon=True).start()
    yield httpd
    httpd.shutdown()


@pytest.mark.parametrize('plan', [['fine'], ['drop', 'busy', 'drop', 'fine'], ['drop', 'no ranges'],
                                  ['busy', 'busy', 'fine'], ['trickle'], ['stall', 'fine'], ['moved', 'fine'],
                                  ['drop', 'elsewhere', 'fine'], ['longer', 'fine'], ['odd'],
                                  ['drop', 'moved', 'trickle']], ids=' then '.join)
def test_downloads_survive_a_bad_network(server, tmp_path, plan, monkeypatch):
    monkeypatch.setattr(download, 'PATIENCE', 0.5 if 'stall' in plan else 30)
    server.state['plan'] = list(plan)
    path = download.fetch(server.url, tmp_path / 'sub' / 'f', hashlib.sha256(server.state['content']).hexdigest())
    assert path.read_bytes() == server.state['content']
    cut = {'drop', 'stall', 'longer'} & {*plan}
    assert (server.state['resumed'] > 0) == (bool(cut) and 'no ranges' not in plan)
    assert [p.name for p in path.parent.iterdir()] == ['f']


def test_a_complete_part_is_not_fetched_again(server, tmp_path):
    (tmp_path / 'f.part').write_bytes(server.state['content'])
    assert download.fetch(server.url, tmp_path / 'f').read_bytes() == server.state['content']


def test_a_part_of_another_file_is_not_continued(server, tmp_path):
    """The file changes on the server between two attempts; without a checksum, its ETag tells."""
    server.state['plan'], server.state['etag'] = ['drop', 'gone'], '"1"'
    with pytest.raises(ValueError, match='404'):
        download.fetch(server.url, tmp_path / 'f')
    assert 0 < (tmp_path / 'f.part').stat().st_size < 1_000_001
    new = np.random.default_rng(1).bytes(3_000_000)
    server.state |= {'plan': ['fine'], 'etag': '"2"', 'content': new, 'resumed': 0}
    assert download.fetch(server.url, tmp_path / 'f').read_bytes() == new and not server.state['resumed']
    assert [p.name for p in tmp_path.iterdir()] == ['f']


def test_the_checksum_that_a_server_publishes_is_compared(server, tmp_path):
    """As Hugging Face does, in its answer or in the one that leads to the file."""
    for plan in (['fine'], ['moved', 'fine']):
        server.state |= {'plan': plan, 'published': hashlib.sha256(server.state['content']).hexdigest()}
        assert download.fetch(server.url, tmp_path / 'f').read_bytes() == server.state['content']
        (tmp_path / 'f').unlink()
        server.state |= {'plan': plan, 'published': '0' * 64}
        with pytest.raises(ValueError, match='damaged'):
            download.fetch(server.url, tmp_path / 'f')
        assert not list(tmp_path.iterdir())


@pytest.mark.parametrize('checksum', [None, '0' * 64])
def test_the_page_of_a_login_is_not_kept(checksum, server, tmp_path):
    server.state['content'] = b' <!doctype html><title>Log in</title>' * 99
    with pytest.raises(ValueError, match='damaged' if checksum else 'a web page, perhaps that of a login'):
        download.fetch(server.url, tmp_path / 'f', checksum)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize('plan, checksum, message', [
    (['gone'], None, '404'), (['busy'], None, 'failed 3 times'), (['fine'], '0' * 64, 'damaged'),
    (['lost'], None, r'failed 3 times \(TooManyRedirects'), (['longer'], None, 'failed 3 times')])
def test_failed_downloads_leave_nothing_that_looks_whole(server, tmp_path, plan, checksum, message):
    server.state['plan'] = plan
    with pytest.raises(ValueError, match=message):
        download.fetch(server.url, tmp_path / 'f', checksum, tries=3)
    assert not (tmp_path / 'f').exists()


def test_without_a_server(tmp_path):
    with pytest.raises(ValueError, match=r'failed 2 times \(ConnectionError\); run this again to continue'):
        download.fetch('http://127.0.0.1:9/file', tmp_path / 'f', tries=2)
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_written_is_named(server, tmp_path):
    (tmp_path / 'file').touch()
    with pytest.raises(ValueError, match='f.part cannot be written .*make room'):
        download.fetch(server.url, tmp_path / 'file' / 'f')
