"""eval.py: what it prints is what one computes by hand, on each kind of data; mistakes get one
line."""
import csv
import re
from collections import Counter

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from helpers import (by_hand, column, config_of, fails, jpeg, loud, margin, normalized, quadrants, save_run, save_text,
                     snapshot, split_text, train_fast, weights)
from PIL import Image

import eval as scores
from engine.trained import load_model, open_run
from model_aot import AoT, AoTConfig
from model_crate import CRATE, CRATEConfig
from model_crate_mae import CRATEMAE, CRATEMAEConfig
from model_vit import ViT, ViTConfig
from model_vit_mae import ViTMAE, ViTMAEConfig
from prepare import official_weights
from prepare.lib.pictures import save_arrays, save_pack
from scoring import confusion, frozen
from tasks import augment
from tasks.augment import eval_pictures
from tasks.pictures import ImageSplit
from tasks.regression import Prompts
from tasks.tokenizer import Tokenizer

NUMBERS = 4, 1, 6, 2, 3, 5  # in the names of the pack's pictures, which are not in the order of their numbers
SMALL = dict(image_size=8, n_layer=1, n_head=2, n_embd=16, patch_size=4)
CLASSES = {'kind': 'images', 'classes': list('abcdefg')}
WORDS = ['--n_layer=1', '--n_head=2', '--n_embd=16', '--batch_size=8', '--max_iters=6', '--eval_interval=3',
         '--optimizer=adamw', '--dtype=float32']


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    """A data_dir: `lights` and `lights_2`, of 2 channels, with 7 classes, `four` with 4 others, a
    `pack` whose pictures are named as ImageNet's validation, and a `text`."""
    out = tmp_path_factory.mktemp('data')
    for name, C in (('lights', 3), ('lights_2', 2)):
        parts = (('train', 70, 0), ('val', 20, 1), ('test', 33, 2))
        save_arrays(out / name, {s: quadrants(n, seed, classes=7 if C == 3 else 4, channels=C) for s, n, seed in parts},
                    'abcdefg')
    save_arrays(out / 'four', {'train': quadrants(40), 'val': quadrants(20, 1)}, 'wxyz')
    names = {'train': [f'n0001/n0001_{n}.JPEG' for n in NUMBERS],
             'val': [f'n0001/ILSVRC2012_val_{n:08d}.JPEG' for n in NUMBERS]}
    pictures = {split: [(name, i, jpeg(9, 8 + i, i)) for i, name in enumerate(s)] for split, s in names.items()}
    save_pack(out / 'pack', pictures, 'abcdefg', workers=0)
    tokenizer = Tokenizer('bytes')
    save_text(out / 'text', tokenizer, *split_text('a token is no picture ' * 60, tokenizer))
    return out


def network(kind=CRATE, Config=CRATEConfig, **settings):
    torch.manual_seed(0)
    return loud(kind(Config(**SMALL | settings)))


@pytest.fixture(scope='module')
def run(tmp_path_factory):
    """The run of a classifier of seven classes, with weights that are random, but the same
    everywhere."""
    return save_run(tmp_path_factory.mktemp('runs') / 'a', network(num_classes=7), CLASSES, dataset='lights', seed=1)


def said(capsys, run, folder, *words):
    """What eval.py prints."""
    capsys.readouterr()
    scores.main([f'--ckpt={run}', f'--data_dir={folder}', '--dtype=float32', *words])
    return capsys.readouterr().out


def numbers(line):
    """(pictures, loss, top-1, top-5), shares as printed in percent."""
    found = re.search(r'([\d,]+) pictures, loss ([\d.]+), top-1 ([\d.]+)%, top-5 ([\d.]+)%', line)
    return tuple(float(n.replace(',', '')) for n in found.groups())


def expected(model, path, split):
    """The same numbers, computed by hand. No picture is so nearly a tie that rounding could decide
    it."""
    logits, y = by_hand(model, path, split)
    assert margin(logits, y) > 1e-4
    rank = (logits > logits.gather(1, y[:, None])).sum(1)
    shares = [100 * (rank < k).double().mean().item() for k in (1, 5)]
    return pytest.approx((len(y), F.cross_entropy(logits, y).item(), *shares), abs=6e-3)


# ---- classifiers

@pytest.mark.parametrize('split', ['test', 'val', 'train'])
def test_scores_are_those_computed_by_hand(split, run, folder, capsys):
    want = expected(network(num_classes=7), folder / 'lights', split)
    for words in ([], ['--batch_size=7'], ['--batch_size=1'], ['--eval_crop=1']):
        words = words if split == 'test' else [*words, f'--split={split}']  # test is the default
        line = said(capsys, run, folder, *words)
        assert f'lights {split}: ' in line and numbers(line) == want


def test_another_crop_is_another_picture(run, folder, capsys):
    assert numbers(said(capsys, run, folder, '--eval_crop=0.5')) != numbers(said(capsys, run, folder))


@pytest.mark.parametrize('words, view', [
    ([], 1.0), (['--eval_view=squash'], None), (['--eval_crop=0.5'], 0.5), (['--knn=1'], None),
    (['--knn=1', '--eval_view=crop'], 1.0), (['--knn=1', '--eval_crop=0.5'], 0.5)])
def test_a_whole_picture_is_seen_if_asked_for_and_by_frozen_features(words, view, run, folder, capsys, monkeypatch):
    views, real = [], eval_pictures
    monkeypatch.setattr(augment, 'eval_pictures', lambda *args: views.append(args[3]) or real(*args))
    out = said(capsys, run, folder, '--dataset=pack', '--workers=0', *words)
    assert set(views) == {view} and '6 pictures' in out


def test_a_score_agrees_with_validation_in_training(folder, tmp_path, capsys):
    """And it is that of the average of the weights, where the run has one."""
    train_fast('--model=crate', '--patch_size=4', f'--data_dir={folder}', '--dataset=lights', *WORDS, '--ema=0.5',
               '--keep_checkpoints=true', f'--out_dir={tmp_path}/a')
    averaged = CRATE(CRATEConfig(**open_run(tmp_path / 'a')['network']))
    averaged.load_state_dict(weights(tmp_path / 'a', 'average'), strict=False)
    line = said(capsys, f'{tmp_path}/a/step_6.safetensors', folder, '--split=val')
    assert numbers(line) == expected(averaged.eval(), folder / 'lights', 'val')
    logged = [column(tmp_path / 'a', 'val', name)[-1] for name in ('loss', 'top1', 'top5')]
    assert numbers(line)[1:] == pytest.approx((logged[0], 100 * logged[1], 100 * logged[2]), abs=6e-3)
    assert config_of(tmp_path / 'a')['eval_crop'] == 1.0


def test_another_resolution(run, folder, capsys):
    x, y = quadrants(33, 2, classes=7)
    model = load_model(open_run(run), image_size=16)
    logits = model(eval_pictures(torch.from_numpy(x), torch.tensor([[8, 8]] * 33), (16, 16), 1.0))[0]
    loss = F.cross_entropy(logits, torch.from_numpy(y)).item()
    assert numbers(said(capsys, run, folder, '--image_size=16'))[1] == pytest.approx(loss, abs=6e-5)
    told = fails(capsys, scores.main, f'--ckpt={run}', f'--data_dir={folder}', '--image_size=10')
    assert 'not divisible by patch_size' in told


def test_pictures_of_two_channels(folder, tmp_path, capsys):
    model = network(channels=2, num_classes=7)
    run = save_run(tmp_path / 'a', model, CLASSES, dataset='lights_2')
    assert numbers(said(capsys, run, folder)) == expected(model, folder / 'lights_2', 'test')
    told = fails(capsys, scores.main, f'--ckpt={run}', f'--data_dir={folder}', '--dataset=lights')
    assert 'channels' in told and 'another --dataset' in told


@pytest.mark.parametrize('name, kind, Config', [('crate', CRATE, CRATEConfig), ('vit', ViT, ViTConfig)])
def test_the_authors_file_is_scored(name, kind, Config, folder, tmp_path, capsys):
    model = network(kind, Config, num_classes=7)
    torch.save(model.to_official(), tmp_path / 'w.pth')
    official_weights.main([f'{tmp_path}/w.pth', '--model', name, '--n_head', '2', '--patch_size', '4', '--out_dir',
                           f'{tmp_path}/run'])
    found = numbers(said(capsys, tmp_path / 'run', folder, '--dataset=lights', '--eval_crop=1'))
    assert found == expected(model, folder / 'lights', 'test')
    assert 'give --dataset' in fails(capsys, scores.main, f'--ckpt={tmp_path}/run', f'--data_dir={folder}')


def test_real_labels(folder, run, tmp_path, capsys):
    images = ImageSplit(folder / 'pack', 'val')
    x, sizes, y, _ = next(images.fixed(6, 1))
    logits = network(num_classes=7)(eval_pictures(x, sizes, (8, 8), 1.0))[0].detach()
    assert margin(logits) > 1e-4
    labels = [[] for _ in NUMBERS]
    for i, (n, guess) in enumerate(zip(NUMBERS, logits.argmax(1).tolist())):
        labels[n - 1] = [[guess, 99], [99], [guess], [], [98], [99, guess]][i]
    (tmp_path / 'real.json').write_text(str(labels))
    words = ['--dataset=pack', '--workers=0']
    out = said(capsys, run, folder, *words, f'--real={tmp_path}/real.json')
    assert 'pack val: ReaL top-1 60.00%' in out and numbers(out)[0] == 6
    told = fails(capsys, scores.main, f'--ckpt={run}', f'--data_dir={folder}', *words, '--real=no_real.json')
    assert 'no_real.json' in told and 'reassessed-imagenet' in told


def test_confusions_are_counted_drawn_and_told(run, folder, tmp_path, capsys):
    logits, y = by_hand(network(num_classes=7), folder / 'lights', 'test')
    assert margin(logits) > 1e-4
    pairs = Counter(zip(y.tolist(), logits.argmax(1).tolist()))
    words = f'--confusion={tmp_path}/c.png', f'--ckpt={run}', f'--data_dir={folder}', '--dtype=float32'
    out = said(capsys, run, folder, *words)
    header, *rows = csv.reader((tmp_path / 'c.csv').read_text().splitlines())
    assert header == ['true class', *'abcdefg'] and [row[0] for row in rows] == list('abcdefg')
    assert {(i, j): int(n) for i, row in enumerate(rows) for j, n in enumerate(row[1:]) if int(n)} == pairs
    told = re.findall(r'^(\w) is taken for (\w): (\d+) of (\d+) \(', out, re.M)
    wrong = sorted((n for (i, j), n in pairs.items() if i != j), reverse=True)
    assert [int(n) for *_, n, _ in told] == wrong[:5] and len(told) > 2
    assert all(pairs['abcdefg'.index(i), 'abcdefg'.index(j)] == int(n) and int(of) == (y == 'abcdefg'.index(i)).sum()
               for i, j, n, of in told)
    counts = np.array([[int(n) for n in row[1:]] for row in rows])
    figure = confusion.drawn(counts, 'abcdefg')
    shares, written = figure.axes[0].images[0].get_array(), figure.axes[0].texts
    assert np.allclose(shares, [row / max(1, row.sum()) for row in counts])
    assert {(t.get_position()[1], t.get_position()[0]): int(t.get_text()) for t in written} == pairs
    assert figure.axes[0].get_ylabel() == 'true class' and Image.open(tmp_path / 'c.png').width > 400
    before = snapshot(tmp_path)
    for more, message in (((), 'exists'), ((f'--confusion={tmp_path}/c.txt',), 'must end with')):
        assert message in fails(capsys, scores.main, *words, *more)
    assert snapshot(tmp_path) == before
    said(capsys, run, folder, *words, '--overwrite=true')


def test_of_many_classes_confusions_are_drawn_without_names(tmp_path, capsys):
    labels, names = np.arange(82) % 41, [f'n{i}' for i in range(41)]
    confusion.report(labels, np.where(labels == 3, 5, labels), names, tmp_path / 'c.png')
    assert capsys.readouterr().out.startswith('n3 is taken for n5: 2 of 2 (100.0%)\n')
    assert (tmp_path / 'c.csv').read_text().count('\n') == 42 and Image.open(tmp_path / 'c.png').width > 400
    axis = confusion.drawn(np.eye(41), names).axes[0]
    assert not axis.texts and 'n5' not in [label.get_text() for label in axis.get_xticklabels()]
    confusion.report(labels % 9, labels % 9, names[:9], tmp_path / 'd.png')
    assert 'no picture is taken for one of another class' in capsys.readouterr().out and (tmp_path / 'd.png').exists()


# ---- frozen features

def test_frozen_features_are_scored_as_by_hand(run, folder, tmp_path, capsys, monkeypatch):
    """The test split has only pictures that the probe and the neighbours tell apart by far, so that
    no rounding decides."""
    monkeypatch.setattr(frozen, 'PROBE_C', (1.0,))
    model, many = network(num_classes=7), quadrants(70, 2, classes=7)
    (x, y), (u, v) = by_hand(model, folder / 'lights', 'train', model.features), (None, torch.from_numpy(many[1]))
    with torch.no_grad():
        u = model.features(normalized(many[0])).double()
    W = frozen.fit_logistic(x, y, 7, 1.0)
    probe = u @ W[:, :-1].T + W[:, -1]
    cosine = F.normalize(u, dim=1) @ F.normalize(x, dim=1).T
    near = cosine.sort(1, descending=True)
    votes = torch.zeros(70, 7, dtype=torch.float64)
    votes.scatter_add_(1, y[near.indices[:, :5]], (near.values[:, :5] / 0.07).exp())
    votes /= votes.amax(1, keepdim=True)
    clear = [i for i in range(70) if margin(probe[i:i + 1]) > 0.02 and margin(votes[i:i + 1]) > 0.02
             and near.values[i, 4] - near.values[i, 5] > 1e-5]
    assert len(clear) > 20 and min(margin(probe[clear]), margin(votes[clear])) > 0.02
    save_arrays(tmp_path / 'clear', {'train': quadrants(70, 0, classes=7), 'test': (many[0][clear], many[1][clear])},
                'abcdefg')
    right = [(s.argmax(1) == v)[clear].double().mean().item() for s in (probe, votes)]
    assert all(0.1 < share < 1 for share in right)
    out = said(capsys, run, tmp_path, '--dataset=clear', '--probe=true', '--knn=5,1', '--batch_size=16')
    assert f'linear probe: top-1 {right[0]:.2%} on test ({len(clear)} pictures), C = 1' in out
    assert f'5 nearest neighbours: top-1 {right[1]:.2%} on test' in out and 'top-5' not in out
    assert '\n1 nearest neighbours: top-1 ' in out


@pytest.mark.slow
def test_features_may_be_of_pictures_of_other_classes_and_of_few(run, folder, capsys):
    out = said(capsys, run, folder, '--dataset=four', '--probe=true', '--train_share=0.5')
    assert 'linear probe of 16 features, 20 training pictures' in out and 'on val (20 pictures)' in out
    sums = []
    for words in ([], ['--seed=1'], ['--seed=2']):  # the seed of the run is 1
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(frozen, 'linear_probe', lambda train, *rest: (sums.append(train[0].sum().item()) or 0.5, 1.0))
            said(capsys, run, folder, '--probe=true', '--train_share=0.5', *words)
    assert sums[0] == sums[1] != sums[2]


@pytest.mark.parametrize('pool', ['cls', 'mean'])
@pytest.mark.parametrize('kind, Config', [(CRATEMAE, CRATEMAEConfig), (ViTMAE, ViTMAEConfig)])
def test_features_of_masked_autoencoders(kind, Config, pool, folder, tmp_path, capsys):
    more = dict(decoder_n_layer=1, decoder_n_head=2, decoder_n_embd=16) if kind is ViTMAE else {}
    run = save_run(tmp_path / 'a', network(kind, Config, patch_size=2, **more), CLASSES, dataset='lights')
    out = said(capsys, run, folder, '--probe=true', '--knn=3', '--train_share=0.5', f'--pool={pool}')
    assert 'linear probe of 16 features, 35 training pictures' in out and '3 nearest neighbours' in out
    assert 'loss' not in out
    out = said(capsys, run, folder)
    assert re.search(r'33 pictures, 75% of their patches masked, loss [\d.]+; predicting the mean colour .*: [\d]', out)


def test_features_after_a_layer_are_those_of_a_network_that_ends_there(folder, tmp_path, capsys):
    deep = network(n_layer=3)
    short = network(n_layer=1)
    short.load_state_dict({k: v for k, v in deep.state_dict().items() if k in short.state_dict()})
    words = '--knn=1,3,5', '--train_share=0.5'
    scores = {}
    for name, model, more in (('deep', deep, ()), ('first', deep, ('--layer=1',)), ('all', deep, ('--layer=3',)),
                              ('short', short, ())):
        run = save_run(tmp_path / name, model, CLASSES, dataset='lights', seed=1)
        scores[name] = [line for line in said(capsys, run, folder, *words, *more).splitlines() if 'neighbours' in line]
    assert scores['first'] == scores['short'] != scores['deep'] == scores['all']


def test_a_network_without_features_is_refused(folder, run, capsys, monkeypatch):
    monkeypatch.delattr(CRATE, 'features')
    told = fails(capsys, scores.main, f'--ckpt={run}', f'--data_dir={folder}', '--knn=3')
    assert 'CRATE.features' in told and 'docs/extend.md' in told


# ---- masked autoencoders, text, functions: as in training

def test_reconstruction_agrees_with_validation_in_training(folder, tmp_path, capsys):
    train_fast('--model=crate_mae', '--patch_size=2', f'--data_dir={folder}', '--dataset=lights', *WORDS,
               '--keep_checkpoints=true', f'--out_dir={tmp_path}/a')
    out = said(capsys, f'{tmp_path}/a/step_6.safetensors', folder, '--split=val', '--batch_size=7')
    assert float(re.search(r'loss ([\d.]+);', out)[1]) == pytest.approx(column(tmp_path / 'a', 'val')[-1], abs=1e-4)


@pytest.mark.parametrize('causal', [True, False])
def test_text_scores_agree_with_validation_in_training(causal, folder, tmp_path, capsys):
    train_fast('--model=crate', f'--causal={causal}'.lower(), f'--data_dir={folder}', '--dataset=text', *WORDS,
               '--block_size=8', '--eval_iters=1000', '--keep_checkpoints=true', f'--out_dir={tmp_path}/a')
    row = {name: column(tmp_path / 'a', 'val', name)[-1] for name in
           (('loss', 'bits_per_byte') if causal else ('loss', 'top1', 'top5'))}
    for n in (3, 256):
        line = said(capsys, f'{tmp_path}/a/step_6.safetensors', folder, f'--batch_size={n}')
        if causal:
            found = re.search(r'text val: (\d+) tokens, loss ([\d.]+) nats, ([\d.]+) bits per byte', line)
            want = 132 // 8 * 8, row['loss'], row['bits_per_byte']
        else:
            found = re.search(r'(\d+) hidden tokens of 128, loss ([\d.]+) nats, top-1 ([\d.]+)%, top-5 ([\d.]+)%', line)
            want = float(found[1]), row['loss'], 100 * row['top1'], 100 * row['top5']
            assert 'always predicting the most frequent token: top-1' in line
        assert [float(g) for g in found.groups()] == pytest.approx(want, abs=6e-3)


def functions(out, **settings):
    return save_run(out, network(AoT, AoTConfig, image_size=0, block_size=12, n_dims=4, **settings),
                    {'kind': 'functions'}, dataset='linear', sparsity=3)


def test_errors_in_context_beside_those_of_estimators(tmp_path, capsys):
    runs = [functions(tmp_path / 'mssa'), functions(tmp_path / 'gpt2', attn='mhsa', mlp=True)]
    words = [f'--ckpt={runs[0]}', f'--beside={runs[1]}', '--prompts=50']
    scores.main(words)
    printed = capsys.readouterr().out
    with open(runs[0] / 'in_context.csv', newline='') as f:
        table = list(csv.DictReader(f))
    x, y = next(Prompts('linear', 4, 6).fixed(50, 1, stream=9))
    for path in runs:
        error = (load_model(open_run(path))(x, y)[0].detach() - y).square() / 4
        mine = [row for row in table if row['estimator'] == str(path)]
        assert [int(row['examples']) for row in mine] == list(range(6))
        assert [float(row['error']) for row in mine] == pytest.approx(error.mean(0).tolist(), rel=1e-4)
    others = {'least squares', '3 nearest neighbours', 'zero'}
    assert {row['estimator'] for row in table} == {*map(str, runs), *others}
    assert (runs[0] / 'in_context.png').exists() and 'least squares' in printed and 'float32' in printed
    before = (runs[0] / 'in_context.csv').read_bytes()
    assert '--overwrite=true' in fails(capsys, scores.main, *words)
    scores.main([*words, '--overwrite=true'])
    assert (runs[0] / 'in_context.csv').read_bytes() == before
    scores.main([*words, '--dataset=sparse_linear', f'--results={tmp_path}/sparse.csv'])  # functions that it never saw
    assert 'Lasso' in (tmp_path / 'sparse.csv').read_text()


# ---- mistakes

@pytest.mark.parametrize('words, message', [
    (['--dataset=four'], '7 classes, {}/four has 4 others (w, x, y ..); put a new head'),
    (['--dataset=text'], 'holds text'), (['--dataset=nothing'], 'no data in {}/nothing'),
    (['--split=dev'], 'no split dev, only train, val, test'), (['--batch_size=0'], 'batch_size=0 must be at least 1'),
    (['--knn=-1'], 'knn=-1 must be a number of neighbours'), (['--knn=5,0'], 'such as 10,20,100,200'),
    (['--eval_crop=2'], 'eval_crop=2.0 must lie between 0 and 1'), (['--split=train', '--knn=1'], 'score another'),
    (['--eval_view=all'], "eval_view='all' is unknown; choose crop or squash"),
    (['--workers=-2'], 'workers=-2'), (['--ckpt=nowhere'], 'no run in nowhere'), (['--n_embd=32'], 'do not fit'),
    (['--dtype=int8'], 'choose auto'), (['--probee=true'], 'did you mean probe'),
    (['--train_share=0'], 'train_share=0.0 must lie'), (['--stride=4'], '--stride is for --benchmarks, not for image'),
    (['--beside=x'], '--beside is for icl, not for image')])
def test_mistakes_get_one_line(words, message, run, folder, capsys):
    assert message.format(folder) in fails(capsys, scores.main, f'--ckpt={run}', f'--data_dir={folder}', *words)


def test_settings_of_other_tasks_are_refused(folder, tmp_path, capsys):
    text = save_run(tmp_path / 'text', network(AoT, AoTConfig, image_size=0, block_size=8, vocab_size=256),
                    {'kind': 'text', 'tokenizer': {'name': 'bytes'}}, dataset='text')
    for word in ('--probe=true', '--knn=3', '--real=real.json', '--prompts=3'):
        told = fails(capsys, scores.main, f'--ckpt={text}', f'--data_dir={folder}', word)
        assert 'not for text; leave it out' in told
    masked = save_run(tmp_path / 'masked', network(CRATEMAE, CRATEMAEConfig), CLASSES, dataset='lights')
    told = fails(capsys, scores.main, f'--ckpt={masked}', f'--data_dir={folder}', '--real=x.json')
    assert '--real is for image, not for masked_image' in told
    mine, three, many = functions(tmp_path / 'f'), tmp_path / 'three', f'--results={tmp_path}/new.csv'
    save_run(three, network(AoT, AoTConfig, image_size=0, block_size=12, n_dims=3), {'kind': 'functions'})
    for words, message in (
            (['--split=val'], 'not for icl'), (['--knn=3'], 'not for icl'), (['--stride=4'], 'not for icl'),
            (['--prompts=1'], 'prompts=1 '), (['--dataset=cubic'], 'linear or sparse_linear'),
            (['--beside=nowhere'], 'no run in nowhere'), ([f'--beside={text}'], 'does not read the prompts'),
            ([f'--beside={three}'], 'three does not read the prompts'),
            (['--benchmarks=all'], '--benchmarks is for text'),
            ([f'--results={tmp_path}/new/x.csv'], 'cannot be written')):
        assert message in fails(capsys, scores.main, f'--ckpt={mine}', many, *words)
    assert not list(tmp_path.glob('new*'))
    letters = Tokenizer('chars', 'abc')
    save_text(tmp_path / 'letters', letters, *split_text('abc' * 200, letters))
    told = fails(capsys, scores.main, f'--ckpt={text}', f'--data_dir={tmp_path}', '--dataset=letters')
    assert 'chars' in told
    assert 'reads text' in fails(capsys, scores.main, f'--ckpt={text}', f'--data_dir={folder}', '--dataset=lights')


def test_help_lists_every_setting(capsys):
    scores.main(['--help'])
    out = capsys.readouterr().out
    assert all(f'--{name}=' in out for name in scores.EvalConfig.__dataclass_fields__)
