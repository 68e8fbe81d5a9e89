"""Zero-shot benchmarks: their scripts on files in the true formats, scores against naive loops, and GPT-2's weights."""
import contextlib
import csv
import io
import json
import math
import os
import struct
import threading
import zipfile
from http.server import HTTPServer
from types import SimpleNamespace

import pytest
import torch
from conftest import ROOT, fails, run
from downloads import Flaky, tar

from scoring import benchmarks
from tasks import files as data
import eval as ev
from engine import run as rundir
import sample
import train
from model_aot import AoT, AoTConfig
from prepare import cbt, gpt2_weights, lambada, ptb, wikitext
from tasks.tokenizer import Tokenizer

WIKI = ' \n = Robert <unk> = \n \n He had a guest @-@ starring role in 1 @,@ 000 episodes of " The <unk> " , naïve ones . \n'
PTB = " no it was n't black monday \n but while the <unk> stock exchange did n't fall apart \n"
PASSAGES = ['the cat sat on the mat and the dog sat on the rug', '"Well," said\nthe naïve cat. "Who is the dog?" said the cat']
PLAIN = contextlib.nullcontext()


def question(sentences, asked, answer, choices):
    """As in cbtest_.._2500ex.txt."""
    lines = [f'{i} {s}' for i, s in enumerate(sentences, 1)]
    return '\n'.join([*lines, f'{len(lines) + 1} {asked}\t{answer}\t\t{"|".join(choices)}']) + '\n\n'


SENTENCES = [f'the dog saw the cat , number {i} , and ran .' for i in range(20)]
CN = (question(SENTENCES, "`` Where is the XXXXX ? '' said the king .", 'cat', ['bee', 'cat', 'dog', 'egg'])
      + question(SENTENCES[::-1], 'XXXXX sat on the rug .', 'ant', ['ant', 'bee', 'cat']))
NE = question(SENTENCES, 'and XXXXX was happy .', 'Jack', ['Alice', 'Jack', 'Bo'])
CBT = {'cbtest_CN_test_2500ex.txt': CN, 'cbtest_NE_test_2500ex.txt': NE}


def zipped(files):
    out = io.BytesIO()
    with zipfile.ZipFile(out, 'w', zipfile.ZIP_DEFLATED) as z:
        for name, content in files.items():
            z.writestr(name, content)
    return out.getvalue()


@pytest.fixture(scope='module')
def archives(tmp_path_factory):
    """The archives as they are published, only smaller."""
    folder = tmp_path_factory.mktemp('archives')
    content = {'wikitext-2-v1.zip': zipped({'wikitext-2/wiki.train.tokens': 'x', 'wikitext-2/wiki.test.tokens': WIKI}),
               'wikitext-2-raw-v1.zip': zipped({'wikitext-2-raw/wiki.test.raw': WIKI.replace('<unk>', 'Boulter')}),
               'simple-examples.tgz': tar({'./simple-examples/data/ptb.test.txt': PTB.encode(), './README': b'x'}, 'gz'),
               'lambada_test.jsonl': ''.join(json.dumps({'text': p}) + '\n' for p in PASSAGES).encode(),
               'CBTest.tgz': tar({'CBTest/x.txt': os.urandom(300_000)} | {f'CBTest/data/{name}': text.encode()
                                                                          for name, text in CBT.items()}, 'gz')}
    for name, c in content.items():
        (folder / name).write_bytes(c)
    return folder


@pytest.fixture(scope='module')
def prepared(archives, tmp_path_factory):
    """A data_dir with all six benchmarks."""
    out = tmp_path_factory.mktemp('data')
    wikitext.main(['--from', f'{archives}/wikitext-2-v1.zip', '--out', f'{out}/wikitext2'])
    wikitext.main(['--size', '103', '--from', f'{archives}/wikitext-2-raw-v1.zip', '--raw', '--out', f'{out}/wikitext103'])
    ptb.main(['--from', f'{archives}/simple-examples.tgz', '--out', f'{out}/ptb'])
    lambada.main(['--from', f'{archives}', '--out', f'{out}/lambada'])
    cbt.main(['--from', f'{archives}', '--out', f'{out}/cbt'])
    return out


def rows(folder, name):
    return benchmarks.read(name, folder)[0]


# ---- preparing

def test_what_is_written_is_what_the_archives_hold(prepared):
    assert rows(prepared, 'wikitext2') == [{'text': WIKI}]
    assert rows(prepared, 'wikitext103') == [{'text': WIKI.replace('<unk>', 'Boulter')}]
    assert rows(prepared, 'ptb') == [{'text': PTB}]
    assert [f'{r["context"]}|{r["word"]}' for r in rows(prepared, 'lambada')] == ['|'.join(p.rsplit(' ', 1)) for p in PASSAGES]
    first, second = rows(prepared, 'cbt_cn')
    assert first == {'context': SENTENCES, 'question': "`` Where is the XXXXX ? '' said the king .", 'answer': 'cat',
                     'choices': ['bee', 'cat', 'dog', 'egg']}
    assert second['context'] == SENTENCES[::-1] and rows(prepared, 'cbt_ne')[0]['answer'] == 'Jack'
    for name, task in benchmarks.TASKS.items():
        meta = json.loads((prepared / name / 'meta.json').read_text())
        test = meta['splits']['test']
        assert (meta['kind'], meta['task']) == ('benchmark', task)
        assert test['count'] == len(rows(prepared, name)) and test['bytes'] == (prepared / name / 'test.jsonl').stat().st_size
        assert {p.name for p in (prepared / name).iterdir()} == {'meta.json', 'test.jsonl'}
        with pytest.raises(ValueError, match='is a benchmark'):
            data.read_meta(prepared / name)
    assert benchmarks.read('wikitext103', prepared)[1] == 'wikitext-2-raw-v1.zip'


def test_plain_files_and_unpacked_folders_do_too(archives, prepared, tmp_path, capsys):
    (tmp_path / 'a' / 'wikitext-2').mkdir(parents=True)
    (tmp_path / 'a' / 'wikitext-2' / 'wiki.test.tokens').write_text(WIKI)
    (tmp_path / 'a' / 'test.txt').write_text(WIKI.replace('\n', '\r\n'), newline='')
    for i, source in enumerate(('a', 'a/wikitext-2', 'a/wikitext-2/wiki.test.tokens', 'a/test.txt')):
        wikitext.main(['--from', f'{tmp_path}/{source}', '--out', f'{tmp_path}/{i}/wikitext2'])
        assert rows(tmp_path / str(i), 'wikitext2') == [{'text': WIKI}]
    assert f'4 lines, {len(WIKI.encode())} bytes; expected are 4,358' in capsys.readouterr().out
    ptb.main(['--from', f'{archives}/simple-examples.tgz', '--out', f'{tmp_path}/0/ptb'])
    assert '2 lines, 16 words; expected are 3,761 and 78,669' in capsys.readouterr().out
    plain = '\n'.join(' '.join(p.split()) for p in PASSAGES)
    files = {'lambada_test_plain_text.txt': plain.encode(), 'train-novels.tar': b''}
    (tmp_path / 'dataset.tar.gz').write_bytes(tar(files, 'gz'))
    (tmp_path / 'mine.txt').write_text(plain + '\n\n')
    for i, source in enumerate(('dataset.tar.gz', 'mine.txt')):
        lambada.main(['--from', f'{tmp_path}/{source}', '--out', f'{tmp_path}/{i}/lambada'])
        assert [' '.join(r.values()) for r in rows(tmp_path / str(i), 'lambada')] == plain.split('\n')
    assert '2 passages; expected are 5,153' in capsys.readouterr().out
    (tmp_path / 'cbtest_NE_test_2500ex.txt').write_text(NE)
    cbt.main(['--from', f'{tmp_path}/cbtest_NE_test_2500ex.txt', '--out', f'{tmp_path}/one/cbt'])
    assert rows(tmp_path / 'one', 'cbt_ne') == rows(prepared, 'cbt_ne') and not (tmp_path / 'one' / 'cbt_cn').exists()
    assert '1 questions; expected are 2,500' in capsys.readouterr().out


def test_bytes_that_are_not_utf8_are_replaced_and_counted(tmp_path, capsys):
    (tmp_path / 'ptb.test.txt').write_bytes(b' caf\xe9 and \xff \n')
    ptb.main(['--from', f'{tmp_path}', '--out', f'{tmp_path}/ptb'])
    assert 'ptb.test.txt: 2 places that are not UTF-8 were replaced' in capsys.readouterr().out
    assert rows(tmp_path, 'ptb') == [{'text': ' caf\ufffd and \ufffd \n'}]


def test_a_byte_order_mark_is_no_text_and_true_replacement_marks_are_not_counted(tmp_path, capsys):
    (tmp_path / 'lambada_test.jsonl').write_bytes(b'\xef\xbb\xbf{"text": "the \xef\xbf\xbd cat"}\n')
    lambada.main(['--from', f'{tmp_path}', '--out', f'{tmp_path}/lambada'])
    assert rows(tmp_path, 'lambada') == [{'context': 'the \ufffd', 'word': 'cat'}] and 'UTF-8' not in capsys.readouterr().out


def test_of_two_files_that_differ_none_is_taken(tmp_path, capsys):
    files = {'wikitext-2/wiki.test.tokens': WIKI, 'wikitext-103/wiki.test.tokens': WIKI.replace('<unk>', 'Boulter')}
    for name, content in files.items():
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(content)
    (tmp_path / 'both.zip').write_bytes(zipped(files))
    for source in (tmp_path, tmp_path / 'both.zip'):
        told = fails(capsys, wikitext.main, '--from', str(source), '--out', f'{tmp_path}/out')
        assert 'more than one wiki.test.tokens' in told and not (tmp_path / 'out').exists()


def test_a_download_is_checked_and_kept(archives, tmp_path, capsys):
    httpd = HTTPServer(('127.0.0.1', 0), Flaky)
    httpd.state = {'content': (archives / 'CBTest.tgz').read_bytes(), 'plan': ['drop', 'busy', 'fine'], 'resumed': 0}
    threading.Thread(target=httpd.serve_forever, daemon=True).start()
    url = ['--url', f'http://127.0.0.1:{httpd.server_port}/']
    try:
        cbt.main([*url, '--out', f'{tmp_path}/cbt'])
        assert httpd.state['resumed'] == 1 and rows(tmp_path, 'cbt_ne') and (tmp_path / 'downloads' / 'CBTest.tgz').exists()
        for script, name in ((wikitext, 'wikitext2'), (ptb, 'ptb'), (lambada, 'lambada')):  # it is none of these
            with pytest.raises(ValueError, match='arrived damaged'):
                script.main([*url, '--out', f'{tmp_path}/{name}'])
            assert not (tmp_path / name).exists()
    finally:
        httpd.shutdown()
    cbt.main(['--url', 'http://127.0.0.1:9/', '--out', f'{tmp_path}/cbt', '--overwrite'])  # what was downloaded is still there
    capsys.readouterr()
    assert 'exists' in fails(capsys, cbt.main, '--out', f'{tmp_path}/cbt')


@pytest.mark.parametrize('script, content, message', [
    (wikitext, zipped({'wikitext-2/wiki.train.tokens': 'x'}), 'has no wiki.test.tokens'),
    (wikitext, zipped({'wikitext-2/wiki.test.tokens': ' \n'}), 'wiki.test.tokens is empty'),
    (wikitext, zipped({'wikitext-2/wiki.test.tokens': WIKI * 99})[:-100], 'is damaged or cut off'),
    (wikitext, b'PK\x03\x04' + bytes(500), 'is damaged or cut off'),
    (wikitext, b'\x89PNG\0\0' * 9, 'neither text nor an archive'),
    (ptb, tar({'simple-examples/data/ptb.train.txt': b'x'}, 'gz'), 'has no ptb.test.txt'),
    (ptb, tar({'data/ptb.test.txt': os.urandom(9999)}, 'gz')[:-5000], 'damaged, cut off or no tar'), (ptb, b'', 'is empty'),
    (lambada, tar({'a.txt': b'x'}), 'has no lambada_test.jsonl and no lambada_test_plain_text.txt'),
    (lambada, b'{"text": "a b"}\n{"text": "a', 'line 2: expected {"text": ".."}'),
    (lambada, b'{"text": "a b"}\n\n{"txt": "a b"}', 'line 3: expected'), (lambada, b'{"text": 5}', 'line 1: expected'),
    (lambada, b'{"text": "a \\ud800"}', 'line 1: expected'), (lambada, b'{"text": "word"}', 'line 1: a passage of 1 words'),
    (lambada, b'two words\nword \n', 'line 2: a passage of 1 words'),
    (lambada, b'"text": "a b"}\n{"text": "a b"}\n', 'line 1: expected'), (lambada, b'{"text": ' + b'[' * 99999, 'line 1: expected'),
    (cbt, CN.encode().rstrip(b'\n'), 'has no cbtest_NE_test_2500ex.txt'),
    (cbt, tar({'CBTest/data/cbtest_CN_test_2500ex.txt': CN.encode()}, 'gz'), 'has no cbtest_NE_test_2500ex.txt'),
    (cbt, CN.encode(), 'has no cbtest_NE_test_2500ex.txt')])
def test_bad_files_are_refused_by_name(script, content, message, tmp_path, capsys):
    path = tmp_path / 'given'
    path.write_bytes(content)
    told = fails(capsys, script.main, '--from', str(path), '--out', f'{tmp_path}/out')
    assert message in told and str(path) in told and [p.name for p in tmp_path.iterdir()] == ['given']


@pytest.mark.parametrize('change, message', [
    (('1 the', 'the'), 'line 1: expected `1 sentence`'), (('\n3 the', '\n4 the'), 'line 3: expected `3 sentence`'),
    (('XXXXX', 'king'), 'line 21: the question has no XXXXX'), (('\tJack\t', '\tGill\t'), "line 21: the answer 'Gill' is not"),
    (('Alice|Jack|Bo', 'Jack'), 'line 21: fewer than two choices'),
    (('\t\tAlice|Jack|Bo', ''), 'line 21: fewer than two choices'),
    (('\tJack\t\tAlice|Jack|Bo', ''), 'line 22: a question is missing'), (('\n8 ', '\n\n8 '), 'line 8: a question is missing')])
def test_a_question_that_does_not_fit_is_refused_with_its_line(change, message, tmp_path, capsys):
    path = tmp_path / 'cbtest_NE_test_2500ex.txt'
    path.write_text(NE.replace(*change))
    assert message in fails(capsys, cbt.main, '--from', str(path), '--out', f'{tmp_path}/cbt')
    assert not (tmp_path / 'cbt_ne').exists()


@pytest.mark.parametrize('damage, message', [
    (lambda f: (f / 'test.jsonl').write_bytes((f / 'test.jsonl').read_bytes()[:-9]), 'cut off'),
    (lambda f: (f / 'test.jsonl').write_bytes((f / 'test.jsonl').read_bytes().replace(b'cat', b'car')), 'not what was written'),
    (lambda f: (f / 'test.jsonl').unlink(), 'FileNotFoundError'), (lambda f: (f / 'meta.json').write_text('{}'), 'KeyError'),
    (lambda f: (f / 'meta.json').write_text('{"kind": "text"'), 'JSONDecodeError'),
    (lambda f: (f / 'meta.json').write_text((f / 'meta.json').read_text().replace('last_word', 'text')), 'another kind')])
def test_a_changed_folder_is_refused(damage, message, archives, tmp_path):
    lambada.main(['--from', f'{archives}/lambada_test.jsonl', '--out', f'{tmp_path}/lambada'])
    damage(tmp_path / 'lambada')
    with pytest.raises(ValueError, match=f'{message}.*python prepare/lambada.py --out {tmp_path}/lambada --overwrite'):
        benchmarks.read('lambada', tmp_path)


# ---- scoring

class Table(torch.nn.Module):
    """A language model that knows the token before: logits (V, V)."""

    def __init__(self, logits, block_size):
        super().__init__()
        self.logits, self.config = torch.nn.Parameter(logits), SimpleNamespace(block_size=block_size)

    def forward(self, x):
        assert x.size(1) <= self.config.block_size
        return self.logits[x], None


def bigrams(V=256, block_size=64, seed=0):
    return Table(2 * torch.randn(V, V, generator=torch.Generator().manual_seed(seed)), block_size)


def aot(block_size=8, V=256, seed=0):
    torch.manual_seed(seed)
    model = AoT(AoTConfig(block_size=block_size, vocab_size=V, n_layer=2, n_head=2, n_embd=16)).eval()
    for p in model.parameters():
        torch.nn.init.normal_(p, std=0.5)
    return model


def naive(model, tokens, first, stride):
    """What the protocol says, token by token: (nats, whether it was the likeliest)."""
    B, n, out = model.config.block_size, len(tokens) - 1, []
    for i in range(first, n + 1):
        if n - first + 1 <= B:
            end = n
        else:
            end = max(B, first - 1 + stride)
            while end < i:
                end += stride
            end = min(end, n)
        logits = model(torch.tensor([tokens[max(0, end - B):i]]))[0][0, -1]
        out.append((-logits.double().log_softmax(0)[tokens[i]].item(), logits.argmax().item() == tokens[i]))
    return [n for n, _ in out], [r for _, r in out]


@pytest.mark.parametrize('first', [1, 5, 12, 29])
@pytest.mark.parametrize('stride', [1, 3, 4, 8])
def test_windows_score_each_token_once_with_the_context_that_the_protocol_states(stride, first):
    model = aot()
    sequences = [(torch.randint(256, (n + 1,), generator=torch.Generator().manual_seed(n)).tolist(), first)
                 for n in (1, 2, 7, 8, 9, 10, 11, 12, 15, 16, 17, 29, 40) if n >= first]
    for tokens, _ in sequences:
        n, seen = len(tokens) - 1, []
        for start, a, end in benchmarks.windows(n, first, 8, stride):
            assert 0 <= start <= a - 1 and end - start <= 8
            if first == 1 and a > 1:
                assert 8 - stride + 1 <= a - start and end - start == 8
            seen += range(a, end + 1)
        assert seen == list(range(first, n + 1))
    for batch_size in (1, 3, 100):
        nats, right = benchmarks.score(model, sequences, stride, batch_size, PLAIN)
        for (tokens, _), mine, hit in zip(sequences, nats, right):
            want = naive(model, tokens, first, stride)
            assert mine.tolist() == pytest.approx(want[0], abs=1e-4) and hit.tolist() == want[1]


def test_few_logits_are_held_at_once(monkeypatch):
    model, shapes = aot(), []
    sequences = [(list(range(n)), 1) for n in (5, 9, 30, 2)]
    before = benchmarks.score(model, sequences, 4, 64, PLAIN)
    model.register_forward_hook(lambda m, x, y: shapes.append(y[0].numel()))
    monkeypatch.setattr(benchmarks, 'LOGITS_AT_ONCE', 3 * 8 * 256)
    after = benchmarks.score(model, sequences, 4, 64, PLAIN)
    assert max(shapes) == 3 * 8 * 256
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(before[0], after[0]))
    monkeypatch.setattr(benchmarks, 'LOGITS_AT_ONCE', 1)
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(before[0], benchmarks.score(model, sequences, 4, 64, PLAIN)[0]))


def results(model, folder, tmp_path, asked, tokenizer='bytes', alphabet='', **settings):
    """{(benchmark, measure): value} and {..: count} of what `run` writes."""
    path = tmp_path / f'{len(list(tmp_path.iterdir()))}.csv'
    c = SimpleNamespace(**{'benchmarks': asked, 'data_dir': str(folder), 'stride': 0, 'detokenize': False, 'batch_size': 5,
                           'ckpt': 'out/x/best.pt', 'results': str(path)} | settings)
    spec = {'name': tokenizer} | ({'alphabet': alphabet} if alphabet else {})
    benchmarks.run(benchmarks.chosen(c.benchmarks, c.data_dir), model, {'data': {'tokenizer': spec}, 'step': 7}, c, PLAIN)
    with open(path, newline='') as f:
        table = list(csv.DictReader(f))
    return [{(r['benchmark'], r['measure']): float(r[k]) for r in table} for k in ('value', 'count')]


def test_a_uniform_model_scores_the_log_of_the_vocabulary(prepared, tmp_path):
    """8 bits a byte; all choices of equal length tie, and the first is taken."""
    value, count = results(Table(torch.zeros(256, 256), 16), prepared, tmp_path, 'all')
    for name, text in (('wikitext2', WIKI), ('ptb', PTB), ('lambada', ''.join(p.replace('\n', '?') for p in PASSAGES))):
        assert value[name, 'loss'] == pytest.approx(math.log(256), rel=1e-5)
        assert value[name, 'bits_per_byte'] == pytest.approx(8)
        assert count[name, 'bits_per_byte'] == len(text.encode())
    words = [p.rsplit(' ', 1)[1] for p in PASSAGES]
    assert count['lambada', 'last_word_loss'] == sum(len(w) + 1 for w in words) and count['lambada', 'loss_per_word'] == 2
    assert value['lambada', 'loss_per_word'] == pytest.approx(math.log(256) * 4, rel=1e-5) and value['lambada', 'accuracy'] == 0
    assert value['cbt_cn', 'accuracy'] == 0.5 and count['cbt_cn', 'accuracy'] == 2  # `bee` is wrong, `ant` is right
    assert value['cbt_ne', 'accuracy'] == 0  # the shortest name, Bo
    padded = Table(torch.zeros(300, 300), 16)
    assert results(padded, prepared, tmp_path, 'ptb')[0]['ptb', 'loss'] == pytest.approx(math.log(300), rel=1e-5)


@pytest.mark.parametrize('model, stride', [(bigrams(), 0), (bigrams(block_size=4), 3), (aot(8), 0), (aot(256), 9), (aot(8), 1)],
                         ids=['bigrams', 'bigrams4', 'aot', 'aot256', 'aot_stride1'])
def test_scores_are_those_of_a_naive_loop(model, stride, prepared, tmp_path):
    value, _ = results(model, prepared, tmp_path, 'lambada, ptb,cbt_cn', stride=stride)
    stride, begin = stride or model.config.block_size // 2, [10]

    def encode(text):
        return list(text.encode())
    nats = naive(model, begin + encode(PTB), 1, stride)[0]
    assert value['ptb', 'loss'] == pytest.approx(sum(nats) / len(nats), rel=1e-4)
    assert value['ptb', 'bits_per_byte'] == pytest.approx(sum(nats) / math.log(2) / len(PTB), rel=1e-4)
    last, whole, guessed = [], [], []
    for p in PASSAGES:
        context, word = p.rsplit(None, 1)
        tokens, target = begin + encode(f'{context} {word}'), encode(f' {word}')
        nats, right = naive(model, tokens, len(tokens) - len(target), stride)
        last, whole, guessed = last + nats, whole + naive(model, tokens, 1, stride)[0], [*guessed, all(right)]
    assert value['lambada', 'last_word_loss'] == pytest.approx(sum(last) / len(last), rel=1e-4)
    assert value['lambada', 'loss_per_word'] == pytest.approx(sum(last) / 2, rel=1e-4)
    assert value['lambada', 'loss'] == pytest.approx(sum(whole) / len(whole), rel=1e-4)
    assert value['lambada', 'accuracy'] == sum(guessed) / 2
    found = 0
    for row in rows(prepared, 'cbt_cn'):
        context, sums = begin + encode(' '.join(row['context'])), []
        for choice in row['choices']:
            tokens = context + encode(' ' + row['question'].replace('XXXXX', choice))
            sums.append(sum(naive(model, tokens, len(context), stride)[0]))
        found += row['choices'][sums.index(min(sums))] == row['answer']
    assert value['cbt_cn', 'accuracy'] == found / 2


def test_a_model_that_knows_the_words_gets_them_right(prepared, tmp_path):
    """One that has learnt by heart which letter follows which: r-u-g, but also c-a-t."""
    logits = torch.zeros(256, 256)
    for word in (' rug', ' cat'):
        for a, b in zip(word.encode(), word.encode()[1:]):
            logits[a, b] = 9.0
    logits[ord(' '), ord('r')] = 10.0
    logits[ord('e'), ord(' ')] = 9.0  # `the` ends
    value, _ = results(Table(logits, 64), prepared, tmp_path, 'lambada,cbt_cn')
    assert value['lambada', 'accuracy'] == 0.5
    assert value['cbt_cn', 'accuracy'] == 0.5  # cat, and cat again where it is ant


def test_batch_size_changes_nothing(prepared, tmp_path):
    values = [results(aot(32), prepared, tmp_path, 'all', batch_size=n)[0] for n in (1, 4, 1000)]
    assert values[0] == pytest.approx(values[1], rel=1e-4) and values[0] == pytest.approx(values[2], rel=1e-4)


def test_detokenizing_is_what_it_says(prepared, tmp_path):
    undo = benchmarks.detokenize
    assert undo(WIKI) == '\n= Robert <unk> =\n\nHe had a guest-starring role in 1,000 episodes of "The <unk>", naïve ones.\n'
    assert undo("`` Where is she ? '' said Jack 's dog ; `` I do n't know -LRB- yet -RRB- . ''") == \
        '"Where is she?" said Jack\'s dog; "I don\'t know (yet)."'
    assert undo('a " b " c " d e " ( f ) 5 % $ 3 @.@ 5\n " g') == 'a "b" c "d e" (f) 5% $3.5\n" g'
    value, count = results(Table(torch.zeros(256, 256), 16), prepared, tmp_path, 'wikitext2,ptb', detokenize=True)
    assert count['wikitext2', 'bits_per_byte'] == len(undo(WIKI).encode()) and value['ptb', 'bits_per_byte'] == pytest.approx(8)
    assert results(aot(16), prepared, tmp_path, 'all', detokenize=True)[1]['lambada', 'bits_per_byte'] == len(
        ' '.join((undo(PASSAGES[0].rsplit(' ', 1)[0]), 'rug', undo(PASSAGES[1].rsplit(' ', 1)[0]), 'cat')).encode()) - 1


def test_a_character_that_the_tokenizer_lacks_is_named_with_the_benchmark(prepared, tmp_path):
    alphabet = ''.join(sorted(set(PTB)))
    model = Table(torch.zeros(len(alphabet), len(alphabet)), 16)
    value = results(model, prepared, tmp_path, 'ptb', 'chars', alphabet)[0]
    assert value['ptb', 'loss'] == pytest.approx(math.log(len(alphabet)), rel=1e-5)
    with pytest.raises(ValueError, match='wikitext2: the tokenizer has no character'):
        results(model, prepared, tmp_path, 'wikitext2', 'chars', alphabet)


# ---- eval.py

@pytest.fixture(scope='module')
def trained(tmp_path_factory, bytes_data, tiny):
    out = tmp_path_factory.mktemp('runs') / 'a'
    train.main([*tiny, f'--out_dir={out}', '--dtype=float32'])
    return out


def test_from_the_command_line_results_accumulate(trained, prepared, capsys):
    words = [f'--ckpt={trained}', f'--data_dir={prepared}', '--dtype=float32']
    ev.main([*words, '--benchmarks=ptb'])
    ev.main([*words, '--benchmarks=all', '--stride=3', '--detokenize=true'])
    out, lines = capsys.readouterr().out, (trained / 'results.csv').read_text().splitlines()
    assert lines[0] == ','.join(benchmarks.COLUMNS) and len(lines) == 1 + 2 + 3 * 2 + 5 + 2
    step = rundir.load_checkpoint(trained)['step']
    assert lines[1].startswith(f'{trained},{step},ptb,loss,') and lines[1].endswith(f',{len(PTB)},tokens,bytes,16,8,false')
    assert lines[-1].endswith('1,questions,bytes,16,3,true')
    value = lines[1].split(',')[4]
    assert f'{float(value):.4f}   {len(PTB)} tokens of simple-examples.tgz' in out and 3 < float(value) < 7
    ev.main([*words, '--benchmarks=lambada', f'--results={trained}/other.csv', f'--ckpt={trained}/last.pt'])
    assert len((trained / 'other.csv').read_text().splitlines()) == 6
    assert len((trained / 'results.csv').read_text().splitlines()) == len(lines)


def test_all_are_those_that_are_prepared(trained, archives, tmp_path, capsys):
    words = [f'--ckpt={trained}', f'--data_dir={tmp_path}', f'--results={tmp_path}/r.csv']
    assert 'no benchmark is prepared' in fails(capsys, ev.main, *words, '--benchmarks=all')
    ptb.main(['--from', f'{archives}/simple-examples.tgz', '--out', f'{tmp_path}/ptb'])
    capsys.readouterr()
    ev.main([*words, '--benchmarks=all'])
    out = capsys.readouterr().out
    assert f'wikitext103 is not prepared; run: python prepare/wikitext.py --size 103 --out {tmp_path}/wikitext103\n' in out
    assert f'cbt_ne is not prepared; run: python prepare/cbt.py --out {tmp_path}/cbt\n' in out and 'ptb is not' not in out
    assert len((tmp_path / 'r.csv').read_text().splitlines()) == 3


@pytest.mark.parametrize('words, message', [
    (['--benchmarks=lambda'], "unknown benchmark 'lambda'; did you mean lambada?"),
    (['--benchmarks=hellaswag'], 'choose among'),
    (['--benchmarks=ptb,'], "unknown benchmark ''"), (['--benchmarks=ptb', '--stride=17'], 'between 1 and the context of 16'),
    (['--benchmarks=ptb', '--stride=-1'], 'between 1 and'), (['--benchmarks=ptb', '--knn=3'], '--knn does not go with'),
    (['--benchmarks=ptb', '--dataset=tiny'], '--dataset does not go with'), (['--stride=4'], '--stride is for --benchmarks'),
    (['--prompts=4'], '--prompts is for functions'), (['--benchmarks=all,hellaswag'], "unknown benchmark 'hellaswag'"),
    (['--benchmarks=ptb', '--results=/proc/r.csv'], 'r.csv cannot be written'),
    (['--benchmarks=ptb', '--results=no/where/r.csv'], 'no folder no/where'),
    (['--benchmarks=ptb', '--data_dir=none'], 'prepare/ptb.py')])
def test_mistakes_get_one_line(words, message, trained, prepared, capsys):
    assert message in fails(capsys, ev.main, f'--ckpt={trained}', f'--data_dir={prepared}', *words)


def test_a_benchmark_is_no_dataset(trained, prepared, tmp_path, capsys):
    for main, words in ((ev.main, [f'--ckpt={trained}']), (train.main, [f'--out_dir={tmp_path}/x'])):
        assert '--benchmarks=ptb' in fails(capsys, main, *words, f'--data_dir={prepared}', '--dataset=ptb')


def test_another_table_is_left_as_it_is(trained, prepared, tmp_path, capsys):
    words = [f'--ckpt={trained}', f'--data_dir={prepared}', '--benchmarks=ptb', f'--results={tmp_path}/r.csv']
    for content in ('step,loss\n1,2\n', ','.join(benchmarks.COLUMNS) + '\nhalf,a ro'):
        (tmp_path / 'r.csv').write_text(content)
        assert 'left as it is' in fails(capsys, ev.main, *words)
        assert (tmp_path / 'r.csv').read_text() == content
    (tmp_path / 'r.csv').unlink()
    (tmp_path / 'r.csv').mkdir()
    assert 'left as it is' in fails(capsys, ev.main, *words)


def test_what_is_not_a_causal_language_model_is_refused(trained, prepared, tmp_path, capsys, monkeypatch):
    checkpoint = rundir.load_checkpoint(trained)
    rundir.save(tmp_path / 'best.pt', checkpoint | {'data': {'kind': 'images', 'classes': None}})
    words = f'--data_dir={prepared}', '--benchmarks=ptb'
    assert 'reads images' in fails(capsys, ev.main, f'--ckpt={tmp_path}', *words)
    monkeypatch.setattr(AoTConfig, 'causal', False, raising=False)
    assert 'causal' in fails(capsys, ev.main, f'--ckpt={trained}', *words)


# ---- GPT-2's weights

def gpt2_tensors(V=50257, d=8, layers=2, N=32, dtype=torch.float32):
    """A random GPT-2 with the names and shapes of OpenAI's, the masks too."""
    torch.manual_seed(0)
    shapes = {'wte.weight': (V, d), 'wpe.weight': (N, d), 'ln_f.weight': (d,), 'ln_f.bias': (d,)}
    for i in range(layers):
        shapes |= {f'h.{i}.{k}': s for k, s in {
            'ln_1.weight': (d,), 'ln_1.bias': (d,), 'ln_2.weight': (d,), 'ln_2.bias': (d,), 'attn.bias': (1, 1, N, N),
            'attn.c_attn.weight': (d, 3 * d), 'attn.c_attn.bias': (3 * d,), 'attn.c_proj.weight': (d, d),
            'attn.c_proj.bias': (d,), 'mlp.c_fc.weight': (d, 4 * d), 'mlp.c_fc.bias': (4 * d,),
            'mlp.c_proj.weight': (4 * d, d), 'mlp.c_proj.bias': (d,)}.items()}
    return {k: (0.3 * torch.randn(s)).to(dtype) for k, s in shapes.items()}


def safetensors(tensors, change=lambda header: None):
    """As OpenAI's weights are published; `change` spoils the header."""
    header, content = {'__metadata__': {'format': 'pt'}}, b''
    names = {torch.float32: 'F32', torch.float16: 'F16', torch.bfloat16: 'BF16'}
    for k, t in tensors.items():
        mine = t.contiguous().view(torch.uint8).numpy().tobytes()
        places = [len(content), len(content) + len(mine)]
        header[k] = {'dtype': names[t.dtype], 'shape': list(t.shape), 'data_offsets': places}
        content += mine
    change(header)
    head = json.dumps(header).encode()
    return struct.pack('<Q', len(head)) + head + content


def written(tmp_path, content):
    (tmp_path / 'model.safetensors').write_bytes(content)
    return f'{tmp_path}/model.safetensors'


@pytest.mark.parametrize('dtype', [torch.float32, torch.float16, torch.bfloat16])
def test_safetensors_are_read_as_they_were(dtype, tmp_path):
    tensors = gpt2_tensors(V=11, dtype=dtype)
    found = gpt2_weights.read_safetensors(written(tmp_path, safetensors(tensors)))
    assert found.keys() == {k for k in tensors if not k.endswith('.attn.bias')}
    assert all(found[k].dtype == dtype and torch.equal(found[k], tensors[k]) for k in found)


@pytest.mark.parametrize('content, message', [
    (b'', 'a header of 0 bytes in a file of 0'), (b'<html>' * 99, 'a header of'),
    (struct.pack('<Q', 4) + b'[1]x', 'its header'),
    (struct.pack('<Q', 2) + b'[]', 'its header'), (safetensors(gpt2_tensors(V=9))[:-1], 'bytes, after one that ends'),
    (safetensors(gpt2_tensors(V=9)) + b'x', 'its tensors end at'), (safetensors(gpt2_tensors(V=9))[:99], 'a header of'),
    (safetensors({'a': torch.ones(2)}, lambda h: h['a'].update(dtype='I64')), 'a is I64'),
    (safetensors({'a': torch.ones(2)}, lambda h: h['a'].update(shape=[3])), 'a, F32 of [3], has 8 bytes'),
    (safetensors({'a': torch.ones(2)}, lambda h: h['a'].update(shape=[-1, -2])), 'its header'),
    (safetensors({'a': torch.ones(2)}, lambda h: h['a'].update(data_offsets=[0, 800])), 'a lies at 0 to 800 of 8'),
    (safetensors({'a': torch.ones(2)}, lambda h: h.update(a=5)), 'its header'),
    (safetensors({'a': torch.ones(2), 'b': torch.ones(2)}, lambda h: h['b'].update(data_offsets=[4, 12])), 'b lies at 4 to 12'),
    (safetensors({'a': torch.ones(2)}), 'not a GPT-2 state dict'),
    (safetensors({k: t for k, t in gpt2_tensors(V=9).items() if 'h.1.ln_2' not in k}), 'h.1.ln_2.weight is missing'),
    (safetensors(gpt2_tensors(V=9)), "knows 9 tokens, GPT-2's tokenizer 50257")])
def test_a_file_that_is_not_gpt2_is_refused(content, message, tmp_path, capsys):
    path = written(tmp_path, content)
    told = fails(capsys, gpt2_weights.main, '--from', path, '--n_head', '2', '--out_dir', f'{tmp_path}/gpt2')
    assert message in told and path in told and not (tmp_path / 'gpt2').exists()


def test_gpt2_weights_become_a_run(prepared, tmp_path, capsys, monkeypatch):
    """Converted, scored, sampled from and fine-tuned; with the true tokenizer if it is at hand."""
    tensors = gpt2_tensors()
    words = '--from', written(tmp_path, safetensors(tensors)), '--out_dir', f'{tmp_path}/gpt2'
    assert 'is 8 wide, and gpt2 is 768; give the --size' in fails(capsys, gpt2_weights.main, *words)
    gpt2_weights.main([*words, '--n_head', '2'])
    assert '2 layers of 2 heads, 8 wide, a context of 32' in capsys.readouterr().out
    assert 'already holds a run' in fails(capsys, gpt2_weights.main, *words, '--n_head', '2')
    assert 'already holds a run' in fails(capsys, gpt2_weights.main, *words)
    (tmp_path / 'gpt2' / 'last.pt').write_text('of another run')
    before = (tmp_path / 'gpt2' / 'best.pt').read_bytes()
    monkeypatch.setattr('rundir.torch.save', lambda *a: (_ for _ in ()).throw(OSError('full')))
    assert 'is untouched: make room, then run this again' in fails(capsys, gpt2_weights.main, *words, '--n_head', '2', '--overwrite')
    assert before == (tmp_path / 'gpt2' / 'best.pt').read_bytes() and (tmp_path / 'gpt2' / 'last.pt').exists()
    monkeypatch.undo()
    gpt2_weights.main([*words, '--n_head', '2', '--overwrite'])
    checkpoint = rundir.load_checkpoint(tmp_path / 'gpt2')
    assert {p.name for p in (tmp_path / 'gpt2').iterdir()} == {'best.pt', 'config.json'}
    assert checkpoint['model_config']['gelu'] == 'tanh' and checkpoint['config']['learning_rate'] == 3e-5
    assert torch.equal(checkpoint['weights']['tok_emb.weight'], tensors['wte.weight'])
    assert torch.equal(checkpoint['weights']['layers.1.mlp.up.weight'], tensors['h.1.mlp.c_fc.weight'].T)
    if not os.environ.get('TIKTOKEN_CACHE_DIR'):
        pytest.skip('the rest needs the tokenizer: set TIKTOKEN_CACHE_DIR to a folder that has it')
    capsys.readouterr()
    ev.main([f'--ckpt={tmp_path}/gpt2', f'--data_dir={prepared}', '--benchmarks=all', '--dtype=float32'])
    table = (tmp_path / 'gpt2' / 'results.csv').read_text().splitlines()
    assert len(table) == 14 and table[1].startswith(f'{tmp_path}/gpt2,0,wikitext2,loss,')
    assert table[1].endswith('gpt2,32,16,false')
    capsys.readouterr()
    tokens = Tokenizer('gpt2').encode(WIKI)
    nats = naive(ev.load_model(checkpoint), [50256, *tokens], 1, 16)[0]
    assert table[1].split(',')[4:6] == [f'{sum(nats) / len(nats):.6g}', str(len(tokens))]
    sample.main([f'--ckpt={tmp_path}/gpt2', '--max_new_tokens=5', '--start=The'])
    assert capsys.readouterr().out.startswith('The')
    tokenizer = Tokenizer('gpt2')
    data.save_text(tmp_path / 'mine', tokenizer, *data.split_text('a token is no picture. ' * 200, tokenizer))
    train.main([f'--init_from={tmp_path}/gpt2/best.pt', f'--data_dir={tmp_path}', '--dataset=mine', '--max_iters=2',
                '--batch_size=2', '--eval_iters=2', f'--out_dir={tmp_path}/tuned', '--dtype=float32', '--compile=false'])
    assert rundir.load_checkpoint(tmp_path / 'tuned')['step'] in (0, 2)


def test_scripts_say_what_they_do():
    for name in ('wikitext', 'ptb', 'lambada', 'cbt', 'gpt2_weights'):
        done = run(f'prepare/{name}.py', '--help', cwd=ROOT)
        assert done.returncode == 0 and f'python prepare/{name}.py' in done.stdout, done.stderr
