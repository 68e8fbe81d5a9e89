"""What a program says where a library is not installed that every command needs."""
import subprocess
import sys

import pytest
from helpers import ROOT

WITHOUT = '''
import importlib.util, runpy, sys
find_spec = importlib.util.find_spec
importlib.util.find_spec = lambda name, *more: None if name == 'torch' else find_spec(name, *more)
sys.modules['torch'] = None  # an import fails
sys.argv = sys.argv[1:]
sys.path.insert(0, sys.argv[0].rpartition('/')[0] or '.')
runpy.run_path(sys.argv[0], run_name='__main__')
'''
PROGRAMS = [path.name for path in sorted(ROOT.glob('*.py')) if not path.name.startswith('model_')]
SCRIPTS = [f'prepare/{path.name}' for path in sorted((ROOT / 'prepare').glob('[!_]*.py'))]


@pytest.mark.parametrize('program', PROGRAMS + SCRIPTS)
def test_without_torch_one_line_names_both_ways_to_get_it(program):
    done = subprocess.run([sys.executable, '-c', WITHOUT, program, '--help'], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2 and not done.stdout
    line, = done.stderr.splitlines()
    assert 'torch' in line and 'pip install .' in line and 'uv run' in line
