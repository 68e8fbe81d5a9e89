"""Which networks there are, and how trained ones come back: our checkpoints, the authors' files, another head or
resolution than they were trained with."""
import dataclasses
import math
import os

import torch
import torch.nn.functional as F

from engine import settings as configurator
from engine import official
from engine.run import load_checkpoint

# what the authors call the positions
OFFICIAL = {'crate': 'pos_embedding', 'vit': 'pos_embed', 'crate_mae': 'decoder_pos_embed', 'vit_mae': 'pos_embed'}
ENCODERS = {'crate_mae': 'blocks.0.layers.0.0.fn.qkv.weight', 'vit_mae': 'blocks.0.attn.qkv.weight'}  # tensors that tell
CLASSIFIERS = {'crate_mae': 'crate', 'vit_mae': 'vit'}  # the classifiers that have the encoders of masked autoencoders


def model_classes(name):
    """(Model, Config) by name."""
    if name == 'aot':
        import model_aot
        return model_aot.AoT, model_aot.AoTConfig
    if name == 'crate':
        import model_crate
        return model_crate.CRATE, model_crate.CRATEConfig
    if name == 'vit':
        import model_vit
        return model_vit.ViT, model_vit.ViTConfig
    if name == 'crate_mae':
        import model_crate_mae
        return model_crate_mae.CRATEMAE, model_crate_mae.CRATEMAEConfig
    if name == 'vit_mae':
        import model_vit
        return model_vit.ViTMAE, model_vit.ViTMAEConfig
    raise ValueError(f"model='{name}' is unknown; choose aot, crate, crate_mae, vit or vit_mae")


def load_weights(path, name='', **settings):
    """A checkpoint to start from: a file or run directory of ours, or `official:PATH`, a file of the authors, which needs
    the model's name and the settings that its tensors do not tell, n_head above all. A masked autoencoder becomes the
    classifier with its encoder, if that is the model's name."""
    if not path.startswith('official:'):
        checkpoint = load_checkpoint(path)
        holds = checkpoint['config']['model']
        if name in ('', holds):
            return checkpoint
        if CLASSIFIERS.get(holds) == name:
            return as_classifier(checkpoint)
        raise ValueError(f'{path} holds model={holds}, so model={name} cannot start from it; give '
                         f'--model={CLASSIFIERS.get(holds, holds)}')
    path = path.removeprefix('official:')
    if name not in OFFICIAL:
        raise ValueError(f"official:{path} needs the model's name: --model={' or --model='.join(OFFICIAL)}")
    if settings.get('n_head', 0) < 1:
        raise ValueError(f'official:{path} does not say its number of heads: give --n_head, or a config that does')
    if not os.path.isfile(path):
        raise ValueError(f'no file {path}; the authors link theirs from https://github.com/Ma-Lab-Berkeley/CRATE')
    try:
        sd = official.unnested(torch.load(path, map_location='cpu', weights_only=True))
        assert all(isinstance(v, torch.Tensor) for v in sd.values())
    except Exception as e:  # of many types, depending on where the damage is
        raise ValueError(f'{path} is damaged or holds no state dict ({type(e).__name__})') from None
    masked = next((k for k, v in CLASSIFIERS.items() if v == name and ENCODERS[k] in sd and 'head.weight' not in sd), '')
    Model, Config = model_classes(masked or name)
    sizes = {k: settings.get(k, getattr(Config, k)) for k in ('image_size', 'patch_size')}
    size, patch = (tuple(v) if isinstance(v, (tuple, list)) else (v, v) for v in sizes.values())
    positions = sd.get(OFFICIAL[masked or name], torch.empty(0))
    patches = positions.shape[1] - 1 if positions.dim() == 3 else 0
    side = math.isqrt(patches)
    if 0 < patches == side ** 2 != math.prod(i // max(p, 1) for i, p in zip(size, patch)):  # trained on squares of another size
        size = tuple(p * side for p in patch)
    rest = {f.name: settings[f.name] for f in dataclasses.fields(Config) if f.name in settings and f.name not in (
        'n_head', 'image_size', 'patch_size', 'num_classes')}
    if masked == 'vit_mae':
        rest['decoder_n_head'] = 1  # nothing will ask the decoder
    elif name == 'vit_mae' and 'decoder_n_head' not in rest:
        raise ValueError(f"official:{path} does not say its decoder's number of heads: give --decoder_n_head; theirs is 16")
    try:
        if masked and 'decoder_pred.weight' not in sd:  # an encoder alone, as MAE's files for fine-tuning are
            sd = official_decoder(Model, Config, sd, masked, image_size=size, patch_size=patch, n_head=settings['n_head']) | sd
        model = Model.from_official(sd, n_head=settings['n_head'], image_size=size, patch_size=patch, **rest)
    except ValueError as e:
        raise ValueError(f'{path}: {e}') from None
    checkpoint = {'weights': model.state_dict(), 'ema': None, 'model_config': dataclasses.asdict(model.config),
                  'config': {'model': masked or name}, 'data': {'kind': 'images', 'classes': None}}
    return as_classifier(checkpoint) if masked else checkpoint


def official_decoder(Model, Config, sd, name, **sizes):
    """The tensors, by the authors' names, of a small decoder that fits the encoder sd, and that nobody will ask."""
    small = {'decoder_n_embd': 4, 'decoder_n_head': 1}
    if name == 'crate_mae':
        small = {'head_dim': len(sd[ENCODERS[name]]) // sizes['n_head']}
    width = sd.get('cls_token', torch.empty(0)).shape[-1]
    model = Model(Config(n_layer=1, decoder_n_layer=1, n_embd=width, **sizes, **small))
    return {k: v for k, v in model.to_official().items() if k.startswith(('decoder', 'mask_token'))}


def as_classifier(checkpoint):
    """The checkpoint of a masked autoencoder as one of the classifier that has its encoder: patch map, class token,
    positions, from now on trained, layers and last LayerNorm, whose eps in CRATE is 1e-5. It lacks a head: `build` adds it."""
    name = CLASSIFIERS[checkpoint['config']['model']]
    fields = {f.name for f in dataclasses.fields(model_classes(name)[1])}
    config = {k: v for k, v in checkpoint['model_config'].items() if k in fields}
    config |= {'patch_norm': False} if name == 'crate' else {}
    kept = [{k: v for k, v in (weights or {}).items() if k.startswith(('patch.', 'cls', 'pos', 'layers.', 'norm.'))}
            for weights in (checkpoint['weights'], checkpoint['ema'])]
    for weights in kept * (name == 'crate'):  # its patch map is linear, in the order of `patchify`
        if weights:
            weights['patch.weight'] = weights['patch.weight'].permute(0, 2, 3, 1).flatten(1)
    return checkpoint | {'weights': kept[0], 'ema': kept[1] or None, 'model_config': config, 'headless': True,
                         'config': checkpoint['config'] | {'model': name}}


def from_command_line(argv, Settings):
    """Command line -> (Settings, the checkpoint that its `ckpt` names, or `official`, settings of the model that were given
    too: another image_size, or what an official file, of the network `model`, does not tell)."""
    given = configurator.collect(argv)
    if 'official' in given:
        if 'ckpt' in given:
            raise ValueError('--official=PATH is --ckpt=official:PATH, so leave one of the two out')
        given['ckpt'] = configurator.Text(f'official:{given["official"][0]}'), given.pop('official')[1]
    path, name = (str(given.get(k, (getattr(Settings, k), ''))[0]) for k in ('ckpt', 'model'))
    checkpoint = None if path.startswith('official:') else load_weights(path)
    if checkpoint and name not in ('', checkpoint['config']['model']):
        raise ValueError(f'{path} holds model={checkpoint["config"]["model"]}, not model={name}; leave model out')
    Config = model_classes(checkpoint['config']['model'] if checkpoint else name or 'crate')[1]
    checked = configurator.check(given, Settings, Config)
    ours = {f.name for f in dataclasses.fields(Settings)}
    overrides = {k: v for k, v in checked.items() if k not in ours}
    trained = checkpoint['model_config'].get('norm_pix_loss') if checkpoint else None
    if trained is not None and overrides.get('norm_pix_loss', trained) != trained:
        raise ValueError(f'{path} was trained with norm_pix_loss={configurator.show(trained)}; leave norm_pix_loss out')
    return (Settings(**{k: v for k, v in checked.items() if k in ours}),
            checkpoint or load_weights(path, name, **overrides), overrides)


def described(meta):
    """What a dataset's numbers mean, which a checkpoint carries along: the tokenizer, or the names of the classes."""
    return {k: meta[k] for k in ('kind', 'tokenizer', 'classes') if k in meta}


def build(name, given, checkpoint, meta, folder, new_head=False, resuming=False):
    """A model for the dataset in folder, new or from a checkpoint, with the settings given; new_head as in `load_model`,
    resuming the checkpoint's run as it was. Raises ValueError where model and dataset do not fit."""
    kind, classes, folder = meta['kind'], meta.get('classes', ()), folder or 'the dataset'
    Model, Config = model_classes(name)
    classifies = hasattr(Config, 'num_classes') and kind == 'images'
    if checkpoint:
        new_head = new_head or 'headless' in checkpoint
        known = checkpoint['data']
        if known['kind'] != kind:
            raise ValueError(f'the checkpoint reads {known["kind"]}, {folder} holds {kind}; choose another --dataset')
        if kind == 'text' and known['tokenizer'] != meta['tokenizer']:
            raise ValueError(f'the checkpoint reads {known["tokenizer"]["name"]} tokens, {folder} holds other ones '
                             f'({meta["tokenizer"]["name"]}); prepare it with the same tokenizer, or start from scratch')
        if new_head:
            if kind != 'images':
                raise ValueError(f'new_head=true is for pictures; a model that reads {kind} keeps its head')
            if not classifies:
                raise ValueError(f'model={name} has no classifier; for one that has its encoder: --model={CLASSIFIERS[name]}')
            given = {'num_classes': len(classes)} | given
            if given['num_classes'] < len(classes):
                raise ValueError(f'num_classes={given["num_classes"]} is too small for {folder}, which needs {len(classes)}')
        elif classifies:
            same_classes(checkpoint, classes, folder)
        return load_model(checkpoint, new_head, not resuming, **{} if resuming else given)
    if new_head:
        raise ValueError('new_head=true needs a model to put it on: --init_from=PATH')
    fits = {'image_size': 0} if hasattr(Config, 'vocab_size') else {}
    if kind == 'text':
        fits |= {'vocab_size': meta['vocab_size'] + (not given.get('causal', True))}  # and [MASK]
    elif kind == 'functions':
        fits |= {'n_dims': 20, 'block_size': 82}  # 41 examples
    else:
        own = next(iter(meta['splits'].values()))
        fits = {'num_classes': len(classes)} if classifies else {}
        fits |= {'image_size': (own['height'], own['width']) if 'height' in own else 224}
    unknown = [k for k in fits if not hasattr(Config, k)]
    if unknown:
        raise ValueError(f'{folder} holds {kind}, model={name} does not read that; choose another --dataset or --model')
    model = Model(Config(**fits | given))
    if reads(model.config) != kind:
        k = 'image_size' if kind == 'text' and model.config.image_size or kind == 'images' else 'n_dims'
        raise ValueError(f'{folder} holds {kind}, but {k}={configurator.show(getattr(model.config, k))} reads '
                         f'{reads(model.config)}; leave {k} out, or choose another --dataset')
    for k, least in fits.items():
        if k in ('vocab_size', 'num_classes') and getattr(model.config, k) < least:
            raise ValueError(f'{k}={getattr(model.config, k)} is too small for {folder}, which needs {least}; leave it out')
    return model


def reads(c):
    """What a model with this config reads: 'images', 'functions' or 'text'."""
    return 'images' if getattr(c, 'image_size', 0) else 'functions' if getattr(c, 'n_dims', 0) else 'text'


def load_model(checkpoint, new_head=False, averaged=True, **overrides):
    """The model that a checkpoint holds, in evaluation mode; the average of its weights if it has one and `averaged`.

    new_head: a fresh classifier, of num_classes in overrides. image_size in overrides: positions are interpolated.
    Raises ValueError if other overrides do not fit the weights.
    """
    if 'headless' in checkpoint and not new_head:
        masked = next(k for k, v in CLASSIFIERS.items() if v == checkpoint['config']['model'])
        raise ValueError(f'these are the weights of a masked autoencoder, which has no classifier yet: give --model={masked}, '
                         f'or train one: train.py --init_from=PATH --model={CLASSIFIERS[masked]}')
    Model, Config = model_classes(checkpoint['config']['model'])
    try:
        old = Config(**checkpoint['model_config'])
        model = Model(Config(**checkpoint['model_config'] | overrides))
    except TypeError as e:
        raise ValueError(f'the checkpoint is from another version of {Config.__name__} ({e})') from None
    for k in ('n_head', 'decoder_n_head', 'causal', 'gelu'):  # with these, the same weights are another function
        had, has = (c.n_head if k == 'decoder_n_head' and not getattr(c, k, 0) else getattr(c, k, None)
                    for c in (old, model.config))
        if had != has:
            raise ValueError(f'the checkpoint has {k}={configurator.show(had)}, not {configurator.show(has)}; leave {k} out')
    if reads(old) != reads(model.config):
        raise ValueError(f'the checkpoint reads {reads(old)}, with image_size={configurator.show(model.config.image_size)} it '
                         f'would read {reads(model.config)}; leave that out')
    weights, new = dict(averaged and checkpoint['ema'] or checkpoint['weights']), model.state_dict()
    for k in ('pos', 'decoder_pos'):
        if k in weights and old.image_size != model.config.image_size and old.patch_size == model.config.patch_size:
            weights[k] = resize_positions(weights[k], grid(old), grid(model.config))
    if new_head:
        weights |= {k: v for k, v in new.items() if k.startswith(('head.', 'classifier.'))}
    wrong = [k for k in sorted(new.keys() | weights.keys())
             if k not in new or k not in weights or new[k].shape != weights[k].shape]
    if wrong:
        raise ValueError(f'the checkpoint does not fit {", ".join(f"{k}={v}" for k, v in overrides.items())} '
                         f'({wrong[0]} differs); leave out what its own config.json says otherwise')
    model.load_state_dict(weights)
    return model.eval()


def grid(c):
    """Patches of a picture, (down, across)."""
    return tuple(i // p for i, p in zip(c.image_size, c.patch_size))


def resize_positions(pos, old, new):
    """Positions (1, N + 1, d), the class token's first, of an `old` grid (down, across) for a `new` one: the class
    token's as it is, the others by bicubic interpolation, as is usual when a vision transformer sees more patches."""
    own, rest = pos[:, :1], pos[:, 1:]
    rest = F.interpolate(rest.mT.unflatten(2, old), size=new, mode='bicubic', align_corners=False, antialias=True)
    return torch.cat((own, rest.flatten(2).mT), 1)


def same_classes(checkpoint, classes, where):
    """Raises ValueError, with the setting that swaps the head, if a classifier knows other classes than a dataset."""
    known, count = checkpoint['data']['classes'], checkpoint['model_config']['num_classes']
    if count != len(classes) or known is not None and known != classes:
        mine = f'{count} classes' + (f' ({", ".join(known[:3])} ..)' if known else '')
        raise ValueError(f'the checkpoint tells {mine} apart, {where} has {len(classes)} others ({", ".join(classes[:3])} ..); '
                         'put a new head on it: train.py --init_from=PATH --new_head=true')
