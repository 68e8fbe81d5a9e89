"""prepare/stdlib.py, text.py and the functions that they share."""
import hashlib
import re

import numpy as np
import pytest
from helpers import fails
from small_files import tree

from prepare import shakespeare, shakespeare_char, stdlib, text
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
    """Bytes that are not UTF-8, characters and marks that are cut in the middle, line ends as they
    are, a byte order mark at the beginning and one that is not. Each file is read once."""
    tree(tmp_path / 'in', {f'{i}/a.txt': content for i, content in enumerate(CONTENTS)} | {'a.md': b'other'})
    words = str(tmp_path / 'in'), f'{tmp_path}/in/0/a.txt', '--tokenizer', tokenizer, '--val', '0.3'
    text.main([*words, '--out', f'{tmp_path}/d'])
    decoded = [content.decode('utf-8-sig', errors='replace') for content in CONTENTS]
    whole = '\n'.join(decoded)
    replaced = whole.count('\ufffd') - sum(content.count('\ufffd'.encode()) for content in CONTENTS)
    counted = re.findall(r'a\.txt: (\d+) places', capsys.readouterr().out)
    assert sum(map(int, counted)) == replaced > 15 and len(counted) == 4
    meta, cut = data.read_meta(tmp_path / 'd'), int(len(whole) * 0.7)
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
