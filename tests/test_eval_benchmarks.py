"""Language benchmarks from the command line: eval.py --benchmarks."""
import pytest
from helpers import fails, save_run, text_network
from small_benchmarks import PTB, prepare, write_archives

import eval as scores
import train
from model_crate import CRATE, CRATEConfig
from prepare import ptb
from scoring import benchmarks

BYTES = {'kind': 'text', 'tokenizer': {'name': 'bytes'}}


@pytest.fixture(scope='module')
def archives(tmp_path_factory):
    return write_archives(tmp_path_factory.mktemp('archives'))


@pytest.fixture(scope='module')
def prepared(archives, tmp_path_factory):
    """A data_dir with all six benchmarks."""
    return prepare(archives, tmp_path_factory.mktemp('data'))


@pytest.fixture(scope='module')
def run(tmp_path_factory):
    """The run directory of a language model with a context of 16."""
    return save_run(tmp_path_factory.mktemp('runs') / 'a', text_network('aot', vocab_size=256), BYTES)


def test_from_the_command_line_results_accumulate(run, prepared, capsys):
    words = [f'--ckpt={run}', f'--data_dir={prepared}', '--dtype=float32']
    scores.main([*words, '--benchmarks=ptb'])
    scores.main([*words, '--benchmarks=all', '--stride=3', '--detokenize=true'])
    out, lines = capsys.readouterr().out, (run / 'results.csv').read_text().splitlines()
    assert lines[0] == ','.join(benchmarks.COLUMNS) and len(lines) == 1 + 2 + 3 * 2 + 5 + 2
    assert lines[1].startswith(f'{run},0,ptb,loss,') and lines[1].endswith(f',{len(PTB)},tokens,bytes,16,8,false')
    assert lines[-1].endswith('1,questions,bytes,16,3,true')
    value = lines[1].split(',')[4]
    assert f'{float(value):.4f}   {len(PTB)} tokens of simple-examples.tgz' in out and 3 < float(value) < 7
    scores.main([*words, '--benchmarks=lambada', f'--results={run}/other.csv', f'--ckpt={run}/best.safetensors'])
    assert len((run / 'other.csv').read_text().splitlines()) == 6
    assert len((run / 'results.csv').read_text().splitlines()) == len(lines)


def test_all_are_those_that_are_prepared(run, archives, tmp_path, capsys):
    words = [f'--ckpt={run}', f'--data_dir={tmp_path}', f'--results={tmp_path}/r.csv']
    assert 'is not prepared; run: python prepare/' in fails(capsys, scores.main, *words, '--benchmarks=all')
    ptb.main(['--from', f'{archives}/simple-examples.tgz', '--out', f'{tmp_path}/ptb'])
    capsys.readouterr()
    scores.main([*words, '--benchmarks=all'])
    out = capsys.readouterr().out
    for name, script, folder in (('wikitext103', 'wikitext.py --size 103', 'wikitext103'), ('cbt_ne', 'cbt.py', 'cbt')):
        assert f'{name} is not prepared; run: python prepare/{script} --out {tmp_path}/{folder}\n' in out
    assert 'ptb is not' not in out
    assert len((tmp_path / 'r.csv').read_text().splitlines()) == 3


@pytest.mark.parametrize('words, message', [
    (['--benchmarks=lambda'], "unknown benchmark 'lambda'; choose among"),
    (['--benchmarks=ptb,'], "unknown benchmark ''"),
    (['--benchmarks=ptb', '--stride=17'], 'stride=17 must lie between 0 and 16'),
    (['--benchmarks=ptb', '--stride=-1'], 'stride=-1 must lie'),
    (['--benchmarks=ptb', '--knn=3'], '--knn is for image or masked_image, not for --benchmarks'),
    (['--benchmarks=ptb', '--dataset=tiny'], '--dataset is for'),
    (['--stride=4'], '--stride is for --benchmarks, not for text'),
    (['--prompts=4'], '--prompts is for icl, not for text'),
    (['--benchmarks=ptb', '--results=no/where/r.csv'], 'no/where is no folder'),
    (['--benchmarks=ptb', '--data_dir=none'], 'prepare/ptb.py')])
def test_mistakes_get_one_line(words, message, run, prepared, capsys):
    assert message in fails(capsys, scores.main, f'--ckpt={run}', f'--data_dir={prepared}', *words)


def test_a_benchmark_is_no_dataset(run, prepared, tmp_path, capsys):
    for main, words in ((scores.main, [f'--ckpt={run}']), (train.main, [f'--out_dir={tmp_path}/x'])):
        assert '--benchmarks=ptb' in fails(capsys, main, *words, f'--data_dir={prepared}', '--dataset=ptb')


def test_another_table_is_left_as_it_is(run, prepared, tmp_path, capsys):
    words = [f'--ckpt={run}', f'--data_dir={prepared}', '--benchmarks=ptb', f'--results={tmp_path}/r.csv']
    (tmp_path / 'r.csv').write_text('step,loss\n1,2\n')
    assert 'left as it is' in fails(capsys, scores.main, *words)
    assert (tmp_path / 'r.csv').read_text() == 'step,loss\n1,2\n'


def test_only_networks_that_predict_the_next_token_are_scored(prepared, tmp_path, capsys):
    bert = save_run(tmp_path / 'bert', text_network('crate', causal=False, vocab_size=257), BYTES)
    pictures = save_run(tmp_path / 'pictures', CRATE(CRATEConfig(image_size=8, patch_size=4, n_layer=1, n_embd=12)),
                        {'kind': 'images', 'classes': None})
    for path, task in ((bert, 'masked_text'), (pictures, 'image')):
        told = fails(capsys, scores.main, f'--ckpt={path}', f'--data_dir={prepared}', '--benchmarks=ptb')
        assert f'--benchmarks is for text, not for {task}' in told
