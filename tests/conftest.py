"""Settings and fixtures of all tests; functions that tests call by name are in helpers.py."""
import gc
import os
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import (JPEGS, KINDS, OF_AUTOENCODERS, OF_PICTURES, PICTURE_KINDS, TEXT, go, quadrants,
                     save_pack, save_text, split_text)

from analysis import figures
from engine import curve as curve_of_run, plots
from engine.device import STOP
from lib.pictures import save_arrays
from tasks.tokenizer import Tokenizer

# one thread, so that child processes beside each other do not fight for cores, unless the user sets
# another number
torch.set_num_threads(int(os.environ.setdefault('OMP_NUM_THREADS', '1')))
# Tests send Ctrl-C to processes. Where a shell has started pytest in the background, pytest and its
# child processes would ignore it.
signal.signal(signal.SIGINT, signal.default_int_handler)
# Half the time of a short run goes into its curve. Runs in this process draw none, but in tests
# with the fixture `curve`.
true_draw_curve = curve_of_run.draw_curve
curve_of_run.draw_curve = lambda run: None


def pytest_collection_finish():
    """The garbage collector takes a tenth of the time of all tests. So it never looks at what has
    been imported, and looks at the rest less often."""
    gc.freeze()
    gc.set_threshold(10_000)


# ---- datasets

@pytest.fixture(scope='session')
def bytes_data(tmp_path_factory):
    """A data_dir that holds one small dataset, `tiny`, as bytes."""
    folder = tmp_path_factory.mktemp('data')
    tokenizer = Tokenizer('bytes')
    save_text(folder / 'tiny', tokenizer, *split_text(TEXT, tokenizer))
    return folder


@pytest.fixture(scope='session')
def tiny(bytes_data):
    """Command-line words for a run that takes a second."""
    words = '''--dataset=tiny --n_layer=2 --n_head=2 --n_embd=16 --block_size=16 --batch_size=4 --max_iters=6
               --eval_interval=3 --eval_iters=2 --log_interval=1 --warmup_iters=2 --show_samples=false'''
    return [f'--data_dir={bytes_data}', *words.split()]


@pytest.fixture(scope='session')
def pictures_data(tmp_path_factory):
    """A data_dir with pictures, and a text:

        quads               of 4 classes, in 3 channels
        renamed             the same with 4 other classes
        grey                the same in one channel
        quads_N             validation pictures of N channels
        colours             of 8 classes, 12 x 8, with a test split and no val split
        numbered            the pixels of a picture are its index
        pack, grey_pack     JPEG files
        text                bytes
    """
    out = tmp_path_factory.mktemp('pictures')
    quads = {'train': quadrants(40), 'val': quadrants(20, 1)}
    save_arrays(out / 'quads', quads, 'abcd')
    save_arrays(out / 'renamed', quads, 'efgh')
    grey = {split: (x.max(-1), y) for split, (x, y) in quads.items()}
    save_arrays(out / 'grey', grey, 'abcd')
    for n in (1, 2, 3, 5):
        save_arrays(out / f'quads_{n}', {'val': quadrants(20, 1, channels=n)}, 'abcd')

    x, y = quadrants(40, 0, 12, 8)
    test_x, test_y = quadrants(20, 1, 12, 8)
    colours = {'train': (x[:, :, :8], y), 'test': (test_x[:, :, :8], test_y)}
    save_arrays(out / 'colours', colours, 'abcdefgh')

    numbered = np.arange(25, dtype=np.uint8).repeat(18).reshape(25, 2, 3, 3)
    save_arrays(out / 'numbered', {'train': (numbered, np.arange(25) % 3)}, 'abc')

    save_pack(out / 'pack', JPEGS, ['x', 'y', 'z', 'w'], workers=0, channels=3)
    save_pack(out / 'grey_pack', JPEGS, ['x', 'y', 'z', 'w'], workers=0, channels=1)

    tokenizer = Tokenizer('bytes')
    save_text(out / 'text', tokenizer, *split_text('a token is a picture ' * 50, tokenizer))
    return out


@pytest.fixture(scope='session')
def quads(pictures_data):
    """Command-line words for a run of a tenth of a second on `quads`, with augmentation."""
    return [f'--data_dir={pictures_data}', '--dataset=quads', *OF_PICTURES]


# ---- finished runs; tests that change one make a copy

@pytest.fixture(scope='session')
def words_of(tiny, pictures_data):
    """words_of(kind): the command line of a run of this kind."""
    def words_of(kind):
        if kind in PICTURE_KINDS:
            return [f'--data_dir={pictures_data}', '--dataset=quads', *KINDS[kind]]
        return [*tiny, *KINDS[kind]]
    return words_of


@pytest.fixture(scope='session')
def whole(words_of, tmp_path_factory):
    """whole(kind): a finished run of this kind, which is made once."""
    folder = tmp_path_factory.mktemp('runs')

    def whole(kind):
        out = folder / kind
        if not out.exists():
            go(*words_of(kind), f'--out_dir={out}')
        return out
    return whole


@pytest.fixture(scope='session')
def text_run(whole):
    return whole('text')


@pytest.fixture(scope='session')
def picture_run(whole):
    """CRATE on `quads`, with an average of the weights, accumulation and dropout."""
    return whole('pictures')


@pytest.fixture(scope='session')
def pretrained(whole):
    """A folder with a run of each masked autoencoder on `quads`, by the network's name."""
    for name in OF_AUTOENCODERS:
        folder = whole(name).parent
    return folder


# ---- what a run changes

@pytest.fixture
def curve(monkeypatch):
    """Runs draw curve.png, as those of a user do."""
    monkeypatch.setattr(curve_of_run, 'draw_curve', true_draw_curve)


@pytest.fixture
def undrawn(monkeypatch):
    """Commands draw no figure, which would take half a second. A small file stands in its place.
    Returns a list, to which each figure is added, for tests that look at it."""
    not_drawn = []

    def save_picture(path, figure):
        not_drawn.append(figure)
        Path(path).write_bytes(b'a picture')

    monkeypatch.setattr(plots, 'save_picture', save_picture)
    monkeypatch.setattr(figures, 'save_picture', save_picture)  # which it has imported by its name
    return not_drawn


@pytest.fixture(autouse=True)
def signals():
    """A run takes note of signals until its process ends. Here other tests follow."""
    handlers = {number: signal.getsignal(number) for number in STOP}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)
