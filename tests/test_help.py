"""--help of every script in the folder says what it does, and does nothing else."""
import ast
import os
import runpy

import pytest
from helpers import ROOT, run_here

SCRIPTS = sorted(path for path in ROOT.rglob('*.py') if "\nif __name__ == '__main__':\n" in path.read_text()
                 and path.relative_to(ROOT).parts[0] not in ('tests', 'prepare', '.venv'))
SCRIPTS += [path for path in sorted(ROOT.glob('prepare/*.py')) if path.name != '__init__.py']


@pytest.fixture
def empty(tmp_path, monkeypatch):
    """An empty folder to work in. The files of lessons import each other."""
    monkeypatch.syspath_prepend(str(ROOT / 'course'))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize('script', SCRIPTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_help_is_the_docstring_of_the_script(script, empty, capsys):
    doc = ast.get_docstring(ast.parse(script.read_text(encoding='utf-8')))
    run_here(script, '--help')
    out, err = capsys.readouterr()
    assert doc.splitlines()[0] in out and err == '' and os.listdir(empty) == []


@pytest.mark.parametrize('script', ['course/lesson1.py', 'course/runs.py', 'docs/configs.py'])
@pytest.mark.parametrize('word', ['20', '--halp'])
def test_a_script_without_settings_takes_no_words(script, word, empty, capsys, monkeypatch):
    monkeypatch.setattr('sys.argv', [script, word])
    with pytest.raises(SystemExit) as e:
        runpy.run_path(str(ROOT / script), run_name='__main__')
    err = capsys.readouterr().err
    assert e.value.code == 2 and word in err and err.count('\n') == 1 and os.listdir(empty) == []


def test_help_names_the_file_of_each_group_of_settings(capsys):
    run_here('train.py', '--help')
    files = [line.rstrip(')').split(' (')[1] for line in capsys.readouterr().out.splitlines()
             if line.endswith('.py)') and not line.startswith(' ')]
    assert len(files) == 3 and len({*files}) == len(files) and all((ROOT / file).is_file() for file in files), files
