"""Imports go one way: root programs import folders, analysis and scoring import tasks and engine, tasks imports engine,
engine imports neither, and networks nothing of the house."""
import re
import subprocess
import sys

import pytest
from helpers import ROOT

MAY_IMPORT = {'engine': {'engine'}, 'tasks': {'tasks', 'engine'},
              'scoring': {'scoring', 'tasks', 'engine', 'models'},
              'analysis': {'analysis', 'tasks', 'engine', 'models'},
              'prepare': {'prepare', 'tasks', 'engine', 'models', 'config'}, 'config': {'config'}}
FILES = [*ROOT.glob('*.py'), *(file for folder in MAY_IMPORT for file in (ROOT / folder).rglob('*.py'))]


def place(module):
    """The folder of a module of this project, 'models', 'programs', or '' for another one's."""
    if (ROOT / f'{module}.py').exists():
        return 'models' if module.startswith('model_') else 'programs'
    return module if module in MAY_IMPORT else ''


def imported(text, inside):
    """The places of the modules that a file imports; inside: of its functions too."""
    return {place(name) for name in re.findall(rf'^{" *" * inside}(?:from|import) (\w+)', text, re.M)} - {''}


@pytest.mark.parametrize('file', FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_a_module_imports_only_what_it_may(file):
    """No file imports a root program; a network imports engine for the authors' weights and for generation alone."""
    text, folder = file.read_text(), place(file.relative_to(ROOT).parts[0].removesuffix('.py'))
    allowed = {'models': {'engine'}, 'programs': {*MAY_IMPORT, 'models'}} | MAY_IMPORT
    assert imported(text, inside=True) <= allowed[folder]
    assert folder != 'models' or not imported(text, inside=False)
    assert file.name != 'train.py' or imported(text, inside=False) >= {'engine', 'tasks'}  # so what is imported is seen


def test_settings_files_and_scripts_for_text_are_read_without_torch():
    names = 'engine.settings, tasks.files, tasks.tokenizer, prepare.stdlib, prepare.text'
    code = f'import sys, {names}; sys.exit("torch" in sys.modules)'
    assert subprocess.run([sys.executable, '-c', code], cwd=ROOT).returncode == 0
