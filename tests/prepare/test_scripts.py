"""What all scripts of prepare/ have in common."""
import subprocess
import sys

import pytest
from helpers import ROOT, run

from prepare.lib.command_line import parser

SCRIPTS = sorted(p.stem for p in (ROOT / 'prepare').glob('*.py') if p.stem != '__init__')


@pytest.mark.parametrize('name', SCRIPTS)
def test_help_shows_the_docstring_and_mistakes_get_one_line(name):
    done = run(f'prepare/{name}.py', '--help')
    assert done.returncode == 0 and f'    python prepare/{name}.py' in done.stdout, done.stderr
    done = run(f'prepare/{name}.py', '--nonsense')
    assert done.returncode == 2 and done.stdout == '' and len(done.stderr.splitlines()) == 1, done.stderr
    assert done.stderr.startswith('error: ') and '--help' in done.stderr


@pytest.mark.parametrize('words', [['--overwrite', 'photos'], ['--overwrite=true', 'photos'],
                                   ['photos', '--overwrite']])
def test_overwrite_is_a_switch_and_takes_no_word_that_follows(words):
    p = parser('', None)
    p.add_argument('folder')
    args = p.parse_args(words)
    assert args.overwrite is True and args.folder == 'photos' and not p.parse_args(['photos']).overwrite


def test_scripts_start_without_torch_and_libraries_do_not_import_scripts():
    code = ('import importlib, sys\n'
            'for name in sys.argv[1:]: importlib.import_module(name)\n'
            'print(*(m for m in sys.modules if m == "torch" or m.startswith("prepare.")))')

    def loaded(names):
        done = subprocess.run([sys.executable, '-c', code, *names], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return set(done.stdout.split())
    libraries = [f'prepare.lib.{p.stem}' for p in (ROOT / 'prepare/lib').glob('*.py')]
    scripts = [f'prepare.{name}' for name in SCRIPTS]
    assert loaded(libraries) == {'prepare.lib', *libraries}
    assert loaded(scripts) == {'prepare.lib', *libraries, *scripts}
