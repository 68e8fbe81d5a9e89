"""Check the exercises of a lesson.

    python course/check.py 3                 # lesson 3: what is right, wrong or empty, and why
    python course/check.py 3 --hint          # a question about the first function that is not right
    python course/check.py 3 --hint=2        # the equation; --hint=3: a skeleton
    python course/check.py all               # every lesson, a line each
    python course/check.py 3 --file=anna.py  # another file than course/lesson3.py
    python course/check.py 3 --json          # for marking

Your functions are compared with the answers, on inputs that you do not see: several seeds, negative
numbers, all sizes different. Your file runs in a process of its own, for at most --seconds=20 after
PyTorch has started. Exit code: 0 if everything is right, 1 if not, 2 for a mistake on the command
line.
"""
import argparse
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from engine.mistakes import Mistake, one_line_errors  # noqa: E402
from engine.names import printable  # noqa: E402

HERE = Path(__file__).resolve().parent
LESSONS = {int(path.stem[-1]): path for path in sorted(HERE.glob('lesson[0-9].py'))}


# ---- running a student's file -------------------------------------------------------------------

def check(lesson, file, seconds):
    """The result of a file: {'lesson', 'file', 'functions', 'problem', 'printed'}. 'functions' is a
    list of {'function', 'verdict', 'message', ..}, with the verdicts right, wrong, empty, missing,
    stopped and unchecked. 'problem' says what is wrong with the file, and 'printed' is the number
    of lines that it printed."""
    reports, timed_out = run_grade(lesson, file, seconds)
    names = value_of('names', reports, [])
    problem = value_of('file', reports, '')
    printed = value_of('end', reports, None)
    rows = {report['function']: report for report in reports if 'function' in report}
    begun = [report['begin'] for report in reports if 'begin' in report]
    unfinished = [name for name in begun if name not in rows]  # one at most, the last

    if printed is None and not problem and not unfinished:
        problem = 'the file ended the program'
        if timed_out:
            problem = (f'the file did not end within {seconds:g} s: an endless loop outside of the '
                       'functions?')

    stopped = 'ended the program'
    if timed_out:
        stopped = f'did not end within {seconds:g} s: an endless loop?'
    unchecked = 'not checked, because the file could not be read'
    if begun:
        unchecked = f'not checked, because {begun[-1]} {stopped}'
    for name in names:
        if name in unfinished:
            rows[name] = {'function': name, 'verdict': 'stopped', 'message': stopped}
        elif name not in rows:
            rows[name] = {'function': name, 'verdict': 'unchecked', 'message': unchecked}

    return {
        'lesson': lesson,
        'file': str(file),
        'problem': problem,
        'functions': [rows[name] for name in names],
        'printed': printed or 0,
    }


def run_grade(lesson, file, seconds):
    """(reports, timed_out): what course/grade.py reports about a file, and whether it was stopped
    after so many seconds. A report is a dict, one of

        {'names': the functions of the lesson}
        {'begin': a function}
        {'function': its name, 'verdict': .., 'message': ..}
        {'file': what is wrong with the file}
        {'end': the number of lines that the file printed}
    """
    command = [sys.executable, str(HERE / 'grade.py'), str(lesson), str(file)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               stdin=subprocess.DEVNULL, start_new_session=True, bufsize=0)
    timed_out = False
    try:
        # PyTorch may take long to start: the time counts from the first report on
        first_line = process.stdout.readline()
        out, errors = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        timed_out = True
        kill(process)
        out, errors = process.communicate()
    except KeyboardInterrupt:  # Ctrl-C does not reach a process of another session
        kill(process)
        process.wait()
        raise

    reports = []
    for line in (first_line + out).decode(errors='replace').splitlines():
        try:
            reports.append(without_control(json.loads(line)))
        except ValueError:  # the process was stopped in the middle of its last line
            break
    if not reports and not timed_out:
        raise Mistake(why_grade_failed(errors.decode(errors='replace')))
    return reports, timed_out


def why_grade_failed(errors):
    lines = errors.strip().splitlines() or ['it says nothing']
    if 'No module named' in lines[-1]:
        return (f'this Python lacks a package ({lines[-1]}); activate the environment '
                '(. .venv/bin/activate), or: pip install .')
    return f'course/grade.py failed, which is a mistake of ours: {lines[-1]}'


def kill(process):
    """End a process and, where the system can, all processes that it started."""
    if hasattr(os, 'killpg'):
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()


def without_control(x):
    """A report without control characters. The names and exceptions of a student are in it, which
    may have any."""
    if isinstance(x, dict):
        return {key: without_control(value) for key, value in x.items()}
    if isinstance(x, list):
        return [without_control(value) for value in x]
    return printable(x) if isinstance(x, str) else x


def value_of(key, reports, default):
    """The value of the first report that has this key."""
    for report in reports:
        if key in report:
            return report[key]
    return default


# ---- printing -----------------------------------------------------------------------------------

def right_count(result):
    return sum(row['verdict'] == 'right' for row in result['functions'])


def is_done(result):
    return not result['problem'] and right_count(result) == len(result['functions'])


def print_result(result):
    """Print the result of a lesson, a line or two for each function."""
    rows = result['functions']
    print(f'lesson {result["lesson"]}: {printable(result["file"])}')
    if result['problem']:
        print(f'  {result["problem"]}')
    width = max((len(row['function']) for row in rows), default=0)
    for row in rows:
        print(f'  {row["function"]:{width}}  {row["verdict"]:9}  {row["message"]}')
        if row.get('diagnosis'):
            print(f'  {"":{width}}  {"":9}  this equals {row["diagnosis"]}')

    if result['printed']:
        print(f'  (your file printed {result["printed"]} lines, which are not shown)')
    if any(row['verdict'] in ('wrong', 'empty') for row in rows[:-1]):
        print('  (where others call a function that is not right yet, ours takes its place)')
    last_line = f'  {right_count(result)} of {len(rows)} right'
    if right_count(result) < len(rows):
        last_line += f'; for a hint: python course/check.py {result["lesson"]} --hint'
    print(last_line)


def print_line(result):
    """Print the result of a lesson in one line, as soon as it is there."""
    line = f'lesson {result["lesson"]}: {right_count(result)} of {len(result["functions"])} right'
    if result['problem']:
        line += f'; {result["problem"]}'
    print(line, flush=True)


def hints(lesson):
    """{function: [a question, the equation, a skeleton]} of marks/lesson1.txt and so on, where
    empty lines are between them."""
    text = (HERE / 'marks' / f'lesson{lesson}.txt').read_text(encoding='utf-8')
    hints_of = {}
    for section in text.split('## ')[1:]:
        name, _, body = section.partition('\n')
        hints_of[name] = body.strip('\n').split('\n\n', 2)
    return hints_of


def print_hint(result, level):
    """Print a hint for the first function that is not right: 1 is a question, 2 the equation, 3 a
    skeleton."""
    lesson = result['lesson']
    wrong = [row for row in result['functions'] if row['verdict'] != 'right']
    if not wrong:
        print(f'lesson {lesson}: everything is right, there is nothing to hint at')
        return
    name = wrong[0]['function']
    if wrong[0]['verdict'] in ('stopped', 'unchecked'):  # no hint helps before it can be checked
        problem = result['problem'] or f'{name} {wrong[0]["message"]}'
        print(f'lesson {lesson}: {problem}')
        return
    kind = ('a question', 'the equation', 'a skeleton')[level - 1]
    print(f'{name}, {kind}:\n\n{hints(lesson)[name][level - 1]}')
    if level < 3:
        print(f'\nmore: python course/check.py {lesson} --hint={level + 1}')


# ---- the command line ---------------------------------------------------------------------------

class Parser(argparse.ArgumentParser):
    """Reports a mistake in one line."""

    def error(self, message):
        raise Mistake(f'{message}; see --help')


def parse(argv):
    """(lessons, options) of the words that were typed. Raises Mistake for a mistake in them."""
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words = [str(number) for number in LESSONS] + ['all']
    parser.add_argument('lessons', nargs='+', metavar='LESSON', choices=words)
    output = parser.add_mutually_exclusive_group()
    output.add_argument('--hint', nargs='?', type=int, const=1, choices=(1, 2, 3))
    output.add_argument('--json', action='store_true')
    parser.add_argument('--file', type=Path)
    parser.add_argument('--seconds', type=float, default=20.0)
    options = parser.parse_args(argv)

    lessons = []
    for word in options.lessons:
        lessons += list(LESSONS) if word == 'all' else [int(word)]
    file = options.file
    if file and (len(lessons) > 1 or not file.is_file() or file.suffix != '.py'):
        parser.error(f'--file={file} must be a Python file that exists, and goes with one lesson')
    if not 0 < options.seconds <= 3600:
        parser.error(f'--seconds={options.seconds} must be above 0, and at most 3600')
    return lessons, options


def main(argv):
    lessons, options = parse(argv)
    several_lines = len(lessons) > 1 and not options.json and not options.hint
    results = []
    for lesson in lessons:
        result = check(lesson, options.file or LESSONS[lesson], options.seconds)
        results.append(result)
        if several_lines:
            print_line(result)

    not_done = [result for result in results if not is_done(result)]
    if options.json:
        print(json.dumps(results if len(results) > 1 else results[0], indent=1))
    elif options.hint:
        print_hint(not_done[0] if not_done else results[0], options.hint)
    elif not several_lines:
        print_result(results[0])
    return 1 if not_done else 0


if __name__ == '__main__':
    with one_line_errors():
        sys.exit(main(sys.argv[1:]))
