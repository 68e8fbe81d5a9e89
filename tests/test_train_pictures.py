"""train.py on pictures, of classifiers and masked autoencoders: they learn, what is validated and kept, the average of
the weights, readers, shares of the pictures."""
import pytest
from helpers import HARD_PICTURES, OF_AUTOENCODERS, by_hand, column, config_of, equal, go, losses, weights

import eval as scores
from engine.checkpoint import RunDirectory
from engine.trained import load_model, open_run, read_last
from tasks.pictures import ImageSplit

pytestmark = pytest.mark.usefixtures('quick')


@pytest.mark.parametrize('model, dataset', [('aot', 'quads'), ('crate', 'quads'), ('vit', 'grey')])
def test_every_network_learns_where_the_light_is(model, dataset, quads, tmp_path):
    go(*quads, f'--model={model}', f'--dataset={dataset}', '--flip=false', '--crop_scale=1', '--randaugment_n=0',
       '--max_iters=80', '--eval_interval=40', '--learning_rate=1e-2', '--patch_size=8', f'--out_dir={tmp_path}/a')
    loss, top1, top5 = (column(tmp_path / 'a', 'val', name) for name in ('loss', 'top1', 'top5'))
    assert loss[-1] < loss[0] - 0.5 and top1[-1] > 0.9 and set(top5) == {1}  # there are 4 classes
    assert config_of(tmp_path / 'a')['channels'] == (1 if dataset == 'grey' else 3)


@pytest.mark.parametrize('name', OF_AUTOENCODERS)
def test_a_masked_autoencoder_learns_the_colours_of_pictures(name, quads, tmp_path):
    go(*quads, *OF_AUTOENCODERS[name], '--randaugment_n=0', '--max_iters=50', f'--out_dir={tmp_path}/a')
    assert column(tmp_path / 'a', 'val')[-1] < 0.2 * column(tmp_path / 'a', 'val')[0]


def loss_by_hand(state, out, pictures_data):
    """(loss, top-1) on the validation pictures of `quads`, without this project's pipeline."""
    model = load_model(open_run(out))
    model.load_state_dict(state)
    logits, y = by_hand(model, pictures_data / 'quads', 'val')
    return -logits.log_softmax(1)[range(len(y)), y].mean().item(), (logits.argmax(1) == y).double().mean().item()


def test_the_average_is_that_of_the_weights_and_is_what_is_validated(quads, pictures_data, tmp_path, monkeypatch):
    """And label smoothing, which acts in training alone, is not in the loss."""
    steps, save, out = {}, RunDirectory.save_last, tmp_path / 'a'

    def keep(self, *state):
        save(self, *state)
        last = read_last(out)
        steps[last['step']] = last
    monkeypatch.setattr(RunDirectory, 'save_last', keep)
    go(*quads, *HARD_PICTURES, '--eval_interval=1', '--keep_checkpoints=true', f'--out_dir={out}')
    assert sorted(steps) == list(range(7)) and equal(steps[0]['weights'], steps[0]['average'])
    average = None
    for step, loss, top1 in zip(range(7), column(out, 'val'), column(out, 'val', 'top1')):
        now = steps[step]['weights']
        average = now if step <= 1 else {k: 0.9 * v + 0.1 * now[k] for k, v in average.items()}
        assert all((v - steps[step]['average'][k]).abs().max() < 1e-6 for k, v in average.items())
        want = loss_by_hand(average, out, pictures_data)
        assert loss == pytest.approx(want[0], abs=1e-5) and top1 == want[1]
    assert equal(weights(out, 'step_6'), steps[6]['average'])
    assert abs(want[0] - loss_by_hand(steps[6]['weights'], out, pictures_data)[0]) > 1e-4


def test_without_a_val_split_the_test_split_validates(quads, tmp_path, capsys):
    """With the sizes of the dataset's own pictures."""
    go(*quads, '--dataset=colours', f'--out_dir={tmp_path}/a')
    assert 'validates on test' in capsys.readouterr().out and config_of(tmp_path / 'a')['image_size'] == [12, 8]


@pytest.mark.parametrize('name', OF_AUTOENCODERS)
def test_pretraining_on_jpegs_of_all_sizes_with_readers_in_bfloat16(name, quads, tmp_path):
    words = [quads[0], *OF_AUTOENCODERS[name], '--dataset=pack', '--image_size=8,12', '--patch_size=4',
             '--dtype=bfloat16']
    for workers in (2, 0):
        go(*words, f'--workers={workers}', f'--out_dir={tmp_path}/{workers}')
    assert losses(tmp_path / '2') == losses(tmp_path / '0') and column(tmp_path / '2', 'val')[-1] < 5


def test_the_seed_says_which_pictures_are_shared_in_training_and_probing(quads, pretrained, tmp_path, monkeypatch):
    asked, init = [], ImageSplit.__init__

    def note(self, folder, split, *args):
        init(self, folder, split, *args)
        if split == 'train':
            asked.append(self.chosen.tolist())
    monkeypatch.setattr(ImageSplit, '__init__', note)
    few = f'--init_from={pretrained}/crate_mae', '--model=crate', '--train_share=0.3', '--max_iters=1'
    probe = quads[0], '--knn=1', '--train_share=0.3'
    for seed in (5, 6):
        go(*quads, *few, '--patch_size=2', f'--seed={seed}', f'--out_dir={tmp_path}/{seed}')
        scores.main([f'--ckpt={tmp_path}/{seed}', *probe])
    scores.main([f'--ckpt={tmp_path}/5', *probe, '--seed=6'])
    assert asked[0] == asked[1] != asked[2] and asked[2] == asked[3] == asked[4] and len(asked[0]) == 12
