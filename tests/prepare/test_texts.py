"""prepare/stdlib.py, text.py and the functions that they share."""
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest
from helpers import ROOT, fails
from small_files import jpeg, tree

from lib import texts
from prepare import imagefolder, pairs, shakespeare, shakespeare_char, stdlib, text
from tasks import files as data
from tasks.tokenizer import Tokenizer


def test_stdlib_is_prepared_without_a_network(tmp_path):
    source = tree(tmp_path / 'lib', {f'pkg/m{i}.py': f'x = {i}\r\n'.encode() for i in range(40)})
    tree(source, {'pkg/test/skipped.py': b'skip me', 'pkg/notes.txt': b'no code'})
    (source / 'pkg' / 'dangling.py').symlink_to('/nonexistent')
    stdlib.main(['--from', str(source), '--out', f'{tmp_path}/d'])
    splits = splits_of(tmp_path / 'd')
    lines = '\n'.join(splits.values()).split('\n')
    assert sorted(filter(None, lines)) == sorted(f'x = {i}' for i in range(40))
    assert re.findall(r'\d+', splits['val']) == ['0', '2', '20', '26', '9']
    assert re.findall(r'\d+', splits['test']) == ['18', '4', '8']


GOOD = 'a\r\nb\u00e9\u4e16\U0001f642\ufffd\ufeff \n\n' * 3
LONG = b'a line\n' * 60
CONTENTS = [b'\xef\xbb\xbf' + GOOD.encode(), b'', LONG + b'\xe4\xb8 \xff\xfe\xf0\x9f\x99' * 5,
            b'\xef\xbb\xbf\xef\xbb\xbf', LONG + b'end\xf0\x9f']


@pytest.mark.parametrize('tokenizer', ['bytes', 'chars'])
def test_a_dataset_is_the_text_of_its_files(tokenizer, tmp_path, capsys):
    """Bytes that are not UTF-8, characters and marks that are cut in the middle, new lines of
    Windows, a byte order mark at the beginning and one that is not. Each file is read once. No file
    fits into the share that is held out."""
    tree(tmp_path / 'in', {f'{i}/a.txt': content for i, content in enumerate(CONTENTS)})
    text.main([f'{tmp_path}/in', f'{tmp_path}/in/0/a.txt', '--tokenizer', tokenizer,
               '--val', '0.01', '--test', '0', '--out', f'{tmp_path}/d'])
    decoded = [content.decode('utf-8-sig', errors='replace') for content in CONTENTS]
    whole = '\n'.join(decoded).replace('\r\n', '\n')
    counted = re.findall(r'a\.txt: (\d+) places', capsys.readouterr().out)
    assert sum(map(int, counted)) == whole.count('\ufffd') > 15 and len(counted) == 3
    meta = data.read_meta(tmp_path / 'd')
    cut = int(len(whole) * 0.99)
    for split, part in (('train', whole[:cut]), ('val', whole[cut:])):
        ids = np.load(tmp_path / 'd' / f'{split}.npy')
        assert ids.tolist() == Tokenizer(**meta['tokenizer']).encode(part)
        n_bytes = len(part.encode())
        assert meta['splits'][split] == {'tokens': len(ids), 'dtype': 'uint16', 'bytes': n_bytes}


def test_parts_of_shakespeare_the_published_file(tmp_path, capsys, monkeypatch):
    """Train, test and val lie in this order in the text, each tokenized by itself."""
    whole = 'seven wonders of the ancient world ' * 20
    tree(tmp_path, {'input.txt': whole.encode()})
    words = '--from', str(tmp_path), '--out', f'{tmp_path}/d'
    for script in shakespeare, shakespeare_char:
        assert 'input.txt' in fails(capsys, script.main, *words) and not (tmp_path / 'd').exists()
    monkeypatch.setattr(shakespeare, 'SHA256', hashlib.sha256(whole.encode()).hexdigest())
    shakespeare_char.main(words)
    tokenizer = Tokenizer(**data.read_meta(tmp_path / 'd')['tokenizer'])
    for split, part in (('train', whole[:595]), ('test', whole[595:630]), ('val', whole[630:])):
        assert tokenizer.decode(np.load(tmp_path / 'd' / f'{split}.npy').tolist()) == part


# ---- what is held out


def splits_of(out):
    """{split: its text} of a dataset of bytes."""
    return {split: np.load(out / f'{split}.npy').astype(np.uint8).tobytes().decode()
            for split in data.read_meta(out)['splits']}


def stories_of(out):
    """{split: the words of its text} of a dataset of `stories`."""
    return {split: re.findall(r'story\d+', part) for split, part in splits_of(out).items()}


def whole_text(out):
    """The text of all splits of a dataset, whatever its tokenizer."""
    meta = data.read_meta(out)
    ids = np.concatenate([np.load(out / f'{split}.npy') for split in meta['splits']])
    return Tokenizer(**meta['tokenizer']).decode(ids.tolist())


def stories(n):
    """n files of one length, each of a word of its own."""
    return {f'{i:03}.txt': (f'story{i:03} ' * 10).encode() for i in range(n)}


@pytest.mark.parametrize('n, words, counts', [
    (20, (), [17, 2, 1]), (3, ('--val', '0.34', '--test', '0.34'), [1, 1, 1]),
    (10, ('--test', '0'), [9, 1])])
def test_whole_files_are_held_out_where_there_are_enough(n, words, counts, tmp_path):
    tree(tmp_path / 'in', stories(n))
    text.main([f'{tmp_path}/in', '--out', f'{tmp_path}/d', *words])
    splits = stories_of(tmp_path / 'd')
    assert list(splits) == ['train', 'val', 'test'][:len(counts)]
    assert [len(words) for words in splits.values()] == [10 * count for count in counts]
    for words in splits.values():
        assert words == sorted(words)  # in the order of their names
        assert len(set(words)) == len(words) / 10
    assert sorted(sum(splits.values(), [])) == sorted([f'story{i:03}' for i in range(n)] * 10)


def test_which_files_are_held_out_depends_on_their_names_alone(tmp_path):
    """Not on the place of the folder, on files that are added to train, or on the ends of lines."""
    files = stories(40)
    tree(tmp_path / 'a', files)
    tree(tmp_path / 'b/c', {name: files[name].replace(b' ', b'\r\n') for name in files})
    # as the docstring of the script says
    by_hash = sorted(files, key=lambda name: hashlib.sha256(name.encode()).hexdigest())
    for folder in 'a', 'b/c':
        text.main([f'{tmp_path}/{folder}', '--out', f'{tmp_path}/d', '--overwrite'])
        splits = stories_of(tmp_path / 'd')
        assert set(splits['val']) == {f'story{name[:3]}' for name in by_hash[:4]}
        assert set(splits['test']) == {f'story{name[:3]}' for name in by_hash[4:6]}


@pytest.mark.parametrize('files', [
    stories(3), {'book.txt': b'chapter ' * 999, 'a.txt': b'a note', 'b.txt': b'b'}])
def test_of_few_files_the_end_is_held_out(files, tmp_path):
    tree(tmp_path / 'in', files)
    text.main([f'{tmp_path}/in', '--out', f'{tmp_path}/d'])
    splits = splits_of(tmp_path / 'd')
    whole = b'\n'.join(files[name] for name in sorted(files)).decode()
    assert ''.join(splits.values()) == whole and list(splits) == ['train', 'val', 'test']
    shares = [len(part) / len(whole) for part in splits.values()]
    assert shares == pytest.approx([0.85, 0.1, 0.05], abs=0.02)


# ---- documents in lines of JSON


def lines_of(*rows, **options):
    return ''.join(json.dumps(row, **options) + '\n' for row in rows).encode()


def test_each_line_of_json_is_a_document(tmp_path):
    """U+2028, U+0085 and a carriage return end no line of the file; in a text the last one becomes
    a new line."""
    first = lines_of({'text': 'first\nof two', 'id': 1}, {'text': 'a\u2028b\x85c\x0bd'},
                     {'text': ''}, ensure_ascii=False)
    second = lines_of({'text': 'x\r\ny\rz'}, {'text': 'last ' * 9}).replace(b'\n', b'\r\n')
    tree(tmp_path, {'a.JSONL': first + b'\n  \n', 'b.jsonl': b'\xef\xbb\xbf' + second,
                    'c.txt': b'{"text": "of another kind"}'})
    joined = '\n'.join(['first\nof two', 'a\u2028b\x85c\x0bd', '', 'x\ny\nz', 'last ' * 9,
                       '{"text": "of another kind"}'])
    files = [f'{tmp_path}/{name}' for name in ('a.JSONL', 'b.jsonl', 'c.txt')]
    for tokenizer in 'bytes', 'chars':
        text.main([*files, '--tokenizer', tokenizer, '--out', f'{tmp_path}/{tokenizer}'])
        assert whole_text(tmp_path / tokenizer) == joined


@pytest.mark.parametrize('line', [
    '{"txt": "a"}', '{"text": null}', '["text"]', '{"text": "a"', '[' * 99999, '\udce9',
    r'{"text": "\ud83d", "prompt": "\ud83d", "answer": "4"}'])
@pytest.mark.parametrize('main', [text.main, pairs.main])
def test_a_line_without_a_text_is_named_by_its_number(main, line, tmp_path, capsys):
    content = '{"text": "fine", "prompt": "q", "answer": "a"}\n\n' + line + '\n'
    (tmp_path / 'a.jsonl').write_text(content, errors='surrogateescape')
    said = fails(capsys, main, f'{tmp_path}/a.jsonl', '--out', f'{tmp_path}/d')
    assert 'a.jsonl, line 3' in said and not (tmp_path / 'd').exists()


@pytest.mark.parametrize('main', [text.main, pairs.main])
def test_a_file_without_a_document_is_too_little_text(main, tmp_path, capsys):
    tree(tmp_path, {'a.jsonl': b'\n\n'})
    assert '0 tokens' in fails(capsys, main, f'{tmp_path}/a.jsonl', '--out', f'{tmp_path}/d')


@pytest.mark.parametrize('val, split', [('0', 'val'), ('1', 'train')])
def test_a_split_without_text_is_named(val, split, tmp_path, capsys):
    (tmp_path / 'a.txt').write_text('some text ' * 30)
    words = f'{tmp_path}/a.txt', '--val', val, '--test', '0', '--out', f'{tmp_path}/d'
    assert f'0 tokens for {split}' in fails(capsys, text.main, *words)


PAIR = {'prompt': 'q', 'answer': 'a'}


@pytest.mark.parametrize('row', [PAIR | {'answer': None}, PAIR | {'prompt': True}, {'prompt': 'q'}])
def test_pairs_are_texts_or_numbers(row, tmp_path, capsys):
    (tmp_path / 'a.jsonl').write_bytes(lines_of(PAIR, row))
    words = [f'{tmp_path}/a.jsonl', '--out', f'{tmp_path}/d']
    assert 'line 2 ' in fails(capsys, pairs.main, *words)
    odd = [{'prompt': 'a\u2028b\x85', 'answer': 4}, {'prompt': 0.5, 'answer': 'c\x1dd'}] * 20
    (tmp_path / 'a.jsonl').write_bytes(lines_of(*odd, ensure_ascii=False))
    pairs.main(words)
    assert whole_text(tmp_path / 'd') == 'a\u2028b\x854\n0.5c\x1dd\n' * 20


# ---- new lines


@pytest.mark.parametrize('end', ['\r\n', '\r'])
def test_every_new_line_is_one_character(end, tmp_path, capsys, monkeypatch):
    """Also where one lies on the border of two pieces of a file, at its beginning and at its
    end."""
    lines = ['', *['seven77'] * 20, '']
    (tmp_path / 'a.txt').write_bytes(end.join(lines).encode('utf-16'))
    (tmp_path / 'b.txt').write_text('as it is\n')
    for piece in (1, 8, 9):
        monkeypatch.setattr(texts, 'PIECE', piece)
        capsys.readouterr()
        text.main([f'{tmp_path}/a.txt', f'{tmp_path}/b.txt', '--tokenizer', 'chars',
                   '--out', f'{tmp_path}/d', '--overwrite'])
        assert whole_text(tmp_path / 'd') == '\n'.join(lines) + '\nas it is\n'
        assert '1 file' in capsys.readouterr().out.replace('2 files', '')


# ---- folders


def test_links_are_followed_and_lead_round_in_no_circle(tmp_path):
    """To a parent, to itself, in one another; to a folder above all, which ends there; to a folder
    twice; to a file; to nothing."""
    tree(tmp_path, {'in/a.txt': b'aaaa ', 'in/deep/er/b.txt': b'bbbb ', 'out/c.txt': b'cccc ',
                    'out/far/d.txt': b'dddd ', 'above.txt': b'above '})
    links = {'in/up': '.', 'in/deep/er/up': '../..', 'in/self': 'self', 'in/all': '..',
             'in/one': '../out', 'in/two': '../out', 'out/far/back': '../../in',
             'in/file.txt': 'a.txt', 'in/no.txt': 'nowhere'}
    for link, target in links.items():
        (tmp_path / link).symlink_to(target)
    text.main([f'{tmp_path}/in', '--out', f'{tmp_path}/d'])
    assert sorted(whole_text(tmp_path / 'd').split()) == ['aaaa', 'bbbb', 'cccc', 'dddd']


@pytest.mark.parametrize('link, target', [
    ('train/cat/dogs', '../dog'), ('train/cat/9.jpg', '0.jpg'),
    ('val/cat/9.jpg', '../../train/cat/0.jpg')])
def test_a_picture_in_two_classes_twice_in_one_or_in_two_splits_is_refused(link, target, tmp_path,
                                                                           capsys):
    for place in 'train/cat', 'train/dog', 'val/cat', 'val/dog':
        tree(tmp_path / 'in' / place, {'0.jpg': jpeg(8, 8), '1.jpg': jpeg(8, 8)})
    (tmp_path / 'in' / link).symlink_to(target)
    said = fails(capsys, imagefolder.main, f'{tmp_path}/in', '--out', f'{tmp_path}/d',
                 '--workers', '0')
    assert link in said and not (tmp_path / 'd').exists()


def test_what_cannot_be_read_is_named(tmp_path):
    """A folder and a file without the right to read them, a link to nothing, a pipe."""
    place = tree(tmp_path / 'in', {'a.txt': b'words ' * 99, 'shut/b.txt': b'b', 'c.txt': b'c'})
    os.mkfifo(place / 'pipe.txt')
    (place / 'link.txt').symlink_to('nowhere')
    words = [sys.executable, ROOT / 'prepare/text.py', place, '--out', tmp_path / 'd']
    if os.geteuid() == 0:  # who may read everything
        if not shutil.which('setpriv'):
            pytest.skip('needs setpriv, or another user than root')
        words = ['setpriv', '--bounding-set', '-dac_override,-dac_read_search', *words]
    (place / 'c.txt').chmod(0)
    (place / 'shut').chmod(0)
    try:
        done = subprocess.run(words, capture_output=True, text=True)
    finally:
        (place / 'shut').chmod(0o700)
    assert done.returncode == 0, done.stderr
    for named in 'left out 4 ', 'c.txt', 'link.txt', 'pipe.txt':
        assert named in done.stderr
    assert '1 files' in done.stdout


@pytest.mark.parametrize('files, words, named', [
    (['a.md', 'b.md', 'stray.txt'], (), ['2 .md', '--glob']), ([], (), ['in']),
    (['a.txt'], ('--glob', '*.md'), ['1 .txt', '*.md'])])
def test_a_folder_of_other_files_asks_which(files, words, named, tmp_path, capsys):
    tree(tmp_path / 'in', dict.fromkeys([*files, '.hidden'], b'text ' * 20))
    line = fails(capsys, text.main, f'{tmp_path}/in', *words, '--out', f'{tmp_path}/d')
    assert all(name in line for name in named) and not (tmp_path / 'd').exists()


def test_who_types_a_glob_gets_what_it_matches(tmp_path, capsys):
    tree(tmp_path / 'in', {'a.md': b'text ', 'b.md': b'text ', 'c.txt': b'a stray note ' * 20})
    text.main([f'{tmp_path}/in', '--glob', '*.txt', '--out', f'{tmp_path}/d'])
    assert '2 .md' in capsys.readouterr().out
    assert whole_text(tmp_path / 'd') == 'a stray note ' * 20
