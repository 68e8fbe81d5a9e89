"""prepare/lib/inputs.py against a server that fails as real ones do."""
import hashlib
from argparse import Namespace

import numpy as np
import pytest

from engine.mistakes import Mistake
from lib import inputs
from prepare import cbt, crate_alpha_weights

CONTENT, OTHER = (np.random.default_rng(seed).bytes(3_000_000) for seed in (0, 1))
SHA = hashlib.sha256(CONTENT).hexdigest()


@pytest.mark.parametrize('kind', ['md5', 'sha256'])
def test_checksums_are_md5_or_sha256_by_their_length(kind, tmp_path):
    path = tmp_path / 'downloads' / 'f'
    path.parent.mkdir()
    path.write_bytes(b'content')
    right = hashlib.new(kind, b'content').hexdigest()
    for source in path.parent, path, None:  # given, or downloaded before
        args = Namespace(source=source, out=f'{tmp_path}/d')
        assert inputs.local_or_fetch(args, 'http://x/f', right) == path
        with pytest.raises(ValueError, match=f'{path} .*{right[::-1]}'):
            inputs.local_or_fetch(args, 'http://x/f', right[::-1])
    with pytest.raises(ValueError, match='nowhere'):
        inputs.local_or_fetch(Namespace(source='nowhere', out='d'), 'http://x/f')


@pytest.mark.slow
@pytest.mark.parametrize('plan', [
    ['drop', 'busy', 'drop', 'fine'], ['drop', 'no ranges'], ['stall', 'fine'],
    ['drop', 'elsewhere', 'fine'], ['longer', 'fine'], ['silent'], ['drop', 'moved', 'fine']],
    ids=' then '.join)
def test_downloads_survive_a_bad_network(serve, tmp_path, plan, monkeypatch):
    monkeypatch.setattr(inputs, 'PATIENCE', 0.5 if 'stall' in plan else 30)
    server = serve(CONTENT, plan)
    path = inputs.fetch(server.url, tmp_path / 'sub' / 'f', SHA)
    assert path.read_bytes() == CONTENT and [p.name for p in path.parent.iterdir()] == ['f']
    assert (server.state['resumed'] == 0) == (plan in (['drop', 'no ranges'], ['silent']))


def test_a_download_that_ended_before_it_got_its_name_is_not_fetched_again(serve, tmp_path):
    server = serve(CONTENT, ['fine', 'gone'])
    (tmp_path / 'f.part').write_bytes(CONTENT)
    assert inputs.fetch(server.url, tmp_path / 'f', SHA).read_bytes() == CONTENT


@pytest.mark.parametrize('plan', [['fine'], ['moved', 'fine']])
def test_the_checksum_that_a_server_publishes_is_compared(serve, tmp_path, plan):
    """As Hugging Face does, in its answer or in the one that leads to the file."""
    server = serve(CONTENT, plan, published=SHA)
    assert inputs.fetch(server.url, tmp_path / 'f').read_bytes() == CONTENT
    with pytest.raises(ValueError, match='damaged'):
        inputs.fetch(serve(CONTENT, plan, published='0' * 64).url, tmp_path / 'g')
    with pytest.raises(ValueError, match='damaged'):  # ours goes first
        inputs.fetch(serve(CONTENT, plan, published=SHA).url, tmp_path / 'g', '0' * 64)
    assert [p.name for p in tmp_path.iterdir()] == ['f']


@pytest.mark.slow
@pytest.mark.parametrize('plan, checksum, left', [
    (['fine'], '0' * 64, []),
    (['busy'], None, []), (['lost'], None, []), (['longer'], None, ['f.part'])])
def test_failed_downloads_leave_nothing_that_looks_whole(serve, tmp_path, plan, checksum, left):
    url = serve(CONTENT, plan).url
    with pytest.raises(ValueError, match=url):
        inputs.fetch(url, tmp_path / 'f', checksum, tries=3)
    assert [p.name for p in tmp_path.iterdir()] == left


@pytest.mark.parametrize('content', [b'busy, come back later', b'PK\x03\x04' + bytes(5000)])
@pytest.mark.parametrize('script, name', [
    (crate_alpha_weights, 'crate_alpha_B16.pth'), (cbt, 'CBTest.tgz')])
def test_a_wrong_download_without_a_checksum_is_named(script, name, content, serve, tmp_path,
                                                      monkeypatch):
    server = serve(content, ['whole'])
    monkeypatch.setattr(cbt, 'URL', f'{server.url}/{name}')
    words = ['--out', f'{tmp_path}/w/run']
    if script is crate_alpha_weights:
        words = [f'--out_dir={tmp_path}/w/run', f'--url={server.url}/']
    for _ in range(2):
        with pytest.raises(Mistake, match=f'{name}.* remove it'):
            script.main(words)
    assert [path.name for path in (tmp_path / 'w').glob('[!.]*')] == ['downloads']
