"""train.py on pictures: what a run leaves, stopping and resuming bit for bit, the average of the weights, mistakes."""
import os
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from helpers import HARD_PICTURES, OF_PICTURES, ROOT, by_hand, column, config_of, equal, fails, go, losses, weights

import train
from engine.checkpoint import RunDirectory
from engine.device import Device
from engine.trained import read_config, read_last, read_weights
from model_aot import AoT, AoTConfig
from model_crate import CRATE, CRATEConfig
from tasks.pictures import ImageSplit

pytestmark = pytest.mark.usefixtures('quick')


@pytest.fixture
def words(pictures_data):
    """Command-line words for a run of a tenth of a second, with augmentation."""
    return [f'--data_dir={pictures_data}', '--dataset=quads', *OF_PICTURES]


# ---- what a run leaves


def test_a_run_on_pictures_leaves_everything(picture_run):
    assert {p.name for p in picture_run.iterdir()} == {'config.json', 'log.jsonl', 'last.pt', 'best.safetensors',
                                                       'curve.png'}
    columns, *rows = (line.split(',') for line in losses(picture_run))
    assert columns == ['step', 'split', 'loss', 'top1', 'top5', 'grad_norm', 'lr', 'seen']
    assert [(r[0], r[1]) for r in rows] == [('0', 'val'), ('0', 'train'), ('1', 'train'), ('2', 'train'), ('3', 'val'),
                                            ('3', 'train'), ('4', 'train'), ('5', 'train'), ('6', 'val')]
    for _, split, loss, top1, top5, *_ in rows:
        assert (top1 == top5 == '') == (split == 'train') and 0.5 < float(loss) < 3
        assert split == 'train' or 0 <= float(top1) <= float(top5) == 1  # there are 4 classes
    assert rows[-1][-1] == str(6 * 8)
    last, config = read_last(picture_run), read_config(picture_run)
    assert config['data'] == {'kind': 'images', 'classes': list('abcd')} and last['step'] == 6
    network, settings = config['network'], config['settings']
    assert network['image_size'] == (8, 8) and network['num_classes'] == 4 and network['channels'] == 3
    assert settings['randaugment_n'] == 1 and settings['ema'] == 0.9
    assert last['best'] == 1 - max(column(picture_run, 'val', 'top1'))


@pytest.mark.parametrize('model, dataset', [('aot', 'quads'), ('crate', 'quads'), ('vit', 'quads'), ('crate', 'grey'),
                                            ('vit', 'grey')])
def test_every_network_learns_where_the_light_is(model, dataset, words, tmp_path, capsys):
    go(*words, f'--model={model}', f'--dataset={dataset}', '--flip=false', '--crop_scale=1', '--randaugment_n=0',
       '--max_iters=80', '--eval_interval=40', '--learning_rate=1e-2', '--patch_size=8', f'--out_dir={tmp_path}/a')
    loss, top1 = (column(tmp_path / 'a', 'val', name) for name in ('loss', 'top1'))
    assert loss[-1] < loss[0] - 0.5 and top1[-1] > 0.9
    said = capsys.readouterr().out.split('step     80 of 80  validation  ')[1]
    assert said.startswith(f'loss {loss[-1]:.4f}, top1 {top1[-1]:.4f}, top5 1.0000')
    assert config_of(tmp_path / 'a')['channels'] == (1 if dataset == 'grey' else 3)


def test_label_smoothing_is_for_training_only(words, pictures_data, tmp_path):
    for smoothing in (0, 0.5):
        go(*words, f'--label_smoothing={smoothing}', '--max_iters=1', f'--out_dir={tmp_path}/{smoothing}')
    plain, smooth = tmp_path / '0', tmp_path / '0.5'
    assert column(plain, 'val')[0] == column(smooth, 'val')[0]
    assert column(plain, 'train') != column(smooth, 'train')
    assert column(smooth, 'val')[1] == pytest.approx(loss_by_hand(weights(smooth), smooth, pictures_data)[0], abs=1e-5)


def loss_by_hand(state, out, pictures_data):
    """(loss, top-1) on the validation pictures of `quads`, without this project's pipeline."""
    model = CRATE(CRATEConfig(**read_config(out)['network'])).eval()
    model.load_state_dict(state)
    logits, y = by_hand(model, pictures_data / 'quads', 'val')
    chosen = logits.softmax(1)[torch.arange(len(y)), y]
    return -chosen.log().mean().item(), (logits.argmax(1) == y).double().mean().item()


def test_accumulation_is_a_larger_batch_of_the_same_pictures(words, tmp_path):
    go(*words, '--randaugment_n=2', f'--out_dir={tmp_path}/a')
    go(*words, '--randaugment_n=2', '--batch_size=2', '--gradient_accumulation_steps=4', f'--out_dir={tmp_path}/b')
    for split in ('train', 'val'):
        assert column(tmp_path / 'a', split) == pytest.approx(column(tmp_path / 'b', split), abs=1e-4)


def test_the_best_is_that_of_the_most_hits(words, tmp_path, monkeypatch):
    said = iter([(3.0, 0.2), (2.0, 0.6), (1.0, 0.6), (0.5, 0.4)])
    monkeypatch.setattr(train, 'evaluate', lambda *args: dict(zip(('loss', 'top1'), next(said))))
    go(*words, '--max_iters=9', f'--out_dir={tmp_path}/a')
    last = read_last(tmp_path / 'a')
    assert read_weights(tmp_path / 'a' / 'best.safetensors')[1] == 3
    assert last['step'] == 9 and last['best'] == pytest.approx(0.4)


def test_a_process_without_a_batch_validates_too():
    sums = {'weight': 4.0, 'loss': 4 * 0.5, 'top1': 1.0, 'top5': 2.0}  # of the others
    others = Device('cpu', 'float32', 'false')
    others.total = lambda mine: {k: mine.get(k, 0.0) + v for k, v in sums.items()}
    model = AoT(AoTConfig(image_size=8, patch_size=4, num_classes=5, n_layer=1, n_head=2, n_embd=8)).train()
    found = train.evaluate(model, SimpleNamespace(validation=lambda: iter([])), others)
    assert found == {'loss': 0.5, 'top1': 0.25, 'top5': 0.5} and model.training


def test_without_a_val_split_the_test_split_validates_and_it_is_said(words, tmp_path, capsys):
    go(*words, '--dataset=colours', f'--out_dir={tmp_path}/a')
    assert 'no val split, so this validates on test' in capsys.readouterr().out
    assert config_of(tmp_path / 'a')['image_size'] == [12, 8]  # that of the pictures
    go(*words, f'--out_dir={tmp_path}/b')
    assert 'validates on test' not in capsys.readouterr().out


# ---- stop and resume


@pytest.mark.parametrize('at', [0, 2, 4])
def test_stopped_a_run_goes_on_bit_for_bit(at, words, picture_run, tmp_path, monkeypatch):
    batches = ImageSplit.batches

    def stop_at(*args, **kw):
        whole = batches(*args, **kw)

        def parts():
            for i, batch in enumerate(whole):
                if i == 2 * at:  # two parts a step
                    os.kill(os.getpid(), signal.SIGINT)
                yield batch
        return parts()

    monkeypatch.setattr(ImageSplit, 'batches', stop_at)
    with pytest.raises(SystemExit) as e:
        go(*words, *HARD_PICTURES, f'--out_dir={tmp_path}/a')
    assert e.value.code == 130 and read_last(tmp_path / 'a')['step'] == at + 1
    monkeypatch.setattr(ImageSplit, 'batches', batches)
    go('--init_from=resume', f'--out_dir={tmp_path}/a')
    assert losses(tmp_path / 'a') == losses(picture_run)
    for name in ('last', 'average', 'best'):
        assert equal(weights(tmp_path / 'a', name), weights(picture_run, name))


@pytest.mark.slow
@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM])
def test_stopped_with_its_readers_a_run_ends_in_order(number, pictures_data, tmp_path):
    words = [f'--data_dir={pictures_data}', '--dataset=pack', *OF_PICTURES, '--image_size=8', '--workers=2',
             '--max_iters=100000', '--eval_interval=10', f'--out_dir={tmp_path}/a']
    process = subprocess.Popen([sys.executable, str(ROOT / 'train.py'), *words], text=True, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, start_new_session=True,
                               env=os.environ | {'PYTHONUNBUFFERED': '1'})
    try:
        for line in process.stdout:
            if line.startswith('step') and int(line.split()[1]) >= 13:
                break
        os.killpg(process.pid, number)  # as a terminal does with Ctrl-C, and `timeout`
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    step = read_last(tmp_path / 'a')['step']
    assert process.returncode == 128 + number and err == '' and step > 13 and f'stopped at step {step}' in out


# ---- the average of the weights


def test_the_average_is_that_of_the_weights_and_is_what_is_validated(words, pictures_data, tmp_path, monkeypatch):
    steps, save, out = {}, RunDirectory.save_last, tmp_path / 'a'

    def keep(self, *state):
        save(self, *state)
        last = read_last(out)
        steps[last['step']] = last
    monkeypatch.setattr(RunDirectory, 'save_last', keep)
    go(*words, *HARD_PICTURES, '--eval_interval=1', f'--out_dir={out}')
    assert sorted(steps) == list(range(7)) and equal(steps[0]['weights'], steps[0]['average'])
    average = None
    for step, loss, top1 in zip(range(7), column(out, 'val'), column(out, 'val', 'top1')):
        now = steps[step]['weights']
        average = now if step <= 1 else {k: 0.9 * v + 0.1 * now[k] for k, v in average.items()}
        assert all(torch.allclose(v, steps[step]['average'][k], atol=1e-6) for k, v in average.items())
        want = loss_by_hand(average, out, pictures_data)
        assert loss == pytest.approx(want[0], abs=1e-5) and top1 == want[1]
    assert abs(want[0] - loss_by_hand(steps[6]['weights'], out, pictures_data)[0]) > 1e-4


# ---- mistakes


def test_text_and_pictures_are_told_apart(words, picture_run, pictures_data, tmp_path, capsys):
    text = [words[0], '--dataset=text']
    small = '--n_layer=1', '--n_head=2', '--n_embd=16', '--block_size=8', '--max_iters=0'
    go(*text, *small, f'--out_dir={tmp_path}/text')
    pictures = [f'--init_from={picture_run}', words[0]]
    of_text = [f'--init_from={tmp_path}/text', words[0]]
    for start, message in (([*text, '--model=vit'], 'holds text, model=vit does not read that'),
                           ([*pictures, '--dataset=text'], 'images, '),
                           ([*of_text, '--dataset=quads'], 'text, '),
                           ([*of_text, '--new_head=true'], 'has no classifier'),
                           ([*text, '--randaugment_n=2'], '--randaugment_n is for image or masked_image, not'),
                           ([*of_text, '--curriculum=9'], 'is for functions'),
                           ([*words, '--new_head=true'], 'new_head=true needs a network to put it on'),
                           ([*pictures, '--model=vit'], 'model=vit cannot start from it')):
        said = fails(capsys, train.main, *start, f'--out_dir={tmp_path}/a')
        assert message in said and not (tmp_path / 'a').exists()


@pytest.mark.parametrize('more, message', [
    (['--patch_size=3'], 'not divisible by patch_size'), (['--num_classes=3'], 'num_classes=3 does not fit'),
    (['--num_classes=5'], 'num_classes=5 does not fit'),
    (['--epochs=-1'], 'epochs'), (['--ema=1'], 'ema'), (['--workers=-2'], 'workers'),
    (['--crop_scale=0'], 'crop_scale'), (['--eval_crop=2'], 'eval_crop'),
    (['--image_size=8,8,8'], 'one or two whole numbers'), (['--randaugment_n=11'], 'randaugment_n'),
    (['--pool=max'], 'cls or mean'), (['--channels=1'], 'channels=1 does not fit'),
    (['--train_share=0'], 'train_share'), (['--train_share=1.5'], 'train_share')])
def test_mistakes_get_one_line_and_touch_nothing(more, message, words, tmp_path, capsys):
    assert message in fails(capsys, train.main, *words, f'--out_dir={tmp_path}/a', *more)
    assert not (tmp_path / 'a').exists()
