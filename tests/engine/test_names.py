"""Texts that strangers wrote, as a terminal, a figure or a spreadsheet gets them."""
import csv
import unicodedata

import pytest

from engine.names import printable
from engine.tables import cell, write_table

STRANGE = ['\x1b[31mred\a', 'a\x9b2Jb', 'nul\0', 'caf\udce9', 'two\nlines', 'a\u2028b',
           'exe\u202egnp.', '\x7f', '\u2066x']
ORDINARY = ['café', '日本\u3000語', 'کتاب\u200cها', 'a\u00a0b', 'C:\\x1b']


@pytest.mark.parametrize('text', STRANGE)
def test_control_characters_become_escapes_that_say_which_they_were(text):
    shown = printable(text)
    assert all(unicodedata.category(character) not in ('Cc', 'Cs', 'Zl') for character in shown)
    assert '\u202e' not in shown and '\u2066' not in shown
    assert shown.encode('latin-1', 'backslashreplace').decode('unicode_escape') == text
    assert printable(shown) == shown


@pytest.mark.parametrize('text', ORDINARY)
def test_letters_of_all_scripts_stay(text):
    assert printable(text) == text


def test_a_text_of_several_lines_may_keep_their_ends():
    assert printable('a\n\tb\x1b', keep='\n\t') == 'a\n\tb\\x1b'


@pytest.mark.parametrize('text', ['=1+2', '+1', '-', '@SUM(A1)', '\t=1', '\r=1'])
def test_a_text_that_a_spreadsheet_would_compute_is_quoted(text):
    assert cell(text) == f"'{text}"


@pytest.mark.parametrize('value', [-0.5, True, '1-2', '', "'=1"])
def test_numbers_and_other_texts_stay(value):
    assert cell(value) == value


def test_a_table_is_quoted_in_its_columns_and_in_its_rows(tmp_path):
    write_table(tmp_path / 't.csv', [['=a', 'b'], ['@c', -2.5]])
    with open(tmp_path / 't.csv', newline='', encoding='utf-8') as f:
        assert list(csv.reader(f)) == [["'=a", 'b'], ["'@c", '-2.5']]
