"""Mark a folder of submissions: a row for each student and lesson, in a table of points.

    python course/mark.py submissions --csv=marks.csv

submissions/ has a folder for each student, anna/lesson3.py, or a file for each, anna_lesson3.py.
--lesson=3 is for files whose names have no lesson. A folder may have helpers of the student's own.

A lesson has 40 points. Each function weighs as many minutes as its page gives to it. The inputs are
drawn anew, and are in no student's copy; --seed=7 draws them again. A file has --seconds=20. Read
course/README.md before you mark files of people whom you do not trust.
"""
import functools
import re
import secrets
import shutil
import tempfile
from pathlib import Path

import grade  # first: it puts the project on the path
from engine.mistakes import Mistake, one_line_errors
from engine.names import printable
from engine.settings import check_ranges
from engine.tables import write_rows
from grade import LESSONS, SIZES, text_of
from prepare.lib.inputs import Help, Parser

POINTS = 40
COLUMNS = ('student', 'lesson', 'points', 'right', 'functions', 'not right', 'remarks', 'problem',
           'file')


def submissions(folder, lesson):
    """[(student, lesson or None, path)] of a folder. None stands for a file of which nobody knows
    the lesson. `lesson` is that of files whose names have none, or None."""
    listed = []
    for entry in sorted(folder.glob('[!.]*')):  # none that is hidden
        name = entry.name if entry.is_dir() else entry.stem
        student = re.sub(r'[ _-]*lesson[ _-]*\d.*', '', name) or name
        # a file in a folder that has no lesson in its name is a helper of other files
        files = [path for path in sorted(entry.rglob('*.py')) if lesson_of(path)]
        for path in files or [entry]:
            listed.append((student, lesson_of(path) or lesson, path))
    return listed


def lesson_of(path):
    """The number in lesson3.py or anna_lesson3.py; None without one."""
    match = re.search(r'lesson[ _-]*([1-8])(?!\d)', path.name)
    return int(match[1]) if match else None


def marked(exam, path, seconds, folder):
    """The result of a file. It runs in a copy: with its folder, or without other students' files
    if it stands among these in the folder of all submissions."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as copies:
        files = [path] if path.parent == folder else path.parent.glob('*.py')
        for file in files:
            shutil.copy(file, copies)
        return grade.result(exam, Path(copies) / path.name, seconds, hidden=[folder])


def minutes(lesson):
    """{function: the minutes that the page of a lesson gives to it}"""
    rows = re.findall(r'^\| `(\w+)` \| (\d+) \|', text_of(f'lesson{lesson}.md'), re.M)
    return {name: int(number) for name, number in rows}


def row_of(result, weights):
    """The result of a file as a row of the table."""
    rows = result['functions']
    right = [row for row in rows if row['verdict'] == 'right']
    weight = sum(weights[row['function']] for row in right)
    not_right = [f'{row["function"]} ({row["verdict"]})' for row in rows if row not in right]
    remarks = [f'{row["function"]}: {row["message"]}' for row in right if ';' in row['message']]
    return {
        'points': round(POINTS * weight / sum(weights.values()), 1),
        'right': len(right),
        'functions': len(rows),
        'not right': ', '.join(not_right),
        'remarks': ' | '.join(remarks),
        'problem': result['problem'],
    }


def parse(argv):
    parser = Parser(description=__doc__, formatter_class=Help)
    parser.add_argument('folder', type=Path, metavar='FOLDER')
    parser.add_argument('--csv', type=Path, required=True)
    parser.add_argument('--lesson', type=int, choices=LESSONS)
    parser.add_argument('--seed', type=int, default=1 + secrets.randbelow(1_000_000))
    parser.add_argument('--seconds', type=float, default=20.0)
    options = parser.parse_args(argv)
    check_ranges(options, {(1, 3600): ['seconds'], (0, 1_000_000): ['seed']})
    if not options.folder.is_dir():
        raise Mistake(f'{options.folder} is no folder: name the folder of the submissions')
    if options.csv.exists() or not options.csv.parent.is_dir():
        raise Mistake(f'{options.csv} exists, or its folder does not: name another file')
    return options


def main(argv=None):
    options = parse(argv)
    # what functions of several lessons need is read once
    grade.PROCESSES.set_forkserver_preload(['torch', 'torch._dynamo', 'scipy.stats'])
    listed = submissions(options.folder, options.lesson)
    exam_of = functools.cache(grade.exam)
    with open(options.csv, 'x', newline='', encoding='utf-8') as file:
        write_rows(file, [COLUMNS])
        for student, lesson, path in listed:
            row = {
                'student': student,
                'lesson': lesson,
                'points': 0,
                'problem': 'no file whose name has a lesson: name it lesson3.py, or give '
                           '--lesson=3',
                'file': str(path.relative_to(options.folder)),
            }
            if lesson and path.suffix == '.py' and path.is_file():
                exam = exam_of(lesson, 1 + SIZES * options.seed)
                result = marked(exam, path, options.seconds, options.folder)
                row |= row_of(result, minutes(lesson))
            elif lesson:
                row['problem'] = 'no Python file'
            write_rows(file, [[row.get(column, '') for column in COLUMNS]])
            file.flush()  # what is marked stays if the next file is the last one today
            print(printable(f'{student}, lesson {lesson}: {row["points"]} points {row["problem"]}'),
                  flush=True)
    print(f'{options.csv}: {len(listed)} files; the same inputs again: --seed={options.seed}')


if __name__ == '__main__':
    with one_line_errors():
        main()
