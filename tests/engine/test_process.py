"""What a program does to its process before torch is loaded, and that an import does nothing."""
import json
import os
import subprocess
import sys

import pytest
from helpers import ROOT

PROGRAMS = ['train', 'sample', 'eval', 'analyze', 'bench']
MODULES = ['nanocrate', *PROGRAMS]
for room in ('engine', 'request', 'weights'):
    MODULES += [f'{room}.{path.stem}' for path in sorted((ROOT / room).glob('[!_]*.py'))]
SCRIPTS = [f'prepare/{path.name}' for path in sorted((ROOT / 'prepare').glob('[!_]*.py'))]


def environment(**more):
    """This process's environment without what people set for OpenMP."""
    env = {name: value for name, value in os.environ.items()
           if not name.startswith(('OMP_', 'GOMP_'))}
    return env | more


# ---- a missing library

WITHOUT = '''
import importlib.util, runpy, sys
find_spec = importlib.util.find_spec
library = sys.argv[1]
importlib.util.find_spec = lambda name, *more: None if name == library else find_spec(name, *more)
sys.modules[library] = None  # an import fails
sys.argv = sys.argv[2:]
sys.path.insert(0, sys.argv[0].rpartition('/')[0] or '.')
runpy.run_path(sys.argv[0], run_name='__main__')
'''


@pytest.mark.slow
@pytest.mark.parametrize('program', [f'{name}.py' for name in PROGRAMS] + SCRIPTS)
def test_without_a_library_one_line_names_both_ways_to_get_it(program):
    words = [sys.executable, '-c', WITHOUT, 'torch', program, '--help']
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)

    assert done.returncode == 2
    assert not done.stdout
    line, = done.stderr.splitlines()
    assert 'torch' in line
    assert 'pip install .' in line
    assert 'uv run' in line


# ---- threads

# a file torch.py that is imported instead of PyTorch
TORCH = """
import os, sys
print(os.environ.get('GOMP_SPINCOUNT'))
sys.exit()
"""


def spin_count(program, folder, **variables):
    """GOMP_SPINCOUNT as a program has set it when it loads torch."""
    (folder / 'torch.py').write_text(TORCH)
    done = subprocess.run([sys.executable, f'{program}.py'], cwd=ROOT, capture_output=True,
                          env=environment(PYTHONPATH=str(folder), **variables), text=True)
    return done.stdout.strip()


@pytest.mark.parametrize('program', [*PROGRAMS, 'docs/gpu'])
def test_threads_do_not_spin_for_long(program, tmp_path):
    assert spin_count(program, tmp_path) == '20000'


@pytest.mark.parametrize('name, count', [('GOMP_SPINCOUNT', '7'), ('OMP_WAIT_POLICY', 'None')])
def test_who_has_set_anything_of_openmp_keeps_it(name, count, tmp_path):
    assert spin_count('train', tmp_path, **{name: '7'}) == count


# ---- imports

# prints what imports have changed: of each module that changes something the names
IMPORT = """
import importlib, json, os, signal, sys, warnings
import matplotlib, torch, torch.utils.benchmark

def state():
    return {
        'environment': dict(os.environ),
        'handlers': [signal.getsignal(number) for number in signal.valid_signals()],
        'threads': torch.get_num_threads(),
        'precision': torch.get_float32_matmul_precision(),
        'random numbers': torch.get_rng_state().tolist(),
        'warnings': list(warnings.filters),
        'excepthook': sys.excepthook,
        'path': list(sys.path),
        'backend': dict.__getitem__(matplotlib.rcParams, 'backend'),
    }

changes = {}
for module in sys.argv[1:]:
    before = state()
    importlib.import_module(module)
    after = state()
    changed = [name for name in after if after[name] != before[name]]
    if changed:
        changes[module] = changed
print(json.dumps(changes))
"""


@pytest.mark.slow
def test_an_import_changes_nothing():
    done = subprocess.run([sys.executable, '-c', IMPORT, *MODULES], cwd=ROOT, capture_output=True,
                          env=environment(), text=True)

    assert json.loads(done.stdout) == {}, done.stderr
