"""Self-distillation in train.py, as in DINO and in SimDINO: teacher, frozen layer, scores by the
teacher, and a collapse that is noticed."""
import math
import re
import shutil
from types import SimpleNamespace

import pytest
import torch
from helpers import column, edited, fails, go, weights

import analyze
import eval as scores
import sample
import train
from engine.device import Device
from model_dino import Branch, DINOConfig
from scoring import probes
from tasks.augment import config_of
from tasks.pictures import ImageSplit
from tasks.task_views import Distillation
from weights.runs import open_run, read_config, read_last, read_weights
from weights.surgery import load_model


# ---- student and teacher

@pytest.fixture(scope='module')
def half_frozen_run(words_of, tmp_path_factory):
    """Six steps. Step 3 is the first that begins after half of the run."""
    out = tmp_path_factory.mktemp('frozen')
    go(*words_of('dino'), '--freeze_share=0.5', '--keep_checkpoints=true',
       '--eval_interval=1', '--pool=mean', f'--out_dir={out}')
    return out


def test_the_frozen_layer_does_not_move_not_even_by_decay(half_frozen_run):
    name = 'student.head.last_layer.weight_v'
    layer_beside = 'student.head.mlp.0.weight'
    before, after_3, after_4 = (weights(half_frozen_run, f'step_{step}') for step in (0, 3, 4))

    assert torch.equal(after_3[name], before[name])
    assert not torch.equal(after_3[layer_beside], before[layer_beside])
    assert not torch.equal(after_4[name], before[name])


def test_share_and_centre_are_saved(half_frozen_run):
    assert weights(half_frozen_run, 'step_3')['share'] == pytest.approx(2 / 6)
    assert weights(half_frozen_run, 'step_4')['centre'].abs().sum() > 0


def test_the_network_inside_has_the_pool_that_was_typed(half_frozen_run):
    assert load_model(open_run(half_frozen_run)).config.pool == 'mean'


# ---- losses

@pytest.fixture
def dino_run(whole):
    return whole('dino')


def test_the_best_weights_of_dino_are_the_last(dino_run):
    # its centre moves, so the loss of another step would say nothing
    assert read_weights(dino_run / 'best.safetensors')[1] == 6
    assert read_last(dino_run)['best'] is None


@pytest.mark.parametrize('split', ['train', 'val'])
def test_the_loss_of_simdino_is_the_sum_of_its_logged_parts(split, whole):
    run = whole('simdino')
    alignments = column(run, split, 'alignment')
    expansions = column(run, split, 'expansion')

    for loss, a, e in zip(column(run, split), alignments, expansions):
        assert loss == pytest.approx(-2 * a - e, rel=1e-5)


def test_entropy_and_information_of_dino_are_at_most_those_of_32_prototypes(dino_run):
    entropies = column(dino_run, 'val', 'entropy')
    informations = column(dino_run, 'val', 'information')

    for entropy, information in zip(entropies, informations):
        assert entropy > 0
        assert information > 0
        assert entropy + information < math.log(32) + 1e-5


# ---- runs of earlier versions

def test_a_run_with_the_old_names_of_settings_goes_on(dino_run, pictures_data, tmp_path):
    out = tmp_path / 'old'
    shutil.copytree(dino_run, out)
    with edited(out / 'config.json') as run:
        for old, new in DINOConfig.old_names.items():
            run['network'][old] = run['network'].pop(new)

    go('--init_from=resume', f'--out_dir={out}', f'--data_dir={pictures_data}', '--max_iters=7')

    assert read_config(out).network == read_config(dino_run).network
    assert read_last(out)['step'] == 7


# ---- other commands

@pytest.fixture
def dino_and_data(dino_run, pictures_data):
    """Command-line words."""
    return [f'--ckpt={dino_run}', f'--data_dir={pictures_data}']


@pytest.fixture
def fine_tuning(dino_run, pictures_data, tmp_path):
    """Command-line words."""
    return [f'--init_from={dino_run}', f'--data_dir={pictures_data}', '--dataset=quads',
            '--max_iters=2', f'--out_dir={tmp_path}']


def test_the_teacher_is_loaded(dino_run):
    model = load_model(open_run(dino_run))

    saved = weights(dino_run, 'best')
    assert type(model).__name__ == 'CRATE'
    for name, weight in model.state_dict().items():
        if not name.startswith('read.head'):
            assert torch.equal(weight, saved[f'teacher.net.{name}'])


def test_eval_asks_as_many_neighbours_as_there_are(dino_and_data, capsys):
    scores.main([*dino_and_data, '--knn=3,100000', '--split=val'])

    assert re.findall(r'(\d+) nearest neighbours', capsys.readouterr().out) == ['3', '40']


def test_analyze_draws_attention(dino_and_data, tmp_path):
    analyze.main(['attention', *dino_and_data, '--num_samples=2', f'--out={tmp_path}/x.png'])


def test_sample_needs_a_head(dino_run, pictures_data, capsys):
    error = fails(capsys, sample.main, f'--ckpt={dino_run}', f'--image={pictures_data}/quads')

    assert '--new_head=true' in error


def test_eval_needs_a_head(dino_and_data, capsys):
    assert '--new_head=true' in fails(capsys, scores.main, *dino_and_data, '--split=val')


def test_fine_tuning_is_of_the_network_inside_with_a_new_head(fine_tuning, tmp_path, capsys):
    assert '--new_head=true' in fails(capsys, train.main, *fine_tuning)
    assert '--model=crate' in fails(capsys, train.main, *fine_tuning, '--model=vit')

    go(*fine_tuning, '--new_head=true')

    assert open_run(tmp_path).model == 'crate'


# ---- collapse

@pytest.fixture
def warnings(monkeypatch):
    """What validations warn of, one after the other."""
    warnings = []
    warning_of = Distillation.warning

    def note_warning(self, metrics):
        warnings.append(warning_of(self, metrics))
        return warnings[-1]

    monkeypatch.setattr(Distillation, 'warning', note_warning)
    return warnings


@pytest.mark.parametrize('kind', ['dino', 'simdino'])
def test_a_run_without_a_collapse_has_no_warning(kind, words_of, warnings, tmp_path):
    go(*words_of(kind), '--eval_iters=2', f'--out_dir={tmp_path}')

    assert warnings == ['', '', '']


def first_of_all(x):
    return x[:1].expand_as(x)


def first_of_all_crops(x):
    return x[:1, :1].expand_as(x)


def uniform(x):
    return torch.full_like(x, 1 / 32)


@pytest.mark.slow
@pytest.mark.parametrize('kind, holder, name, collapse, words', [
    ('dino', Distillation, 'metrics', first_of_all_crops, 'the same of all'),
    ('dino', Distillation, 'metrics', uniform, 'nothing of any'),
    ('simdino', Branch, 'features', first_of_all, 'alike'),
])
def test_a_collapse_is_noticed_after_the_first_validation(
        kind, holder, name, collapse, words, words_of, warnings, tmp_path, capsys, monkeypatch):
    """metrics gets probabilities, features gets pictures. Here they are the same for all."""
    function = getattr(holder, name)

    def collapsed(self, x, *args):
        return function(self, collapse(x), *args)

    monkeypatch.setattr(holder, name, collapsed)
    go(*words_of(kind), '--eval_iters=2', f'--out_dir={tmp_path}')

    for warning in warnings:
        assert words in warning
    assert capsys.readouterr().out.count(warnings[-1]) == 2


# ---- scores of features

@pytest.fixture(scope='module', params=['dino', 'pictures'])
def probed_run(request, words_of, tmp_path_factory):
    out = tmp_path_factory.mktemp('probed')
    words = [word for word in words_of(request.param) if 'ema' not in word]
    go(*words, '--eval_interval=2', '--probe_interval=4', '--keep_checkpoints=true',
       f'--out_dir={out}')
    return out


@pytest.mark.slow
def test_features_are_scored_at_the_interval_and_at_the_end(probed_run):
    is_missing = [math.isnan(score) for score in column(probed_run, 'val', 'knn')]

    assert is_missing == [False, True, False, False]  # of steps 0, 2, 4 and 6


@pytest.mark.slow
def test_features_are_scored_as_afterwards(probed_run, pictures_data):
    """Those of the teacher, if there is one; the probe with a C that is always the same."""
    run = open_run(probed_run / 'step_6.safetensors')
    model = load_model(run)
    task = SimpleNamespace(device=Device('cpu', 'float32', 'false'), c=SimpleNamespace(batch_size=8),
                           augment=config_of(run, eval_view='crop'))

    features = []
    for split in ('train', 'val'):
        pictures = ImageSplit(pictures_data / 'quads', split)
        features.append(probes.features(model, pictures, task))
    train_features, val_features = features
    knn = probes.nearest_neighbours(train_features, val_features, 4, 20)
    probe = probes.fit_logistic(*train_features, 4, C=1.0)

    assert knn == pytest.approx(column(probed_run, 'val', 'knn')[-1])
    accuracy = probes.accuracy_of(probe, *val_features)
    assert accuracy == pytest.approx(column(probed_run, 'val', 'probe')[-1])
