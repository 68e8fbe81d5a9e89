"""Text to token ids and back."""
import json
import subprocess
import sys

import pytest
from helpers import ROOT

from engine.mistakes import Mistake
from tasks.tokenizer import Tokenizer


@pytest.mark.parametrize('spec', [{'name': 'bytes'}, {'name': 'chars', 'alphabet': 'abc é🙂\n'}])
def test_tokenizers_round_trip_and_unknown_ones_are_named(spec):
    tokenizer = Tokenizer(**spec)
    text = 'ab c\né🙂'
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text and max(ids) < tokenizer.vocab_size
    assert Tokenizer(**json.loads(json.dumps(tokenizer.spec))).encode(text) == ids
    assert b''.join(tokenizer.decode_bytes([i]) for i in ids).decode() == text  # streamed
    with pytest.raises(Mistake, match='words'):
        Tokenizer('words')


def test_gpt2_without_network_says_how():
    code = ('from engine.mistakes import one_line_errors\n'
            'from tasks.tokenizer import Tokenizer\n'
            'with one_line_errors(): Tokenizer("gpt2")')
    offline = {'TIKTOKEN_CACHE_DIR': '/nonexistent', 'HTTPS_PROXY': 'http://127.0.0.1:9',
               'PATH': ''}
    done = subprocess.run([sys.executable, '-c', code], cwd=ROOT, capture_output=True, text=True,
                          env=offline)
    assert done.returncode == 2 and 'TIKTOKEN_CACHE_DIR' in done.stderr
    assert len(done.stderr.splitlines()) == 1
