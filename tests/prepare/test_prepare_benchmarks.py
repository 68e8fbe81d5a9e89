"""prepare/wikitext.py, ptb.py, lambada.py and cbt.py on files in the formats that are published."""
import json

import pytest
from downloads import tar
from small_benchmarks import NE, PASSAGES, PTB, SENTENCES, WIKI, prepare, rows, write_archives
from small_files import tree

from prepare import cbt, lambada, ptb, wikitext
from scoring import benchmarks
from tasks import files


@pytest.fixture(scope='module')
def archives(tmp_path_factory):
    return write_archives(tmp_path_factory.mktemp('archives'))


@pytest.fixture(scope='module')
def prepared(archives, tmp_path_factory):
    """A data_dir with all six benchmarks."""
    return prepare(archives, tmp_path_factory.mktemp('data'))


def test_what_is_written_is_what_the_archives_hold(prepared):
    assert rows(prepared, 'wikitext2') == [{'text': WIKI}]
    assert rows(prepared, 'wikitext103') == [{'text': WIKI.replace('<unk>', 'Boulter')}]
    assert rows(prepared, 'ptb') == [{'text': PTB}]
    passages = [f'{r["context"]}|{r["word"]}' for r in rows(prepared, 'lambada')]
    assert passages == ['|'.join(p.rsplit(' ', 1)) for p in PASSAGES]
    first, second = rows(prepared, 'cbt_cn')
    assert first == {'context': SENTENCES, 'question': "`` Where is the XXXXX ? '' said the king .", 'answer': 'cat',
                     'choices': ['bee', 'cat', 'dog', 'egg']}
    assert second['context'] == SENTENCES[::-1] and rows(prepared, 'cbt_ne')[0]['answer'] == 'Jack'
    for name, task in benchmarks.TASKS.items():
        meta = json.loads((prepared / name / 'meta.json').read_text())
        test = meta['splits']['test']
        assert (meta['kind'], meta['task'], test['count']) == ('benchmark', task, len(rows(prepared, name)))
        assert test['bytes'] == (prepared / name / 'test.jsonl').stat().st_size
        assert {p.name for p in (prepared / name).iterdir()} == {'meta.json', 'test.jsonl'}
        with pytest.raises(ValueError, match='is a benchmark'):
            files.read_meta(prepared / name)
    assert benchmarks.read('wikitext103', prepared)[1] == 'wikitext-2-raw-v1.zip'


PLAIN = '\n'.join(' '.join(p.split()) for p in PASSAGES) + '\n'


@pytest.mark.parametrize('script, name, source, content, expected', [
    (wikitext, 'wikitext2', 'a/wiki.test.tokens', WIKI.encode(), [{'text': WIKI}]),
    (wikitext, 'wikitext2', 'mine.txt', WIKI.replace('\n', '\r\n').encode(), [{'text': WIKI}]),
    (ptb, 'ptb', 'mine.txt', b' caf\xe9 and \xff \n', [{'text': ' caf\ufffd and \ufffd \n'}]),
    (lambada, 'lambada', 'x.jsonl', b'\xef\xbb\xbf{"text": "the \xef\xbf\xbd cat"}\n\n', [
        {'context': 'the \ufffd', 'word': 'cat'}]),
    *[(lambada, 'lambada', source, content, [dict(zip(('context', 'word'), line.rsplit(' ', 1))) for line in
                                             PLAIN.splitlines()]) for source, content in (
        ('mine.txt', PLAIN.encode() + b'\n'),
        ('x.tar.gz', tar({'lambada_test_plain_text.txt': PLAIN.encode(), 'train-novels.tar': b''}, 'gz')))],
    (cbt, 'cbt_ne', 'cbtest_NE_test_2500ex.txt', NE.encode(), None)])
def test_plain_files_do_too(script, name, source, content, expected, prepared, tmp_path):
    folder = tmp_path / 'in'
    tree(folder, {source: content})
    script.main(['--from', f'{folder}/{source}', '--out', f'{tmp_path}/{name.removesuffix("_ne")}'])
    assert rows(tmp_path, name) == (expected or rows(prepared, name))
    assert {p.name for p in tmp_path.glob('[!.]*')} == {'in', name}


def test_a_download_is_checked_and_kept(serve, archives, tmp_path, monkeypatch):
    server = serve((archives / 'CBTest.tgz').read_bytes(), ['drop', 'busy', 'fine'])
    for script in cbt, wikitext, ptb, lambada:
        monkeypatch.setattr(script, 'URL', server.url)
    cbt.main(['--out', f'{tmp_path}/cbt'])
    assert server.state['resumed'] == 1 and rows(tmp_path, 'cbt_ne')
    for script, name in (wikitext, 'wikitext2'), (ptb, 'ptb'), (lambada, 'lambada'):  # it is none of these
        with pytest.raises(ValueError, match='damaged'):
            script.main(['--out', f'{tmp_path}/{name}/d'])
        assert not (tmp_path / name / 'd').exists()
    monkeypatch.setattr(cbt, 'URL', 'http://127.0.0.1:9/file')
    cbt.main(['--out', f'{tmp_path}/cbt', '--overwrite'])  # it is still there
