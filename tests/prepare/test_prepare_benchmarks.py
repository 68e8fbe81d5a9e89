"""prepare/wikitext.py, ptb.py, lambada.py and cbt.py on files in the formats that are published."""
import json

import pytest
from small_benchmarks import PASSAGES, PTB, SENTENCES, WIKI, prepare, rows, write_archives
from small_files import tree

from prepare import cbt, lambada, ptb, wikitext
from scoring import benchmarks


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
    assert first == {'context': SENTENCES, 'answer': 'cat', 'choices': ['bee', 'cat', 'dog', 'egg'],
                     'question': "`` Where is the XXXXX ? '' said the king ."}
    assert second['context'] == SENTENCES[::-1] and rows(prepared, 'cbt_ne')[0]['answer'] == 'Jack'
    tasks = ('text', 'text', 'text', 'last_word', 'cloze', 'cloze')
    for name, task in zip(benchmarks.SCRIPTS, tasks, strict=True):
        meta = json.loads((prepared / name / 'meta.json').read_text())
        test = meta['splits']['test']
        assert meta['kind'] == 'benchmark' and meta['task'] == task
        assert test['count'] == len(rows(prepared, name))
        assert test['bytes'] == (prepared / name / 'test.jsonl').stat().st_size
    assert benchmarks.read('wikitext103', prepared)['wikitext103'][1] == 'wikitext-2-raw-v1.zip'


@pytest.mark.parametrize('content, expected', [
    (b'\xef\xbb\xbf{"text": "the \xef\xbf\xbd cat"}\n\n', [('the \ufffd', 'cat')]),
    (b'the cat sat\r\non the rug\r\n\n', [('the cat', 'sat'), ('on the', 'rug')])])
def test_both_versions_of_lambada_are_read(content, expected, tmp_path):
    tree(tmp_path, {'mine.txt': content})
    lambada.main(['--from', f'{tmp_path}/mine.txt', '--out', f'{tmp_path}/lambada'])
    assert [(row['context'], row['word']) for row in rows(tmp_path, 'lambada')] == expected


def test_the_text_of_wikitext_alone_is_read(tmp_path):
    tree(tmp_path, {'wiki.test.tokens': WIKI.encode()})
    wikitext.main(['--from', f'{tmp_path}/wiki.test.tokens', '--out', f'{tmp_path}/wikitext2'])
    assert rows(tmp_path, 'wikitext2') == [{'text': WIKI}]


def test_a_download_is_checked_and_kept(serve, archives, tmp_path, monkeypatch):
    server = serve((archives / 'CBTest.tgz').read_bytes(), ['drop', 'busy', 'fine'])
    for script in cbt, wikitext, ptb, lambada:
        monkeypatch.setattr(script, 'URL', server.url.replace('file', 'CBTest.tgz'))
    cbt.main(['--out', f'{tmp_path}/cbt'])
    assert server.state['resumed'] == 1 and rows(tmp_path, 'cbt_ne')
    for script in wikitext, ptb, lambada:  # it is none of these
        out = tmp_path / script.__name__
        with pytest.raises(ValueError, match='damaged'):
            script.main(['--out', f'{out}/d'])
        assert not (out / 'd').exists()
