"""How a training run starts: recipes, lengths in epochs, fine-tuning with a new head, the authors' files."""
import json
import shutil

import pytest
import torch
from helpers import OF_PICTURES, ROOT, column, config_of, equal, fails, go, losses, weights

import train
from engine import settings, trained
from engine.start import read
from engine.trained import read_last
from model_crate import CRATE, CRATEConfig
from model_vit import ViT, ViTConfig
from prepare import official_weights
from tasks.augment import AugmentConfig

pytestmark = pytest.mark.usefixtures('quick')


def start(*words):
    return read(words, train.TrainConfig, AugmentConfig)


@pytest.fixture
def words(pictures_data):
    return [f'--data_dir={pictures_data}', '--dataset=quads', *OF_PICTURES]


# ---- recipes


@pytest.mark.parametrize('name, dataset, config', [
    ('aot', 'stdlib', 'train_aot_stdlib'), ('crate', 'shapes', 'train_crate_shapes'),
    ('vit', 'shapes', 'train_vit_shapes'), ('crate_mae', 'shapes', 'pretrain_crate_mae_shapes'),
    ('vit_mae', 'shapes', 'pretrain_vit_mae_shapes')])
def test_without_a_config_every_network_has_its_own(name, dataset, config):
    s = start(f'--model={name}')
    file = settings.read_file(str(ROOT / 'config' / f'{config}.py'))
    assert (s.config.model, s.config.dataset, s.config.out_dir) == (name, dataset, file['out_dir'])
    assert s.run is None
    assert s.network['n_layer'] == file['n_layer']
    assert s.augment.eval_crop == file.get('eval_crop', AugmentConfig.eval_crop)


@pytest.mark.parametrize('more, config', [
    (['--dataset=stdlib'], 'aot_stdlib'), (['--dataset=stdlib', '--causal=false'], 'crate_bert_stdlib'),
    ([], 'crate_shapes'), (['--dataset=tiny', '--data_dir={}'], 'aot_stdlib'), (['--dataset=shapes'], 'crate_shapes')])
def test_a_network_alone_takes_the_recipe_for_its_data(more, config, bytes_data):
    """Its own where there is one; else of that of another network with the same task what is about training."""
    mine = start('--model=crate', *(word.format(bytes_data) for word in more), '--out_dir=x')
    want = start(str(ROOT / 'config' / f'train_{config}.py'))
    for k in ('batch_size', 'muon_lr', 'max_iters'):
        assert getattr(mine.config, k) == getattr(want.config, k)
    own = config.startswith('crate')
    for k in ('n_layer', 'n_embd', 'block_size'):
        assert mine.network.get(k) == (want.network.get(k) if own else None)
    assert mine.recipe == f'config/train_{config}.py'
    assert mine.config.model == 'crate' and mine.config.out_dir == 'x'


# ---- lengths in epochs


def test_epochs_become_iterations(words, tmp_path):
    short = [w for w in words if not w.startswith(('--max_iters', '--eval_interval', '--warmup_iters'))]
    (tmp_path / 'c.py').write_text('epochs = 2.0\nwarmup_epochs = 0.35\neval_epochs = 1\n'
                                   'max_iters = 77\neval_interval = 78\nwarmup_iters = 79\n')
    for name, more in (('a', []), ('b', ['--batch_size=2', '--gradient_accumulation_steps=4'])):
        out = tmp_path / name
        go(str(tmp_path / 'c.py'), *short, *more, f'--out_dir={out}')
        c = config_of(out)
        assert (c['max_iters'], c['warmup_iters'], c['eval_interval']) == (10, 2, 5)  # 40 pictures, 8 a step
        assert [row.split(',')[0] for row in losses(out) if ',val,' in row] == ['0', '5', '10']
        rates = column(out, 'train', 'lr')
        assert rates[:3] == pytest.approx([c['learning_rate'] * share for share in (1 / 3, 2 / 3, 1)])
    go('--init_from=resume', f'--out_dir={tmp_path}/a', '--max_iters=12')  # typed iterations beat the run's epochs
    assert losses(tmp_path / 'a')[-1].startswith('12,val') and config_of(tmp_path / 'a')['epochs'] == 0
    go('--init_from=resume', f'--out_dir={tmp_path}/a', '--epochs=3')
    assert losses(tmp_path / 'a')[-1].startswith('15,val')


@pytest.mark.parametrize('typed, iters', [(['--max_iters=3'], 3), (['--epochs=1'], 5), (['--epochs=0.01'], 1)])
def test_typed_lengths_beat_a_config_files(typed, iters, words, tmp_path):
    (tmp_path / 'c.py').write_text('epochs = 2\nmax_iters = 7\n')
    short = [w for w in words if not w.startswith('--max_iters')]
    go(str(tmp_path / 'c.py'), *short, *typed, f'--out_dir={tmp_path}/a')
    assert config_of(tmp_path / 'a')['max_iters'] == iters
    assert read_last(tmp_path / 'a')['step'] == iters


# ---- resuming


def test_the_average_can_be_given_up_and_taken_up(picture_run, tmp_path):
    out = shutil.copytree(picture_run, tmp_path / 'a')
    go('--init_from=resume', f'--out_dir={out}', '--ema=0', '--max_iters=7')
    assert weights(out, 'average') is None
    go('--init_from=resume', f'--out_dir={out}', '--ema=0.5', '--max_iters=8')
    assert equal(weights(out, 'average'), weights(out))  # an average of one


def test_a_resumed_run_keeps_what_it_must(picture_run, tmp_path, capsys):
    out = shutil.copytree(picture_run, tmp_path / 'a')
    for word, has in (('--seed=5', 'seed=1337'), ('--train_share=0.5', 'train_share=1.0'),
                      ('--patch_size=2', 'patch_size=4,4'), ('--optimizer=lion', 'optimizer=adamw'),
                      ('--dataset=renamed', 'dataset=quads')):
        said = fails(capsys, train.main, '--init_from=resume', f'--out_dir={out}', word)
        assert f'{word}: the run in {out} has {has}; leave it out' in said
    said = fails(capsys, train.main, '--init_from=resume', f'--out_dir={out}', '--new_head=true')
    assert '--new_head=true: the run in' in said


def test_what_ends_or_names_a_run_is_not_inherited(words, tmp_path):
    go(*words, '--max_iters=2', '--target_loss=0.001', '--wandb_run_name=first', f'--out_dir={tmp_path}/a')
    found = start(f'--init_from={tmp_path}/a').config
    assert (found.target_loss, found.wandb_run_name) == (0.0, '')


def test_a_config_file_that_says_otherwise_is_not_read_again_and_it_is_said(picture_run, tmp_path, capsys):
    out = shutil.copytree(picture_run, tmp_path / 'a')
    (tmp_path / 'c.py').write_text("learning_rate = 0.5\nn_embd = 64\npatch_size = 4\n")
    go(str(tmp_path / 'c.py'), '--init_from=resume', f'--out_dir={out}', '--max_iters=7')
    assert "not the config file's learning_rate, n_embd; type what you want to change" in capsys.readouterr().out
    c = config_of(out)
    assert c['learning_rate'] == config_of(picture_run)['learning_rate'] and (c['n_embd'], c['max_iters']) == (16, 7)


def test_a_device_that_is_not_here_says_what_to_type_and_is_not_inherited(picture_run, tmp_path, capsys):
    run = shutil.copytree(picture_run, tmp_path / 'run')
    config = json.loads((run / 'config.json').read_text())
    config['settings']['device'] = 'cuda:7'
    (run / 'config.json').write_text(json.dumps(config))
    assert '--device=auto' in fails(capsys, train.main, '--init_from=resume', f'--out_dir={run}')
    found = start(f'--init_from={run}', '--out_dir=a').config
    assert (found.device, found.workers, found.fsdp) == ('auto', -1, False)


# ---- fine-tuning


@pytest.fixture
def tune(picture_run, pictures_data):
    """Words to start from a run's weights; with another seed, so that fresh weights would be others."""
    return [f'--init_from={picture_run}', f'--data_dir={pictures_data}', '--seed=5']


@pytest.mark.parametrize('dataset, count', [('colours', 8), ('renamed', 4)])
def test_other_classes_need_a_new_head_and_get_a_fresh_one(dataset, count, tune, picture_run, tmp_path, capsys):
    out = tmp_path / 'a'
    words = [*tune, f'--dataset={dataset}', f'--out_dir={out}', '--max_iters=0']
    said = fails(capsys, train.main, *words)
    assert '--new_head=true' in said and f'/{dataset}' in said and not out.exists()
    go(*words, '--new_head=true')
    before, after = weights(picture_run, 'best'), weights(out)
    body = {k for k in before if not k.startswith('read.head.')}
    assert equal({k: before[k] for k in body}, {k: after[k] for k in body}) and before.keys() == after.keys()
    head = after['read.head.weight']
    assert head.shape == (count, 16) and after['read.head.bias'].shape == (count,)
    assert not torch.equal(head[:4], before['read.head.weight'])
    assert head.abs().max() <= 1 / 4  # PyTorch's fresh weights: within 1 / sqrt(width)
    go(*words, '--new_head=true', '--max_iters=3', '--overwrite=true')  # the head learns, with the body
    learned = weights(out)
    assert not torch.equal(learned['read.head.weight'], head)
    assert not torch.equal(learned['embed.cls'], after['embed.cls'])
    go('--init_from=resume', f'--out_dir={out}')  # at its end already; a resumed run keeps its head
    assert equal(weights(out), learned)
    go(f'--init_from={out}', f'--out_dir={tmp_path}/b', '--max_iters=0')  # and so does what starts from it
    assert equal(weights(tmp_path / 'b'), weights(out, 'best'))


def test_the_same_classes_need_no_new_head(tune, picture_run, tmp_path):
    go(*tune, f'--out_dir={tmp_path}/a', '--max_iters=0')
    assert equal(weights(tmp_path / 'a'), weights(picture_run, 'best'))
    assert column(tmp_path / 'a', 'val', 'top1')[0] == max(column(picture_run, 'val', 'top1'))


def test_fine_tuning_at_another_resolution(tune, picture_run, tmp_path, capsys):
    go(*tune, '--image_size=16', f'--out_dir={tmp_path}/a', '--max_iters=0')
    before, after = weights(picture_run, 'best'), weights(tmp_path / 'a')
    resized = trained.resize_positions(before.pop('embed.pos'), (2, 2), (4, 4))
    assert torch.equal(after.pop('embed.pos'), resized) and equal(before, after)
    go(*tune, '--image_size=12,16', '--crop_scale=0.5', f'--out_dir={tmp_path}/b', '--max_iters=2')
    assert config_of(tmp_path / 'b')['image_size'] == [12, 16]
    assert weights(tmp_path / 'b')['embed.pos'].shape == (1, 13, 16)
    go(*tune, '--dataset=colours', '--new_head=true', f'--out_dir={tmp_path}/c', '--max_iters=1')
    assert config_of(tmp_path / 'c')['image_size'] == [8, 8]  # the network's, not that of the dataset's pictures
    said = fails(capsys, train.main, *tune, '--image_size=10', f'--out_dir={tmp_path}/d')
    assert 'not divisible by patch_size' in said
    assert 'image_size' in fails(capsys, train.main, '--init_from=resume', f'--out_dir={tmp_path}/a', '--image_size=8')


def test_a_run_without_a_config_brings_its_recipe(picture_run, pictures_data, tmp_path):
    run = shutil.copytree(picture_run, tmp_path / 'run')
    go(f'--init_from={run}', f'--out_dir={tmp_path}/a', '--max_iters=4', '--learning_rate=1e-4', '--min_lr=0')
    old, new = config_of(picture_run), config_of(tmp_path / 'a')
    changed = {'init_from': str(run), 'out_dir': f'{tmp_path}/a', 'max_iters': 4, 'learning_rate': 1e-4, 'min_lr': 0.0}
    assert new == old | changed and old['ema'] == 0.9 and old['randaugment_n'] == 1
    (tmp_path / 'c.py').write_text("dataset = 'quads'\nmax_iters = 2\ncrop_scale = 0.5\n")
    go(str(tmp_path / 'c.py'), f'--data_dir={pictures_data}', f'--init_from={run}', f'--out_dir={tmp_path}/b')
    named = config_of(tmp_path / 'b')
    assert named['ema'] == 0 and named['crop_scale'] == 0.5
    assert named['randaugment_n'] == 0 and named['n_embd'] == 16


def test_pictures_of_other_channels_are_refused(tune, pictures_data, tmp_path, capsys):
    said = fails(capsys, train.main, *tune, '--dataset=grey', f'--out_dir={tmp_path}/a')
    assert 'channels' in said and f'{pictures_data}/grey' in said


@pytest.mark.parametrize('name', ['crate_mae', 'vit_mae'])
def test_fine_tuning_starts_from_an_encoder(name, words, pretrained, tmp_path):
    kind = name.removesuffix('_mae')
    words = [w for w in words if w != '--model=crate' and not w.startswith('--patch_size')]
    go(*words, '--patch_size=2', f'--init_from={pretrained}/{name}', f'--model={kind}', '--max_iters=3',
       '--train_share=0.5', f'--out_dir={tmp_path}/a')
    config = config_of(tmp_path / 'a')
    assert (config['model'], config['num_classes'], config['pool'], config['train_share']) == (kind, 4, 'cls', 0.5)
    assert 'mask_ratio' not in config and config.get('lam', 0.5) == 0.5
    old, new = weights(pretrained / name, 'best'), weights(tmp_path / 'a')
    assert not any(k.startswith(('decoder', 'mask', 'pixels')) for k in new)
    assert new['read.head.weight'].shape == (4, 16)
    moved = [k for k in new.keys() & old.keys() if new[k].shape == old[k].shape and not torch.equal(new[k], old[k])]
    assert {'embed.pos', 'embed.cls'} <= set(moved) and sum(k.startswith('layers') for k in moved) >= 8
    assert not torch.equal(new['read.norm.weight'], old['norm.weight'])  # all are trained
    go('--init_from=resume', f'--out_dir={tmp_path}/a', '--max_iters=4')
    go(*words, f'--init_from={tmp_path}/a', f'--model={kind}', '--patch_size=2', f'--out_dir={tmp_path}/b')


def test_mistakes_with_an_encoder_get_one_line(words, pretrained, tmp_path, capsys):
    at, words = f'--init_from={pretrained}/crate_mae', words[:2]
    for more, message in (([at, '--new_head=true'], 'new_head'), ([at, '--model=vit'], 'give --model=crate'),
                          ([at, '--model=vit_mae'], 'holds model=crate_mae'),
                          ([at, '--model=crate', '--n_head=4'], 'n_head'),
                          ([f'--init_from={pretrained}/vit_mae', '--model=crate'], 'holds model=vit_mae'),
                          ([at, '--model=crate', '--patch_norm=true'], 'patch_norm')):
        assert message in fails(capsys, train.main, *words, *more, f'--out_dir={tmp_path}/a')
    assert not (tmp_path / 'a').exists()


# ---- the authors' files


def official_file(name, path):
    """A file as the authors release theirs, and the model that it holds: 7 classes at 16 x 16."""
    Model, Config = {'crate': (CRATE, CRATEConfig), 'vit': (ViT, ViTConfig)}[name]
    torch.manual_seed(1)
    model = Model(Config(image_size=16, patch_size=4, num_classes=7, n_layer=2, n_head=3, n_embd=24)).eval()
    torch.save(model.to_official(), path)
    return model


@pytest.mark.parametrize('name', ['crate', 'vit'])
def test_fine_tuning_starts_from_the_authors_file(name, pictures_data, tmp_path, capsys):
    model, run = official_file(name, tmp_path / 'w.pth'), tmp_path / 'theirs'
    official_weights.main([f'{tmp_path}/w.pth', '--model', name, '--n_head', '3', '--patch_size', '4', '--out_dir',
                           str(run)])
    words = [f'--data_dir={pictures_data}', f'--init_from={run}', '--batch_size=4']
    said = fails(capsys, train.main, *words, '--dataset=quads', f'--out_dir={tmp_path}/a')
    assert 'knows 7 classes' in said and '--new_head=true' in said
    assert 'give --dataset' in fails(capsys, train.main, *words, '--new_head=true', f'--out_dir={tmp_path}/a')
    assert not (tmp_path / 'a').exists()
    words += ['--dataset=quads', '--new_head=true', '--dtype=float32']
    go(*words, '--max_iters=0', f'--out_dir={tmp_path}/a')
    before, after = model.state_dict(), weights(tmp_path / 'a')
    assert all(torch.equal(before[k], after[k]) for k in before if not k.startswith('read.head.'))
    assert after['read.head.weight'].shape == (4, 24)
    go(*words, '--image_size=8', '--max_iters=0', f'--out_dir={tmp_path}/b')
    resized = trained.resize_positions(before['embed.pos'], (4, 4), (2, 2))
    assert torch.equal(weights(tmp_path / 'b')['embed.pos'], resized)
    go(f'--init_from={tmp_path}/a', f'--out_dir={tmp_path}/c', '--max_iters=2')  # the result is a run like any other
    go('--init_from=resume', f'--out_dir={tmp_path}/a', '--max_iters=3')
    assert 'nothing to resume' in fails(capsys, train.main, '--init_from=resume', f'--out_dir={run}')
