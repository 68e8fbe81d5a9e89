"""Every config builds, its header's flags and commands work, and the papers' sizes come out exactly."""
import dataclasses
import re
import runpy

import pytest
import torch
from helpers import ROOT

from engine import networks, settings
from engine.start import read
from scoring.watch import train_flops
from tasks.augment import AugmentConfig
from train import TrainConfig

FILES = sorted(p.stem for p in (ROOT / 'config').glob('*.py') if p.stem != '__init__')
CIFAR10 = {'image_size': 32, 'channels': 3, 'num_classes': 10}
READS = {'stdlib': {'vocab_size': 256}, 'shakespeare_char': {'vocab_size': 65}, 'shapes': CIFAR10, 'cifar10': CIFAR10}


def built(*words):
    """(settings in one dict, network on the meta device) of `python train.py WORDS`, started from scratch.

    The network has the sizes that the dataset would give it. No other function here asks the core for either.
    """
    start = read([*words, '--init_from=scratch', '--new_head=false'], TrainConfig, AugmentConfig)
    c, given = start.config, start.network
    Network, Config = networks.network(c.model)
    fields = {f.name for f in dataclasses.fields(Config)}
    reads = {k: v for k, v in READS.get(c.dataset, {}).items() if k in fields}
    with torch.device('meta'):
        return dataclasses.asdict(c) | dataclasses.asdict(start.augment) | given, Network(Config(**reads | given))


def positions(model):
    """Parameters of the table of positions, which the papers' counts for text leave out."""
    return model.embed.pos_emb.weight.numel()


def text(name):
    return (ROOT / 'config' / f'{name}.py').read_text()


def header(name):
    return re.match(r'(#.*\n)+', text(name))[0]


def variants(name):
    """{label: flags} of the rows of a header such as `Large   --n_layer=24 --n_embd=1024`, which may go on below."""
    rows = re.findall(r'^#   (\S.*?) {2,}(--.*(?:\n# {4,}--.*)*)', header(name), re.M)
    return {label: re.findall(r'--\S+', flags) for label, flags in rows}


def run(name, label=''):
    """Words of the command line for a config, or for the variant in its header that has this label."""
    return [str(ROOT / 'config' / f'{name}.py'), *(variants(name)[label] if label else [])]


RUNS = [(name, label) for name in FILES for label in ('', *variants(name))]


@pytest.mark.parametrize('name, label', RUNS)
def test_every_config_and_every_variant_in_its_header_builds(name, label):
    s, model = built(*run(name, label))
    assert model.num_params() > 0 and s['max_iters'] > s['warmup_iters']
    assert s['learning_rate'] > s['min_lr'] or s['schedule'] == 'constant'
    assert not s['epochs'] or s['epochs'] > s['warmup_epochs']


@pytest.mark.parametrize('name', FILES)
def test_every_header_says_its_command_and_what_to_expect_of_every_variant(name):
    expected = header(name).split('\n# expected   ')[1]
    assert f'python train.py config/{name}.py' in header(name)
    assert all(f'\n#              {label}  ' in expected for label in variants(name))


@pytest.mark.parametrize('name', FILES)
def test_the_commands_in_a_header_are_accepted(name):
    for command in re.findall(r'^#   python train\.py(.*?)(?:  #.*)?$', header(name), re.M):
        built(*(str(ROOT / w) if w.startswith('config/') else w for w in command.split()))
    for short in re.findall(r'`python train\.py ?(.*?)` trains it', header(name)):
        assert built(*short.split())[0] == built(*run(name))[0]


def test_every_run_has_a_directory_of_its_own_and_starts_from_another_runs():
    out = [runpy.run_path(run(name)[0])['out_dir'] for name in FILES]
    assert out == ['out/' + re.sub('^(pretrain|train)_', '', name) for name in FILES]
    for name in FILES:
        out += [w.removeprefix('--out_dir=') for flags in variants(name).values() for w in flags if '--out_dir=' in w]
    assert len(set(out)) == len(out) == len(RUNS)
    for name in FILES:
        starts = re.findall(r'--init_from=(out/\w+)', header(name))
        starts += re.findall('out/[^/]+', runpy.run_path(run(name)[0]).get('init_from', ''))
        assert set(starts) <= set(out)


@pytest.mark.parametrize('name', FILES)
def test_parameters_in_a_header_are_true(name):
    """Rows without flags, such as `Base   22.80M parameters`, are the file as it is."""
    for label, millions in re.findall(r'^#    +(\S.*?) {2,}([\d.]+)M parameters', header(name), re.M):
        _, model = built(*run(name, label if label in variants(name) else ''))
        count = model.num_params() - (positions(model) if 'without positions' in header(name) else 0)
        assert f'{count / 1e6:.{len(millions.partition(".")[2])}f}' == millions


@pytest.mark.parametrize('data', ['shapes', 'cifar10'])
def test_crate_alpha_is_compared_at_equal_parameters_and_at_equal_compute(data):
    (_, crate), (_, alpha), (_, equal) = (built(*run(*of)) for of in (
        (f'train_crate_{data}',), (f'train_crate_alpha_{data}',), (f'train_crate_alpha_{data}', 'equal compute')))
    assert alpha.num_params() == pytest.approx(crate.num_params(), rel=0.04)
    assert train_flops(equal) == pytest.approx(train_flops(crate), rel=0.04)


@pytest.mark.parametrize('data', ['shakespeare_char', 'stdlib'])
def test_crate_lm_is_compared_with_aot_at_equal_parameters(data):
    (_, aot), (_, lm) = (built(*run(f'train_{name}_{data}')) for name in ('aot', 'crate_lm'))
    assert lm.num_params() == pytest.approx(aot.num_params(), rel=0.02)


# (n_layer, n_embd, n_head), and parameters by hand with 50257 tokens, without positions:
# tokens x width + layers x (matrices x width^2 + norms x width) + final norm
@pytest.mark.parametrize('name, label, shape, matrices, norms, millions', [
    ('train_aot_owt', '', (24, 1024, 16), 2, 1, 102), ('train_aot_owt', 'Medium', (36, 1280, 20), 2, 1, 182),
    ('train_aot_mhsa_owt', '', (24, 896, 14), 4, 1, 122), ('train_gpt2_owt', '', (12, 768, 12), 12, 2, 124)])
def test_the_papers_language_models_have_the_papers_sizes(name, label, shape, matrices, norms, millions):
    s, model = built(*run(name, label), '--vocab_size=50257')
    n, d, _ = shape
    assert (model.config.n_layer, model.config.n_embd, model.config.n_head) == shape
    count = 50257 * d + n * (matrices * d * d + norms * d) + d
    assert model.num_params() - positions(model) == count and positions(model) == 1024 * d
    assert round(count / 1e6) == millions
    assert s['batch_size'] * s['gradient_accumulation_steps'] * s['block_size'] == 491_520
    names = 'learning_rate', 'min_lr', 'beta1', 'beta2', 'weight_decay', 'grad_clip', 'warmup_iters', 'optimizer'
    assert tuple(s[k] for k in names) == (6e-4, 6e-5, 0.9, 0.95, 0.1, 1.0, 2000, 'adamw')


@pytest.mark.parametrize('name, label, shape, causal, millions', [
    ('train_crate_owt', '', (12, 768, 12), True, 61), ('train_crate_bert_owt', '', (12, 768, 12), False, 60),
    ('train_crate_bert_owt', 'Medium', (8, 512, 8), False, 32)])
def test_crate_on_text_has_the_papers_shapes(name, label, shape, causal, millions):
    """By hand: tokens and positions, a layer's U, W with its bias, D and two LayerNorms; CRATE-BERT's last one."""
    tokens = 50258 - causal
    s, model = built(*run(name, label), f'--vocab_size={tokens}')
    n, d, _ = shape
    assert (model.config.n_layer, model.config.n_embd, model.config.n_head, model.config.causal) == (*shape, causal)
    count = (tokens + s['block_size']) * d + n * (3 * d * d + 5 * d) + 2 * d * (not causal)
    assert model.num_params() == count and round(count / 1e6) == millions
    assert s['batch_size'] * s['gradient_accumulation_steps'] * s['block_size'] == 491_520


@pytest.mark.parametrize('name, label, shape, millions', [
    ('train_aot_icl', '', (32, 128, 8), 7.5), ('train_aot_icl', 'MHSA', (32, 128, 8), 8.55),
    ('train_gpt2_icl', '', (16, 128, 8), 9.63)])
def test_regression_in_context_has_the_papers_sizes(name, label, shape, millions):
    """The paper counts a table of 50257 token embeddings too."""
    _, model = built(*run(name, label))
    assert (model.config.n_layer, model.config.n_embd, model.config.n_head) == shape
    assert (model.num_params() + 50257 * 128) / 1e6 == pytest.approx(millions, abs=0.02)


@pytest.mark.parametrize('name, label, params, numbers', [
    ('train_crate_imagenet', 'Tiny', 6_090_856, (2.4e-4, 0.5, 2048, 5, 150, 0.1, 0)),
    ('train_crate_imagenet', 'Small', 13_116_328, (2.4e-4, 0.5, 2048, 5, 150, 0.1, 0)),
    ('train_crate_imagenet', '', 22_796_008, (2.4e-4, 0.5, 2048, 5, 150, 0.1, 0)),
    ('train_crate_imagenet', 'Large', 77_641_192, (2.4e-4, 0.5, 2048, 5, 150, 0.1, 0)),
    ('train_vit_imagenet', 'Tiny', 5_717_416, (2.4e-4, 0.5, 2048, 5, 150, 0.1, 0)),
    ('train_vit_imagenet', '', 22_050_664, (2.4e-4, 0.5, 2048, 5, 150, 0.1, 0)),
    ('pretrain_crate_imagenet21k', '', 22_796_008, (1e-4, 0.05, 4096, 10, 90, 0.1, 0)),
    ('pretrain_aot_imagenet21k', '', 22_389_352, (2e-4, 0.7, 4096, 10, 90, 0.2, 2)),
    ('train_aot_mhsa_imagenet', '', 14_924_008, (5e-4, 0.1, 2048, 5, 150, 0.1, 2)),
    ('finetune_crate_imagenet', '', None, (5e-5, 0.5, 2048, 5, 50, 0.1, 0)),
    ('finetune_aot_imagenet', '', None, (5e-4, 0.3, 2048, 5, 50, 0.1, 2))])
def test_the_papers_image_models_have_the_papers_sizes_and_settings(name, label, params, numbers):
    s, model = built(*run(name, label))
    assert model.num_params() == (params or model.num_params())  # fine-tuning takes the checkpoint's sizes
    batch = s['batch_size'] * s['gradient_accumulation_steps']
    names = 'learning_rate', 'weight_decay', 'warmup_epochs', 'epochs', 'label_smoothing', 'randaugment_n'
    assert (*(s[k] for k in names[:2]), batch, *(s[k] for k in names[2:])) == numbers
    names = 'optimizer', 'schedule', 'image_size', 'patch_size', 'flip'
    assert tuple(s[k] for k in names) == ('lion', 'cosine', 224, 16, True)


@pytest.mark.parametrize('name, label, params, shape', [
    ('pretrain_crate_mae_imagenet', 'Small', 24_846_528, (12, 576, 12)),
    ('pretrain_crate_mae_imagenet', '', 43_745_280, (12, 768, 12)),
    ('pretrain_vit_mae_imagenet', 'Small', 47_401_728, (12, 384, 6)),
    ('pretrain_vit_mae_imagenet', '', 111_655_680, (12, 768, 12)),
    ('pretrain_vit_mae_imagenet', 'wide decoder', 143_533_824, (12, 768, 12))])
def test_masked_autoencoders_have_the_papers_sizes_and_settings(name, label, params, shape):
    s, model = built(*run(name, label))
    c = model.config
    assert model.num_params() == params and (c.n_layer, c.n_embd, c.n_head) == shape and c.mask_ratio == 0.75
    assert s['batch_size'] * s['gradient_accumulation_steps'] == 4096
    assert (s['optimizer'], s['image_size'], s['patch_size'], s['flip']) == ('adamw', 224, 16, True)
    if 'crate' in name:
        names = 'lam', 'eta', 'learning_rate', 'weight_decay', 'randaugment_n', 'randaugment_m'
        assert tuple(s[k] for k in names) == (0.5, 0.1, 3e-5, 0.1, 2, 14)


@pytest.mark.parametrize('name, batch', [('finetune_crate', 512), ('finetune_crate_mae', 256)])
@pytest.mark.parametrize('dataset', ['cifar10', 'cifar100', 'flowers102', 'pets'])
def test_transfer_has_the_papers_settings(name, batch, dataset):
    s, _ = built(*run(name, '' if dataset == 'cifar10' else dataset))
    assert s['batch_size'] * s['gradient_accumulation_steps'] == batch
    names = 'dataset', 'model', 'optimizer', 'learning_rate', 'weight_decay', 'image_size'
    assert tuple(s[k] for k in names) == (dataset, 'crate', 'adamw', 5e-5, 0.01, 224)
    assert (s['randaugment_n'], s['randaugment_m']) == (2, 14)
    names = 'epochs', 'warmup_epochs', 'schedule', 'label_smoothing', 'crop_scale', 'eval_view', 'randaugment_scale'
    epochs = 400 if dataset in ('flowers102', 'pets') else 200  # the README of the authors' code
    assert tuple(s[k] for k in names) == (epochs, 0, 'cosine', 0, 0.08, 'squash', 'torchvision')


def test_flops_are_six_a_weight_and_token_and_twelve_a_width_and_position():
    gpt2, aot = 12 * 12 * 768 ** 2 + 50304 * 768, 24 * 2 * 1024 ** 2 + 50304 * 1024
    for name, weights in (('train_gpt2_owt', gpt2), ('train_aot_owt', aot)):
        _, model = built(*run(name))
        c = model.config
        norms = sum(p.numel() for p in model.parameters() if p.dim() == 1)
        assert model.num_params() - positions(model) - norms == weights
        assert train_flops(model) / c.block_size == 6 * weights + 12 * c.n_layer * c.n_embd * c.block_size


def test_resolved_settings_can_be_typed_back():
    """What is printed and saved as config.json is a command line for the same run."""
    for argv in ([], ['--model=crate', '--image_size=32,48']):
        s, _ = built(*argv)
        assert built(*(f'--{k}={settings.show(v)}' for k, v in s.items()))[0] == s
