"""Every command of the README and of docs/ runs, at toy size; test_papers.py has those of docs/papers.md."""
import hashlib
import io
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import (BYTES, ROOT, PreparedPopen, masked_autoencoder, masked_folders,
                     picture_network, run_here, save_run, save_text, split_text, text_network)
from PIL import Image
from test_pages import PAGES, README, commands

from analysis import assets, denoising
from engine.checkpoint import read_log
from engine.device import cpu_gains_from_bfloat16
from lib.pictures import save_arrays
from lib.texts import save_benchmark
from prepare import shapes
from scoring import flops, probes
from tasks import imagenet
from tasks.tokenizer import Tokenizer
from weights.runs import read_weights

PAGES_SHA256 = '38dc8a9fbc02ef952ff4979b34348bb10906955f001e96e70aca4a93a5df2b05'
DOWNLOADS = 'shakespeare_char|shakespeare|cifar10|imagenet|openwebtext|wikitext|ptb|lambada|cbt|gpt2_weights|' \
            'crate_alpha_weights|crate_lm_weights'


@pytest.fixture
def place(tmp_path):
    """A folder with the data, pictures and weights that the commands of a page expect to find."""
    ids = np.random.default_rng(0).integers(0, 50257, 2000)
    tokens = type('GPT2', (), {'vocab_size': 50257, 'spec': {'name': 'gpt2'}})  # the real one needs a download
    save_text(tmp_path / 'data' / 'openwebtext', tokens, {'train': ids, 'val': ids}, {'train': 8000, 'val': 8000})
    text = README.encode('ascii', 'ignore').decode()
    tokenizer = Tokenizer('chars', ''.join(sorted(set(text))))
    save_text(tmp_path / 'data' / 'shakespeare_char', tokenizer, *split_text(text, tokenizer))
    (tmp_path / 'README.md').write_text(README, encoding='utf-8')
    (tmp_path / 'pairs.jsonl').write_text('{"prompt": "2+2=", "answer": "4"}\n' * 200)
    passages = [{'context': 'a subspace of', 'word': 'tokens'}]
    save_benchmark(tmp_path / 'data' / 'lambada', 'last_word', passages, 'toy')
    gpt2 = text_network('aot', vocab_size=256, attn='mhsa', mlp=True, bias=True)
    save_run(tmp_path / 'out' / 'gpt2', gpt2, BYTES)
    save_run(tmp_path / 'out' / 'crate_lm', text_network('crate_alpha', vocab_size=256), BYTES)
    shapes.main(['--out', str(tmp_path / 'data' / 'shapes'), '--train', '40', '--val', '20', '--test', '20'])
    drawn, labels = (np.load(tmp_path / 'data' / 'shapes' / f'train.{name}.npy') for name in ('images', 'labels'))
    for name in ('cifar10', 'imagenet', 'imagenet21k'):
        save_arrays(tmp_path / 'data' / name, {split: (drawn, labels) for split in ('train', 'val')}, shapes.CLASSES)
    np.save(tmp_path / 'x.npy', drawn), np.save(tmp_path / 'y.npy', labels)
    masked_folders(tmp_path, tmp_path / 'VOCdevkit' / 'VOC2012', tmp_path / 'coco')
    (tmp_path / 'PHOTOS').mkdir()
    for name in ('assets/cat.jpg', 'docs/pages.txt'):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    for i in range(12):
        Image.fromarray(drawn[i]).save(tmp_path / 'PHOTOS' / f'{i}.jpg')
    small = dict(image_size=64, patch_size=16, n_layer=2)
    torch.save({'state_dict': picture_network(**small, num_classes=10).to_official()}, tmp_path / 'crate_small.pth')
    alpha = picture_network('crate_alpha', **small, num_classes=1000)
    save_run(tmp_path / 'out' / 'crate_alpha_b16', alpha, {'kind': 'images', 'classes': list(imagenet.names())})
    mae = masked_autoencoder('crate_mae', **small)[0]
    torch.save({'model': mae.to_official()}, tmp_path / 'mae_crate_base.pth')
    return tmp_path


def save_small_stdlib(folder):
    """Text in the place of the standard library, which takes seconds to prepare."""
    tokenizer = Tokenizer('bytes')
    splits, n_bytes = split_text(README, tokenizer)
    for of_splits in (splits, n_bytes):
        of_splits['test'] = of_splits['val']
    save_text(folder, tokenizer, splits, n_bytes)


SHORT = ['--batch_size=2', '--gradient_accumulation_steps=2', '--eval_interval=4', '--warmup_iters=1',
         '--show_samples=false']
NEW = r'(train|bench)\.py(?!.*init_from=(out|resume)).*'  # of a network that is new
TOYS = {  # words behind those of a command that a pattern finds; of several for a setting the last counts
    r'train\.py|bench\.py config': ['--max_iters=4', '--epochs=0', '--eval_iters=2'], 'resume': ['--max_iters=8'],
    r'train\.py(?!.*init_from=(out|resume))|bench\.py config': ['--n_layer=2', '--n_head=2', '--n_embd=16', *SHORT],
    NEW + '(icl|linear)': ['--n_dims=8', '--block_size=20'], NEW + '(owt|char)': ['--block_size=64'],
    NEW + 'imagenet': ['--image_size=32', '--patch_size=8'], 'init_from=out/(.*mae|crate)': ['--image_size=32', *SHORT],
    r'compare\.py': ['--n_layer=2', '--n_head=2', '--n_embd=16', '--max_iters=4', '--epochs=0', '--eval_iters=2',
                     '--seeds=1', '--equal=steps', '--compile=false', *SHORT],
    r'compare\.py(?!.*(shapes|cifar10))': ['--block_size=16'],
    'torchrun': ['--overwrite=true'], r'eval\.py.*(icl|linear)': ['--prompts=8'],
    r'bench\.py (?!config)': ['--n_layer=1', '--n_embd=32', '--n_head=2', '--image_size=32', '--block_size=32',
                              '--vocab_size=99', '--batch_size=1', '--seconds=0', '--tokens=2', '--rounds=1'],
    r'bench\.py config': ['--block_size=16', '--rounds=1'], 'shapes_many.py': ['--train=20', '--val=8', '--test=8'],
    'official_weights': ['--n_head', '2'], '--heads': ['--heads=1,2'], '--layer=': ['--layer=2'],
    'analyze.py denoise(?!.*ckpt)': ['--tokens=16', '--head_dim=8'], 'analyze.py diffuse': ['--n_layer=8', '--sets=2'],
    r'sample\.py(?!.*(image|MASK))': ['--max_new_tokens=4'],
    r'num_samples=\d{4}': ['--num_samples=200']}


def toy(command, in_two_processes):
    """The words of a command as this test can run it: our files, a tiny network, a few steps. Without
    in_two_processes, a command of torchrun is one of train.py in this process."""
    command = command.replace('per_node=8', 'per_node=2').replace('aot_owt --benchmarks', 'gpt2 --benchmarks')
    first, *words = shlex.split(re.sub(r'step_\d+\.', 'step_4.', command.replace('step_150.', 'step_0.')))
    if first == 'torchrun' and in_two_processes:
        words = ['-m', 'torch.distributed.run', *words]
    elif first == 'torchrun':
        words = words[words.index('train.py'):]
    words = [str(ROOT / w) if re.match(r'(\w+|prepare/\w+)\.py$|config/', w) else w for w in words]
    return words + [word for pattern, more in TOYS.items() if re.search(pattern, command) for word in more]


@pytest.fixture
def at_toy_size(place, undrawn, monkeypatch):
    """Commands run in `place`, with less work than as a user types them, and draw no figure."""
    monkeypatch.chdir(place)
    monkeypatch.setattr(probes, 'PROBE_C', (1, 10))  # each value takes seconds
    monkeypatch.setitem(denoising.NEAR, 'head_dim', 8)  # which `denoise` computes too, with 768
    monkeypatch.setattr(flops, 'matmul_flops', lambda device, dtype: 1e9)  # measuring it takes a second

    start_anew = subprocess.Popen

    def start(words, **settings):
        """What a command starts. A script gets a process that has torch already."""
        if words[0] == sys.executable and str(words[1]).endswith('.py'):
            return PreparedPopen(words)
        return start_anew(words, **settings)
    monkeypatch.setattr(subprocess, 'Popen', start)


@pytest.mark.slow
@pytest.mark.parametrize('page', [pytest.param(page, id=page.stem) for page in PAGES if commands(page)])
@pytest.mark.usefixtures('at_toy_size')
@torch.compiler.set_stance('force_eager')  # compiling takes most of the time, and other tests do it
def test_commands_run(page, monkeypatch):
    if page.name != 'README.md':  # where the first run prepares it
        save_small_stdlib(Path('data/stdlib'))
    for command in commands(page):
        if command.startswith(('uv ', 'python3 -m venv', '. .venv', 'pip install', 'python -m pytest', 'git diff')):
            continue  # what .ci/run does, or tests/test_pages.py
        if re.search(rf'prepare/({DOWNLOADS})\.py', command):
            continue  # a download, or an account is needed; the data stand ready
        if command.removeprefix('python ') in assets.COMMANDS.values():
            continue  # tests/analysis/test_assets.py draws it, with --out
        command = re.sub(r'^GOMP_\w+=\d+ ', '', command)  # read when torch is loaded
        words = toy(command, in_two_processes=page.name == 'README.md')  # once, because it takes ten seconds
        if words[0] in ('-m', '-c'):
            done = subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=120)
            assert done.returncode == 0, f'{command}\n{done.stderr}'
        else:
            monkeypatch.setattr(sys, 'stdin', io.StringIO('the\n'))  # what is typed
            run_here(*words)


# ---- README's own text, at full size

def test_the_text_of_readme_stays_as_it_is():
    content = (ROOT / 'docs' / 'pages.txt').read_bytes()
    assert hashlib.sha256(content).hexdigest() == PAGES_SHA256  # the numbers of README are of these bytes


SECTION = README.split('## Your own text and pictures')[1].split('\n## ')[0]
PROSE = re.sub(r'```.*?```', '', SECTION, flags=re.S)
AT_500, AT_800, BEGUN_AT, ENDED_AT = map(float, re.findall(r'\b\d\.\d\d\b', PROSE))


@pytest.fixture
def losses_of(tmp_path, monkeypatch, capsys):
    """losses_of(name) types the commands of README that write or read the run out/NAME. Returns its
    losses in validation, {step: loss}."""
    (tmp_path / 'docs').mkdir()
    shutil.copy(ROOT / 'docs' / 'pages.txt', tmp_path / 'docs')
    monkeypatch.chdir(tmp_path)

    def losses_of(name):
        for line in re.findall(r'^python (.*)', SECTION, re.M):
            if 'prepare/text.py' in line or f'out/{name} ' in line:
                run_here(*shlex.split(line, comments=True))
        assert 'best at step' not in capsys.readouterr().out
        return {row['step']: row['loss'] for row in read_log(f'out/{name}')
                if row['split'] == 'val'}
    return losses_of


@pytest.mark.slow
@pytest.mark.skipif(not cpu_gains_from_bfloat16(), reason='it takes six minutes on this processor')
def test_readmes_own_text_is_learned_and_resumed(losses_of):
    mine = losses_of('mine')
    assert mine[800] < mine[400] < mine[0] and mine[800] < AT_500
    assert mine[800] == pytest.approx(AT_800, abs=0.06)


@pytest.mark.slow
def test_a_network_that_knows_python_is_fine_tuned_with_readmes_own_text(losses_of, tmp_path):
    tuned = losses_of('tuned')
    assert tuned[300] < tuned[200] < tuned[0]
    # not all machines compute in bfloat16
    assert (tuned[0], tuned[300]) == pytest.approx((BEGUN_AT, ENDED_AT), abs=0.06)
    before = read_weights(ROOT / 'trained' / 'aot_stdlib' / 'best.safetensors')[0]
    after = read_weights(tmp_path / 'out' / 'tuned' / 'best.safetensors')[0]
    assert all(not torch.equal(before[name], after[name]) for name in before)
