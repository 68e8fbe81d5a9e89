"""Numbers that make no sense, or that no machine holds: one line, and nothing is written."""
import numpy as np
import pytest
from helpers import fails

import analyze
import bench
import eval as scores
import sample
import train
from prepare import arrays, pairs

HUGE = 10 ** 23


@pytest.mark.parametrize('word', ['--dropout=1.1', '--dropout=-0.1', '--dropout=1', f'--batch_size={HUGE}', f'--seed={2 ** 64}',
                                  f'--max_iters={HUGE}', f'--block_size={2 ** 62}', f'--n_embd={2 ** 62}',
                                  f'--block_size={HUGE}'])
def test_of_a_run_of_text(word, tiny, tmp_path, capsys):
    fails(capsys, train.main, *tiny, word, f'--out_dir={tmp_path}/out')
    assert not (tmp_path / 'out').exists()


@pytest.mark.parametrize('word', ['--dropout=-1', '--label_smoothing=1.5', '--label_smoothing=-0.1', '--eval_crop=1e-9',
                                  '--eval_crop=0', '--crop_scale=2', '--train_share=0', f'--workers={HUGE}'])
def test_of_a_run_of_pictures(word, quads, tmp_path, capsys):
    fails(capsys, train.main, *quads, word, f'--out_dir={tmp_path}/out')
    assert not (tmp_path / 'out').exists()


@pytest.mark.parametrize('word', [f'--seed={2 ** 64}', '--seed=-1', f'--seed={HUGE}'])
def test_of_a_sample_and_a_figure(word, text_run, picture_run, pictures_data, tmp_path, capsys):
    fails(capsys, sample.main, f'--ckpt={text_run}', word)
    fails(capsys, analyze.main, 'layers', f'--ckpt={picture_run}', f'--data_dir={pictures_data}',
          f'--out={tmp_path}/l.png', word)
    fails(capsys, analyze.main, 'nearest', f'--out={tmp_path}/n.png', word)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize('word', ['--eval_crop=1e-9', '--batch_size=0', f'--workers={HUGE}'])
def test_of_an_evaluation(word, picture_run, pictures_data, capsys):
    fails(capsys, scores.main, f'--ckpt={picture_run}', f'--data_dir={pictures_data}', word)


def test_of_a_benchmark(capsys):
    fails(capsys, bench.main, f'--batch_size={HUGE}')


@pytest.mark.parametrize('count', [0, 1])
@pytest.mark.parametrize('kind', ['pictures', 'floats'])
def test_a_dataset_that_cannot_be_divided_is_one_line(kind, count, tmp_path, capsys):
    words = ['--images', f'{tmp_path}/x.npy', '--labels', f'{tmp_path}/y.npy']
    np.save(tmp_path / 'x.npy', np.zeros((count, 8, 8, 3), np.uint8))
    np.save(tmp_path / 'y.npy', np.zeros(count, int))
    if kind == 'floats':
        np.savez(tmp_path / 'd.npz', x=np.zeros((count, 3)), y=np.zeros(count))
        words = ['--npz', f'{tmp_path}/d.npz']
    fails(capsys, arrays.main, *words, '--out', f'{tmp_path}/d')
    assert not (tmp_path / 'd').exists()


@pytest.mark.parametrize('content', [None, '[' * 300_000, '{"prompt":' * 100_000, '[]', '3', '\udce9'])
def test_pairs_of_something_else_are_one_line(content, tmp_path, capsys):
    path = tmp_path / 'pairs.jsonl'
    if content is None:
        path.mkdir()
    else:
        path.write_text(content, errors='surrogateescape')
    fails(capsys, pairs.main, str(path), '--out', f'{tmp_path}/d')
    assert not (tmp_path / 'd').exists()
