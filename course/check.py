"""Check the exercises of a lesson.

    python course/check.py 3                 # lesson 3: what is right, wrong or empty, and why
    python course/check.py 3 --hint          # a question about the first function that is not right
    python course/check.py 3 --hint=2        # the equation; --hint=3: a skeleton
    python course/check.py 3 --hint=solve    # a question about solve; --hint=solve:2 and solve:3
    python course/check.py all               # every lesson, a line each
    python course/check.py 3 --file=anna.py  # another file than course/lesson3.py

Your functions are compared with the answers, on inputs that you do not see: several seeds, negative
numbers, all sizes different, other numbers of the same sizes. Your file runs in a process of its
own, for at most --seconds=20. What it prints is not shown. Exit code: 0 if everything is right, 1
if not, 2 for a mistake on the command line.
"""
import sys
from pathlib import Path

import grade  # first: it puts the project on the path
from engine.mistakes import one_line_errors
from engine.settings import check_ranges
from grade import LESSONS, text_of
from prepare.lib.inputs import Help, Parser

# ---- printing -----------------------------------------------------------------------------------

def right_count(result):
    return sum(row['verdict'] == 'right' for row in result['functions'])


def is_done(result):
    return not result['problem'] and right_count(result) == len(result['functions'])


def print_result(result):
    """Print the result of a lesson, a line or two for each function."""
    rows = result['functions']
    print(f'lesson {result["lesson"]}: {result["file"]}')
    if result['problem']:
        print(f'  {result["problem"]}')
    width = max(len(row['function']) for row in rows)
    for row in rows:
        print(f'  {row["function"]:{width}}  {row["verdict"]:9}  {row["message"]}')
        if row.get('diagnosis'):
            print(f'  {"":{width}}  {"":9}  this equals {row["diagnosis"]}')

    if any(row['verdict'] in ('wrong', 'empty') for row in rows[:-1]):
        print('  (where others call a function that is not right yet, ours takes its place, unless '
              'your copy has no answers)')
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
    """{function: [a question, the equation, a skeleton]} of hints/lesson1.txt and so on, where
    empty lines are between them."""
    hints_of = {}
    for section in text_of(f'hints/lesson{lesson}.txt').split('## ')[1:]:
        name, _, body = section.partition('\n')
        hints_of[name] = body.strip('\n').split('\n\n', 2)
    return hints_of


def print_hint_for(result, level):
    """Print a hint for the first function that is wrong, or for the first gap."""
    lesson = result['lesson']
    not_right = [row for row in result['functions'] if row['verdict'] != 'right']
    if not not_right:
        print(f'lesson {lesson}: everything is right, there is nothing to hint at')
        return
    begun = [row for row in not_right if row['verdict'] == 'wrong']
    row = (begun or not_right)[0]
    if row['verdict'] in ('stopped', 'unchecked'):  # no hint helps before it can be checked
        problem = result['problem'] or f'{row["function"]} {row["message"]}'
        print(f'lesson {lesson}: {problem}')
        return
    print_hint(lesson, row['function'], level)


def print_hint(lesson, name, level):
    """Print a hint for a function: 1 is a question, 2 the equation, 3 a skeleton."""
    kind = ('a question', 'the equation', 'a skeleton')[level - 1]
    print(f'{name}, {kind}:\n\n{hints(lesson)[name][level - 1]}')
    if level < 3:
        print(f'\nmore: python course/check.py {lesson} --hint={name}:{level + 1}')


# ---- the command line ---------------------------------------------------------------------------

def parse(argv):
    """(lessons, options) of the words that were typed. Raises Mistake for a mistake in them."""
    parser = Parser(description=__doc__, formatter_class=Help)
    lesson_words = [*map(str, LESSONS), 'all']
    parser.add_argument('lessons', nargs='+', metavar='LESSON', choices=lesson_words)
    parser.add_argument('--hint', nargs='?', const='1', metavar='FUNCTION[:2]')
    parser.add_argument('--file', type=Path)
    parser.add_argument('--seconds', type=float, default=20.0)
    options = parser.parse_args(argv)
    check_ranges(options, {(1, 3600): ['seconds']})

    lessons = []
    for word in options.lessons:
        lessons += list(LESSONS) if word == 'all' else [int(word)]
    file = options.file
    if file and (len(lessons) > 1 or not file.is_file() or file.suffix != '.py'):
        parser.error(f'--file={file} must be a Python file that exists, and goes with one lesson')
    options.function, options.level = hint_words(options.hint, lessons, parser)
    return lessons, options


def hint_words(text, lessons, parser):
    """(the function or '', the level) that --hint asks for. `solve:2` is level 2 for solve."""
    if text is None or text in ('1', '2', '3'):
        return '', int(text or 1)
    name, _, level = text.partition(':')
    names = list(hints(lessons[0]))
    if name not in names or level not in ('', '1', '2', '3'):
        parser.error(f'--hint={text} must be 1, 2, 3, or a function of the lesson, such as '
                     f'{names[0]} or {names[0]}:2; its functions are {", ".join(names)}')
    return name, int(level or 1)


def main(argv=None):
    lessons, options = parse(argv)
    if options.function:
        print_hint(lessons[0], options.function, options.level)
        return 0
    several_lines = len(lessons) > 1 and not options.hint
    results = []
    for lesson in lessons:
        result = grade.result(grade.exam(lesson), options.file or LESSONS[lesson], options.seconds)
        results.append(result)
        if several_lines:
            print_line(result)

    not_done = [result for result in results if not is_done(result)]
    if options.hint:
        print_hint_for((not_done or results)[0], options.level)
    elif not several_lines:
        print_result(results[0])
    return 1 if not_done else 0


if __name__ == '__main__':
    with one_line_errors():
        sys.exit(main())
