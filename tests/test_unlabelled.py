"""Pictures without classes: a flat folder, what learns from it, and self-distillation that begins with trained weights,
of a run of its own or of the network inside."""
import re

import pytest
import small_files
import torch
from helpers import (CLASSES, KINDS, OF_PICTURES, ROOT, column, config_of, equal, fails, go, jpeg,
                     save_run, weights)
from test_pages import PAGES, commands

import eval as scores
import sample
import train
from engine import networks
from prepare import imagefolder
from tasks.decode import open_picture
from tasks.files import read_meta
from tasks.pictures import ImageSplit
from weights.runs import open_run
from weights.surgery import load_model


def tree(root, *names):
    """Pictures with these names below a folder, which is returned."""
    return small_files.tree(root, {name: jpeg(12, 16, i) for i, name in enumerate(names)})


def prepare(folder, out):
    imagefolder.main([str(folder), '--out', str(out), '--val', '0.2', '--workers', '0', '--size', '8'])
    return read_meta(out)


@pytest.fixture(scope='module')
def flat(tmp_path_factory):
    """Words for a dataset `flat` of one class, 32 pictures for training and 8 for validation."""
    place = tmp_path_factory.mktemp('flat')
    prepare(tree(place / 'holiday', *[f'{i}.jpg' for i in range(40)]), place / 'data' / 'flat')
    return f'--data_dir={place}/data', '--dataset=flat', '--workers=0'


# ---- the folder


@pytest.mark.parametrize('names', [
    [f'{i}.jpg' for i in range(12)],  # of which a fifth is held out
    [f'train/{i}.jpg' for i in range(10)] + [f'valid/{i}.jpg' for i in range(2)]])
def test_a_flat_folder_is_one_class_with_its_name(names, tmp_path, capsys, monkeypatch):
    folder = tree(tmp_path / 'holiday', *names)
    (folder / 'raw').mkdir()
    (folder / 'raw' / '1.heic').touch()
    if names[0].startswith('train'):
        (folder / 'raw').rename(folder / 'train' / 'raw')
    assert prepare(folder, tmp_path / 'a')['classes'] == ['holiday']
    said = capsys.readouterr()
    assert all(model in said.out for model in ('one class', 'crate_mae', 'vit_mae', 'dino')) and '1.heic' in said.err
    assert [len(ImageSplit(tmp_path / 'a', split)) for split in ('train', 'val')] == [10, 2]
    monkeypatch.chdir(folder)
    assert prepare('.', tmp_path / 'b')['sha256'] == read_meta(tmp_path / 'a')['sha256']


def test_where_folders_hold_pictures_they_are_the_classes(tmp_path, capsys):
    mixed = tree(tmp_path / 'mixed', '1.jpg', *[f'{c}/{i}.jpg' for c in ('cat', 'dog') for i in range(3)])
    assert prepare(mixed, tmp_path / 'a')['classes'] == ['cat', 'dog']
    said = capsys.readouterr()
    assert '2 classes' in said.out and 'mixed/1.jpg' in said.err
    deep = tree(tmp_path / 'deep', '1.jpg', 'cat/more/1.jpg')
    assert 'deep/cat' in fails(capsys, imagefolder.main, str(deep), '--out', f'{tmp_path}/b')


# ---- who learns from it


def test_a_classifier_of_one_class_is_refused_before_it_begins(flat, pretrained, whole, tmp_path, capsys):
    out = f'--out_dir={tmp_path}/a'
    for words in ([*OF_PICTURES, *flat, '--image_size=8'], [f'--init_from={pretrained}/vit_mae', '--model=vit', *flat],
                  [f'--init_from={whole("dino")}', '--new_head=true', *flat]):
        line = fails(capsys, train.main, *words, out)
        assert all(f'--model={model}' in line for model in ('crate_mae', 'vit_mae', 'dino'))
    assert not (tmp_path / 'a').exists()


@pytest.mark.parametrize('kind', ['crate_mae', 'dino'])
def test_networks_without_labels_learn_from_one_class(kind, flat, tmp_path, capsys):
    go(*KINDS[kind], *flat, '--image_size=8', f'--out_dir={tmp_path}/a')
    said = capsys.readouterr().out
    if 'dino' in kind:  # its features cannot be scored by one class, and it does not advise that
        assert 'eval.py' not in said and 'analyze.py' in said
        assert 'one class' in fails(capsys, scores.main, f'--ckpt={tmp_path}/a', *flat, '--knn=3')
    else:
        scores.main([f'--ckpt={tmp_path}/a', *flat, '--split=val'])
        assert ' val' in capsys.readouterr().out


# ---- self-distillation goes on


def test_self_distillation_goes_on_with_all_its_weights(whole, flat, pictures_data, tmp_path):
    """Its first validation is the last one of the run before it: of student, teacher, heads and centre."""
    for kind in ('dino', 'simdino'):
        source, out = whole(kind), tmp_path / kind
        go(f'--init_from={source}', '--model=dino', f'--data_dir={pictures_data}', f'--out_dir={out}', '--max_iters=2')
        assert column(out, 'val')[0] == pytest.approx(column(source, 'val')[-1], rel=1e-5)
        new, old = config_of(out), config_of(source)
        assert all(new[name] == old[name] for name in ('model', 'local_crops', 'local_size', 'out_dim', 'batch_size'))
    go(f'--init_from={source}', '--model=dino', *flat, f'--out_dir={tmp_path}/flat', '--max_iters=2')
    assert config_of(tmp_path / 'flat')['dataset'] == 'flat'


def test_a_run_that_goes_on_is_at_its_own_beginning(whole, pictures_data, tmp_path):
    """The temperature of the teacher moves with the share of the run, and starts anew."""
    source = whole('dino')
    go(f'--init_from={source}', '--model=dino', f'--data_dir={pictures_data}', f'--out_dir={tmp_path}/a',
       '--max_iters=0')
    old, new = weights(source, 'best'), weights(tmp_path / 'a', 'best')
    assert old.pop('share') > 0 and new.pop('share') == 0 and equal(old, new)


def run_of(kind, out, **settings):
    """A run of a network with random weights for pictures of 8 x 8."""
    Network, Config = networks.network_class(kind), networks.config_class(kind)
    torch.manual_seed(0)
    small = dict(image_size=8, patch_size=4, n_layer=2, n_head=2, n_embd=16)
    return save_run(out, Network(Config(**small | settings)), CLASSES, dataset='quads')


HEADS = '''--out_dim=32 --hidden_dim=16 --bottleneck_dim=8 --local_crops=1 --local_size=4 --batch_size=8 --eval_iters=1
           --max_iters=0 --dtype=float32'''.split()


@pytest.mark.slow
@pytest.mark.parametrize('kind', ['pictures', 'vit', 'aot', 'vit_mae'])
def test_it_begins_with_the_features_of_a_trained_network(kind, whole, pictures_data, tmp_path):
    """Student and teacher; and its heads are fresh, and those of the seed. Settings without meaning, such as the ema of
    a classifier, are not taken over."""
    trained = kind in ('pictures', 'vit_mae')
    source = whole(kind) if trained else run_of(kind, tmp_path / 'start', num_classes=4, dropout=0.1)
    words = ['--model=dino', f'--data_dir={pictures_data}', *HEADS]
    for name, seed in (('a', 1), ('b', 1), ('c', 2)):
        go(f'--init_from={source}', *words, f'--seed={seed}', f'--out_dir={tmp_path}/{name}')
    x = torch.randn(2, 3, 8, 8)
    before = load_model(open_run(source)).features(x)
    model = load_model(open_run(tmp_path / 'a', 'dino'))
    after = [half.features(x) for half in (model.student, model.teacher)]
    assert all(torch.allclose(z, before, atol=2e-4) for z in after) and before.std() > 0
    a, b, c = (weights(tmp_path / name, 'best') for name in 'abc')
    heads = [name for name in a if '.head.mlp' in name and name.endswith('weight')]
    assert equal(a, b) and heads and not any(torch.equal(a[name], c[name]) for name in heads)
    assert all(torch.equal(a[name], a[name.replace('student', 'teacher')]) for name in heads)


def test_the_weights_decide_the_sizes_and_a_config_file_the_heads(whole, quads, pictures_data, tmp_path):
    """The config file has four layers of width 128 and a head of 1024 outputs."""
    config, source = str(ROOT / 'config' / 'train_crate_dino_shapes.py'), whole('pictures')
    go(config, f'--init_from={source}', *quads[:2], *HEADS[1:], f'--out_dir={tmp_path}/a')
    new, old = config_of(tmp_path / 'a'), config_of(source)
    assert new['out_dim'] == 1024 and all(new[k] == old[k] for k in ('n_layer', 'n_head', 'n_embd', 'patch_size', 'pool'))
    assert new['backbone'] == old['model']


def test_it_starts_with_pictures_of_another_size(whole, pictures_data, tmp_path):
    go(f'--init_from={whole("pictures")}', '--model=dino', f'--data_dir={pictures_data}', *HEADS, '--image_size=16',
       f'--out_dir={tmp_path}/a')
    assert open_run(tmp_path / 'a').weights['embed.pos'].shape[1] == 1 + (16 // 4) ** 2


@pytest.mark.parametrize('named', ['n_layer=3', 'n_head', 'backbone=vit'])
@pytest.mark.parametrize('kind', ['pictures', 'dino'])
def test_a_setting_that_contradicts_the_weights_is_one_line(named, kind, whole, pictures_data,
                                                            tmp_path, capsys):
    word = '--n_head=4' if named == 'n_head' else f'--{named}'
    line = fails(capsys, train.main, f'--init_from={whole(kind)}', '--model=dino', word, *HEADS,
                 f'--data_dir={pictures_data}', f'--out_dir={tmp_path}/a')
    assert named in line and not (tmp_path / 'a').exists()


@pytest.mark.parametrize('kind, settings, named', [
    ('crate', dict(ista='soft'), 'ista=relu'), ('crate_mae', {}, 'patch_norm=True'),
    ('tost', {}, "backbone='tost'"), ('text', {}, 'reads text')])
def test_a_network_that_cannot_be_inside_is_one_line(kind, settings, named, text_run, pictures_data, tmp_path, capsys):
    source = text_run if kind == 'text' else run_of(kind, tmp_path / 'start', **settings)
    line = fails(capsys, train.main, f'--init_from={source}', '--model=dino', '--dataset=quads',
                 f'--data_dir={pictures_data}', f'--out_dir={tmp_path}/a')
    assert named in line and not (tmp_path / 'a').exists()


# ---- the picture that is there


def test_pictures_that_commands_name_are_there():
    """So that they run from a fresh clone; and small, because every clone has them."""
    lines = [line for page in PAGES for line in commands(page)] + sample.__doc__.splitlines()
    named = {name for line in lines for name in re.findall(r'--image[ =](\S+\.jpg)', line)}
    assert named == {'assets/cat.jpg'}
    for name in named:
        assert (ROOT / name).stat().st_size < 20_000 and open_picture((ROOT / name).read_bytes()).size[0] >= 224
