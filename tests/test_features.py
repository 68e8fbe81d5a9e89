"""docs/features.ipynb: its cells run, and print what is stored in it."""
import json
import re
import subprocess
import sys

import pytest
from helpers import ROOT
from test_course import check_printed, run_tour, stored_pictures, stored_text

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


@pytest.mark.slow
def test_the_cells_print_again_what_is_stored_and_begin_a_second_time():
    # what it prints when it draws the pictures is in no stored result
    subprocess.run([sys.executable, ROOT / 'prepare' / 'shapes.py', '--once', '--out', ROOT / 'data' / 'shapes'],
                   check=True)
    results = run_tour(CODE + CODE[:2], ROOT / 'docs')

    assert results[len(CODE):] == results[:2]
    for cell, (text, figures) in zip(CODE, results):
        stored = stored_text(cell)
        if 'scikit-learn' in stored:  # more is printed where it is installed
            text = text.splitlines()[0]
            stored = stored.splitlines()[0]
        check_printed(text, stored, 0.02)
        assert len(figures) == len(stored_pictures(cell))
