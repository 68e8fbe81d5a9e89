"""Imports go one way: root programs import folders, analysis and scoring import tasks and engine,
tasks imports engine, engine imports neither, and networks nothing of the house."""
import ast
import subprocess
import sys

import pytest
from helpers import ROOT

MAY_IMPORT = {'engine': {'engine'}, 'tasks': {'tasks', 'engine'},
              'scoring': {'scoring', 'tasks', 'engine', 'models'},
              'analysis': {'analysis', 'tasks', 'engine', 'models'},
              'prepare': {'prepare', 'tasks', 'engine', 'models', 'config'}, 'config': {'config'}, 'models': set()}


def place(module):
    """The folder of a module of this project, 'models', 'programs', or '' for another one's."""
    first = module.split('.')[0]
    if (ROOT / f'{first}.py').exists():
        return 'models' if first.startswith('model_') else 'programs'
    return first if first in MAY_IMPORT else ''


def of_the_house():
    """{module: its file} of all of the project's Python but the tests."""
    files = [*ROOT.glob('*.py'), *(file for folder in MAY_IMPORT for file in (ROOT / folder).rglob('*.py'))]
    return {'.'.join(file.relative_to(ROOT).with_suffix('').parts).removesuffix('.__init__'): file for file in files}


def imported(file, anywhere=True):
    """The modules of the house that a file imports anywhere, or only those it needs to be imported
    itself."""
    known, found = of_the_house(), set()

    def visit(node):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            inside = {f'{node.module}.{alias.name}' for alias in node.names}
            found.update(inside & known.keys() or {node.module})
        elif isinstance(node, (ast.FunctionDef, ast.Lambda)) and not anywhere:
            return
        for child in ast.iter_child_nodes(node):
            visit(child)
    visit(ast.parse(file.read_text()))
    return {name for name in found if place(name)}


MODULES = of_the_house()


def test_there_are_modules_to_look_at():
    assert len(MODULES) > 60
    assert {'train', 'model_aot', 'engine.checkpoint', 'tasks', 'prepare.lib.pictures'} <= MODULES.keys()
    assert {'engine.networks', 'engine.settings'} <= imported(MODULES['engine.start'])
    assert 'engine.generate' in imported(MODULES['model_aot']) - imported(MODULES['model_aot'], anywhere=False)


@pytest.mark.parametrize('module', sorted(name for name in MODULES if place(name) not in ('programs', 'models')))
def test_a_folder_imports_only_what_it_may(module):
    """Nothing imports a root program, wherever in a file."""
    found = {place(name) for name in imported(MODULES[module])}
    assert found <= MAY_IMPORT[place(module)], module


@pytest.mark.parametrize('module', sorted(name for name in MODULES if place(name) == 'models'))
def test_a_network_imports_nothing_of_the_house(module):
    """At its top; for the authors' weights and for generation it calls engine."""
    assert imported(MODULES[module], anywhere=False) == set()
    assert {place(name) for name in imported(MODULES[module])} <= {'engine'}


def test_no_root_program_imports_another():
    for name in MODULES:
        if place(name) == 'programs':
            assert 'programs' not in {place(other) for other in imported(MODULES[name])}, name


def test_there_are_no_circles():
    """Among modules, also through their packages, as Python runs them when they are imported."""
    arrows = {}
    for name, file in MODULES.items():
        direct = imported(file, anywhere=False)
        packages = {other.rpartition('.')[0] for other in direct}
        arrows[name] = (direct | packages) & MODULES.keys() - {name}
    done = set()

    def walk(name, path):
        assert name not in path, ' -> '.join((*path[path.index(name):], name))
        if name not in done:
            for other in sorted(arrows[name]):
                walk(other, (*path, name))
            done.add(name)
    for name in arrows:
        walk(name, ())


@pytest.mark.parametrize('names', ['engine', 'engine.settings', 'tasks', 'tasks.files', 'tasks.tokenizer'])
def test_settings_and_files_are_read_without_torch(names):
    code = f'import sys, {names}; sys.exit("torch" in sys.modules)'
    assert subprocess.run([sys.executable, '-c', code], cwd=ROOT).returncode == 0


def test_scripts_that_prepare_text_start_without_torch():
    code = 'import sys, prepare.stdlib, prepare.text; sys.exit("torch" in sys.modules)'
    assert subprocess.run([sys.executable, '-c', code], cwd=ROOT).returncode == 0
