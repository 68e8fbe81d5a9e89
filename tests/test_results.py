"""The tables of README.md and docs/results.md: they come from results/, their verdicts from one rule."""
import csv
import re

import numpy as np
import pytest
from scipy import stats

from compare import COLUMNS, TUNING_SEED
from docs import results
from engine.mistakes import Mistake
from engine.tables import write_table
from scoring import significance

TABLES = results.all_tables()
ONLY_IN_THE_FILE = '_rates', '_seconds', '_pairs', '_more', '_runs'


# ---- the pages

@pytest.mark.parametrize('page', results.PAGES, ids=lambda page: page.name)
def test_the_tables_of_a_page_are_those_of_its_command(page):
    text = page.read_text(encoding='utf-8')
    assert text == results.page_with_tables(page, TABLES), 'type: python -m docs.results'


def test_each_table_stands_in_a_page_or_says_by_its_name_that_it_does_not():
    text = ''.join(page.read_text(encoding='utf-8') for page in results.PAGES)
    shown = {name for _, name, _ in results.MARK.findall(text)}
    assert {name for name in TABLES if not name.endswith(ONLY_IN_THE_FILE)} == shown


def numbers_in(text):
    """The numbers with a point or behind a ±."""
    return set(re.findall(r'\d+\.\d+|(?<=± )\d+', text))


def numbers_without_a_table(section):
    """The numbers of a section's sentences that none of its tables has. Commands and flags stand in code, and a link's
    target is no sentence. Sizes such as 4 x 96, years and numbers of equations have no point."""
    table = '\n'.join(re.findall(r'^\|.*', section, re.M))
    prose = re.sub(r'^```.*?^```|^\|.*?$', '', section, flags=re.M | re.S)
    prose = re.sub(r'`[^`]*`|\]\([^)]*\)', '', prose)
    return numbers_in(prose) - numbers_in(table)


def sections():
    readme, page = (page.read_text(encoding='utf-8') for page in results.PAGES)
    yield readme.split('\n## Results\n')[1].split('\n## ')[0]
    yield from page.split('\n## ')


@pytest.mark.parametrize('section', [pytest.param(text, id=text[:30].splitlines()[0]) for text in sections()])
def test_each_number_of_a_sentence_stands_in_a_table_of_its_section(section):
    assert not numbers_without_a_table(section)


def row_of_readme(cells):
    """([cell], [whether it is bold]) of the numbers with a deviation."""
    texts = [cell['mean'] for cell in cells.values() if '@' in cell['mean']]
    numbers = [results.cell_at(TABLES, text.strip('*')) for text in texts]
    pairs = [(cell, '**' in text) for cell, text in zip(numbers, texts) if cell['spread']]
    return [cell for cell, _ in pairs], [bold for _, bold in pairs]


@pytest.mark.parametrize('row', [row for row in TABLES['readme'] if row])
def test_bold_is_what_differs_from_all_others(row):
    cells, bold = row_of_readme(TABLES['readme'][row])
    larger_is_better = 'top-1' in row

    def beats(a, b):
        test = stats.ttest_ind_from_stats(*results.numbers(a), *results.numbers(b), equal_var=False)
        return test.pvalue < 0.05 and (test.statistic > 0) == larger_is_better

    for cell, is_bold in zip(cells, bold):
        assert is_bold == all(beats(cell, other) for other in cells if other is not cell)


def test_the_table_of_readers_counts_what_they_wrote():
    with open(results.FOLDER / 'atoms_readers.tsv', encoding='utf-8', newline='') as file:
        units = list(csv.DictReader(file, delimiter='\t'))
    networks = {'CRATE, shapes': 'trained/crate_shapes', 'ViT, shapes': 'trained/vit_shapes',
                'CRATE-LM, Python': 'CRATE-LM', 'GPT-2, Python': 'GPT-2'}
    for row, network in networks.items():
        of_network = [unit for unit in units if unit['network'] == network]
        assert len(of_network) == 10
        counts = [0, 0, 0]  # in the order of the columns
        for unit in of_network:
            first, second = unit['concept of reader 1'], unit['concept of reader 2']
            counts[0] += first == second
            counts[1] += first == unit['concept']
            counts[2] += second == unit['concept']
        assert [int(cell['mean']) for cell in TABLES['readers'][row].values()] == counts


def test_the_correlations_of_objective_and_loss_are_those_of_the_runs():
    with open(results.FOLDER / 'objective.tsv', encoding='utf-8', newline='') as file:
        runs = list(csv.DictReader(file, delimiter='\t'))
    optimizers = {'all': ('adamw', 'muon'), 'with AdamW': ('adamw',), 'with Muon': ('muon',)}
    for row, names in optimizers.items():
        chosen = [run for run in runs if run['optimizer'] in names]
        losses, objectives = ([float(run[column]) for run in chosen]
                              for column in ('validation loss, nats', 'objective after the last layer'))
        cells = TABLES['objective'][row]
        assert len(chosen) == int(cells['how many']['mean'])
        printed = float(cells['rank correlation']['mean'].split()[0])
        assert printed == pytest.approx(stats.spearmanr(losses, objectives).statistic, abs=0.005)


# ---- the rule, where only means are left

@pytest.mark.parametrize('a, b', [((92.8, 0.6, 5), (92.6, 0.7, 3)), ((0.3, 0.2, 3), (0.1, 0.001, 12))])
def test_the_interval_of_means_is_welchs(a, b):
    """A difference of no more than either end of the interval has a p of 5%."""
    for end in significance.interval_of_means(*a, *b):
        shifted = a[0] - end, a[1], a[2]
        assert stats.ttest_ind_from_stats(*shifted, *b, equal_var=False).pvalue == pytest.approx(0.05)


@pytest.mark.parametrize('n', [2, 3, 9])
def test_the_interval_of_a_mean_of_pairs_is_students(n):
    values = np.random.default_rng(n).normal(1, 2, n)
    found = significance.interval_of_mean(values.mean(), values.std(ddof=1), n)
    assert np.allclose(found, stats.ttest_1samp(values, 0).confidence_interval(0.95))


# ---- cells

def line(place, mean, spread='', n=''):
    return dict(zip(('table', 'row', 'column'), place.split('/'))) | {'mean': mean, 'spread': spread, 'n': n, 'machine': ''}


@pytest.fixture
def tables(monkeypatch, tmp_path):
    """tables(*lines): those of a folder with these lines in published.csv."""
    def tables(*lines):
        with open(tmp_path / 'published.csv', 'w', encoding='utf-8', newline='') as file:
            writer = csv.DictWriter(file, lines[0])
            writer.writeheader()
            writer.writerows(lines)
        return results.all_tables()
    monkeypatch.setattr(results, 'FOLDER', tmp_path)
    return tables


NUMBERS = (line('t/low/c', '1.00', '0.01', 3), line('t/high/c', '2.00', '0.02', 3), line('t/wide/c', '2.5', '1.5', 3),
           line('t/gain/c', '0.50', '0.10', 3), line('t/alone/c', '1.70', '', 1))


@pytest.mark.parametrize('cell, text', [
    ('1.7', '1.7'), ('**@t/low/c**', '**1.00 ± 0.01**'), ('@t/alone/c', '1.70'),
    ('verdict @t/low/c @t/high/c', 'for us'), ('larger verdict @t/low/c @t/high/c', 'against us'),
    ('verdict @t/low/c @t/wide/c', 'these seeds do not tell'), ('larger verdict @t/gain/c', 'for us'),
    ('interval @t/gain/c', '+0.25 to +0.75')])  # 4.303 * 0.1 / sqrt(3) = 0.248
def test_a_cell_says_what_it_refers_to(cell, text, tables):
    markdown = results.markdown(tables(*NUMBERS, line('u/r/c', cell)), 'u')
    assert markdown.splitlines()[-1].removesuffix(' |').endswith(text)


@pytest.mark.parametrize('cell', ['@t/none/c', '@t/low', '**@t/low/none**', 'interval @t/low/c @t/none/c',
                                  'verdict @t/alone/c'])
def test_a_cell_that_refers_to_nothing_is_a_mistake(cell, tables):
    with pytest.raises(Mistake, match='published.csv'):
        results.markdown(tables(*NUMBERS, line('u/r/c', cell)), 'u')


def test_two_lines_for_one_cell_are_a_mistake(tables):
    with pytest.raises(Mistake, match='t/low/c'):
        tables(*NUMBERS, line('t/low/c', '1.01', '0.01', 3))


def test_a_page_with_a_table_that_nobody_has_is_a_mistake(tables, tmp_path):
    (tmp_path / 'page.md').write_text('<!-- table none -->\n| a |\n', encoding='utf-8')
    with pytest.raises(Mistake, match='none'):
        results.page_with_tables(tmp_path / 'page.md', tables(*NUMBERS))


# ---- runs

@pytest.fixture
def with_runs(tables, tmp_path):
    """with_runs({network: {seed: error}}): the tables of these runs, under the name `runs`."""
    def with_runs(errors):
        rows = []
        for network, of_network in errors.items():
            for seed, error in of_network.items():
                row = dict.fromkeys(COLUMNS, 1) | {'run': f'{network}_seed{seed}', 'network': network, 'seed': seed,
                                                   'weights': 870_000, 'seconds': 10 + seed % 7, 'error': error}
                rows.append(row.values())
        write_table(tmp_path / 'runs.csv', [COLUMNS, *rows])
        return tables(*NUMBERS, line('u/r/c', 'verdict @runs/a/error @runs/b/error'))
    return with_runs


def verdict_in(tables):
    return results.markdown(tables, 'u').splitlines()[-1]


def test_runs_of_the_same_seeds_are_pairs_in_any_order(with_runs):
    """The seeds differ by far more than the networks."""
    assert 'for us' in verdict_in(with_runs({'a': {0: 1.00, 1: 2.01, 2: 3.0}, 'b': {2: 3.1, 0: 1.10, 1: 2.10}}))


def test_runs_of_other_seeds_are_no_pairs(with_runs):
    assert 'do not tell' in verdict_in(with_runs({'a': {0: 1.00, 1: 2.01, 2: 3.0}, 'b': {0: 1.1, 1: 2.1, 3: 3.1}}))


def test_tries_of_a_tuning_are_not_in_the_mean(with_runs):
    row = with_runs({'a': {0: 0.25, 1: 0.35, TUNING_SEED: 9.0}, 'b': {0: 0.5, 1: 0.5}})['runs']['a']
    assert (row['error']['mean'], row['top-1, %']['mean'], row['error']['n']) == ('0.300', '70.0', 2)
    assert (row['weights']['mean'], row['seconds']['mean']) == ('0.87M', '10 to 11')
