"""The imports of the project: which folder may use which, no circles, and what a bare run loads."""
import ast
import os
import subprocess
import sys

import pytest
from helpers import ROOT

# {folder: the folders that its files may import}. `models` are the model_x.py, which import
# nothing of the project at their top.
MAY_IMPORT = {
    'engine': {'engine'},
    'tasks': {'tasks', 'engine'},
    'weights': {'weights', 'engine'},
    'request': {'request', 'weights', 'tasks', 'engine'},
    'scoring': {'scoring', 'weights', 'tasks', 'engine', 'models'},
    'analysis': {'analysis', 'request', 'weights', 'tasks', 'engine', 'models'},
    'prepare': {'prepare', 'request', 'weights', 'tasks', 'engine', 'models', 'config'},
    'config': {'config'},
    'models': {'weights', 'engine'},
}
ANOTHER_NAME = ROOT / 'model_gpt2.py'  # sets switches of model_aot.py, and has no code of its own
FILES = [file for file in ROOT.glob('*.py') if file != ANOTHER_NAME]
for folder in MAY_IMPORT:
    FILES += (ROOT / folder).rglob('*.py')


def module_of(file):
    """The name by which a file of the project is imported, such as 'engine.device'."""
    parts = file.relative_to(ROOT).with_suffix('').parts
    return '.'.join(parts).removesuffix('.__init__')


MODULES = {module_of(file) for file in FILES}


def room_of(module):
    """The folder of a module of the project; 'models' or 'programs' for a file beside train.py."""
    first = module.split('.')[0]
    if first in MAY_IMPORT:
        return first
    return 'models' if first.startswith('model_') else 'programs'


def imported(file, at_the_top=False):
    """The modules of the project that a file imports, in its functions too unless at_the_top."""
    tree = ast.parse(file.read_text(encoding='utf-8'))
    names = set()
    for node in tree.body if at_the_top else ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                inside = f'{node.module}.{alias.name}'  # `from engine import device`
                names.add(inside if inside in MODULES else node.module)
    return names & MODULES


@pytest.mark.parametrize('file', FILES, ids=module_of)
def test_a_folder_imports_only_what_it_may(file):
    rooms = {room_of(module) for module in imported(file)}
    room = room_of(module_of(file))
    if room == 'programs':
        assert 'config' not in rooms
    else:
        assert rooms <= MAY_IMPORT[room]


@pytest.mark.parametrize('file', sorted({*ROOT.glob('model_*.py')} - {ANOTHER_NAME}), ids=module_of)
def test_a_network_imports_nothing_of_the_project_at_its_top(file):
    assert not imported(file, at_the_top=True)


def test_no_file_imports_itself_by_way_of_others():
    """Not in a function either. A network is left out: it is loaded by its name."""
    imports = {module_of(file): imported(file) for file in FILES
               if room_of(module_of(file)) != 'models'}
    finished = set()

    def follow(module, path):
        assert module not in path, ' -> '.join([*path, module])
        if module not in finished:
            for other in sorted(imports.get(module, ())):
                if other != module:  # tasks/__init__.py names files of its own folder
                    follow(other, [*path, module])
            finished.add(module)

    for module in sorted(imports):
        follow(module, [])


LOADED = '''
import sys, train
assert train.main(sys.argv[1:]) is None
rooms = {name.split('.')[0] for name in sys.modules}
print('rooms:', *sorted(rooms & {'engine', 'request', 'weights', 'tasks', 'analysis', 'scoring',
                                 'prepare'}))
print('files:', *sorted(name for name in sys.modules if name.startswith('tasks.')))
'''


@pytest.mark.slow
def test_a_bare_run_loads_neither_trained_weights_nor_instruments(tmp_path, bytes_data):
    words = [f'--data_dir={bytes_data}', '--dataset=tiny', '--max_iters=2', '--n_layer=1',
             '--n_embd=16', '--n_head=2', '--block_size=16', '--batch_size=2', '--eval_iters=1',
             '--device=cpu', f'--out_dir={tmp_path}/out']
    done = subprocess.run([sys.executable, '-c', LOADED, *words], capture_output=True, text=True,
                          env=os.environ | {'PYTHONPATH': str(ROOT)}, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert 'rooms: engine request tasks\n' in done.stdout
    files = done.stdout.split('files: ')[1].split()
    assert 'tasks.text' in files and 'tasks.pictures' not in files


@pytest.mark.slow
def test_imports_write_nothing_and_scripts_for_text_load_no_torch(tmp_path):
    programs = ', '.join(path.stem for path in ROOT.glob('*.py'))
    code = ('import os, sys, engine.settings, tasks.files, tasks.tokenizer, prepare.stdlib, '
            'prepare.text\n'
            'assert "torch" not in sys.modules\n'
            f'import {programs}\n'
            'assert not os.listdir(".")')
    done = subprocess.run([sys.executable, '-c', code], cwd=tmp_path, capture_output=True,
                          text=True, env=os.environ | {'PYTHONPATH': str(ROOT)})
    assert done.returncode == 0 and done.stdout == '', done.stderr
