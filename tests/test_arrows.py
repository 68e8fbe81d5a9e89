"""Imports go one way: root programs import folders, analysis and scoring import tasks and engine, tasks imports engine,
engine imports neither, and networks nothing of the house."""
import ast
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
    first = module.split('.')[0]
    if (ROOT / f'{first}.py').exists():
        return 'models' if first.startswith('model_') else 'programs'
    return first if first in MAY_IMPORT else ''


def imported(nodes):
    """The places whose modules these imports name."""
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    return {place(name) for name in names + [n.module for n in nodes if isinstance(n, ast.ImportFrom)]} - {''}


@pytest.mark.parametrize('file', FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_a_module_imports_only_what_it_may(file):
    """No file imports a root program; a network imports engine for the authors' weights and for generation alone."""
    tree, module = ast.parse(file.read_text()), '.'.join(file.relative_to(ROOT).with_suffix('').parts)
    folder = place(module)
    allowed = {'models': {'engine'}, 'programs': {*MAY_IMPORT, 'models'}} | MAY_IMPORT
    assert imported([*ast.walk(tree)]) <= allowed[folder]
    assert folder != 'models' or not imported(tree.body)
    assert module != 'train' or imported(tree.body) >= {'engine', 'tasks'}  # so what is imported is seen


def test_settings_files_and_scripts_for_text_are_read_without_torch():
    names = 'engine.settings, tasks.files, tasks.tokenizer, prepare.stdlib, prepare.text'
    code = f'import sys, {names}; sys.exit("torch" in sys.modules)'
    assert subprocess.run([sys.executable, '-c', code], cwd=ROOT).returncode == 0
