"""What a process does that helpers.run starts."""
import os
import runpy
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parent
OF_PYTEST = {str(path) for path in (TESTS.parent, TESTS.parent / 'prepare', TESTS, TESTS / 'prepare')}


def run_script(words, cwd, env, out):
    """Run words[0], a script, as `python words[0] ...` does in the folder cwd. What it prints is in
    the files out + '.stdout' and out + '.stderr'."""
    for number, name in ((1, 'stdout'), (2, 'stderr')):
        file = os.open(f'{out}.{name}', os.O_WRONLY | os.O_CREAT)
        os.dup2(file, number)
    os.chdir(cwd)
    os.environ.update(env)
    folders = [str(Path(words[0]).resolve().parent)]
    if 'PYTHONPATH' in env:
        folders += env['PYTHONPATH'].split(os.pathsep)
    sys.path[:] = folders + [path for path in sys.path if path not in OF_PYTEST]
    sys.argv = words
    runpy.run_path(words[0], run_name='__main__')
