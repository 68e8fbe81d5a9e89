import json
import shutil
import subprocess
import sys

import numpy as np
import pytest
from conftest import ROOT, TEXT

from tasks import files as data
from tasks.tokenizer import Tokenizer

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
