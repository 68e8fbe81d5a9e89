"""Scores of language benchmarks against naive loops, on small benchmarks in the true formats."""
import contextlib
import math
from types import SimpleNamespace

import pytest
import torch
from helpers import text_network
from small_benchmarks import PASSAGES, PTB, WIKI, naive, prepare, rows, write_archives

from scoring import benchmarks
from tasks.tokenizer import Tokenizer

PLAIN, BYTES = contextlib.nullcontext(), Tokenizer('bytes')


@pytest.fixture(scope='module')
def prepared(tmp_path_factory):
    """A data_dir with all six benchmarks."""
    return prepare(write_archives(tmp_path_factory.mktemp('archives')), tmp_path_factory.mktemp('data'))


class Table(torch.nn.Module):
    """A language model that knows the token before: logits (V, V)."""

    def __init__(self, logits, block_size):
        super().__init__()
        self.logits = torch.nn.Parameter(logits)
        self.config = SimpleNamespace(block_size=block_size, vocab_size=len(logits))

    def forward(self, x):
        assert x.size(1) <= self.config.block_size
        return self.logits[x], None


def bigrams(block_size):
    return Table(2 * torch.randn(256, 256, generator=torch.Generator().manual_seed(0)), block_size)


def words():
    """A model that has learnt by heart which letter follows which in some words, and hardly anything else."""
    logits = 0.01 * bigrams(64).logits.data
    for a, b in zip(b'rugca', b'ugcat'):
        logits[a, b] = 9.0
    logits[ord(' '), ord('r')] = logits[ord('e'), ord(' ')] = 10.0
    return Table(logits, 64)


def aot(block_size):
    model = text_network('aot', block_size=block_size, vocab_size=256)
    for p in model.parameters():
        torch.nn.init.normal_(p, std=0.5)
    return model


def test_few_logits_are_held_at_once(monkeypatch):
    model, shapes = aot(8), []
    sequences = [(list(range(n)), 1) for n in (5, 9, 30, 2)]
    before = benchmarks.score(model, sequences, 4, 64, PLAIN, '')
    model.register_forward_hook(lambda m, x, y: shapes.append(y[0].numel()))
    for most, held in ((3 * 8 * 256, 3 * 8 * 256), (1, 8 * 256)):
        monkeypatch.setattr(benchmarks, 'LOGITS_AT_ONCE', most)
        after = benchmarks.score(model, sequences, 4, 64, PLAIN, '')
        assert max(shapes) == held and all(torch.allclose(a, b, atol=1e-5) for a, b in zip(before, after))
        shapes.clear()


def results(model, folder, asked, tokenizer=BYTES, stride=0, batch_size=5):
    """{(benchmark, measure): value} and {..: count}."""
    stride = stride or model.config.block_size // 2
    found = {(name, measure): (value, count) for name, (rows, _) in benchmarks.read(asked, folder).items()
             for measure, value, count, _ in benchmarks.measures(
                 name, rows, model, tokenizer, stride, batch_size, PLAIN)}
    return [{k: pair[i] for k, pair in found.items()} for i in (0, 1)]


def test_a_uniform_model_scores_the_log_of_the_vocabulary(prepared):
    """8 bits a byte; all choices of equal length tie, and the first is taken."""
    value, count = results(Table(torch.zeros(256, 256), 16), prepared, 'all')
    for name, text in (('wikitext2', WIKI), ('ptb', PTB), ('lambada', ''.join(PASSAGES))):
        assert value[name, 'bits_per_byte'] == pytest.approx(8) and count[name, 'bits_per_byte'] == len(text.encode())
    assert (count['lambada', 'last_word_loss'], count['lambada', 'loss_per_word']) == (len(' rug cat'), 2)
    assert value['lambada', 'accuracy'] == 0
    assert value['cbt_cn', 'accuracy'] == 0.5 and count['cbt_cn', 'accuracy'] == 2  # `bee` is wrong, `ant` is right
    assert value['cbt_ne', 'accuracy'] == 0  # the shortest name, Bo
    padded = Table(torch.zeros(300, 300), 16)
    assert results(padded, prepared, 'ptb')[0]['ptb', 'loss'] == pytest.approx(math.log(300), rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize('model, stride', [(bigrams(64), 32), (bigrams(4), 3), (words(), 32), (aot(8), 4),
                                           (aot(256), 9), (aot(8), 1)])
def test_scores_are_those_of_a_naive_loop(model, stride, prepared):
    values = [results(model, prepared, 'lambada,ptb,cbt_cn', stride=stride, batch_size=n)[0] for n in (5, 1, 1000)]
    value, begin, encode = values[0], [10], lambda text: list(text.encode())
    assert all(value == pytest.approx(other, rel=1e-4) for other in values)     # batch_size changes nothing
    nats = naive(model, begin + encode(PTB), 1, stride)[0]
    want = {('ptb', 'loss'): sum(nats) / len(nats), ('ptb', 'bits_per_byte'): sum(nats) / math.log(2) / len(PTB)}
    last, whole, guessed = [], [], []
    for p in PASSAGES:
        context, word = p.rsplit(None, 1)
        tokens, target = begin + encode(f'{context} {word}'), encode(f' {word}')
        nats, right = naive(model, tokens, len(tokens) - len(target), stride)
        last, whole, guessed = last + nats, whole + naive(model, tokens, 1, stride)[0], [*guessed, all(right)]
    want |= {('lambada', 'last_word_loss'): sum(last) / len(last), ('lambada', 'loss_per_word'): sum(last) / 2,
             ('lambada', 'loss'): sum(whole) / len(whole), ('lambada', 'accuracy'): sum(guessed) / 2}
    found = 0
    for row in rows(prepared, 'cbt_cn'):
        context, sums = begin + encode(' '.join(row['context'])), []
        for choice in row['choices']:
            tokens = context + encode(' ' + row['question'].replace('XXXXX', choice))
            sums.append(sum(naive(model, tokens, len(context), stride)[0]))
        assert sorted(sums)[1] - min(sums) > 1e-3  # no tie
        found += row['choices'][sums.index(min(sums))] == row['answer']
    want['cbt_cn', 'accuracy'] = found / 2
    assert {k: value[k] for k in want} == pytest.approx(want, rel=1e-4)
