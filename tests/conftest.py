"""Settings and fixtures of all tests; functions that tests call by name are in helpers.py."""
import os
import signal

import numpy as np
import pytest
import torch
from helpers import JPEGS, KINDS, OF_AUTOENCODERS, OF_PICTURES, SHORT, TEXT, go, quadrants, save_text, split_text

from engine import plots
from lib.pictures import save_arrays, save_pack
from tasks.tokenizer import Tokenizer

# one thread, so that child processes beside each other do not fight for cores, unless the user sets another number
torch.set_num_threads(int(os.environ.setdefault('OMP_NUM_THREADS', '1')))


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
    return [f'--data_dir={bytes_data}', '--dataset=tiny', '--n_layer=2', '--n_head=2', '--n_embd=16', '--block_size=16',
            '--batch_size=4', '--max_iters=6', '--eval_interval=3', '--eval_iters=2', '--log_interval=1',
            '--warmup_iters=2']


@pytest.fixture(scope='session')
def pictures_data(tmp_path_factory):
    """A data_dir with pictures: `quads` of 4 classes, `renamed` of 4 others, `colours` of 8, `grey`
    of one channel, `quads_N` of N channels, `numbered` whose pixels are the picture's index, a `pack` of JPEG
    files, a `grey_pack`; and a `text`."""
    out = tmp_path_factory.mktemp('pictures')
    quads = {'train': quadrants(40), 'val': quadrants(20, 1)}
    save_arrays(out / 'quads', quads, 'abcd')
    save_arrays(out / 'renamed', quads, 'efgh')
    save_arrays(out / 'grey', {split: (x.max(-1), y) for split, (x, y) in quads.items()}, 'abcd')
    for n in (1, 2, 3, 5):
        save_arrays(out / f'quads_{n}', {'val': quadrants(20, 1, channels=n)}, 'abcd')
    (x, y), (u, v) = quadrants(40, 0, 12, 8), quadrants(20, 1, 12, 8)
    save_arrays(out / 'colours', {'train': (x[:, :, :8], y), 'test': (u[:, :, :8], v)}, 'abcdefgh')
    numbered = np.arange(25, dtype=np.uint8)[:, None, None, None].repeat(2, 1).repeat(3, 2).repeat(3, 3)
    save_arrays(out / 'numbered', {'train': (numbered, np.arange(25) % 3)}, 'abc')
    for name, channels in (('pack', 3), ('grey_pack', 1)):
        save_pack(out / name, JPEGS, ['x', 'y', 'z', 'w'], workers=0, channels=channels)
    tokenizer = Tokenizer('bytes')
    save_text(out / 'text', tokenizer, *split_text('a token is a picture ' * 50, tokenizer))
    return out


@pytest.fixture
def quads(pictures_data):
    """Command-line words for a run of a tenth of a second on `quads`, with augmentation."""
    return [f'--data_dir={pictures_data}', '--dataset=quads', *OF_PICTURES]


# ---- finished runs; tests that change one make a copy


@pytest.fixture(scope='session')
def words_of(tiny, pictures_data):
    """words_of(kind): the command line of a run of this kind."""
    def words_of(kind):
        pictures = SHORT[0] in KINDS[kind]
        return [*([f'--data_dir={pictures_data}', '--dataset=quads'] if pictures else tiny), *KINDS[kind]]
    return words_of


@pytest.fixture(scope='session')
def whole(words_of, tmp_path_factory):
    """whole(kind): a finished run of this kind, which is made once."""
    place = tmp_path_factory.mktemp('runs')

    def whole(kind):
        if not (place / kind).exists():
            go(*words_of(kind), f'--out_dir={place / kind}')
        return place / kind
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
    return [whole(name).parent for name in OF_AUTOENCODERS][0]


@pytest.fixture
def quick(monkeypatch):
    """Runs without what takes half of a short run's time: the curve."""
    monkeypatch.setattr(plots, 'draw_curve', lambda out: None)


@pytest.fixture(autouse=True)
def signals():
    """A run takes note of signals until its process ends; here other tests follow."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
