import subprocess
import sys

import pytest
import torch
from conftest import ROOT, TEXT, fails

from tasks import files as data
import sample
import train
from tasks.tokenizer import Tokenizer


@pytest.fixture(scope='module')
def runs(tmp_path_factory, tiny):
    """A finished run on bytes and one on characters, whose data is gone."""
    place = tmp_path_factory.mktemp('sample')
    train.main([*tiny, f'--out_dir={place}/bytes'])
    alphabet = ''.join(sorted(set('naïve text, ünd more\n')))
    tokenizer = Tokenizer('chars', alphabet)
    data.save_text(place / 'd' / 'chars', tokenizer, *data.split_text('naïve text, ünd more\n' * 30, tokenizer))
    train.main([*tiny, f'--data_dir={place}/d', '--dataset=chars', '--vocab_size=64', f'--out_dir={place}/chars'])
    return place


def test_a_sample_needs_only_the_checkpoint(runs, capsys):
    words = [f'--ckpt={runs}/chars', '--start=naïve', '--max_new_tokens=40', '--temperature=1.5']
    sample.main(words)
    first = capsys.readouterr().out
    assert first.startswith('naïve') and len(first) <= 5 + 40 + 1  # tokens that pad the vocabulary print nothing
    sample.main([*words, '--num_samples=2'])
    both = capsys.readouterr().out
    assert both.startswith(first) and both.count('-' * 40) == 1
    sample.main([*words, '--seed=7'])
    assert capsys.readouterr().out != first


def test_the_prompt_may_be_a_file_have_newlines_or_be_empty(runs, tmp_path, capsys):
    (tmp_path / 'p.txt').write_text('ünd\nmore', encoding='utf-8')
    sample.main([f'--ckpt={runs}/chars/last.pt', f'--start=FILE:{tmp_path}/p.txt', '--max_new_tokens=0'])
    assert capsys.readouterr().out == 'ünd\nmore\n'
    sample.main([f'--ckpt={runs}/chars', r'--start=ünd\nmore', '--max_new_tokens=0'])
    assert capsys.readouterr().out == 'ünd\nmore\n'
    sample.main([f'--ckpt={runs}/chars', '--max_new_tokens=5', '--temperature=0'])
    assert len(capsys.readouterr().out) <= 6


def test_characters_of_several_bytes_are_printed_whole(runs, capsys, monkeypatch):
    ids = iter('aü🙂'.encode())
    monkeypatch.setattr('generate.pick', lambda *a: torch.tensor([[next(ids)]]))
    sample.main([f'--ckpt={runs}/bytes', '--start=x', '--max_new_tokens=7'])
    assert capsys.readouterr().out == 'xaü🙂\n'


def test_stop_ends_a_text(runs, capsys, monkeypatch):
    ids = iter(b'ab.cd')
    monkeypatch.setattr('generate.pick', lambda *a: torch.tensor([[next(ids)]]))
    sample.main([f'--ckpt={runs}/bytes', '--start=x', '--max_new_tokens=5', '--stop=.'])
    assert capsys.readouterr().out == 'xab.\n'


@pytest.mark.parametrize('words, message', [
    (['--start=naïve z'], "no character 'z'"), (['--start=FILE:nowhere.txt'], 'cannot be read'), (['--stop=more'], 'it must be one'),
    (['--ckpt=nowhere'], 'no checkpoint nowhere'), (['--temperature=-1'], 'temperature'), (['--temperature=nan'], 'temperature'),
    (['--top_p=0'], 'top_p'), (['--num_samples=0'], 'num_samples'), (['--max_new_token=3'], 'did you mean max_new_tokens?')])
def test_mistakes_get_one_line(words, message, runs, capsys):
    assert message in fails(capsys, sample.main, f'--ckpt={runs}/chars', *words)


def test_long_prompts_warn_and_extreme_temperatures_work(runs, capsys):
    with pytest.warns(UserWarning, match='block_size'):
        sample.main([f'--ckpt={runs}/bytes', f'--start={TEXT[:200]}', '--max_new_tokens=20'])
    sample.main([f'--ckpt={runs}/bytes', '--temperature=1e-30', '--max_new_tokens=5'])
    sample.main([f'--ckpt={runs}/bytes', '--temperature=1e30', '--top_k=0', '--max_new_tokens=5'])


def test_a_reader_that_leaves_is_no_error(runs):
    writer = subprocess.Popen([sys.executable, '-u', str(ROOT / 'sample.py'), f'--ckpt={runs}/bytes', '--max_new_tokens=3000'],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    writer.stdout.read(5)
    writer.stdout.close()
    assert b'Traceback' not in writer.stderr.read()
