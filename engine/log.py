"""log.csv of a training run."""
import csv
import os

from engine.output import write_file


class Log:
    """log.csv: a row for each logged training step and each validation. `seen` counts the tokens or
    pictures trained on. A new number is a new column. On resume, rows from that step on are
    dropped."""

    FIRST, LAST = ('step', 'split', 'loss'), ('lr', 'seen', 'seconds')

    def __init__(self, path, step):
        self.path, self.columns, rows = path, [*self.FIRST, *self.LAST], []
        if step and os.path.exists(path):
            rows = [row for row in self.read() if int(row['step']) < step]
            if rows:
                self.columns = [k for k in rows[0] if k]
        self.rewrite(rows)

    def read(self):
        try:
            with open(self.path, newline='') as f:
                whole = [line for line in f if line.endswith('\n')]  # a killed run may leave half a row
            rows = list(csv.DictReader(whole))
            [int(row['step']) for row in rows]  # raises if one is not a number
            return rows
        except (OSError, ValueError, KeyError, TypeError, csv.Error) as e:
            raise ValueError(f'{self.path} is damaged ({type(e).__name__}); move it away to go on without it') from None

    def rewrite(self, rows):
        def write(f):
            writer = csv.DictWriter(f, self.columns, restval='', extrasaction='ignore', lineterminator='\n')
            writer.writeheader()
            writer.writerows(rows)
        write_file(self.path, write)
        self.file = open(self.path, 'a', newline='')
        self.writer = csv.DictWriter(self.file, self.columns, restval='', lineterminator='\n')

    def write(self, **row):
        new = [k for k in row if k not in self.columns]
        if new:
            self.file.close()
            self.columns[-len(self.LAST):-len(self.LAST)] = new
            self.rewrite(self.read())
        try:
            self.writer.writerow(row)
            self.file.flush()
        except OSError as e:
            raise ValueError(f'could not write {self.path} ({e.strerror}); make room, then go on with '
                             '--init_from=resume') from None
