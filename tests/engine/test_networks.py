"""Networks by name; trained networks with other settings, another resolution, another head; what is refused."""
import dataclasses
import json
import shutil

import pytest
import torch
from helpers import equal, fails, go, snapshot, text_network, weights

import train
from engine import networks, trained

# ---- networks by name


@pytest.fixture
def house(tmp_path, monkeypatch):
    """A folder in which model files are looked for."""
    monkeypatch.setattr(networks, 'HERE', tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_networks_are_the_files_there_are(house):
    assert networks.names() == []
    (house / 'model_b.py').write_text('')
    (house / 'model_a.py').write_text('')
    assert networks.names() == ['a', 'b']
    with pytest.raises(ValueError, match="model='c' is unknown; choose a, b, or write model_c.py"):
        networks.network('c')


IMPORTS = 'from dataclasses import dataclass\nfrom torch import nn\n'
CONFIG = '@dataclass\nclass Config:\n    n_layer: int = 1  # layers\n'
NETWORK = 'class Network(nn.Module):\n    pass\n'
TASK = "    task = 'text'\n"


@pytest.mark.parametrize('name, text', [
    ('none', IMPORTS + CONFIG + TASK), ('no_config', IMPORTS + NETWORK),
    ('plain_config', IMPORTS + NETWORK + 'class Config:\n' + TASK), ('no_task', IMPORTS + NETWORK + CONFIG)])
def test_a_file_that_lacks_a_part_of_the_contract_is_named(name, text, house):
    (house / f'model_{name}.py').write_text(text)
    with pytest.raises(ValueError, match=f'model_{name}.py lacks .*docs/extend.md'):
        networks.network(name)


def test_a_task_that_does_not_exist_is_named():
    @dataclasses.dataclass
    class OddConfig:
        task = 'odd'
    with pytest.raises(ValueError, match="OddConfig.task is 'odd', which is none of text, masked_text, image"):
        networks.kind_of(OddConfig())


def test_every_network_has_a_task():
    for name in networks.names():
        assert networks.network(name)[1]().task in networks.TASKS


# ---- what a dataset decides

TEXT = {'kind': 'text', 'vocab_size': 256, 'tokenizer': {'name': 'bytes'}}
GREY = {'kind': 'images', 'channels': 1, 'classes': list('abc'), 'splits': {'train': {'height': 12, 'width': 8}}}


def test_a_dataset_fills_in_what_a_network_has():
    assert networks.config_for('aot', {'n_layer': 2}, TEXT).vocab_size == 256
    assert networks.config_for('crate', {'causal': False}, TEXT).vocab_size == 257  # and [MASK]
    c = networks.config_for('vit', {'patch_size': 4}, GREY)
    assert (c.image_size, c.channels, c.num_classes) == ((12, 8), 1, 3)
    c = networks.config_for('vit_mae', {'patch_size': 4}, GREY)
    assert (c.image_size, c.channels) == ((12, 8), 1)
    packed = GREY | {'channels': 3, 'splits': {'train': {'bytes': 9}}}
    assert networks.config_for('vit', {}, packed).image_size == (224, 224)
    c = networks.config_for('aot', {}, {'kind': 'functions'})
    assert (c.task, c.n_dims, c.block_size) == ('icl', 20, 82)


@pytest.mark.parametrize('name, given, meta, message', [
    ('vit', {}, TEXT, 'holds text, model=vit does not read that'),
    ('crate', {}, {'kind': 'functions'}, 'holds functions, model=crate does not read that'),
    ('aot', {'vocab_size': 17}, TEXT, 'vocab_size=17 does not fit data/x, which has 256'),
    ('crate', {'causal': False, 'vocab_size': 256}, TEXT, 'vocab_size=256 does not fit data/x, which has 257'),
    ('vit', {'patch_size': 4, 'num_classes': 2}, GREY, 'num_classes=2 does not fit'),
    ('vit', {'patch_size': 4, 'channels': 3}, GREY, 'channels=3 does not fit data/x, which has 1; leave it out'),
    ('aot', {'image_size': 16}, TEXT, 'reads images'),
    ('aot', {'image_size': 0}, GREY, 'reads text'),
    ('aot', {'n_dims': 4}, TEXT, 'reads functions')])
def test_settings_that_do_not_fit_a_dataset_say_what_to_leave_out(name, given, meta, message):
    with pytest.raises(ValueError, match=message):
        networks.config_for(name, given, meta, 'data/x')


def test_shared_parameters_count_once():
    model = text_network('crate')
    assert networks.size(model) == model.num_params() == sum(t.numel() for t in model.parameters())
    assert len(model.state_dict()) == len(list(model.parameters())) + 1  # the output map is the token embedding


# ---- positions and resolutions


def test_positions_for_another_grid():
    torch.manual_seed(0)
    pos = torch.randn(1, 1 + 2 * 6, 8)
    for new in ((2, 6), (4, 12), (3, 5), (1, 3), (6, 2)):
        resized = trained.resize_positions(pos, (2, 6), new)
        assert resized.shape == (1, 1 + new[0] * new[1], 8) and torch.equal(resized[:, 0], pos[:, 0])
        even = trained.resize_positions(torch.ones_like(pos) * torch.arange(8), (2, 6), new)
        assert torch.allclose(even, torch.arange(8.0).expand_as(even), atol=1e-5)
    # a ramp stays a ramp, away from its ends
    down, across = torch.meshgrid(torch.arange(8.0), torch.arange(12.0), indexing='ij')
    ramp = torch.cat((torch.zeros(1, 1, 2), torch.stack((down, across), -1).flatten(0, 1)[None]), 1)
    fine = trained.resize_positions(ramp, (8, 12), (16, 24))[0, 1:].view(16, 24, 2)
    assert torch.allclose(fine[6:10, 6:18, 0], (torch.arange(6.0, 10) / 2 - 0.25)[:, None].expand(4, 12), atol=0.05)
    assert torch.allclose(fine[6:10, 6:18, 1], (torch.arange(6.0, 18) / 2 - 0.25).expand(4, 12), atol=0.05)


@pytest.mark.parametrize('name', ['aot', 'crate', 'vit'])
def test_another_resolution_changes_positions_alone(name):
    Network, Config = networks.network(name)
    torch.manual_seed(0)
    model = Network(Config(image_size=(8, 12), patch_size=(4, 2), num_classes=5, n_layer=2, n_head=2, n_embd=16))
    held = {'weights': model.state_dict(), 'network': dataclasses.asdict(model.config), 'model': name}
    same = trained.load_model(held, image_size=(8, 12)).state_dict()
    assert equal(same, held['weights'])
    larger = trained.load_model(held, image_size=(16, 8))
    assert larger.config.image_size == (16, 8) and larger(torch.zeros(1, 3, 16, 8))[0].shape == (1, 5)
    positions = trained.resize_positions(model.embed.pos.detach(), (2, 6), (4, 4))
    assert equal(larger.state_dict(), held['weights'] | {'embed.pos': positions})
    with pytest.raises(ValueError, match='n_embd=32'):
        trained.load_model(held, n_embd=32)
    with pytest.raises(ValueError, match='patch_size=2'):
        trained.load_model(held, patch_size=2)


# ---- trained networks


@pytest.mark.parametrize('name', ['crate_mae', 'vit_mae'])
def test_the_classifier_of_an_autoencoder_reads_what_it_reads(name, pretrained):
    """Before a step it is the encoder with a new head; from no other network can it start."""
    at, own = str(pretrained / name), name.removesuffix('_mae')
    encoder = trained.open_run(at, own)
    made, old = (trained.load_model(c, **more) for c, more in (
        (encoder, dict(new_head=True, num_classes=4)), (trained.open_run(at), {})))
    x = torch.randn(2, 3, 8, 8)
    assert torch.allclose(old.features(x), made.features(x), atol=1e-4) and type(made) is networks.network(own)[0]
    with pytest.raises(ValueError, match='has no classifier yet'):
        trained.load_model(encoder)
    for other in {'aot', 'crate', 'vit', 'crate_mae', 'vit_mae'} - {own, name}:
        with pytest.raises(ValueError, match=f'holds model={name}, .* give --model={own}'):
            trained.open_run(at, other)


@pytest.mark.parametrize('setting, message', [
    (dict(n_head=4), 'the network was trained with n_head=2; leave n_head out'),
    (dict(n_embd=32), 'do not fit n_embd=32'),
    (dict(gelu='tanh'), 'the network was trained with gelu=none'),
    (dict(image_size=32), 'do not fit image_size=32')])
def test_weights_stay_the_function_that_they_were_trained_as(setting, message, text_run):
    with pytest.raises(ValueError, match=message):
        trained.load_model(trained.open_run(text_run), **setting)


@pytest.mark.parametrize('causal', [True, False])
def test_a_network_that_was_trained_causal_stays_so(causal, tiny, tmp_path, capsys):
    out, other = tmp_path / 'run', str(not causal).lower()
    go(*tiny, '--model=crate', '--image_size=0', f'--causal={str(causal).lower()}', '--max_iters=0', f'--out_dir={out}')
    with pytest.raises(ValueError, match='leave causal out'):
        trained.load_model(trained.open_run(out), causal=not causal)
    words = f'--init_from={out}', *tiny[:2], f'--causal={other}', f'--out_dir={tmp_path}/none'
    assert 'leave causal out' in fails(capsys, train.main, *words)


def test_a_run_of_another_version_of_a_network_says_so(text_run, tmp_path):
    run = shutil.copytree(text_run, tmp_path / 'run')
    config = json.loads((run / 'config.json').read_text())
    config['network']['colour'] = 'red'
    (run / 'config.json').write_text(json.dumps(config))
    with pytest.raises(ValueError, match='of another version of AoTConfig'):
        trained.load_model(trained.open_run(run))


def test_other_classes_are_told_apart(picture_run):
    run = trained.open_run(picture_run)
    trained.check_classes(run, list('abcd'), 'here')
    for classes in ('efgh', 'abc', 'abcde'):
        with pytest.raises(ValueError, match=r'knows 4 classes, here has .*--new_head=true'):
            trained.check_classes(run, list(classes), 'here')


def test_a_run_directory_stands_for_its_best_weights(picture_run, tmp_path):
    run = shutil.copytree(picture_run, tmp_path / 'run')
    (run / 'last.pt').unlink()
    assert equal(trained.open_run(str(run))['weights'], weights(picture_run, 'best'))
    with pytest.raises(ValueError, match='holds model=crate, so model=vit cannot start from it'):
        trained.open_run(str(run), 'vit')


def test_any_weights_in_a_run_directory_can_be_named(tiny, tmp_path, capsys):
    go(*tiny, '--keep_checkpoints=true', f'--out_dir={tmp_path}/a')
    for step in (0, 3, 6):
        held = trained.open_run(tmp_path / 'a' / f'step_{step}.safetensors')
        assert held['step'] == step and equal(held['weights'], weights(tmp_path / 'a', f'step_{step}'))
    before = snapshot(tmp_path / 'a')
    for name, message in (('last.pt', 'no run in'), ('none.safetensors', 'missing'),
                          ('none', 'no run in')):
        words = f'--init_from={tmp_path}/a/{name}', f'--out_dir={tmp_path}/b'
        assert message in fails(capsys, train.main, *words)
    assert snapshot(tmp_path / 'a') == before and not (tmp_path / 'b').exists()


@pytest.mark.parametrize('at', ['.', '/', 'none', 'none.safetensors'])
def test_a_folder_without_a_run_is_named(at, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match='no run in '):
        trained.open_run(at)
