"""Pages and code name each other correctly: links, files, equations."""
import importlib
import inspect
import operator
import re
import subprocess

import pytest
from helpers import ROOT

COURSE = ROOT / 'course'
PAGES = [ROOT / 'README.md', *sorted((ROOT / 'docs').glob('*.md'))]
LESSONS = [*sorted(COURSE.glob('lesson*.md')), COURSE / 'README.md']
FOR_LECTURERS = [COURSE / 'marking.md', COURSE / 'hour.md', COURSE / 'answers' / 'questions.md']
OTHERS = [ROOT / 'CHANGES.md', ROOT / 'CONTRIBUTING.md', ROOT / 'trained' / 'README.md', ROOT / 'tests' / 'README.md']
THEIRS = {'model_spectra.py', 'tasks/task_spectra.py', 'model_own.py', 'model_x.py', 'model_tiny.py', 'model_turn.py', 'model.py', 'tasks/task_x.py', 'tasks/task_rotations.py',
          'train_x_shapes.py', 'anna.py', 'anna_lesson3.py', 'anna/lesson3.py'}  # files of the reader
PLACES = ROOT, ROOT / 'config', COURSE, COURSE / 'marks'


def text_of(page):
    return page.read_text(encoding='utf-8')


README = text_of(PAGES[0])


def prose(page):
    """A page of Markdown without its blocks of code."""
    return re.sub(r'^```.*?^```$', '', text_of(page), flags=re.M | re.S)


def blocks(page, language):
    return re.findall(rf'^```{language}\n(.*?)^```', text_of(page), re.M | re.S)


def commands(page):
    """The different commands of a page, in order."""
    lines = (line.split('  #')[0].strip() for block in blocks(page, 'sh')
             for line in re.sub(r'\\\n\s*', ' ', block).splitlines())
    return list(dict.fromkeys(filter(None, lines)))


@pytest.mark.parametrize('page', PAGES + LESSONS + FOR_LECTURERS + OTHERS, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_and_links_exist(page):
    names = set(re.findall(r'`([\w/]+\.(?:py|md|ipynb|tsv))`', prose(page))) - THEIRS
    if page.name != 'CHANGES.md':  # it names files of earlier versions
        for name in names:
            assert any((place / name).exists() for place in PLACES), f'there is no {name}'
    for target, anchor in re.findall(r'\]\((?!https?:)([^)#]*)#?([^)]*)\)', prose(page)):
        path = (page.parent / target).resolve() if target else page
        assert path.exists(), f'a link to {target}, which does not exist'
        titles = re.findall(r'^#+ (.*)$', prose(path), re.M) if anchor else ()
        anchors = {re.sub(r'[^\w -]', '', title.lower()).replace(' ', '-') for title in titles}
        assert not anchor or anchor in anchors, f'{target} has no heading {anchor}'
    assert page not in PAGES[1:] or f'(docs/{page.name})' in README, 'README.md does not link to it'


def test_every_picture_is_shown_by_a_page():
    pages = [*PAGES, *COURSE.rglob('*.md'), *COURSE.glob('*.ipynb'), *ROOT.glob('docs/*.ipynb')]
    shown = ''.join(map(text_of, pages))
    pictures = [path.name for path in (ROOT / 'assets').iterdir()]
    assert len(pictures) > 20 and [name for name in pictures if name not in shown] == []


def test_equations_are_where_the_table_says():
    table = text_of(ROOT / 'docs' / 'papers.md').split('## Which equation is where')[1].split('\n## ')[0]
    rows = [row.strip('| ').split(' | ') for row in table.splitlines() if row.startswith('|')][2:]
    assert len(rows) > 25
    for what, code in rows:
        file, name = re.fullmatch(r'`([\w/]+\.py)` `([\w.]+)`', code).groups()
        module = importlib.import_module(file.removesuffix('.py').replace('/', '.'))
        source = inspect.getsource(operator.attrgetter(name)(module))
        equations = re.findall(r'\((?:(?:[AB]\.|\d\.)?\d+|[abc])\)', what)
        assert equations and all(equation in source for equation in equations), f'{file} {name}: {what}'


def test_the_difference_between_vit_and_crate_is_what_git_prints():
    words = ['git', 'diff', '--no-index', 'model_vit.py', 'model_crate.py']
    page = ROOT / 'docs' / 'papers.md'
    assert ' '.join(words) in commands(page)
    difference = subprocess.run(words, cwd=ROOT, capture_output=True, text=True).stdout
    hunks = blocks(page, 'diff')
    assert hunks and all(hunk in difference for hunk in hunks)
