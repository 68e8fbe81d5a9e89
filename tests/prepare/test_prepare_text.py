"""prepare/stdlib.py, text.py and the Shakespeare scripts, as a user starts them."""
import numpy as np
from helpers import run

from tasks import files as data
from tasks.tokenizer import Tokenizer


def test_stdlib_is_prepared_without_a_network(tmp_path):
    source = tmp_path / 'lib'
    (source / 'pkg' / 'test').mkdir(parents=True)
    for i in range(40):
        (source / 'pkg' / f'm{i}.py').write_text(f'x = {i}\n')
    (source / 'pkg' / 'dangling.py').symlink_to('/nonexistent')
    (source / 'pkg' / 'test' / 'skipped.py').write_text('skip me')
    done = run('prepare/stdlib.py', '--from', str(source), '--out', str(tmp_path / 'd'))
    assert done.returncode == 0, done.stderr
    both = b''.join(bytes(np.load(tmp_path / 'd' / f'{s}.npy').astype(np.uint8)) for s in ('train', 'val'))
    assert both.count(b'x = ') == 40 and b'skip' not in both
    assert len(np.load(tmp_path / 'd' / 'val.npy')) > 0
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
        text = ''.join(decode(np.load(out / f'{s}.npy').tolist()) for s in ('train', 'val'))
        assert text == 'first \ufffd\n' * 50 + '\n' + 'second ü\n' * 50
        assert meta['splits']['val']['bytes'] + meta['splits']['train']['bytes'] == len(text.encode())
    for words, message in ((['nowhere'], 'no such file'), ([str(tmp_path / 'notes'), '--glob', '*.md'], '--glob'),
                           ([str(tmp_path), '--val', '2'], '--val'), ([str(tmp_path), '--vall', '0.2'], '--vall')):
        done = run('prepare/text.py', *words, '--out', str(tmp_path / 'x'))
        assert done.returncode == 2 and message in done.stderr and not (tmp_path / 'x').exists()
        assert len(done.stderr.splitlines()) == 1


def test_shakespeare_refuses_another_file(tmp_path):
    (tmp_path / 'input.txt').write_text('To be')
    for script in ('shakespeare', 'shakespeare_char'):
        done = run(f'prepare/{script}.py', '--from', str(tmp_path / 'input.txt'), '--out', str(tmp_path / 'd'))
        assert done.returncode == 2 and 'not the expected file' in done.stderr and not (tmp_path / 'd').exists()
