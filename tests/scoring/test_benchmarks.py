"""Scores of language benchmarks against naive loops, on small benchmarks in the true formats."""
import contextlib
import math
from types import SimpleNamespace

import pytest
import torch
from helpers import generator, text_network
from small_benchmarks import PASSAGES, PTB, WIKI, naive, prepare, rows, write_archives

from scoring import benchmarks
from tasks.tokenizer import Tokenizer

PLAIN = contextlib.nullcontext()
BEGIN = [10]  # a new line, the token that starts texts


@pytest.fixture(scope='module')
def prepared(tmp_path_factory):
    """A data_dir with all six benchmarks."""
    archives = write_archives(tmp_path_factory.mktemp('archives'))
    return prepare(archives, tmp_path_factory.mktemp('data'))


class Table(torch.nn.Module):
    """A language model that knows the token before: logits (V, V)."""

    def __init__(self, logits, block_size):
        super().__init__()
        self.logits = torch.nn.Parameter(logits)
        self.config = SimpleNamespace(block_size=block_size, vocab_size=len(logits))

    def forward(self, x):
        assert x.size(1) <= self.config.block_size
        return self.logits[x], None


def words():
    """A model that has learnt by heart which letter follows which in some words, and hardly
    anything else."""
    logits = 0.02 * torch.randn(256, 256, generator=generator(0))
    for letter, next_letter in zip(b'rugca', b'ugcat'):
        logits[letter, next_letter] = 9.0
    logits[ord(' '), ord('r')] = 10.0
    logits[ord('e'), ord(' ')] = 10.0
    return Table(logits, 64)


def aot(block_size):
    model = text_network('aot', block_size=block_size, vocab_size=256)
    for p in model.parameters():
        torch.nn.init.normal_(p, std=0.5)
    return model


def encode(text):
    return list(text.encode())


def measured(model, folder, asked, stride, batch_size):
    """{(benchmark, measure): (value, count)}"""
    results = {}
    for name, (examples, _) in benchmarks.read(asked, folder).items():
        measures = benchmarks.measures(name, examples, model, Tokenizer('bytes'), stride,
                                       batch_size, PLAIN)
        for measure, value, count, _ in measures:
            results[name, measure] = value, count
    return results


@pytest.mark.parametrize('logits_at_once, n_rows', [(3 * 8 * 256, 3), (1, 1)])
def test_few_logits_are_held_at_once(logits_at_once, n_rows, monkeypatch):
    model = aot(8)
    sequences = [(list(range(n)), 1) for n in (5, 9, 30, 2)]
    expected = benchmarks.score(model, sequences, 4, 64, PLAIN, '')
    sizes = []
    model.register_forward_hook(lambda model, x, out: sizes.append(out[0].numel()))
    monkeypatch.setattr(benchmarks, 'LOGITS_AT_ONCE', logits_at_once)

    scores = benchmarks.score(model, sequences, 4, 64, PLAIN, '')

    assert max(sizes) == n_rows * 8 * 256
    torch.testing.assert_close(scores, expected, rtol=1e-5, atol=1e-5)


def test_a_uniform_model_scores_the_log_of_the_vocabulary(prepared):
    """8 bits a byte; all choices of equal length tie, and the first is taken."""
    results = measured(Table(torch.zeros(256, 256), 16), prepared, 'all', 8, 5)

    for name, text in (('wikitext2', WIKI), ('ptb', PTB), ('lambada', ''.join(PASSAGES))):
        assert results[name, 'bits_per_byte'] == (pytest.approx(8), len(text.encode()))
    assert results['lambada', 'last_word_loss'][1] == len(' rug cat')
    assert results['lambada', 'loss_per_word'][1] == 2
    assert results['lambada', 'accuracy'][0] == 0
    assert results['cbt_cn', 'accuracy'] == (0.5, 2)    # `bee` is wrong, `ant` is right
    assert results['cbt_ne', 'accuracy'][0] == 0        # the shortest name, Bo

    padded = measured(Table(torch.zeros(300, 300), 16), prepared, 'ptb', 8, 5)
    assert padded['ptb', 'loss'][0] == pytest.approx(math.log(300), rel=1e-5)


def naive_scores(model, folder, stride):
    """{(benchmark, measure): value} of ptb, lambada and cbt_cn."""
    nats, _ = naive(model, BEGIN + encode(PTB), 1, stride)
    expected = {('ptb', 'loss'): sum(nats) / len(nats),
                ('ptb', 'bits_per_byte'): sum(nats) / math.log(2) / len(PTB)}

    nats_of_words = []
    nats_of_passages = []
    n_right = 0
    for passage in PASSAGES:
        context, word = passage.rsplit(None, 1)
        text = BEGIN + encode(f'{context} {word}')
        n_context = len(text) - len(encode(f' {word}'))
        nats, right = naive(model, text, n_context, stride)
        nats_of_words += nats
        nats_of_passages += naive(model, text, 1, stride)[0]
        n_right += all(right)
    expected['lambada', 'last_word_loss'] = sum(nats_of_words) / len(nats_of_words)
    expected['lambada', 'loss_per_word'] = sum(nats_of_words) / 2
    expected['lambada', 'loss'] = sum(nats_of_passages) / len(nats_of_passages)
    expected['lambada', 'accuracy'] = n_right / 2

    n_right = 0
    for row in rows(folder, 'cbt_cn'):
        context = BEGIN + encode(' '.join(row['context']))
        sums = []
        for choice in row['choices']:
            sentence = encode(' ' + row['question'].replace('XXXXX', choice))
            sums.append(sum(naive(model, context + sentence, len(context), stride)[0]))
        assert sorted(sums)[1] - min(sums) > 1e-3  # no tie
        n_right += row['choices'][sums.index(min(sums))] == row['answer']
    expected['cbt_cn', 'accuracy'] = n_right / 2
    return expected


@pytest.mark.slow
@pytest.mark.parametrize('model, stride', [(aot(4), 3), (words(), 32), (aot(8), 4)])
def test_scores_are_those_of_a_naive_loop(model, stride, prepared):
    expected = naive_scores(model, prepared, stride)

    for batch_size in (1, 5, 1000):
        results = measured(model, prepared, 'lambada,ptb,cbt_cn', stride, batch_size)
        values = {key: results[key][0] for key in expected}
        assert values == pytest.approx(expected, rel=1e-4)
