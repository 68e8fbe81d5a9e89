"""Every command of the README runs, at toy size; pages and code name each other correctly."""
import ast
import dataclasses
import re
import runpy
import shlex
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from conftest import ROOT
from PIL import Image

from tasks import files as data
from engine import run as rundir
from model_aot import AoT, AoTConfig
from model_crate import CRATE, CRATEConfig
from model_crate_mae import CRATEMAE, CRATEMAEConfig
from prepare import shapes
from prepare.lib import benchmark, pictures as images
from tasks.tokenizer import Tokenizer

PAGES = [ROOT / 'README.md', *sorted((ROOT / 'docs').glob('*.md'))]
README = PAGES[0].read_text(encoding='utf-8')
COMMANDS = [line.split('  #')[0].strip() for block in re.findall(r'```sh\n(.*?)```', README, re.S)
            for line in re.sub(r'\\\n\s*', ' ', block).splitlines()]
SHORT = ['--batch_size=2', '--gradient_accumulation_steps=2', '--eval_interval=4', '--eval_iters=2', '--warmup_iters=1']
TOY = ['--n_layer=2', '--n_head=2', '--n_embd=16', *SHORT]  # of a new model


@pytest.fixture(scope='module')
def place(tmp_path_factory):
    """A folder with the data that README commands expect to find prepared."""
    place = tmp_path_factory.mktemp('readme')
    ids = np.random.default_rng(0).integers(0, 50257, 2000)
    tokens = type('GPT2', (), {'vocab_size': 50257, 'spec': {'name': 'gpt2'}})  # the real one needs a network
    data.save_text(place / 'data' / 'openwebtext', tokens, {'train': ids, 'val': ids}, {'train': 8000, 'val': 8000})
    text = (ROOT / 'README.md').read_text(encoding='utf-8').encode('ascii', 'ignore').decode()
    tokenizer = Tokenizer('chars', ''.join(sorted(set(text))))
    data.save_text(place / 'data' / 'shakespeare_char', tokenizer, *data.split_text(text, tokenizer))
    (place / 'README.md').write_text(README, encoding='utf-8')
    benchmark.save_benchmark(place / 'data' / 'lambada', 'last_word', [{'context': 'a subspace of', 'word': 'tokens'}], place, 'toy')
    gpt2 = AoT(AoTConfig(block_size=16, vocab_size=256, n_layer=2, n_head=2, n_embd=16, attn='mhsa', mlp=True, bias=True))
    (place / 'out' / 'gpt2').mkdir(parents=True)
    rundir.save(place / 'out' / 'gpt2' / 'best.pt', dict.fromkeys(rundir.KEYS, {}) | {
        'weights': gpt2.state_dict(), 'ema': None, 'model_config': dataclasses.asdict(gpt2.config), 'config': {'model': 'aot'},
        'data': {'kind': 'text', 'tokenizer': {'name': 'bytes'}}, 'step': 0})
    shapes.main(['--out', str(place / 'data' / 'shapes'), '--train', '40', '--val', '20', '--test', '20'])
    drawn, labels, _ = (np.load(place / 'data' / 'shapes' / f'train.{name}.npy') for name in ('images', 'labels', 'masks'))
    for name in ('cifar10', 'imagenet', 'imagenet21k'):
        images.save_arrays(place / 'data' / name, {split: (drawn, labels) for split in ('train', 'val')}, shapes.CLASSES)
    for i in range(4):
        (place / 'FOLDER' / f'class{i % 2}').mkdir(parents=True, exist_ok=True)
        Image.fromarray(drawn[i]).save(place / 'FOLDER' / f'class{i % 2}' / f'{i}.png')
    Image.fromarray(drawn[0]).save(place / 'cat.jpg')
    crate = CRATE(CRATEConfig(image_size=64, patch_size=16, num_classes=10, n_layer=2, n_head=2, n_embd=16))
    torch.save({'state_dict': crate.to_official()}, place / 'crate_base.pth')
    mae = CRATEMAE(CRATEMAEConfig(image_size=64, patch_size=16, n_layer=2, n_head=2, n_embd=16))
    torch.save({'model': mae.to_official()}, place / 'mae_crate_base.pth')
    return place


def toy(part):
    """A README command as this test can run it: our files, a tiny model, a few steps."""
    words = shlex.split(part)
    if words[0] == 'torchrun':
        words = ['-m', 'torch.distributed.run', *[w.replace('=8', '=2') for w in words[1:]], '--overwrite=true']  # "or", not "then"
    else:
        assert words[0] in ('python', 'python3'), part
        words = words[1:]
    tool = next(w for w in words if w.endswith('.py') and not w.startswith('config'))
    words = [str(ROOT / w) if re.match(r'(\w+|prepare/\w+)\.py$|config/', w) else w for w in words]
    if '--help' in words:
        return words
    new = not any('init_from' in w for w in words)
    functions = 'icl' in part
    pictures = re.search('crate|vit|cifar|imagenet|shapes', part) and not re.search('_char|stdlib|bert|crate_owt', part)
    if tool == 'train.py' and new:
        words += TOY + ([] if pictures else ['--n_dims=8', '--block_size=20'] if functions else ['--block_size=64'])
        words += ['--image_size=32', '--patch_size=8'] if 'imagenet' in part else []
    if tool == 'train.py' and not new and pictures:
        words += [*SHORT, '--image_size=32']
    if tool == 'train.py' or tool == 'bench.py' and 'pictures' not in words:
        steps = 8 if any('resume' in w for w in words) else 4
        words = [w for w in words if not w.startswith(('--max_iters', '--epochs'))] + [f'--max_iters={steps}', '--eval_iters=2']
    if tool == 'bench.py':
        words = [w for w in words if not w.startswith('--rounds')] + ['--rounds=1']
        words += ['--image_size=32', '--batch_size=1', '--seconds=0.01'] if 'pictures' in words else [*TOY, '--block_size=16']
    if tool == 'eval.py' and functions:
        words += ['--prompts=8']
    if any('benchmarks' in w for w in words):  # GPT-2's tokenizer would need a network
        words = [w.replace('out/aot_owt', 'out/gpt2') for w in words]
    if tool == 'analyze.py':
        words = [w.replace('step_150', 'step_0').replace('step_450', 'step_4') for w in words if not w.startswith('--num_samples')]
        theory = words[1] in ('denoise', 'compress', 'ista') and not any(w.startswith(('--ckpt', '--official')) for w in words)
        words = [re.sub('^--layer=.*', '--layer=2', re.sub('^--heads=.*', '--heads=1,2', w)) for w in words] + ['--tokens=16'] * theory
    if tool == 'sample.py' and not pictures:
        words = [w for w in words if not w.startswith('--max_new')] + ['--max_new_tokens=4']
    return [w.replace('--n_head=12', '--n_head=2') for w in words]


def test_readme_commands_run(place, monkeypatch, capsys):
    monkeypatch.chdir(place)
    ran = []
    for line in COMMANDS:
        for part in line.split(' && '):
            if part.startswith(('python3 -m venv', '. .venv', 'pip install', 'python -m pytest')):
                continue  # what .ci/run does
            if re.search(r'prepare/(shakespeare_char|cifar10|imagenet|openwebtext|wikitext|ptb|lambada|cbt|gpt2_weights)', part):
                continue  # a download, or an account is needed; the data stand ready
            words, start = toy(part), time.time()
            if words[0] == '-m':
                done = subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=120)
                assert done.returncode == 0, f'{part}\n{done.stderr}'
            else:
                monkeypatch.setattr(sys, 'argv', words)
                try:
                    runpy.run_path(words[0], run_name='__main__')
                except SystemExit:
                    pytest.fail(f'{part}\n{words}\n{capsys.readouterr().err}')
            ran.append(part)
            with capsys.disabled():
                print(f'{time.time() - start:5.1f} s  {part}')
    assert sum('train.py' in part for part in ran) >= 8 and any('torchrun' in part for part in ran)


def prose(page):
    """A page of Markdown without its blocks of code."""
    return re.sub(r'^```.*?^```$', '', page.read_text(encoding='utf-8'), flags=re.M | re.S)


def source(file, name):
    """The lines of a function, a class or a `Class.method` in a file, comments included."""
    text = (ROOT / file).read_text(encoding='utf-8')
    node = ast.parse(text)
    for part in name.split('.'):
        found = [n for n in node.body if isinstance(n, (ast.FunctionDef, ast.ClassDef)) and n.name == part]
        assert found, f'{file} has no {name}'
        node = found[0]
    return '\n'.join(text.splitlines()[node.lineno - 1:node.end_lineno])


def test_equations_are_where_the_table_says():
    table = (ROOT / 'docs' / 'papers.md').read_text(encoding='utf-8').split('## Which equation is where')[1].split('\n## ')[0]
    rows = [row.strip('| ').split(' | ') for row in table.splitlines() if row.startswith('|')][2:]
    assert len(rows) > 25
    for what, equation, code in rows:
        file, name = re.fullmatch(r'`([\w/]+\.py)` `([\w.]+)`', code).groups()
        assert equation in source(file, name), f'{file} {name} does not name equation {equation}, {what}'


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
            assert not anchor or anchor in anchors[path], f'{page.name} links to {target}#{anchor}, which has no such heading'
    for page in PAGES[1:]:
        assert f'(docs/{page.name})' in README, f'README.md does not link to docs/{page.name}'


def test_files_that_pages_name_exist():
    examples = {'model_x.py', 'model_tiny.py', 'train_x_shapes.py'}  # which the reader writes
    for page in PAGES:
        for name in set(re.findall(r'`([\w/]+\.py)`', prose(page))) - examples:
            assert (ROOT / name).exists() or (ROOT / 'config' / name).exists(), f'{page.name} names {name}, which does not exist'


def test_pages_are_short_enough():
    lines = README.splitlines()
    assert len(lines) <= 170 and '```sh' in lines[:24]
    for page in PAGES:
        for line in prose(page).splitlines():
            assert len(line) <= 100 or line.lstrip().startswith('|'), f'{page.name} has a line of {len(line)} columns: {line}'
