"""docs/papers.md has a row for every numbered item of the papers, and the commands of its rows work."""
import itertools
import json
import re
import shlex
import shutil
import subprocess

import numpy as np
import pytest
import torch
from helpers import ROOT, run_here
from test_configs import RUNS, accepted, built, run
from test_readme import at_toy_size, place  # noqa: F401 (fixtures)

from engine import settings

PAGE = (ROOT / 'docs' / 'papers.md').read_text(encoding='utf-8')
TABLES = PAGE.split('\n## Every table')[1].split('\n## ')[0]
SECTIONS = dict(section.split('\n', 1) for section in TABLES.split('\n### ')[1:])
CRATE, LONGER, MAE, AOT, BOOK = SECTIONS

# what the papers number, by the numbers that they have; of the longer version, what we have of it
ITEMS = {
    CRATE: {'Figure': range(1, 13), 'Table': range(1, 6), 'Proposition': [1], 'Approximation': [2, 4],
            'Remark': [3], 'Lemma': [5, 6], 'Algorithm': [1, 2, 3]},
    LONGER: {'Figure': range(1, 10), 'Remark': range(1, 6),
             'section': ['1.1', '1.2', '1.3', '2.1', '2.2', '2.3', '2.4', '2.5', '3.1']},
    MAE: {'Figure': range(1, 12), 'Table': range(1, 7), 'Theorem': [1, 3], 'Assumption': [2],
          'Remark': [4, 5, 6, 13], 'Lemma': [7, 8], 'Proposition': [9, 10, 11, 12, 14, 15], 'Listing': [1, 2, 3]},
    AOT: {'Figure': range(1, 8), 'Table': range(1, 6), 'Definition': [1], 'Theorem': [1], 'Lemma': [1, 2, 3]},
}
NUMBER = r'(?:[A-C]\.)?\d+(?:\.\d+)*[ab]?'


def items_of(cell):
    """The items that the first cell of a row names, such as ('Figure', '8') of `Figures 6, 8 to 11`."""
    for kind, numbers in re.findall(rf'([A-Za-z]+?)s? ({NUMBER}(?:(?:, | to ){NUMBER})*)', cell):
        for first, _, last in re.findall(rf'({NUMBER})( to ({NUMBER}))?', numbers):
            *chapter, start = first.rstrip('ab').split('.')
            end = (last or first).rstrip('ab').split('.')[-1]
            for number in range(int(start), int(end) + 1):
                yield kind, '.'.join([*chapter, str(number)])


def rows_of(section):
    """[(first cell, third cell)] of the rows of a section."""
    lines = [line for line in SECTIONS[section].splitlines() if line.startswith('|')]
    cells = [line.strip('| ').split(' | ') for line in lines[2:]]
    assert cells and all(len(row) == 3 for row in cells)
    return [(item, command) for item, _, command in cells]


def commands_of(cell):
    """[words] of the commands in a cell, as the shell gives them to Python."""
    code = '\n'.join(re.findall('`((?:python|for) [^`]+)`', cell))
    tell = r'python() { printf "%s\0" "$@"; printf "\0"; }'
    done = subprocess.run(['bash', '-euc', f'{tell}\n{code}'], capture_output=True, text=True, check=True)
    return [command.split('\0') for command in done.stdout.split('\0\0')[:-1]]


@pytest.fixture(scope='module')
def commands():
    """{section: [(item, words)]}: all commands of the page."""
    if not shutil.which('bash'):
        pytest.skip('the loops of the page are read by bash')
    return {section: [(item, words) for item, cell in rows_of(section) for words in commands_of(cell)]
            for section in SECTIONS}


def settings_of(words):
    """{name: text} of what a command says with --name=text."""
    return dict(word[2:].split('=', 1) for word in words if word.startswith('--') and '=' in word)


def with_paths(words):
    return [str(ROOT / word) if word.endswith('.py') else word for word in words]


def out_of(words):
    """The run that a command of train.py writes."""
    given = {}
    for word in words:
        if word.startswith('config/'):
            given |= settings.read_file(str(ROOT / word))
    return (given | settings_of(words))['out_dir']


def training(commands):
    """{run: words} of all commands of train.py."""
    runs = {}
    for section in commands.values():
        for _, words in section:
            if words[0] == 'train.py':
                assert runs.setdefault(out_of(words), words) == words, f'two commands write {out_of(words)}'
    return runs


# ---- rows

@pytest.mark.parametrize('section', ITEMS)
def test_every_item_that_a_paper_numbers_has_a_row(section):
    on_page = {item for cell, _ in rows_of(section) for item in items_of(cell)}
    for kind, numbers in ITEMS[section].items():
        for number in numbers:
            assert (kind, str(number)) in on_page, f'{section} has no row for {kind} {number}'
        extra = {number for k, number in on_page if k == kind} - {str(number) for number in numbers}
        assert kind == 'section' or not extra, f'{section} has no {kind} {extra}'


@pytest.mark.parametrize('section', SECTIONS)
def test_a_row_has_a_command_or_says_why_it_has_none(section):
    for item, cell in rows_of(section):
        points_to_rows = re.match('the (rows?|commands) of ', cell)
        assert '`python' in cell or '`for' in cell or cell.startswith('none: ') or points_to_rows, item


def test_every_run_that_a_command_looks_at_is_written_by_another_one(commands):
    runs = training(commands)
    assert len(runs) > 100
    seen = set()
    for section in commands.values():
        for _, words in section:
            named = set(re.findall(r'\bout/[\w.]+', ' '.join(w for w in words if not w.startswith('--out'))))
            seen |= {re.sub(r'/.*', '', run.removeprefix('out/')) for run in named}
    assert len(seen) > 30 and {f'out/{name}' for name in seen} <= runs.keys()


@pytest.mark.slow
def test_a_run_that_is_called_as_one_in_a_header_is_the_same_run(commands):
    of_headers = {settings_built['out_dir']: settings_built
                  for settings_built in (built(*run(name, label))[0] for name, label in RUNS)}
    runs = training(commands)
    assert len(runs.keys() & of_headers.keys()) > 20
    for out_dir in runs.keys() & of_headers.keys():
        assert built(*with_paths(runs[out_dir])[1:])[0] == of_headers[out_dir]


# ---- citations

def test_every_paper_that_a_network_or_the_page_cites_is_cited_in_full():
    in_full = (ROOT / 'CITATION.cff').read_text(encoding='utf-8')
    known = set(re.findall(r'arxiv\.org/abs/(\S+)', in_full))
    number = r'\b\d{4}\.\d{5}\b'
    on_page = set(re.findall(number, PAGE))
    in_headers = [set(re.findall(rf'arXiv:\s*({number})', file.read_text(encoding='utf-8')))
                  for file in ROOT.glob('model_*.py')]
    assert in_headers.count(set()) == 1  # GPT-2 is not on arXiv
    assert on_page | set().union(*in_headers) <= known and len(on_page) > 8
    assert in_full.count('given-names') == in_full.count('family-names')


# ---- what the rows say is what the papers' tables say

def values_of(words):
    """{name: value} of the settings of a command of train.py."""
    values, model = built(*with_paths(words)[1:])
    return vars(model.config) | values


def trained(commands, section, item, *names):
    """{the values of these settings} of the runs of an item's rows."""
    runs = [values_of(words) for cell, words in commands[section] if cell.startswith(item) and words[0] == 'train.py']
    return {tuple(values[name] for name in names) for values in runs}


@pytest.mark.slow
def test_ablations_have_the_papers_settings(commands):
    names = ('epochs', 'weight_decay', 'learning_rate', 'eta', 'lam')
    assert trained(commands, CRATE, 'Table 2', *names) == {
        (150, 0.5, 2.4e-4, 0.02, 0.1), (150, 0.5, 2.4e-4, 0.5, 0.1), (150, 0.5, 2.4e-4, 0.1, 0.02),
        (150, 0.5, 2.4e-4, 0.1, 0.5), (90, 0.5, 2.4e-4, 0.1, 0.1), (300, 0.5, 2.4e-4, 0.1, 0.1),
        (150, 1.0, 2.4e-4, 0.1, 0.1), (150, 0.05, 2.4e-4, 0.1, 0.1), (150, 0.5, 4.8e-4, 0.1, 0.1),
        (150, 0.5, 1.2e-4, 0.1, 0.1)}
    for item, expected in {'Table 5': {(5, 0.25), (5, 0.5), (5, 0.9)}, 'Table 6': {(0.1, 0.75)},
                           'Figure 5': {(5, 0.75)}}.items():  # whose network is the third of Tables 5 and 6
        assert trained(commands, MAE, item, 'lam', 'mask_ratio') == expected
    grid = itertools.product((5e-5, 1e-4, 2e-4, 4e-4), (5, 10, 50), ('linear', 'sparse_linear'))
    networks = (('mssa', 32), ('mhsa', 32), ('mhsa', 16))
    assert trained(commands, AOT, 'appendix B.2', 'learning_rate', 'grad_clip', 'dataset', 'attn', 'n_layer') == {
        (*point, *network) for point, network in itertools.product(grid, networks)}


def test_transfer_and_probes_are_on_four_datasets(commands):
    for section, item, program, count in ((CRATE, 'Table 1, transfer', 'train.py', 6),
                                          (MAE, 'Table 2, fine-tuning', 'train.py', 4),
                                          (MAE, 'Table 2, linear probing', 'eval.py', 4),
                                          (MAE, 'Table 3', 'train.py', 1)):
        rows = [settings_of(words) for cell, words in commands[section] if cell == item and words[0] == program]
        starts = {row.get('init_from', row.get('ckpt')) for row in rows if 'dataset' in row}
        pairs = {(row.get('init_from', row.get('ckpt')), row['dataset']) for row in rows if 'dataset' in row}
        assert len(starts) == count
        assert pairs == set(itertools.product(starts, ('cifar10', 'cifar100', 'flowers102', 'pets')))
        if program == 'train.py':
            longer = {row['dataset'] for row in rows if row.get('epochs') == '400'}
            assert longer == {'flowers102', 'pets'}


def test_pictures_of_crate_mae_are_of_the_network_of_the_papers_figures(commands):
    runs = training(commands)
    drawn = {run for cell, words in commands[MAE] if cell.startswith('Figure') and words[0] != 'train.py'
             for run in re.findall(r'out/crate\w+', ' '.join(words))}
    assert drawn and all(settings_of(runs[run])['lam'] == '5' for run in drawn)


# ---- the commands

@pytest.mark.slow
@pytest.mark.parametrize('section', SECTIONS)
def test_programs_accept_every_command_and_networks_have_their_real_size(section, commands):
    for _, words in commands[section]:
        accepted(shlex.join(['python', *words]))


TOY = '''--max_iters=1 --epochs=0 --warmup_epochs=0 --warmup_iters=0 --eval_epochs=0 --eval_interval=1 --eval_iters=1
         --batch_size=2 --gradient_accumulation_steps=1 --show_samples=false --device=cpu --dtype=float32'''.split()
TOY_NETWORK = {'crate': '', 'vit': '', 'aot': '', 'crate_alpha': '', 'crate_mae': '', 'tost': '',
               'vit_mae': '--decoder_n_layer=1 --decoder_n_embd=16 --decoder_n_head=2',
               'dino': '--out_dim=16 --hidden_dim=16 --bottleneck_dim=8 --local_crops=1 --local_size=16'}


def at_toy_width(words):
    """The words of a command, and behind them those of a tiny network that takes one step, or of few samples."""
    words = [word.replace('step_626', 'step_1') for word in with_paths(words)]
    given = {}
    for word in words[1:]:
        if word.endswith('.py'):
            given |= settings.read_file(word)
    given |= settings_of(words)
    if not words[0].endswith('train.py'):
        return words + [few for name, few in (('num_samples', '--num_samples=2'), ('layer', '--layer=2'))
                        if name in given] + (['--prompts=8'] if 'icl_' in given.get('ckpt', '') else [])

    toy = [word for word in TOY if word.split('=')[0] != '--max_iters' or given.get('max_iters') != '0']
    is_new = given.get('init_from', 'scratch') == 'scratch'
    if is_new:
        toy += ['--n_layer=2', '--n_embd=16', '--n_head=2', *TOY_NETWORK[given['model']].split()]
    if given['dataset'] == 'openwebtext':
        toy += ['--block_size=64']
    elif 'linear' in given['dataset']:
        toy += ['--n_dims=8', '--block_size=20']
    else:
        toy += ['--image_size=64']  # 16 patches: of 90% hidden, one stays
    return words + toy


@pytest.mark.slow
@pytest.mark.usefixtures('at_toy_size')
@torch.compiler.set_stance('force_eager')
def test_every_command_takes_a_step_at_toy_width(commands, tmp_path):
    """Except for the benchmarks, which need downloads. Of a grid some points are enough."""
    for name in ('cifar100', 'flowers102', 'pets'):
        shutil.copytree(tmp_path / 'data' / 'cifar10', tmp_path / 'data' / name)
    names = [f'ILSVRC2012_val_{number:08}.JPEG' for number in range(1, 41)]
    np.save(tmp_path / 'data' / 'imagenet' / 'val.names.npy', np.array(names, 'S'))
    (tmp_path / 'real.json').write_text(json.dumps([[0]] * len(names)))

    runs = training(commands)
    everything = [words for section in commands.values() for _, words in section]
    looked_at = ' '.join(word for words in everything for word in words if not word.startswith('--out'))
    kinds = set()
    for words in sorted(runs.values(), key=lambda words: 'finetune' in words[1]):
        kind = re.sub(r'\d', '', ' '.join(word for word in words if not word.startswith('--out_dir')))
        if kind in kinds and out_of(words) not in looked_at:
            continue
        kinds.add(kind)
        run_here(*at_toy_width(words))
    for words in everything:
        kind = re.sub(r'\d', '', ' '.join(words))
        if words[0] == 'train.py' or '--benchmarks=all' in words or kind in kinds:
            continue
        if len(words) == 2:  # it has no settings, and the tests of other pages run it
            continue
        kinds.add(kind)
        run_here(*at_toy_width(words))
