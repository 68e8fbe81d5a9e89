"""eval.py: what it prints is what one computes by hand; the probe never looks at the test set."""
import json
import math
import re

import pytest
import torch
import torch.nn.functional as F
from conftest import fails, losses
from test_images import WORDS, by_hand, config_of, jpeg, official, quadrants

from tasks import files as data
import eval as ev
from engine import checkpoints as models
from engine import run as rundir
import train
from tasks.augment import eval_pictures
from prepare.lib.pictures import save_arrays, save_pack
from tasks.tokenizer import Tokenizer

NUMBERS = (4, 1, 6, 2, 3, 5)  # in the names of the pack's pictures, which are not in the order of their numbers


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    """A data_dir: `lights` of 7 classes, `four` of 4, a `pack` with the names of ImageNet's validation, and a `text`."""
    out = tmp_path_factory.mktemp('data')
    save_arrays(out / 'lights', {'train': quadrants(70, 0, 8, 7), 'val': quadrants(20, 1, 8, 7),
                                 'test': quadrants(33, 2, 8, 7)}, 'abcdefg')
    save_arrays(out / 'four', {'train': quadrants(40), 'val': quadrants(20, 1)}, 'wxyz')
    names = {'train': [f'n0001/n0001_{n}.JPEG' for n in NUMBERS],
             'val': [f'n0001/ILSVRC2012_val_{n:08d}.JPEG' for n in NUMBERS]}
    pictures = {split: [(name, i, jpeg(9, 8 + i, i)) for i, name in enumerate(s)] for split, s in names.items()}
    save_pack(out / 'pack', pictures, 'abcdefg', workers=0)
    tokenizer = Tokenizer('bytes')
    data.save_text(out / 'text', tokenizer, *data.split_text('a token is no picture ' * 60, tokenizer))
    return out


@pytest.fixture(scope='module')
def trained(folder, tmp_path_factory):
    """A run on `lights`, not good at it."""
    out = tmp_path_factory.mktemp('runs') / 'trained'
    train.main([f'--data_dir={folder}', '--dataset=lights', *WORDS, '--learning_rate=1e-2', '--max_iters=20',
                '--eval_interval=10', f'--out_dir={out}'])
    return out


def said(capsys, trained, folder, *words):
    """What eval.py prints."""
    capsys.readouterr()
    ev.main([f'--ckpt={trained}/last.pt', f'--data_dir={folder}', '--dtype=float32', *words])
    return capsys.readouterr().out


def numbers(line):
    """(pictures, loss, top-1, top-5), shares as printed in percent."""
    found = re.search(r'([\d,]+) pictures, loss ([\d.]+), top-1 ([\d.]+)%, top-5 ([\d.]+)%', line)
    return tuple(float(n.replace(',', '')) for n in found.groups())


def hits(logits, y, k):
    """Percent of pictures whose class is among the k likeliest, picture by picture."""
    return 100 * sum(y[i].item() in sorted(range(7), key=lambda c: -logits[i, c].item())[:k] for i in range(len(y))) / len(y)


@pytest.mark.parametrize('split', ['test', 'val', 'train'])
def test_scores_are_those_computed_by_hand(split, trained, folder, capsys):
    logits, y, loss = by_hand(models.load_model(rundir.load_checkpoint(trained / 'last.pt')), folder / 'lights', split)
    want = (len(y), loss, hits(logits, y, 1), hits(logits, y, 5))
    assert want[2] < want[3] < 100
    line = said(capsys, trained, folder, *([] if split == 'test' else [f'--split={split}']))  # the test split unless told
    assert f'lights {split}: ' in line and numbers(line) == pytest.approx(want, abs=6e-3) and numbers(line)[0] == want[0]


def test_batches_change_nothing_and_validation_agrees(trained, folder, capsys):
    lines = [said(capsys, trained, folder, '--split=val', f'--batch_size={n}') for n in (1, 7, 20, 1000)]
    for line in lines:
        assert numbers(line) == pytest.approx(numbers(lines[0]), abs=2e-4)
    row = losses(trained)[-1].split(',')
    assert numbers(lines[0])[1:] == pytest.approx((float(row[2]), 100 * float(row[4]), 100 * float(row[5])), abs=6e-3)


def test_the_crop_is_that_of_training_unless_told(trained, folder, capsys):
    default = said(capsys, trained, folder)
    assert config_of(trained)['eval_crop'] == 1.0 and said(capsys, trained, folder, '--eval_crop=1') == default
    assert said(capsys, trained, folder, '--eval_crop=0.5') != default


def test_another_resolution_and_a_run_directory(trained, folder, capsys):
    checkpoint = rundir.load_checkpoint(trained / 'last.pt')
    x, y = quadrants(33, 2, 8, 7)
    model = models.load_model(checkpoint, image_size=16)
    logits = model(eval_pictures(torch.from_numpy(x), torch.tensor([[8, 8]] * 33), (16, 16), 1.0))[0]
    loss = F.cross_entropy(logits, torch.from_numpy(y)).item()
    assert numbers(said(capsys, trained, folder, '--image_size=16'))[1] == pytest.approx(loss, abs=6e-5)
    wrong = [f'--ckpt={trained}', f'--data_dir={folder}', '--image_size=10']
    assert 'not divisible by patch_size' in fails(capsys, ev.main, *wrong)
    best = rundir.load_checkpoint(trained / 'best.pt')
    loss = by_hand(models.load_model(best), folder / 'lights', 'test')[2]
    ev.main([f'--ckpt={trained}', f'--data_dir={folder}', '--dtype=float32'])
    assert numbers(capsys.readouterr().out)[1] == pytest.approx(loss, abs=6e-5)


def test_the_average_is_what_is_scored(folder, tmp_path, capsys):
    train.main([f'--data_dir={folder}', '--dataset=lights', *WORDS, '--ema=0.5', f'--out_dir={tmp_path}/a'])
    checkpoint = rundir.load_checkpoint(tmp_path / 'a' / 'last.pt')
    model = models.load_model(checkpoint)
    model.load_state_dict(checkpoint['ema'])
    loss = by_hand(model, folder / 'lights', 'test')[2]
    assert numbers(said(capsys, tmp_path / 'a', folder))[1] == pytest.approx(loss, abs=6e-5)


@pytest.mark.parametrize('name', ['crate', 'vit'])
def test_the_authors_file_is_scored(name, folder, tmp_path, capsys):
    model = official(name, tmp_path / 'w.pth', image_size=8)
    start = [f'--ckpt=official:{tmp_path}/w.pth', f'--data_dir={folder}', '--dtype=float32', f'--model={name}', '--n_head=3',
             '--patch_size=4']
    ev.main([*start, '--dataset=lights', '--eval_crop=1'])
    assert numbers(capsys.readouterr().out)[1] == pytest.approx(by_hand(model, folder / 'lights', 'test')[2], abs=6e-5)
    for words, message in ((start, 'give --dataset'), ([w for w in start if 'n_head' not in w], 'give --n_head'),
                           ([w for w in start if 'model' not in w], '--model=crate or --model=vit'),
                           ([*start, '--dataset=four'], '7 classes'), ([*start, '--n_heads=3'], 'did you mean n_head'),
                           ([*start, '--dataset=text'], 'reads images')):
        assert message in fails(capsys, ev.main, *words)


@pytest.mark.parametrize('words, message', [
    (['--dataset=four'], '7 classes (a, b, c ..) apart, {}/four has 4 others (w, x, y ..); put a new head'),
    (['--dataset=text'], 'holds text'),
    (['--dataset=nothing'], 'no prepared data in {}/nothing'), (['--split=dev'], 'no split dev, only train, val, test'),
    (['--batch_size=0'], 'batch_size >= 1'), (['--knn=-1'], 'knn >= 0'), (['--eval_crop=2'], 'eval_crop <= 1'),
    (['--workers=-2'], 'workers'),
    (['--ckpt=nowhere'], 'no checkpoint nowhere'), (['--n_embd=32'], 'does not fit'), (['--real=x'], 'lights does not'),
    (['--dtype=int8'], 'choose auto'),
    (['--probee=true'], 'did you mean probe')])
def test_mistakes_get_one_line(words, message, trained, folder, capsys):
    assert message.format(folder) in fails(capsys, ev.main, f'--ckpt={trained}', f'--data_dir={folder}', *words)


def words_for_text(folder):
    return [f'--data_dir={folder}', '--dataset=text', '--n_layer=1', '--n_head=2', '--n_embd=16', '--block_size=8']


def test_text_scores_as_in_training(folder, tmp_path, capsys):
    out = tmp_path / 'a'
    train.main([*words_for_text(folder), '--batch_size=4',
                '--max_iters=3', '--eval_iters=1000', '--optimizer=adamw', '--dtype=float32', f'--out_dir={out}'])
    loss, bits = (float(n) for n in losses(out)[-1].split(',')[2:4])
    for n in (3, 256):
        line = said(capsys, out, folder, f'--batch_size={n}')
        found = re.search(r'text val: (\d+) tokens, loss ([\d.]+) nats, ([\d.]+) bits per byte, at a context of 8', line)
        assert [float(g) for g in found.groups()] == pytest.approx([132 // 8 * 8, loss, bits], abs=1e-4)
    tokenizer = Tokenizer('chars', 'abc')
    data.save_text(tmp_path / 'letters', tokenizer, *data.split_text('abc' * 200, tokenizer))
    assert 'other tokens' in fails(capsys, ev.main, f'--ckpt={out}', f'--data_dir={tmp_path}', '--dataset=letters')
    assert 'reads text' in fails(capsys, ev.main, f'--ckpt={out}', f'--data_dir={folder}', '--dataset=lights')


@pytest.mark.parametrize('words', [['--probe=true'], ['--knn=3'], ['--real=real.json']])
def test_what_is_for_pictures_is_refused_on_text(words, folder, tmp_path, capsys):
    train.main([*words_for_text(folder), '--max_iters=0',
                f'--out_dir={tmp_path}/a'])
    assert 'pictures' in fails(capsys, ev.main, f'--ckpt={tmp_path}/a', f'--data_dir={folder}', *words)


def test_the_model_of_a_run_cannot_be_another(trained, folder, capsys):
    assert 'crate' in fails(capsys, ev.main, f'--ckpt={trained}', f'--data_dir={folder}', '--model=vit')


# ---- the linear probe

def blobs(n, seed, d=5, classes=3, noise=1.0):
    """Features about a centre a class, and labels."""
    g = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % classes
    centres = torch.randn(classes, d, generator=torch.Generator().manual_seed(99))
    return centres[y] + noise * torch.randn(n, d, generator=g), y


def objective(W, x, y, C):
    """What the docstring of fit_logistic says, summand by summand."""
    losses = [-(W[:, :-1] @ x[i] + W[:, -1]).log_softmax(0)[y[i]] for i in range(len(y))]
    return torch.stack(losses).sum() + (W[:, :-1] ** 2).sum() / (2 * C)


@pytest.mark.parametrize('C', [0.01, 1.0, 1000.0])
def test_logistic_regression_finds_the_least_of_its_objective(C):
    x, y = blobs(40, 0)
    x = x.double()
    W = ev.fit_logistic(x, y, 3, C).requires_grad_()
    least = objective(W, x, y, C)
    least.backward()
    assert W.grad.abs().max() < 1e-3
    brute = torch.zeros(3, 6, dtype=torch.float64)  # Newton's method, the Hessian by differentiating
    for _ in range(12):
        gradient = torch.autograd.functional.jacobian(lambda W: objective(W, x, y, C), brute)
        hessian = torch.autograd.functional.hessian(lambda W: objective(W, x, y, C), brute).reshape(18, 18)
        brute = brute - (torch.linalg.pinv(hessian, rtol=1e-12) @ gradient.flatten()).view(3, 6)  # biases may shift together
    assert least.item() == pytest.approx(objective(brute, x, y, C).item(), rel=1e-6)
    assert torch.allclose(ev.scores(W, x).softmax(1), ev.scores(brute, x).softmax(1), atol=1e-3)
    start = torch.randn(3, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    assert torch.allclose(ev.scores(ev.fit_logistic(x, y, 3, C, start), x).softmax(1), ev.scores(W, x).softmax(1), atol=1e-3)


def test_little_penalty_separates_what_can_be_separated_and_much_leaves_only_the_bias():
    x, y = blobs(30, 0, d=40)
    assert (ev.scores(ev.fit_logistic(x.double(), y, 3, 1e5), x.double()).argmax(1) == y).all()
    few = torch.arange(30) < 24
    W = ev.fit_logistic(x[few].double(), y[few] // 2, 2, 1e-6)
    assert W[:, :-1].abs().max() < 1e-3
    assert W[:, -1].softmax(0).tolist() == pytest.approx([16 / 24, 8 / 24], abs=1e-3)  # the bias is free


def test_the_probe_chooses_on_held_out_pictures_alone(monkeypatch):
    train, test = blobs(100, 0, noise=1.5), blobs(60, 1, noise=1.5)
    fit, sets, lines = ev.fit_logistic, [], []

    def noted(x, y, classes, C, start=None):
        sets.append((x, y, C))
        return fit(x, y, classes, C, start)
    monkeypatch.setattr(ev, 'fit_logistic', noted)
    accuracy, C = ev.linear_probe(train, test, 3, say=lines.append)
    assert [s[2] for s in sets] == [*ev.PROBE_C, C] == [1, 10, 100, 1e3, 1e4, 1e5, C]
    rows = [{tuple(row) for row in x.tolist()} for x, _, _ in sets]
    everything = {tuple(row) for row in train[0].double().tolist()}
    assert rows[-1] == everything
    assert all(len(r) == 80 and r == rows[0] < everything for r in rows[:-1])  # a fifth is held out
    held = torch.tensor([tuple(row) not in rows[0] for row in train[0].double().tolist()])
    right = []
    for _, _, c in sets[:-1]:
        W = fit(train[0][~held].double(), train[1][~held], 3, c)
        right.append((ev.scores(W, train[0][held].double()).argmax(1) == train[1][held]).double().mean().item())
    printed = [float(re.search(r'top-1 ([\d.]+)%', line)[1]) for line in lines]
    assert printed == pytest.approx([100 * r for r in right], abs=6e-3)
    assert C == ev.PROBE_C[right.index(max(right))]  # of equals the smallest
    W = fit(train[0].double(), train[1], 3, C)
    by_hand = sum((W[:, :-1] @ f.double() + W[:, -1]).argmax() == label for f, label in zip(*test)) / 60
    assert accuracy == pytest.approx(by_hand.item())
    scrambled = test[0], test[1].flip(0)
    again = ev.linear_probe(train, scrambled, 3, say=str)
    assert again[1] == C and again[0] != accuracy


def test_the_probe_takes_a_large_c_where_it_is_needed():
    x, y = blobs(60, 0, d=4, noise=0.1)
    assert ev.linear_probe((x * 0.01, y), (x * 0.01, y), 3, say=str)[1] >= 100  # else features so small do not count
    assert ev.linear_probe((x, y), (x, y), 3, say=str) == (1.0, 1.0)


# ---- neighbours

@pytest.mark.parametrize('k', [1, 4, 50])
def test_neighbours_vote_as_in_a_naive_loop(k):
    (x, y), (u, v) = blobs(30, 0, noise=2.0), blobs(300, 1, noise=2.0)
    right = 0
    for feature, label in zip(u, v):
        s = torch.stack([feature @ other / feature.norm() / other.norm() for other in x])
        near = sorted(range(30), key=lambda i: -s[i])[:k]
        votes = [sum(math.exp(s[i] / 0.07) for i in near if y[i] == c) for c in range(3)]
        right += votes.index(max(votes)) == label
    assert 0.4 < right / 300 < 1 and ev.nearest_neighbours((x, y), (u, v), 3, k) == right / 300
    assert ev.nearest_neighbours((x, y), (x, y), 3, 1) == 1


def test_frozen_features_are_scored_as_by_hand(trained, folder, capsys, monkeypatch):
    monkeypatch.setattr(ev, 'PROBE_C', (0.1, 1.0))  # soon done
    model = models.load_model(rundir.load_checkpoint(trained / 'last.pt'))
    model.head = torch.nn.Identity()
    (x, y, _), (u, v, _) = (by_hand(model, folder / 'lights', split) for split in ('train', 'test'))
    out = said(capsys, trained, folder, '--probe=true', '--knn=5')
    accuracy, C = ev.linear_probe((x.float(), y), (u.float(), v), 7, say=str)
    assert f'linear probe: top-1 {accuracy:.2%} on test (33 pictures), C = {C:g}' in out
    right = ev.nearest_neighbours((x, y), (u, v), 7, 5)
    assert f'5 nearest neighbours: top-1 {right:.2%} on test' in out and 'top-5' not in out
    out = said(capsys, trained, folder, '--dataset=four', '--probe=true')  # the features of other classes' pictures, too
    assert 'on val (20 pictures)' in out


# ---- ImageNet-ReaL

def real_json(tmp_path, labels):
    (tmp_path / 'real.json').write_text(json.dumps(labels))
    return tmp_path / 'real.json'


def test_real_labels_are_looked_up_by_the_number_in_the_name(tmp_path):
    path = real_json(tmp_path, [[0], [1, 5], [], [3], [], [2]])  # pictures 1 .. 6
    names = [f'x/ILSVRC2012_val_{n:08d}.JPEG'.encode() for n in NUMBERS]  # 4 1 6 2 3 5; 3 and 5 have no label
    assert ev.real_accuracy([3, 0, 2, 5, 9, 9], names, path) == 1
    assert ev.real_accuracy([3, 9, 2, 1, 0, 0], names, path) == 3 / 4
    assert ev.real_accuracy([0, 1, 3, 2, 0, 0], names, path) == 0


@pytest.mark.parametrize('content, message', [
    (None, 'does not hold the labels'), ('{', 'does not hold the labels'), ([[0]] * 3, 'does not hold the labels'),
    (7, 'does not hold the labels'),
    ([5] * 6, 'does not hold the labels'), ([[]] * 6, 'no label for any'),
    ({'a': [1]}, 'does not hold the labels')])
def test_another_file_than_real_json_is_refused_by_name(content, message, tmp_path):
    path = tmp_path / 'real.json'
    if content is not None:
        path.write_text(content if isinstance(content, str) else json.dumps(content))
    names = [f'ILSVRC2012_val_{n:08d}.JPEG'.encode() for n in NUMBERS]
    with pytest.raises(ValueError, match=message) as e:
        ev.real_accuracy([0] * 6, names, path)
    assert str(path) in str(e.value)


@pytest.mark.parametrize('name', ['n0001_{}.JPEG', 'Abyssinian_{}.jpg',
                                  pytest.param('ILSVRC2012_val_00000000.JPEG', id='zero')])
def test_names_that_are_not_imagenets_validation_are_refused(name, tmp_path):
    with pytest.raises(ValueError, match='val split of imagenet'):
        ev.real_accuracy([0] * 6, [name.format(n).encode() for n in NUMBERS], real_json(tmp_path, [[0]] * 6))


def test_real_labels_from_the_command_line(trained, folder, tmp_path, capsys):
    checkpoint = rundir.load_checkpoint(trained / 'last.pt')
    images, model = data.Images(folder / 'pack', 'val', 0), models.load_model(checkpoint)
    x, sizes, y, _ = next(images.fixed(6, 1))
    guesses = model(eval_pictures(x, sizes, (8, 8), 1.0))[0].argmax(1).tolist()
    labels = [[] for _ in NUMBERS]
    for i, (n, guess) in enumerate(zip(NUMBERS, guesses)):
        labels[n - 1] = [[guess, 99], [99], [guess], [], [98], [99, guess]][i]
    out = said(capsys, trained, folder, '--dataset=pack', '--workers=0', f'--real={real_json(tmp_path, labels)}')
    assert 'pack val: ReaL top-1 60.00%' in out and numbers(out)[0] == 6
    wrong = [f'--ckpt={trained}', f'--data_dir={folder}', '--dataset=pack', '--workers=0', f'--real={tmp_path}/no_real.json']
    assert 'no_real.json' in fails(capsys, ev.main, *wrong)


def test_help_lists_every_setting(capsys):
    ev.main(['--help'])
    out = capsys.readouterr().out
    assert all(f'--{name}=' in out for name in ev.EvalConfig.__dataclass_fields__)
