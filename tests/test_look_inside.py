"""The tables of docs/look_inside.md hold numbers that the commands below them print."""
import re

import pytest
from helpers import ROOT, run_here

from prepare import shapes

PAGE = (ROOT / 'docs' / 'look_inside.md').read_text(encoding='utf-8')
RUN = re.compile(r'out/\w+')
NUMBER = re.compile(r'[-+]?\d+(?:\.\d+)?(?:e[-+]\d+)?%?')


def is_shipped(run):
    return (ROOT / run.replace('out/', 'trained/')).is_dir()


def as_it_can_run(command):
    """The words of a command without runs beside others that did not come with the project. None if
    the command is not of analyze.py, or asks for such a run alone."""
    first, script, *words = command.split()
    beside = [word for word in words if word.startswith('--beside=')]
    runs = [run for word in words if word not in beside for run in RUN.findall(word)]
    if script != 'analyze.py' or not all(map(is_shipped, runs)):
        return None
    for word in beside:
        words.remove(word)
        shipped = [run for run in RUN.findall(word) if is_shipped(run)]
        if shipped:
            words.append('--beside=' + ','.join(shipped))
    return [script, *words]


def tables():
    """A list of (rows with numbers, commands of the next block) of each part of the page that ends
    with a block of commands. A row is (label, text of its other cells)."""
    parts = []
    for part in re.findall(r'(.*?)^```sh\n(.*?)^```', PAGE, re.M | re.S):
        text, block = part
        text = re.sub(r'^\|.*\n\|---.*\n', '', text, flags=re.M)  # heads of tables
        rows = []
        for line in text.splitlines():
            label, *cells = line.strip('| ').split(' | ') if line.startswith('|') else ['']
            if NUMBER.search(' '.join(cells)):
                rows.append((label, ' '.join(cells)))
        commands = [as_it_can_run(line.split('  #')[0]) for line in block.splitlines()]
        parts.append((rows, [words for words in commands if words]))
    return [(rows, commands) for rows, commands in parts if rows and commands]


TABLES = tables()


def value_and_unit(text):
    """A number as it is written, and the unit of its last digit."""
    digits = text.rstrip('%')
    decimals = len(digits.partition('.')[2])
    scale = 100 if text.endswith('%') else 1
    return float(digits) / scale, 10 ** -decimals / scale


def are_printed(cells, printed):
    """Whether the numbers of cells are among those that were printed, in their order. They may be
    rounded, and 0.2% is for other threads and processors."""
    rest = iter(printed)
    for text in NUMBER.findall(cells):
        value, unit = value_and_unit(text)
        if not any(abs(number - value) <= 0.5 * unit + 0.002 * abs(number) for number in rest):
            return False
    return True


def test_tables_are_found():
    assert len(TABLES) > 12
    assert sum(len(rows) for rows, _ in TABLES) > 50


@pytest.fixture(scope='module')
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp('look_inside')
    shapes.main(['--train', '10', '--val', '10', '--out', str(folder / 'data' / 'shapes')])
    return folder


@pytest.mark.slow
@pytest.mark.usefixtures('undrawn')
@pytest.mark.parametrize('rows, commands', TABLES, ids=[commands[0][1] for _, commands in TABLES])
def test_tables_hold_what_the_commands_print(rows, commands, place, monkeypatch, capsys):
    monkeypatch.chdir(place)
    for words in commands:
        run_here(*words)
    printed = [value_and_unit(text)[0] for text in NUMBER.findall(capsys.readouterr().out)]
    of_other_runs = 'tied CRATE'
    stale = [(label, cells) for label, cells in rows
             if of_other_runs not in label and not are_printed(cells, printed)]
    assert not stale
