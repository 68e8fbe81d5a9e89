"""bench.py at toy size: what others compute, names of rows, tables. The tests of the README race its configs."""
import copy
import re
import shutil
from types import SimpleNamespace

import pytest
import torch
from helpers import ROOT, fails
from torch._dynamo.utils import counters

import bench
from engine import settings
from model_aot import AoT
from model_crate import CRATE, CRATEConfig
from scoring import baselines

TOY = ['--rounds=2', '--seconds=0', '--device=cpu', '--n_layer=1', '--n_embd=32', '--n_head=2', '--batch_size=1',
       '--image_size=32', '--block_size=32', '--vocab_size=50']
SMALL = {'n_layer': 2, 'n_embd': 32, 'n_head': 4, 'block_size': 24, 'vocab_size': 50, 'image_size': 32}


def work(row, command='step', more=SMALL, **changes):
    return bench.Work(command, row, bench.BenchConfig(device='cpu', batch_size=1, tokens=2, **changes), more)


# ---- the ways of others ---------------------------------------------------------------------------------------------

def same_values_and_gradients(ours, theirs, x, y):
    assert not any(a is b for a, b in zip(ours.parameters(), theirs.parameters()))
    results = []
    for model in (ours, theirs):
        logits, loss = model(x, y)
        loss.backward()
        results.append([logits, loss, *(p.grad for p in model.parameters())])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a.flatten(), b.flatten(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize('shape', [{}, {'head_dim': 12, 'eta': 0.2, 'lam': 0.3, 'pool': 'mean'}, {'n_head': 1}])
def test_the_released_way_equals_ours_in_value_and_gradient(shape):
    torch.manual_seed(0)
    c = CRATEConfig(**{'image_size': 32, 'patch_size': 8, 'num_classes': 10, 'n_layer': 3, 'n_head': 4, 'n_embd': 32} |
                    shape)
    ours, theirs = CRATE(c), baselines.ReleasedCRATE(c)
    theirs.load_state_dict(ours.state_dict())
    same_values_and_gradients(ours, theirs, torch.randn(5, 3, 32, 32), torch.randint(10, (5,)))


@pytest.mark.parametrize('bias', [False, True])
def test_nanogpt_equals_ours_in_value_and_gradient(bias):
    theirs = bench.build('gpt2-base', baselines.NanoGPT, SMALL | {'bias': bias})
    ours = AoT(theirs.config)
    ours.load_state_dict(theirs.state_dict())
    x, y = bench.batch(ours.config, 3)
    y[0, :5] = -1
    same_values_and_gradients(ours, theirs, x, y)
    assert torch.allclose(theirs(x)[0][:, 0], ours(x)[0][:, -1], atol=1e-5)  # without targets: the last position


def test_each_way_does_what_its_authors_code_does():
    """CRATE: three products with D a layer and no fused attention, where ours has two and fuses.
    nanoGPT: every token computes the whole context again."""
    calls = {}
    for way in (None, baselines.ReleasedCRATE):
        crate = bench.build('crate-tiny', way, SMALL | {'n_layer': 1, 'patch_size': 8})
        with torch.profiler.profile() as trace, torch.no_grad():
            crate.layers[0](torch.randn(2, 17, 32))
        count = {e.key: e.count for e in trace.key_averages()}
        calls[way] = count['aten::linear'], count.get('aten::scaled_dot_product_attention', 0)
    assert calls == {None: (4, 1), baselines.ReleasedCRATE: (5, 0)}  # U, W and D
    gpt, lengths = bench.build('gpt2-base', baselines.NanoGPT, SMALL), []
    gpt.register_forward_pre_hook(lambda module, args: lengths.append(args[0].size(1)))
    assert gpt.generate(torch.zeros(1, 3, dtype=torch.long), 4).shape == (1, 7) and lengths == [3, 4, 5, 6]


def test_a_way_is_for_its_own_network():
    for row in ('vit-small-released', 'crate-tiny-nanogpt', 'aot-mssa-base-nanogpt'):
        with pytest.raises(ValueError, match='way'):
            work(row)


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which('g++') and not shutil.which('clang++'), reason='no C++ compiler')
@pytest.mark.parametrize('words, compiled', [('compiled', True), ('plain', False), ('released-compiled', True)])
def test_a_row_is_compiled_if_it_says_so(words, compiled):
    torch._dynamo.reset()
    counters.clear()
    work(f'crate-tiny-{words}', more=SMALL | {'n_layer': 1}).run()
    assert bool(counters['stats']['unique_graphs']) == compiled


# ---- rows -----------------------------------------------------------------------------------------------------------

def test_words_say_how_a_row_is_computed(monkeypatch):
    monkeypatch.setattr(bench, 'choose_dtype',
                        lambda dtype, device: getattr(torch, 'bfloat16' if dtype == 'auto' else dtype))
    for row, command, form in (
            ('crate-tiny', 'step', 'bfloat16, not compiled'), ('crate-tiny-compiled', 'step', 'bfloat16, compiled'),
            ('crate-tiny-float32', 'step', 'float32, not compiled'),
            ('crate-tiny-released', 'step', 'float32, not compiled'),
            ('crate-tiny-released-compiled-bfloat16', 'step', 'bfloat16, compiled'),
            ('gpt2-base', 'generate', 'float32, not compiled'),  # as sample.py does with a small network
            ('gpt2-base-uncached-bfloat16', 'generate', 'bfloat16, not compiled')):
        assert work(row, command).form == form, row
    for row in ('crate-huge', 'crate-tiny-quick', 'crate', ''):
        with pytest.raises(ValueError, match=f"row '{row}' is unknown; choose one of .*crate-base"):
            work(row)


@pytest.mark.parametrize('row, config', [
    ('crate-base', 'train_crate_imagenet'), ('vit-small', 'train_vit_imagenet'), ('aot-mssa-base', 'train_aot_owt'),
    ('aot-mhsa-base', 'train_aot_mhsa_owt'), ('gpt2-base', 'train_gpt2_owt'),
    ('tost-base', 'train_tost_owt'), ('aot-stdlib', 'train_aot_stdlib')])
def test_rows_are_the_networks_of_config(row, config, monkeypatch):
    monkeypatch.chdir(ROOT)
    given = settings.read_file(f'config/{config}.py')
    with torch.device('meta'):
        c = bench.build(row).config
    for name in ('n_layer', 'n_embd', 'n_head', 'block_size', 'vocab_size', 'attn', 'mlp', 'causal'):
        if name in given and hasattr(c, name):
            assert getattr(c, name) == given[name], name
    assert bench.NETWORKS[row][0] == given.get('model', 'aot')


def test_the_vit_has_as_many_parameters_as_crate():
    with torch.device('meta'):
        crate, vit = (bench.build(name).num_params() for name in ('crate-tiny', 'vit-6m'))
    assert crate == 6_090_856 and abs(vit / crate - 1) < 0.02


def test_measuring_changes_no_weights():
    """So the hundredth step computes what the first did."""
    for optimizer in ('adamw', 'lion', 'muon'):
        step = work('crate-tiny-float32', optimizer=optimizer)
        before = copy.deepcopy(step.model.state_dict())
        step.run(), step.run()
        assert all(torch.equal(t, before[k]) for k, t in step.model.state_dict().items())


def test_rows_take_turns_and_a_measurement_lasts_as_long_as_asked(monkeypatch):
    clock, order = [0.0], []

    def run(name):
        order.append(name)
        clock[0] += 0.01
    monkeypatch.setattr(bench.time, 'perf_counter', lambda: clock[0])
    works = [SimpleNamespace(run=lambda name=name: run(name)) for name in 'AB']
    seconds = bench.in_turn(works, bench.BenchConfig(rounds=3, seconds=1.0, device='cpu'))
    assert re.fullmatch('A+B+A+B+A+B+A+B+', ''.join(order))
    assert [s for own in seconds for s in own] == pytest.approx([0.01] * 6)
    assert 6.0 <= clock[0] < 6.3


# ---- the command ----------------------------------------------------------------------------------------------------

@pytest.mark.parametrize('words, rows', [
    (['step', '--rows=crate-tiny,crate-tiny-released,aot-stdlib,gpt2-6x384-nanogpt'],
     ['crate-tiny', 'crate-tiny-released', 'aot-stdlib', 'gpt2-6x384-nanogpt']),
    (['generate', '--tokens=3'], bench.ROWS['generate'].split(','))])
def test_a_table(words, rows, capsys):
    bench.main([*words, *TOY])
    first, head, *lines = capsys.readouterr().out.splitlines()
    assert '2 rounds; a plain matmul reaches' in first and [line.split()[0] for line in lines] == rows
    ratios = [re.search(r'\d+\.\d\d \(\d+\.\d\d to \d+\.\d\d\)$', line)[0] for line in lines]
    first_of = {'pictures': rows[0], 'tokens': next(row for row in rows if 'crate' not in row)}
    assert all(ratios[rows.index(row)] == '1.00 (1.00 to 1.00)' for row in first_of.values() if row in rows)


@pytest.mark.slow
def test_growth_prints_every_row(capsys, monkeypatch):
    monkeypatch.setattr(bench, 'GROWTH', {'n_embd': [64], 'n_layer': [2], 'block_size': [16]})
    bench.main(['grow', *TOY])
    assert [line.split()[:2] for line in capsys.readouterr().out.splitlines()[2:]] == [
        [row, size] for size in ('n_embd=64', 'n_layer=2', 'block_size=16') for row in bench.ROWS['grow'].split(',')]


def test_a_race_trains_each_config_once_a_round(monkeypatch, capsys):
    runs, times = [], iter((10.0, 20.0, 12.0, 30.0))

    def race(config, target, seed, extra):
        runs.append((config, target, seed, extra))
        return {'step': 5, 'loss': 1.9 if config == 'b.py' else 1.5, 'seconds': next(times)}
    monkeypatch.setattr(bench, 'race', race)
    bench.main(['a.py', 'b.py', '--target_loss', '1.8', '--rounds=2', '--n_layer=3'])
    assert runs == [(config, 1.8, seed, ['--n_layer=3']) for seed in (0, 1) for config in ('a.py', 'b.py')]
    *_, a, b = capsys.readouterr().out.splitlines()
    assert '11.00 (10.00 to 12.00) s of training' in a and 'missed' not in a
    assert '25.00 (20.00 to 30.00) s of training' in b and 'the first takes 0.45 (0.40 to 0.50) of that' in b
    assert 'the target was missed' in b


def test_mistakes_are_one_line(capsys):
    line = fails(capsys, bench.main, 'pikturs')
    assert "'pikturs' is unknown" in line and 'configs to race' in line and 'generate' in line
    assert 'crate-tiny, crate-base' in fails(capsys, bench.main, 'step', '--rows=crate-huge', '--device=cpu')
    assert 'writes no text' in fails(capsys, bench.main, 'generate', '--rows=vit-small', *TOY)
    assert 'not divisible by patch_size' in fails(capsys, bench.main, *TOY, '--image_size=33')
    assert 'rounds=0 must be at least 1' in fails(capsys, bench.main, '--rounds=0')
    assert 'did you mean batch_size' in fails(capsys, bench.main, 'step', '--batchsize=2')
