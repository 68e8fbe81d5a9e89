"""docs/papers.md: every table, figure and numbered claim of the four papers has a row, and its commands exist."""
import re
import shlex

import pytest
from helpers import ROOT
from test_configs import RUNS, built, run

import analyze
import eval as scores
import sample
from engine import settings

PAGE = (ROOT / 'docs' / 'papers.md').read_text(encoding='utf-8')
TABLES = PAGE.split('## Every table, figure and numbered claim')[1].split('\n## ')[0]
COMMANDS = [shlex.split(c) for c in re.findall(r'`python ([^`]+)`', TABLES)]
PARTS = re.findall(r'`(--[^`]+)`', TABLES)  # flags that stand alone, of the command before them
LAST = {'CRATE (': (12, 5), 'CRATE, the longer': (9, 0), 'CRATE-MAE': (11, 6), 'AoT': (7, 5)}  # figures and tables
CLAIMS = {'CRATE (': {'Proposition': {1}, 'Approximation': {2, 4}, 'Remark': {3}, 'Lemma': {5, 6}},
          'CRATE, the longer': {'Remark': {1, 2, 3, 4, 5}},
          'CRATE-MAE': {'Theorem': {1, 3}, 'Assumption': {2}, 'Remark': {4, 5, 6, 13}, 'Lemma': {7, 8},
                        'Proposition': {9, 10, 11, 12, 14, 15}},
          'AoT': {'Definition': {1}, 'Theorem': {1}, 'Lemma': {1, 2, 3}}}
KINDS = 'Proposition', 'Approximation', 'Remark', 'Lemma', 'Theorem', 'Assumption', 'Definition'


def numbers(kind, section):
    """The numbers in first cells such as `Figures 3, 5 to 8`."""
    found = set()
    for cell in re.findall(rf'^\| [^|]*?{kind}s? ([\dab, to]+)', section, re.M):
        for part in re.findall(r'\d+[ab]? to \d+|\d+', cell):
            ends = [int(n) for n in re.findall(r'\d+', part)]
            found |= set(range(ends[0], ends[-1] + 1))
    return found


@pytest.mark.parametrize('paper', LAST)
def test_every_table_and_figure_has_a_row(paper):
    section, = (s for s in TABLES.split('\n### ') if s.startswith(paper))
    figures, tables = LAST[paper]
    assert numbers('Figure', section) == set(range(1, figures + 1))
    assert numbers('Table', section) == set(range(1, tables + 1))
    assert {kind: numbers(kind, section) for kind in KINDS if numbers(kind, section)} == CLAIMS[paper]


@pytest.mark.parametrize('times, noise, start, end, equation', [
    (2, 2, 3, 1, 'drift of (A.29) is 2 s'), (-1, 0, 1, 3, 'of (A.30) -s'), (1, 0, 3, 1, 'of (A.31) s')])
def test_the_misprints_of_the_diffusions(times, noise, start, end, equation):
    """A token of N(0, 1) has the variance 1 + 2t and the score -x / (1 + 2t) at time t, from 0 to 1. A drift of `times`
    the score and a noise of variance `noise` keep that law, the first and the last of them backwards in time."""
    assert equation in ' '.join(PAGE.split())
    for wrong in (0, -2 * times):
        variance, steps = start, 10_000
        for i in range(steps):
            law = start + (end - start) * i / steps
            variance += (noise - 2 * (times + wrong) * variance / law) / steps
        assert (variance == pytest.approx(end, rel=1e-3)) == (not wrong)


def test_training_commands_build():
    trained = [words[1:] for words in COMMANDS if words[0] == 'train.py']
    assert len(trained) > 20
    for words in trained:
        built(*(str(ROOT / w) if w.startswith('config/') else w for w in words))


def test_flags_that_stand_alone_are_settings():
    assert len(PARTS) > 8
    for flag in PARTS:
        if flag.startswith(('--split', '--ckpt')):
            settings.check(settings.collect([flag]), scores.EvalConfig)
        else:
            built(str(ROOT / 'config' / 'train_crate_imagenet.py'), flag)


def test_commands_that_look_have_these_settings():
    looks = {'eval.py': [scores.EvalConfig], 'sample.py': [sample.SampleConfig], 'analyze.py': [analyze.AnalyzeConfig]}
    for script, *words in COMMANDS:
        if script == 'analyze.py':
            command, *words = words
            assert command in {*analyze.COMMANDS, *analyze.THEORIES, 'curves'}
            words = words if command != 'curves' else [w for w in words if not w.startswith('out/')]
        if script in looks:
            assert (ROOT / script).exists()
            settings.check(settings.collect(words), *looks[script])


def test_runs_that_are_looked_at_are_those_that_commands_make():
    made = {built(*run(name, label))[0]['out_dir'] for name, label in RUNS}
    made |= {flag.split('=')[1] for words in COMMANDS for flag in words if flag.startswith('--out_dir=')}
    for words in [*COMMANDS, *([flag] for flag in PARTS)]:
        for folder in re.findall(r'\bout/\w+', ' '.join(w for w in words if not w.startswith('--out'))):
            assert folder in made, f'{folder} of `python {" ".join(words)}` is made by no command'
