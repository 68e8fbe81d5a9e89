"""Self-distillation in train.py, as in DINO and in SimDINO: teacher, frozen layer, scores by its teacher, and a
collapse that is noticed."""
import contextlib
import math
import re

import pytest
import torch
from helpers import column, fails, go, weights

import analyze
import eval as scores
import sample
import train
from engine.trained import load_model, open_run, read_last, read_weights
from model_dino import Half
from scoring import probes
from tasks.augment import config_of
from tasks.pictures import ImageSplit
from tasks.task_views import Distillation


def test_the_frozen_layer_does_not_move_not_even_by_decay(words_of, tmp_path):
    """Step 3 is the first that begins after half of the run."""
    go(*words_of('dino'), '--freeze_share=0.5', '--keep_checkpoints=true', '--eval_interval=1', '--pool=mean',
       f'--out_dir={tmp_path}/a')
    assert load_model(open_run(tmp_path / 'a')).config.pool == 'mean'
    held = [weights(tmp_path / 'a', f'step_{step}') for step in (0, 3, 4)]
    first, middle, last = (w['student.head.last_layer.weight_v'] for w in held)
    assert torch.equal(first, middle) and not torch.equal(middle, last)
    assert not torch.equal(*(w['student.head.mlp.0.weight'] for w in held[:2]))
    assert held[1]['share'] == pytest.approx(2 / 6) and held[2]['centre'].abs().sum() > 0
    assert not torch.equal(*(held[2][f'{half}.net.layers.0.ista.D'] for half in ('teacher', 'student')))


def test_the_best_weights_of_dino_are_the_last_and_of_simdino_those_of_the_least_loss(whole):
    """DINO's centre moves, so the loss of another step would say nothing. SimDINO's is negative, and the sum of its two
    logged parts."""
    dino, simdino = whole('dino'), whole('simdino')
    found = column(simdino, 'val')
    assert read_weights(dino / 'best.safetensors')[1] == 6 and read_last(simdino)['best'] == min(found) < 0
    for split in ('train', 'val'):
        parts = zip(*(column(simdino, split, name) for name in ('alignment', 'expansion')))
        assert column(simdino, split) == pytest.approx([-2 * a - e for a, e in parts], rel=1e-5)
    for e, i in zip(*(column(dino, 'val', name) for name in ('entropy', 'information'))):
        assert 0 < e < e + i < math.log(32) + 1e-5


def test_its_teacher_is_what_other_commands_see(whole, words_of, pictures_data, tmp_path, capsys):
    run, data = whole('dino'), f'--data_dir={pictures_data}'
    model, held = load_model(open_run(str(run))), weights(run, 'best')
    assert type(model).__name__ == 'CRATE'
    assert all(torch.equal(v, held[f'teacher.net.{k}']) for k, v in model.state_dict().items()
               if not k.startswith('read.head'))
    scores.main([f'--ckpt={run}', data, '--knn=3,100000', '--split=val'])
    counts = [int(n) for n in re.findall(r'(\d+) nearest neighbours', capsys.readouterr().out)]
    assert counts == [3, 40]  # there are no more pictures to ask
    analyze.main(['attention', f'--ckpt={run}', data, '--num_samples=2', f'--out={tmp_path}/x.png'])
    start = f'--init_from={run}', data, '--dataset=quads', f'--out_dir={tmp_path}/tuned', '--max_iters=2'
    for main, *more in ((sample.main, f'--ckpt={run}', f'--image={pictures_data}/quads'),
                        (scores.main, f'--ckpt={run}', data, '--split=val'), (train.main, *start)):
        assert '--new_head=true' in fails(capsys, main, *more)
    assert '--model=crate' in fails(capsys, train.main, *start, '--model=vit')
    go(*start, '--new_head=true')
    assert open_run(tmp_path / 'tuned')['model'] == 'crate'


@pytest.mark.parametrize('kind, collapse, word', [
    ('dino', lambda out: out[:1, :1].expand_as(out), 'the same of all'),
    ('dino', lambda out: torch.full_like(out, 1 / 32), 'nothing of any'),
    ('simdino', lambda z: z[:1].expand(len(z), -1), 'alike')])
def test_a_collapse_is_noticed(kind, collapse, word, words_of, tmp_path, capsys, monkeypatch):
    """After the first tenth of the run, and not where there is none."""
    metrics, features, warning, warned = Distillation.metrics, Half.features, Distillation.warning, []
    with monkeypatch.context() as patch:
        patch.setattr(Distillation, 'warning', lambda *args: warned.append(warning(*args)) or warned[-1])
        go(*words_of(kind), '--eval_iters=2', f'--out_dir={tmp_path}/a')
        assert warned == ['', '', '']
        if kind == 'dino':
            patch.setattr(Distillation, 'metrics', lambda self, out, loss, y: metrics(self, collapse(out), loss, y))
        else:
            patch.setattr(Half, 'features', lambda self, x: collapse(features(self, x)))
        go(*words_of(kind), '--eval_iters=2', f'--out_dir={tmp_path}/b')
    assert all(word in said for said in warned[3:]) and capsys.readouterr().out.count(warned[-1]) == 2


@pytest.mark.slow
@pytest.mark.parametrize('kind', ['dino', 'pictures'])
def test_features_are_scored_while_it_trains(kind, words_of, pictures_data, tmp_path):
    """By the teacher, as afterwards; the probe at a C that is always the same."""
    words = [word for word in words_of(kind) if 'ema' not in word]
    go(*words, '--eval_interval=2', '--probe_interval=4', '--keep_checkpoints=true', f'--out_dir={tmp_path}/a')
    assert [v == v for v in column(tmp_path / 'a', 'val', 'knn')] == [True, False, True, True]  # steps 0, 2, 4 and 6
    found = {name: column(tmp_path / 'a', 'val', name)[-1] for name in ('knn', 'probe')}
    held = open_run(tmp_path / 'a' / 'step_6.safetensors')
    model, view = load_model(held), config_of(held, eval_view='crop').view
    seen, val = (probes.features(model, ImageSplit(pictures_data / 'quads', split), contextlib.nullcontext(), 8, view)
                 for split in ('train', 'val'))
    assert probes.nearest_neighbours(seen, val, 4, 20) == pytest.approx(found['knn'])
    assert probes.accuracy_of(probes.fit_logistic(*seen, 4, C=1.0), *val) == pytest.approx(found['probe'])
