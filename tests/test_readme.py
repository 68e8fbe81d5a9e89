"""Every command of the README and of docs/ runs, at toy size, and those of docs/papers.md are accepted; pages and code
name each other correctly."""
import importlib
import inspect
import io
import operator
import re
import runpy
import shlex
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from helpers import ROOT, masked_folders, save_run, save_text, split_text
from PIL import Image
from test_configs import RUNS, built, run

import analyze
import eval as scores
import sample
from engine import settings
from lib.benchmarks import save_benchmark
from lib.pictures import save_arrays
from model_aot import AoT, AoTConfig
from model_crate import CRATE, CRATEConfig
from model_crate_alpha import CRATEAlpha, CRATEAlphaConfig
from model_crate_mae import CRATEMAE, CRATEMAEConfig
from prepare import shapes
from tasks import imagenet
from tasks.tokenizer import Tokenizer

PAGES = [ROOT / 'README.md', *sorted((ROOT / 'docs').glob('*.md'))]
README = PAGES[0].read_text(encoding='utf-8')
SHORT = ['--batch_size=2', '--gradient_accumulation_steps=2', '--eval_interval=4', '--eval_iters=2', '--warmup_iters=1']
TOY = ['--n_layer=2', '--n_head=2', '--n_embd=16', *SHORT]  # of a new network
DOWNLOADS = 'shakespeare_char|shakespeare|cifar10|imagenet|openwebtext|wikitext|ptb|lambada|cbt|gpt2_weights|' \
            'crate_alpha_weights|crate_lm_weights'


def commands(page):
    """The different commands of a page, in order."""
    blocks = re.findall(r'```sh\n(.*?)```', page.read_text(encoding='utf-8'), re.S)
    lines = (line.split('  #')[0].strip() for block in blocks for line in re.sub(r'\\\n\s*', ' ', block).splitlines())
    return list(dict.fromkeys(filter(None, lines)))


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
    passages = [{'context': 'a subspace of', 'word': 'tokens'}]
    save_benchmark(tmp_path / 'data' / 'lambada', 'last_word', passages, 'toy')
    sizes = dict(n_layer=2, n_head=2, n_embd=16)
    gpt2 = AoT(AoTConfig(block_size=16, vocab_size=256, attn='mhsa', mlp=True, bias=True, **sizes))
    lm = CRATEAlpha(CRATEAlphaConfig(image_size=0, block_size=16, vocab_size=256, **sizes))
    for name, model in (('gpt2', gpt2), ('crate_lm', lm)):
        save_run(tmp_path / 'out' / name, model, {'kind': 'text', 'tokenizer': {'name': 'bytes'}})
    shapes.main(['--out', str(tmp_path / 'data' / 'shapes'), '--train', '40', '--val', '20', '--test', '20'])
    drawn, labels = (np.load(tmp_path / 'data' / 'shapes' / f'train.{name}.npy') for name in ('images', 'labels'))
    for name in ('cifar10', 'imagenet', 'imagenet21k'):
        save_arrays(tmp_path / 'data' / name, {split: (drawn, labels) for split in ('train', 'val')}, shapes.CLASSES)
    np.save(tmp_path / 'x.npy', drawn), np.save(tmp_path / 'y.npy', labels)
    masked_folders(tmp_path, tmp_path / 'VOCdevkit' / 'VOC2012', tmp_path / 'coco')
    Image.fromarray(drawn[0]).save(tmp_path / 'cat.jpg')
    crate = CRATE(CRATEConfig(image_size=64, patch_size=16, num_classes=10, n_layer=2, n_head=2, n_embd=16))
    torch.save({'state_dict': crate.to_official()}, tmp_path / 'crate_base.pth')
    alpha = CRATEAlpha(CRATEAlphaConfig(image_size=64, patch_size=16, num_classes=1000, **sizes))
    about = {'kind': 'images', 'classes': list(imagenet.names())}
    save_run(tmp_path / 'out' / 'crate_alpha_b16', alpha, about)
    mae = CRATEMAE(CRATEMAEConfig(image_size=64, patch_size=16, n_layer=2, n_head=2, n_embd=16))
    torch.save({'model': mae.to_official()}, tmp_path / 'mae_crate_base.pth')
    return tmp_path


@pytest.fixture
def uncompiled():
    """Compiled networks compute as written: compiling takes most of the time, and other tests do it."""
    with torch.compiler.set_stance('force_eager'):
        yield


def toy(command):
    """The words of a command as this test can run it: our files, a tiny network, a few steps."""
    words = shlex.split(re.sub(r'--n_head([ =])12\b', r'--n_head\g<1>2', command))
    if words[1] == '-c':
        return words[1:]
    if words[0] == 'torchrun':
        words = ['-m', 'torch.distributed.run', *[w.replace('=8', '=2') for w in words[1:]], '--overwrite=true']
    else:
        assert words[0] in ('python', 'python3'), command
        words = words[1:]
    tool = next(w for w in words if w.endswith('.py') and not w.startswith('config'))
    words = [str(ROOT / w) if re.match(r'(\w+|prepare/\w+)\.py$|config/', w) else w for w in words]
    if '--help' in words:
        return words
    new = not any('init_from' in w for w in words)
    functions = re.search('icl|linear', command)
    pictures = re.search('crate|vit|cifar|imagenet|shapes', command) and \
        not re.search('_char|stdlib|bert|crate_owt|crate_lm', command)
    if tool == 'train.py' and new:
        words += TOY + ([] if pictures else ['--n_dims=8', '--block_size=20'] if functions else ['--block_size=64'])
        words += ['--image_size=32', '--patch_size=8'] if 'imagenet' in command else []
    if tool == 'train.py' and not new and pictures:
        words += [*SHORT, '--image_size=32']
    races = tool == 'bench.py' and 'config/' in command
    if tool == 'train.py' or races:
        words = [w for w in words if not w.startswith(('--max_iters', '--epochs'))]
        words += [f'--max_iters={8 if any("resume" in w for w in words) else 4}', '--eval_iters=2']
    if tool == 'bench.py':
        words = [w for w in words if not w.startswith(('--rounds', '--tokens'))] + ['--rounds=1']
        words += [*TOY, '--block_size=16'] if races else \
            ['--n_layer=1', '--n_embd=32', '--n_head=2', '--image_size=32', '--block_size=32', '--vocab_size=99',
             '--batch_size=1', '--seconds=0', '--tokens=2']
    if tool == 'prepare/shapes_many.py':
        words += ['--train=20', '--val=8', '--test=8']
    if tool == 'eval.py' and functions:
        words += ['--prompts=8']
    if any('benchmarks' in w for w in words):  # GPT-2's tokenizer would need a download
        words = [w.replace('out/aot_owt', 'out/gpt2') for w in words]
    if tool == 'analyze.py':
        words = [w for w in words if not w.startswith('--num_samples')]
        words = [re.sub('^--layer=.*', '--layer=2', re.sub('^--heads=.*', '--heads=1,2', w)) for w in words]
        theory = words[1] in ('denoise', 'compress', 'ista') and '--ckpt' not in command
        words += ['--tokens=16'] * theory
    if tool == 'sample.py' and not pictures and '[MASK]' not in command and '--image' not in command:
        words = [w for w in words if not w.startswith('--max_new')] + ['--max_new_tokens=4']
    return [re.sub(r'step_\d+\.', 'step_4.', w.replace('step_150.', 'step_0.')) for w in words]


@pytest.mark.slow
@pytest.mark.parametrize('page', [pytest.param(page, id=page.stem) for page in PAGES if commands(page)])
def test_commands_run(page, place, uncompiled, monkeypatch, capsys):
    monkeypatch.chdir(place)
    for command in commands(page):
        if command.startswith(('uv ', 'python3 -m venv', '. .venv', 'pip install', 'python -m pytest')):
            continue  # what .ci/run does
        if re.search(rf'prepare/({DOWNLOADS})\.py', command):
            continue  # a download, or an account is needed; the data stand ready
        command = re.sub(r'^GOMP_\w+=\d+ ', '', command)  # read when torch is loaded
        words, start = toy(command), time.time()
        if words[0] in ('-m', '-c'):
            done = subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=120)
            assert done.returncode == 0, f'{command}\n{done.stderr}'
        else:
            monkeypatch.setattr(sys, 'argv', words)
            monkeypatch.setattr(sys, 'stdin', io.StringIO('the\n'))  # what is typed
            try:
                runpy.run_path(words[0], run_name='__main__')
            except SystemExit as e:
                assert not e.code, f'{command}\n{words}\n{capsys.readouterr().err}'
        with capsys.disabled():
            print(f'{time.time() - start:5.1f} s  {command}')


def prose(page):
    """A page of Markdown without its blocks of code."""
    return re.sub(r'^```.*?^```$', '', page.read_text(encoding='utf-8'), flags=re.M | re.S)


def test_equations_are_where_the_table_says():
    page = (ROOT / 'docs' / 'papers.md').read_text(encoding='utf-8')
    table = page.split('## Which equation is where')[1].split('\n## ')[0]
    rows = [row.strip('| ').split(' | ') for row in table.splitlines() if row.startswith('|')][2:]
    assert len(rows) > 25
    for what, code in rows:
        file, name = re.fullmatch(r'`([\w/]+\.py)` `([\w.]+)`', code).groups()
        module = importlib.import_module(file.removesuffix('.py').replace('/', '.'))
        source = inspect.getsource(operator.attrgetter(name)(module))
        equations = re.findall(r'\((?:(?:[AB]\.|\d\.)?\d+|[abc])\)', what)
        assert equations and all(equation in source for equation in equations), f'{file} {name}: {what}'


def test_the_map_names_every_file_and_folder():
    tree = README.split('## Files')[1].split('```')[1]
    ignored = (ROOT / '.gitignore').read_text().replace('/', ' ').split()
    folders = {f'{p.name}/' for p in ROOT.iterdir() if p.is_dir() and p.name[0] != '.' and p.name not in ignored
               and any(f.suffix in ('.py', '.md', '.png') for f in p.iterdir())}
    assert set(re.findall(r'^(\S+)  ', tree, re.M)) == {p.name for p in ROOT.glob('*.py')} | folders


def test_links_lead_somewhere():
    anchors = {page: {re.sub(r'[^\w -]', '', title.lower()).replace(' ', '-')
                      for title in re.findall(r'^#+ (.*)$', prose(page), re.M)} for page in PAGES}
    for page in PAGES:
        for target, anchor in re.findall(r'\]\((?!https?:)([^)#]*)#?([^)]*)\)', prose(page)):
            path = (page.parent / target).resolve() if target else page
            assert path.exists(), f'{page.name} links to {target}, which does not exist'
            assert not anchor or anchor in anchors[path], f'{page.name}: {target} has no heading {anchor}'
    for page in PAGES[1:]:
        assert f'(docs/{page.name})' in README, f'README.md does not link to docs/{page.name}'


def test_files_that_pages_name_exist():
    examples = {'model_x.py', 'model_tiny.py', 'train_x_shapes.py'}  # which the reader writes
    for page in PAGES:
        for name in set(re.findall(r'`([\w/]+\.py)`', prose(page))) - examples:
            assert (ROOT / name).exists() or (ROOT / 'config' / name).exists(), f'{page.name}: there is no {name}'


# ---- docs/papers.md: what reproduces each table and figure

TABLES = (ROOT / 'docs' / 'papers.md').read_text(encoding='utf-8').split('\n## Every table')[1].split('\n## ')[0]
def test_commands_of_papers_are_accepted_and_look_at_runs_that_others_make():
    looks = {'eval.py': scores.EvalConfig, 'sample.py': sample.SampleConfig, 'analyze.py': analyze.AnalyzeConfig}
    made, seen = {built(*run(name, label))[0]['out_dir'] for name, label in RUNS}, set()
    for script, *words in [shlex.split(c) for c in re.findall(r'`python ([^`]+)`', TABLES)]:
        made |= {w.split('=')[1] for w in words if w.startswith('--out_dir=')}
        seen |= set(re.findall(r'\bout/\w+', ' '.join(w for w in words if not w.startswith('--out'))))
        if script == 'train.py':
            built(*(str(ROOT / w) if w.startswith('config/') else w for w in words))
        if script == 'analyze.py' and words[0] == 'curves':
            continue
        if script == 'analyze.py':
            assert words.pop(0) in {*analyze.COMMANDS, *analyze.THEORIES}
        if script in looks:
            settings.check(settings.collect(words), looks[script])
    assert len(seen) > 10 and seen <= made
    for flag in re.findall(r'`(--[^`]+)`', TABLES):  # which stand alone, for the command before them
        if flag.startswith(('--split', '--ckpt')):
            settings.check(settings.collect([flag]), scores.EvalConfig)
        else:
            built(str(ROOT / 'config' / 'train_crate_imagenet.py'), flag)


@pytest.mark.parametrize('times, noise, start, end', [(2, 2, 3, 1), (-1, 0, 1, 3), (1, 0, 3, 1)])
def test_the_misprints_of_the_diffusions(times, noise, start, end):
    """Equations (A.29), (A.30) and (A.31), as docs/papers.md corrects them. A token of N(0, 1) has the variance 1 + 2t
    and the score -x / (1 + 2t) at time t, from 0 to 1. A drift of `times` the score and a noise of variance `noise`
    keep that law, the first and the last of them backwards in time."""
    for wrong in (0, -2 * times):
        variance, steps = start, 10_000
        for i in range(steps):
            law = start + (end - start) * i / steps
            variance += (noise - 2 * (times + wrong) * variance / law) / steps
        assert (variance == pytest.approx(end, rel=1e-3)) == (not wrong)
