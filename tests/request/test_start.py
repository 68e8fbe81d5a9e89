"""How a training run starts: recipes, lengths in epochs, fine-tuning."""
import shutil

import pytest
import torch
from helpers import ROOT, column, config_of, edited, equal, fails, go, losses, weights

import train
from engine import settings
from request.start import read
from tasks.augment import AugmentConfig
from weights.runs import read_last


def start(*words):
    return read(*settings.split(words), train.TrainConfig, AugmentConfig)


# ---- a run without a config file


def values_of(request):
    return vars(request.config) | vars(request.augment) | request.network


DEFAULT = settings.read_file(str(ROOT / 'config' / 'train_aot_stdlib.py'))


def test_a_bare_run_takes_the_default_config():
    request = start('--n_layer=5')
    assert request.default_config == 'config/train_aot_stdlib.py'
    assert values_of(request).items() >= (DEFAULT | {'n_layer': 5}).items()


def test_another_network_takes_settings_of_training_alone():
    """Never sizes, which are those of its own file; what is typed stands over both."""
    request = start('--model=crate', '--n_head=3', '--max_iters=7')
    training = {name: value for name, value in DEFAULT.items() if hasattr(train.TrainConfig, name)}
    own = {'model': 'crate', 'max_iters': 7, 'out_dir': 'out/crate_stdlib'}
    assert request.network == {'n_head': 3}
    assert vars(request.config).items() >= (training | own).items()


@pytest.mark.parametrize('words, out_dir', [
    (['--dataset=mine'], 'out/aot_mine'), (['--dataset=stdlib'], 'out/aot_stdlib'),
    (['--dataset=mine', '--out_dir=here'], 'here')])
def test_another_network_or_dataset_writes_to_a_directory_of_its_own(words, out_dir):
    assert start(*words).config.out_dir == out_dir


def test_the_first_lines_name_the_sizes_and_where_the_settings_are_from(bytes_data, tmp_path, capsys, monkeypatch):
    words = [f'--data_dir={bytes_data}', '--dataset=tiny', '--max_iters=0', '--eval_iters=1', '--device=cpu',
             f'--out_dir={tmp_path}/out', '--overwrite=true']
    go('--n_layer=2', '--n_embd=24', '--n_head=3', '--block_size=16', *words)
    first, second = capsys.readouterr().out.splitlines()[:2]
    assert '2 layers, width 24, 3 heads, context 16' in first
    assert second.endswith('settings of config/train_aot_stdlib.py')
    go('--model=tost', '--n_layer=1', '--n_embd=24', '--n_head=3', '--block_size=16', *words)
    assert 'sizes of model_tost.py' in capsys.readouterr().out.splitlines()[1]


# ---- lengths in epochs


def test_epochs_become_iterations_and_typed_lengths_win(quads, tmp_path):
    """Of 40 pictures, 8 a step."""
    short = [w for w in quads if not w.startswith(('--max_iters', '--eval_interval', '--warmup_iters'))]
    short += ['--batch_size=2', '--gradient_accumulation_steps=4']
    (tmp_path / 'c.py').write_text('epochs = 2.0\nwarmup_epochs = 0.35\neval_epochs = 1\n'
                                   'max_iters = 77\neval_interval = 78\nwarmup_iters = 79\n')
    go(f'{tmp_path}/c.py', *short, f'--out_dir={tmp_path}/a')
    c = config_of(tmp_path / 'a')
    assert (c['max_iters'], c['warmup_iters'], c['eval_interval']) == (10, 2, 5)
    assert [row.split(',')[0] for row in losses(tmp_path / 'a') if ',val,' in row] == ['0', '5', '10']
    rates = column(tmp_path / 'a', 'train', 'lr')
    assert rates[:3] == pytest.approx([c['learning_rate'] * share for share in (1 / 3, 2 / 3, 1)])
    for word, steps in (('--max_iters=12', 12), ('--epochs=3', 15)):
        go('--init_from=resume', f'--out_dir={tmp_path}/a', word)
        assert read_last(tmp_path / 'a')['step'] == steps
    for word, steps in (('--max_iters=3', 3), ('--epochs=1', 5), ('--epochs=0.01', 1)):
        go(f'{tmp_path}/c.py', *short, word, f'--out_dir={tmp_path}/b', '--overwrite=true')
        assert read_last(tmp_path / 'b')['step'] == steps


# ---- resuming


def test_the_average_can_be_given_up_and_taken_up(picture_run, tmp_path):
    out = shutil.copytree(picture_run, tmp_path / 'a')
    go('--init_from=resume', f'--out_dir={out}', '--ema=0', '--max_iters=7')
    assert weights(out, 'average') is None
    go('--init_from=resume', f'--out_dir={out}', '--ema=0.5', '--max_iters=8')
    assert equal(weights(out, 'average'), weights(out))  # an average of one


def test_a_config_file_is_not_read_again(picture_run, tmp_path, capsys):
    out = shutil.copytree(picture_run, tmp_path / 'a')
    (tmp_path / 'c.py').write_text('learning_rate = 0.5\nn_embd = 64\npatch_size = 4\n')
    go(f'{tmp_path}/c.py', '--init_from=resume', f'--out_dir={out}', '--max_iters=7')
    assert 'learning_rate, n_embd;' in capsys.readouterr().out  # it is said
    assert config_of(out) == config_of(picture_run) | {'init_from': 'resume', 'out_dir': str(out), 'max_iters': 7}


def test_a_device_that_is_not_here_and_what_ends_or_names_a_run_are_not_inherited(picture_run, tmp_path, capsys):
    run = shutil.copytree(picture_run, tmp_path / 'run')
    own = {'device': 'cuda:7', 'target_loss': 0.001, 'wandb_run_name': 'first', 'workers': 3}
    with edited(run / 'config.json') as config:
        config['settings'] |= own
    assert '--device=auto' in fails(capsys, train.main, '--init_from=resume', f'--out_dir={run}')
    found = start(f'--init_from={run}').config
    assert {k: getattr(found, k) for k in own} == {k: getattr(train.TrainConfig, k) for k in own}


# ---- fine-tuning


@pytest.mark.parametrize('dataset, count', [('colours', 8), ('renamed', 4)])
def test_a_new_head_is_fresh_learns_and_stays(dataset, count, picture_run, tmp_path):
    out = tmp_path / 'a'
    words = [f'--init_from={picture_run}', '--seed=5', f'--dataset={dataset}', f'--out_dir={out}', '--new_head=true']
    go(*words, '--max_iters=0')
    assert config_of(out)['image_size'] == [8, 8]  # the network's, not that of the dataset's pictures
    before, after = weights(picture_run, 'best'), weights(out)
    heads = {'read.head.weight', 'read.head.bias'}
    assert before.keys() == after.keys() and equal(*({k: w[k] for k in w.keys() - heads} for w in (before, after)))
    head = after['read.head.weight']
    assert head.shape == (count, 16) and not torch.equal(head[:4], before['read.head.weight'])
    assert 0.2 < head.abs().max() <= 1 / 4  # PyTorch's fresh weights: within 1 / sqrt(width)
    go(*words, '--max_iters=3', '--overwrite=true')
    learned = weights(out)
    assert all(not torch.equal(learned[k], after[k]) for k in ('read.head.weight', 'embed.cls'))
    log = losses(out)
    go('--init_from=resume', f'--out_dir={out}')  # at its end already
    assert equal(weights(out), learned) and losses(out) == log
    go(f'--init_from={out}', f'--out_dir={tmp_path}/b', '--max_iters=0')  # what starts from it keeps its head
    assert equal(weights(tmp_path / 'b'), weights(out, 'best'))


@pytest.mark.parametrize('kind, model', [('pictures', 'crate'), ('vit_mae', 'vit')])
def test_the_norm_before_a_new_head_is_fresh_where_one_asks_for_it(kind, model, words_of, quads, tmp_path):
    go(*words_of(kind), '--keep_checkpoints=true', f'--out_dir={tmp_path}/a')
    patch_size = config_of(tmp_path / 'a')['patch_size'][0]
    words = [*quads, f'--model={model}', f'--patch_size={patch_size}', '--new_head=true',
             f'--init_from={tmp_path}/a/step_6.safetensors']
    go(*words, '--max_iters=0', f'--out_dir={tmp_path}/kept')
    go(*words, '--max_iters=0', '--new_norm=true', f'--out_dir={tmp_path}/fresh')
    kept, fresh = weights(tmp_path / 'kept', 'best'), weights(tmp_path / 'fresh', 'best')
    norm = {'read.norm.weight': torch.ones(16), 'read.norm.bias': torch.zeros(16)}
    assert not equal(kept, fresh) and equal(kept | norm, fresh)

    go(*words, '--max_iters=3', '--new_norm=true', '--keep_checkpoints=true', f'--out_dir={tmp_path}/b')
    learned = weights(tmp_path / 'b')
    assert not torch.equal(learned['read.norm.bias'], torch.zeros(16))
    go('--init_from=resume', f'--out_dir={tmp_path}/b')  # a run that goes on keeps what it learned
    assert equal(weights(tmp_path / 'b'), learned)
    go(f'--init_from={tmp_path}/b/step_3.safetensors', f'--out_dir={tmp_path}/c', '--max_iters=0')
    assert equal(weights(tmp_path / 'c', 'best'), weights(tmp_path / 'b', 'step_3'))


def test_a_run_without_a_config_brings_its_recipe(picture_run, pictures_data, tmp_path):
    go(f'--init_from={picture_run}', f'--out_dir={tmp_path}/a', '--max_iters=4', '--learning_rate=1e-4', '--min_lr=0')
    changed = {'init_from': str(picture_run), 'out_dir': f'{tmp_path}/a', 'max_iters': 4, 'learning_rate': 1e-4}
    assert config_of(tmp_path / 'a') == config_of(picture_run) | changed | {'min_lr': 0.0}
    (tmp_path / 'c.py').write_text("dataset = 'quads'\nmax_iters = 2\ncrop_scale = 0.5\n")
    go(f'{tmp_path}/c.py', f'--data_dir={pictures_data}', f'--init_from={picture_run}', f'--out_dir={tmp_path}/b')
    named, old = config_of(tmp_path / 'b'), config_of(picture_run)
    assert [(c['ema'], c['crop_scale'], c['randaugment_n'], c['n_embd']) for c in (old, named)] == \
        [(0.9, 0.6, 1, 16), (0.0, 0.5, 0, 16)]


@pytest.mark.parametrize('name', ['crate_mae', 'vit_mae'])
def test_fine_tuning_starts_from_an_encoder_and_trains_all_of_it(name, quads, pretrained, tmp_path):
    words = [*quads, '--model=' + name.removesuffix('_mae'), '--patch_size=2', '--max_iters=3']
    go(*words, f'--init_from={pretrained}/{name}', f'--out_dir={tmp_path}/a')
    c, old, new = config_of(tmp_path / 'a'), weights(pretrained / name, 'best'), weights(tmp_path / 'a')
    assert (c['num_classes'], c['pool']) == (4, 'cls') and 'mask_ratio' not in c and c.get('lam', 0.5) == 0.5
    old |= {'read.' + k: v for k, v in old.items() if k.startswith('norm.')}
    moved = {k for k in new.keys() & old.keys() if new[k].shape != old[k].shape or not torch.equal(new[k], old[k])}
    assert moved == new.keys() - {'read.head.weight', 'read.head.bias'}
    go('--init_from=resume', f'--out_dir={tmp_path}/a', '--max_iters=4')
    go(*words, f'--init_from={tmp_path}/a', f'--out_dir={tmp_path}/b')
