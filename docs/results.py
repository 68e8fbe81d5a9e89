"""Writes the tables of README.md and docs/results.md from the files of results/.

    python -m docs.results

A table of a page begins behind a line `<!-- table NAME -->`. Its rows and columns come in the order
of the file that holds them:

    results/published.csv    what was measured before runs were kept: a line for each cell. Cells
                             are numbers with their spread, or texts. A cell may also be taken from
                             another table, `@NAME/ROW/COLUMN`, or be the verdict on two others,
                             `verdict @NAME/ROW/COLUMN @NAME/ROW/COLUMN`, of which smaller ones are
                             better, or larger ones if a `larger` stands in front
    results/NAME.csv         the runs of a table, as compare.py writes them: a line for each run
"""
import csv
import re
from pathlib import Path
from statistics import fmean, stdev

from engine import HERE
from engine.mistakes import Mistake, one_line_errors
from scoring.significance import interval, interval_of_means

FOLDER = HERE / 'results'
PAGES = HERE / 'README.md', HERE / 'docs' / 'results.md'
MARK = re.compile(r'(<!-- table (\w+) -->\n)((?:\|.*\n)*)')


def read(path):
    """The lines of a .csv file, {column: text} each."""
    with open(path, encoding='utf-8', newline='') as file:
        return list(csv.DictReader(file))


# ---- cells --------------------------------------------------------------------------------------

def published():
    """{table: {row: {column: line of published.csv}}}."""
    tables = {}
    for line in read(FOLDER / 'published.csv'):
        rows = tables.setdefault(line['table'], {})
        rows.setdefault(line['row'], {})[line['column']] = line
    return tables


def of_runs(path):
    """A table as `published` has it, of a file of runs: a row for each network, with its weights,
    the lowest and the highest seconds, and its scores."""
    runs = {}
    for run in read(path):
        runs.setdefault(run['network'], []).append(run)
    rows = {}
    for network, of_network in runs.items():
        seconds = sorted(round(float(run['seconds'])) for run in of_network)
        errors = [float(run['error']) for run in of_network]
        rows[network] = {
            'weights': {'mean': f'{int(of_network[0]["weights"]) / 1e6:.2f}M'},
            'seconds': {'mean': f'{seconds[0]} to {seconds[-1]}'},
            'error': of_values(errors, 3),
            'top-1, %': of_values([100 - 100 * error for error in errors], 1),
        }
    return rows


def of_values(values, digits):
    """A cell of a mean over runs, with so many digits behind the point."""
    spread = f'{stdev(values):.{digits}f}' if len(values) > 1 else ''
    return {'mean': f'{fmean(values):.{digits}f}', 'spread': spread, 'n': len(values),
            'values': values}


def all_tables():
    tables = published()
    for path in sorted(FOLDER.glob('*.csv')):
        if path.stem != 'published':
            tables[path.stem] = of_runs(path)
    return tables


def cell_at(tables, place):
    """The cell at a place `@NAME/ROW/COLUMN`. Raises Mistake if there is none."""
    table, row, column = place.removeprefix('@').split('/')
    try:
        cell = tables[table][row][column]
    except KeyError:
        raise Mistake(f'results/ has no cell {place}; mend published.csv') from None
    return cell_at(tables, cell['mean']) if cell['mean'].startswith('@') else cell


def text_of(tables, cell):
    """A cell as it stands in a page."""
    if cell['mean'].startswith('@'):
        cell = cell_at(tables, cell['mean'])
    if 'verdict @' in cell['mean']:
        return verdict_of(tables, cell['mean'])
    if cell.get('spread'):
        return f'{cell["mean"]} ± {cell["spread"]}'
    return cell['mean']


def verdict_of(tables, words):
    """Which of two cells is better by the rule of scoring/significance.py: of the pairs, where both
    have runs of the same seeds, else of two means."""
    larger_is_better = words.startswith('larger')
    first, second = [cell_at(tables, place) for place in re.findall('@[^@]*', words)]
    if 'values' in first and 'values' in second:
        low, high = interval([a - b for a, b in zip(first['values'], second['values'])])
    else:
        low, high = interval_of_means(*numbers(first), *numbers(second))
    if low <= 0 <= high:
        said = 'these seeds do not tell'
    elif (low > 0) == larger_is_better:
        said = 'for us'
    else:
        said = 'against us'
    return f'{low:+.3g} to {high:+.3g}: {said}'


def numbers(cell):
    """(mean, standard deviation, number of runs) of a cell."""
    return float(cell['mean']), float(cell['spread']), int(cell['n'])


# ---- pages --------------------------------------------------------------------------------------

def markdown(tables, name):
    """A table in Markdown. The row without a name, if there is one, holds what stands above the
    names of the rows."""
    rows = dict(tables[name])
    corner = rows.pop('', {})
    columns = list(dict.fromkeys(column for cells in rows.values() for column in cells))
    title = next((cell['mean'] for cell in corner.values()), '')
    lines = [f'| {" | ".join([title, *columns])} |', '|' + '---|' * (1 + len(columns))]
    for row, cells in rows.items():
        texts = [text_of(tables, cells[column]) if column in cells else '' for column in columns]
        lines.append(f'| {" | ".join([row, *texts])} |')
    return '\n'.join(lines) + '\n'


def page_with_tables(page, tables):
    """The text of a page with the tables of now."""
    def filled(match):
        mark, name, _ = match.groups()
        if name not in tables:
            raise Mistake(f'{page.name} has a table {name}, and results/ has none')
        return mark + markdown(tables, name)

    return MARK.sub(filled, page.read_text(encoding='utf-8'))


def main():
    tables = all_tables()
    for page in PAGES:
        text = page_with_tables(page, tables)
        page.write_text(text, encoding='utf-8', newline='\n')
        print(f'{Path(page).name}: {len(MARK.findall(text))} tables')


if __name__ == '__main__':
    with one_line_errors():
        main()
