"""Text: batches of sequences, tokens that are hidden as in BERT, and training runs on both."""
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from helpers import TEXT, column, config_of, equal, go, losses, save_text, weights

import model_aot
import model_crate
from engine.trained import load_model, open_run
from tasks import hidden
from tasks.hidden import MaskedTextSplit
from tasks.text import TextSplit
from tasks.tokenizer import Tokenizer

# ---- one split of a dataset


@pytest.fixture
def folder(bytes_data):
    return bytes_data / 'tiny'


def test_what_is_saved_is_read(folder):
    train, val = TextSplit(folder, 'train', 16), TextSplit(folder, 'val', 16)
    assert bytes(train.tokens.astype(np.uint8)) + bytes(val.tokens.astype(np.uint8)) == TEXT.encode()
    assert train.tokens.dtype == np.uint16 and train.tokens_per_byte == 1
    assert isinstance(train.tokens, np.memmap)


def test_targets_are_one_token_ahead_and_batches_depend_on_seed_and_step_alone(folder):
    text = TextSplit(folder, 'train', 16)

    def batch(n, seed, step, *share):
        x, y = zip(*text.batches(n, seed, share or [slice(None)], step, step + 1))
        return torch.cat(x), torch.cat(y)
    x, y = batch(5, 1, 7)
    assert x.shape == y.shape == (5, 16) and (x[:, 1:] == y[:, :-1]).all()
    again = [x for x, _ in TextSplit(folder, 'train', 16).batches(5, 1, [slice(None)], 6, 8)][1]
    assert (x == again).all() and not (x == batch(5, 1, 8)[0]).all() and not (x == batch(5, 2, 7)[0]).all()
    whole = batch(6, 1, 7)[0]
    assert torch.equal(torch.cat([batch(6, 1, 7, slice(i, i + 2))[0] for i in (0, 2, 4)]), whole)  # of three processes
    assert torch.equal(batch(6, 1, 7, slice(0, 2), slice(2, 6))[0], whole)                         # in two passes


def test_every_token_can_be_drawn(tmp_path):
    save_text(tmp_path / 'd', Tokenizer('bytes'), {'train': range(20)}, {'train': 20})
    x, y = next(TextSplit(tmp_path / 'd', 'train', 16).batches(500, 0, [slice(None)], 0, 1))
    assert x.min() == 0 and y.max() == 19


def test_validation_batches_are_fixed_and_spread(folder):
    val = TextSplit(folder, 'val', 16)
    a, b = [x for x, _ in val.fixed(4, 10)], [x for x, _ in val.fixed(4, 10)]
    assert len(a) == 10 and all((p == q).all() for p, q in zip(a, b))
    everything = [y for _, y in val.fixed(4, 10 ** 6)]
    assert abs(sum(y.numel() for y in everything) - len(val.tokens)) <= 32  # the split once, not a million batches
    assert everything[-1][-1, -1] == val.tokens[-1]


def test_short_text_says_which_block_size_fits(folder):
    with pytest.raises(ValueError, match='--block_size='):
        TextSplit(folder, 'val', 10 ** 6)


# ---- hidden tokens


@pytest.fixture
def masked(folder):
    return MaskedTextSplit(folder, 'train', 32)


def test_hidden_tokens_follow_bert(masked, folder):
    """15% of the tokens are chosen: 80% of these become [MASK], 10% a random token, 10% stay. y
    holds the chosen tokens, and -1 elsewhere."""
    batches = [split.batches(64, 0, [slice(None)], 0, 40) for split in (masked, TextSplit(folder, 'train', 32))]
    chosen = hidden = kept = count = 0
    placed = []
    for (x, y), (truth, _) in zip(*batches):
        mine = y != -1
        assert torch.equal(y[mine], truth[mine]) and torch.equal(x[~mine], truth[~mine])
        assert mine.any(1).all() and (x[mine] <= 256).all() and not (x[~mine] == 256).any()
        count, chosen = count + y.numel(), chosen + mine.sum().item()
        placed += x[mine & (x != 256) & (x != truth)].tolist()
        hidden, kept = hidden + (x == 256).sum().item(), kept + (x[mine] == truth[mine]).sum().item()
    assert chosen / count == pytest.approx(0.15, abs=0.005)
    assert hidden / chosen == pytest.approx(0.8, abs=0.01) and kept / chosen == pytest.approx(0.1, abs=0.01)
    assert len(set(placed)) > 200 and max(placed) < 256  # any token


def test_a_sequence_always_hides_something(folder):
    """Of two tokens mostly neither is chosen; then one becomes [MASK]."""
    x, y = next(MaskedTextSplit(folder, 'train', 2).batches(2000, 0, [slice(None)], 0, 1))
    chosen = (y != -1).sum(1)
    assert chosen.min() == 1 and (x[y != -1] == 256).float().mean() > 0.9


def test_what_is_hidden_depends_on_seed_and_step_alone_and_never_in_validation(masked):
    whole = list(masked.batches(4, 7, [slice(None)], 0, 3))
    parts = list(masked.batches(4, 7, [slice(0, 2), slice(2, 4)], 2, 3))
    assert all(torch.equal(torch.cat([p[i] for p in parts]), whole[2][i]) for i in (0, 1))
    assert not torch.equal(whole[0][0], next(masked.batches(4, 8, [slice(None)], 0, 1))[0])
    a, b = (torch.cat([x for x, _ in masked.fixed(n, 12 // n)]) for n in (3, 4))
    assert torch.equal(a, b)  # however many in a batch
    halves = [torch.cat([x for x, _ in masked.fixed(3, 4, rank, 2)]) for rank in (0, 1)]
    assert torch.equal(torch.cat((halves[0][:3], halves[1][:3], halves[0][3:], halves[1][3:])), a)


# ---- runs


@pytest.fixture(scope='module')
def words(tiny):
    return [*tiny, '--model=crate', '--image_size=0', '--dtype=float32']


@pytest.fixture(scope='module')
def bert(words, tmp_path_factory):
    """A run that fills in hidden tokens."""
    out = tmp_path_factory.mktemp('runs') / 'bert'
    go(*words, '--causal=false', f'--out_dir={out}')
    return out


def test_bits_per_byte_of_the_log(words, tmp_path):
    go(*words, f'--out_dir={tmp_path}/a')
    loss, bits = column(tmp_path / 'a', 'val'), column(tmp_path / 'a', 'val', 'bits_per_byte')
    assert bits == pytest.approx([value / np.log(2) for value in loss])  # a token is a byte


def test_accuracy_of_hidden_tokens_in_the_log(bert, folder):
    run = open_run(bert)
    model = load_model(run)
    assert model.config.vocab_size == config_of(bert)['vocab_size'] == 257
    right, five, total, count = 0, 0, 0.0, 0
    for x, y in MaskedTextSplit(folder, 'val', 16).fixed(1, 8):  # 4 x 2 in the run
        for i, t in enumerate(y[0].tolist()):
            if t != -1:
                logits = model(x)[0][0, i]
                order = logits.argsort(descending=True).tolist()
                right, five, count = right + (order[0] == t), five + (t in order[:5]), count + 1
                total += F.cross_entropy(logits, torch.tensor(t)).item()
    logged = [column(bert, 'val', name)[run['step'] // 3] for name in ('loss', 'top1', 'top5')]
    assert logged == pytest.approx([total / count, right / count, five / count], rel=1e-5)


@pytest.mark.parametrize('causal', ['true', 'false'])
def test_a_run_goes_on_bit_for_bit(causal, words, tmp_path):
    words = [*words, f'--causal={causal}', '--dropout=0.1']
    go(*words, f'--out_dir={tmp_path}/whole')
    go(*words, f'--out_dir={tmp_path}/part', '--max_iters=3', '--lr_decay_iters=6')
    go(f'--out_dir={tmp_path}/part', '--init_from=resume', '--max_iters=6')
    assert losses(tmp_path / 'part')[-3:] == losses(tmp_path / 'whole')[-3:]
    assert equal(weights(tmp_path / 'whole'), weights(tmp_path / 'part'))


def test_large_vocabularies_are_validated_in_pieces(bert, words, tmp_path, monkeypatch):
    monkeypatch.setattr(hidden, 'LOGITS_AT_ONCE', 16 * 257)  # one row
    go(*words, '--causal=false', f'--out_dir={tmp_path}/pieces')
    for name in ('loss', 'top1', 'top5'):
        assert column(tmp_path / 'pieces', 'val', name) == pytest.approx(column(bert, 'val', name), rel=1e-4)
    assert column(tmp_path / 'pieces', 'train') == pytest.approx(column(bert, 'train'), rel=1e-4)


def test_networks_return_as_many_logits_as_validation_asks_for():
    for file in (model_aot, model_crate):
        assert file.LanguageHead.LOGITS_AT_ONCE == hidden.LOGITS_AT_ONCE
