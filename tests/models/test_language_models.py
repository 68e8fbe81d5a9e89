"""CRATE on text: CRATE-GPT predicts the next token, CRATE-BERT fills in what is hidden."""
import inspect
import math
import re

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from conftest import ROOT, fails, losses, memorize, same_in_chunks

from tasks import files as data
import eval as scores
import model_aot
import model_crate
from engine import checkpoints as models
from engine import run as rundir
import sample
import train
from engine.generate import new_cache, step
from model_crate import CRATE, CRATEConfig
from tasks.tokenizer import Tokenizer

KINDS = [dict(), dict(tie_out=True, ista='soft'), dict(causal=False), dict(head_dim=12, ista='mm')]
CAUSAL = [kind for kind in KINDS if kind.get('causal', True)]


def small(seed=0, **kw):
    torch.manual_seed(seed)
    return CRATE(CRATEConfig(**dict(image_size=0, block_size=16, vocab_size=11, n_layer=3, n_head=2, n_embd=16) | kw)).eval()


def tokens(*shape, seed=1, vocab_size=11):
    return torch.randint(vocab_size, shape, generator=torch.Generator().manual_seed(seed))


# ---- the network


@pytest.mark.parametrize('causal', [True, False])
def test_the_logits_equal_the_paper_by_a_naive_loop(causal):
    """Eqs. (11), (115), (17) and (18), one token, head and number at a time."""
    model, x = small(causal=causal), tokens(1, 6)
    for p in model.parameters():
        p.data += 0.1 * torch.randn(p.shape, generator=torch.Generator().manual_seed(p.numel()))
    Z = [model.tok_emb.weight[t] + model.pos_emb.weight[i] for i, t in enumerate(x[0])]
    for layer in model.layers:
        normed, half = [layer.norm1(z) for z in Z], []
        for i, z in enumerate(Z):
            heads = []
            for k in range(2):
                U_k = layer.mssa.U.weight[8 * k:8 * k + 8].T
                w = [U_k.T @ n for n in normed[:i + 1 if causal else None]]
                weights = torch.stack([w_j @ (U_k.T @ normed[i]) / math.sqrt(8) for w_j in w]).softmax(0)
                heads.append(sum(a * w_j for a, w_j in zip(weights, w)))
            half.append(z + layer.mssa.W.weight @ torch.cat(heads) + layer.mssa.W.bias)
        D, Z = layer.ista.D, []
        for h in map(layer.norm2, half):
            Z.append(torch.clamp(h + 0.1 * D.T @ (h - D @ h) - 0.1 * 0.1, min=0))
    expected = torch.stack([model.tok_emb.weight @ model.norm(z) for z in Z])
    assert torch.allclose(model(x)[0][0], expected, atol=1e-4)


@pytest.mark.parametrize('kind', KINDS)
def test_a_causal_model_does_not_see_the_future_and_another_does(kind):
    model, x = small(**kind), tokens(2, 16)
    changed = x.clone()
    changed[:, 9:] = (changed[:, 9:] + 1) % 11
    a, b = model(x)[0], model(changed)[0]
    assert torch.equal(a[:, :9], b[:, :9]) == model.config.causal
    assert (a - b)[:, 0 if not model.config.causal else 9:].abs().amax(-1).min() > 0
    with torch.autocast('cpu', torch.bfloat16):
        assert torch.equal(model(x)[0][:, :9], model(changed)[0][:, :9]) == model.config.causal


@pytest.mark.parametrize('kind', KINDS)
def test_a_fresh_model_knows_nothing_and_can_memorize(kind):
    model, x, y = small(**kind, seed=3).train(), tokens(4, 16), tokens(4, 16, seed=2)
    assert model(x, y)[1].item() == pytest.approx(math.log(11), abs=0.1)
    memorize(model, x, y, 0.3)


@pytest.mark.parametrize('kind', CAUSAL)
def test_a_cache_changes_nothing(kind):
    model, x = small(**kind), tokens(3, 13)
    full, cache = model(x)[0], new_cache(model, 3)
    with torch.no_grad():
        assert torch.allclose(model.head(step(model, x[:, :6], cache)), full[:, 5], atol=1e-5)
        assert torch.allclose(model.head(step(model, x[:, 6:9], cache, 6)), full[:, 8], atol=1e-5)
        for i in range(9, 13):
            assert torch.allclose(model.head(step(model, x[:, i:i + 1], cache, i)), full[:, i], atol=1e-5)
    torch.manual_seed(5)
    a = model.generate(x, 20)
    torch.manual_seed(5)
    assert torch.equal(a, model.generate(x, 20, use_cache=False)) and a.shape == (3, 33)


def test_the_cache_holds_one_tensor_a_layer():
    assert new_cache(small(), 4).shape == (3, 1, 4, 2, 16, 8)


def test_only_a_causal_model_continues():
    with pytest.raises(ValueError, match='causal'):
        small(causal=False).generate(tokens(1, 3), 1)


@pytest.mark.parametrize('kind', KINDS)
def test_loss_in_chunks_is_the_same(kind, monkeypatch):
    x, y = tokens(3, 16), tokens(3, 16, seed=2)
    y[0, :5] = -1
    same_in_chunks(small(**kind), x, y, monkeypatch)


def test_what_stands_twice_is_the_same():
    """The loss in chunks is AoT's too; the two files stand alone on purpose."""
    ours, theirs = (re.sub(r'""".*?"""', '', inspect.getsource(Model.chunked_loss), flags=re.S)
                    for Model in (CRATE, model_aot.AoT))
    assert ours == theirs
    for N in (1, 5, 16):
        for causal in (True, False):
            q, k, v = torch.randn(3, 2, 4, 16, 8, generator=torch.Generator().manual_seed(N))
            q = q[:, :, -N:] if causal else q
            for low in (torch.float32, torch.bfloat16):
                a, b = (m.attend(q.to(low), k.to(low), v.to(low), 0.0, causal) for m in (model_crate, model_aot))
                assert torch.allclose(a.float(), b.float(), atol=1e-6 if low == torch.float32 else 2e-2)


@pytest.mark.parametrize('kind', KINDS)
def test_compiles_as_one_graph(kind):
    model, x, y = small(**kind), tokens(2, 16), tokens(2, 16, seed=2)
    assert torch.allclose(torch.compile(model, backend='eager', fullgraph=True)(x, y)[1], model(x, y)[1])


@pytest.mark.parametrize('shape, vocab_size, block_size', [((12, 768, 12), 50257, 1024), ((12, 768, 12), 50258, 512), ((8, 512, 8), 50258, 512)])
def test_parameters_by_hand(shape, vocab_size, block_size):
    n, d, K = shape
    with torch.device('meta'):
        model = CRATE(CRATEConfig(image_size=0, vocab_size=vocab_size, block_size=block_size, n_layer=n, n_embd=d, n_head=K))
    layer = 3 * d * d + d + 2 * 2 * d  # U, W with a bias, D; two LayerNorms
    assert model.num_params() == (vocab_size + block_size) * d + n * layer + 2 * d
    if vocab_size == 50257:
        assert round(model.num_params() / 1e6) == 61  # "about 60M"


def test_too_many_tokens_are_refused():
    with pytest.raises(ValueError, match='block_size=16'):
        small()(tokens(1, 17))


# ---- what is hidden


@pytest.fixture(scope='module')
def text(bytes_data):
    return data.MaskedText(bytes_data / 'tiny', 'train', 32)


def test_hidden_tokens_follow_bert(text):
    """15% are chosen: of these 80% [MASK], 10% random, 10% kept; y holds the truth of the chosen, -1 elsewhere."""
    plain = data.Text(text.path.parent, 'train', 32)
    chosen = masked = kept = count = 0
    for step_, ((x, y), (truth, _)) in enumerate(zip(text.batches(64, 0, [slice(None)], 0, 40), plain.batches(64, 0, [slice(None)], 0, 40))):
        mine = y != -1
        assert torch.equal(y[mine], truth[mine]) and torch.equal(x[~mine], truth[~mine])
        assert mine.any(1).all() and (x[mine] <= 256).all() and not (x[~mine] == 256).any()
        count, chosen = count + y.numel(), chosen + mine.sum().item()
        masked, kept = masked + (x == 256).sum().item(), kept + (x[mine] == truth[mine]).sum().item()
    assert chosen / count == pytest.approx(0.15, abs=0.005)
    assert masked / chosen == pytest.approx(0.8, abs=0.01) and kept / chosen == pytest.approx(0.1, abs=0.01)


def test_a_sequence_always_hides_something(text):
    x, y = text.hidden(np.array([0, 5]), np.full((2, 2, 32), 0.99))
    assert ((y != -1).sum(1) == 1).all() and (x[y != -1] == 256).all()


def test_what_is_hidden_depends_on_seed_and_step_alone_and_never_in_validation(text):
    whole = list(text.batches(4, 7, [slice(None)], 0, 3))
    parts = list(text.batches(4, 7, [slice(0, 2), slice(2, 4)], 2, 3))
    assert all(torch.equal(torch.cat([p[i] for p in parts]), whole[2][i]) for i in (0, 1))
    assert not torch.equal(whole[0][0], next(text.batches(4, 8, [slice(None)]))[0])
    a, b = (torch.cat([x for x, _ in text.fixed(n, 12 // n)]) for n in (3, 4))
    assert torch.equal(a, b)  # however many in a batch
    halves = [torch.cat([x for x, _ in text.fixed(3, 4, rank, 2)]) for rank in (0, 1)]
    assert torch.equal(torch.cat((halves[0][:3], halves[1][:3], halves[0][3:], halves[1][3:])), a)


# ---- runs


@pytest.fixture(scope='module')
def words(tiny):
    return [*tiny, '--model=crate', '--image_size=0', '--dtype=float32']


@pytest.fixture(scope='module')
def bert(words, tmp_path_factory):
    out = tmp_path_factory.mktemp('runs') / 'bert'
    train.main([*words, '--causal=false', f'--out_dir={out}'])
    return out


def test_the_log_has_the_accuracy_of_hidden_tokens_and_eval_agrees(bert, bytes_data, capsys):
    columns, *_, last = (line.split(',') for line in losses(bert))
    row = dict(zip(columns, last))
    model = models.load_model(rundir.load_checkpoint(bert / 'last.pt'))
    assert model.config.vocab_size == 257
    split, right, five, total, count = data.MaskedText(bytes_data / 'tiny', 'val', 16), 0, 0, 0.0, 0
    for x, y in split.fixed(1, 8):  # 4 x 2 in the run
        for i, t in enumerate(y[0].tolist()):
            if t != -1:
                logits = model(x)[0][0, i]
                order = logits.argsort(descending=True).tolist()
                right, five, count = right + (order[0] == t), five + (t in order[:5]), count + 1
                total += F.cross_entropy(logits, torch.tensor(t)).item()
    assert float(row['top1']) == pytest.approx(right / count) and float(row['top5']) == pytest.approx(five / count)
    assert float(row['loss']) == pytest.approx(total / count, rel=1e-5)
    capsys.readouterr()
    scores.main([f'--ckpt={bert}/last.pt', f'--data_dir={bytes_data}', '--dtype=float32', '--batch_size=3'])
    said = capsys.readouterr().out
    right, total, count, hidden = 0, 0.0, 0, []
    for x, y in split.fixed(1, len(split)):
        logits, mine = model(x)[0], y != -1
        hidden += y[mine].tolist()
        right, count = right + (logits[mine].argmax(-1) == y[mine]).sum().item(), count + mine.sum().item()
        total += F.cross_entropy(logits[mine], y[mine], reduction='sum').item()
    assert f'{count:,} hidden tokens' in said and f'loss {total / count:.4f}' in said and f'top-1 {right / count:.2%}' in said
    assert f'commonest: top-1 {max(map(hidden.count, set(hidden))) / count:.2%}' in said


@pytest.mark.parametrize('causal', ['true', 'false'])
def test_a_run_on_text_goes_on_bit_for_bit(causal, words, tmp_path):
    words = [*words, f'--causal={causal}', '--dropout=0.1']
    train.main([*words, f'--out_dir={tmp_path}/whole'])
    train.main([*words, f'--out_dir={tmp_path}/part', '--max_iters=3', '--lr_decay_iters=6'])
    train.main([f'--out_dir={tmp_path}/part', '--init_from=resume', '--max_iters=6'])
    assert losses(tmp_path / 'part')[-3:] == losses(tmp_path / 'whole')[-3:]
    a, b = (rundir.load_checkpoint(tmp_path / run / 'last.pt')['weights'] for run in ('whole', 'part'))
    assert all(torch.equal(a[k], b[k]) for k in a)


def test_large_vocabularies_are_validated_in_pieces(bert, bytes_data, words, tmp_path, monkeypatch):
    monkeypatch.setattr(CRATE, 'LOGITS_AT_ONCE', 16 * 257)  # one row
    train.main([*words, '--causal=false', f'--out_dir={tmp_path}/pieces'])
    ours, whole = ([line.split(',') for line in losses(run)] for run in (tmp_path / 'pieces', bert))
    for a, b in zip(ours[1:], whole[1:]):
        assert a[:2] == b[:2] and [float(v or 0) for v in a[2:]] == pytest.approx([float(v or 0) for v in b[2:]], rel=1e-4)


def test_a_model_of_text_continues_or_fills(bert, words, tmp_path, capsys):
    train.main([*words, f'--out_dir={tmp_path}/gpt'])
    capsys.readouterr()
    sample.main([f'--ckpt={tmp_path}/gpt', '--start=the', '--max_new_tokens=8'])
    assert capsys.readouterr().out.startswith('the')
    sample.main([f'--ckpt={bert}', '--start=th[MASK] [MASK]f'])
    *gaps, filled = capsys.readouterr().out.splitlines()
    model, tokenizer = models.load_model(rundir.load_checkpoint(bert)), Tokenizer('bytes')
    logits = model(torch.tensor([[*b'th', 256, *b' ', 256, *b'f']]))[0][0, :, :256]
    for number, (gap, i) in enumerate(zip(gaps, (2, 4)), 1):
        chance, best = logits[i].softmax(0).topk(5)
        assert gap == f'[MASK] {number}: ' + ', '.join(f'{tokenizer.decode([t])!r} {p:.1%}' for t, p in zip(best.tolist(), chance.tolist()))
    assert filled.encode('utf-8', 'replace')[:2] == b'th' and len(gaps) == 2
    assert 'give a text with [MASK]' in fails(capsys, sample.main, f'--ckpt={bert}', '--start=the')
    assert 'block_size=16' in fails(capsys, sample.main, f'--ckpt={bert}', '--start=' + 'a' * 16 + '[MASK]')


def test_text_is_for_models_that_read_it(words, tmp_path, capsys, monkeypatch):
    out = [f'--out_dir={tmp_path}/none']
    assert 'holds text' in fails(capsys, train.main, *words, '--image_size=32', *out)
    assert 'model=vit does not read that' in fails(capsys, train.main, *words[:2], '--model=vit', *out)
    assert 'vocab_size=256 is too small' in fails(capsys, train.main, *words, '--causal=false', '--vocab_size=256', *out)
    monkeypatch.setattr(CRATE, 'LOGITS_AT_ONCE', 5 * 257)
    assert 'set --block_size=5 or less' in fails(capsys, train.main, *words, '--causal=false', *out)
    assert not (tmp_path / 'none').exists()


def test_weights_stay_the_function_that_they_were_trained_as(bert, words, tmp_path, capsys):
    train.main([*words, f'--out_dir={tmp_path}/gpt'])
    for path, causal in ((bert, 'true'), (tmp_path / 'gpt', 'false')):
        for main in (scores.main, sample.main):
            assert f'not {causal}; leave causal out' in fails(capsys, main, f'--ckpt={path}', *words[:1] * (main == scores.main), f'--causal={causal}')
        assert 'leave causal out' in fails(capsys, train.main, f'--init_from={path}', *words[:2], f'--causal={causal}', f'--out_dir={tmp_path}/none')
    assert 'would read images' in fails(capsys, sample.main, f'--ckpt={bert}', '--image_size=32')


@pytest.mark.parametrize('words, config', [
    (['--dataset=stdlib'], 'crate_shakespeare_char'), (['--dataset=stdlib', '--causal=false'], 'crate_bert_stdlib'), ([], 'crate_shapes'),
    (['--dataset=tiny', '--data_dir={}'], 'crate_shakespeare_char'), (['--dataset=shapes'], 'crate_shapes')])
def test_a_network_alone_takes_the_recipe_for_its_data(words, config, bytes_data):
    c, _, given, _ = train.settings(['--model=crate', *(word.format(bytes_data) for word in words), '--out_dir=x'])
    want, _, others, _ = train.settings([str(ROOT / 'config' / f'train_{config}.py')])
    assert (c.batch_size, c.muon_lr, c.max_iters, given['n_layer']) == (want.batch_size, want.muon_lr, want.max_iters, others['n_layer'])
    assert given.get('block_size') == others.get('block_size')
