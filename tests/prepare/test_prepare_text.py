"""prepare/stdlib.py, text.py and the Shakespeare scripts, as a user starts them."""
import subprocess
import sys

import numpy as np
import pytest
from helpers import ROOT, fails, run

from tasks import files as data
from tasks.tokenizer import Tokenizer
from prepare import text
from prepare.lib import texts


def test_stdlib_is_prepared_without_a_network(tmp_path):
    source = tmp_path / 'lib'
    (source / 'pkg' / 'test').mkdir(parents=True)
    for i in range(40):
        (source / 'pkg' / f'm{i}.py').write_text(f'x = {i}\n')
    (source / 'pkg' / 'dangling.py').symlink_to('/nonexistent')
    (source / 'pkg' / 'test' / 'skipped.py').write_text('skip me')
    done = run('prepare/stdlib.py', '--from', str(source), '--out', str(tmp_path / 'd'))
    assert done.returncode == 0, done.stderr
    parts = [bytes(np.load(tmp_path / 'd' / f'{s}.npy').astype(np.uint8)) for s in ('train', 'val', 'test')]
    lines = [line for part in parts for line in part.split(b'\n') if line]
    assert sorted(lines) == sorted(f'x = {i}'.encode() for i in range(40))
    assert parts[0].count(b'x = ') > parts[1].count(b'x = ') > 0 < parts[2].count(b'x = ')
    again = run('prepare/stdlib.py', '--from', str(source), '--out', str(tmp_path / 'd'))
    assert again.returncode == 2 and '--overwrite' in again.stderr
    assert run('prepare/stdlib.py', '--from', str(source), '--out', str(tmp_path / 'd'), '--overwrite').returncode == 0


def test_only_a_prepared_dataset_is_ever_replaced(tmp_path):
    (tmp_path / 'precious').mkdir()
    (tmp_path / 'precious' / 'thesis.txt').write_text('years of work')
    (tmp_path / 'empty').mkdir()
    (tmp_path / 'a.txt').write_text('some text ' * 50)
    source = str(tmp_path / 'a.txt')
    for out, code in (('precious', 2), ('a.txt', 2), ('empty', 0), ('empty', 0), ('new/deep', 0)):
        done = run('prepare/text.py', source, '--out', str(tmp_path / out), '--overwrite')
        assert done.returncode == code and 'Traceback' not in done.stderr, done.stderr
    assert (tmp_path / 'precious' / 'thesis.txt').exists()
    assert sorted(p.name for p in (tmp_path / 'empty').iterdir()) == ['meta.json', 'train.npy', 'val.npy']
    (tmp_path / 'b.txt').write_text('')
    done = run('prepare/text.py', str(tmp_path / 'b.txt'), '--out', str(tmp_path / 'b'))
    assert done.returncode == 2 and 'too little text' in done.stderr and not (tmp_path / 'b').exists()


def test_own_text_with_every_tokenizer(tmp_path):
    (tmp_path / 'notes').mkdir()
    (tmp_path / 'notes' / 'b.txt').write_text('second ü\n' * 50, encoding='utf-8')
    (tmp_path / 'notes' / 'a.txt').write_bytes(b'first \xff\n' * 50)
    for tokenizer in ('bytes', 'chars'):
        out = tmp_path / tokenizer
        words = str(tmp_path / 'notes'), '--tokenizer', tokenizer, '--out', str(out), '--val', '0.2'
        done = run('prepare/text.py', *words)
        assert done.returncode == 0, done.stderr
        assert '50 places' in done.stdout
        meta = data.read_meta(out)
        decode = Tokenizer(**meta['tokenizer']).decode
        found = ''.join(decode(np.load(out / f'{s}.npy').tolist()) for s in ('train', 'val'))
        assert found == 'first \ufffd\n' * 50 + '\n' + 'second ü\n' * 50
        assert meta['splits']['val']['bytes'] + meta['splits']['train']['bytes'] == len(found.encode())
    notes = tmp_path / 'notes'
    again = [str(notes), str(notes / 'a.txt'), '--out', str(tmp_path / 'again'), '--val', '0.2']
    assert '2 files' in run('prepare/text.py', *again).stdout  # each file once
    assert (tmp_path / 'again' / 'train.npy').read_bytes() == (tmp_path / 'bytes' / 'train.npy').read_bytes()
    for words, message in ((['nowhere'], 'no such file'), ([str(tmp_path / 'notes'), '--glob', '*.md'], '--glob'),
                           ([str(tmp_path), '--val', '2'], '--val'), ([str(tmp_path), '--vall', '0.2'], '--vall')):
        done = run('prepare/text.py', *words, '--out', str(tmp_path / 'x'))
        assert done.returncode == 2 and message in done.stderr and not (tmp_path / 'x').exists()
        assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize('piece', [1, 2, 3, 7, 64, 10 ** 6])
@pytest.mark.parametrize('tokenizer', ['bytes', 'chars'])
def test_files_read_in_pieces_are_the_files(piece, tokenizer, tmp_path, monkeypatch, capsys):
    """Bytes that are not UTF-8, characters and marks that are cut in the middle, line ends as they
    are, a byte order mark at the beginning and one that is not."""
    monkeypatch.setattr(texts, 'PIECE', piece)
    good = 'a\r\nb\u00e9\u4e16\U0001f642\ufffd\ufeff \n\n' * 3
    contents = [good.encode(), b'\xef\xbb\xbf' + good.encode(), b'\xef\xbb', b'', b'\xe4\xb8 \xff\xfe\xf0\x9f\x99' * 5,
                b'\xef\xbb\xbf\xef\xbb\xbf', b'\xef\xbf\xbd\xef\xbf', b'end\xf0\x9f']
    for i, content in enumerate(contents):
        (tmp_path / f'{i}.txt').write_bytes(content)
    text.main([str(tmp_path), '--out', str(tmp_path / 'd'), '--tokenizer', tokenizer, '--val', '0.3'])
    whole = '\n'.join(content.decode('utf-8-sig', errors='replace') for content in contents)
    replaced = sum(content.decode('utf-8-sig', errors='replace').count('\ufffd') - content.count('\ufffd'.encode())
                   for content in contents)
    assert f'{replaced} places' in capsys.readouterr().out and replaced > 15
    meta, cut = data.read_meta(tmp_path / 'd'), int(len(whole) * 0.7)
    for split, part in (('train', whole[:cut]), ('val', whole[cut:])):
        ids = np.load(tmp_path / 'd' / f'{split}.npy')
        assert ids.tolist() == Tokenizer(**meta['tokenizer']).encode(part)
        assert meta['splits'][split] == {'tokens': len(ids), 'dtype': 'uint16', 'bytes': len(part.encode())}


def test_all_parts_are_tokenized_by_themselves(tmp_path, monkeypatch):
    """With a tokenizer that must see all of a part: it gives the lengths of its words."""
    class Words:
        spec, vocab_size = {'name': 'gpt2'}, 50257

    def lengths(tokenizer, pieces):
        words = ''.join(pieces).split(' ')
        yield [len(word) for word in words], len(' '.join(words).encode())
    monkeypatch.setattr(texts, 'encode_pieces', lengths)
    monkeypatch.setattr(texts, 'PIECE', 10)
    monkeypatch.setattr(texts, 'Tokenizer', lambda name: Words())
    (tmp_path / 'a.txt').write_text('seven wonders of the ancient world ' * 20)
    texts.tokenize_and_save([tmp_path / 'a.txt'], 'gpt2', tmp_path / 'd', {'test': 0.01, 'val': 0.24})
    whole = (tmp_path / 'a.txt').read_text()
    for split, part in (('train', whole[:525]), ('test', whole[525:532]), ('val', whole[532:])):
        assert np.load(tmp_path / 'd' / f'{split}.npy').tolist() == [len(word) for word in part.split(' ')]


@pytest.mark.slow
@pytest.mark.parametrize('tokenizer', ['bytes', 'chars'])
def test_memory_does_not_grow_with_the_text(tokenizer, tmp_path):
    """A file ten times as large needs no more memory."""
    peaks, line = [], 'All work and no play makes naïve Jack a dull boy.\n'
    code = ('import resource, sys; from prepare import text; text.main(sys.argv[1:]); '
            'print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)')
    for size in (3, 30):
        with open(tmp_path / 'a.txt', 'w', encoding='utf-8') as f:
            for _ in range(size):
                f.write(line * (10 ** 6 // len(line)))
        words = str(tmp_path / 'a.txt'), '--overwrite', '--out', str(tmp_path / 'd'), '--tokenizer', tokenizer
        command = [sys.executable, '-c', code, *words]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        peaks.append(int(done.stdout.split()[-1]))
    assert peaks[1] < peaks[0] + 8000  # KB; the text alone is 30 MB


def test_a_pattern_that_is_none(tmp_path, capsys):
    words = str(tmp_path), '--glob', '/tmp/*.txt', '--out', f'{tmp_path}/d'
    assert 'give one such as *.md' in fails(capsys, text.main, *words)


def test_shakespeare_refuses_another_file(tmp_path):
    (tmp_path / 'input.txt').write_text('To be')
    for script in ('shakespeare', 'shakespeare_char'):
        done = run(f'prepare/{script}.py', '--from', str(tmp_path / 'input.txt'), '--out', str(tmp_path / 'd'))
        assert done.returncode == 2 and 'is not the published file' in done.stderr and not (tmp_path / 'd').exists()
