"""Tables: what is printed in columns, and what stands in a row of a .csv file."""

def plain(value):
    """A value of a table, in which numbers of torch and numpy become Python's."""
    return value.item() if hasattr(value, 'item') else value


def say_table(columns, rows):
    """Print a small table: the first column begins at the left, the others end at the right; numbers have four digits.
    """
    said = [[f'{v:.4g}' if isinstance(v, float) else str(v) for v in map(plain, row)] for row in (columns, *rows)]
    widths = [max(map(len, column)) for column in zip(*said)]
    for name, *cells in said:
        print('  '.join([name.ljust(widths[0]), *map(str.rjust, cells, widths[1:])]).rstrip())


def say_rows(rows, *columns):
    """Print these columns of rows of a table, or all."""
    say_table(columns or rows[0], [[row.get(name, '') for name in columns or rows[0]] for row in rows])


def say_walks(nets, found, *columns):
    """Print, of the means of what was found in networks, {column: numbers (L, n)} each, where they start and end, the
    lowest and the highest, and in how many of the steps from layer to layer they fall and rise."""
    means = [(net.name, column, values[column].mean(1)) for net, values in zip(nets, found)
             for column in columns if column in values]
    say_table(('', 'mean of', 'layer 1', 'last layer', 'lowest', 'highest', 'falls in', 'rises in'), [
        (name, column, t[0], t[-1], t.min(), t.max(),
         *(f'{way.sum()} of {len(way)}' for way in (t.diff() < 0, t.diff() > 0))) for name, column, t in means])


def span(values, unit='.3f'):
    return f'{min(values):{unit}} to {max(values):{unit}}'


def mean_and_spread(values):
    """The mean of each of values {name: numbers} and its standard deviation, in the columns of a table."""
    return {column: number for name, numbers in values.items()
            for column, number in ((name, numbers.mean()), (f'{name}_spread', numbers.std(correction=0)))}
