"""Marking: wrong submissions are found, right ones are right, hostile ones get nothing and hold up
nobody; the table of a folder; the students' copy."""
import csv
import functools
import sys

import pytest
from course_submissions import HOSTILE, RIGHT, SOLUTIONS, START, WRONG, changed
from helpers import ROOT, run
from test_course import exercise_of, grade, lessons, verdict_of  # noqa: F401  (lessons: a fixture)

from engine.mistakes import Mistake

import bundle  # noqa: E402  (test_course has put course/ on the path)
import mark  # noqa: E402

POINTS = 40


def marked(folder, *words):
    """{file: its row} of the table that mark.py writes for a folder."""
    table = folder.parent / f'{folder.name}.csv'
    mark.main([str(folder), f'--csv={table}', *words])
    with open(table, newline='', encoding='utf-8') as file:
        return {row['file']: row for row in csv.DictReader(file)}


# ---- verdicts -----------------------------------------------------------------------------------

def verdict_of_change(lessons, lesson, name, changes):  # noqa: F811
    space = {'__name__': 'submission'}
    exec(compile(changed(lesson, changes), 'a.py', 'exec'), space)
    return verdict_of(exercise_of(lessons, lesson, name), space[name])


def test_what_is_wrong_is_found(lessons):  # noqa: F811
    for lesson, name, what, changes in WRONG:
        row = verdict_of_change(lessons, lesson, name, changes)
        if lesson < 4 and 'gradient' in what:  # NumPy is allowed there
            assert (row['verdict'], 'gradient' in row['message']) == ('right', True)
        else:
            assert row['verdict'] == 'wrong', (what, row)
            assert row['diagnosis'] or name == 'train', (what, row)


@functools.cache
def other_exam(lesson):
    """With other numbers than those that a student's copy has."""
    return grade.exam(lesson, 4)


@pytest.mark.slow
@pytest.mark.parametrize('lesson, name, style, changes', RIGHT, ids=lambda x: str(x)[:40])
def test_what_is_right_is_right_in_any_style(lesson, name, style, changes, tmp_path):
    (tmp_path / 'a.py').write_text(changed(lesson, changes))
    result = grade.result(other_exam(lesson), tmp_path / 'a.py', 60)
    assert {row['verdict'] for row in result['functions']} == {'right'}, result


@pytest.mark.parametrize('lesson, name, old, new', [
    # a norm of random draws is no mistake of a shape, and no error of rounding
    (4, 'layer', 'return (Z + eta', 'return (Z.detach() + 0 * Z + eta'),
    (6, 'decoder_layer', 'return y - ', 'return y.detach() - '),
    (5, 'aot_layer', "weights['norm1.weight'])", "weights['norm1.weight'].data)"),
])
def test_numbers_with_another_gradient_are_wrong(lesson, name, old, new, lessons):  # noqa: F811
    row = verdict_of_change(lessons, lesson, name, [(old, new)])
    assert row['verdict'] == 'wrong' and 'gradient' in row['message'], row


def test_a_function_that_calls_a_wrong_one_is_judged_with_ours(tmp_path):
    tokens_wrong = [("return z + weights['pos']", "return z - weights['pos']")]
    (tmp_path / 'a.py').write_text(changed(4, tokens_wrong))
    result = grade.result(other_exam(4), tmp_path / 'a.py', 60)
    wrong = [row['function'] for row in result['functions'] if row['verdict'] != 'right']
    assert wrong == ['tokens']


def test_our_functions_for_wrong_ones_bring_no_other_exercise():
    source = grade.without(grade.source_of(1), ['coding_rate', 'compressed_rate_gradient'])
    assert 'def compressed_rate(' in source
    assert 'logdet' not in source and 'linalg' not in source


# ---- hostile files ------------------------------------------------------------------------------

@pytest.mark.slow
@pytest.mark.skipif(sys.platform != 'linux', reason='memory has a limit on Linux alone')
def test_hostile_files_get_nothing_and_hold_up_nobody(tmp_path):
    folder = tmp_path / 'submissions'
    folder.mkdir()
    good = folder / 'zoe_lesson3.py'
    good.write_text(f'# GOOD\n{SOLUTIONS[3]}')
    canary = tmp_path / 'canary' / 'file'
    canary.parent.mkdir()
    canary.write_text('alive')
    for name, source in HOSTILE.items():
        source = source.replace('TARGETS', repr([str(canary), str(good)]))
        source = source.replace('SUBMISSIONS', f'Path({str(folder)!r})')
        source = source.replace('COURSE', f'Path({str(ROOT / "course")!r})')
        (folder / f'{name}_lesson3.py').write_text(START + source)
        if name in ('reads_answers', 'deletes'):  # the file of an earlier lesson does it
            (folder / f'{name}_before').mkdir()
            (folder / f'{name}_before' / 'lesson2.py').write_text(START + source)
            (folder / f'{name}_before' / 'lesson3.py').write_text('from lesson2 import *\n')

    rows = marked(folder, '--seconds=5')
    points = {row['student']: float(row['points']) for row in rows.values()}
    assert points.pop('zoe') == POINTS
    assert points == dict.fromkeys([*HOSTILE, 'reads_answers_before', 'deletes_before'], 0)
    assert canary.read_text() == 'alive'
    assert not list(ROOT.glob('pwned')) and not list(tmp_path.rglob('pwned'))


# ---- the table ----------------------------------------------------------------------------------

def test_a_folder_or_a_file_for_each_student_and_a_row_for_what_cannot_be_read(tmp_path):
    folder = tmp_path / 'submissions'
    for student in ('anna', 'ben', 'empty'):
        (folder / student).mkdir(parents=True)
    (folder / 'anna' / 'lesson3.py').write_text(SOLUTIONS[3])
    # a helper, also one of the student's own lesson 2, is there as at home
    (folder / 'anna' / 'helper.py').write_text('def half(x):\n    return x / 2\n')
    (folder / 'anna' / 'lesson2.py').write_text(f'{SOLUTIONS[2]}\ndef twice(x):\n    return 2 * x\n')
    with_helpers = SOLUTIONS[1].replace('@ Z) / 2', '@ Z) * half(1)')
    (folder / 'anna' / 'lesson1.py').write_text(f'from helper import half\n{with_helpers}')
    from_lesson_2 = [('lam * Z.abs()', 'twice(lam) / 2 * Z.abs()')]
    text = f'from lesson2 import twice\n{changed(3, from_lesson_2)}'
    (folder / 'ben' / 'lesson2.py').write_text('def twice(x):\n    return 2 * x\n')
    (folder / 'ben' / 'lesson3.py').write_text(text)
    (folder / 'cleo_lesson3.py').write_text(SOLUTIONS[3].replace('(Z - t).relu()', 'Z.relu()'))
    (folder / 'dan.py').write_text(SOLUTIONS[3])
    (folder / '=eve_lesson3.json').write_text('')
    (folder / 'gil.b').mkdir()
    (folder / 'gil.b' / 'lesson3.py').write_text('')
    (folder / 'finn_lesson3.py').write_bytes(b'\xff\x00')

    rows = marked(folder)
    for name in ('anna/lesson1.py', 'anna/lesson2.py', 'anna/lesson3.py', 'ben/lesson3.py'):
        assert float(rows[name]['points']) == POINTS, rows[name]
    # `prox` has 10 of 50 minutes
    assert float(rows['cleo_lesson3.py']['points']) == POINTS * 40 / 50
    assert rows['cleo_lesson3.py']['not right'] == 'prox (wrong)'
    assert rows['gil.b/lesson3.py']['student'] == 'gil.b'
    for name in ('empty', 'dan.py', "'=eve_lesson3.json", 'finn_lesson3.py'):
        assert rows[name]['problem'] and float(rows[name]['points']) == 0, rows[name]


def test_a_lesson_for_names_without_one_and_the_same_inputs_again(tmp_path):
    (tmp_path / 'files').mkdir()
    (tmp_path / 'files' / 'dan.py').write_text(SOLUTIONS[3])
    row = marked(tmp_path / 'files', '--lesson=3', '--seed=7')['dan.py']
    assert (row['student'], row['lesson'], float(row['points'])) == ('dan', '3', POINTS)


@pytest.mark.parametrize('words', ['none --csv=a.csv', '. --csv=there.csv', '.',
                                   '. --csv=a.csv --seed=-1', '. --csv=none/a.csv'])
def test_wrong_words_are_one_line_and_replace_nothing(words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'there.csv').write_text('marks of last year')
    with pytest.raises(Mistake) as e:
        mark.main(words.split())
    assert '\n' not in str(e.value)
    assert [path.name for path in tmp_path.iterdir()] == ['there.csv']


def test_pages_give_minutes_for_each_function(lessons):  # noqa: F811
    for n, exercises in lessons.items():
        assert list(mark.minutes(n)) == [exercise.name for exercise in exercises]


def test_marking_has_new_inputs_and_those_that_show_all_mistakes(lessons):  # noqa: F811
    exercise = exercise_of(lessons, 5, 'passing')
    known = grade.question(exercise, 1, 5)['inputs']
    new = grade.question(exercise, 904, 5)['inputs']
    assert all(str(inputs) in map(str, new) for inputs in known[:3])
    assert len(new) > len(known) and str(new[0]) not in map(str, known)


def test_each_seed_draws_other_inputs(lessons):  # noqa: F811
    for n, exercises in lessons.items():
        for exercise in exercises:
            if exercise.kind == 'numbers':
                first, second = (str(exercise.inputs(seed)) for seed in (1, 4))
                assert first != second, exercise.name


# ---- the students' copy -------------------------------------------------------------------------

@pytest.mark.slow
def test_the_students_copy_has_no_answers_and_checks_as_ours_does(tmp_path, monkeypatch):
    monkeypatch.setattr(bundle, 'LESSONS', (1, 7))  # all take long
    copy = tmp_path / 'copy'
    bundle.main([str(copy)])
    for name in ('answers', 'marks', 'mark.py'):
        assert not (copy / 'course' / name).exists()
    assert not (copy / 'tests').exists()
    answer = 'torch.logdet(torch.eye(d, dtype=Z.dtype)'
    for path in copy.rglob('*'):
        if path.is_file() and path.suffix in ('.py', '.md', '.pt', '.txt', '.tsv'):
            assert answer not in path.read_text(encoding='utf-8', errors='replace'), path

    file = tmp_path / 'a.py'
    file.write_text(SOLUTIONS[7])
    done = run(copy / 'course' / 'check.py', 7, f'--file={file}')
    assert done.returncode == 0, done.stdout
    file.write_text(SOLUTIONS[1].replace('eps ** 2) * Z', 'eps) * Z'))
    done = run(copy / 'course' / 'check.py', 1, f'--file={file}')
    assert 'this equals the rate with eps, and not eps squared' in done.stdout
    with pytest.raises(Mistake):
        bundle.main([str(copy)])
