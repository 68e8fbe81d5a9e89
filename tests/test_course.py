"""The course: gaps are empty, answers are right, every mistake is found and named, every right variant
passes; pages name what exists; whatever a student's file does, the checker says it in a line."""
import ast
import contextlib
import io
import json
import os
import re
import shlex
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
from helpers import ROOT

COURSE = ROOT / 'course'
sys.path.insert(0, str(COURSE))
import check  # noqa: E402
import grade  # noqa: E402

NUMBERS = sorted(check.LESSONS)
PAGES = [*(COURSE / f'lesson{n}.md' for n in NUMBERS), COURSE / 'README.md']
STUDENTS = {'model_own.py', 'model_x.py', 'anna.py'}  # files that the reader writes


@pytest.fixture(scope='module')
def lessons():
    """{number: (its exercises, the module of answers)}"""
    return {n: (grade.exercises(n), grade.loaded(COURSE / 'answers' / f'lesson{n}.py', f'answers{n}'))
            for n in NUMBERS}


def verdict_of(exercise, function):
    with contextlib.redirect_stdout(io.StringIO()):
        return exercise.own(function) if exercise.own else grade.grade(exercise, function, Path('a.py'))


# ---- exercises ------------------------------------------------------------------------------------------------------

def test_every_lesson_is_whole():
    assert NUMBERS and NUMBERS == list(range(1, max(NUMBERS) + 1))
    for n in NUMBERS:
        for file in (f'lesson{n}.md', f'marks/lesson{n}.py', f'answers/lesson{n}.py'):
            assert (COURSE / file).exists(), file


@pytest.mark.parametrize('n', NUMBERS)
def test_gaps_are_empty(n, lessons):
    module = grade.loaded(COURSE / f'lesson{n}.py', f'lesson{n}')
    for e in lessons[n][0]:
        try:
            said = verdict_of(e, getattr(module, e.name))
        except NotImplementedError:
            said = {'verdict': 'empty'}
        assert said['verdict'] == 'empty', (e.name, said)
        assert getattr(module, e.name).__doc__, f'{e.name} does not say what to write'


@pytest.mark.parametrize('n', NUMBERS)
def test_answers_and_other_right_ways_are_right(n, lessons):
    exercises, answers = lessons[n]
    for e in exercises:
        assert len(e.variants) >= 2, e.name
        for way in (getattr(answers, e.name), *e.variants):
            said = verdict_of(e, way)
            assert said['verdict'] == 'right', (e.name, e.variants.index(way) if way in e.variants else 'answer', said)


@pytest.mark.parametrize('n', NUMBERS)
def test_every_mistake_is_found_and_named(n, lessons):
    exercises, _ = lessons[n]
    assert sum(len(e.mutants) for e in exercises) >= 6
    for e in exercises:
        for name, mutant in e.mutants.items():
            said = verdict_of(e, mutant)
            assert (said['verdict'], said.get('diagnosis')) == ('wrong', name), (e.name, name, said)
            assert said['message'] and '\n' not in said['message']


@pytest.mark.parametrize('n', NUMBERS)
def test_hints_go_from_a_question_to_a_skeleton(n, lessons):
    for e in lessons[n][0]:
        question, rule, skeleton = e.hints
        assert '?' in question and rule.strip(), e.name
        assert '...' in skeleton, f'{e.name}: the skeleton gives everything away'


def test_inputs_differ_in_every_size_and_have_negative_numbers(lessons):
    for n, (exercises, _) in lessons.items():
        for e in (e for e in exercises if not e.own):
            given = [e.inputs(seed) for seed in grade.SEEDS]
            assert len({repr(grade.as_lists(g)) for g in given}) == 3, (n, e.name)


# ---- pages ----------------------------------------------------------------------------------------------------------

def text_of(page):
    return page.read_text(encoding='utf-8')


def prose(page):
    return re.sub(r'^```.*?^```$', '', text_of(page), flags=re.M | re.S)


def blocks(page, language):
    return re.findall(rf'^```{language}\n(.*?)^```', text_of(page), re.M | re.S)


@pytest.mark.parametrize('page', PAGES, ids=lambda p: p.stem)
def test_pages_are_not_too_wide(page):
    for line in (text_of(page) if page.stem != 'README' else prose(page)).splitlines():
        assert len(line) <= 100 or line.lstrip().startswith('|'), f'{len(line)} columns: {line}'


@pytest.mark.parametrize('n', NUMBERS)
def test_pages_have_their_parts(n):
    page = text_of(COURSE / f'lesson{n}.md')
    parts = re.split(r'^## ', page, flags=re.M)
    assert parts[0].startswith(f'# Lesson {n}: ') and 'After this lesson you can' in parts[0]
    titles = [part.splitlines()[0] for part in parts[1:]]
    assert titles == ['The idea', 'Read', 'Write', 'Try it', 'Questions'], titles
    *_, write, experiment, questions = parts
    assert f'python course/check.py {n}' in write and f'course/lesson{n}.py' in write
    # a prediction, then an accepted range
    assert re.search(r'write\s+down', experiment, re.I) and re.search('accept', experiment, re.I)
    asked = re.findall(r'^\d\. ', questions, re.M)
    assert asked == ['1. ', '2. ', '3. '] and re.search(r'went\s+against\s+the\s+paper', questions)


def commands():
    """(page, command) of all commands on the pages."""
    for page in PAGES:
        for block in blocks(page, 'sh'):
            for line in re.sub(r'\\\n\s*', ' ', block).splitlines():
                line = line.split('  #')[0].strip()
                if line:
                    yield page, line


def options(tool, words):
    """The names of the settings that a command of the project takes."""
    import analyze
    import eval
    import sample
    import train
    from engine import networks
    from tasks.augment import AugmentConfig
    if tool == 'train.py':
        model = next((w.partition('=')[2] for w in words if w.startswith('--model=')), '')
        known = [train.TrainConfig, AugmentConfig]
        for name in [model] if model and model != 'own' else networks.names():
            known.append(networks.network(name)[1])
        known += [grade.loaded(COURSE / 'answers' / 'lesson8.py', 'answers8').Config] * (model == 'own')
    elif tool == 'analyze.py':
        command = words[0]
        assert command in [*analyze.COMMANDS, *analyze.THEORIES, 'augment', 'curves'], command
        known = [analyze.THEORIES[command][1]] if command in analyze.THEORIES else []
        known += [analyze.AnalyzeConfig] if command in analyze.COMMANDS else []
        from analysis.curves import CurvesConfig
        from analysis.sheet import SheetConfig
        known += [SheetConfig, AugmentConfig] * (command == 'augment') + [CurvesConfig] * (command == 'curves')
    else:
        known = [{'sample.py': sample.SampleConfig, 'eval.py': eval.EvalConfig}[tool]]
    return {f.name for c in known for f in fields(c)} | {'help', 'ckpt'}


def test_commands_name_what_exists():
    found = list(commands())
    assert len({page for page, _ in found}) == len(PAGES)
    for page, line in found:
        words = shlex.split(line)
        if words[0] in ('mkdir', 'for'):
            assert 'course/check.py 3 --file=' in line or words[0] == 'mkdir'
            continue
        assert words[0] == 'python', line
        tool, words = words[1], words[2:]
        assert (ROOT / tool).is_file(), line
        if tool == 'course/check.py':
            check.parse([w for w in words if not w.startswith('--file')])
            continue
        if tool.startswith('prepare/'):
            continue
        known = options(tool, words)
        for word in words:
            if word.startswith('--'):
                assert word[2:].partition('=')[0] in known, f'{page.name}: {line}: {word}'
            elif word.endswith('.py'):
                assert (ROOT / word).is_file(), f'{page.name}: {word}'


@pytest.mark.parametrize('page', PAGES, ids=lambda p: p.stem)
def test_files_and_links_exist(page):
    for name in set(re.findall(r'`([\w./]+\.(?:py|md|ipynb|json))`', prose(page))) - STUDENTS:
        assert any((folder / name).exists() for folder in (ROOT, COURSE)), name
    for target, anchor in re.findall(r'\]\((?!https?:)([^)#]*)#?([^)]*)\)', prose(page)):
        path = (page.parent / target).resolve() if target else page
        assert path.exists(), target
        titles = re.findall(r'^#+ (.*)$', prose(path), re.M)
        assert not anchor or anchor in {re.sub(r'[^\w -]', '', t.lower()).replace(' ', '-') for t in titles}, anchor


@pytest.mark.parametrize('n', NUMBERS)
def test_functions_that_pages_name_in_our_files_exist(n):
    read = text_of(COURSE / f'lesson{n}.md').split('\n## Read')[1].split('\n## ')[0]
    for item in re.split(r'^\* ', read, flags=re.M)[1:]:
        files = [name for name in re.findall(r'`([\w/]+\.py)`', item) if (ROOT / name).exists()]
        source = '\n'.join((ROOT / name).read_text(encoding='utf-8') for name in files)
        for name in re.findall(r'`([A-Za-z_][\w.]*)`', item) if files else ():
            if not name.endswith(('.py', '.md')):
                assert re.search(rf'(def|class) {name.rpartition(".")[2]}\b', source), (files, name)


@pytest.mark.parametrize('page', [p for p in PAGES if blocks(p, 'python')], ids=lambda p: p.stem)
def test_snippets_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'marked').mkdir()
    (tmp_path / 'marked' / 'anna.json').write_text(json.dumps({'problem': 'it ended', 'functions': [
        {'function': 'f', 'verdict': 'right'}, {'function': 'g', 'verdict': 'wrong'}]}))
    space, out = {'__name__': 'page'}, io.StringIO()
    for block in blocks(page, 'python'):
        with contextlib.redirect_stdout(out):
            exec(compile(block, page.name, 'exec'), space)
    if page.stem == 'README':
        assert out.getvalue() == f'{"anna":20} 1 of 2 right; not yet: g it ended\n'


def test_the_table_of_lessons_is_true(lessons):
    rows = re.findall(r'^\| \[(\d)\]\(lesson\d\.md\) \| .* \| (\d+) \|$', text_of(COURSE / 'README.md'), re.M)
    for n, count in rows:
        if int(n) in lessons:
            assert len(lessons[int(n)][0]) == int(count), f'lesson {n}'
    assert {int(n) for n, _ in rows} >= set(NUMBERS)


def test_lesson_7_says_how_many_mistakes_there_are():
    marks, page = sys.modules.get('marks7') or grade.loaded(COURSE / 'marks' / 'lesson7.py', 'marks7'), \
        text_of(COURSE / 'lesson7.md')
    assert (len(marks.MISTAKES), marks.NEEDED) == (13, 10) and 'thirteen wrong' in page and 'Ten of these' in page


def hunted(*properties):
    return sys.modules['marks7'].hunt(lambda: list(properties))


def test_properties_of_students_do_not_crash_the_checker(lessons):
    marks = sys.modules['marks7']
    good = marks.alone, marks.causal, marks.first, marks.shuffled

    def ends(mssa):
        sys.exit(1)

    def forgets(mssa):
        mssa(1, 2, 3)

    def nothing(mssa):
        pass
    for odd in (forgets, nothing, lambda mssa: 1 / 0, lambda: True, lambda mssa: __import__('torch').ones(2, 2)):
        said = hunted(*good, odd)
        assert said['verdict'] == 'right' and 'not counted' in said['message'], said
        said = hunted(odd)
        assert said['verdict'] == 'wrong' and '0 of 13' in said['message']
    assert 'no mistake is found by <' not in hunted(*good, lambda mssa: True)['message']
    assert 'property 5' in hunted(*good, lambda mssa: True)['message']
    with pytest.raises(SystemExit):  # grade.py says so of the function
        hunted(ends)


# ---- what a student's file may do -----------------------------------------------------------------------------------

START = 'import os, sys, time, torch\n'
REST = '\ndef mssa_free(*a): raise NotImplementedError\ndef half_step(*a): return None\n'
FILES = {
    'several': (START + 'print("hello")\ndef attention_weights(Z, U, causal):\n    print("in it\\nagain")\n'
                '    return Z\ndef mssa(Z, U, causal):\n    return Z * float("nan")\ndef mssa_free(Z, U, *a):\n'
                '    return Z + 1 / 0\ndef half_step(Z, U, causal):\n    Z += 1\n    return Z\n',
                {'attention_weights': ('wrong', 'expected (2, 3, 7, 7)'), 'mssa': ('wrong', 'has NaN'),
                 'mssa_free': ('wrong', 'line 9: ZeroDivisionError'), 'half_step': ('wrong', 'changes its input')}, ''),
    'more': (START + 'def attention_weights(Z, U, causal):\n    sys.exit(0)\nmssa = 3\n'
             'def mssa_free(Z):\n    return Z\n'
             'def half_step(Z, U, causal):\n    return "a string"\n',
             {'attention_weights': ('wrong', 'SystemExit'), 'mssa': ('missing', 'no function mssa'),
              'mssa_free': ('wrong', 'TypeError'), 'half_step': ('wrong', 'returns a str')}, ''),
    'ended': (START + 'def attention_weights(*a): raise NotImplementedError\ndef mssa(*a): os._exit(0)' + REST,
              {'attention_weights': ('empty', ''), 'mssa': ('stopped', 'ended the program'),
               'mssa_free': ('unchecked', 'mssa ended'), 'half_step': ('unchecked', 'mssa ended')}, ''),
    'endless': (START + 'def attention_weights(*a): return\ndef mssa(*a):\n    while True: pass' + REST,
                {'attention_weights': ('empty', ''), 'mssa': ('stopped', 'endless loop'),
                 'mssa_free': ('unchecked', 'mssa did not end'), 'half_step': ('unchecked', '')}, ''),
    'syntax': (START + 'def mssa(:\n', dict.fromkeys(('attention_weights', 'mssa', 'mssa_free', 'half_step'),
                                                    ('unchecked', 'could not be read')), 'line 2: SyntaxError'),
    'leaves': (START + 'sys.exit(3)', dict.fromkeys(('attention_weights', 'mssa', 'mssa_free', 'half_step'),
                                                   ('unchecked', '')), 'line 2: SystemExit'),
    'sleeps': (START + 'time.sleep(99)', dict.fromkeys(('attention_weights', 'mssa', 'mssa_free', 'half_step'),
                                                      ('unchecked', '')), 'did not end within')}


def run_on(tmp_path, text, *words, lesson='2'):
    """Exit code and output of check.py on a file, which is one line for each thing to say."""
    file = tmp_path / 'student.py'
    file.write_text(text)
    done = subprocess.run([sys.executable, str(COURSE / 'check.py'), lesson, f'--file={file}', *words], timeout=120,
                          capture_output=True, text=True, cwd=tmp_path)
    assert 'Traceback' not in done.stdout + done.stderr and 'Error' not in done.stderr, done.stderr
    assert [p.name for p in tmp_path.iterdir() if p.name != '__pycache__'] == ['student.py']
    return done.returncode, done.stdout


@pytest.mark.parametrize('name', [pytest.param(name, marks=[pytest.mark.slow] * (name != 'several')) for name in FILES])
def test_whatever_a_file_does_is_said_in_a_line(name, tmp_path):
    text, expected, problem = FILES[name]
    seconds = {'endless': 6, 'sleeps': 0.001}.get(name, 60)  # after PyTorch has started, which takes longer than that
    code, out = run_on(tmp_path, text, '--json', f'--seconds={seconds}')
    found = json.loads(out)
    assert code == 1 and problem in found['problem'] and bool(problem) == bool(found['problem'])
    assert [f['function'] for f in found['functions']] == ['attention_weights', 'mssa', 'mssa_free', 'half_step']
    for f in found['functions']:
        verdict, said = expected[f['function']]
        assert f['verdict'] == verdict and said in f['message'] and '\n' not in f['message'], f
    if name == 'several':
        assert found['printed'] >= 3  # its own line, and two for each call


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, 'fork'), reason='this system has no fork')
def test_what_a_file_starts_ends_with_it(tmp_path):
    """Else it would hold the pipe that check.py reads, for longer than run_on waits."""
    text = ('import os, time\n\ndef coding_rate(Z, eps=0.5):\n    os.fork()\n    time.sleep(1000)\n')
    code, out = run_on(tmp_path, text, '--seconds=1', lesson='1')
    assert code == 1 and 'did not end within 1 s' in out


def test_float32_is_named(tmp_path):
    answer = (COURSE / 'answers' / 'lesson1.py').read_text()
    assert '    N, d = Z.shape\n' in answer
    code, out = run_on(tmp_path, answer.replace('    N, d = Z.shape\n', '    Z = Z.float()\n    N, d = Z.shape\n', 1),
                       lesson='1')
    assert code == 1 and 'is computed in float32' in out


@pytest.mark.slow
def test_a_mistake_is_told_once_and_not_in_what_calls_it(tmp_path):
    answers = (COURSE / 'answers' / 'lesson1.py').read_text()
    empty = '    raise NotImplementedError\n'
    for right, wrong in (('eps ** 2) * gram', 'eps) * gram'), ('    N, d = Z.shape\n', empty)):
        assert right in answers
        code, out = run_on(tmp_path, answers.replace(right, wrong, 1), lesson='1')
        assert code == 1 and '2 of 3 right' in out and 'ours takes its place' in out


@pytest.mark.slow
def test_what_it_shows_and_its_hints(tmp_path):
    answers = (COURSE / 'answers' / 'lesson2.py').read_text()
    code, out = run_on(tmp_path, answers)
    assert code == 0 and out.count(' right ') >= 4 and '4 of 4 right' in out
    code, out = run_on(tmp_path, answers.replace('.softmax(-1)', '.softmax(-2)'))
    assert code == 1 and 'this equals the softmax over the queries' in out and '--hint' in out
    for level, what in (('', 'a question'), ('=2', 'the equation'), ('=3', 'a skeleton')):
        code, out = run_on(tmp_path, answers.replace('.softmax(-1)', '.softmax(-2)'), f'--hint{level}')
        assert code == 1 and out.startswith(f'attention_weights, {what}:\n') and ('more: ' in out) == (level != '=3')


@pytest.mark.slow
def test_all_lessons_at_once():
    done = subprocess.run([sys.executable, str(COURSE / 'check.py'), 'all', '--json', '--seconds=60'],
                          capture_output=True, text=True)
    assert done.returncode == 1 and [r['lesson'] for r in json.loads(done.stdout)] == NUMBERS


@pytest.mark.parametrize('words', [
    [], ['9' * 3], ['0'], ['-1'], ['one'], ['1', 'x'], ['1', '--hnit'], ['1', '--hint=4'], ['1', '--hint=x'],
    ['1', '--file=none.py'], ['1', f'--file={COURSE}/README.md'], ['1', '--file='], ['1', '2', '--file=x.py'],
    ['1', '--seconds=0'], ['1', '--seconds=nan'], ['1', '--seconds=-3'], ['1', '--seconds='],
    ['1', '--hint', '--json'], ['--json'], ['1', '--'], ['1', '-x']],
    ids=' '.join)
def test_bad_command_lines_are_one_line(words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError) as e:
        check.main(words)
    assert str(e.value) and '\n' not in str(e.value)
    assert not list(tmp_path.iterdir())


def test_a_bad_command_line_ends_with_exit_code_2(tmp_path):
    done = subprocess.run([sys.executable, str(COURSE / 'check.py'), '1', '--hnit'], capture_output=True, text=True,
                          cwd=tmp_path)
    assert done.returncode == 2 and done.stdout == '' and done.stderr.count('\n') == 1
    assert 'did you mean --hint?' in done.stderr and not list(tmp_path.iterdir())
    done = subprocess.run([sys.executable, str(COURSE / 'check.py'), '--help'], capture_output=True, text=True)
    assert done.returncode == 0 and 'python course/check.py 3' in done.stdout


# ---- the notebook ---------------------------------------------------------------------------------------------------

TOUR = json.loads((COURSE / 'tour.ipynb').read_text(encoding='utf-8'))
CELLS = [''.join(cell['source']) for cell in TOUR['cells'] if cell['cell_type'] == 'code']


def test_the_notebook_is_plain_and_without_results():
    assert TOUR['nbformat'] == 4 and TOUR['nbformat_minor'] >= 5 and len(CELLS) >= 6
    assert len({cell['id'] for cell in TOUR['cells']}) == len(TOUR['cells'])
    for cell in TOUR['cells']:
        assert cell['cell_type'] in ('code', 'markdown') and cell['metadata'] == {}
        assert set(cell) == {'cell_type', 'id', 'metadata', 'source'} | (
            {'execution_count', 'outputs'} if cell['cell_type'] == 'code' else set())
        assert not cell.get('outputs') and cell.get('execution_count') is None
    for text in CELLS:
        ast.parse(text)
        assert all(len(line) <= 120 for line in text.splitlines())


@pytest.mark.parametrize('start', [ROOT, COURSE], ids=['root', 'course'])
def test_the_first_cell_does_nothing_where_the_project_is(start, monkeypatch):
    def never(*a, **k):
        raise AssertionError('it starts a program')
    monkeypatch.chdir(start)
    monkeypatch.setattr(sys, 'path', list(sys.path))
    monkeypatch.setattr(subprocess, 'run', never)
    exec(CELLS[0], {'__name__': '__main__'})
    assert Path.cwd() == ROOT


def test_the_first_cell_clones_elsewhere(tmp_path, monkeypatch):
    called = []

    def run(words, check):
        called.append(words)
        if words[0] == 'git':
            (tmp_path / words[-1]).mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, 'path', list(sys.path))
    monkeypatch.setattr(subprocess, 'run', run)
    with pytest.raises(SystemExit, match='Write the address'):
        exec(CELLS[0], {'__name__': '__main__'})
    exec(CELLS[0].replace('com/OWNER', 'com/somebody'), {'__name__': '__main__'})
    assert Path.cwd() == tmp_path / 'nanocrate'
    assert [words[0] for words in called] == ['git', sys.executable] and called[1][1:3] == ['-m', 'pip']


@pytest.mark.slow
def test_the_notebook_runs(monkeypatch, capsys):
    monkeypatch.chdir(COURSE)
    monkeypatch.setattr(sys, 'path', list(sys.path))
    space = {'__name__': '__main__'}
    for text in CELLS:
        exec(compile(text, 'tour.ipynb', 'exec'), space)
    out = capsys.readouterr().out
    before, after = (float(x) for x in re.findall(r'training (\d+)% right', out))
    assert after > before + 20  # percent
    assert out.count('attention on the shape') == 4
