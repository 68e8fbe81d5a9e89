"""Every config builds, its header's flags and commands work, and the papers' sizes come out exactly."""
import dataclasses
import functools
import re
import runpy
import shlex

import pytest
import torch
from helpers import ROOT

import analyze
import eval
import sample
from analysis.curves import CurvesConfig
from analysis.sheet import SheetConfig
from engine import networks, settings
from request.start import read
from scoring.flops import train_flops
from tasks.augment import AugmentConfig
from train import TrainConfig

FILES = sorted(p.stem for p in (ROOT / 'config').glob('*.py') if p.stem != '__init__')
CIFAR10 = {'image_size': 32, 'channels': 3, 'num_classes': 10}
READS = {'stdlib': {'vocab_size': 256}, 'shakespeare_char': {'vocab_size': 65}, 'shapes': CIFAR10, 'cifar10': CIFAR10}


@functools.cache
def built(*words):
    """(settings in one dict, network on the meta device) of `python train.py WORDS`, started from scratch.

    The network has the sizes that the dataset would give it. No other function here asks the core for either.
    """
    words = [*words, '--init_from=scratch', '--new_head=false']
    request = read(*settings.split(words), TrainConfig, AugmentConfig)
    c, augment, given = request.config, request.augment, request.network
    Network, Config = networks.network_class(c.model), networks.config_class(c.model)
    fields = {f.name for f in dataclasses.fields(Config)}
    reads = {k: v for k, v in READS.get(c.dataset, {}).items() if k in fields}
    with torch.device('meta'):
        return dataclasses.asdict(c) | dataclasses.asdict(augment) | given, Network(Config(**reads | given))


def accepted(command):
    """Fails unless our programs know the settings of `python PROGRAM ..`."""
    program, *words = shlex.split(command)[1:]
    if program == 'train.py':
        built(*(str(ROOT / w) if w.startswith('config/') else w for w in words))
    looks = {'eval.py': [eval.EvalConfig], 'sample.py': [sample.SampleConfig]}
    if program == 'analyze.py':
        assert words[0] in analyze.COMMANDS | analyze.THEORIES | analyze.OTHERS
        looks[program] = {'augment': [SheetConfig, AugmentConfig], 'curves': [CurvesConfig]}.get(
            words[0], [analyze.AnalyzeConfig, *analyze.THEORIES.get(words[0], ())[1:]])
    if program in looks:
        settings.check(settings.collect(w for w in words if w.startswith('--')), *looks[program])


def positions(model):
    """Parameters of the table of positions, which the papers' counts for text leave out."""
    return model.embed.pos_emb.weight.numel()


def header(name):
    return re.match(r'(#.*\n)+', (ROOT / 'config' / f'{name}.py').read_text())[0]


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
    assert networks.num_params(model) > 0 and s['max_iters'] > s['warmup_iters']
    assert s['learning_rate'] > s['min_lr'] or s['schedule'] == 'constant'
    assert not s['epochs'] or s['epochs'] > s['warmup_epochs']


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
        count = networks.num_params(model) - (positions(model) if 'without positions' in header(name) else 0)
        assert f'{count / 1e6:.{len(millions.partition(".")[2])}f}' == millions


@pytest.mark.parametrize('size, one, other, data, rel', [
    *((networks.num_params, 'crate', 'crate_alpha', data, 0.04) for data in ('shapes', 'cifar10')),
    *((train_flops, 'crate', 'crate_alpha', f'{data} equal compute', 0.04) for data in ('shapes', 'cifar10')),
    *((networks.num_params, 'aot', 'crate_lm', data, 0.02) for data in ('shakespeare_char', 'stdlib'))])
def test_networks_are_compared_at_equal_parameters_or_at_equal_compute(size, one, other, data, rel):
    (_, a), (_, b) = built(*run(f'train_{one}_{data.split()[0]}')), built(*run(*f'train_{other}_{data}'.split(' ', 1)))
    assert size(b) == pytest.approx(size(a), rel=rel)


def shape(n_layer, n_embd, n_head, **more):
    return dict(n_layer=n_layer, n_embd=n_embd, n_head=n_head) | more


def supervised(learning_rate, weight_decay, batch, warmup_epochs, epochs, label_smoothing, randaugment_n, **more):
    return more | dict(learning_rate=learning_rate, weight_decay=weight_decay, batch=batch, epochs=epochs,
                       warmup_epochs=warmup_epochs, label_smoothing=label_smoothing, randaugment_n=randaugment_n,
                       optimizer='lion', schedule='cosine_from_start', image_size=224, patch_size=16, flip=True)


OWT = dict(tokens=491_520, learning_rate=6e-4, min_lr=6e-5, beta1=0.9, beta2=0.95, weight_decay=0.1, grad_clip=1.0,
           warmup_iters=2000, optimizer='adamw')
MASKED = dict(batch=4096, mask_ratio=0.75, optimizer='adamw', image_size=224, patch_size=16, flip=True)
TRANSFER = dict(model='crate', optimizer='adamw', learning_rate=5e-5, weight_decay=0.01, image_size=224,
                randaugment_n=2, randaugment_m=14, warmup_epochs=0, schedule='cosine', label_smoothing=0,
                crop_scale=0.08, eval_view='squash', randaugment_scale='torchvision', new_norm=True)
CRATE_MASKED = MASKED | dict(lam=0.5, eta=0.1, learning_rate=3e-5, weight_decay=0.1, randaugment_n=2, randaugment_m=14)
PAPERS = {  # settings in the papers; models/test_fresh.py counts the parameters
    'train_aot_owt': OWT | shape(24, 1024, 16), 'train_aot_owt Medium': OWT | shape(36, 1280, 20),
    'train_aot_mhsa_owt': OWT | shape(24, 896, 14), 'train_gpt2_owt': OWT | shape(12, 768, 12),
    'train_crate_owt': OWT | shape(12, 768, 12), 'train_crate_lm_owt': OWT,
    'train_crate_bert_owt': OWT | shape(12, 768, 12, causal=False),
    'train_crate_bert_owt Medium': OWT | shape(8, 512, 8, causal=False),
    'train_aot_icl': shape(32, 128, 8), 'train_aot_icl MHSA': shape(32, 128, 8), 'train_gpt2_icl': shape(16, 128, 8),
    'pretrain_crate_mae_imagenet Small': CRATE_MASKED | shape(12, 576, 12),
    'pretrain_crate_mae_imagenet': CRATE_MASKED | shape(12, 768, 12),
    'pretrain_vit_mae_imagenet Small': MASKED | shape(12, 384, 6),
    'pretrain_vit_mae_imagenet': MASKED | shape(12, 768, 12),
    'train_crate_imagenet': supervised(2.4e-4, 0.5, 2048, 5, 150, 0.1, 0, **shape(12, 768, 12)),
    'train_vit_imagenet': supervised(2.4e-4, 0.5, 2048, 5, 150, 0.1, 0, **shape(12, 384, 6)),
    'pretrain_crate_imagenet21k': supervised(1e-4, 0.05, 4096, 10, 90, 0.1, 0, **shape(12, 768, 12)),
    'pretrain_aot_imagenet21k': supervised(2e-4, 0.7, 4096, 10, 90, 0.2, 2, **shape(32, 576, 12)),
    'train_aot_mhsa_imagenet': supervised(5e-4, 0.1, 2048, 5, 150, 0.1, 2, **shape(24, 384, 6)),
    'finetune_crate_imagenet': supervised(5e-5, 0.5, 2048, 5, 50, 0.1, 0),  # shapes are the checkpoint's
    'finetune_aot_imagenet': supervised(5e-4, 0.3, 2048, 5, 50, 0.1, 2),
    **{f'{name} {dataset}'.removesuffix(' cifar10'): TRANSFER | dict(dataset=dataset, batch=batch, epochs=epochs)
       for name, batch in (('finetune_crate', 512), ('finetune_crate_mae', 256))
       for dataset, epochs in (('cifar10', 200), ('cifar100', 200), ('flowers102', 400), ('pets', 400))}}


@pytest.mark.parametrize('name', PAPERS)
def test_runs_have_the_papers_settings(name):
    s, model = built(*run(*name.split(' ', 1)))
    batch = s['batch_size'] * s['gradient_accumulation_steps']
    found = vars(model.config) | s | {'batch': batch, 'tokens': batch * s.get('block_size', 0)}
    assert {k: found.get(k) for k in PAPERS[name]} == PAPERS[name]


@pytest.mark.slow
def test_flops_are_six_a_weight_and_token_and_twelve_a_width_and_position():
    gpt2, aot = 12 * 12 * 768 ** 2 + 50304 * 768, 24 * 2 * 1024 ** 2 + 50304 * 1024
    for name, weights in (('train_gpt2_owt', gpt2), ('train_aot_owt', aot)):
        _, model = built(*run(name))
        c = model.config
        norms = sum(p.numel() for p in model.parameters() if p.dim() == 1)
        assert networks.num_params(model) - positions(model) - norms == weights
        assert train_flops(model) / c.block_size == 6 * weights + 12 * c.n_layer * c.n_embd * c.block_size


def test_resolved_settings_can_be_typed_back():
    """What is printed and saved as config.json is a command line for the same run."""
    for argv in ([], ['--model=crate', '--image_size=32,48']):
        s, _ = built(*argv)
        assert built(*(f'--{k}={settings.show(v)}' for k, v in s.items()))[0] == s
