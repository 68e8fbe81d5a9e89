"""Tables in .csv files, which spreadsheets open."""
import csv

from engine.writing import write_file

FORMULA = ('=', '+', '-', '@', '\t', '\r')  # how a cell begins that a spreadsheet computes


def write_table(path, rows):
    """write_file of a .csv file. rows: the first one is the names of the columns."""
    write_file(path, lambda f: write_rows(f, rows))


def write_rows(file, rows):
    """Write rows to the end of a .csv file that is open."""
    writer = csv.writer(file, lineterminator='\n')
    for row in rows:
        writer.writerow([cell(value) for value in row])


def cell(value):
    """A value as it stands in a .csv file. A text that a spreadsheet would compute begins with an
    apostrophe, and then the spreadsheet shows it. Numbers stay numbers."""
    if isinstance(value, str) and value.startswith(FORMULA):
        return f"'{value}"
    return value
