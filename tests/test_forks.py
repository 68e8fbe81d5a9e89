"""The forks of docs/extend.md: each diff of the page is applied to a copy of the project, which trains, goes on and keeps
what the page promises. A fork is at most 20 lines in at most two files, or a file of its own."""
import json
import os
import re
import shutil
import subprocess
import sys

import pytest
from helpers import ROOT, column, weights

import train

PAGE = (ROOT / 'docs' / 'extend.md').read_text(encoding='utf-8')
FOLDERS = 'analysis', 'config', 'engine', 'prepare', 'scoring', 'tasks'
# {what stands in bold before a diff: the diff}
DIFFS = dict(re.findall(r'^\*\*([^*]+)\*\*(?:(?!^```|^\*\*).)*^```diff\n(.*?)^```', PAGE, re.M | re.S))
LORA = re.search(r'^```python\n("""LoRA.*?)^```', PAGE, re.M | re.S)

# what each script of a test begins with; `toy` trains six steps, or goes on
BEGINNING = """
import sys
import torch
from nanocrate import inside, load, train
from engine.settings import Mistake

out, data = sys.argv[1:]

def toy(name='out', **settings):
    network = dict(n_layer=2, n_head=2, n_embd=16, block_size=16)
    run = dict(batch_size=4, max_iters=6, eval_interval=2, eval_iters=2, log_interval=1, warmup_iters=2,
               optimizer='adamw', learning_rate=1e-2, dtype='float32', device='cpu', dataset='tiny', data_dir=data)
    if settings.get('init_from') == 'resume' or settings.get('model') == 'lora':
        network = {}
    if settings.get('init_from') == 'resume':
        run = {}
    return train(**network | run | settings, out_dir=f'{out}/{name}')

def refused(**settings):
    try:
        toy(**settings)
    except Mistake as e:
        return str(e)

"""


def changed_lines(diff):
    return [line for line in diff.splitlines() if line[:1] in '+-' and not line.startswith(('+++', '---'))]


@pytest.fixture
def forked(tmp_path, bytes_data):
    """forked(title, script) applies the diff below this title of the page to a copy of the project and runs the script
    there, behind BEGINNING; returns what it prints. out is tmp_path. The title may be a path, of a file with LoRA."""
    def forked(title, script):
        place = tmp_path / 'fork'
        for folder in FOLDERS:
            shutil.copytree(ROOT / folder, place / folder, ignore=shutil.ignore_patterns('__pycache__'))
        for file in ROOT.glob('*.py'):
            shutil.copy(file, place)
        if title.endswith('.py'):
            (place / title).write_text(LORA[1])
        else:
            subprocess.run(['git', 'apply', '-'], cwd=place, input=DIFFS[title], text=True, check=True)
        (place / 'check.py').write_text(BEGINNING + script)
        done = subprocess.run([sys.executable, 'check.py', tmp_path, bytes_data], cwd=place, capture_output=True, text=True,
                              timeout=120, env=os.environ | {'PYTHONPATH': ''})
        assert not done.returncode, done.stderr
        return done.stdout
    return forked


@pytest.fixture
def measured(capsys, bytes_data):
    """measured(file of weights) is what the unchanged code prints of them on the validation split."""
    def measured(file, dataset='tiny', data=bytes_data):
        capsys.readouterr()
        train.main([f'--init_from={file}', f'--data_dir={data}', f'--dataset={dataset}', '--batch_size=4', '--eval_iters=2',
                    '--eval_only=true', '--dtype=float32', '--device=cpu', '--max_iters=6', '--optimizer=adamw'])
        return re.search(r'validation  loss (\S+),', capsys.readouterr().out)[1]
    return measured


def test_a_fork_is_small_and_each_is_tried():
    for title, diff in DIFFS.items():
        assert len(changed_lines(diff)) <= 20 and diff.count('\n+++ ') <= 2, title
    assert len(DIFFS) == PAGE.count('```diff') and DIFFS.keys() == {*PLAIN, 'A schedule', 'Frozen weights',
                                                                    'Distillation', 'QK-norm', 'Rotary positions'}


# ---- losses, numbers, an optimizer, a dataset: what is logged stays the plain loss

PLAIN = {'A penalty': '', 'A number': '', 'An optimizer': "optimizer='nadam'", 'A dataset': '', 'Two passes': ''}


@pytest.mark.slow
@pytest.mark.parametrize('title', PLAIN)
def test_a_fork_trains_and_what_is_logged_is_the_plain_loss(title, forked, measured, tmp_path, bytes_data):
    """The unchanged code measures the same loss of the same weights."""
    data = ''
    if title == 'A dataset':
        data = "import subprocess\nsubprocess.run([sys.executable, 'prepare/sums.py'], check=True)\ndata = 'data'\n"
        dataset = "dataset='sums',"
    said = forked(title, f"{data}toy({dataset if data else ''} keep_checkpoints=True, {PLAIN[title]})\n"
                         "toy(init_from='resume', max_iters=8)")
    last = column(tmp_path / 'out', 'val')[-1]
    assert last < column(tmp_path / 'out', 'val')[0] and len(column(tmp_path / 'out', 'train')) == 8
    for name in ('perplexity', 'penalty', 'rate'):
        assert (f'{name} ' in said) == (f"'{name}'" in DIFFS[title])
    where = ('sums', tmp_path / 'fork' / 'data') if data else ('tiny', bytes_data)
    assert measured(tmp_path / 'out' / 'step_8.safetensors', *where) == f'{last:.4f}'


# ---- a schedule, frozen weights, distillation

@pytest.mark.slow
def test_the_rates_in_the_log_are_those_that_the_page_says(forked, tmp_path):
    """Ten steps: nine at the peak, half of it in the last. A longer run decays later."""
    forked('A schedule', """
settings = dict(schedule='wsd', warmup_iters=0, min_lr=0.0)
toy(**settings, max_iters=10)
toy(init_from='resume', max_iters=20)
toy('warm', **settings | dict(warmup_iters=3), max_iters=5)
""")
    peak, half, quarter = 1e-2, 0.5e-2, 0.25e-2
    assert column(tmp_path / 'out', 'train', 'lr') == pytest.approx([peak] * 9 + [half] + [peak] * 7 + [0.75e-2, half, quarter])
    assert column(tmp_path / 'warm', 'train', 'lr')[:3] == pytest.approx([quarter, half, 0.75e-2])


@pytest.mark.slow
def test_frozen_weights_stay_to_the_bit(forked, tmp_path):
    said = forked('Frozen weights', r"""
pattern = r'tok_emb|^layers\.0\.'
toy(freeze=pattern, optimizer='muon', keep_checkpoints=True)
toy(init_from='resume', max_iters=8)
print(refused(init_from='resume', max_iters=9, freeze='pos_emb'))
print(refused(name='no', freeze='nothing'))
""")
    before, after = weights(tmp_path / 'out', 'step_0'), weights(tmp_path / 'out', 'step_8')
    stayed = {name for name in before if before[name].equal(after[name])}
    assert stayed == {name for name in before if 'tok_emb' in name or name.startswith('layers.0.')} < before.keys()
    assert 'leave it out' in said and '--freeze=nothing is in no name; names are embed.tok_emb.weight' in said


@pytest.mark.slow
def test_a_teacher_stays_and_the_loss_that_is_logged_is_the_plain_one(forked, measured, tmp_path):
    said = forked('Distillation', """
from pathlib import Path
toy('teacher', n_layer=1, max_iters=40)
before = Path(f'{out}/teacher/best.safetensors').read_bytes()
toy('plain')
toy('out', teacher=f'{out}/teacher', max_iters=30, keep_checkpoints=True)
toy('out', init_from='resume', max_iters=40)
assert Path(f'{out}/teacher/best.safetensors').read_bytes() == before
""")
    out, plain = tmp_path / 'out', tmp_path / 'plain'
    assert column(out, 'train')[0] == column(plain, 'train')[0] and column(out, 'val')[0] == column(plain, 'val')[0]
    assert column(out, 'train')[1] != column(plain, 'train')[1]
    distance = column(out, 'train', 'distance')
    assert min(distance) >= 0 and distance[-1] < 0.5 * distance[0] and 'distance' not in said
    assert not any('teacher' in name for name in weights(out))
    config = json.loads((out / 'config.json').read_text())
    del config['settings']['teacher']                        # the unchanged code has no such setting
    (out / 'config.json').write_text(json.dumps(config))
    assert measured(out / 'step_40.safetensors') == f'{column(out, "val")[-1]:.4f}'


# ---- attention

MAPS = """
model, tokenizer = load(f'{out}/out')
model.double()
torch.manual_seed(0)
for layer in model.layers:                               # so that attention is far from uniform, and adds much
    torch.nn.init.normal_(layer.attn.U.weight, std=0.25)
    torch.nn.init.normal_(layer.attn.W.weight, std=0.5)
ids = torch.arange(60).unsqueeze(0) * 7 % 256

def check_maps(N):
    for step in inside(model, ids[:, :N]):
        v = step.attention.U(step.normed).unflatten(2, (2, -1)).transpose(1, 2)
        heads = (step.maps @ v).transpose(1, 2).flatten(2)
        assert (step.attention.W(heads) - step.update).abs().max() < 1e-5 < step.update.abs().max()
        assert step.maps.triu(1).abs().max() == 0 and step.maps[:, :, -1].max() > 2 / N

def check_generation(prompt, count):
    import warnings
    warnings.simplefilter('error')                       # such as of a cache that is of no use
    cached, uncached = (model.generate(prompt, count, temperature=0.0, use_cache=c) for c in (True, False))
    assert cached.shape[1] == prompt.shape[1] + count and torch.equal(cached, uncached)
"""


@pytest.mark.slow
def test_with_rotary_positions_maps_cache_and_long_texts_are_right(forked, tmp_path):
    said = forked('Rotary positions', """
toy(rope=True)
toy(init_from='resume', max_iters=8)
""" + MAPS + """
check_maps(50)                                           # of a text longer than block_size
swapped = ids[:, :12].clone()
swapped[:, 9:11] = ids[:, [10, 9]]
one, other = (inside(model, x)[0].update[0, -1] for x in (ids[:, :12], swapped))
assert (one - other).abs().max() > 1e-3                  # the order of earlier tokens counts
check_generation(ids[:, :5], 30)
check_generation(ids[:, :50], 10)
assert model(ids[:, :50], ids[:, 1:51])[1].isfinite()
assert all('pos_emb' not in name for name in model.state_dict())
print(refused(name='no', rope=True, attn='mhsa'))
""")
    assert "rope=True needs attn='mssa'" in said and column(tmp_path / 'out', 'val')[-1] < column(tmp_path / 'out', 'val')[0]


@pytest.mark.slow
def test_qk_norm_keeps_maps_and_its_temperature_is_no_matrix(forked, tmp_path):
    said = forked('QK-norm', """
toy(qk_norm=True, optimizer='muon', weight_decay=0.5)
toy(init_from='resume', max_iters=8)
""" + MAPS + """
check_maps(16)
check_generation(ids[:, :5], 11)
learned = torch.cat([layer.attn.temperature for layer in model.layers])
assert 0 < (learned - 1).abs().max() < 0.2               # Muon would make it a matrix of length 1
from engine.optim import build
for optimizer in build(model, 'muon', 1e-2):
    for group in optimizer.param_groups:
        if any(p is layer.attn.temperature for p in group['params'] for layer in model.layers):
            print(type(optimizer).__name__, 'decays', group['weight_decay'])
model.layers[0].attn.U.weight.data.mul_(3)               # the length of a projection changes no map
print('same', all(torch.allclose(maps, step.maps, atol=1e-6) for maps, step in zip([before], inside(model, ids[:, :16]))))
""".replace('model.layers[0].attn.U', "before = inside(model, ids[:, :16])[0].maps\nmodel.layers[0].attn.U"))
    assert 'AdamW decays 0.0' in said and 'Muon decays' not in said and 'same True' in said
    assert 'without weight decay, as no module calls them matrices: layers.*.attn.temperature (2, 1)' in said


# ---- LoRA, a file of its own

@pytest.mark.slow
def test_lora_changes_a_and_b_alone_and_merged_weights_compute_the_same(forked, tmp_path):
    forked('model_lora.py', """
from pathlib import Path
toy('base')
before = Path(f'{out}/base/best.safetensors').read_bytes()
settings = dict(model='lora', base=f'{out}/base')
toy('out', **settings, optimizer='muon', keep_checkpoints=True)
toy('out', init_from='resume', max_iters=8)
toy('tuned', init_from=f'{out}/out/step_8.safetensors', max_iters=1)
toy('averaged', **settings, ema=0.5)
assert Path(f'{out}/base/best.safetensors').read_bytes() == before

from engine.trained import read_config, read_weights
from model_lora import LoRA, LoRAConfig
saved, _ = read_weights(f'{out}/out/step_8.safetensors')
assert {name[-2:] for name in saved} == {'.A', '.B'} and all(t.abs().max() > 0 for t in saved.values())
lora = LoRA(LoRAConfig(**read_config(f'{out}/out')['network'])).eval()
assert {name[-2:] for name, p in lora.named_parameters() if p.requires_grad} == {'.A', '.B'}
base, tokenizer = load(f'{out}/base')
x = torch.arange(16).unsqueeze(0)
assert torch.allclose(lora(x)[0], base(x)[0], atol=1e-6)        # B begins as 0
lora.load_state_dict(saved, strict=False)
for name, weight in base.state_dict().items():                  # W is still that of base
    place, _, last = name.rpartition('.')
    inner = f'{place}.parametrizations.{last}.original'
    there = torch.nn.Module.state_dict(lora)
    assert torch.equal(there.get(name, there.get(inner)), weight)
merged, tokenizer = load(f'{out}/out/step_8.safetensors')
assert type(merged).__name__ == 'AoT' and not torch.allclose(merged(x)[0], base(x)[0], atol=1e-4)
assert torch.allclose(merged(x)[0], lora(x)[0], atol=1e-5)
toy('again', model='lora', base=f'{out}/out')                   # on the merged network
toy('crate', model='crate')
assert 'give --base of an AoT' in refused(name='no', model='lora', base=f'{out}/crate')
""")
    losses = column(tmp_path / 'out', 'val')
    assert losses[-1] < losses[0] and column(tmp_path / 'tuned', 'val')[0] == pytest.approx(losses[-1], abs=1e-5)


# ---- from Python

def test_the_lines_of_the_page_train_load_look_inside_and_sweep(tmp_path, tiny, monkeypatch, quick, capsys):
    """They run as they stand, but for the settings of a shorter run."""
    monkeypatch.chdir(tmp_path)
    toy = dict(word.removeprefix('--').split('=') for word in tiny)
    names = {'toy': toy | {'device': 'cpu', 'dtype': 'float32'}}
    section = PAGE.split('## From Python')[1].split('\n## ')[0]
    blocks = re.findall(r'^```python\n(.*?)^```', section, re.M | re.S)
    assert len(blocks) == 4
    for block in blocks:
        block = block.replace(', 50)', ', 5)').replace('max_iters=200, ', '')
        exec(block.replace('train(', 'train(**toy, '), names)
    said = capsys.readouterr().out
    assert 'torch.Size([1, 2, 13, 13])' in said              # def main and five more bytes
    assert len(list(tmp_path.glob('out/sweep_*/best.safetensors'))) == 6
    rows = re.findall(r'^0\.0([123]) ([01]) (\d\.\d+)$', said, re.M)
    assert len(rows) == 6 == len({loss for *_, loss in rows})
