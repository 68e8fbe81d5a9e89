"""Check the exercises of a lesson.

    python course/check.py 3                      # lesson 3: each function right, wrong or empty, and why
    python course/check.py 3 --hint               # a question about the first function that is not right
    python course/check.py 3 --hint=2             # the equation; --hint=3: a skeleton
    python course/check.py all                    # every lesson, a line each
    python course/check.py 3 --file=anna.py       # another file than course/lesson3.py
    python course/check.py 3 --json               # for marking

Your functions are compared with the answers, on inputs that you do not see: several seeds, negative
numbers, all sizes different. Your file runs in a process of its own, for at
most --seconds=20 after PyTorch has started. Exit code: 0 if everything is right, 1 if not, 2 for a
mistake on the command line.
"""
import argparse
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
LESSONS = {int(p.stem.removeprefix('lesson')): p for p in sorted(HERE.glob('lesson[0-9].py'))}


# ---- running a student's file ---------------------------------------------------------------------------------------

def reports(lesson, file, seconds):
    """What course/grade.py says of a file, one dict for each line that it printed: {'begin': function},
    {'function': .., 'verdict': .., ..}, {'file': what is wrong with it}, {'end': lines it printed}.
    Then whether it was stopped after so many seconds."""
    process = subprocess.Popen([sys.executable, str(HERE / 'grade.py'), str(lesson), str(file)], stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, start_new_session=True, bufsize=0)
    first = process.stdout.readline()  # names; from here on the time counts: PyTorch may take long to start
    try:
        (out, err), late = process.communicate(timeout=seconds), False
    except subprocess.TimeoutExpired:
        end(process)
        (out, err), late = process.communicate(), True
    found = []
    for line in (first + out).decode(errors='replace').splitlines():
        try:
            found.append(printable(json.loads(line)))
        except ValueError:  # the last line, if the process was stopped in the middle of it
            break
    if not found and not late:
        why = (err.decode(errors='replace').strip().splitlines() or ['it says nothing'])[-1]
        raise ValueError(f'this Python lacks a package ({why}); activate the environment (. .venv/bin/activate), or: '
                         'pip install .' if 'No module named' in why else
                         f'course/grade.py failed, which is a mistake of ours: {why}')
    return found, late


def printable(x):
    """A report without characters that move a terminal's cursor: a student's exceptions and names are in it."""
    if isinstance(x, dict):
        return {k: printable(v) for k, v in x.items()}
    if isinstance(x, list):
        return [printable(v) for v in x]
    return ''.join(c if c.isprintable() else ascii(c)[1:-1] for c in x) if isinstance(x, str) else x


def end(process):
    """End a process, and where the system can, all that it started."""
    if hasattr(os, 'killpg'):
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()


def check(lesson, file, seconds):
    """{'lesson', 'file', 'functions': [{'function', 'verdict', 'message', ..}], 'problem', 'printed'} of
    a file. A verdict is right, wrong, empty, missing, stopped or unchecked."""
    found, late = reports(lesson, file, seconds)
    names = next((r['names'] for r in found if 'names' in r), [])
    told = {r['function']: r for r in found if 'function' in r}
    begun = [r['begin'] for r in found if 'begin' in r]
    problem = next((r['file'] for r in found if 'file' in r), '')
    ended = any('end' in r for r in found)
    if not ended and not problem and (not begun or begun[-1] in told):
        problem = f'the file did not end within {seconds:g} s: an endless loop outside of the functions?' if late else \
            'the file ended the program'
    for name in names:
        if name not in told:
            stopped = begun and begun[-1] == name and not ended
            why = f'did not end within {seconds:g} s: an endless loop?' if late else 'ended the program'
            told[name] = {'function': name, 'verdict': 'stopped' if stopped else 'unchecked',
                          'message': why if stopped else f'not checked, because {begun[-1] if begun else "the file"} '
                          + (why if begun else 'could not be read')}
    return {'lesson': lesson, 'file': str(file), 'problem': problem, 'functions': [told[name] for name in names],
            'printed': next((r['end'] for r in found if 'end' in r), 0)}


# ---- saying it ------------------------------------------------------------------------------------------------------

def show(result):
    """Print the result of a lesson, a line or two for each function."""
    print(f'lesson {result["lesson"]}: {printable(result["file"])}')
    if result['problem']:
        print(f'  {result["problem"]}')
    wide = max((len(f['function']) for f in result['functions']), default=0)
    for f in result['functions']:
        print(f'  {f["function"]:{wide}}  {f["verdict"]:9}  {f["message"]}')
        if f.get('diagnosis'):
            print(f'  {"":{wide}}  {"":9}  this equals {f["diagnosis"]}')
    if result['printed']:
        print(f'  (your file printed {result["printed"]} lines, which are not shown)')
    right = sum(f['verdict'] == 'right' for f in result['functions'])
    if any(f['verdict'] in ('wrong', 'empty') for f in result['functions'][:-1]):
        print('  (where others call a function that is not right yet, ours takes its place)')
    print(f'  {right} of {len(result["functions"])} right' + ('' if right == len(result['functions']) else
          f'; for a hint: python course/check.py {result["lesson"]} --hint'))


def hints(lesson):
    """{function: (a question, the equation, a skeleton)}: in the file, empty lines are between them."""
    parts = (HERE / 'marks' / f'lesson{lesson}.txt').read_text(encoding='utf-8').split('## ')[1:]
    return {name: text.strip('\n').split('\n\n', 2) for name, _, text in (part.partition('\n') for part in parts)}


def hint(result, level):
    """Print a hint of marks/lesson1.txt and so on for the first function that is not right."""
    todo = next((f for f in result['functions'] if f['verdict'] != 'right'), None)
    if todo is None:
        print(f'lesson {result["lesson"]}: everything is right, there is nothing to hint at')
        return
    if todo['verdict'] in ('stopped', 'unchecked'):  # the file could not be read, or did not get so far
        print(f'lesson {result["lesson"]}: {result["problem"] or todo["function"] + " " + todo["message"]}')
        return
    kind = ('a question', 'the equation', 'a skeleton')[level - 1]
    print(f'{todo["function"]}, {kind}:\n\n{hints(result["lesson"])[todo["function"]][level - 1]}')
    if level < 3:
        print(f'\nmore: python course/check.py {result["lesson"]} --hint={level + 1}')


# ---- the command line -----------------------------------------------------------------------------------------------

class Parser(argparse.ArgumentParser):
    """A mistake is said in one line."""

    def error(self, message):
        raise ValueError(f'{message}; see --help')


def parse(argv):
    """(lessons, options) of the words typed. Raises ValueError for a mistake in them."""
    p = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument('lessons', nargs='+', metavar='LESSON', choices=[*map(str, LESSONS), 'all'])
    said = p.add_mutually_exclusive_group()
    said.add_argument('--hint', nargs='?', type=int, const=1, choices=(1, 2, 3))
    said.add_argument('--json', action='store_true')
    p.add_argument('--file', type=Path)
    p.add_argument('--seconds', type=float, default=20.0)
    given = p.parse_args(argv)
    lessons = [n for word in given.lessons for n in (LESSONS if word == 'all' else [int(word)])]
    if given.file and (len(lessons) > 1 or not given.file.is_file() or given.file.suffix != '.py'):
        p.error(f'--file={given.file} must be a Python file that exists, and goes with one lesson')
    if not 0 < given.seconds <= 3600:
        p.error(f'--seconds={given.seconds} must be above 0, and at most 3600')
    return lessons, given


def main(argv):
    lessons, given = parse(argv)
    results = [check(n, given.file or LESSONS[n], given.seconds) for n in lessons]
    if given.json:
        print(json.dumps(results if len(results) > 1 else results[0], indent=1))
    elif given.hint:
        hint(next((r for r in results if not done(r)), results[0]), given.hint)
    elif len(results) > 1:
        for r in results:
            right = sum(f['verdict'] == 'right' for f in r['functions'])
            problem = f'; {r["problem"]}' * bool(r['problem'])
            print(f'lesson {r["lesson"]}: {right} of {len(r["functions"])} right{problem}')
    else:
        show(results[0])
    return 0 if all(map(done, results)) else 1


def done(result):
    return not result['problem'] and all(f['verdict'] == 'right' for f in result['functions'])


if __name__ == '__main__':
    sys.stdout.reconfigure(errors='backslashreplace')
    try:
        sys.exit(main(sys.argv[1:]))
    except ValueError as e:
        print(f'error: {e}', file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:  # the reader of our output left, as `| head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
