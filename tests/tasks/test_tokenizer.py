"""Text to token ids and back."""
import json
import subprocess
import sys

import numpy as np
import pytest
import tiktoken
from helpers import ROOT
from tiktoken_ext.openai_public import r50k_pat_str

from engine.settings import Mistake
from prepare.lib.texts import between_words, encode_pieces
from tasks.tokenizer import Tokenizer


@pytest.mark.parametrize('spec', [{'name': 'bytes'}, {'name': 'chars', 'alphabet': 'abc é🙂\n'}])
def test_tokenizers_round_trip(spec):
    tokenizer = Tokenizer(**spec)
    text = 'ab c\né🙂'
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text and max(ids) < tokenizer.vocab_size
    assert Tokenizer(**json.loads(json.dumps(tokenizer.spec))).encode(text) == ids
    assert b''.join(tokenizer.decode_bytes([i]) for i in ids).decode() == text  # streamed


def test_unknown_characters_and_tokenizers_are_named():
    with pytest.raises(Mistake, match="'z'"):
        Tokenizer('chars', 'abc').encode('abz')
    with pytest.raises(Mistake, match='words'):
        Tokenizer('words')


WORDS = ["the", "don't", "we'll", "'s", "''", "x1y22", "1,000.5", "été", "naïve", "世界", "🙂🙂", "a_b", "=>",
         "\u00a0", "\x1c", "e\u0301", " ", "  ", "\n", "\n\n\n", "\r\n", "\t", " \n ", "\u2003", "\u3000", ",",
         "'", "\"'ll", "ll", "7", "<|endoftext|>", " " * 99, "\n" * 99, "a" * 99]


@pytest.fixture
def pairs(monkeypatch):
    """A tokenizer that splits text as GPT-2's does, with merges of its own, which need no
    download."""
    merges = [w[:n].encode() for w in (*WORDS, ' the', ' don', '     ', '\n\n\n\n', ' été') for n in range(2, 9)]
    ranks = dict.fromkeys([*(bytes([i]) for i in range(256)), *sorted(set(merges), key=lambda m: (len(m), m))])
    ranks = {token: rank for rank, token in enumerate(m for m in ranks if m)}
    bpe = tiktoken.Encoding('small', pat_str=r50k_pat_str, mergeable_ranks=ranks,
                            special_tokens={'<|endoftext|>': len(ranks)})
    monkeypatch.setattr('tasks.tokenizer.gpt2_bpe', lambda: bpe)
    return Tokenizer('gpt2')


@pytest.mark.parametrize('most', [1, 3, 20, 1000])
def test_tokens_of_pieces_are_those_of_the_whole_text(most, pairs):
    """Pieces of 0 to `most` characters, of texts of few words, so that there are long runs of the same."""
    for seed in range(20):
        rng = np.random.default_rng(seed)
        words = rng.choice(WORDS, rng.integers(1, len(WORDS)), replace=False)
        text = ''.join(rng.choice(words, 400).tolist())
        cuts = [0, *np.cumsum(rng.integers(0, most + 1, 2 * len(text))).tolist(), len(text)]
        pieces = [text[a:b] for a, b in zip(cuts, cuts[1:])]
        for tokenizer in (pairs, Tokenizer('bytes'), Tokenizer('chars', ''.join(sorted(set(text))))):
            ids, sizes = zip(*encode_pieces(tokenizer, pieces))
            whole = pairs.bpe.encode_ordinary(text) if tokenizer is pairs else tokenizer.encode(text)
            assert np.concatenate(ids).tolist() == whole and sum(sizes) == len(text.encode())


@pytest.mark.parametrize('text', ['word ' * 4000, 'one\ntwo\r\n' * 2000, '1,2,33,' * 3000, '{"a":[1,2]}' * 2000,
                                  'aGVsbG8x' * 3000])
def test_a_piece_that_is_kept_is_about_as_long_as_those_that_come(text):
    pieces = list(between_words(text[i:i + 500] for i in range(0, len(text), 500)))
    assert ''.join(pieces) == text and max(map(len, pieces)) < 520


def test_gpt2_without_network_says_how():
    code = 'from engine.settings import one_line_errors\nfrom tasks.tokenizer import Tokenizer\n' \
           'with one_line_errors(): Tokenizer("gpt2")'
    offline = {'TIKTOKEN_CACHE_DIR': '/nonexistent/cache', 'HTTPS_PROXY': 'http://127.0.0.1:9', 'PATH': ''}
    done = subprocess.run([sys.executable, '-c', code], cwd=ROOT, capture_output=True, text=True, env=offline)
    assert done.returncode == 2 and 'TIKTOKEN_CACHE_DIR' in done.stderr and len(done.stderr.splitlines()) == 1
