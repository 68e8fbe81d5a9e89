"""Make the students' copy of the project: without answers, known mistakes and tests. The checker
has the expected results there as numbers, in course/expected/.

    python course/bundle.py ../nanocrate_students

mark.py marks with other numbers than those of the copy.
"""
import shutil
from pathlib import Path

import torch

import grade  # first: it puts the project on the path
from engine.mistakes import Mistake, one_line_errors
from grade import HERE, LESSONS
from prepare.lib.inputs import Help, Parser

ROOT = HERE.parent
LEFT_OUT = ('.*', '__pycache__', 'answers', 'marks', 'mark.py', 'bundle.py', 'marking.md',
            'hour.md', 'tests', 'data', 'out', 'wandb')


def as_numbers(exam):
    """What grade.exam returns, with the results of mistakes in place of functions, and without
    sources."""
    for asked in exam['questions']:
        if asked['kind'] == 'numbers':
            asked['mistakes'] = [stored(mistakes, asked) for mistakes in asked['mistakes']]
    return exam | {'source': '', 'lessons': {}}


def stored(mistakes, asked):
    """[(name, its results)] of mistakes."""
    return [(name, list(grade.results_of(mistake, asked))) for name, mistake in mistakes]


def main(argv=None):
    parser = Parser(description=__doc__, formatter_class=Help)
    parser.add_argument('copy', type=Path, metavar='FOLDER')
    copy = parser.parse_args(argv).copy.resolve()
    if copy.exists() or copy.is_relative_to(ROOT):
        raise Mistake(f'{copy} exists, or is in the project: name a new folder elsewhere')
    shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(*LEFT_OUT))
    (copy / 'course' / 'pictures.py').unlink()  # it needs the answers
    expected = copy / 'course' / 'expected'
    expected.mkdir()
    for lesson in LESSONS:
        torch.save(as_numbers(grade.exam(lesson)), expected / f'lesson{lesson}.pt')
    print(f'{copy}: give this folder to your students')


if __name__ == '__main__':
    with one_line_errors():
        main()
