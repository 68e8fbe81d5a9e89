"""theory.py: what its tables hold is what one computes, and the papers' algebra holds where it is said to, and not elsewhere."""
import csv
import math

import pytest
import torch
from torch.nn.functional import normalize

from engine import plots as figures
from analysis import theory
from analysis.measures import (coding_rate, compressed_rate, compressed_rate_gradient, cosine, dictionaries, ista_step, lasso_minimizer,
                      lasso_objective, noisy_mixture, sideways, snr)
from analysis.theory import CompressConfig, DenoiseConfig, ISTAConfig, attention, unrolled


def table(path, **where):
    rows = list(csv.DictReader(path.read_text().splitlines()))
    return [row for row in rows if all(row[k] == v for k, v in where.items())]


def draw(command, c):
    figures.save(c.out, *command(c), '--out')


def mixture(K=3, p=4, n=20, delta=0.2, seed=0):
    Z, U = noisy_mixture(K, p, n, K * p, delta, torch.Generator().manual_seed(seed))
    return normalize(Z.flatten(0, 1), dim=-1), U


def rate(Z, U, eps=0.5):
    return compressed_rate(Z @ U, eps).item()


def sparse_tokens(seed, d=24, n=40):
    generator = torch.Generator().manual_seed(seed)
    Ds = dictionaries(d, generator)
    X = torch.randn(n, d, generator=generator, dtype=torch.float64).relu() * (torch.rand(n, d, generator=generator) < 0.2)
    noise = 0.05 * torch.randn(n, d, generator=generator, dtype=torch.float64)
    return {name: (X @ D.T + noise, D) for name, D in Ds.items()}


# ---- compression


def test_shipped_attention_is_eqs_11_and_12_by_a_naive_loop():
    (Z, U), a = mixture(), 4 ** 0.25
    columns, expected = Z.T, torch.zeros_like(Z.T)
    for k in range(3):
        w = U[k].T @ columns                                                        # (p, N), eq. (11) in the paper's columns
        for i in range(len(Z)):
            expected[:, i] += U[k] @ w @ (w.T @ w[:, i]).softmax(0)
    mssa = attention(U)
    assert torch.allclose(mssa((a * Z)[None])[0] / a, expected.T, atol=1e-12)        # its softmax has 1/sqrt(p)
    assert not torch.allclose(mssa(Z[None])[0], expected.T, atol=1e-3)
    late = Z.clone()
    late[-1] += 1
    assert not torch.allclose(mssa(Z[None])[0, 0], mssa(late[None])[0, 0])          # the first token sees the last


@pytest.mark.parametrize('seed', range(3))
def test_a_gradient_step_lowers_the_rate_and_is_one_map_for_all_tokens(seed):
    Z, U = mixture(seed=seed)
    beta = 4 / (len(Z) * 0.5 ** 2)                                                  # gamma bounds the curvature: kappa <= 1 / gamma
    step = compressed_rate_gradient(Z, U)
    rates = [rate(Z - kappa / beta * step, U) for kappa in (0, 0.01, 0.3, 1)]
    assert rates[0] > rates[1] > rates[2] > rates[3]
    one_map = beta * sum(U[k] @ torch.linalg.inv(torch.eye(4) + beta * U[k].T @ Z.T @ Z @ U[k]) @ U[k].T for k in range(3))
    assert torch.allclose(step, Z @ one_map, atol=1e-10)


def test_the_gradient_mostly_shortens_tokens_and_attention_denoises_them():
    Z, U = mixture(K=8, p=16, n=64)
    down, mssa, length = -compressed_rate_gradient(Z, U), attention(U), 128 ** 0.5
    assert sideways(down, Z).norm() < 0.15 * down.norm() and ((sideways(down, Z) * Z).sum(-1)).abs().max() < 1e-12
    noise = [snr(z.unflatten(0, (8, -1)), U).mean().item() for z in (Z, Z + 2 * down, Z + mssa((length * Z)[None])[0] / length)]
    assert noise[1] / noise[0] < 1.05 and noise[2] / noise[0] > 1.2
    assert cosine(mssa((length * Z)[None])[0], down) < -0.8  # so without what lies along tokens the two are compared


@pytest.mark.parametrize('seed', range(5))
def test_one_step_with_the_true_subspaces_lowers_the_rate(seed):
    Z, U = mixture(K=8, p=16, n=128, seed=seed)
    gamma, mssa, length = 16 / (len(Z) * 0.5 ** 2), attention(U), 128 ** 0.5
    eq10 = (1 - gamma) * Z + gamma * gamma * mssa((2 * Z)[None])[0] / 2              # kappa 1; 2 = p^(1/4)
    shipped = normalize(length * Z + mssa((length * Z)[None])[0], dim=-1)
    assert rate(eq10, U) < 0.95 * rate(Z, U) and rate(shipped, U) < rate(Z, U)


def test_flat_attention_points_as_the_gradient_does_once_the_mean_token_is_off():
    Z, U = mixture(K=8, p=16, n=64)
    found = []
    for tokens in (Z, Z - Z.mean(0)):
        down, move = -compressed_rate_gradient(tokens, U), attention(U)(tokens[None])[0]
        found.append(cosine(sideways(move, tokens), sideways(down, tokens)))
    assert found[0] < 0.2 and found[1] > 0.97
    W = tokens @ U                                                                  # and it is 1/N of eq. (68)'s, to first order
    first = ((W / 4 @ (W.mT @ W)) @ U.mT).sum(0) / len(W[0])                        # 4: sqrt(p)
    assert ((move - first).norm() / first.norm()).item() < 0.1


def test_the_compression_table_holds_what_one_computes(tmp_path, capsys):
    c = CompressConfig(n_head=3, head_dim=4, tokens=16, delta=0.3, n_layer=3, kappa=0.5, seed=4, out=str(tmp_path / 'c.png'))
    draw(theory.compress, c)
    Z, U = mixture(3, 4, 16, 0.3, 4)
    start, gamma, mssa, a, length = Z, 4 / (48 * 0.25), attention(U), 4 ** 0.25, 12 ** 0.5
    steps = {'gradient step, eq. (9)': lambda Z: Z - 0.5 * compressed_rate_gradient(Z, U),
             'approximation, eq. (10)': lambda Z: (1 - 0.5 * gamma) * Z + 0.5 * gamma * gamma * mssa((a * Z)[None])[0] / a,
             'as shipped, true subspaces': lambda Z: normalize(length * Z + mssa((length * Z)[None])[0], dim=-1)}
    for method, step in steps.items():
        rows, Z = table(tmp_path / 'c.csv', method=method), start
        assert [int(row['step']) for row in rows] == [0, 1, 2, 3]
        for row in rows:
            unit, down = normalize(Z, dim=-1), -compressed_rate_gradient(Z, U)
            expected = {'rate': rate(Z, U), 'rate_at_length_1': rate(unit, U), 'whole_rate_at_length_1': coding_rate(unit).item(),
                        'snr': snr(Z.unflatten(0, (3, 16)), U).mean().item()}
            if 'shipped' not in method:
                expected |= {'cosine': cosine(step(Z) - Z, down).item(),
                             'cosine_sideways': cosine(sideways(step(Z), Z), sideways(down, Z)).item()}
            assert {k: float(row[k]) for k in expected} == pytest.approx(expected)
            Z = step(Z)
    other = table(tmp_path / 'c.csv', method='as shipped, random subspaces')
    assert len(other) == 4 and other[0]['rate'] == rows[0]['rate'] and other[3]['rate'] != rows[3]['rate']
    one = {float(row['length']): float(row['cosine']) for row in table(tmp_path / 'c.csv', method='one step')}
    assert one[1.0] == pytest.approx(cosine(mssa(start[None])[0], -compressed_rate_gradient(start, U)).item()) and length in one
    said = capsys.readouterr().out
    assert f'R^c {rate(start, U):.2f} becomes' in said and (tmp_path / 'c.png').stat().st_size > 5000


# ---- sparsification


@pytest.mark.parametrize('eta', [0.1, 1.0])
def test_an_orthogonal_dictionary_is_solved_in_one_step_of_size_one(eta):
    Y, D = sparse_tokens(0)['orthogonal']
    path, exact = unrolled(Y, D, eta, 0.1, 2), lasso_minimizer(Y, D, 0.1)
    assert torch.allclose(exact, (Y @ D - 0.1).relu(), atol=1e-8)                   # D^T y - lam, all coordinates apart
    assert torch.allclose(path[1], exact, atol=1e-8) == (eta == 1.0)


@pytest.mark.parametrize('seed', range(5))
def test_one_step_as_shipped_lowers_the_lasso(seed):
    data = sparse_tokens(seed)
    for name in ('orthogonal', 'incoherent (random)'):
        Y, D = data[name]
        for eta in (0.1, 1 / torch.linalg.matrix_norm(D, 2).item() ** 2):
            start, one, two = (lasso_objective(Z, Y, D, 0.1).mean() for Z in unrolled(Y, D, eta, 0.1, 2))
            assert lasso_objective(lasso_minimizer(Y, D, 0.1), Y, D, 0.1).mean() < two + 1e-9 and two <= one + 1e-9 and one < start


def test_with_coherent_columns_the_shipped_step_is_too_large():
    Y, D = sparse_tokens(0, d=64)['coherent']
    safe = 1 / torch.linalg.matrix_norm(D, 2).item() ** 2
    values = [lasso_objective(Z, Y, D, 0.1).mean().item() for Z in unrolled(Y, D, 0.1, 0.1, 20)]
    slow = [lasso_objective(Z, Y, D, 0.1).mean().item() for Z in unrolled(Y, D, safe, 0.1, 20)]
    assert safe < 0.05 and values[1] > 2 * values[0] and any(b > a for a, b in zip(values[1:], values[2:]))
    assert all(b < a for a, b in zip(slow[1:], slow[2:]))                           # from Z >= 0 every safe step goes down
    assert slow[1] > slow[0]                                                        # but the layer starts at Y, which is not
    assert slow[-1] > 1.5 * lasso_objective(lasso_minimizer(Y, D, 0.1), Y, D, 0.1).mean()


def test_more_steps_go_towards_the_same_tokens():
    Y, D = sparse_tokens(1)['incoherent (random)']
    start, one, two = unrolled(Y, D, 0.1, 0.2, 2)
    assert torch.equal(start, Y.clamp_min(0))
    assert torch.allclose(one, (Y + 0.1 * (Y - Y @ D.T) @ D - 0.02).relu(), atol=1e-12)
    assert torch.allclose(two, (one + 0.1 * (Y - one @ D.T) @ D - 0.02).relu(), atol=1e-12)


@pytest.mark.parametrize('d', [64, 192, 384])
def test_crates_own_first_dictionary_takes_its_own_step(d):
    state = torch.random.get_rng_state()
    for seed in range(2):
        norm = theory.initial_norm(d, seed)
        assert 6 < norm < 9 and 0.1 < 1 / norm                                      # eta=0.1 is within 1/|D|^2, by about a fifth
    assert torch.equal(torch.random.get_rng_state(), state) and theory.initial_norm(d, 0) == theory.initial_norm(d, 0)


def test_the_lasso_table_holds_what_one_computes(tmp_path, capsys):
    c = ISTAConfig(n_embd=32, tokens=30, steps=4, lam=0.2, seed=3, out=str(tmp_path / 'i.png'))
    draw(theory.ista, c)
    generator = torch.Generator().manual_seed(3)
    Ds = dictionaries(32, generator)
    X = torch.randn(30, 32, generator=generator, dtype=torch.float64).abs()
    X = X * (torch.rand(30, 32, generator=generator, dtype=torch.float64) < 0.1)
    noise = torch.randn(30, 32, generator=generator, dtype=torch.float64)
    for name, D in Ds.items():
        Y = X @ D.T + 0.05 * noise
        rows = table(tmp_path / 'i.csv', dictionary=name)
        assert len(rows) == 2 * 5 and float(rows[0]['norm2']) == pytest.approx(torch.linalg.svdvals(D)[0].item() ** 2)
        Z = Y
        for row in rows[:5]:
            Z = Z.relu() if row['step'] == '0' else ista_step(Y if row['step'] == '1' else Z, Y, D, 0.1, 0.2)
            f = (0.2 * Z.sum() + (Y - Z @ D.T).square().sum() / 2).item() / 30
            assert (float(row['objective']), float(row['nonzeros'])) == pytest.approx((f, (Z > 0).double().mean().item()))
        assert float(rows[0]['minimum']) <= min(float(row['objective']) for row in rows) + 1e-9
        assert float(rows[0]['objective_of_zero']) == pytest.approx(Y.square().sum().item() / 60)
    assert 'above 2/|D|^2' not in capsys.readouterr().out and (tmp_path / 'i.png').stat().st_size > 5000
    draw(theory.ista, ISTAConfig(n_embd=32, tokens=5, steps=2, eta=0.3, out=str(tmp_path / 'j.png')))
    assert 'eta = 0.3, above 2/|D|^2' in capsys.readouterr().out


def test_the_denoising_table_and_the_commands(tmp_path, capsys):
    draw(theory.denoise, DenoiseConfig(n_head=3, head_dim=4, tokens=20, n_layer=2, out=str(tmp_path / 'd.png')))
    assert len(table(tmp_path / 'd.csv')) == 3 * 3 * 3 and 'Theorem 1 says 1.06' in capsys.readouterr().out
    assert {name: config.__name__ for name, (_, config) in theory.COMMANDS.items()} == {
        'denoise': 'DenoiseConfig', 'compress': 'CompressConfig', 'ista': 'ISTAConfig'}


@pytest.mark.parametrize('config, settings, message', [
    (DenoiseConfig, {'n_layer': 0}, 'n_layer=0 must be at least 1'), (DenoiseConfig, {'tau': 1.0}, 'tau < 1'),
    (CompressConfig, {'n_head': 1}, 'n_head=1 must be at least 2'), (CompressConfig, {'eps': math.nan}, 'eps > 0'),
    (CompressConfig, {'length': -1.0}, 'length >= 0'), (CompressConfig, {'kappa': 20.0}, 'set --kappa=15.8 or less'),
    (ISTAConfig, {'steps': 0}, 'steps=0 must be at least 1'), (ISTAConfig, {'share': 1.5}, 'share <= 1'),
    (ISTAConfig, {'lam': 0.0}, 'lam > 0'), (ISTAConfig, {'eta': math.nan}, 'eta > 0')])
def test_mistakes_in_settings_get_one_line(config, settings, message):
    with pytest.raises(ValueError, match=message) as e:
        config(**settings)
    assert '\n' not in str(e.value)


def test_the_step_that_the_message_asks_for_is_taken():
    CompressConfig(kappa=15.8)
    CompressConfig(eps=0.1, kappa=0.63)
