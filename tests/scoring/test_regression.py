"""In-context regression: prompts, estimators, the network that learns to be one, and Figure 6."""
import csv

import numpy as np
import pytest
import torch
from conftest import ROOT, fails, losses, memorize

import eval as scores
from tasks import regression as icl
from engine import checkpoints as models
from engine import run as rundir
import sample
import train
from tasks.regression import Prompts
from model_aot import AoT, AoTConfig

WORDS = ['--dataset=linear', '--n_dims=4', '--block_size=12', '--n_layer=2', '--n_head=2', '--n_embd=16', '--batch_size=4', '--max_iters=6',
         '--eval_interval=3', '--eval_iters=2', '--log_interval=1', '--warmup_iters=2', '--dtype=float32']


def small(seed=0, **kw):
    torch.manual_seed(seed)
    return AoT(AoTConfig(**dict(block_size=12, n_dims=4, n_layer=3, n_head=2, n_embd=16) | kw)).eval()


def draw(B=3, n=6, d=4, seed=0):
    return Prompts('linear', d, n).draw(np.random.default_rng(seed), B)


# ---- prompts


@pytest.mark.parametrize('function, nonzero', [('linear', 20), ('sparse_linear', 3)])
def test_prompts_are_of_linear_functions(function, nonzero):
    prompts = Prompts(function, 20, 41)
    x, y = prompts.draw(np.random.default_rng(0), 400)
    assert x.shape == (400, 41, 20) and y.shape == (400, 41) and x.dtype == y.dtype == torch.float32
    w = torch.linalg.lstsq(x, y[..., None]).solution                     # 41 equations, 20 unknowns: w itself
    assert (x @ w - y[..., None]).abs().max() < 1e-3
    assert ((w.abs() > 1e-4).sum(1) == nonzero).all()
    assert len(set((w[:, :, 0].abs() > 1e-4).nonzero()[:, 1].tolist())) == 20  # any of them
    assert x.mean().item() == pytest.approx(0, abs=0.01) and x.var().item() == pytest.approx(1, abs=0.01)
    assert w[w.abs() > 1e-4].var().item() == pytest.approx(1, abs=0.2)
    assert (y ** 2).mean().item() / prompts.scale == pytest.approx(1, abs=0.1)


def test_prompts_depend_on_seed_and_step_alone():
    prompts = Prompts('linear', 4, 6)
    whole = list(prompts.batches(4, 7, [slice(None)], 0, 3))
    parts = list(prompts.batches(4, 7, [slice(0, 2), slice(2, 4)], 2, 3))
    assert all(torch.equal(torch.cat([p[i] for p in parts]), whole[2][i]) for i in (0, 1))
    validation = [list(prompts.fixed(4, 6, rank, world)) for rank, world in ((0, 1), (0, 2), (1, 2))]
    for i, (x, y) in enumerate(validation[0]):
        assert torch.equal(x, validation[1 + i % 2][i // 2][0])
    others = next(prompts.batches(4, 8, [slice(None)]))[0], whole[0][0], validation[0][0][0], next(prompts.fixed(4, 1, stream=9))[0]
    assert len({x[0, 0, 0].item() for x in others}) == 4  # training, another seed's, validation, Figure 6: four streams


def test_a_curriculum_grows_to_the_whole():
    prompts = Prompts('linear', 20, 41, curriculum=2000)
    assert [prompts.stage(s) for s in (0, 1999, 2000, 28_000, 29_999, 30_000, 50_000)] == \
        [(5, 11), (5, 11), (6, 13), (19, 39), (19, 39), (20, 41), (20, 41)]
    x, y = next(prompts.batches(4, 0, [slice(None)], 2000))
    assert x.shape == (4, 13, 20) and (x[..., 6:] == 0).all() and (x[..., :6] != 0).all()
    assert Prompts('linear', 20, 41).stage(0) == (20, 41)


@pytest.mark.parametrize('settings, word', [(dict(function='cubic'), 'linear or sparse_linear'), (dict(n_points=1), 'block_size=4'),
                                            (dict(function='sparse_linear', sparsity=5), 'n_dims=4'),
                                            (dict(function='sparse_linear', sparsity=0), 'between 1')])
def test_impossible_prompts_say_why(settings, word):
    with pytest.raises(ValueError, match=word):
        Prompts(**dict(function='linear', n_dims=4, n_points=6) | settings)


# ---- estimators


def test_least_squares_is_numpys_and_exact_once_it_can_be():
    x, y = draw(n=9)
    guess = icl.least_squares(x, y)
    for b in range(3):
        for i in range(1, 9):
            w = np.linalg.lstsq(x[b, :i].numpy(), y[b, :i].numpy(), rcond=None)[0]  # the smallest of the best
            assert guess[b, i].item() == pytest.approx((x[b, i].numpy() @ w).item(), abs=1e-4)
    assert (guess[:, 4:] - y[:, 4:]).abs().max() < 1e-3 and (guess[:, 0] == 0).all()


def test_lasso_minimizes_its_objective():
    x, y = Prompts('sparse_linear', 20, 30).draw(np.random.default_rng(0), 8)
    for i in (1, 7, 19, 29):
        X, Y = x[:, :i].double(), y[:, :i].double()
        w = icl.lasso_weights(X, Y, alpha=0.05, steps=3000)
        g = (X.mT @ (Y - (X @ w[..., None])[..., 0])[..., None])[..., 0] / i        # 0 is among the subgradients:
        assert (g[w != 0] - 0.05 * w[w != 0].sign()).abs().max() < 1e-5 and g[w == 0].abs().max() < 0.05 + 1e-5
        for b in range(2):                                                          # and coordinate descent finds the same fit
            v = np.zeros(20)
            A, t = X[b].numpy(), Y[b].numpy()
            for _ in range(3000):
                for j in range(20):
                    rho = A[:, j] @ (t - A @ v + A[:, j] * v[j]) / i
                    v[j] = np.sign(rho) * max(abs(rho) - 0.05, 0) / (A[:, j] @ A[:, j] / i)
                if np.abs(A @ v - A @ w[b].numpy()).max() < 1e-5:
                    break
            assert np.abs(A @ v - A @ w[b].numpy()).max() < 1e-3


def test_the_steps_that_are_taken_suffice():
    x, y = Prompts('sparse_linear', 20, 41).draw(np.random.default_rng(1), 100)
    for i in (3, 12, 20, 40):
        found = [icl.lasso_weights(x[:, :i], y[:, :i], **kw) for kw in ({}, {'steps': 20_000})]
        a, b = (((x[:, i] * w).sum(1) - y[:, i]).square().mean().item() / 3 for w in found)
        assert a == pytest.approx(b, abs=0.02)  # of the curve in Figure 6


def test_nearest_neighbours_by_a_naive_loop():
    x, y = draw(n=8)
    guess = icl.nearest(x, y)
    for b in range(3):
        for i in range(1, 8):
            near = sorted(range(i), key=lambda j: (x[b, i] - x[b, j]).norm().item())[:3]
            assert guess[b, i].item() == pytest.approx(sum(y[b, j].item() for j in near) / len(near), abs=1e-5)


@pytest.mark.parametrize('estimator', icl.estimators(sparse=True).values(), ids=str)
def test_estimators_see_the_past_alone(estimator):
    x, y = draw(n=8)
    changed = x.clone(), y.clone()
    changed[0][:, 5:] += 1
    changed[1][:, 4:] += 1  # what is predicted at 4 is not seen there
    assert torch.equal(estimator(x, y)[:, :5], estimator(*changed)[:, :5])


# ---- the network


@pytest.mark.parametrize('kind', [dict(), dict(attn='mhsa'), dict(attn='mhsa', mlp=True, bias=True)])
def test_a_prediction_sees_the_examples_before_it_and_its_x(kind):
    model, (x, y) = small(**kind), draw()
    with torch.no_grad():
        for p in model.parameters():
            p.normal_(std=0.3)
    guess, loss = model(x, y)
    assert guess.shape == (3, 6) and loss.item() == pytest.approx((guess - y).square().mean().item())
    changed = x.clone(), y.clone()
    changed[0][:, 4:] += 1
    changed[1][:, 3:] += 1
    assert torch.equal(model(*changed)[0][:, :4], guess[:, :4])           # not y_3, nor what comes later
    for which, i in ((0, 3), (0, 2), (1, 2), (1, 0)):
        changed = x.clone(), y.clone()
        changed[which][:, i] += 1
        assert ((model(*changed)[0] - guess)[:, 3].abs() > 1e-6).all()     # but x_3 and all before


def test_examples_become_tokens_in_turn():
    model, (x, y) = small(), draw()
    z = model.embed_examples(x, y)
    assert z.shape == (3, 12, 16)
    for i in range(6):
        as_vector = torch.cat((y[:, i:i + 1], torch.zeros(3, 3)), 1)
        assert torch.allclose(z[:, 2 * i], model.read_in(x[:, i]) + model.pos_emb.weight[2 * i], atol=1e-6)
        assert torch.allclose(z[:, 2 * i + 1], model.read_in(as_vector) + model.pos_emb.weight[2 * i + 1], atol=1e-6)
    a, b = model(x[:, :4], y[:, :4])[0], model(x, y)[0][:, :4]             # a shorter prompt is the beginning of a longer one
    assert torch.allclose(a, b, atol=1e-6)


@pytest.mark.parametrize('kind', [dict(), dict(attn='mhsa', mlp=True)])
def test_one_batch_can_be_memorized(kind):
    model, (x, y) = small(n_embd=32, **kind).train(), draw()
    memorize(model, x, y, 0.1 * y.square().mean(), steps=1000, lr=5e-3)


def test_compiles_as_one_graph():
    model, (x, y) = small(), draw()
    assert torch.allclose(torch.compile(model, backend='eager', fullgraph=True)(x, y)[1], model(x, y)[1])


@pytest.mark.parametrize('name, millions', [('aot', 7.5), ('aot_mhsa', 8.55), ('gpt2', 9.63)])
def test_the_papers_networks_have_the_papers_sizes(name, millions):
    """Table 5 counts a table of 50257 tokens that nothing reads; the paper's own counts are no closer than this."""
    c, a, given, _ = train.settings([str(ROOT / 'config' / f'train_{name}_icl.py')])
    with torch.device('meta'):
        model = AoT(AoTConfig(**given))
    assert (c.dataset, c.batch_size, c.max_iters, c.optimizer) == ('linear', 64, 50_000, 'adam')
    assert (model.config.n_dims, model.config.block_size, model.config.n_embd, model.config.n_head) == (20, 82, 128, 8)
    assert (model.num_params() + 50257 * 128) / 1e6 == pytest.approx(millions, rel=0.01)
    assert c.learning_rate in (5e-5, 1e-4, 2e-4, 4e-4) and c.grad_clip in (5.0, 10.0, 50.0)


def test_impossible_sizes_say_why():
    for kw, word in ((dict(n_dims=-1), 'n_dims'), (dict(n_dims=3, image_size=8, patch_size=4), 'n_dims')):
        with pytest.raises(ValueError, match=word):
            AoTConfig(**kw)
    x, y = draw(n=7)
    with pytest.raises(ValueError, match='block_size=12'):
        small()(x, y)


# ---- runs and Figure 6


@pytest.fixture(scope='module')
def trained(tmp_path_factory):
    out = tmp_path_factory.mktemp('runs') / 'linear'
    train.main([*WORDS, f'--out_dir={out}'])
    return out


def test_a_run_needs_no_data_and_logs_the_mean_squared_error(trained):
    rows = list(csv.DictReader((trained / 'log.csv').read_text().splitlines()))
    model = models.load_model(rundir.load_checkpoint(trained / 'last.pt'))
    batches = list(Prompts('linear', 4, 6).fixed(4, 2))
    expected = sum(model(x, y)[1].item() for x, y in batches) / 2
    assert float(rows[-1]['loss']) == pytest.approx(expected, rel=1e-5) and rows[-1]['split'] == 'val'
    assert int(rows[-1]['seen']) == 24  # prompts


@pytest.mark.parametrize('more', [[], ['--curriculum=2'], ['--dataset=sparse_linear', '--sparsity=2']])
def test_a_run_goes_on_bit_for_bit(more, tmp_path):
    train.main([*WORDS, *more, f'--out_dir={tmp_path}/whole'])
    train.main([*WORDS, *more, f'--out_dir={tmp_path}/part', '--max_iters=3', '--lr_decay_iters=6'])
    train.main([f'--out_dir={tmp_path}/part', '--init_from=resume', '--max_iters=6'])
    assert losses(tmp_path / 'part')[-3:] == losses(tmp_path / 'whole')[-3:]
    a, b = (rundir.load_checkpoint(tmp_path / run / 'last.pt')['weights'] for run in ('whole', 'part'))
    assert all(torch.equal(a[k], b[k]) for k in a)


def test_the_figure_says_what_one_computes_by_hand(trained, tmp_path, capsys, monkeypatch):
    train.main([*WORDS, '--attn=mhsa', '--mlp=true', f'--out_dir={tmp_path}/gpt2'])
    capsys.readouterr()
    words = [f'--ckpt={trained}', f'--beside={tmp_path}/gpt2/last.pt', '--prompts=50']
    scores.main(words)
    said = capsys.readouterr().out
    table = list(csv.DictReader((trained / 'in_context.csv').read_text().splitlines()))
    x, y = next(Prompts('linear', 4, 6).fixed(50, 1, stream=9))
    for name, path in ((trained, trained), (f'{tmp_path}/gpt2/last.pt', tmp_path / 'gpt2' / 'last.pt')):
        model = models.load_model(rundir.load_checkpoint(path))
        e = (model(x, y)[0] - y).square() / 4
        mine = [row for row in table if row['estimator'] == str(name)]
        assert [int(row['examples']) for row in mine] == list(range(6))
        assert [float(row['error']) for row in mine] == pytest.approx(e.mean(0).tolist(), rel=1e-4)
        assert [float(row['standard_error']) for row in mine] == pytest.approx((e.std(0) / 50 ** 0.5).tolist(), rel=1e-4)
    zero = [float(row['error']) for row in table if row['estimator'] == 'zero']
    assert zero == pytest.approx((y.square() / 4).mean(0).tolist(), rel=1e-5)
    assert {row['estimator'] for row in table} == {str(trained), f'{tmp_path}/gpt2/last.pt', 'least squares', '3 nearest neighbours', 'zero'}
    assert (trained / 'in_context.png').stat().st_size > 5000 and 'least squares' in said and 'float32' in said
    before = (trained / 'in_context.csv').read_bytes()
    assert '--overwrite=true' in fails(capsys, scores.main, *words)
    scores.main([*words, '--overwrite=true'])
    assert (trained / 'in_context.csv').read_bytes() == before
    monkeypatch.chdir(trained.parent)
    trained.rename('zero')  # the name of an estimator
    scores.main(['--ckpt=zero', '--prompts=4', '--overwrite=true'])
    assert './zero' in capsys.readouterr().out
    (trained.parent / 'zero').rename(trained)
    scores.main([*words, '--dataset=sparse_linear', f'--results={tmp_path}/sparse.csv'])  # functions that it has not seen
    assert 'Lasso' in (tmp_path / 'sparse.csv').read_text() and (tmp_path / 'sparse.png').exists()


def test_mistakes_get_one_line(trained, tiny, tmp_path, capsys):
    run = [f'--ckpt={trained}', f'--results={tmp_path}/new.csv']
    assert 'linear or sparse_linear' in fails(capsys, scores.main, *run, '--dataset=cubic')
    assert 'no checkpoint nowhere' in fails(capsys, scores.main, *run, '--beside=nowhere')
    assert 'prompts=1 ' in fails(capsys, scores.main, *run, '--prompts=1')
    assert 'must end with .csv' in fails(capsys, scores.main, *run[:1], f'--results={tmp_path}/new.png')
    assert 'python eval.py' in fails(capsys, sample.main, f'--ckpt={trained}')
    train.main([*tiny, f'--out_dir={tmp_path}/text'])
    train.main([*WORDS, '--n_dims=3', f'--out_dir={tmp_path}/three'])
    assert 'not functions' in fails(capsys, scores.main, *run, f'--beside={tmp_path}/text')
    assert 'n_dims=3' in fails(capsys, scores.main, *run, f'--beside={tmp_path}/three')
    assert '--beside is for functions' in fails(capsys, scores.main, f'--ckpt={tmp_path}/text', '--beside=x')
    for word in ('--split=val', '--knn=3', '--stride=4', '--train_share=0.5'):
        assert 'is not for functions in context' in fails(capsys, scores.main, *run, word)
    assert 'new.csv cannot be written' in fails(capsys, scores.main, *run[:1], '--results=/proc/new.csv')
    assert 'leave one out' in fails(capsys, train.main, *WORDS, '--image_size=32', f'--out_dir={tmp_path}/none')
    assert '--benchmarks is for language' in fails(capsys, scores.main, *run, '--benchmarks=all')
    assert not list(tmp_path.glob('new*'))
    out = f'--out_dir={tmp_path}/none'
    assert 'model=crate does not read that' in fails(capsys, train.main, '--dataset=linear', '--model=crate', out)
    assert 'the dataset holds functions, but n_dims=0 reads text' in fails(capsys, train.main, *WORDS, '--n_dims=0', out)
    assert 'holds text' in fails(capsys, train.main, *tiny, '--n_dims=4', out)
    assert 'sparsity=9' in fails(capsys, train.main, *WORDS, '--dataset=sparse_linear', '--sparsity=9', out)
    assert 'curriculum=-1' in fails(capsys, train.main, *WORDS, '--curriculum=-1', out)
    assert 'train_share=0.5 is for pictures' in fails(capsys, train.main, *WORDS, '--train_share=0.5', out)
    assert 'no epochs' in fails(capsys, train.main, *WORDS, '--epochs=2', out)
    assert 'has sparsity=3' in fails(capsys, train.main, f'--out_dir={trained}', '--init_from=resume', '--sparsity=2')
    assert not (tmp_path / 'none').exists()


def test_an_initial_network_is_no_better_than_zero_and_a_trained_one_is(tmp_path):
    """One dimension is learned in seconds: after one example the rest is known."""
    train.main(['--dataset=linear', '--n_dims=1', '--block_size=8', '--n_layer=3', '--n_head=2', '--n_embd=32', '--batch_size=64', '--max_iters=700',
                '--optimizer=muon', '--muon_lr=0.02', '--learning_rate=5e-3', '--eval_interval=700', '--eval_iters=4', '--dtype=float32', f'--out_dir={tmp_path}/one'])
    found = [float(row['loss']) for row in csv.DictReader((tmp_path / 'one' / 'log.csv').read_text().splitlines()) if row['split'] == 'val']
    assert found[0] == pytest.approx(1, abs=0.2) and found[-1] < 0.6
