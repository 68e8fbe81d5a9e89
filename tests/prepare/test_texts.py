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
from small_files import jpeg, names, read, tree

from prepare import imagefolder, pairs, shakespeare, shakespeare_char, stdlib, text
from tasks import files as data
from tasks.tokenizer import Tokenizer


def test_stdlib_is_prepared_without_a_network(tmp_path):
    source = tree(tmp_path / 'lib', {f'pkg/m{i}.py': f'x = {i}\r\n'.encode() for i in range(40)} |
                  {'pkg/test/skipped.py': b'skip me', 'pkg/notes.txt': b'no code'})
    (source / 'pkg' / 'dangling.py').symlink_to('/nonexistent')
    stdlib.main(['--from', str(source), '--out', f'{tmp_path}/d'])
    parts = [np.load(tmp_path / 'd' / f'{s}.npy').astype(np.uint8).tobytes() for s in ('train', 'val', 'test')]
    lines = b'\n'.join(parts).split(b'\n')
    assert sorted(filter(None, lines)) == sorted(f'x = {i}'.encode() for i in range(40))
    assert [re.findall(rb'\d+', part) for part in parts[1:]] == [[b'0', b'2', b'20', b'26', b'9'], [b'18', b'4', b'8']]


GOOD = 'a\r\nb\u00e9\u4e16\U0001f642\ufffd\ufeff \n\n' * 3
LONG = b'a line\n' * 30
CONTENTS = [GOOD.encode(), b'\xef\xbb\xbf' + GOOD.encode(), LONG + b'\xef\xbb', b'',
            LONG + b'\xe4\xb8 \xff\xfe\xf0\x9f\x99' * 5, b'\xef\xbb\xbf\xef\xbb\xbf', b'\xef\xbf\xbd' + LONG + b'\xef\xbf',
            LONG + b'end\xf0\x9f']


@pytest.mark.parametrize('tokenizer', ['bytes', 'chars'])
def test_a_dataset_is_the_text_of_its_files(tokenizer, tmp_path, capsys):
    """Bytes that are not UTF-8, characters and marks that are cut in the middle, new lines of
    Windows, a byte order mark at the beginning and one that is not. Each file is read once. No file
    fits into the share that is held out."""
    tree(tmp_path / 'in', {f'{i}/a.txt': content for i, content in enumerate(CONTENTS)} | {'a.md': b'other'})
    words = str(tmp_path / 'in'), f'{tmp_path}/in/0/a.txt', '--tokenizer', tokenizer, '--val', '0.01', '--test', '0'
    text.main([*words, '--out', f'{tmp_path}/d'])
    decoded = [content.decode('utf-8-sig', errors='replace') for content in CONTENTS]
    whole = '\n'.join(decoded).replace('\r\n', '\n')
    counted = re.findall(r'a\.txt: (\d+) places', capsys.readouterr().out)
    assert sum(map(int, counted)) == whole.count('\ufffd') > 15 and len(counted) == 6
    meta, cut = data.read_meta(tmp_path / 'd'), int(len(whole) * 0.99)
    for split, part in (('train', whole[:cut]), ('val', whole[cut:])):
        ids = np.load(tmp_path / 'd' / f'{split}.npy')
        assert ids.tolist() == Tokenizer(**meta['tokenizer']).encode(part)
        assert meta['splits'][split] == {'tokens': len(ids), 'dtype': 'uint16', 'bytes': len(part.encode())}


def test_parts_of_shakespeare_the_published_file(tmp_path, capsys, monkeypatch):
    """Train, test and val lie in this order in the text, each tokenized by itself."""
    whole = 'seven wonders of the ancient world ' * 20
    words = '--from', str(tree(tmp_path, {'input.txt': whole.encode()})), '--out', f'{tmp_path}/d'
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
    return {split: np.load(out / f'{split}.npy').astype(np.uint8).tobytes().decode() for split in data.read_meta(out)['splits']}


def stories(n):
    """n files of one length, each of a word of its own."""
    return {f'{i:03}.txt': (f'story{i:03} ' * 10).encode() for i in range(n)}


@pytest.mark.parametrize('n, words, counts', [
    (100, (), [85, 10, 5]), (20, (), [17, 2, 1]), (3, ('--val', '0.34', '--test', '0.34'), [1, 1, 1]),
    (10, ('--test', '0'), [9, 1])])
def test_whole_files_are_held_out_where_there_are_enough(n, words, counts, tmp_path):
    tree(tmp_path / 'in', stories(n))
    text.main([f'{tmp_path}/in', '--out', f'{tmp_path}/d', *words])
    splits = {split: re.findall(r'story\d+', part) for split, part in splits_of(tmp_path / 'd').items()}
    assert list(splits) == ['train', 'val', 'test'][:len(counts)]
    assert [len({*held}) for held in splits.values()] == counts and all(len(held) % 10 == 0 for held in splits.values())
    assert sorted(sum(splits.values(), [])) == sorted([f'story{i:03}' for i in range(n)] * 10)
    assert all(held == sorted(held) for held in splits.values())  # in the order of their names


def test_which_files_are_held_out_depends_on_their_names_alone(tmp_path):
    """Not on the place of the folder, on files that are added to train, or on the ends of lines."""
    files = stories(40)
    held = []
    for name, given in (('a', files), ('b/c', {k: v.replace(b' ', b'\r\n') for k, v in files.items()})):
        tree(tmp_path / name, given)
        text.main([f'{tmp_path}/{name}', '--out', f'{tmp_path}/d', '--overwrite'])
        held.append({split: re.findall(r'story\d+', part) for split, part in splits_of(tmp_path / 'd').items()})
    by_hash = sorted(files, key=lambda name: hashlib.sha256(name.encode()).hexdigest())  # as the script's page says
    assert held[0] == held[1] and {f'story{name[:3]}' for name in by_hash[:4]} == {*held[0]['val']}
    assert {f'story{name[:3]}' for name in by_hash[4:6]} == {*held[0]['test']}


@pytest.mark.parametrize('files', [stories(1), stories(3), {'book.txt': b'chapter ' * 999, 'a.txt': b'a note', 'b.txt': b'b'}])
def test_of_few_files_the_end_is_held_out(files, tmp_path):
    tree(tmp_path / 'in', files)
    text.main([f'{tmp_path}/in', '--out', f'{tmp_path}/d'])
    splits, whole = splits_of(tmp_path / 'd'), b'\n'.join(files[name] for name in sorted(files)).decode()
    assert ''.join(splits.values()) == whole and list(splits) == ['train', 'val', 'test']
    assert [len(part) / len(whole) for part in splits.values()] == pytest.approx([0.85, 0.1, 0.05], abs=0.02)


# ---- documents in lines of JSON


def lines_of(*rows, **options):
    return ''.join(json.dumps(row, **options) + '\n' for row in rows).encode()


def test_each_line_of_json_is_a_document(tmp_path):
    """U+2028, U+0085 and a carriage return end no line of the file; in a text the last one becomes a new line."""
    texts = ['first\nof two', 'a\u2028b\x85c\x0bd', '', 'x\r\ny\rz', 'last ' * 9]
    files = {'a.JSONL': lines_of(*({'text': text, 'id': 1} for text in texts[:3]), ensure_ascii=False) + b'\n  \n',
             'b.jsonl': b'\xef\xbb\xbf' + lines_of(*({'text': text} for text in texts[3:])).replace(b'\n', b'\r\n')}
    tree(tmp_path / 'in', files | {'c.txt': b'{"text": "of another kind"}'})
    for tokenizer in 'bytes', 'chars':
        text.main([f'{tmp_path}/in/{name}' for name in ('a.JSONL', 'b.jsonl', 'c.txt')] +
                  ['--tokenizer', tokenizer, '--out', f'{tmp_path}/{tokenizer}'])
        meta = data.read_meta(tmp_path / tokenizer)
        ids = np.concatenate([np.load(tmp_path / tokenizer / f'{split}.npy') for split in meta['splits']])
        joined = '\n'.join([*texts[:3], 'x\ny\nz', texts[4], '{"text": "of another kind"}'])
        assert Tokenizer(**meta['tokenizer']).decode(ids.tolist()) == joined


@pytest.mark.parametrize('line', ['{"txt": "a"}', '{"text": null}', '{"text": 3}', '{"text": ["a"]}', 'text', '["text"]', '3',
                                  '{"text": "a"', '[' * 99999, '{"text":' * 99999, '\udce9',
                                  r'{"text": "\ud83d", "prompt": "\ud83d", "answer": "4"}'])
@pytest.mark.parametrize('tokenizer', ['bytes', 'chars'])
@pytest.mark.parametrize('main', [text.main, pairs.main])
def test_a_line_without_a_text_is_named_by_its_number(main, tokenizer, line, tmp_path, capsys):
    content = '{"text": "fine", "prompt": "q", "answer": "a"}\n\n' + line + '\n'
    (tmp_path / 'a.jsonl').write_text(content, errors='surrogateescape')
    words = f'{tmp_path}/a.jsonl', '--tokenizer', tokenizer, '--out', f'{tmp_path}/d'
    assert 'a.jsonl, line 3' in fails(capsys, main, *words)
    assert not (tmp_path / 'd').exists()


def test_files_without_a_document_are_too_little_text(tmp_path, capsys):
    tree(tmp_path, {'a.jsonl': b'', 'b.jsonl': b'\n\n'})
    assert '0 tokens' in fails(capsys, text.main, f'{tmp_path}/a.jsonl', f'{tmp_path}/b.jsonl', '--out', f'{tmp_path}/d')
    fails(capsys, pairs.main, str(tmp_path), '--out', f'{tmp_path}/d')


@pytest.mark.parametrize('val, split', [('0', 'val'), ('1', 'train')])
def test_a_split_without_text_is_named(val, split, tmp_path, capsys):
    (tmp_path / 'a.txt').write_text('some text ' * 30)
    words = f'{tmp_path}/a.txt', '--val', val, '--test', '0', '--out', f'{tmp_path}/d'
    assert f'0 tokens for {split}' in fails(capsys, text.main, *words)


PAIR = {'prompt': 'q', 'answer': 'a'}


@pytest.mark.parametrize('row', [PAIR | {'answer': None}, PAIR | {'prompt': True}, PAIR | {'answer': ['x', {'y': 1}]},
                                 {'prompt': 'q'}, ['prompt', 'answer']])
def test_pairs_are_texts_or_numbers(row, tmp_path, capsys):
    for rows in [row], [PAIR, row]:
        (tmp_path / 'a.jsonl').write_bytes(lines_of(*rows))
        assert f'line {len(rows)} ' in fails(capsys, pairs.main, f'{tmp_path}/a.jsonl', '--out', f'{tmp_path}/d')
    odd = [{'prompt': 'a\u2028b\x85', 'answer': 4}, {'prompt': 0.5, 'answer': 'c\x1dd'}] * 20
    (tmp_path / 'a.jsonl').write_bytes(lines_of(*odd, ensure_ascii=False))
    pairs.main([f'{tmp_path}/a.jsonl', '--out', f'{tmp_path}/d'])
    assert ''.join(splits_of(tmp_path / 'd').values()) == 'a\u2028b\x854\n0.5c\x1dd\n' * 20


# ---- new lines


@pytest.mark.parametrize('end', ['\r\n', '\r'])
@pytest.mark.parametrize('encoding', ['utf-8', 'utf-16'])
def test_every_new_line_is_one_character(end, encoding, tmp_path, capsys):
    """Also where one lies on the border of two pieces of a file, at its beginning and at its end."""
    for shift in range(4):
        lines = ['', 'x' * shift, *['seven77'] * 20000, '']
        (tmp_path / 'a.txt').write_bytes(end.join(lines).encode(encoding))
        (tmp_path / 'b.txt').write_text('as it is\n')
        capsys.readouterr()
        text.main([f'{tmp_path}/a.txt', f'{tmp_path}/b.txt', '--tokenizer', 'chars', '--out', f'{tmp_path}/d', '--overwrite'])
        meta = data.read_meta(tmp_path / 'd')
        ids = np.concatenate([np.load(tmp_path / 'd' / f'{split}.npy') for split in meta['splits']])
        assert Tokenizer(**meta['tokenizer']).decode(ids.tolist()) == '\n'.join(lines) + '\nas it is\n'
        assert '1 file' in capsys.readouterr().out.replace('2 files', '')


# ---- folders


def test_links_are_followed_and_lead_round_in_no_circle(tmp_path):
    """To a parent, to itself, in one another; to a folder above all, which ends there; to a folder twice; to a file; to nothing."""
    place = tree(tmp_path, {'in/a.txt': b'aaaa ', 'in/deep/er/b.txt': b'bbbb ', 'out/c.txt': b'cccc ', 'out/far/d.txt': b'dddd ',
                            'above.txt': b'above '})
    for link, target in {'in/up': '.', 'in/deep/er/up': '../..', 'in/self': 'self', 'in/all': '..', 'in/one': '../out',
                         'in/two': '../out', 'out/far/back': '../../in', 'in/file.txt': 'a.txt', 'in/no.txt': 'nowhere'}.items():
        (place / link).symlink_to(target)
    text.main([f'{place}/in', '--out', f'{tmp_path}/d'])
    whole = ''.join(splits_of(tmp_path / 'd').values())
    assert sorted(re.findall(r'\w+', whole)) == ['aaaa', 'bbbb', 'cccc', 'dddd']


def test_pictures_behind_links_are_taken_once(tmp_path):
    place = tree(tmp_path / 'in', {f'{c}/{i}.jpg': jpeg(8, 8) for c in ('cat', 'dog') for i in range(3)})
    tree(tmp_path / 'more', {f'{i}.jpg': jpeg(8, 8) for i in 'xy'})
    for link, target in {'cat/self': '.', 'cat/up': '..', 'dog/one': '../../more', 'dog/two': '../../more'}.items():
        (place / link).symlink_to(target)
    imagefolder.main([str(place), '--out', f'{tmp_path}/d', '--workers', '0'])
    held = {split: names(pictures) for split, pictures in read(tmp_path / 'd')[1].items()}
    assert sorted(sum(held.values(), [])) == [
        'cat/0.jpg', 'cat/1.jpg', 'cat/2.jpg', 'dog/0.jpg', 'dog/1.jpg', 'dog/2.jpg', 'dog/one/x.jpg', 'dog/one/y.jpg']


@pytest.mark.parametrize('link, target', [
    ('cat/dogs', '../dog'), ('cat/9.jpg', '../dog/0.jpg'), ('cat/9.jpg', '0.jpg'), ('puma', 'cat')])
@pytest.mark.parametrize('split', ['', 'train'])
def test_a_picture_in_two_classes_or_twice_in_one_is_refused(split, link, target, tmp_path, capsys):
    place = tree(tmp_path / 'in' / split, {f'{c}/{i}.jpg': jpeg(8, 8) for c in ('cat', 'dog') for i in range(3)})
    (place / link).symlink_to(target)
    assert link in fails(capsys, imagefolder.main, str(tmp_path / 'in'), '--out', f'{tmp_path}/d', '--workers', '0')
    assert not (tmp_path / 'd').exists()


def test_a_picture_in_training_and_validation_is_refused(tmp_path, capsys):
    place = tree(tmp_path / 'in', {f'{split}/cat/{split}.jpg': jpeg(8, 8) for split in ('train', 'val')})
    (place / 'val' / 'cat' / 'same.jpg').symlink_to(place / 'train' / 'cat' / 'train.jpg')
    assert 'same.jpg' in fails(capsys, imagefolder.main, str(place), '--out', f'{tmp_path}/d', '--workers', '0')


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
    assert all(name in done.stderr for name in ('left out 4 ', 'c.txt', 'link.txt', 'pipe.txt')) and '1 files' in done.stdout


@pytest.mark.parametrize('files, words, named', [
    ({'a.md': b'text ', 'b.md': b'text ', 'stray.txt': b'a stray note'}, (), ['2 .md', '--glob']),
    ({'a.md': b'text ', 'b.rst': b'text '}, (), ['1 .md', '1 .rst', '--glob']), ({}, (), ['in']), (None, (), ['in']),
    ({'a.txt': b'text '}, ('--glob', '*.md'), ['1 .txt', '*.md'])])
def test_a_folder_of_other_files_asks_which(files, words, named, tmp_path, capsys):
    if files is not None:
        tree(tmp_path, {f'in/{name}': content * 20 for name, content in files.items()} | {'in/.hidden': b''})
    line = fails(capsys, text.main, f'{tmp_path}/in', *words, '--out', f'{tmp_path}/d')
    assert all(name in line for name in named) and not (tmp_path / 'd').exists()


def test_a_folder_may_be_typed_by_way_of_its_neighbour(tmp_path):
    tree(tmp_path, {'in/a.txt': b'text ' * 20, 'other/b.txt': b''})
    text.main([f'{tmp_path}/other/../in', '--out', f'{tmp_path}/d'])
    assert ''.join(splits_of(tmp_path / 'd').values()) == 'text ' * 20


def test_who_types_a_glob_gets_what_it_matches(tmp_path, capsys):
    tree(tmp_path / 'in', {'a.md': b'text ', 'b.md': b'text ', 'stray.txt': b'a stray note ' * 20, 'Makefile': b''})
    text.main([f'{tmp_path}/in', '--glob', '*.txt', '--out', f'{tmp_path}/d'])
    assert '2 .md' in capsys.readouterr().out and ''.join(splits_of(tmp_path / 'd').values()) == 'a stray note ' * 20
