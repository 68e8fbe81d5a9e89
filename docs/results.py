"""Writes the tables of README.md and docs/results.md from the files of results/.

    python -m docs.results

A table of a page begins behind a line `<!-- table NAME -->`. Its rows and columns come in the order
of the file that holds them:

    results/published.csv    what was measured before runs were kept: a line for each cell
    results/NAME.csv         the runs of a table, as compare.py writes them: a line for each run

A cell of published.csv is a text, or a number with its spread, its number of runs and its machine.
No number stands in two lines. Other cells refer to its place, TABLE/ROW/COLUMN:

    @PLACE                          the same number
    **@PLACE**                      the same number, in bold type
    interval @PLACE @PLACE          the 95% interval of the first number minus the second one
    verdict @PLACE @PLACE           the interval, and its verdict if smaller numbers are better
    larger verdict @PLACE @PLACE    the interval, and its verdict if larger numbers are better

With a single place, the number there is a mean of differences of pairs.
"""
import csv
import re
import sys
from pathlib import Path
from statistics import fmean, stdev

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from compare import TUNING_SEED, read_table
from engine import HERE
from engine.mistakes import Mistake, one_line_errors
from engine.writing import write_file
from prepare.lib.inputs import Help, Parser
from scoring.significance import LEAST_PAIRS, interval, interval_of_mean, interval_of_means

FOLDER = HERE / 'results'
PAGES = HERE / 'README.md', HERE / 'docs' / 'results.md'
MARK = re.compile(r'(<!-- table (\w+) -->\n)((?:\|.*\n)*)')


# ---- cells --------------------------------------------------------------------------------------

def published():
    """{table: {row: {column: line of published.csv}}}. Raises Mistake if two lines are one cell."""
    with open(FOLDER / 'published.csv', encoding='utf-8', newline='') as file:
        lines = list(csv.DictReader(file))
    tables = {}
    for line in lines:
        table, row, column = line['table'], line['row'], line['column']
        cells = tables.setdefault(table, {}).setdefault(row, {})
        if column in cells:
            raise Mistake(f'results/published.csv has two cells {table}/{row}/{column}; name the '
                          'rows differently')
        cells[column] = line
    return tables


def of_runs(path):
    """A table as `published` has it, of a file of runs: a row for each network, with its weights,
    the lowest and the highest seconds, and its scores."""
    runs = {}
    for run in read_table(path).values():
        if run['seed'] != TUNING_SEED:
            runs.setdefault(run['network'], []).append(run)
    rows = {}
    for network, of_network in runs.items():
        seconds = sorted(round(run['seconds']) for run in of_network)
        errors = {run['seed']: run['error'] for run in of_network}
        top1 = {seed: 100 - 100 * error for seed, error in errors.items()}
        rows[network] = {
            'weights': {'mean': f'{of_network[0]["weights"] / 1e6:.2f}M'},
            'seconds': {'mean': f'{seconds[0]} to {seconds[-1]}'},
            'error': of_values(errors, 3),
            'top-1, %': of_values(top1, 1),
        }
    return rows


def of_values(values, digits):
    """A cell of a mean over runs, with so many digits behind the point. values: {seed: score}."""
    scores = values.values()
    spread = f'{stdev(scores):.{digits}f}' if len(values) > 1 else ''
    return {'mean': f'{fmean(scores):.{digits}f}', 'spread': spread, 'n': len(values),
            'values': values}


def all_tables():
    tables = published()
    for path in sorted(FOLDER.glob('*.csv')):
        if path.stem != 'published':
            tables[path.stem] = of_runs(path)
    return tables


def cell_at(tables, place):
    """The cell at a place `@NAME/ROW/COLUMN`. Raises Mistake if there is none."""
    try:
        table, row, column = place.removeprefix('@').split('/')
        cell = tables[table][row][column]
    except (KeyError, ValueError):
        raise Mistake(f'there is no cell {place}; mend results/published.csv') from None
    return cell_at(tables, cell['mean']) if cell['mean'].startswith('@') else cell


def text_of(tables, cell):
    """A cell as it stands in a page."""
    text = cell['mean']
    if text.startswith('**@'):
        return f'**{text_of(tables, cell_at(tables, text.strip("*")))}**'
    if text.startswith('@'):
        return text_of(tables, cell_at(tables, text))
    if 'interval @' in text or 'verdict @' in text:
        return difference_of(tables, text)
    if cell.get('spread'):
        return f'{text} ± {cell["spread"]}'
    return text


def difference_of(tables, words):
    """The text of a cell `interval ..` or `verdict ..`, by the rule of scoring/significance.py: the
    interval is that of pairs, where both have runs of the same seeds, else that of two means.
    Raises Mistake for a cell without a spread."""
    cells = [cell_at(tables, place.strip()) for place in re.findall('@[^@]*', words)]
    first, second = cells[0], cells[-1]
    summaries = [numbers(cell) for cell in cells]
    if len(cells) == 1:
        low, high = interval_of_mean(*summaries[0])
    elif 'values' in first and first['values'].keys() == second.get('values', {}).keys():
        pairs = [first['values'][seed] - second['values'][seed] for seed in first['values']]
        low, high = interval(pairs)
    else:
        low, high = interval_of_means(*summaries[0], *summaries[1])

    digits = len(first['mean'].partition('.')[2])
    text = f'{low:+.{digits}f} to {high:+.{digits}f}'
    if words.startswith('interval'):
        return text
    larger_is_better = words.startswith('larger')
    is_clear = low < high < 0 or 0 < low < high
    if not is_clear or min(n for _, _, n in summaries) < LEAST_PAIRS:
        return f'{text}: these seeds do not tell'
    if (low > 0) == larger_is_better:
        return f'{text}: for us'
    return f'{text}: against us'


def numbers(cell):
    """(mean, standard deviation, number of runs) of a cell. Raises Mistake if it has no spread."""
    if not cell.get('spread'):
        raise Mistake(f'{cell["mean"]} has no spread, so no interval; mend results/published.csv')
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
            raise Mistake(f'{page.name} has a table {name}, and '
                          'results/ has none; mend one of the two')
        return mark + markdown(tables, name)

    return MARK.sub(filled, page.read_text(encoding='utf-8'))


def update(page, tables):
    """Write a page again, with the tables of now."""
    text = page_with_tables(page, tables)
    write_file(page, lambda f: f.write(text))
    print(f'{page.name}: {len(MARK.findall(text))} tables')


def main():
    tables = all_tables()
    for page in PAGES:
        update(page, tables)


if __name__ == '__main__':
    with one_line_errors():
        Parser(description=__doc__, formatter_class=Help).parse_args()
        main()
