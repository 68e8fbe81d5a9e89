"""Self-distillation in train.py, as in DINO and in SimDINO: stopped and resumed, by two processes, scored by its
teacher, and a collapse that is noticed."""
import contextlib
import json
import math
import os
import re
import shutil
import signal

import pytest
import torch
from helpers import column, equal, fails, go, losses, torchrun, weights

import analyze
import eval as scores
import sample
import train
from engine.trained import load_model, open_run, read_last, read_weights
from scoring import frozen
from model_dino import Half
from tasks.augment import config_of
from tasks.pictures import ImageSplit
from tasks.views import Distillation

SMALL = ['--model=dino', '--n_layer=1', '--n_head=2', '--n_embd=16', '--patch_size=4', '--n_out=32', '--hidden=16',
         '--bottleneck=8', '--local_crops=2', '--local_size=4', '--crop_scale=0.4', '--batch_size=8', '--max_iters=6',
         '--eval_interval=3', '--log_interval=1', '--warmup_iters=2', '--optimizer=adamw', '--dtype=float32',
         '--freeze_share=0.2', '--weight_decay_end=0.4', '--schedule=cosine']


@pytest.fixture(scope='module')
def words(pictures_data):
    return [f'--data_dir={pictures_data}', '--dataset=quads', *SMALL]


@pytest.fixture(scope='module')
def whole(words, tmp_path_factory):
    out = tmp_path_factory.mktemp('dino') / 'whole'
    go(*words, f'--out_dir={out}')
    return out


SIMDINO = ['--objective=simdino', '--eps=0.4', '--c=2']


@pytest.fixture(scope='module')
def simdino(words, tmp_path_factory):
    out = tmp_path_factory.mktemp('simdino') / 'whole'
    go(*words, *SIMDINO, f'--out_dir={out}')
    return out


@pytest.mark.parametrize('at', [0, 3])
@pytest.mark.parametrize('objective', ['dino', 'simdino'])
def test_stopped_and_resumed_it_goes_on_bit_for_bit(objective, at, whole, simdino, words, tmp_path, monkeypatch):
    """Teacher, centre and schedules included."""
    if objective == 'simdino':
        whole, words = simdino, [*words, *SIMDINO]
    batches = ImageSplit.batches

    def stop_at(*args, **more):
        for i, batch in enumerate(batches(*args, **more)):
            if i == at:
                os.kill(os.getpid(), signal.SIGINT)
            yield batch
    monkeypatch.setattr(ImageSplit, 'batches', stop_at)
    with pytest.raises(SystemExit):
        go(*words, f'--out_dir={tmp_path}/a')
    monkeypatch.setattr(ImageSplit, 'batches', batches)
    assert weights(tmp_path / 'a')['share'] == pytest.approx(at / 6)
    go('--init_from=resume', f'--out_dir={tmp_path}/a')
    assert losses(tmp_path / 'a') == losses(whole) and equal(weights(tmp_path / 'a'), weights(whole))
    held = weights(whole)
    assert held['share'] == pytest.approx(5 / 6) and (objective == 'simdino' or held['centre'].abs().sum() > 0)
    assert not torch.equal(held['teacher.net.layers.0.ista.D'], held['student.net.layers.0.ista.D'])


def test_the_first_step_has_the_teachers_first_momentum(words, tmp_path):
    """As in the released code: with momentum 0 the teacher is the student then."""
    go(*words, '--max_iters=1', '--warmup_iters=0', '--teacher_momentum=0', '--pool=mean', f'--out_dir={tmp_path}/a')
    held = weights(tmp_path / 'a')
    assert load_model(open_run(tmp_path / 'a')).config.pool == 'mean'
    assert all(torch.equal(v, held['student' + k.removeprefix('teacher')]) for k, v in held.items() if 'teacher' in k)


def test_the_frozen_layer_does_not_move_not_even_by_decay(words, tmp_path):
    go(*words, '--freeze_share=0.5', '--keep_checkpoints=true', f'--out_dir={tmp_path}/a')
    held = [weights(tmp_path / 'a', f'step_{step}') for step in (0, 3, 6)]
    first, middle, last = (w['student.head.last_layer.weight_v'] for w in held)
    assert torch.equal(first, middle) and not torch.equal(middle, last)
    assert not torch.equal(*(w['student.head.mlp.0.weight'] for w in held[:2]))


def test_its_best_weights_are_the_last(whole):
    """Its centre moves, so the loss of another step would say nothing."""
    assert read_weights(whole / 'best.safetensors')[1] == 6 and read_last(whole)['best'] == torch.inf


def test_the_best_weights_of_simdino_have_the_least_loss(simdino):
    """It is negative, and is that of its two logged parts."""
    found = column(simdino, 'val')
    step = 3 * min(range(len(found)), key=found.__getitem__)
    assert read_weights(simdino / 'best.safetensors')[1] == step and read_last(simdino)['best'] == min(found) < 0
    for split in ('train', 'val'):
        parts = zip(*(column(simdino, split, name) for name in ('alignment', 'expansion')))
        assert column(simdino, split) == pytest.approx([-2 * a - e for a, e in parts], rel=1e-5)


def test_a_negative_loss_can_be_the_target(simdino, words, tmp_path):
    target = sum(column(simdino, 'val')[:2]) / 2  # between those of steps 0 and 3
    go(*words, *SIMDINO, f'--target_loss={target}', f'--out_dir={tmp_path}/a')
    assert len(column(tmp_path / 'a', 'val')) == (2 if column(simdino, 'val')[1] < target else 1)


def test_without_a_cholesky_factor_the_step_is_named(words, tmp_path, capsys, monkeypatch):
    factor, calls = torch.linalg.cholesky_ex, []

    def fails_late(A):
        calls.append(1)
        factor_, failed = factor(A)
        return factor_, failed + (len(calls) > 8)
    monkeypatch.setattr(torch.linalg, 'cholesky_ex', fails_late)
    said = fails(capsys, train.main, *words, *SIMDINO, f'--out_dir={tmp_path}/a')
    assert re.search('is not finite at step [1-5]', said)


@pytest.mark.parametrize('more, message', [
    (['--c=0.1'], 'a collapse would not last'),
    (['--c=30', '--eps=2'], 'a collapse may last: .* correlate above 0.9.; give a smaller --c or --eps')])
def test_it_says_at_the_start_whether_a_collapse_would_last(more, message, words, tmp_path, capsys):
    go(*words, *SIMDINO, *more, '--max_iters=1', '--warmup_iters=0', f'--out_dir={tmp_path}/a')
    assert re.search(message, capsys.readouterr().out)


def test_passes_of_a_step_are_one_batch(whole, words, tmp_path):
    go(*words, '--batch_size=4', '--gradient_accumulation_steps=2', f'--out_dir={tmp_path}/a')
    assert column(tmp_path / 'a', 'train') == pytest.approx(column(whole, 'train'), rel=1e-4)
    for k in ('centre', 'teacher.net.layers.0.ista.D'):
        assert torch.allclose(weights(tmp_path / 'a')[k], weights(whole)[k], atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize('passes', [1, 2])
def test_two_processes_have_the_coding_rate_of_one(passes, words, tmp_path):
    """It is that of all pictures of a pass, and so is its gradient."""
    words = [*words, *SIMDINO, f'--gradient_accumulation_steps={passes}', '--grad_clip=0']
    torchrun(*words, f'--out_dir={tmp_path}/two')
    go(*words, f'--out_dir={tmp_path}/one')
    for split, names in (('train', ('loss', 'alignment', 'expansion', 'grad_norm')), ('val', ('loss',))):
        for name in names:
            two, one = (column(tmp_path / out, split, name) for out in ('two', 'one'))
            assert two == pytest.approx(one, rel=1e-3)
    D = 'teacher.net.layers.0.ista.D'
    assert torch.allclose(weights(tmp_path / 'two')[D], weights(tmp_path / 'one')[D], atol=1e-4)
    if passes == 2:
        said = torchrun(*words, '--batch_size=9', f'--out_dir={tmp_path}/nine', code=1)[1]
        assert '2 processes cannot share batch_size=9' in said


@pytest.mark.slow
def test_two_processes_equal_one(whole, words, tmp_path):
    """The centre is that of the whole batch, and the features that are scored are of all pictures."""
    torchrun(*words, '--probe_interval=3', f'--out_dir={tmp_path}/two')
    go(*words, '--probe_interval=3', f'--out_dir={tmp_path}/one')
    for name in ('knn', 'probe'):
        assert column(tmp_path / 'two', 'val', name) == pytest.approx(column(tmp_path / 'one', 'val', name), abs=0.02)
    assert column(tmp_path / 'two', 'train') == pytest.approx(column(whole, 'train'), rel=1e-3)
    for k in ('centre', 'teacher.net.layers.0.ista.D'):
        assert torch.allclose(weights(tmp_path / 'two')[k], weights(whole)[k], atol=1e-4)
    said = torchrun(*words, '--fsdp=true', f'--out_dir={tmp_path}/shared', code=1)[1]
    assert 'error: fsdp=true is not for DINO' in said and 'Traceback' not in said.split('error: fsdp')[0]


def test_its_teacher_is_what_other_commands_see(whole, words, pictures_data, tmp_path, capsys):
    model = load_model(open_run(str(whole)))
    assert type(model).__name__ == 'CRATE'
    held = weights(whole, 'best')
    assert all(torch.equal(v, held[f'teacher.net.{k}']) for k, v in model.state_dict().items()
               if not k.startswith('read.head'))
    data = f'--data_dir={pictures_data}'
    scores.main([f'--ckpt={whole}', data, '--knn=3', '--probe=true', '--split=val'])
    said = capsys.readouterr().out
    assert 'linear probe: top-1' in said and '3 nearest neighbours: top-1' in said
    analyze.main(['attention', f'--ckpt={whole}', data, '--num_samples=2', f'--out={tmp_path}/x.png'])
    for main, *words in ((sample.main, f'--ckpt={whole}', f'--image={pictures_data}/quads'),
                         (scores.main, f'--ckpt={whole}', data, '--split=val'),
                         (train.main, f'--init_from={whole}', data, '--dataset=quads', f'--out_dir={tmp_path}/none')):
        said = fails(capsys, main, *words)
        assert 'it was trained without labels' in said and '--new_head=true' in said and '--knn' in said
    go(f'--init_from={whole}', data, '--dataset=quads', '--new_head=true', '--max_iters=2',
       f'--out_dir={tmp_path}/tuned')
    assert open_run(tmp_path / 'tuned')['model'] == 'crate'


def test_a_run_of_another_version_is_named(whole, pictures_data, tmp_path, capsys):
    run = shutil.copytree(whole, tmp_path / 'run')
    config = json.loads((run / 'config.json').read_text())
    config['network']['other'] = 1
    (run / 'config.json').write_text(json.dumps(config))
    said = fails(capsys, scores.main, f'--ckpt={run}', f'--data_dir={pictures_data}', '--knn=3')
    assert 'of another version of DINOConfig' in said


def test_what_to_type_with_a_run_without_labels(whole, words, pictures_data, tmp_path, capsys):
    said = fails(capsys, train.main, *words, f'--init_from={whole}', f'--out_dir={tmp_path}/a')
    assert '--model=crate' in said
    scores.main([f'--ckpt={whole}', f'--data_dir={pictures_data}', '--knn=3,100000', '--split=val'])
    counts = [int(n) for n in re.findall(r'(\d+) nearest neighbours', capsys.readouterr().out)]
    assert counts[0] == 3 < counts[1] < 1000                            # there are no more pictures to ask


def test_a_collapse_is_noticed(words, tmp_path, capsys, monkeypatch):
    metrics = Distillation.metrics
    monkeypatch.setattr(Distillation, 'metrics', lambda self, out, loss, y: metrics(
        self, out[:1, :1].expand_as(out), loss, y))  # of every picture what is said of the first
    go(*words, f'--out_dir={tmp_path}/a')
    said = capsys.readouterr().out
    assert len(re.findall('step .* of 6  the teacher says the same of all pictures', said)) == 2  # not at step 0
    task = object.__new__(Distillation)
    even, apart = torch.full((2, 4, 20), 0.05), torch.eye(20)[:8].view(2, 4, 20)
    task.most_entropy, task.most_information = math.log(20), math.log(4)
    same = torch.randn(20).softmax(-1).expand(2, 4, 20)
    said = [task.warning(metrics(task, out, 0.0, even[0])[1]) for out in (even, apart, same)]
    assert 'says nothing of any picture' in said[0] and said[1] == '' and 'the same of all pictures' in said[2]


def test_a_collapse_of_simdino_is_noticed(words, tmp_path, capsys, monkeypatch):
    features = Half.features
    monkeypatch.setattr(Half, 'features', lambda self, x: features(self, x)[:1].expand(len(x), -1))
    go(*words, *SIMDINO, '--eval_iters=2', f'--out_dir={tmp_path}/a')
    said = capsys.readouterr().out
    assert len(re.findall('step .* of 6  the features of all pictures are alike', said)) == 2  # not at step 0


@pytest.mark.slow
@pytest.mark.parametrize('more', [[], ['--model=crate']], ids=['dino', 'crate'])
def test_features_are_scored_while_it_trains(more, words, pictures_data, tmp_path, capsys):
    """By the teacher: neighbours as eval.py scores them afterwards, the probe at a C that is always the same."""
    kept = words if not more else [w for w in words if w.partition('=')[0] in (
        '--data_dir', '--dataset', '--n_layer', '--n_head', '--n_embd', '--patch_size', '--dtype', '--batch_size')]
    go(*kept, *more, '--max_iters=6', '--eval_interval=2', '--probe_interval=4',
       '--keep_checkpoints=true', f'--out_dir={tmp_path}/a')
    assert [v == v for v in column(tmp_path / 'a', 'val', 'knn')] == [True, False, True, True]  # steps 0, 2, 4 and 6
    found = {name: column(tmp_path / 'a', 'val', name)[-1] for name in ('knn', 'probe')}
    capsys.readouterr()
    scores.main([f'--ckpt={tmp_path}/a/step_6.safetensors', f'--data_dir={pictures_data}', '--knn=20', '--split=val',
                 '--eval_view=crop', '--dtype=float32'])
    score = re.search(r'20 nearest neighbours: top-1 ([\d.]+)%', capsys.readouterr().out)
    assert float(score[1]) == pytest.approx(100 * found['knn'])
    held = open_run(tmp_path / 'a' / 'step_6.safetensors')
    model, view = load_model(held), config_of(held, eval_view='crop').view
    seen = [frozen.features(model, ImageSplit(pictures_data / 'quads', split), contextlib.nullcontext(), 8, view)
            for split in ('train', 'val')]
    assert frozen.accuracy_of(frozen.fit_logistic(*seen[0], 4, C=1.0), *seen[1]) == pytest.approx(found['probe'])


def test_entropies_are_logged(whole):
    found = zip(*(column(whole, 'val', name) for name in ('entropy', 'information')))
    assert all(0 < e < e + i < math.log(32) + 1e-5 for e, i in found)


@pytest.mark.parametrize('more, message', [
    (['--local_size=6'], 'local_size=6 is not divisible by patch_size'), (['--dataset=text'], 'holds text'),
    (['--backbone=nothing'], "backbone='nothing' is no network"), (['--local_crops=-1'], 'local_crops'),
    (['--ema=0.9'], '--ema and --telemetry are not'), (['--telemetry=true'], '--ema and --telemetry are not'),
    (['--local_size=-4'], 'local_size=-4 must lie between 1'),
    (['--randaugment_n=2'], '--randaugment_n is for image or masked_image'),
    (['--local_scale=0.5'], 'local_scale=0.5 must be at most crop_scale=0.4'),
    (['--model=crate', '--local_crops=3'], '--local_crops is for views'),
    (['--image_size=10'], 'divisible'), (['--objective=what'], "objective='what'"),
    (['--objective=simdino', '--eps=0'], 'eps=0'), (['--objective=simdino', '--c=-1'], 'c=-1')])
def test_mistakes_get_one_line(more, message, words, tmp_path, capsys):
    words = [w for w in words if not more[0].startswith('--model') or w.partition('=')[0] in (
        '--data_dir', '--dataset', '--n_layer', '--n_head', '--n_embd', '--patch_size', '--max_iters')]
    assert message in fails(capsys, train.main, *words, *more, f'--out_dir={tmp_path}/a')
