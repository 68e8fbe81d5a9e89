"""What runs in the processes that helpers.run starts. This file imports no module of the project: a
script must find the modules that lie beside it, and not those that are loaded already."""
import os
import runpy
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# folders that pytest puts in sys.path; a user's Python does not have them
OF_PYTEST = [str(ROOT / name) for name in ('.', 'prepare', 'tests', 'tests/prepare')]


def run_script(words, cwd, variables, out):
    """Run words[0], a script, as `python words[0] ..` does in the folder cwd, with these variables
    of the environment. What it prints goes to two files, out + '.stdout' and out + '.stderr'."""
    for descriptor, name in ((1, 'stdout'), (2, 'stderr')):
        file = os.open(f'{out}.{name}', os.O_WRONLY | os.O_CREAT)
        os.dup2(file, descriptor)
    os.chdir(cwd)
    os.environ.update(variables)
    folders = [str(Path(words[0]).resolve().parent)]
    if variables.get('PYTHONPATH'):
        folders += variables['PYTHONPATH'].split(os.pathsep)
    sys.path[:] = folders + [path for path in sys.path if path not in OF_PYTEST]
    sys.argv = words
    runpy.run_path(words[0], run_name='__main__')
