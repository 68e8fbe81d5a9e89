"""docs/features.ipynb: its cells run, twice in one process, and print what is stored in it."""
import json
import re
import subprocess
import sys

import pytest
from helpers import ROOT
from test_course import run_tour, stored_pictures, stored_text

NOTEBOOK = json.loads((ROOT / 'docs' / 'features.ipynb').read_text(encoding='utf-8'))
CODE = [cell for cell in NOTEBOOK['cells'] if cell['cell_type'] == 'code']
NUMBER = r'\d[\d,]*(?:\.\d+)?'


def test_numbers_in_its_prose_are_those_that_a_cell_has_printed():
    printed = set()
    checked = 0
    for cell in NOTEBOOK['cells']:
        if cell['cell_type'] == 'code':
            printed |= {*re.findall(NUMBER, stored_text(cell))}
        else:
            for number in re.findall(r'\d+\.\d+(?=%)', ''.join(cell['source'])):
                assert number in printed
                checked += 1
    assert checked > 2


def number(text):
    return float(text.rstrip('%').replace(',', ''))


@pytest.mark.slow
def test_the_cells_print_again_what_is_stored_and_a_second_time_the_same():
    # what it prints when it draws the pictures is in no stored result
    subprocess.run([sys.executable, ROOT / 'prepare' / 'shapes.py', '--once', '--out', ROOT / 'data' / 'shapes'],
                   check=True)
    results = run_tour(CODE + CODE, ROOT / 'docs')
    first, second = results[:len(CODE)], results[len(CODE):]

    assert first == second
    for cell, (text, figures) in zip(CODE, first):
        if 'scikit-learn' in stored_text(cell):     # more is printed where it is installed
            text, stored = text.splitlines()[0], stored_text(cell).splitlines()[0]
        else:
            stored = stored_text(cell)
        assert re.sub(NUMBER, '0', text).split() == re.sub(NUMBER, '0', stored).split()
        for new, old in zip(re.findall(f'{NUMBER}%?', text), re.findall(f'{NUMBER}%?', stored)):
            slack = 1 if old.endswith('%') else 0           # of another processor
            assert number(new) == pytest.approx(number(old), rel=0.02, abs=slack)
        assert len(figures) == len(stored_pictures(cell))
