"""Text: batches of sequences, tokens that are hidden as in BERT, and training runs on both."""
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers import TEXT, column, go, save_text

from engine.settings import Mistake
from tasks.text import MaskedTextSplit, NextToken, TextSplit
from tasks.tokenizer import Tokenizer


# ---- one split of a dataset


def test_what_is_saved_is_read_and_validation_sees_the_split_once(bytes_data):
    """Targets are one token ahead."""
    train, val = TextSplit(bytes_data / 'tiny', 'train', 16), TextSplit(bytes_data / 'tiny', 'val', 16)
    assert bytes(train.tokens.astype(np.uint8)) + bytes(val.tokens.astype(np.uint8)) == TEXT.encode()
    assert train.tokens.dtype == np.uint16 and isinstance(train.tokens, np.memmap)
    x, y = (torch.cat(parts) for parts in zip(*val.fixed(4, 10 ** 6)))
    assert x.shape == y.shape == (len(x), 16) and torch.equal(x[:, 1:], y[:, :-1])
    assert abs(y.numel() - len(val.tokens)) <= 32 and y[-1, -1] == val.tokens[-1]  # not a million batches


def test_every_token_can_be_drawn(tmp_path):
    save_text(tmp_path / 'd', Tokenizer('bytes'), {'train': range(20)}, {'train': 20})
    x, y = next(TextSplit(tmp_path / 'd', 'train', 16).batches(500, 0, [slice(None)], 0, 1))
    assert x.min() == 0 and y.max() == 19
    with pytest.raises(Mistake, match='--block_size=19'):
        TextSplit(tmp_path / 'd', 'train', 20)


def test_bits_are_counted_for_each_byte():
    """Of text that has half as many tokens as bytes."""
    task = object.__new__(NextToken)
    task.valid = SimpleNamespace(tokens_per_byte=0.5)
    assert task.metrics(None, math.log(2), [0])[1]['bits_per_byte'] == 0.5


# ---- hidden tokens


def test_hidden_tokens_follow_bert(bytes_data):
    """15% of the tokens are chosen: 80% of these become [MASK], 10% a random token, 10% stay. y
    holds the chosen tokens, and -1 elsewhere."""
    splits = MaskedTextSplit(bytes_data / 'tiny', 'train', 32), TextSplit(bytes_data / 'tiny', 'train', 32)
    batches = (split.batches(64, 0, [slice(None)], 0, 40) for split in splits)
    (x, y), (truth, _) = ([torch.cat(parts) for parts in zip(*those)] for those in batches)
    mine, masked = y != -1, x == 256
    assert torch.equal(y[mine], truth[mine]) and torch.equal(x[~mine], truth[~mine]) and mine.any(1).all()
    assert mine.double().mean() == pytest.approx(0.15, abs=0.005) and not masked[~mine].any()
    assert masked[mine].double().mean() == pytest.approx(0.8, abs=0.01)
    assert (x == truth)[mine].double().mean() == pytest.approx(0.1, abs=0.01)
    placed = x[mine & ~masked & (x != truth)].unique()
    assert len(placed) > 200 and placed.max() < 256  # any token


def test_a_sequence_always_hides_something(bytes_data):
    """Of two tokens mostly neither is chosen; then one becomes [MASK]."""
    x, y = next(MaskedTextSplit(bytes_data / 'tiny', 'train', 2).batches(2000, 0, [slice(None)], 0, 1))
    assert (y != -1).sum(1).min() == 1 and (x[y != -1] == 256).float().mean() > 0.9


def test_large_vocabularies_are_validated_in_pieces(tiny, tmp_path, monkeypatch, quick):
    for name, rows in (('whole', 4), ('rows', 1)):
        monkeypatch.setattr('tasks.text.LOGITS_AT_ONCE', rows * 16 * 257)
        go(*tiny, '--model=crate', '--image_size=0', '--causal=false', '--dtype=float32',
           f'--out_dir={tmp_path}/{name}')
    for split, name in (('val', 'loss'), ('val', 'top1'), ('val', 'top5'), ('train', 'loss')):
        whole, rows = (column(tmp_path / out, split, name) for out in ('whole', 'rows'))
        assert rows == pytest.approx(whole, rel=1e-4)
