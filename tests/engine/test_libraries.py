"""What a program says where a library is not installed that every command needs."""
import subprocess
import sys

import pytest
from helpers import ROOT

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
PROGRAMS = [path.name for path in sorted(ROOT.glob('*.py')) if not path.name.startswith('model_')]
SCRIPTS = [f'prepare/{path.name}' for path in sorted((ROOT / 'prepare').glob('[!_]*.py'))]


@pytest.mark.slow
@pytest.mark.parametrize('library', ['torch', 'numpy'])
@pytest.mark.parametrize('program', PROGRAMS + SCRIPTS)
def test_without_a_library_one_line_names_both_ways_to_get_it(program, library):
    done = subprocess.run([sys.executable, '-c', WITHOUT, library, program, '--help'], cwd=ROOT, capture_output=True,
                          text=True)
    assert done.returncode == 2 and not done.stdout
    line, = done.stderr.splitlines()
    assert library in line and 'pip install .' in line and 'uv run' in line
