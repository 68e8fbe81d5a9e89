"""eval.py: what it prints is what training logged, and what one computes by hand, on each kind of data."""
import csv
import re
from collections import Counter

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from helpers import (BYTES, by_hand, column, fails, go, jpeg, loud, margin, quadrants, save_pack,
                     save_run, snapshot, text_network)
from small_benchmarks import PTB, prepare, write_archives

import eval as scores
from engine import networks
from lib.pictures import save_arrays
from lib.texts import save_text
from scoring import benchmarks, probes, regression
from tasks import augment
from tasks.augment import eval_pictures
from tasks.pictures import ImageSplit
from tasks.regression import Prompts
from tasks.streams import SCORED_PROMPTS
from weights.runs import open_run, read_weights
from weights.surgery import load_model

NUMBERS = 4, 1, 6, 2, 3, 5  # in the names of the pack's pictures, which are not in the order of their numbers
CLASSES = {'kind': 'images', 'classes': list('abcdefg')}


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    """A data_dir: `lights`, and a `pack` whose pictures are named as ImageNet's validation."""
    out = tmp_path_factory.mktemp('data')
    save_arrays(out / 'lights', {split: quadrants(n, seed, classes=7) for split, n, seed in (
        ('train', 70, 0), ('val', 20, 1), ('test', 33, 2))}, 'abcdefg')
    names = {'train': [f'n0001/n0001_{n}.JPEG' for n in NUMBERS],
             'val': [f'n0001/ILSVRC2012_val_{n:08d}.JPEG' for n in NUMBERS]}
    save_pack(out / 'pack', {split: [(name, i, jpeg(9, 8 + i, i)) for i, name in enumerate(s)]
                             for split, s in names.items()}, 'abcdefg', workers=0)
    return out


def saved(out, name='crate', **settings):
    """(a network with weights that are random, but the same everywhere, its run)."""
    Network, Config = networks.network_class(name), networks.config_class(name)
    torch.manual_seed(0)
    model = loud(Network(Config(**dict(image_size=8, n_layer=1, n_head=2, n_embd=16, patch_size=4) | settings)))
    return model, save_run(out, model, CLASSES, dataset='lights', seed=1)


@pytest.fixture(scope='module')
def run(tmp_path_factory):
    """The run of a classifier of seven classes, which was trained with dropout, on a share of the
    pictures. It is scored on all of them and without dropout."""
    model, out = saved(tmp_path_factory.mktemp('runs') / 'a', num_classes=7, dropout=0.6)
    return save_run(out, model, CLASSES, dataset='lights', seed=1, train_share=0.5)


def said(capsys, run, folder, *words):
    """What eval.py prints."""
    capsys.readouterr()
    scores.main([f'--ckpt={run}', f'--data_dir={folder}', '--dtype=float32', *words])
    return capsys.readouterr().out


def numbers(text):
    """The numbers behind the words loss and top-1, in order, and in front of `bits per byte`."""
    text = re.split('; always|; predict', text)[0]
    found = re.findall(r'(?:loss|top-[15]) ([\d.]+)|([\d.]+) bits per byte', text)
    return [float(a or b) for a, b in found]


@pytest.mark.parametrize('kind', ['text', 'masked_text', 'pictures', 'crate_mae', 'vit_mae'])
def test_scores_are_those_of_validation_in_training(kind, words_of, pictures_data, tmp_path, capsys):
    """Of the average of the weights, where the run has one; whatever the size of a batch."""
    of_text = ['--dataset=text', '--block_size=8'] if 'text' in kind else []
    go(*words_of(kind), f'--data_dir={pictures_data}', *of_text, '--eval_iters=1000', f'--out_dir={tmp_path}/a')
    row = read_weights(tmp_path / 'a' / 'best.safetensors')[1] // 3
    logged = [column(tmp_path / 'a', 'val', name)[row] for name in ('loss', 'bits_per_byte', 'top1', 'top5')]
    want = [n * 100 if i > 1 else n for i, n in enumerate(logged) if n == n]
    for batch in (3, 256):
        out = said(capsys, tmp_path / 'a', pictures_data, '--split=val', f'--batch_size={batch}')
        assert numbers(out) == pytest.approx(want, abs=6e-3)


@pytest.mark.parametrize('words, view', [
    ([], 1.0), (['--eval_view=squash'], None), (['--knn=1'], None),
    (['--knn=1', '--eval_crop=0.5', '--image_size=16'], 0.5)])
def test_a_whole_picture_is_seen_if_asked_for_and_by_frozen_features(words, view, run, folder, capsys, monkeypatch):
    views, real = [], eval_pictures
    monkeypatch.setattr(augment, 'eval_pictures', lambda *args: views.append(args[2:4]) or real(*args))
    said(capsys, run, folder, '--dataset=pack', '--workers=0', *words)
    assert set(views) == {((16, 16) if '--image_size=16' in words else (8, 8), view)}


def test_real_labels(folder, run, tmp_path, capsys):
    x, sizes, y, _ = next(ImageSplit(folder / 'pack', 'val').fixed(6, 1))
    logits = load_model(open_run(run))(eval_pictures(x, sizes, (8, 8), 1.0))[0].detach()
    assert margin(logits) > 1e-4
    labels = [[] for _ in NUMBERS]
    for i, (n, guess) in enumerate(zip(NUMBERS, logits.argmax(1).tolist())):
        labels[n - 1] = [[guess, 99], [99], [guess], [], [98], [99, guess]][i]
    (tmp_path / 'real.json').write_text(str(labels))
    words = f'--ckpt={run}', f'--data_dir={folder}', '--dataset=pack', '--workers=0', f'--real={tmp_path}/real.json'
    assert 'top-1 60.00%' in said(capsys, run, folder, *words)
    (tmp_path / 'real.json').write_text(str([[] for _ in NUMBERS]))  # of no picture
    assert 'real.json' in fails(capsys, scores.main, *words)


@pytest.mark.parametrize('split, words', [('test', []), ('train', ['--split=train', '--eval_crop=1'])])
def test_scores_and_confusions_are_those_computed_by_hand(split, words, run, folder, tmp_path, capsys):
    """On the test split, if no other is named. No picture is so nearly a tie that rounding could decide it."""
    logits, y = by_hand(load_model(open_run(run)), folder / 'lights', split)
    assert margin(logits, y) > 1e-4
    pairs = Counter(zip(y.tolist(), logits.argmax(1).tolist()))
    words = f'--confusion={tmp_path}/c.png', f'--ckpt={run}', f'--data_dir={folder}', '--dtype=float32', *words
    out = said(capsys, run, folder, *words)
    shares = [100 * (logits.topk(k).indices == y[:, None]).any(1).double().mean().item() for k in (1, 5)]
    assert numbers(out)[:3] == pytest.approx([F.cross_entropy(logits, y).item(), *shares], abs=6e-3)
    header, *rows = csv.reader((tmp_path / 'c.csv').read_text().splitlines())
    assert header[1:] == list('abcdefg') == [row[0] for row in rows]
    assert {(i, j): int(n) for i, row in enumerate(rows) for j, n in enumerate(row[1:]) if int(n)} == pairs
    worst = sorted((-n, i, j) for (i, j), n in pairs.items() if i != j)[:5]
    told = [f'{"abcdefg"[i]} is taken for {"abcdefg"[j]}: {-n} of {(y == i).sum()}' for n, i, j in worst]
    assert re.findall(r'^\w is taken for \w: \d+ of \d+', out, re.M) == told and len(told) > 2
    before = snapshot(tmp_path)
    assert 'exists' in fails(capsys, scores.main, *words) and snapshot(tmp_path) == before
    said(capsys, run, folder, *words, '--overwrite=true')
    assert Image.open(tmp_path / 'c.png').width > 400


@pytest.mark.parametrize('labels', [
    [3] * 4 + [5] + [6] * 7, [0, 0, 1, 2, 3, 4, 5, 6]])
def test_unequal_classes_are_scored_each_and_equally(labels, run, tmp_path, capsys):
    """Some classes may have no pictures in the split."""
    pictures, _ = quadrants(len(labels), 3, classes=7)
    save_arrays(tmp_path / 'odd', {'val': (pictures, np.array(labels))}, 'abcdefg')
    logits, y = by_hand(load_model(open_run(run)), tmp_path / 'odd', 'val')
    assert margin(logits) > 1e-4

    out = said(capsys, run, tmp_path, '--dataset=odd', '--eval_crop=1')
    right = 100.0 * (logits.argmax(1) == y)
    classes, counts = y.unique(return_counts=True)
    shares = [right[y == label].mean().item() for label in classes]
    names, numbers_of, percent = zip(*re.findall(r'^([a-g]) +(\d+) +([\d.]+)%$', out, re.M))
    assert ''.join(names) == ''.join('abcdefg'[i] for i in classes) and [*map(int, numbers_of)] == counts.tolist()
    assert [*map(float, percent)] == pytest.approx(shares, abs=6e-3)
    assert float(re.findall(r'([\d.]+)%$', out)[0]) == pytest.approx(np.mean(shares), abs=6e-3)


@pytest.mark.parametrize('labels', [[0, 1, 2, 3, 4, 5, 6] * 2, [4, 4]])
def test_equal_classes_are_scored_in_one_line(labels, run, tmp_path, capsys):
    pictures, _ = quadrants(len(labels), 3, classes=7)
    save_arrays(tmp_path / 'even', {'val': (pictures, np.array(labels))}, 'abcdefg')
    assert said(capsys, run, tmp_path, '--dataset=even').count('\n') == 2


# ---- frozen features

@pytest.mark.parametrize('name, pool, more', [
    ('crate', '', dict(num_classes=7)), ('crate_mae', 'cls', dict(patch_size=2)),
    ('crate_mae', 'mean', dict(patch_size=2)),
    ('vit_mae', 'cls', dict(decoder_n_layer=1, decoder_n_head=2, decoder_n_embd=16))])
def test_frozen_features_are_scored(name, pool, more, folder, tmp_path, capsys, monkeypatch):
    """Those of the network, learnt from the training pictures and scored on the others."""
    monkeypatch.setattr(probes, 'PROBE_C', (1.0,))
    model, run = saved(tmp_path / 'a', name, **more)
    model = load_model(open_run(run), pool=pool) if pool else model
    train, test = ((x.float(), y) for x, y in (by_hand(model, folder / 'lights', split, model.features)
                                               for split in ('train', 'test')))
    out = said(capsys, run, folder, '--probe=true', '--knn=5,1', *[f'--pool={pool}'] * bool(pool))
    want = [probes.linear_probe(train, test, 7)[0], *(probes.nearest_neighbours(train, test, 7, k) for k in (5, 1))]
    assert [n / 100 for n in numbers(out)[-3:]] == pytest.approx(want, abs=0.031)  # a picture more or less


def test_features_after_a_layer_are_those_of_a_network_that_ends_there(folder, tmp_path, capsys):
    deep, run = saved(tmp_path / 'deep', n_layer=3)
    short = saved(tmp_path / 'short')[0]
    short.load_state_dict({k: v for k, v in deep.state_dict().items() if k in short.state_dict()})
    runs = {'short': (save_run(tmp_path / 'short', short, CLASSES, dataset='lights', seed=1), []), 'deep': (run, []),
            'first': (run, ['--layer=1']), 'all': (run, ['--layer=3'])}
    found = {name: numbers(said(capsys, run, folder, '--knn=1,3,5', '--train_share=0.5', *more))
             for name, (run, more) in runs.items()}
    assert found['first'] == found['short'] != found['deep'] == found['all']


# ---- functions in context, and language benchmarks

@pytest.mark.slow
def test_errors_in_context_beside_those_of_estimators(tmp_path, capsys):
    """Also of functions that the network never saw."""
    runs = [save_run(tmp_path / name, loud(text_network('aot', n_dims=4, block_size=12, **more)), {'kind': 'functions'},
                     dataset='linear', sparsity=3)
            for name, more in (('mssa', {}), ('gpt2', dict(attn='mhsa', mlp=True)))]
    words = [f'--ckpt={runs[0]}', f'--beside={runs[1]}', '--prompts=50']
    for dataset, scale in ('linear', 4), ('sparse_linear', 3):
        out = tmp_path / f'{dataset}.csv'
        scores.main([*words, f'--dataset={dataset}', f'--results={out}'])
        x, y = next(Prompts(dataset, 4, 6).fixed(50, 1, stream=SCORED_PROMPTS))
        guesses = {str(path): load_model(open_run(path))(x, y)[0].detach() for path in runs} | {
            name: regression.predictions(estimate, x, y) for name, estimate in regression.ESTIMATORS.items()
            if dataset != 'linear' or name != 'Lasso'} | {'zero': 0 * y}
        table = list(csv.DictReader(out.read_text().splitlines()))
        assert [(row['estimator'], row['examples']) for row in table] == [(k, i) for k in guesses for i in '012345']
        errors = (torch.stack([*guesses.values()]) - y).square() / scale
        for key, want in ('error', errors.mean(1)), ('standard_error', errors.std(1) / 50 ** 0.5):
            assert [float(row[key]) for row in table] == pytest.approx(want.flatten().tolist(), rel=1e-4, abs=1e-6)
    scores.main(words)
    assert {'in_context.csv', 'in_context.png'} <= {path.name for path in runs[0].iterdir()}
    assert '--overwrite=true' in fails(capsys, scores.main, *words)


def test_results_of_benchmarks_accumulate(tmp_path, capsys):
    """`all` are those that are prepared; the command that prepares each of the others is said."""
    archives, run = write_archives(tmp_path), save_run(tmp_path / 'run', text_network('aot', vocab_size=256), BYTES)
    data, few = prepare(archives, tmp_path / 'data'), tmp_path / 'few'
    out = said(capsys, run, data, '--benchmarks=ptb')
    said(capsys, run, data, '--benchmarks=all', '--stride=3')
    columns, first, *table = csv.reader((run / 'results.csv').read_text().splitlines())
    assert columns == list(benchmarks.COLUMNS) and len(table) == 1 + 3 * 2 + 5 + 2
    *what, loss, count, of, tokenizer, context, stride = first
    assert what == [str(run), '0', 'ptb', 'loss'] and count == str(len(PTB)) and f'{float(loss):.4f} ' in out
    assert (of, tokenizer, context, stride) == ('tokens', 'bytes', '16', '8')
    assert table[-1][-4:] == ['questions', 'bytes', '16', '3']
    assert 'python prepare/' in fails(capsys, scores.main, f'--ckpt={run}', f'--data_dir={few}', '--benchmarks=all')
    save_text(few / 'ptb', PTB, 'ptb.test.txt')
    out = said(capsys, run, few, '--benchmarks=all', f'--results={tmp_path}/r.csv')
    assert 'prepare/cbt.py' in out and 'prepare/ptb.py' not in out
    assert len((tmp_path / 'r.csv').read_text().splitlines()) == 3
    (tmp_path / 'r.csv').write_text('step,loss\n1,2\n')  # another table, which is left as it is
    fails(capsys, scores.main, f'--ckpt={run}', f'--data_dir={few}', '--benchmarks=ptb', f'--results={tmp_path}/r.csv')
    assert (tmp_path / 'r.csv').read_text() == 'step,loss\n1,2\n'
