"""bench.py at toy size: what others compute, names of rows, memory, tables. The tests of the README
race its configs."""
import copy
import csv
import re
import shutil

import pytest
import torch
from helpers import ROOT, fails
from torch._dynamo.utils import counters

import bench
from engine import settings
from model_aot import AoT
from model_crate import CRATE, CRATEConfig
from scoring import baselines, memory, speed

TOY = ['--rounds=2', '--seconds=0', '--device=cpu', '--alone=false', '--n_layer=1', '--n_embd=32', '--n_head=2',
       '--batch_size=1', '--image_size=32', '--block_size=32', '--vocab_size=50', '--decoder_n_layer=1',
       '--decoder_n_embd=32', '--decoder_n_head=2']
SMALL = {'n_layer': 2, 'n_embd': 32, 'n_head': 4, 'block_size': 24, 'vocab_size': 50, 'image_size': 32}


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
    theirs = speed.build('gpt2-base', 'nanogpt', SMALL | {'bias': bias})
    ours = AoT.from_gpt2(theirs.state_dict(), n_head=4)
    x, y = speed.batch(ours.config, 3)
    y[0, :5] = -1
    same_values_and_gradients(ours, theirs, x, y)
    assert torch.allclose(theirs(x)[0][:, 0], ours(x)[0][:, -1], atol=1e-5)  # without targets: the last position


def test_each_way_does_what_its_authors_code_does():
    """CRATE: three products with D a layer and no fused attention, where ours has two and fuses.
    nanoGPT: every token computes the whole context again."""
    calls = {}
    for way in ('', 'released'):
        crate = speed.build('crate-tiny', way, SMALL | {'n_layer': 1, 'patch_size': 8})
        with torch.profiler.profile() as trace, torch.no_grad():
            crate.layers[0](torch.randn(2, 17, 32))
        count = {e.key: e.count for e in trace.key_averages()}
        calls[way] = count['aten::linear'], count.get('aten::scaled_dot_product_attention', 0)
    assert calls == {'': (4, 1), 'released': (5, 0)}  # U, W and D
    gpt, lengths = speed.build('gpt2-base', 'nanogpt', SMALL), []
    gpt.register_forward_pre_hook(lambda module, args: lengths.append(args[0].size(1)))
    assert gpt.generate(torch.zeros(1, 3, dtype=torch.long), 4).shape == (1, 7) and lengths == [3, 4, 5, 6]


def test_a_way_is_for_its_own_network():
    for row in ('vit-tiny-released', 'crate-tiny-nanogpt', 'crate-gpt-base-released', 'aot-mssa-base-nanogpt'):
        with pytest.raises(ValueError, match='way|row'):
            speed.training(row, 'cpu', 1, more=SMALL)


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which('g++') and not shutil.which('clang++'), reason='no C++ compiler')
@pytest.mark.parametrize('words, compiled', [('compiled', True), ('plain', False), ('released-compiled', True)])
def test_a_row_is_compiled_if_it_says_so(words, compiled):
    torch._dynamo.reset()
    counters.clear()
    speed.training(f'crate-tiny-{words}', 'cpu', 1, more=SMALL | {'n_layer': 1}).run()
    assert bool(counters['stats']['unique_graphs']) == compiled


# ---- rows -----------------------------------------------------------------------------------------------------------

def test_words_say_how_a_row_is_computed(monkeypatch):
    monkeypatch.setattr(speed, 'choose_dtype',
                        lambda dtype, device: getattr(torch, 'bfloat16' if dtype == 'auto' else dtype))

    def form(name, timed='training'):
        f = speed.read(name, timed, 'cpu')
        return f.base, f.way, str(f.dtype)[6:], f.compiled, f.cached
    assert form('crate-tiny') == ('crate-tiny', '', 'bfloat16', False, True)
    assert form('crate-tiny-compiled') == ('crate-tiny', '', 'bfloat16', True, True)
    assert form('crate-tiny-plain') == ('crate-tiny', '', 'bfloat16', False, True)
    assert form('crate-tiny-float32') == ('crate-tiny', '', 'float32', False, True)
    assert form('crate-tiny-released') == ('crate-tiny', 'released', 'float32', False, True)
    assert form('crate-tiny-released-compiled-bfloat16') == ('crate-tiny', 'released', 'bfloat16', True, True)
    assert form('gpt2-base', 'generation') == ('gpt2-base', '', 'bfloat16', False, True)
    assert form('gpt2-base-nanogpt', 'generation') == ('gpt2-base', 'nanogpt', 'float32', False, True)
    assert form('gpt2-base-uncached-bfloat16', 'generation') == ('gpt2-base', '', 'bfloat16', False, False)
    assert form('full', 'loss') == ('full', '', 'bfloat16', False, True)
    for name, timed in (('crate-huge', 'training'), ('crate-tiny-quick', 'training'), ('crate', 'training'),
                        ('', 'loss'), ('crate-tiny-plain-compiled', 'training'), ('crate-tiny-plain-plain', 'training'),
                        ('crate-tiny-uncached', 'training'), ('full-compiled', 'loss'), ('gpt2-base', 'loss')):
        with pytest.raises(ValueError, match=f"row '{name}' is unknown; choose one of .*(crate-large|chunked)"):
            speed.read(name, timed, 'cpu')


@pytest.mark.parametrize('row, config', [
    ('crate-base', 'train_crate_imagenet'), ('vit-small', 'train_vit_imagenet'), ('aot-mssa-base', 'train_aot_owt'),
    ('aot-mhsa-base', 'train_aot_mhsa_owt'), ('gpt2-base', 'train_gpt2_owt'), ('crate-gpt-base', 'train_crate_owt'),
    ('crate-bert-base', 'train_crate_bert_owt'), ('crate-mae-base', 'pretrain_crate_mae_imagenet'),
    ('vit-mae-base', 'pretrain_vit_mae_imagenet'), ('aot-mssa-v', 'pretrain_aot_imagenet21k'),
    ('aot-mhsa-v', 'train_aot_mhsa_imagenet'), ('aot-stdlib', 'train_aot_stdlib')])
def test_rows_are_the_networks_of_config(row, config, monkeypatch):
    monkeypatch.chdir(ROOT)
    given, c = settings.read_file(f'config/{config}.py'), speed.build_on_meta(row).config
    for name in ('n_layer', 'n_embd', 'n_head', 'decoder_n_layer', 'decoder_n_embd', 'block_size', 'vocab_size', 'attn',
                 'mlp', 'causal'):
        if name in given and hasattr(c, name):
            assert getattr(c, name) == given[name], name
    assert speed.NETWORKS[row][0] == given.get('model', 'aot')


def test_the_vit_has_as_many_parameters_as_crate():
    crate, vit = (speed.build_on_meta(name).num_params() for name in ('crate-tiny', 'vit-6m'))
    assert crate == 6_090_856 and abs(vit / crate - 1) < 0.02


def test_measuring_changes_no_weights():
    """So the hundredth step computes what the first did."""
    form = speed.read('crate-tiny-plain-float32', 'training', 'cpu')
    for optimizer in ('adamw', 'lion', 'muon'):
        model = speed.build('crate-tiny', more=SMALL)
        before = copy.deepcopy(model.state_dict())
        step = speed.stepper(model, speed.batch(model.config, 2), optimizer, form, 'cpu')
        step(), step()
        assert all(torch.equal(t, before[k]) for k, t in model.state_dict().items())


def test_a_measurement_lasts_as_long_as_asked(monkeypatch):
    clock = [0.0]

    def run():
        clock[0] += 0.01
    monkeypatch.setattr(speed.time, 'perf_counter', lambda: clock[0])
    assert speed.seconds_of(run, 1.0, 'cpu') == pytest.approx(0.01)
    assert 1.0 <= clock[0] < 1.03


def test_rows_take_turns():
    order, works = [], {}
    for name in 'AB':
        works[name] = speed.Work(lambda name=name: order.append(name), 1, 'tokens',
                                 speed.read('full-float32', 'loss', 'cpu'), 1)
    seconds, rates = speed.in_turn(works, 3, 0, 'cpu')
    assert order[-6:] == ['A', 'B'] * 3 and len(seconds['A']) == len(rates[torch.float32]) == 3


def test_mssa_keeps_half_of_what_mhsa_keeps():
    works = {name: speed.generation(name, 'cpu', 2, SMALL) for name in
             ('aot-mssa-base', 'aot-mhsa-base', 'gpt2-base', 'gpt2-base-bfloat16', 'gpt2-base-uncached',
              'gpt2-base-nanogpt')}
    mssa, mhsa, gpt2, bfloat16, uncached, nanogpt = (work.cache for work in works.values())
    assert mhsa == gpt2 == 2 * mssa == 2 * bfloat16 > 0 == uncached == nanogpt


def test_small_networks_generate_in_float32_and_large_ones_as_they_train(monkeypatch):
    monkeypatch.setattr(speed, 'choose_dtype',
                        lambda dtype, device: getattr(torch, 'bfloat16' if dtype == 'auto' else dtype))
    large = SMALL | {'vocab_size': 51_000_000 // 16, 'n_embd': 16, 'n_layer': 1}
    forms = [speed.generation(name, 'cpu', 2, more).form.dtype for name, more in
             (('gpt2-base', SMALL), ('gpt2-base', large), ('gpt2-base-float32', large), ('gpt2-base-bfloat16', SMALL))]
    assert forms == [torch.float32, torch.bfloat16, torch.float32, torch.bfloat16]


def test_the_loss_in_parts_equals_the_loss_at_once(monkeypatch):
    """In gradients too, with so few logits at a time that there are many parts."""
    from model_aot import LanguageHead
    monkeypatch.setattr(LanguageHead, 'LOGITS_AT_ONCE', 250)
    seen = []
    monkeypatch.setattr(LanguageHead, 'zero_grad', lambda self, **_: seen.append(self.weight.grad.clone()))
    for row in ('chunked-float32', 'full-float32'):
        speed.loss(row, 'cpu', 2, SMALL).run()
    torch.testing.assert_close(*seen)


# ---- memory ---------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize('name', list(speed.NETWORKS))
def test_weights_and_moments_are_counted_once(name):
    """Shared weights too; what is fixed, such as positions, has no moments."""
    model = speed.build_on_meta(name)
    fixed = sum(t.nbytes for t in model.buffers())
    assert memory.Step(name).held() == 3 * 4 * model.num_params() + fixed


@pytest.mark.slow
@pytest.mark.parametrize('name', ['crate-tiny', 'vit-tiny', 'crate-mae-base', 'gpt2-base', 'crate-bert-base'])
def test_memory_of_a_step(name):
    """It holds gradients at its end, grows with the batch, and shrinks if layers are recomputed."""
    more = SMALL | {'n_layer': 6, 'decoder_n_layer': 2, 'decoder_n_embd': 32, 'decoder_n_head': 4, 'patch_size': 4}
    kept, again = (memory.Step(name, recompute=recompute, more=more) for recompute in (False, True))
    gradients = 4 * kept.model.num_params()
    assert kept.bytes(1) >= kept.held() + gradients and again.held() == kept.held()
    sizes = [kept.bytes(rows) for rows in (64, 96, 128)]
    assert sizes[0] < sizes[1] < sizes[2] and sizes[2] - sizes[1] == pytest.approx(sizes[1] - sizes[0], rel=0.05)
    assert again.bytes(128) < 0.7 * kept.bytes(128)
    assert memory.Step(name, torch.float32, more=more).bytes(128) > 1.1 * kept.bytes(128)


def test_memory_that_is_kept_is_what_layers_save():
    """Of a chain of n squares of m numbers autograd keeps the n inputs, besides the last output."""
    m, n = 1000, 7
    with memory.Alive(torch.nn.Module()) as alive:
        x = torch.ones(m, requires_grad=True)
        for _ in range(n):
            x = x ** 2
    assert alive.now == 4 * m * (n + 1)
    del x
    assert alive.now == 0 and alive.most == 4 * m * (n + 1)


@pytest.mark.slow
def test_the_largest_batch_fits_and_no_much_larger_one_does():
    step = memory.Step('gpt2-base', more=SMALL | {'n_layer': 3})
    for megabytes in (0.9, 2, 10, 60):
        rows = step.largest(megabytes * 1e6)
        assert rows > 0 and step.bytes(rows) <= megabytes * 1e6 < step.bytes(rows + max(1, rows // 20))
    assert step.largest(1000) == 0


@pytest.mark.slow
def test_computed_memory_is_what_a_process_grows_by(capsys):
    bench.main(['needs', '--rows=aot-stdlib-plain-float32', '--batch_size=128', '--device=cpu'])
    computed, measured = re.findall(r'[\d,]+(?= +[+-]|  +[\d,]+ )', capsys.readouterr().out.splitlines()[-1])[:2]
    assert int(measured.replace(',', '')) == pytest.approx(int(computed.replace(',', '')), rel=0.15)


# ---- the command ----------------------------------------------------------------------------------------------------

@pytest.mark.parametrize('words, rows', [
    (['step', '--rows=crate-tiny-plain,crate-tiny-released,aot-stdlib-plain,gpt2-6x384-nanogpt'],
     ['crate-tiny-plain', 'crate-tiny-released', 'aot-stdlib-plain', 'gpt2-6x384-nanogpt']),
    (['pictures'], bench.ROWS['pictures'].split(',')), (['generate', '--tokens=3'], bench.ROWS['generate'].split(',')),
    (['loss'], bench.ROWS['loss'].split(','))])
def test_a_table_and_its_csv(words, rows, capsys, tmp_path):
    path = tmp_path / 'speed.csv'
    bench.main([*words, *TOY, f'--csv={path}'])
    first, head, *lines = capsys.readouterr().out.splitlines()
    assert '2 rounds; a plain matmul reaches' in first and 'parameters' in head
    assert [line.split()[0] for line in lines] == rows
    with open(path, newline='') as f:
        table = list(csv.DictReader(f))
    assert {t['row'] for t in table} == set(rows) and {t['command'] for t in table} == {words[0]}
    assert all(float(t['value']) >= 0 for t in table)
    value = {(t['row'], t['round'], t['measure']): float(t['value']) for t in table}
    unit = {row: 'pictures/s' if (row, '0', 'pictures/s') in value else 'tokens/s' for row in rows}
    for row in rows:  # a ratio is that of the speeds in one round, to the first row that counts the same
        first = next(other for other in rows if unit[other] == unit[row])
        for i in '01' if row != first else '':
            assert value[row, i, 'ratio'] == pytest.approx(value[row, i, unit[row]] / value[first, i, unit[row]])
    assert 'speed over the first' in head
    assert 'exists; give another --csv' in fails(capsys, bench.main, *words, *TOY, f'--csv={path}')


@pytest.mark.slow
def test_fits_and_grow_print_every_row(capsys, monkeypatch):
    bench.main(['fits', '--rows=vit-tiny,gpt2-base', *TOY])
    lines = [line.split() for line in capsys.readouterr().out.splitlines()[3:]]
    assert [line[:2] for line in lines] == [[row, form] for row in ('vit-tiny', 'gpt2-base')
                                            for form in ('kept', 'recomputed')]
    assert all(0 < int(a) < int(b) for *_, a, b in lines)
    monkeypatch.setattr(bench, 'SHAPES', [{'n_embd': 64}, {'n_layer': 2}, {'block_size': 16}])
    bench.main(['grow', *TOY])
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()[2:]] == \
        ['n_embd=64', 'n_layer=2', 'block_size=16']


@pytest.mark.slow
def test_a_process_of_its_own_says_memory_and_start_up(capsys):
    words = [word for word in TOY if not word.startswith('--alone')]
    bench.main(['step', '--rows=aot-stdlib-plain', *words])
    *_, head, line = capsys.readouterr().out.splitlines()
    cells = dict(zip(re.split(r'  +', head.strip()), re.split(r'  +', line.strip())[2:]))
    assert float(cells['start-up s']) > 0 and 1 < float(cells['peak MiB']) < 1000


def test_help_lists_the_settings(capsys):
    bench.main(['--help'])
    text = capsys.readouterr().out
    assert '--target_loss=1.88' in text and '--csv=' in text and 'python bench.py fits' in text


def test_a_race_trains_each_config_once_a_round(monkeypatch, capsys):
    runs, times = [], iter((10.0, 20.0, 12.0, 30.0))

    def race(config, target, seed, extra):
        runs.append((config, target, seed, extra))
        return {'step': '5', 'loss': '1.9' if config == 'b.py' else '1.5', 'seconds': str(next(times))}, 99.0
    monkeypatch.setattr(bench, 'race', race)
    bench.main(['a.py', 'b.py', '--target_loss', '1.8', '--rounds=2', '--n_layer=3'])
    assert runs == [(config, 1.8, seed, ['--n_layer=3']) for seed in (0, 1) for config in ('a.py', 'b.py')]
    *_, a, b, ratio = capsys.readouterr().out.splitlines()
    assert 'median 11.0 s of training (10.0 to 12.0)' in a and 'missed' not in a
    assert 'median 25.0 s' in b and 'the target was missed' in b
    assert ratio == 'a / b: median 0.45 of the time (0.40 to 0.50), at most'


@pytest.mark.parametrize('word', ['--seed=3', '--out_dir=x', '--init_from=resume'])
def test_what_a_race_decides_itself_is_refused(word, capsys):
    assert 'a race decides' in fails(capsys, bench.main, 'a.py', word)


def test_mistakes_are_one_line(capsys):
    assert 'seconds=inf must lie' in fails(capsys, bench.main, 'step', '--seconds=inf')
    line = fails(capsys, bench.main, 'pikturs')
    assert "'pikturs' is unknown" in line and 'configs to race' in line and 'generate' in line
    for command in ('step', 'fits', 'needs', 'grow'):
        assert 'crate-tiny, crate-small' in fails(capsys, bench.main, command, '--rows=crate-huge', '--device=cpu')
    assert 'writes no text' in fails(capsys, bench.main, 'generate', '--rows=vit-tiny', *TOY)
    assert 'exceed block_size=32' in fails(capsys, bench.main, 'generate', '--tokens=30', *TOY)
    assert 'not divisible by patch_size' in fails(capsys, bench.main, 'pictures', *TOY, '--image_size=33')
    assert 'rounds=0 must be at least 1' in fails(capsys, bench.main, '--rounds=0')
    assert 'did you mean batch_size' in fails(capsys, bench.main, 'step', '--batchsize=2')
    assert 'cannot be written' in fails(capsys, bench.main, 'step', *TOY, '--csv=nowhere/a.csv')
    line = fails(capsys, bench.main, 'step', '--rows=crate-tiny-plain', '--n_head=7', '--device=cpu')  # in its process
    assert 'crate-tiny-plain: n_embd=384 is not divisible by n_head=7' in line
