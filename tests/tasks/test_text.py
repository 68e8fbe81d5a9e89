"""Text: batches of sequences, tokens that are hidden as in BERT, and training runs on both."""
import json
import math
import os
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from helpers import TEXT, before_step, column, fails, go, run_here, save_text
from lib.texts import write_tokens

import eval as scores
import train
from engine.mistakes import Mistake
from tasks.task_masked_text import MaskedTextSplit
from tasks.task_text import NextToken
from tasks.text import TextSplit
from tasks.tokenizer import Tokenizer
from weights.runs import open_run
from weights.surgery import load_model


# ---- one split of a dataset


def test_what_is_saved_is_read_and_validation_sees_the_split_once(bytes_data):
    """Targets are one token ahead."""
    train = TextSplit(bytes_data / 'tiny', 'train', 16)
    val = TextSplit(bytes_data / 'tiny', 'val', 16)
    saved = np.concatenate([train.tokens(), val.tokens()])
    assert saved.astype(np.uint8).tobytes() == TEXT.encode()
    assert train.tokens().dtype == np.uint16 and isinstance(train.tokens(), np.memmap)
    x, y = (torch.cat(parts) for parts in zip(*val.fixed(4, 10 ** 6)))
    assert x.shape == y.shape == (len(x), 16) and torch.equal(x[:, 1:], y[:, :-1])
    assert abs(y.numel() - len(val.tokens())) <= 32  # and not a million batches
    assert y[-1, -1] == val.tokens()[-1]


def test_every_token_can_be_drawn(tmp_path):
    save_text(tmp_path / 'd', Tokenizer('bytes'), {'train': range(20)}, {'train': 20})
    x, y = next(TextSplit(tmp_path / 'd', 'train', 16).batches(500, 0, [slice(None)], 0, 1))
    assert x.min() == 0 and y.max() == 19
    with pytest.raises(Mistake, match='--block_size=19'):
        TextSplit(tmp_path / 'd', 'train', 20)


class CountingRows:
    """The tokens of a split; it counts the rows that are read of them."""

    def __init__(self, tokens):
        self.tokens = tokens
        self.rows = 0

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, places):
        self.rows += len(places)
        return self.tokens[places]


@pytest.mark.parametrize('Split', [TextSplit, MaskedTextSplit])
def test_a_process_reads_its_own_part_of_a_step_alone(Split, bytes_data):
    split = Split(bytes_data / 'tiny', 'train', 16)
    tokens = CountingRows(split.tokens())
    split.tokens = lambda: tokens

    list(split.batches(12, 3, [slice(3, 6)], 5, 7))

    assert tokens.rows == 6  # 3 of each of two steps


def test_bits_are_counted_for_each_byte():
    """Of text that has half as many tokens as bytes."""
    task = object.__new__(NextToken)
    task.valid = SimpleNamespace(tokens_per_byte=0.5, some_counted=False)
    assert task.metrics(None, math.log(2), torch.zeros(1, 1))[1]['bits_per_byte'] == 0.5


# ---- tokens that are not to be learnt


@pytest.fixture
def of_d(tmp_path):
    """Words of a run on the dataset `d`."""
    return ['--dataset=d', f'--data_dir={tmp_path}', f'--out_dir={tmp_path}/out', '--n_layer=1',
            '--n_embd=16', '--n_head=2', '--block_size=20', '--eval_iters=3', '--log_interval=1',
            '--device=cpu']


@pytest.fixture
def answers(tmp_path):
    """A dataset of sequences of which the letters are to be learnt, not the digits before them."""
    pairs = [{'prompt': f'{i % 90 + 10}', 'answer': 'ab'} for i in range(400)]
    (tmp_path / 'pairs.jsonl').write_text('\n'.join(map(json.dumps, pairs)))
    run_here('prepare/pairs.py', tmp_path / 'pairs.jsonl', '--out', tmp_path / 'd')
    return tmp_path / 'd'


def test_of_prompts_and_answers_the_answers_are_learnt(answers):
    x, y = TextSplit(answers, 'train', 20).sequences(np.arange(5))
    digits = (x >= ord('0')) & (x <= ord('9'))
    assert digits.any() and (x >= 0).all()
    assert torch.equal(y[:, :-1], torch.where(digits[:, 1:], -1, x[:, 1:]))


def test_the_loss_that_is_scored_is_the_mean_over_the_answers(answers, of_d, tmp_path, capsys):
    out = tmp_path / 'out'
    go(*of_d, '--batch_size=3', '--max_iters=1')
    model, valid = load_model(open_run(str(out))), TextSplit(answers, 'val', 20)
    logits, y = zip(*((model(x)[0].flatten(0, 1), y.flatten()) for x, y in valid.fixed(3, 10 ** 6)))
    want = F.cross_entropy(torch.cat(logits), torch.cat(y), ignore_index=-1).item()
    capsys.readouterr()
    scores.main([f'--ckpt={out}', f'--data_dir={tmp_path}', '--split=val', '--dtype=float32',
                 '--device=cpu'])
    said = capsys.readouterr().out
    assert f'{(torch.cat(y) != -1).sum():,} tokens, loss {want:.4f}' in said
    assert 'bits' not in said


@pytest.mark.parametrize('counted_of_val, loss', [(1, math.log(256)), (0, 0.0)])
def test_a_batch_in_which_nothing_is_to_be_learnt_has_loss_0_and_is_said_once(
        counted_of_val, loss, of_d, tmp_path, capsys):
    ids = {'train': np.zeros(400, int), 'val': np.zeros(60, int)}
    counted = {'train': np.zeros(400, bool), 'val': np.arange(60) >= 60 - counted_of_val}
    parts = [(split, of_split, len(of_split)) for split, of_split in ids.items()]
    write_tokens(tmp_path / 'd', Tokenizer('bytes'), parts, counted)
    out = tmp_path / 'out'
    go(*of_d, '--batch_size=1', '--max_iters=3')
    assert column(out, 'train') == [0, 0, 0]
    assert column(out, 'val')[0] == pytest.approx(loss, abs=0.5 * loss)
    assert capsys.readouterr().out.count('nothing to learn') == 1


# ---- memory


def memory_of_files():
    """How many bytes of mapped files count as memory of this process."""
    status = Path('/proc/self/status').read_text()
    return 1024 * int(re.search(r'RssFile:\s+(\d+)', status)[1])


@pytest.mark.skipif(not Path('/proc/self/status').exists(), reason='Linux counts it')
def test_memory_does_not_grow_with_the_data_that_were_read(tmp_path):
    n_tokens = 16 * 2 ** 20
    ids = np.zeros(n_tokens, np.uint8)
    counted = {'train': np.ones(n_tokens, bool)}
    write_tokens(tmp_path / 'd', Tokenizer('bytes'), [('train', ids, n_tokens)], counted)
    split = TextSplit(tmp_path / 'd', 'train', 16)
    places = np.arange(0, n_tokens - 99, 2048)  # in every page of the file
    split.sequences(places[:8])

    before = memory_of_files()
    for start in range(0, len(places), 1000):
        split.sequences(places[start:start + 1000])
    assert memory_of_files() - before < n_tokens / 4


# ---- data that shrink under a run


@pytest.mark.parametrize('file', ['train.npy', 'train.counted.npy'])
def test_a_file_that_was_cut_off_between_two_batches_is_one_line(file, answers):
    batches = TextSplit(answers, 'train', 20).batches(4, 0, [slice(None)], 0, 3)
    next(batches)
    os.truncate(answers / file, 500)
    with pytest.raises(Mistake, match=file):
        next(batches)


def test_a_run_whose_data_shrink_ends_with_one_line(answers, of_d, capsys, monkeypatch):
    before_step(monkeypatch, 2, lambda: os.truncate(answers / 'train.npy', 500))
    assert 'train.npy' in fails(capsys, train.main, *of_d, '--max_iters=9')


def test_hidden_tokens_are_not_those_that_a_dataset_chooses(answers, of_d, capsys):
    assert '--dataset' in fails(capsys, train.main, *of_d, '--model=crate', '--causal=false')


# ---- hidden tokens


def test_hidden_tokens_follow_bert(bytes_data):
    """15% of the tokens are chosen: 80% of these become [MASK], 10% a random token, 10% stay. y
    holds the chosen tokens, and -1 elsewhere."""
    masked_split = MaskedTextSplit(bytes_data / 'tiny', 'train', 32)
    x, y = next(masked_split.batches(2560, 0, [slice(None)], 0, 1))
    split = TextSplit(bytes_data / 'tiny', 'train', 32)
    truth, _ = next(split.batches(2560, 0, [slice(None)], 0, 1))
    mine = y != -1
    masked = x == 256
    assert torch.equal(y[mine], truth[mine]) and torch.equal(x[~mine], truth[~mine])
    assert mine.double().mean() == pytest.approx(0.15, abs=0.005)
    assert masked[mine].double().mean() == pytest.approx(0.8, abs=0.01)
    assert (x == truth)[mine].double().mean() == pytest.approx(0.1, abs=0.01)
    placed = x[mine & ~masked & (x != truth)].unique()
    assert len(placed) > 200 and placed.max() < 256  # any token


def test_a_sequence_always_hides_something(bytes_data):
    """Of two tokens mostly neither is chosen; then one becomes [MASK]."""
    split = MaskedTextSplit(bytes_data / 'tiny', 'train', 2)
    x, y = next(split.batches(2000, 0, [slice(None)], 0, 1))
    assert (y != -1).sum(1).min() == 1 and (x[y != -1] == 256).float().mean() > 0.9
