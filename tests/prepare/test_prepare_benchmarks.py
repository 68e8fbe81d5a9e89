"""prepare/wikitext.py, ptb.py, lambada.py and cbt.py on files in the formats that are published."""
import json
import os
import threading
from http.server import HTTPServer

import pytest
from downloads import Flaky, tar
from helpers import fails
from small_benchmarks import CN, NE, PASSAGES, PTB, SENTENCES, WIKI, prepare, rows, write_archives, zipped

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
        assert (meta['kind'], meta['task']) == ('benchmark', task)
        assert test['count'] == len(rows(prepared, name))
        assert test['bytes'] == (prepared / name / 'test.jsonl').stat().st_size
        assert {p.name for p in (prepared / name).iterdir()} == {'meta.json', 'test.jsonl'}
        with pytest.raises(ValueError, match='is a benchmark'):
            files.read_meta(prepared / name)
    assert benchmarks.read('wikitext103', prepared)[1] == 'wikitext-2-raw-v1.zip'


def test_plain_files_and_unpacked_folders_do_too(archives, prepared, tmp_path, capsys):
    (tmp_path / 'a' / 'wikitext-2').mkdir(parents=True)
    (tmp_path / 'a' / 'wikitext-2' / 'wiki.test.tokens').write_text(WIKI)
    (tmp_path / 'a' / 'test.txt').write_text(WIKI.replace('\n', '\r\n'), newline='')
    for i, source in enumerate(('a', 'a/wikitext-2', 'a/wikitext-2/wiki.test.tokens', 'a/test.txt')):
        wikitext.main(['--from', f'{tmp_path}/{source}', '--out', f'{tmp_path}/{i}/wikitext2'])
        assert rows(tmp_path / str(i), 'wikitext2') == [{'text': WIKI}]
    assert f'4 lines, 25 words, {len(WIKI.encode())} bytes; expected are 4,358 lines' in capsys.readouterr().out
    ptb.main(['--from', f'{archives}/simple-examples.tgz', '--out', f'{tmp_path}/0/ptb'])
    assert '2 lines, 16 words, 85 bytes; expected are 3,761 lines, 78,669 words' in capsys.readouterr().out
    plain = '\n'.join(' '.join(p.split()) for p in PASSAGES)
    files = {'lambada_test_plain_text.txt': plain.encode(), 'train-novels.tar': b''}
    (tmp_path / 'dataset.tar.gz').write_bytes(tar(files, 'gz'))
    (tmp_path / 'mine.txt').write_text(plain + '\n\n')
    for i, source in enumerate(('dataset.tar.gz', 'mine.txt')):
        lambada.main(['--from', f'{tmp_path}/{source}', '--out', f'{tmp_path}/{i}/lambada'])
        assert [' '.join(r.values()) for r in rows(tmp_path / str(i), 'lambada')] == plain.split('\n')
    assert '2 rows, ' in capsys.readouterr().out
    (tmp_path / 'cbtest_NE_test_2500ex.txt').write_text(NE)
    cbt.main(['--from', f'{tmp_path}/cbtest_NE_test_2500ex.txt', '--out', f'{tmp_path}/one/cbt'])
    assert rows(tmp_path / 'one', 'cbt_ne') == rows(prepared, 'cbt_ne') and not (tmp_path / 'one' / 'cbt_cn').exists()
    assert '1 rows, ' in capsys.readouterr().out


def test_bytes_that_are_not_utf8_are_replaced_and_counted(tmp_path, capsys):
    (tmp_path / 'ptb.test.txt').write_bytes(b' caf\xe9 and \xff \n')
    ptb.main(['--from', f'{tmp_path}', '--out', f'{tmp_path}/ptb'])
    assert 'ptb.test.txt: 2 places that are not UTF-8 were replaced' in capsys.readouterr().out
    assert rows(tmp_path, 'ptb') == [{'text': ' caf\ufffd and \ufffd \n'}]


def test_a_byte_order_mark_is_no_text_and_true_replacement_marks_are_not_counted(tmp_path, capsys):
    (tmp_path / 'lambada_test.jsonl').write_bytes(b'\xef\xbb\xbf{"text": "the \xef\xbf\xbd cat"}\n')
    lambada.main(['--from', f'{tmp_path}', '--out', f'{tmp_path}/lambada'])
    assert rows(tmp_path, 'lambada') == [{'context': 'the \ufffd', 'word': 'cat'}]
    assert 'UTF-8' not in capsys.readouterr().out


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
        assert httpd.state['resumed'] == 1 and rows(tmp_path, 'cbt_ne')
        assert (tmp_path / 'downloads' / 'CBTest.tgz').exists()
        for script, name in ((wikitext, 'wikitext2'), (ptb, 'ptb'), (lambada, 'lambada')):  # it is none of these
            with pytest.raises(ValueError, match='arrived damaged'):
                script.main([*url, '--out', f'{tmp_path}/{name}'])
            assert not (tmp_path / name).exists()
    finally:
        httpd.shutdown()
    # what was downloaded is still there
    cbt.main(['--url', 'http://127.0.0.1:9/', '--out', f'{tmp_path}/cbt', '--overwrite'])
    capsys.readouterr()
    assert 'exists' in fails(capsys, cbt.main, '--out', f'{tmp_path}/cbt')


@pytest.mark.parametrize('script, content, message', [
    (wikitext, zipped({'wikitext-2/wiki.train.tokens': 'x'}), 'has no wiki.test.tokens'),
    (wikitext, zipped({'wikitext-2/wiki.test.tokens': ' \n'}), 'wiki.test.tokens is empty'),
    (wikitext, zipped({'wikitext-2/wiki.test.tokens': WIKI * 99})[:-100], 'is damaged or cut off'),
    (wikitext, b'PK\x03\x04' + bytes(500), 'is damaged or cut off'),
    (wikitext, b'\x89PNG\0\0' * 9, 'neither text nor an archive'),
    (ptb, tar({'simple-examples/data/ptb.train.txt': b'x'}, 'gz'), 'has no ptb.test.txt'),
    (ptb, tar({'data/ptb.test.txt': os.urandom(9999)}, 'gz')[:-5000], 'damaged, cut off or no tar'),
    (ptb, b'', 'is empty'),
    (lambada, tar({'a.txt': b'x'}), 'has no lambada_test.jsonl and no lambada_test_plain_text.txt'),
    (lambada, b'{"text": "a b"}\n{"text": "a', 'line 2 is no passage'),
    (lambada, b'{"text": "a b"}\n\n{"txt": "a b"}', 'line 3 is no passage'),
    (lambada, b'{"text": "word"}', 'line 1 is no passage'),
    (lambada, b'two words\nword \n', 'line 2 is no passage'),
    (cbt, tar({'CBTest/data/cbtest_CN_test_2500ex.txt': CN.encode()}, 'gz'), 'has no cbtest_NE_test_2500ex.txt'),
    (cbt, CN.encode(), 'has no cbtest_NE_test_2500ex.txt')])
def test_bad_files_are_refused_by_name(script, content, message, tmp_path, capsys):
    path = tmp_path / 'given'
    path.write_bytes(content)
    told = fails(capsys, script.main, '--from', str(path), '--out', f'{tmp_path}/out')
    assert message in told and str(path) in told and not (tmp_path / 'out').exists()


@pytest.mark.parametrize('change, message', [
    (('1 the', 'the'), 'line 1 '), (('\n3 the', '\n4 the'), 'line 3 '), (('XXXXX', 'king'), 'line 21 '),
    (('\tJack\t', '\tGill\t'), 'line 21 '), (('Alice|Jack|Bo', 'Jack'), 'line 21 '),
    (('\t\tAlice|Jack|Bo', ''), 'line 21 '), (('\tJack\t\tAlice|Jack|Bo', ''), 'line 22 '),
    (('\n8 ', '\n\n8 '), 'line 8 '), ((NE[-90:], ''), 'cut off'), ((NE[-2:], ''), 'cut off')])
def test_a_question_that_does_not_fit_is_refused_with_its_line(change, message, tmp_path, capsys):
    path = tmp_path / 'cbtest_NE_test_2500ex.txt'
    path.write_text(NE.replace(*change))
    assert message in fails(capsys, cbt.main, '--from', str(path), '--out', f'{tmp_path}/cbt')
    assert not (tmp_path / 'cbt_ne').exists()


def change(name, old=None, new=b''):
    """A function that changes a file of a folder: it cuts off the end, or replaces bytes."""
    def damage(folder):
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[:-9] if old is None else content.replace(old, new))
    return damage


@pytest.mark.parametrize('damage', [
    change('test.jsonl'), change('test.jsonl', b'cat', b'car'), lambda folder: (folder / 'test.jsonl').unlink(),
    lambda folder: (folder / 'meta.json').write_text('{}'), change('meta.json')])
def test_a_changed_folder_is_refused(damage, archives, tmp_path):
    lambada.main(['--from', f'{archives}/lambada_test.jsonl', '--out', f'{tmp_path}/lambada'])
    damage(tmp_path / 'lambada')
    with pytest.raises(ValueError, match=f'damaged.*python prepare/lambada.py --out {tmp_path}/lambada --overwrite'):
        benchmarks.read('lambada', tmp_path)


