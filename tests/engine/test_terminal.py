"""Control characters in names and texts reach files and pipes, but no terminal."""
import os
import subprocess
import sys
import unicodedata

import numpy as np
import pytest
from helpers import ROOT, save_run
from PIL import Image

from engine import terminal
from model_crate import CRATE, CRATEConfig

pty = pytest.importorskip('pty')  # Windows has none
TITLE = 'cat\x1b]0;owned\x07\x1b[8m'


def test_every_control_character_but_tab_and_line_end_is_written_out():
    for code in range(0x3000):
        shown, turns = terminal.harmless(chr(code)), unicodedata.bidirectional(chr(code))
        if chr(code) in '\t\n':
            assert shown == chr(code)
        elif unicodedata.category(chr(code)) == 'Cc' or turns in 'LRE RLE LRO RLO PDF LRI RLI PDI'.split():
            assert shown.startswith('\\') and shown.isascii() and shown.isprintable()
    for text in ('naïve ✓ 日本語 עברית 🙂', '', 'a\tb\n'):
        assert terminal.harmless(text) == text


def test_progress_bars_may_move():
    moves = '\rrow 1\n\rrow 2\x1b[A\r'
    assert terminal.harmless(moves, terminal.BARS) == moves
    assert terminal.harmless('\r\x1b[2J\x1b]0;x\x07', terminal.BARS) == '\r\\x1b[2J\\x1b]0;x\\x07'


def at_a_terminal(*words, cwd):
    """What a command writes to a terminal, both streams."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen([sys.executable, *words], stdout=theirs, stderr=theirs, cwd=cwd)
    os.close(theirs)
    said = b''
    while True:
        try:
            part = os.read(ours, 4096)
        except OSError:  # the other end is closed
            part = b''
        if not part:
            break
        said += part
    os.close(ours)
    return process.wait(), said


@pytest.fixture
def words(tmp_path):
    model = CRATE(CRATEConfig(n_layer=1, n_head=2, n_embd=8, image_size=8, patch_size=4, num_classes=2))
    save_run(tmp_path / 'run', model, {'kind': 'images', 'classes': [TITLE, 'dog']})
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(tmp_path / 'a\x1b[31m.png')
    return [str(ROOT / 'sample.py'), '--ckpt=run', '--image=a\x1b[31m.png']


@pytest.mark.slow
def test_names_are_harmless_at_a_terminal_and_intact_in_a_pipe(words, tmp_path):
    code, said = at_a_terminal(*words, cwd=tmp_path)
    assert code == 0 and b'cat\\x1b]0;owned\\x07\\x1b[8m' in said and b'a\\x1b[31m.png' in said
    assert not set(said) & {0x1b, 0x07}
    piped = subprocess.run([sys.executable, *words], capture_output=True, cwd=tmp_path)
    assert TITLE.encode() in piped.stdout


def test_an_error_is_harmless_everywhere(words, tmp_path):
    told = subprocess.run([sys.executable, *words[:-1], '--image=none\x1b[31m.png'], capture_output=True, cwd=tmp_path)
    assert told.returncode == 2 and b'none\\x1b[31m.png' in told.stderr and b'\x1b' not in told.stderr


def test_a_stream_that_cannot_encode_a_character_writes_an_escape(words, tmp_path):
    env = os.environ | {'PYTHONIOENCODING': 'cp1252'}
    script = "from engine import terminal\nwith terminal.safe(): print('naïve 日')"
    told = subprocess.run([sys.executable, '-c', script], capture_output=True, cwd=ROOT, env=env)
    assert told.stdout.splitlines() == ['naïve '.encode('cp1252') + b'\\u65e5'] and not told.stderr
