"""log.csv of a training run."""
import csv
import os

from engine.output import write_file
from engine.settings import Mistake

FIRST, LAST = ('step', 'split', 'loss'), ('lr', 'seen', 'seconds')


def read_log(path):
    """The rows of a log.csv, each a dict of strings. Rows that are cut or unreadable are named and
    left out. Raises Mistake if its first line is none of ours, OSError if there is no file."""
    with open(path, encoding='utf-8', errors='replace', newline='\n') as f:
        columns, *lines = [line.split(',') for line in f] or [['']]
    columns[-1] = columns[-1].rstrip()
    missing = [name for name in FIRST + LAST if name not in columns]
    if missing:
        raise Mistake(f'{path} is not the log of a run, or its first line is damaged: no column {missing[0]}')
    rows = [readable(columns, cells) for cells in lines]
    bad = [str(number) for number, row in enumerate(rows, 2) if row is None]
    if bad:
        print(f'{path}: line{"s" * (len(bad) > 1)} {", ".join(bad[:10])}{" .." * (len(bad) > 10)} cannot be read or '
              f'{"are" if bad[1:] else "is"} cut; left out, the other {len(rows) - len(bad)} are kept')
    return [row for row in rows if row is not None]


def readable(columns, cells):
    """{column: cell} of a line; None if it is cut or holds something else than numbers."""
    row = dict(zip(columns, [*cells[:-1], cells[-1].removesuffix('\n')]))
    try:
        [float(value) for name, value in row.items() if value and name != 'split']
        whole = len(cells) == len(columns) and cells[-1].endswith('\n') and row['split'] in ('train', 'val')
        return row if whole and int(row['step']) >= 0 else None
    except ValueError:
        return None


class Log:
    """log.csv: a row for each logged training step and each validation. `seen` counts the tokens or
    pictures trained on. A new number is a new column. On resume, rows from that step on are
    dropped."""

    def __init__(self, path, step):
        self.path, self.columns, rows = path, [*FIRST, *LAST], []
        if step and os.path.exists(path):
            rows = [row for row in self.read() if int(row['step']) < step]
            if rows:
                self.columns = list(rows[0])
        self.rewrite(rows)

    def read(self):
        try:
            return read_log(self.path)
        except (OSError, Mistake) as e:
            raise Mistake(f'{e}; move it away to go on without it') from None

    def rewrite(self, rows):
        def write(f):
            writer = csv.DictWriter(f, self.columns, restval='', extrasaction='ignore', lineterminator='\n')
            writer.writeheader()
            writer.writerows(rows)
        write_file(self.path, write)
        self.file = open(self.path, 'a', encoding='utf-8', newline='\n')
        self.writer = csv.DictWriter(self.file, self.columns, restval='', lineterminator='\n')

    def write(self, **row):
        new = [k for k in row if k not in self.columns]
        if new:
            self.file.close()
            self.columns[-len(LAST):-len(LAST)] = new
            self.rewrite(self.read())
        try:
            self.writer.writerow(row)
            self.file.flush()
        except OSError as e:
            raise Mistake(f'could not write {self.path} ({e.strerror}); make room, then go on with '
                          '--init_from=resume') from None
