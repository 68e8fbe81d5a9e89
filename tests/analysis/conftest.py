"""Runs of random weights to look at, and datasets and pictures for them."""
import csv

import numpy as np
import pytest
from helpers import TEXT, save_run, save_text
from insides import NETWORKS, OTHERS, kind_of, loud_network
from PIL import Image

import analyze
from lib.pictures import save_arrays
from tasks.tokenizer import Tokenizer


def save_datasets(folder):
    """Pictures are 20 x 30; the runs' eval_crop of 0.8 leaves the 16 x 24 in their middle as they
    are. Text has six sequences of 12, and a long one 124."""
    rng, labels = np.random.default_rng(0), np.arange(18) % 3
    pictures, masks = rng.integers(0, 256, (18, 20, 30, 3), np.uint8), rng.random((18, 20, 30)) < 0.4
    for name, *arrays in (('pics', pictures, labels, masks), ('grey', pictures[..., :1], labels, masks),
                          ('bare', pictures // 2, labels)):
        classes = ['ant', 'bee', 'cat'] + ['dog'] * (name == 'bare')    # no picture of a dog, and no masks
        save_arrays(folder / name, {'train': arrays, 'test': arrays}, classes)
    for name, tokenizer, text in (('text', Tokenizer('bytes'), TEXT),
                                  ('long', Tokenizer('bytes'), TEXT[:1500]),
                                  ('letters', Tokenizer('chars', 'abc\n'), 40 * 'abca\nb')):
        ids = tokenizer.encode(text)
        val = ids if name == 'long' else ids[:73]
        save_text(folder / name, tokenizer, {'train': ids[73:200], 'val': val}, {'train': 127, 'val': len(val)})
    return pictures


def save_network(out, name):
    kind = kind_of(name)
    dataset = {'letters': 'letters', 'elsewhere': 'bare', 'grey': 'grey'}.get(
        name, {'images': 'pics', 'text': 'text', 'functions': 'linear'}[kind])
    tokenizers = {'letters': {'name': 'chars', 'alphabet': 'abc\n'}, 'bpe': {'name': 'gpt2'}}
    meta = {'images': {'classes': ['ant', 'bee', 'cat']}, 'functions': {},
            'text': {'tokenizer': tokenizers.get(name, {'name': 'bytes'})}}[kind]
    save_run(out, loud_network(name), {'kind': kind} | meta, dataset=dataset, eval_crop=0.8)


@pytest.fixture(scope='session')
def place(tmp_path_factory):
    """A folder with runs/NAME of all networks, data/, and a FOLDER of three pictures."""
    place = tmp_path_factory.mktemp('place')
    pictures = save_datasets(place / 'data')
    for name in NETWORKS | OTHERS:
        save_network(place / 'runs' / name, name)
    (place / 'FOLDER').mkdir()
    for i in range(3):
        Image.fromarray(pictures[i]).save(place / 'FOLDER' / f'{i}.png')
    return place


@pytest.fixture
def table(tmp_path, undrawn):
    """A function that runs a command, and returns the rows of its table."""
    def table(*words):
        analyze.main([*words, f'--out={tmp_path}/x.png', '--overwrite=true'])
        return list(csv.DictReader((tmp_path / 'x.csv').open(newline='')))
    return table


@pytest.fixture
def look(place, table):
    """A function that runs a command on a network, and returns the rows of its table."""
    def look(command, name, *words):
        return table(command, f'--ckpt={place}/runs/{name}', f'--data_dir={place}/data',
                     *[w.format(place=place) for w in words])
    return look
