"""train.py on pictures, with classifiers and masked autoencoders: they learn, what is validated
and kept, the average of the weights, readers, and shares of the pictures."""
import pytest
from helpers import (HARD_PICTURES, OF_AUTOENCODERS, by_hand, column, config_of, equal, go, losses,
                     weights)

import eval as scores
from engine.checkpoint import RunDirectory
from tasks.pictures import ImageSplit
from weights.runs import open_run, read_last
from weights.surgery import load_model


# ---- they learn

DATASETS = {'crate': 'quads', 'vit': 'grey'}  # {network: what it learns}


@pytest.fixture(scope='module', params=DATASETS)
def long_run(request, quads, tmp_path_factory):
    out = tmp_path_factory.mktemp('long')
    go(*quads, f'--model={request.param}', f'--dataset={DATASETS[request.param]}',
       '--flip=false', '--crop_scale=1', '--randaugment_n=0', '--max_iters=80',
       '--eval_interval=40', '--learning_rate=1e-2', '--patch_size=8', f'--out_dir={out}')
    return out


@pytest.mark.slow
def test_every_network_learns_where_the_light_is(long_run):
    val_losses = column(long_run, 'val')

    assert val_losses[-1] < val_losses[0] - 0.5
    assert column(long_run, 'val', 'top1')[-1] > 0.9
    assert set(column(long_run, 'val', 'top5')) == {1}  # of four classes


@pytest.mark.slow
@pytest.mark.parametrize('name', OF_AUTOENCODERS)
def test_a_masked_autoencoder_learns_the_colours_of_pictures(name, quads, tmp_path):
    go(*quads, *OF_AUTOENCODERS[name], '--randaugment_n=0', '--max_iters=50',
       f'--out_dir={tmp_path}')

    val_losses = column(tmp_path, 'val')
    assert val_losses[-1] < 0.2 * val_losses[0]


# ---- the average of the weights

@pytest.fixture(scope='module')
def averaged_run(quads, tmp_path_factory):
    """(run, {step: last.pt})"""
    out = tmp_path_factory.mktemp('averaged')
    states = {}
    save_last = RunDirectory.save_last

    def save_and_read(self, *args):
        save_last(self, *args)
        state = read_last(out)
        states[state['step']] = state

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunDirectory, 'save_last', save_and_read)
        go(*quads, *HARD_PICTURES, '--eval_crop=1', '--eval_interval=1', '--keep_checkpoints=true',
           f'--out_dir={out}')
    return out, states


def test_the_average_is_that_of_the_weights(averaged_run):
    _, states = averaged_run

    assert sorted(states) == [0, 1, 2, 3, 4, 5, 6]
    assert equal(states[0]['average'], states[0]['weights'])
    for step in range(1, 7):
        for name, now in states[step]['weights'].items():
            expected = now  # the first step replaces what the weights began with
            if step > 1:
                expected = 0.9 * states[step - 1]['average'][name] + 0.1 * now
            assert (states[step]['average'][name] - expected).abs().max() < 1e-6


def scores_by_hand(state, out, pictures_data):
    """(loss, top-1) on the validation pictures of `quads`, without this project's pipeline."""
    model = load_model(open_run(out))
    model.load_state_dict(state)
    logits, y = by_hand(model, pictures_data / 'quads', 'val')
    loss = -logits.log_softmax(1)[range(len(y)), y].mean().item()
    return loss, (logits.argmax(1) == y).double().mean().item()


def test_the_average_is_validated_without_label_smoothing(averaged_run, pictures_data):
    out, states = averaged_run

    for step, (loss, top1) in enumerate(zip(column(out, 'val'), column(out, 'val', 'top1'))):
        expected_loss, expected_top1 = scores_by_hand(states[step]['average'], out, pictures_data)
        assert loss == pytest.approx(expected_loss, abs=1e-5)
        assert top1 == expected_top1
    # the weights themselves have another loss
    loss_of_weights, _ = scores_by_hand(states[6]['weights'], out, pictures_data)
    assert abs(loss_of_weights - expected_loss) > 1e-4


def test_the_average_is_what_checkpoints_keep(averaged_run):
    out, states = averaged_run

    assert equal(weights(out, 'step_6'), states[6]['average'])


# ---- pictures

def test_without_a_val_split_the_test_split_validates(quads, tmp_path, capsys):
    go(*quads, '--dataset=colours', f'--out_dir={tmp_path}')

    assert 'validates on test' in capsys.readouterr().out
    assert config_of(tmp_path)['image_size'] == [12, 8]


@pytest.mark.slow
def test_readers_change_nothing_of_pretraining_on_jpegs_of_all_sizes(pictures_data, tmp_path):
    words = [f'--data_dir={pictures_data}', *OF_AUTOENCODERS['vit_mae'], '--dataset=pack',
             '--image_size=8,12', '--patch_size=4', '--dtype=bfloat16']

    go(*words, '--workers=2', f'--out_dir={tmp_path}/two')
    go(*words, '--workers=0', f'--out_dir={tmp_path}/none')

    assert losses(tmp_path / 'two') == losses(tmp_path / 'none')
    assert column(tmp_path / 'two', 'val')[-1] < 5


def test_the_seed_says_which_pictures_are_shared_in_training_and_probing(
        quads, pictures_data, pretrained, tmp_path, monkeypatch):
    chosen = []
    init = ImageSplit.__init__

    def note_chosen(self, folder, split, *args):
        init(self, folder, split, *args)
        if split == 'train':
            chosen.append(self.chosen.tolist())

    def fine_tune(seed):
        go(*quads, f'--init_from={pretrained}/crate_mae', '--model=crate', '--patch_size=2',
           '--train_share=0.3', '--max_iters=1', f'--seed={seed}', f'--out_dir={tmp_path}/{seed}')

    def probe(run, *words):
        scores.main([f'--ckpt={tmp_path}/{run}', f'--data_dir={pictures_data}', '--knn=1',
                     '--train_share=0.3', *words])

    monkeypatch.setattr(ImageSplit, '__init__', note_chosen)
    fine_tune(5)
    probe(5)
    probe(5, '--seed=6')
    fine_tune(6)
    probe(6)

    trained_5, probed_5, probed_5_with_6, trained_6, probed_6 = chosen
    assert len(trained_5) == 12
    assert probed_5 == trained_5
    assert trained_6 != trained_5
    assert probed_6 == trained_6
    assert probed_5_with_6 == trained_6
