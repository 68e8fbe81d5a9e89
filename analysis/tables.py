"""Tables: what is printed in columns, and what stands in a row of a .csv file."""
from engine.names import printable


def plain(value):
    """A value of a table. A number of torch or numpy becomes one of Python."""
    return value.item() if hasattr(value, 'item') else value


def cell_text(value):
    """A value as it stands in a printed table. A number that is not whole has four digits."""
    value = plain(value)
    if isinstance(value, float):
        return f'{value:.4g}'
    return printable(str(value))


def say_table(columns, rows):
    """Print a small table. The first column begins at the left, and the others end at the right."""
    table = [list(map(cell_text, row)) for row in (columns, *rows)]
    widths = [max(map(len, column)) for column in zip(*table)]
    for first, *others in table:
        padded = [first.ljust(widths[0])]
        for text, width in zip(others, widths[1:]):
            padded.append(text.rjust(width))
        print('  '.join(padded).rstrip())


def say_rows(rows, *columns):
    """Print rows of a table, {column: value} each: these columns of them, or without any names all
    columns of the first row."""
    names = columns or tuple(rows[0])
    table = []
    for row in rows:
        table.append([row.get(name, '') for name in names])
    say_table(names, table)


def say_first_and_last(rows, last_step):
    """Print the rows of a table of steps that are about the start, the first step and the last."""
    say_rows([row for row in rows if row['step'] in (0, 1, last_step)])


def say_walks(nets, values_of_nets, *columns):
    """Print how numbers change from layer to layer. values_of_nets: of each network {column:
    numbers (L, n)} of L layers and n samples. A printed row is about the mean of a column over the
    samples: its value in the first and in the last layer, the lowest and the highest one, and in
    how many of the steps from layer to layer it falls and rises."""
    rows = []
    for net, values in zip(nets, values_of_nets):
        for column in columns:
            if column not in values:
                continue
            means = values[column].mean(1)                  # (L,)
            changes = means.diff()
            falls = f'{(changes < 0).sum()} of {len(changes)}'
            rises = f'{(changes > 0).sum()} of {len(changes)}'
            rows.append((net.name, column, means[0], means[-1], means.min(), means.max(),
                         falls, rises))
    say_table(('', 'mean of', 'layer 1', 'last layer', 'lowest', 'highest', 'falls in',
               'rises in'), rows)


def span(values, unit='.3f'):
    """The lowest and the highest of some values as a text. unit: how numbers are written."""
    return f'{min(values):{unit}} to {max(values):{unit}}'


def mean_and_spread(values):
    """Two columns of a table for each of the values {name: numbers}: NAME, their mean, and
    NAME_spread, their standard deviation (divided by n, not n - 1)."""
    columns = {}
    for name, numbers in values.items():
        columns[name] = numbers.mean()
        columns[f'{name}_spread'] = numbers.std(correction=0)
    return columns
