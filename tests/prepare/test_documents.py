"""Documents of one's own text: where they end, where a text that is written ends, and texts larger
than memory."""
import io
import itertools
import re
import sys
import tracemalloc

import numpy as np
import pytest
import tiktoken
import torch
from helpers import BYTES, ROOT, TEXT, fails, save_run, text_network
from small_files import tree
from tiktoken_ext.openai_public import r50k_pat_str

import sample
from analyze import main as analyze
from engine.mistakes import Mistake
from lib import texts
from prepare import text
from tasks import checksums, files
from tasks.prompts import until
from tasks.tokenizer import Tokenizer

END = '<|endoftext|>'


@pytest.fixture
def gpt2(monkeypatch):
    """A tokenizer that takes the place of GPT-2's and needs no download. It has GPT-2's words and
    other merges."""
    pieces = [bytes([i]) for i in range(256)]
    merges = {TEXT[i:i + n].encode() for n in (2, 3, 4) for i in range(2000)}
    pieces += sorted(merges - set(pieces))
    pieces += [b'\n\n', b'  ', b'!!', b'ab', b' \xf0', b'!\x1c']
    ranks = {piece: i for i, piece in enumerate(pieces)}
    small = tiktoken.Encoding('gpt2', pat_str=r50k_pat_str, mergeable_ranks=ranks,
                              special_tokens={END: len(ranks)})
    monkeypatch.setattr(tiktoken, 'get_encoding', lambda name: small)
    return small


def with_new_lines(text):
    return '\n'.join(re.split('\r\n|\r|\n', text))


def prepared(out, *words):
    """({split: ids}, meta.json) of what prepare/text.py makes."""
    text.main([*map(str, words), '--out', str(out), '--overwrite'])
    meta = files.read_meta(out)
    checksums.verify(out)
    return {split: np.load(out / f'{split}.npy').tolist() for split in meta['splits']}, meta


# ---- where a document ends


def test_every_end_is_one_token_and_its_neighbours_are_what_they_are_alone(gpt2):
    tokenizer = Tokenizer('gpt2')
    end = gpt2.eot_token
    first, second = gpt2.encode_ordinary('a token'), gpt2.encode_ordinary('\n the layer ')
    text = f'a token{END}\n the layer {END}{END}'
    assert tokenizer.encode(text) == [*first, end, *second, end, end]
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert end not in tokenizer.encode('<|endoftext |>')


def test_documents_end_and_the_cut_is_the_same_for_every_tokenizer(gpt2, tmp_path):
    """Files are not torn, the end between two of them is one character and one byte."""
    documents = ['A naïve token', '', 'in a subspace.\n', TEXT[:500]]
    tree(tmp_path / 'in', {f'{i}.txt': document.encode() for i, document in enumerate(documents)})
    joined = '\n'.join(documents)
    cut = int(len(joined) * 0.6)
    n_last = cut - len(joined) + 500
    for name in 'bytes', 'chars', 'gpt2':
        ids, meta = prepared(tmp_path / name, tmp_path / 'in', '--tokenizer', name,
                             '--val', '0.4', '--test', '0')
        decoded = Tokenizer(**meta['tokenizer']).decode
        train = joined[:cut]
        if name == 'gpt2':
            train = END.join([*documents[:3], documents[3][:n_last]])
        assert decoded(ids['train']) == train and decoded(ids['val']) == joined[cut:]
        assert meta['splits']['train']['bytes'] == len(joined[:cut].encode())
        assert meta['splits']['val']['bytes'] == len(joined[cut:].encode())


@pytest.mark.parametrize('share, n_train', [('0.68', 0), ('0.65', 1)])
def test_an_end_at_the_cut_belongs_to_one_side(share, n_train, gpt2, tmp_path):
    """The ends are the characters 9 and 19 of 29; the cut is 9 or 10."""
    (tmp_path / 'in.jsonl').write_text('{"text": "text text"}\n' * 3)
    ids, _ = prepared(tmp_path / 'd', tmp_path / 'in.jsonl', '--tokenizer', 'gpt2',
                      '--val', share, '--test', '0')
    count = [ids[split].count(gpt2.eot_token) for split in ('train', 'val')]
    assert count == [n_train, 2 - n_train]


# ---- texts larger than memory


# \x1c is white space for Python alone, \x85 and the rarer spaces are for both
ODD = [f'a{END}b {END} c', ' ' * 900 + 'x', '\n' * 50 + '\t\r\n \r x',
       '🙂 🙂🏽🙂' * 9, "I'll don't 're 's'", '! \x1c!\x1c !\x1d',
       'a\x85b\u2003 c\xa0 d\u3000', '日本語 日本' * 50, END * 3, 'ab' * 200,
       '<|endof text|>', '12 345,6 7', 'e\u0301 \u200b ', '   ']


@pytest.mark.parametrize('piece', [1, 5, 64])
def test_the_tokens_of_pieces_are_those_of_the_whole(piece, gpt2, tmp_path, monkeypatch):
    monkeypatch.setattr(texts, 'PIECE', piece, raising=False)
    rng = np.random.default_rng(piece)
    page = (ROOT / 'README.md').read_text(encoding='utf-8')[:4000]
    drawn = rng.choice(list(" \n!<|a'é🙂"), 1500)
    whole = page + ''.join(rng.permutation(ODD * 4)) + ''.join(drawn)
    (tmp_path / 'a.txt').write_text(whole, encoding='utf-8', newline='')
    ids, meta = prepared(tmp_path / 'd', tmp_path / 'a.txt', '--tokenizer', 'gpt2', '--test', '0')
    whole = with_new_lines(whole)
    cut = int(len(whole) * 0.9)
    for split, part in (('train', whole[:cut]), ('val', whole[cut:])):
        assert ids[split] == gpt2.encode(part, allowed_special='all')
        assert meta['splits'][split]['bytes'] == len(part.encode())
    assert ids['train'].count(gpt2.eot_token) == whole[:cut].count(END) >= 20


@pytest.mark.parametrize('encoding', ['utf-8', 'utf-8-sig', 'utf-16'])
@pytest.mark.parametrize('piece', [1, 4, 50])
def test_a_file_read_in_pieces_is_the_file_and_odd_places_are_counted_alike(
        encoding, piece, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(texts, 'PIECE', piece, raising=False)
    rng = np.random.default_rng(0)
    good = ('naïve 日本 🙂\ufffd\ufeff.\r\n' * 20).encode(encoding)
    contents = [good, good[:-1], good[:-2], good[:2], good[:3], good[:1], b'']
    for _ in range(20):
        damaged = bytearray(good * 2)
        for place in rng.integers(4, len(damaged), 5):
            damaged[place] = rng.integers(256)
        contents.append(bytes(damaged))
    path = tmp_path / 'a.txt'
    for content in contents:
        path.write_bytes(content)
        outcomes = []
        for read in (lambda: texts.decode(content, path), lambda: texts.characters_of(path)):
            try:
                result = read()
            except Mistake as e:
                result = str(e)
            outcomes.append((result, capsys.readouterr().out))
        (whole, printed), (counted, printed_in_pieces) = outcomes
        assert printed == printed_in_pieces
        if isinstance(counted, str):
            assert whole == counted  # the same refusal
        else:
            lines = with_new_lines(whole)
            assert counted == (len(lines) + 1, {*lines}, '\r' in whole)
            assert ''.join(texts.read_pieces(path)) == whole


@pytest.mark.slow
def test_memory_does_not_grow_with_the_text(gpt2, tmp_path):
    (tmp_path / 'a.txt').write_text(TEXT * 80, encoding='utf-8')
    size = (tmp_path / 'a.txt').stat().st_size
    for tokenizer in 'bytes', 'chars', 'gpt2':
        tracemalloc.start()
        try:
            text.main([f'{tmp_path}/a.txt', '--tokenizer', tokenizer,
                       '--out', f'{tmp_path}/{tokenizer}'])
            most = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert most < size / 2, tokenizer


# ---- where a text ends that is written


@pytest.mark.parametrize('stop', ['', 'a', 'aab', 'abab'])
def test_a_text_is_written_up_to_its_stop_and_as_early_as_can_be(stop):
    """Whatever pieces it comes in; a beginning of the stop that goes on otherwise is written."""
    rng = np.random.default_rng(0)
    for _ in range(100):
        drawn = ''.join(rng.choice(list('aab '), 12))
        places = sorted(rng.integers(0, 13, 5))
        pieces = [drawn[i:j] for i, j in itertools.pairwise([0, *places, 12])]
        want = drawn.split(stop)[0] if stop else drawn
        seen = written = ''

        def come(pieces=pieces):
            nonlocal seen
            for piece in pieces:
                assert seen.startswith(written) and len(seen) - len(written) < max(len(stop), 1)
                seen += piece
                yield piece
        for piece in until(stop, come()):
            written += piece
        assert written == want


@pytest.fixture(scope='module')
def bytes_run(tmp_path_factory):
    model = text_network('aot', vocab_size=256)
    return save_run(tmp_path_factory.mktemp('run') / 'a', model, BYTES)


@pytest.fixture
def written(capsys, monkeypatch):
    """written(run, ids, *words): what sample.py prints after the prompt `x` if a network draws
    these tokens."""
    def written(run, ids, *words):
        drawn = iter(ids)
        monkeypatch.setattr('weights.generate.pick', lambda *a: torch.tensor([[next(drawn)]]))
        capsys.readouterr()
        sample.main([f'--ckpt={run}', '--start=x', f'--max_new_tokens={len(ids)}', *words])
        return capsys.readouterr().out
    return written


def test_a_stop_may_be_one_token_or_several_and_the_end_of_a_document(gpt2, tmp_path, written):
    model = text_network('aot', vocab_size=gpt2.n_vocab)
    run = save_run(tmp_path / 'a', model, BYTES | {'tokenizer': {'name': 'gpt2'}})
    blank, line, rest = gpt2.encode('\n\n'), gpt2.encode('\n'), gpt2.encode('of the')
    end = [gpt2.eot_token]
    for gap in blank, line + line:  # one token, and two
        assert written(run, rest + gap + rest, r'--stop=\n\n') == 'xof the\n'
    assert written(run, rest + end + rest, f'--stop={END}') == 'xof the\n'
    assert written(run, rest + end + rest) == f'xof the{END}of the\n'


# ---- prompts


def pipe(patch, content, encoding='utf-8', newline=None):
    """From now on these bytes come in from another program."""
    piped = io.TextIOWrapper(io.BytesIO(content), encoding=encoding, newline=newline)
    patch.setattr(sys, 'stdin', piped)


def test_a_byte_order_mark_and_an_end_of_windows_are_no_part_of_a_prompt(
        bytes_run, tmp_path, capsys, monkeypatch):
    (tmp_path / 'p.txt').write_bytes(b'\xef\xbb\xbfa token')
    words = f'--ckpt={bytes_run}', '--max_new_tokens=9', '--temperature=0'
    outputs = []
    for start in '--start=a token', f'--start=FILE:{tmp_path}/p.txt', '--interactive=true':
        pipe(monkeypatch, '\ufeffa token\r\n'.encode(), newline='\n')
        sample.main([*words, start])
        outputs.append(capsys.readouterr().out)
    assert len(set(outputs)) == 1 and outputs[0].startswith('a token')


@pytest.mark.parametrize('typed, text', [
    (r'a\nb', 'a\nb'), (r'a\\nb', r'a\nb'), (r'a\\\nb', 'a\\\nb'), (r'\d+', r'\d+')])
def test_a_backslash_of_the_command_line_can_be_typed(typed, text, bytes_run, capsys):
    """Behind --stop too: there the network writes nothing that could hold it."""
    words = f'--ckpt={bytes_run}', '--max_new_tokens=0', f'--start={typed}', f'--stop={typed}'
    sample.main([*words])
    assert capsys.readouterr().out == f'{text}\n'


@pytest.mark.parametrize('line', [r'print("a\nb")', 'FILE:{}/secret.txt'])
def test_a_piped_line_is_a_prompt_as_it_is(line, bytes_run, tmp_path, capsys, monkeypatch):
    """It may be a stranger's, and then reads no file of this machine."""
    (tmp_path / 'secret.txt').write_text('nobody reads this')
    line = line.format(tmp_path)
    pipe(monkeypatch, f'{line}\n'.encode())
    sample.main([f'--ckpt={bytes_run}', '--interactive=true', '--max_new_tokens=0'])
    assert capsys.readouterr().out == f'{line}\n'


def test_a_large_alphabet_does_not_fill_the_screen(tmp_path, capsys):
    alphabet = ''.join(chr(0x4e00 + i) for i in range(5000))
    data = {'kind': 'text', 'tokenizer': {'name': 'chars', 'alphabet': alphabet}}
    run = save_run(tmp_path / 'run', text_network('aot', vocab_size=5000), data)
    for word in '--start=z', '--stop=z':
        line = fails(capsys, sample.main, word, f'--ckpt={run}')
        assert "'z'" in line and '5,000' in line and len(line) < 250


def test_bytes_that_are_not_utf8_are_one_line(bytes_run, tmp_path, capsys, monkeypatch):
    """As the shell gives them, in --start=$'caf\\xe9'. Of lines that are piped in, the others are
    prompts all the same."""
    for word in '--start=caf\udce9', '--stop=caf\udce9':
        assert r'caf\udce9' in fails(capsys, sample.main, f'--ckpt={bytes_run}', word)
    words = f'--ckpt={bytes_run}', '--start=caf\udce9', f'--out={tmp_path}/a.png'
    assert r'caf\udce9' in fails(capsys, analyze, 'attention', *words)
    pipe(monkeypatch, b'caf\xe9\na token\n')
    sample.main([f'--ckpt={bytes_run}', '--interactive=true', '--max_new_tokens=2'])
    out, err = capsys.readouterr()
    assert out.startswith('a token') and err.count('error: ') == 1 and r'caf\udce9' in err


def test_where_the_locale_is_ascii_a_prompt_is_utf8_all_the_same(bytes_run, capsys, monkeypatch):
    """Python hands over its bytes undecoded there. What a network writes ends at such a text
    too."""
    def written(*words):
        sample.main([f'--ckpt={bytes_run}', '--max_new_tokens=9', '--temperature=0', *words])
        return capsys.readouterr().out

    typed = '日本 – ünd'
    undecoded = typed.encode().decode('ascii', 'surrogateescape')
    want = written(f'--start={typed}')
    assert want.startswith(typed)
    assert written(f'--start={undecoded}') == want

    for encoding in 'ascii', 'utf-8':
        pipe(monkeypatch, typed.encode() + b'\n', encoding)
        assert written('--interactive=true') == want

    monkeypatch.setattr(sample, 'texts_of', lambda *_: ['as far', f' as here{typed}', 'and on'])
    assert written('--start=x', f'--stop={undecoded}') == 'xas far as here\n'
