"""Every file in config/ is read by the program's own check, builds, and has the parameters that it says."""
import dataclasses

import pytest
import torch
from conftest import ROOT

from engine import settings as configurator
from engine import machine
from engine import checkpoints as models
import train

TEXT = ('stdlib', 'shakespeare_char', 'openwebtext')
SIZES = {'shapes': {'image_size': 32, 'num_classes': 10}, 'cifar10': {'image_size': 32, 'num_classes': 10}}  # else 224, 1000
CONFIGS = sorted(p.name for p in (ROOT / 'config').glob('*_*.py') if p.name[0] != '_')


def built(name, **overrides):
    """(settings, model on the meta device) of a config."""
    c, a, given, _ = train.settings([str(ROOT / 'config' / name), '--init_from=scratch', '--new_head=false'])
    Model, Config = models.model_classes(c.model)
    with torch.device('meta'):
        reads = {'vocab_size': 256} if c.dataset in TEXT else SIZES.get(c.dataset, {})
        reads = {k: v for k, v in reads.items() if hasattr(Config, k)}
        return c, Model(Config(**reads | given | overrides))


@pytest.mark.parametrize('name', CONFIGS)
def test_every_config_builds(name):
    c, model = built(name)
    assert model.num_params() > 0 and c.max_iters > c.warmup_iters
    assert c.learning_rate > c.min_lr or c.schedule == 'constant'
    assert not c.epochs or c.epochs > c.warmup_epochs
    head = (ROOT / 'config' / name).read_text().split('\n\n')[0]
    for word in (f'python train.py config/{name}', 'hardware', 'minutes', 'expected'):
        assert word in head, f'{name} does not say its {word}'
    assert c.out_dir == 'out/' + name[:-3].removeprefix('train_').removeprefix('pretrain_')


# (n_layer, n_embd, n_head), and parameters by hand with 50257 tokens, without positions:
# tokens x width + layers x (matrices x width^2 + norms x width) + final norm
@pytest.mark.parametrize('name, shape, matrices, norms, millions', [
    ('train_aot_owt.py', (24, 1024, 16), 2, 1, 102),
    ('train_aot_medium_owt.py', (36, 1280, 20), 2, 1, 182),
    ('train_aot_mhsa_owt.py', (24, 896, 14), 4, 1, 122),
    ('train_gpt2_owt.py', (12, 768, 12), 12, 2, 124)])
def test_the_papers_language_models_have_the_papers_sizes(name, shape, matrices, norms, millions):
    c, model = built(name, vocab_size=50257)
    n, d, _ = shape
    assert (model.config.n_layer, model.config.n_embd, model.config.n_head) == shape
    count = 50257 * d + n * (matrices * d * d + norms * d) + d
    assert model.num_params(positions=False) == count == model.num_params() - 1024 * d
    assert round(count / 1e6) == millions
    assert c.batch_size * c.gradient_accumulation_steps * model.config.block_size == 491_520
    assert (c.learning_rate, c.min_lr, c.beta1, c.beta2, c.weight_decay, c.grad_clip, c.warmup_iters, c.optimizer) == \
        (6e-4, 6e-5, 0.9, 0.95, 0.1, 1.0, 2000, 'adamw')


@pytest.mark.parametrize('name, shape, causal, millions', [
    ('train_crate_owt.py', (12, 768, 12), True, 61), ('train_crate_bert_owt.py', (12, 768, 12), False, 60),
    ('train_crate_bert_medium_owt.py', (8, 512, 8), False, 32)])
def test_crate_on_text_has_the_papers_shapes(name, shape, causal, millions):
    """By hand: tokens and positions, and a layer's U, W with its bias, D and two LayerNorms."""
    c, model = built(name, vocab_size=50258 - causal)
    n, d, _ = shape
    assert (model.config.n_layer, model.config.n_embd, model.config.n_head, model.config.causal) == (*shape, causal)
    count = (50258 - causal + model.config.block_size) * d + n * (3 * d * d + 5 * d) + 2 * d
    assert model.num_params() == count and round(count / 1e6) == millions
    assert c.batch_size * c.gradient_accumulation_steps * model.config.block_size == 491_520


def pictures(name):
    """The settings of a config for ImageNet, by name."""
    c, a, given, _ = train.settings([str(ROOT / 'config' / name), '--init_from=scratch', '--new_head=false'])
    return dataclasses.asdict(c) | dataclasses.asdict(a) | given | {'batch': c.batch_size * c.gradient_accumulation_steps}


@pytest.mark.parametrize('name, params, numbers', [
    ('train_crate_tiny_imagenet.py', 6_090_856, (2.4e-4, 0.5, 2048, 5, 150, 0.1, 0)),
    ('train_crate_small_imagenet.py', 13_116_328, (2.4e-4, 0.5, 2048, 5, 150, 0.1, 0)),
    ('train_crate_base_imagenet.py', 22_796_008, (2.4e-4, 0.5, 2048, 5, 150, 0.1, 0)),
    ('train_crate_large_imagenet.py', 77_641_192, (2.4e-4, 0.5, 2048, 5, 150, 0.1, 0)),
    ('train_vit_tiny_imagenet.py', 5_717_416, (2.4e-4, 0.5, 2048, 5, 150, 0.1, 0)),
    ('train_vit_small_imagenet.py', 22_050_664, (2.4e-4, 0.5, 2048, 5, 150, 0.1, 0)),
    ('pretrain_crate_base_imagenet21k.py', 22_796_008, (1e-4, 0.05, 4096, 10, 90, 0.1, 0)),
    ('train_aot_mssa_imagenet21k.py', 22_389_352, (2e-4, 0.7, 4096, 10, 90, 0.2, 2)),
    ('train_aot_mhsa_imagenet.py', 14_924_008, (5e-4, 0.1, 2048, 5, 150, 0.1, 2)),
    ('finetune_crate_base_imagenet.py', None, (5e-5, 0.5, 2048, 5, 50, 0.1, 0)),
    ('finetune_aot_mssa_imagenet.py', None, (5e-4, 0.3, 2048, 5, 50, 0.1, 2))])
def test_the_papers_pictures_have_the_papers_sizes_and_numbers(name, params, numbers):
    if params:
        assert built(name)[1].num_params() == params
    s = pictures(name)
    names = ('learning_rate', 'weight_decay', 'batch', 'warmup_epochs', 'epochs', 'label_smoothing', 'randaugment_n')
    assert tuple(s[k] for k in names) == numbers
    assert (s['optimizer'], s['schedule'], s['image_size'], s['patch_size'], s['flip']) == ('lion', 'cosine', 224, 16, True)


@pytest.mark.parametrize('dataset', ['cifar10', 'cifar100', 'flowers102', 'pets'])
def test_transfer_has_the_papers_numbers(dataset):
    s = pictures(f'finetune_crate_{dataset}.py')
    names = ('dataset', 'optimizer', 'learning_rate', 'weight_decay', 'batch', 'image_size', 'randaugment_n', 'randaugment_m')
    assert tuple(s[k] for k in names) == (dataset, 'adamw', 5e-5, 0.01, 512, 224, 2, 14)


@pytest.mark.parametrize('name, params, shape', [
    ('train_crate_mae_small_imagenet.py', 24_846_528, (12, 576, 12)), ('train_crate_mae_base_imagenet.py', 43_745_280, (12, 768, 12)),
    ('train_vit_mae_base_imagenet.py', 111_655_680, (12, 768, 12))])
def test_masked_autoencoders_have_the_papers_sizes_and_numbers(name, params, shape):
    model, s = built(name)[1], pictures(name)
    c = model.config
    assert model.num_params() == params and (c.n_layer, c.n_embd, c.n_head) == shape and c.mask_ratio == 0.75
    assert (s['batch'], s['optimizer'], s['image_size'], s['patch_size'], s['flip']) == (4096, 'adamw', 224, 16, True)
    if 'crate' in name:
        assert (c.lam, c.eta, s['learning_rate'], s['weight_decay'], s['randaugment_n'], s['randaugment_m']) == (0.5, 0.1, 3e-5, 0.1, 2, 14)


@pytest.mark.parametrize('dataset', ['cifar10', 'cifar100', 'flowers102', 'pets'])
def test_transfer_from_masked_autoencoders_has_the_papers_numbers(dataset):
    s = pictures(f'finetune_crate_mae_{dataset}.py')
    names = ('dataset', 'model', 'optimizer', 'learning_rate', 'weight_decay', 'batch', 'image_size', 'randaugment_n', 'randaugment_m')
    assert tuple(s[k] for k in names) == (dataset, 'crate', 'adamw', 5e-5, 0.01, 256, 224, 2, 14)


def test_flops_are_six_a_weight_and_token_and_twelve_a_width_and_position():
    for name, weights in (('train_gpt2_owt.py', 12 * 12 * 768 ** 2 + 50304 * 768), ('train_aot_owt.py', 24 * 2 * 1024 ** 2 + 50304 * 1024)):
        _, model = built(name)
        c = model.config
        norms = sum(p.numel() for p in model.parameters() if p.dim() == 1)
        assert model.num_params(positions=False) - norms == weights
        assert machine.train_flops(model) / c.block_size == 6 * weights + 12 * c.n_layer * c.n_embd * c.block_size


def test_a_bare_run_reads_the_default_config():
    c, _, given, _ = train.settings([])
    assert c.dataset == 'stdlib' and given['attn'] == 'mssa' and c.optimizer == 'muon'
    c, _, given, _ = train.settings(['--n_layer=5'])
    assert c.dataset == 'stdlib' and given['n_layer'] == 5
    c, _, given, _ = train.settings(['--dataset=linear', '--n_layer=5'])
    assert (given['n_dims'], given['n_layer'], c.dtype) == (5, 5, 'float32')
    c, _, given, _ = train.settings([str(ROOT / 'config' / 'train_gpt2_owt.py')])
    assert c.optimizer == 'adamw' and given['mlp'] is True


def test_resolved_settings_can_be_typed_back():
    """What is printed and saved as config.json is a command line for the same run."""
    for argv in ([], ['--model=crate', '--image_size=32,48']):
        c, a, given, _ = train.settings(argv)
        words = [f'--{k}={configurator.show(v)}' for k, v in (dataclasses.asdict(c) | dataclasses.asdict(a) | given).items()]
        assert train.settings(words) == (c, a, given, None)
