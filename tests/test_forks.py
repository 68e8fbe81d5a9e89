"""The forks of docs/extend.md. Each diff of the page is applied to a copy of the project, which
trains, goes on, and keeps what the page promises. A fork has at most 20 lines in at most two
files, or is a file of its own."""
import re
import shutil
import subprocess
from collections import namedtuple

import pytest
from helpers import ROOT, column, edited, run, weights

import train

PAGE = (ROOT / 'docs' / 'extend.md').read_text(encoding='utf-8')
FOLDERS = ['analysis', 'config', 'engine', 'prepare', 'request', 'scoring', 'tasks', 'weights']
# {what stands in bold before a diff: the diff}
DIFFS = dict(re.findall(r'^\*\*([^*]+)\*\*(?:(?!^```|^\*\*).)*^```diff\n(.*?)^```', PAGE,
                        re.M | re.S))
for file in (ROOT / 'docs' / 'forks').glob('*.diff'):
    DIFFS[file.stem.replace('_', ' ').capitalize()] = file.read_text(encoding='utf-8')
NEW_FILES = DIFFS.pop('Masked diffusion')  # of new files alone
LORA = (ROOT / 'docs' / 'forks' / 'model_lora.py').read_text(encoding='utf-8')

# the first and the last lines of each script. Between them it trains, and has a function test_..
# for each property
BEGINNING = """
import sys
from pathlib import Path

import torch

from engine import curve
from engine.mistakes import Mistake
from nanocrate import inside, load, train

curve.draw_curve = lambda run: None  # it takes most of the time of a short run

NETWORK = dict(n_layer=2, n_head=2, n_embd=16, block_size=16)
RUN = dict(batch_size=4, max_iters=6, eval_interval=2, eval_iters=2, log_interval=1,
           warmup_iters=2, optimizer='adamw', learning_rate=1e-2, dtype='float32', device='cpu',
           dataset='tiny', data_dir=sys.argv[1])

def toy(name='toy', **settings):
    defaults = NETWORK | RUN
    if settings.get('model') == 'lora':  # it has the sizes of its base
        defaults = RUN
    train(**defaults | settings, out_dir=f'out/{name}')

def go_on(name='toy', **settings):
    train(init_from='resume', **settings, out_dir=f'out/{name}')

def refused(function, **settings):
    try:
        function(**settings)
    except Mistake as e:
        return str(e)
"""
END = """
for name, function in list(globals().items()):
    if name.startswith('test_'):
        function()
"""

# runs: the folder `out` in folder
Fork = namedtuple('Fork', 'title folder runs printed')


@pytest.fixture(scope='module')
def forked(tmp_path_factory, bytes_data):
    """forked(title, script) applies the diff below this title of the page to a copy of the
    project, or writes LoRA in it, and runs the script there. Returns a Fork."""
    def forked(title, script):
        folder = tmp_path_factory.mktemp('fork')
        for name in FOLDERS:
            shutil.copytree(ROOT / name, folder / name,
                            ignore=shutil.ignore_patterns('__pycache__'))
        for file in ROOT.glob('*.py'):
            shutil.copy(file, folder)
        if title == 'LoRA':
            (folder / 'model_lora.py').write_text(LORA)
        else:
            subprocess.run(['git', 'apply', '-'], cwd=folder, input=DIFFS.get(title, NEW_FILES),
                           text=True, check=True)
        (folder / 'check.py').write_text(BEGINNING + script + END)
        process = run(folder / 'check.py', bytes_data, cwd=folder, PYTHONPATH='')
        assert process.returncode == 0, process.stderr
        return Fork(title, folder, folder / 'out', process.stdout)
    return forked


@pytest.fixture
def measured(capsys, bytes_data):
    """measured(file of weights) is the validation loss that the unchanged code prints of them."""
    def measured(file, dataset='tiny', data=bytes_data):
        capsys.readouterr()
        train.main([f'--init_from={file}', f'--data_dir={data}', f'--dataset={dataset}',
                    '--batch_size=4', '--eval_iters=2', '--eval_only=true', '--dtype=float32',
                    '--device=cpu', '--max_iters=6', '--optimizer=adamw'])
        return re.search(r'validation  loss (\S+),', capsys.readouterr().out)[1]
    return measured


# ---- the diffs of the page

@pytest.mark.parametrize('title', DIFFS)
def test_a_diff_is_small(title):
    changes = re.findall(r'^[+-](?![+-]{2})', DIFFS[title], re.M)

    assert len(changes) <= 20
    assert DIFFS[title].count('\n+++ ') <= 2


def test_each_diff_is_tried():
    assert DIFFS.keys() == {*SIMPLE, 'A schedule', 'Frozen weights', 'Distillation', 'QK-norm',
                            'Rotary positions'}


# ---- losses, numbers, an optimizer, a dataset

SIMPLE = {  # title: what a run in the fork begins with
    'A penalty': "toy(keep_checkpoints=True)",
    'A number': "toy(keep_checkpoints=True)",
    'An optimizer': "toy(keep_checkpoints=True, optimizer='nadam')",
    'A dataset': """
import subprocess
subprocess.run([sys.executable, 'prepare/sums.py'], check=True)
toy(keep_checkpoints=True, dataset='sums', data_dir='data')
""",
    'Two passes': "toy(keep_checkpoints=True)",
}


@pytest.fixture(scope='module', params=SIMPLE)
def simple_fork(request, forked):
    return forked(request.param, SIMPLE[request.param] + '\ngo_on(max_iters=8)\n')


@pytest.mark.slow
def test_a_fork_trains_and_goes_on(simple_fork):
    val_losses = column(simple_fork.runs / 'toy', 'val')

    assert val_losses[-1] < val_losses[0]
    assert len(column(simple_fork.runs / 'toy', 'train')) == 8


@pytest.mark.slow
@pytest.mark.parametrize('name', ['perplexity', 'penalty', 'rate'])
def test_a_number_is_printed_where_a_fork_adds_it(name, simple_fork):
    is_printed = f'{name} ' in simple_fork.printed

    assert is_printed == (f"'{name}'" in DIFFS[simple_fork.title])


@pytest.mark.slow
def test_the_unchanged_code_measures_the_loss_that_a_fork_logs(simple_fork, measured):
    out = simple_fork.runs / 'toy'
    data = ()
    if simple_fork.title == 'A dataset':
        data = ('sums', simple_fork.folder / 'data')

    loss = measured(out / 'step_8.safetensors', *data)

    assert loss == f'{column(out, "val")[-1]:.4f}'


# ---- a schedule, frozen weights, distillation

SCHEDULE = """
settings = dict(schedule='wsd', min_lr=0.0)
toy(**settings, warmup_iters=0, max_iters=10)
go_on(max_iters=20)
toy('warm', **settings, warmup_iters=3, max_iters=5)
"""


@pytest.mark.slow
def test_the_rates_are_those_that_the_page_says(forked):
    runs = forked('A schedule', SCHEDULE).runs

    # ten steps: nine at the peak, the last at half of it. The longer run decays later
    peak = 1e-2
    last_rates = [0.75 * peak, 0.5 * peak, 0.25 * peak]
    rates = [peak] * 9 + [0.5 * peak] + [peak] * 7 + last_rates
    assert column(runs / 'toy', 'train', 'lr') == pytest.approx(rates)
    assert column(runs / 'warm', 'train', 'lr')[:3] == pytest.approx(last_rates[::-1])


FROZEN = r"""
toy(freeze=r'tok_emb|^layers\.0\.', optimizer='muon', keep_checkpoints=True)
go_on(max_iters=8)

def test_a_run_goes_on_with_the_pattern_that_it_has():
    assert 'leave it out' in refused(go_on, max_iters=9, freeze='pos_emb')

def test_a_pattern_that_fits_no_name_is_refused_with_some_names():
    line = '--freeze=nothing is in no name; names are embed.tok_emb.weight'
    assert line in refused(toy, name='no', freeze='nothing')
"""


@pytest.mark.slow
def test_frozen_weights_alone_stay_to_the_bit(forked):
    runs = forked('Frozen weights', FROZEN).runs

    before = weights(runs / 'toy', 'step_0')
    after = weights(runs / 'toy', 'step_8')
    for name in before:
        is_frozen = 'tok_emb' in name or name.startswith('layers.0.')
        assert before[name].equal(after[name]) == is_frozen


DISTILLATION = """
toy('teacher', n_layer=1, max_iters=40)
before = Path('out/teacher/best.safetensors').read_bytes()
toy('plain')
toy(teacher='out/teacher', max_iters=30, keep_checkpoints=True)
go_on(max_iters=40)

def test_the_teacher_stays():
    assert Path('out/teacher/best.safetensors').read_bytes() == before
"""


@pytest.fixture(scope='module')
def distilled(forked):
    return forked('Distillation', DISTILLATION)


@pytest.mark.slow
@pytest.mark.parametrize('split', ['train', 'val'])
def test_a_teacher_changes_training_and_not_the_loss_of_the_same_weights(split, distilled):
    student_losses = column(distilled.runs / 'toy', split)
    plain_losses = column(distilled.runs / 'plain', split)

    assert student_losses[0] == plain_losses[0]  # both begin with the same weights
    assert student_losses[1] != plain_losses[1]


@pytest.mark.slow
def test_the_distance_to_the_teacher_is_logged_and_falls(distilled):
    distances = column(distilled.runs / 'toy', 'train', 'distance')

    assert min(distances) >= 0
    assert distances[-1] < 0.5 * distances[0]
    assert 'distance' not in distilled.printed


@pytest.mark.slow
def test_the_unchanged_code_reads_a_student_without_its_teacher(distilled, measured):
    out = distilled.runs / 'toy'
    with edited(out / 'config.json') as config:
        del config['settings']['teacher']  # the unchanged code has no such setting

    assert not any('teacher' in name for name in weights(out))
    assert measured(out / 'step_40.safetensors') == f'{column(out, "val")[-1]:.4f}'


# ---- attention

ATTENTION = """
model, tokenizer = load('out/toy')
model.double()
torch.manual_seed(0)
for layer in model.layers:  # so that attention is far from uniform, and adds much
    torch.nn.init.normal_(layer.attn.U.weight, std=0.25)
    torch.nn.init.normal_(layer.attn.W.weight, std=0.5)
ids = torch.arange(60).unsqueeze(0) * 7 % 256

def check_maps(N):
    for step in inside(model, ids[:, :N]):
        v = step.attention.U(step.normed).unflatten(2, (2, -1)).transpose(1, 2)
        heads = (step.maps @ v).transpose(1, 2).flatten(2)
        assert (step.attention.W(heads) - step.update).abs().max() < 1e-5
        assert step.update.abs().max() > 1e-5
        assert step.maps.triu(1).abs().max() == 0
        assert step.maps[:, :, -1].max() > 2 / N

def check_generation(prompt, count):
    import warnings
    warnings.simplefilter('error')  # such as of a cache that is of no use
    cached = model.generate(prompt, count, temperature=0.0, use_cache=True)
    uncached = model.generate(prompt, count, temperature=0.0, use_cache=False)
    assert cached.shape[1] == prompt.shape[1] + count
    assert torch.equal(cached, uncached)
"""
ROTARY = f"""
toy(rope=True)
go_on(max_iters=8)
{ATTENTION}
def test_maps_are_right_of_a_text_longer_than_block_size():
    check_maps(50)

def test_the_order_of_earlier_tokens_counts():
    swapped = ids[:, :12].clone()
    swapped[:, 9:11] = ids[:, [10, 9]]
    update = inside(model, ids[:, :12])[0].update[0, -1]
    swapped_update = inside(model, swapped)[0].update[0, -1]
    assert (update - swapped_update).abs().max() > 1e-3

def test_a_cache_changes_nothing():
    check_generation(ids[:, :5], 30)
    check_generation(ids[:, :50], 10)

def test_the_loss_of_a_long_text_is_finite():
    assert model(ids[:, :50], ids[:, 1:51])[1].isfinite()

def test_there_is_no_table_of_positions():
    assert not any('pos_emb' in name for name in model.state_dict())

def test_mhsa_is_refused():
    assert "rope=True needs attn='mssa'" in refused(toy, name='no', rope=True, attn='mhsa')
"""


@pytest.mark.slow
def test_rotary_positions_learn_and_keep_what_the_page_promises(forked):
    val_losses = column(forked('Rotary positions', ROTARY).runs / 'toy', 'val')

    assert val_losses[-1] < val_losses[0]


QK_NORM = f"""
from engine.optim import build

toy(qk_norm=True, optimizer='muon', weight_decay=0.5)
go_on(max_iters=8)
{ATTENTION}
def groups_with(optimizer, weight):
    groups = []
    for group in optimizer.param_groups:
        if any(p is weight for p in group['params']):
            groups.append(group)
    return groups

def test_maps_are_right():
    check_maps(16)

def test_a_cache_changes_nothing():
    check_generation(ids[:, :5], 11)

def test_temperatures_learn_by_little():
    # Muon would make them a matrix of length 1
    temperatures = torch.cat([layer.attn.temperature for layer in model.layers])
    assert (temperatures - 1).abs().max() > 0
    assert (temperatures - 1).abs().max() < 0.2

def test_a_temperature_is_no_matrix():
    adamw, muon = build(model, 'muon', 1e-2)
    for layer in model.layers:
        groups = groups_with(adamw, layer.attn.temperature)
        assert [group['weight_decay'] for group in groups] == [0.0]
        assert groups_with(muon, layer.attn.temperature) == []

def test_the_length_of_a_projection_changes_no_map():
    before = inside(model, ids[:, :16])[0].maps
    model.layers[0].attn.U.weight.data.mul_(3)
    assert torch.allclose(inside(model, ids[:, :16])[0].maps, before, atol=1e-6)
"""


@pytest.mark.slow
def test_qk_norm_names_the_weights_that_do_not_decay_and_keeps_what_the_page_promises(forked):
    line = ('without weight decay, as no module calls them matrices: '
            'layers.*.attn.temperature (2, 1)')

    assert line in forked('QK-norm', QK_NORM).printed


# ---- LoRA, a file of its own

LORA_SCRIPT = """
from weights.runs import read_config, read_weights
from model_lora import LoRA, LoRAConfig

toy('base')
before = Path('out/base/best.safetensors').read_bytes()
toy(model='lora', base='out/base', optimizer='muon', keep_checkpoints=True)
go_on(max_iters=8)
toy('tuned', init_from='out/toy/step_8.safetensors', max_iters=1)
toy('averaged', model='lora', base='out/base', ema=0.5)

base, _ = load('out/base')
merged, _ = load('out/toy/step_8.safetensors')
saved, _ = read_weights('out/toy/step_8.safetensors')
fresh = LoRA(LoRAConfig(**read_config('out/toy').network)).eval()
lora = LoRA(fresh.config).eval()
lora.load_state_dict(saved, strict=False)
x = torch.arange(16).unsqueeze(0)

def test_the_base_stays():
    assert Path('out/base/best.safetensors').read_bytes() == before

def test_a_and_b_alone_are_saved_and_none_is_zero():
    assert {name[-2:] for name in saved} == {'.A', '.B'}
    for weight in saved.values():
        assert weight.abs().max() > 0

def test_a_and_b_alone_learn():
    learning = [name for name, p in fresh.named_parameters() if p.requires_grad]
    assert {name[-2:] for name in learning} == {'.A', '.B'}

def test_it_begins_as_its_base():
    assert torch.allclose(fresh(x)[0], base(x)[0], atol=1e-6)  # B begins as 0

def test_w_is_still_that_of_the_base():
    state = torch.nn.Module.state_dict(lora)
    for name, weight in base.state_dict().items():
        place, _, last = name.rpartition('.')
        inner = f'{place}.parametrizations.{last}.original'
        assert torch.equal(state.get(name, state.get(inner)), weight)

def test_merged_weights_are_an_aot_that_computes_the_same():
    assert type(merged).__name__ == 'AoT'
    assert torch.allclose(merged(x)[0], lora(x)[0], atol=1e-5)
    assert not torch.allclose(merged(x)[0], base(x)[0], atol=1e-4)

def test_a_merged_network_may_be_a_base():
    toy('again', model='lora', base='out/toy')

def test_another_base_than_aot_is_refused():
    toy('crate', model='crate')
    error = refused(toy, name='no', model='lora', base='out/crate')
    assert 'give --base of an AoT' in error
"""


@pytest.mark.slow
def test_lora_learns_is_fine_tuned_and_keeps_what_the_page_promises(forked):
    runs = forked('LoRA', LORA_SCRIPT).runs
    val_losses = column(runs / 'toy', 'val')
    first_tuned = column(runs / 'tuned', 'val')[0]

    assert val_losses[-1] < val_losses[0]
    assert first_tuned == pytest.approx(val_losses[-1], abs=1e-5)


# ---- from Python

FROM_PYTHON = PAGE.split('## From Python')[1].split('\n## ')[0]
BLOCKS = re.findall(r'^```python\n(.*?)^```', FROM_PYTHON, re.M | re.S)


@pytest.fixture
def run_block(tiny, tmp_path, monkeypatch):
    """run_block(number) runs a block of the page as it stands, but for the settings of a shorter
    run. A block knows the names of those before it."""
    monkeypatch.chdir(tmp_path)
    settings = dict(word.removeprefix('--').split('=') for word in tiny)
    names = {'toy': settings | {'device': 'cpu', 'dtype': 'float32'}}

    def run_block(number):
        block = BLOCKS[number].replace(', 50)', ', 5)').replace('max_iters=200, ', '')
        exec(block.replace('train(', 'train(**toy, '), names)
    return run_block


def test_the_page_has_four_blocks():
    assert len(BLOCKS) == 4


def test_the_lines_of_the_page_train_load_generate_and_look_inside(run_block, capsys):
    run_block(0)
    run_block(1)
    run_block(2)

    # `def main` and five more bytes
    assert 'torch.Size([1, 2, 13, 13])' in capsys.readouterr().out


@pytest.mark.slow
def test_the_sweep_of_the_page_is_six_runs(run_block, tmp_path, capsys):
    run_block(3)

    rows = re.findall(r'^0\.0[123] [01] (\d\.\d+)$', capsys.readouterr().out, re.M)
    assert len(rows) == 6
    assert len(set(rows)) == 6
    assert len(list(tmp_path.glob('out/sweep_*/best.safetensors'))) == 6


# ---- masked diffusion, with a sampler of its own

def test_masked_diffusion_learns_goes_on_and_writes(forked):
    fork = forked('Masked diffusion', """
toy(model='diffusion', eval_interval=3)
go_on(max_iters=9)
from model_diffusion import sample
model, tokenizer = load('out/toy')
x = torch.randint(256, (2, 16))
late = x.clone()
late[:, -1] = 5
assert not torch.equal(model(x)[0][:, 0], model(late)[0][:, 0])     # every token sees every other
ids = sample(model, tokenizer.mask_id, 16, steps=5)
assert ids.shape == (1, 16) and ids.max() < tokenizer.mask_id
""")
    assert len(column(fork.runs / 'toy', 'train')) == 9
