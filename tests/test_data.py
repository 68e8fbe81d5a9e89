import json
import shutil
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import numpy as np
import pytest
from conftest import ROOT, TEXT, run

from tasks import files as data
from tasks.tokenizer import Tokenizer
from prepare import download

# ---- tokenizers


@pytest.mark.parametrize('spec', [{'name': 'bytes'}, {'name': 'chars', 'alphabet': 'abc é🙂\n'}])
def test_tokenizers_round_trip(spec):
    tokenizer = Tokenizer(**spec)
    text = 'ab c\né🙂'
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text and max(ids) < tokenizer.vocab_size
    assert Tokenizer(**json.loads(json.dumps(tokenizer.spec))).encode(text) == ids
    assert b''.join(tokenizer.decode_bytes([i]) for i in ids).decode() == text  # streamed


def test_unknown_characters_and_tokenizers_are_named():
    with pytest.raises(ValueError, match="no character 'z'"):
        Tokenizer('chars', 'abc').encode('abz')
    with pytest.raises(ValueError, match='bytes, chars or gpt2'):
        Tokenizer('words')


def test_gpt2_without_network_says_how():
    done = subprocess.run([sys.executable, '-c', 'import configurator, tokenizer\nwith configurator.one_line_errors(): tokenizer.Tokenizer("gpt2")'],
                          cwd=ROOT, capture_output=True, text=True,
                          env={'TIKTOKEN_CACHE_DIR': '/nonexistent/cache', 'HTTPS_PROXY': 'http://127.0.0.1:9', 'PATH': ''})
    assert done.returncode == 2 and 'TIKTOKEN_CACHE_DIR' in done.stderr and len(done.stderr.splitlines()) == 1


# ---- a prepared dataset

@pytest.fixture
def folder(bytes_data, tmp_path):
    return shutil.copytree(bytes_data / 'tiny', tmp_path / 'tiny')


def test_what_is_saved_is_read(folder):
    train, val = data.Text(folder, 'train', 16), data.Text(folder, 'val', 16)
    assert bytes(train.tokens.astype(np.uint8)) + bytes(val.tokens.astype(np.uint8)) == TEXT.encode()
    assert train.tokens.dtype == np.uint16 and train.tokens_per_byte == 1
    assert isinstance(train.tokens, np.memmap)


def test_targets_are_one_token_ahead_and_batches_depend_on_seed_and_step_alone(folder):
    text = data.Text(folder, 'train', 16)

    def batch(n, seed, step, share=slice(None)):
        return next(text.batches(n, seed, [share], step))
    x, y = batch(5, 1, 7)
    assert x.shape == y.shape == (5, 16) and (x[:, 1:] == y[:, :-1]).all()
    again = [x for x, _ in data.Text(folder, 'train', 16).batches(5, 1, [slice(None)], 6, 8)][1]
    assert (x == again).all() and not (x == batch(5, 1, 8)[0]).all() and not (x == batch(5, 2, 7)[0]).all()
    shares = [batch(6, 1, 7, slice(i, i + 2))[0] for i in (0, 2, 4)]
    assert (np.concatenate(shares) == batch(6, 1, 7)[0].numpy()).all()
    assert (np.concatenate([x for x, _ in text.batches(6, 1, [slice(0, 2), slice(2, 6)], 7, 8)]) == batch(6, 1, 7)[0].numpy()).all()


def test_every_token_can_be_drawn(tmp_path):
    data.save_text(tmp_path / 'd', Tokenizer('bytes'), {'train': range(20)}, {'train': 20})
    text = data.Text(tmp_path / 'd', 'train', 16)
    x, y = next(text.batches(500, 0, [slice(None)]))
    assert x.min() == 0 and y.max() == 19


def test_validation_batches_are_fixed_and_spread(folder):
    val = data.Text(folder, 'val', 16)
    a, b = [x for x, _ in val.fixed(4, 10)], [x for x, _ in val.fixed(4, 10)]
    assert len(a) == 10 and all((p == q).all() for p, q in zip(a, b))
    everything = [y for _, y in val.fixed(4, 10 ** 6)]
    assert abs(sum(y.numel() for y in everything) - len(val.tokens)) <= 32  # the split once, not a million batches
    assert everything[-1][-1, -1] == val.tokens[-1]


def damage(kind, folder):
    path = folder / 'train.npy'
    if kind == 'missing':
        path.unlink()
    elif kind == 'cut off':
        path.write_bytes(path.read_bytes()[:-100])
    elif kind == 'empty':
        path.write_bytes(b'')
    elif kind == 'foreign':
        path.write_bytes(b'not an array at all' * 100)
    elif kind == 'pickled':
        np.save(path, np.array([{}], dtype=object))
    elif kind == 'other length':
        np.save(path, np.load(path)[:-1])
    elif kind == 'other type':
        np.save(path, np.load(path).astype(np.float32))
    elif kind == 'two-dimensional':
        np.save(path, np.load(path)[:-1 if len(np.load(path)) % 2 else None].reshape(2, -1))


@pytest.mark.parametrize('kind', ['missing', 'cut off', 'empty', 'foreign', 'pickled', 'other length', 'other type', 'two-dimensional'])
def test_damaged_arrays_are_refused_by_name(kind, folder):
    damage(kind, folder)
    with pytest.raises(ValueError, match='train.npy.*prepare the dataset again'):
        data.Text(folder, 'train', 16)


def test_tokens_beyond_the_vocabulary_are_refused(folder):
    tokens = np.load(folder / 'train.npy')
    tokens[:] = 300
    np.save(folder / 'train.npy', tokens)
    with pytest.raises(ValueError, match='token 300'):
        data.Text(folder, 'train', 16)


@pytest.mark.parametrize('text', ['', '{}', '[]', 'not json', '{"kind": "text"}', ('"text"', '"image"'), ('"bytes"', '"words"'),
                                  ('256', '"256"'), ('"bytes": ', '"other": '), ('"splits": {', '"splits": [], "x": {')])
def test_a_foreign_meta_json_is_refused(folder, text):
    whole = (folder / 'meta.json').read_text()
    (folder / 'meta.json').write_text(text if isinstance(text, str) else whole.replace(*text))
    with pytest.raises(ValueError, match='meta.json'):
        data.read_meta(folder)


def test_short_text_says_which_block_size_fits(folder):
    with pytest.raises(ValueError, match='--block_size='):
        data.Text(folder, 'val', 10 ** 6)


# ---- prepare scripts

def test_stdlib_is_prepared_without_a_network(tmp_path):
    source = tmp_path / 'lib'
    (source / 'pkg' / 'test').mkdir(parents=True)
    for i in range(40):
        (source / 'pkg' / f'm{i}.py').write_text(f'x = {i}\n')
    (source / 'pkg' / 'dangling.py').symlink_to('/nonexistent')
    (source / 'pkg' / 'test' / 'skipped.py').write_text('skip me')
    done = run('prepare/stdlib.py', '--from', str(source), '--out', str(tmp_path / 'd'))
    assert done.returncode == 0, done.stderr
    both = b''.join(bytes(np.load(tmp_path / 'd' / f'{s}.npy').astype(np.uint8)) for s in ('train', 'val'))
    assert both.count(b'x = ') == 40 and b'skip' not in both
    assert len(np.load(tmp_path / 'd' / 'val.npy')) > 0
    again = run('prepare/stdlib.py', '--from', str(source), '--out', str(tmp_path / 'd'))
    assert again.returncode == 2 and '--overwrite' in again.stderr
    assert run('prepare/stdlib.py', '--from', str(source), '--out', str(tmp_path / 'd'), '--overwrite').returncode == 0


def test_only_a_prepared_dataset_is_ever_replaced(tmp_path):
    (tmp_path / 'precious').mkdir()
    (tmp_path / 'precious' / 'thesis.txt').write_text('years of work')
    (tmp_path / 'empty').mkdir()
    (tmp_path / 'a.txt').write_text('some text ' * 50)
    source = str(tmp_path / 'a.txt')
    for out, code in (('precious', 2), ('a.txt', 2), ('empty', 0), ('empty', 0), ('new/deep', 0)):
        done = run('prepare/text.py', source, '--out', str(tmp_path / out), '--overwrite')
        assert done.returncode == code and 'Traceback' not in done.stderr, done.stderr
    assert (tmp_path / 'precious' / 'thesis.txt').exists() and sorted(p.name for p in (tmp_path / 'empty').iterdir()) == ['meta.json', 'train.npy', 'val.npy']
    (tmp_path / 'b.txt').write_text('')
    done = run('prepare/text.py', str(tmp_path / 'b.txt'), '--out', str(tmp_path / 'b'))
    assert done.returncode == 2 and 'too little text' in done.stderr and not (tmp_path / 'b').exists()


def test_own_text_with_every_tokenizer(tmp_path):
    (tmp_path / 'notes').mkdir()
    (tmp_path / 'notes' / 'b.txt').write_text('second ü\n' * 50, encoding='utf-8')
    (tmp_path / 'notes' / 'a.txt').write_bytes(b'first \xff\n' * 50)
    for tokenizer in ('bytes', 'chars'):
        out = tmp_path / tokenizer
        done = run('prepare/text.py', str(tmp_path / 'notes'), '--tokenizer', tokenizer, '--out', str(out), '--val', '0.2')
        assert done.returncode == 0, done.stderr
        assert '50 places' in done.stdout
        meta = data.read_meta(out)
        text = ''.join(Tokenizer(**meta['tokenizer']).decode(np.load(out / f'{s}.npy').tolist()) for s in ('train', 'val'))
        assert text == 'first \ufffd\n' * 50 + '\n' + 'second ü\n' * 50
        assert meta['splits']['val']['bytes'] + meta['splits']['train']['bytes'] == len(text.encode())
    for words, message in ((['nowhere'], 'no such file'), ([str(tmp_path / 'notes'), '--glob', '*.md'], '--glob'), ([str(tmp_path), '--val', '2'], '--val')):
        done = run('prepare/text.py', *words, '--out', str(tmp_path / 'x'))
        assert done.returncode == 2 and message in done.stderr and not (tmp_path / 'x').exists()


def test_shakespeare_refuses_another_file(tmp_path):
    (tmp_path / 'input.txt').write_text('To be')
    for script in ('shakespeare', 'shakespeare_char'):
        done = run(f'prepare/{script}.py', '--from', str(tmp_path / 'input.txt'), '--out', str(tmp_path / 'd'))
        assert done.returncode == 2 and 'not the expected file' in done.stderr and not (tmp_path / 'd').exists()


# ---- downloads

class Flaky(BaseHTTPRequestHandler):
    """Serves `content`; the i-th answer does what `plan[i]` says, the last plan from there on."""

    def do_GET(self):
        state = self.server.state
        plan = state['plan'].pop(0) if len(state['plan']) > 1 else state['plan'][0]
        content, start = state['content'], 0
        if plan == 'busy':
            return self.send_error(503)
        if plan == 'gone':
            return self.send_error(404)
        if 'Range' in self.headers and plan != 'no ranges':
            start = int(self.headers['Range'][6:-1])
            state['resumed'] += 1
            if start >= len(content):
                self.send_response(416)
                self.send_header('Content-Range', f'bytes */{len(content)}')
                self.end_headers()
                return
        self.send_response(206 if start else 200)
        self.send_header('Content-Length', str(len(content) - start))
        self.end_headers()
        self.wfile.write(content[start:] if plan != 'drop' else content[start:start + len(content) // 3])

    def log_message(self, *args):
        pass


@pytest.fixture
def server():
    httpd = HTTPServer(('127.0.0.1', 0), Flaky)
    httpd.state = {'content': np.random.default_rng(0).bytes(3_000_000), 'plan': ['fine'], 'resumed': 0}
    httpd.url = f'http://127.0.0.1:{httpd.server_port}/file'
    threading.Thread(target=httpd.serve_forever, daemon=True).start()
    yield httpd
    httpd.shutdown()


@pytest.mark.parametrize('plan', [['fine'], ['drop', 'busy', 'drop', 'fine'], ['drop', 'no ranges'], ['busy', 'busy', 'fine']])
def test_downloads_survive_a_bad_network(server, tmp_path, plan):
    server.state['plan'] = list(plan)
    (tmp_path / 'ok').write_bytes(server.state['content'])
    path = download.fetch(server.url, tmp_path / 'sub' / 'f', download.sha256(tmp_path / 'ok'))
    assert path.read_bytes() == server.state['content']
    assert (server.state['resumed'] > 0) == ('drop' in plan and 'no ranges' not in plan)
    assert [p.name for p in path.parent.iterdir()] == ['f']


def test_a_complete_part_is_not_fetched_again(server, tmp_path):
    (tmp_path / 'f.part').write_bytes(server.state['content'])
    assert download.fetch(server.url, tmp_path / 'f').read_bytes() == server.state['content']


@pytest.mark.parametrize('plan, checksum, message', [(['gone'], None, '404'), (['busy'], None, 'failed 3 times'), (['fine'], '0' * 64, 'damaged')])
def test_failed_downloads_leave_nothing_that_looks_whole(server, tmp_path, plan, checksum, message):
    server.state['plan'] = plan
    with pytest.raises(ValueError, match=message):
        download.fetch(server.url, tmp_path / 'f', checksum, tries=3)
    assert not (tmp_path / 'f').exists()
