"""The authors' and OpenAI's weights in our networks, and back: all tables of tensor names, and the
checks.

A table {our name: their name} stands beside the function that reads a format. Sizes that tensors
tell are read off them; `overrides` are other settings of the network, such as pool or dropout. A
state dict may be nested in a checkpoint under `state_dict` or `model`, and its names may begin with
the `module.` of data-parallel training or the `_orig_mod.` of a compiled network. Every function
raises a Mistake that names the tensors which are missing, unexpected or of a wrong shape.
"""
import os
import re

import torch

from engine.settings import Mistake

# network: the tensor that holds its positions, and one that tells its format from the others
FORMATS = {'crate': ('pos_embedding', 'transformer.layers.0.0.fn.qkv.weight'),
           'crate_alpha': ('pos_embedding', 'transformer.layers.0.1.fn.D1'),
           'crate_mae': ('decoder_pos_embed', 'blocks.0.layers.0.0.fn.qkv.weight'),
           'vit': ('pos_embed', 'head.weight'),
           'vit_mae': ('pos_embed', 'blocks.0.attn.qkv.weight')}
VIEWS = {'crate_alpha': {'eval_crop': 1.0}}  # what their evaluation sees, where it is not our default
CRATE_GPT = 'transformer.h.0.ista.weight'  # a tensor that tells CRATE on text from CRATE on pictures
WB = 'weight', 'bias'
NESTS = 'state_dict', 'model'


def read(path):
    """The state dict in an official file. Raises Mistake for a missing or damaged one."""
    if not os.path.isfile(path):
        raise Mistake(f'no file {path}; the authors link theirs from https://github.com/Ma-Lab-Berkeley/CRATE')
    try:
        sd = unnested(torch.load(path, map_location='cpu', weights_only=True))
        if not all(isinstance(t, torch.Tensor) for t in sd.values()):
            raise ValueError('not all of it are tensors')
    except Exception as e:  # of many types, depending on the damage
        raise Mistake(f'{path} is damaged or holds no state dict ({e}); get it again') from None
    return sd


def unnested(state_dict):
    """The tensors of a state dict, or of a checkpoint that nests one, without the prefixes of
    data-parallel training and of compiled networks."""
    for nest in NESTS:
        state_dict = state_dict.get(nest, state_dict)
    found = {re.sub(r'^(module\.|_orig_mod\.)+', '', k): v for k, v in state_dict.items()}
    if len(found) < len(state_dict):
        raise Mistake('two of its tensors have the same name, but for module. or _orig_mod.')
    return found


def require(sd, kind, dims):
    """Raises Mistake unless there are tensors of these names and numbers of dimensions, {name:
    n}."""
    missing = [name for name in dims if name not in sd]
    if missing:
        raise Mistake(f'not a {kind} state dict: no {" or ".join(missing)} among {sorted(sd)[:4]} ..')
    for name, n in dims.items():
        if sd[name].dim() != n:
            raise Mistake(f'not a {kind} state dict: {name} has shape {tuple(sd[name].shape)}, not {n} dimensions')


def depth(sd, blocks):
    """Number of layers under the name `blocks`: blocks.0.*, blocks.1.*, .."""
    return len({k[len(blocks) + 1:].split('.')[0] for k in sd if k.startswith(f'{blocks}.')})


def give(model, names):
    """The model's weights under their names, for {ours: theirs} names, as far as the model has
    them."""
    weights = model.state_dict()
    return {theirs: weights[ours] for ours, theirs in names.items() if ours in weights}


def fill(model, sd, names, wanted, fixed=(), dead=()):
    """Load tensors sd {their name: tensor} into the model. names {ours: theirs}; wanted {theirs:
    tensor} are all that a complete file has. `dead` tensors are not read. `fixed` ones may be
    missing, but must equal ours to 1e-5."""
    kind, c = type(model).__name__, model.config
    missing, extra = sorted(wanted.keys() - sd.keys() - {*fixed, *dead}), sorted(sd.keys() - wanted.keys())
    if missing or extra:
        raise Mistake(f'{kind} state dict does not fit: missing {missing[:4]}, unexpected {extra[:4]}')
    needs = f'n_head={c.n_head}, image_size={c.image_size} and patch_size={c.patch_size} need' if c.image_size else \
        f'n_head={c.n_head} and the other tensors need'
    for k in sd:
        if sd[k].shape != wanted[k].shape:
            raise Mistake(f'{k} has shape {tuple(sd[k].shape)}, {needs} {tuple(wanted[k].shape)}')
        if k not in dead and not sd[k].is_floating_point():
            raise Mistake(f'{k} is of {sd[k].dtype}; weights are not')
        slack = max(1e-5, torch.finfo(sd[k].dtype).eps) if k in fixed else 0  # files may hold float16
        if k in fixed and not (sd[k] - wanted[k]).abs().max() <= slack:
            raise Mistake(f'{k} holds other positions than the sines and cosines that {needs}; give the sizes that '
                          "the weights were trained with (interpolated positions are not the authors')")
    weights = wanted | {k: v for k, v in sd.items() if k not in fixed}
    model.load_state_dict({ours: weights[theirs] for ours, theirs in names.items() if theirs in weights})
    return model


# ---- CRATE ----------------------------------------------------------------------------------------------------------

def crate_names(n_layer):
    names = {'embed.pos': 'pos_embedding', 'embed.cls': 'cls_token'}
    for ours, theirs in (('patch_norm', 1), ('patch', 2), ('token_norm', 3)):
        names |= {f'embed.{ours}.{t}': f'to_patch_embedding.{theirs}.{t}' for t in WB}
    for l in range(n_layer):
        ours, attn, ista = f'layers.{l}', f'transformer.layers.{l}.0', f'transformer.layers.{l}.1'
        names |= {f'{ours}.norm1.{t}': f'{attn}.norm.{t}' for t in WB}
        names |= {f'{ours}.attn.U.weight': f'{attn}.fn.qkv.weight'}
        names |= {f'{ours}.attn.W.{t}': f'{attn}.fn.to_out.0.{t}' for t in WB}
        names |= {f'{ours}.norm2.{t}': f'{ista}.norm.{t}' for t in WB} | {f'{ours}.ista.D': f'{ista}.fn.weight'}
    return names | {f'read.{ours}.{t}': f'mlp_head.{i}.{t}' for i, ours in enumerate(('norm', 'head')) for t in WB}


def to_crate(model):
    return give(model, crate_names(model.config.n_layer)) if model.config.image_size else to_crate_gpt(model)


def from_crate(Model, Config, state_dict, *, n_head, image_size, patch_size, **overrides):
    sd = unnested(state_dict)
    if CRATE_GPT in sd or not image_size:
        return from_crate_gpt(Model, Config, sd, n_head=n_head, image_size=image_size, **overrides)
    first, patch = 'transformer.layers.0.0.fn.qkv.weight', 'to_patch_embedding.2.weight'
    require(sd, 'CRATE', {first: 2, patch: 2, 'mlp_head.1.weight': 2, 'pos_embedding': 3})
    inner, n_embd = sd[first].shape
    model = Model(Config(**dict(
        image_size=image_size, patch_size=patch_size, channels=channels(sd[patch].shape[1], patch_size), n_head=n_head,
        num_classes=len(sd['mlp_head.1.weight']), n_embd=n_embd, n_layer=depth(sd, 'transformer.layers'),
        head_dim=inner // n_head) | overrides))
    return fill(model, sd, crate_names(model.config.n_layer), to_crate(model))


def channels(P, patch_size):
    """Channels of pictures whose patches have P numbers."""
    h, w = patch_size if isinstance(patch_size, (tuple, list)) else (patch_size, patch_size)
    return max(1, P // max(1, h * w))  # a remainder is found when shapes are compared


# ---- CRATE-alpha ----------------------------------------------------------------------------------------------------

def crate_alpha_names(n_layer):
    names = {'embed.pos': 'pos_embedding', 'embed.cls': 'cls_token'} | {f'embed.patch.{t}': f'conv1.{t}' for t in WB}
    for l in range(n_layer):
        ours, theirs = f'layers.{l}', f'transformer.layers.{l}'
        names |= {f'{ours}.norm1.{t}': f'{theirs}.0.norm.{t}' for t in WB}
        names |= {f'{ours}.attn.U.weight': f'{theirs}.0.fn.qkv.weight'}
        names |= {f'{ours}.attn.W.weight': f'{theirs}.0.fn.to_out.0.weight'}
        names |= {f'{ours}.norm2.{t}': f'{theirs}.1.norm.{t}' for t in WB}
        names |= {f'{ours}.ista.{D}': f'{theirs}.1.fn.{D}' for D in ('D', 'D1')}
    return names | {f'read.{ours}.{t}': f'mlp_head.{i}.{t}' for i, ours in enumerate(('norm', 'head')) for t in WB}


def to_crate_alpha(model):
    c = model.config
    if not (c.decoupled and c.skip and c.steps == 2):
        raise Mistake("the authors' CRATE-alpha has decoupled=True, skip=True and steps=2, this network "
                      f'decoupled={c.decoupled}, skip={c.skip} and steps={c.steps}')
    return give(model, crate_alpha_names(c.n_layer))


def from_crate_alpha(Model, Config, state_dict, *, n_head, image_size, patch_size, **overrides):
    sd = unnested(state_dict)
    first, patch, D = 'transformer.layers.0.0.fn.qkv.weight', 'conv1.weight', FORMATS['crate_alpha'][1]
    require(sd, 'CRATE-alpha', {first: 2, patch: 4, D: 2, 'mlp_head.1.weight': 2, 'pos_embedding': 3})
    inner, n_embd = sd[first].shape
    model = Model(Config(**dict(
        image_size=image_size, patch_size=patch_size, channels=sd[patch].shape[1], n_head=n_head,
        num_classes=len(sd['mlp_head.1.weight']), n_embd=n_embd, n_layer=depth(sd, 'transformer.layers'),
        head_dim=0 if inner == n_embd else inner // n_head, atoms=max(1, sd[D].shape[1] // n_embd)) | overrides))
    return fill(model, sd, crate_alpha_names(model.config.n_layer), to_crate_alpha(model))


# ---- CRATE-GPT ------------------------------------------------------------------------------------------------------

def crate_gpt_names(n_layer):
    names = {'embed.tok_emb.weight': 'transformer.wte.weight', 'embed.pos_emb.weight': 'transformer.wpe.weight'}
    for l in range(n_layer):
        ours, theirs = f'layers.{l}', f'transformer.h.{l}'
        names |= {f'{ours}.norm1.{t}': f'{theirs}.prenorm_1.{t}' for t in WB}
        names |= {f'{ours}.attn.U.weight': f'{theirs}.attn.c_attn.weight'}
        names |= {f'{ours}.attn.W.{t}': f'{theirs}.attn.c_proj.{t}' for t in WB}
        names |= {f'{ours}.norm2.{t}': f'{theirs}.prenorm_2.{t}' for t in WB}
        names |= {f'{ours}.ista.D': f'{theirs}.ista.weight'}
    return names | {'read.head.weight': 'lm_head.weight'}


def to_crate_gpt(model):
    """With the causal masks attn.bias, which are no weights, but which the authors' code looks for."""
    c = model.config
    if c.final_norm or not c.causal:
        raise Mistake("the authors' CRATE-GPT has final_norm=False and causal=True, this network "
                      f'final_norm={c.final_norm} and causal={c.causal}')
    mask, sd = model.embed.pos_emb.weight.new_ones(1, 1, c.block_size, c.block_size).tril(), {}
    for k, v in give(model, crate_gpt_names(c.n_layer)).items():
        sd |= {k.replace('c_attn.weight', 'bias'): mask} if k.endswith('c_attn.weight') else {}
        sd[k] = v
    return sd


def from_crate_gpt(Model, Config, sd, *, n_head, image_size, **overrides):
    if image_size:
        raise Mistake('these are the weights of a CRATE-GPT, which reads text, not pictures: give --image_size=0, '
                      'and to train them a config for text, such as config/train_crate_owt.py')
    if 'pos_embedding' in sd:
        raise Mistake('these are the weights of a CRATE that reads pictures, not text: give the sizes that it was '
                      'trained with, such as --image_size=224 --patch_size=16')
    tokens, positions, first = 'transformer.wte.weight', 'transformer.wpe.weight', 'transformer.h.0.attn.c_attn.weight'
    require(sd, 'CRATE-GPT', {CRATE_GPT: 2, first: 2, positions: 2, tokens: 2, 'lm_head.weight': 2})
    if not torch.equal(sd[tokens], sd['lm_head.weight']):
        raise Mistake(f'lm_head.weight differs from {tokens}; here the output map is the token embedding')
    (vocab_size, n_embd), inner = sd[tokens].shape, len(sd[first])
    model = Model(Config(**dict(
        image_size=0, block_size=len(sd[positions]), vocab_size=vocab_size, n_layer=depth(sd, 'transformer.h'),
        n_head=n_head, n_embd=n_embd, head_dim=0 if inner == n_embd else inner // n_head) | overrides))
    with torch.device('meta'):  # its masks can be larger than the network
        wanted = to_crate_gpt(Model(model.config))
    masks = [k for k in wanted if k.endswith('.attn.bias')]
    return fill(model, sd, crate_gpt_names(model.config.n_layer), wanted, dead=masks)


# ---- ViT, as in timm and in the CRATE repository --------------------------------------------------------------------

def block_names(layers, blocks, n):
    """{ours: timm's} of n layers."""
    parts = (('norm1', 'norm1'), ('attn.QKV', 'attn.qkv'), ('attn.W', 'attn.proj'),
             ('norm2', 'norm2'), ('mlp.up', 'mlp.fc1'), ('mlp.down', 'mlp.fc2'))
    return {f'{layers}.{l}.{ours}.{t}': f'{blocks}.{l}.{theirs}.{t}' for l in range(n) for ours, theirs in parts
            for t in WB}


def vit_names(c):
    names = {'embed.cls': 'cls_token', 'embed.pos': 'pos_embed'}
    names |= {f'embed.patch.{t}': f'patch_embed.proj.{t}' for t in WB} | block_names('layers', 'blocks', c.n_layer)
    head = (('norm', 'norm' if c.pool == 'cls' else 'fc_norm'), ('head', 'head'))
    return names | {f'read.{ours}.{t}': f'{theirs}.{t}' for ours, theirs in head for t in WB}


def to_vit(model):
    return give(model, vit_names(model.config))


def from_vit(Model, Config, state_dict, *, n_head, image_size, patch_size, **overrides):
    sd, patch = unnested(state_dict), 'patch_embed.proj.weight'
    require(sd, 'ViT', {'head.weight': 2, 'pos_embed': 3, 'blocks.0.attn.qkv.weight': 2, patch: 4})
    num_classes, n_embd = sd['head.weight'].shape
    model = Model(Config(**dict(
        image_size=image_size, patch_size=patch_size, channels=sd[patch].shape[1], num_classes=num_classes,
        n_head=n_head, n_embd=n_embd, n_layer=depth(sd, 'blocks'), pool='mean' if 'fc_norm.weight' in sd else 'cls')
        | overrides))
    return fill(model, sd, vit_names(model.config), to_vit(model))


# ---- CRATE-MAE ------------------------------------------------------------------------------------------------------

FIXED = 'pos_embed', 'decoder_pos_embed'
DEAD = 'pos_embed', 'decoder_embed.weight', 'decoder_embed.bias'  # the authors' CRATE-MAE has them and never reads them


def crate_mae_names(model):
    names = {'embed.cls': 'cls_token', 'embed.mask_token': 'mask_token', 'embed.pos': 'decoder_pos_embed'}
    pairs = [('embed.patch', 'patch_embed.proj'), ('norm', 'norm'), ('decoder_norm', 'decoder_norm'),
             ('pixels', 'decoder_pred')]
    for layers, blocks, attn in (('layers', 'blocks', 0), ('decoder_layers', 'decoder_blocks', 1)):
        for l in range(len(getattr(model, layers))):
            ours, theirs = f'{layers}.{l}', f'{blocks}.{l}.layers.0'
            pairs += [(f'{ours}.norm{i + 1}', f'{theirs}.{i}.norm') for i in (0, 1)]
            pairs += [(f'{ours}.attn.U', f'{theirs}.{attn}.fn.qkv'), (f'{ours}.attn.W', f'{theirs}.{attn}.fn.to_out.0'),
                      (f'{ours}.E', f'{theirs}.0.fn')]
            names |= {f'{ours}.ista.D': f'{theirs}.1.fn.weight'}
    names |= {f'{ours}.{t}': f'{theirs}.{t}' for ours, theirs in pairs for t in WB}
    return {k: names[k] for k in model.state_dict()}


def to_crate_mae(model):
    """With zeros for the layer that the authors' code never reads."""
    d, pos = model.config.n_embd, model.embed.pos
    zeros = pos.new_zeros(d, d)
    return give(model, crate_mae_names(model)) | dict(zip(DEAD, (pos, zeros, zeros[0])))


def from_crate_mae(Model, Config, state_dict, *, n_head, image_size, patch_size, decoder_n_head=0, **overrides):
    """decoder_n_head=0 means n_head. The dead tensors are ignored; position tables may be
    missing."""
    sd, first, patch = unnested(state_dict), 'blocks.0.layers.0.0.fn.qkv.weight', 'patch_embed.proj.weight'
    require(sd, 'CRATE-MAE', {first: 2, patch: 4})
    if 'decoder_pred.weight' not in sd:
        raise Mistake('this CRATE-MAE state dict has no decoder, so it cannot reconstruct pictures; take the '
                      'checkpoint of pre-training')
    inner, n_embd = sd[first].shape
    model = Model(Config(**dict(
        image_size=image_size, patch_size=patch_size, channels=sd[patch].shape[1], n_head=n_head, n_embd=n_embd,
        head_dim=0 if inner == n_embd else inner // n_head, n_layer=depth(sd, 'blocks'),
        decoder_n_layer=depth(sd, 'decoder_blocks'), decoder_n_head=decoder_n_head) | overrides))
    return fill(model, sd, crate_mae_names(model), to_crate_mae(model), FIXED, DEAD)


# ---- ViT-MAE --------------------------------------------------------------------------------------------------------

def vit_mae_names(c):
    names = {'embed.cls': 'cls_token', 'embed.pos': 'pos_embed', 'mask_token': 'mask_token',
             'decoder_pos': 'decoder_pos_embed'}
    names |= {f'embed.patch.{t}': f'patch_embed.proj.{t}' for t in WB}
    names |= block_names('layers', 'blocks', c.n_layer)
    names |= block_names('decoder_layers', 'decoder_blocks', c.decoder_n_layer)
    names |= {f'{k}.{t}': f'{k}.{t}' for k in ('norm', 'decoder_embed', 'decoder_norm') for t in WB}
    return names | {f'pixels.{t}': f'decoder_pred.{t}' for t in WB}


def to_vit_mae(model):
    return give(model, vit_mae_names(model.config))


def from_vit_mae(Model, Config, state_dict, *, n_head, image_size, patch_size, decoder_n_head, **overrides):
    """The file may lack the two tables of fixed positions."""
    sd, patch = unnested(state_dict), 'patch_embed.proj.weight'
    require(sd, 'ViT-MAE', {'blocks.0.attn.qkv.weight': 2, 'cls_token': 3, patch: 4})
    if 'decoder_embed.weight' not in sd:
        raise Mistake('this ViT-MAE state dict has no decoder, so it cannot reconstruct pictures; take the '
                      'checkpoint with a decoder, which the authors offer for visualization')
    require(sd, 'ViT-MAE', {'decoder_embed.weight': 2})
    width, n_embd = sd['decoder_embed.weight'].shape
    model = Model(Config(**dict(
        image_size=image_size, patch_size=patch_size, channels=sd[patch].shape[1], n_head=n_head, n_embd=n_embd,
        n_layer=depth(sd, 'blocks'), decoder_n_layer=depth(sd, 'decoder_blocks'), decoder_n_head=decoder_n_head,
        decoder_n_embd=width) | overrides))
    return fill(model, sd, vit_mae_names(model.config), to_vit_mae(model), FIXED)


def spare_decoder(Network, Config, sd, name, shape):
    """The tensors of a small decoder, never used, that completes the encoder sd so that it can be
    read."""
    patch, first = 'patch_embed.proj.weight', FORMATS[name][1]
    require(sd, Network.__name__, {patch: 4, first: 2})
    small = {'decoder_n_embd': 4, 'decoder_n_head': 1} if name == 'vit_mae' else \
        {'head_dim': len(sd[first]) // shape['n_head']}
    model = Network(Config(n_layer=1, decoder_n_layer=1, n_embd=len(sd[patch]), channels=sd[patch].shape[1],
                           **shape, **small))
    return {k: v for k, v in model.to_official().items() if k.startswith(('decoder', 'mask_token'))}


# ---- GPT-2 ----------------------------------------------------------------------------------------------------------

def from_gpt2(Model, Config, state_dict, *, n_head, **overrides):
    """GPT-2 from a state dict with nanoGPT's names and shapes, or with OpenAI's and Hugging Face's,
    whose matrices are transposed. Sizes and biases are read off the tensors. OpenAI trained with
    gelu='tanh'."""
    sd = {k.removeprefix('transformer.'): t for k, t in unnested(state_dict).items()}
    require(sd, 'GPT-2', {'wte.weight': 2, 'wpe.weight': 2, 'h.0.attn.c_attn.weight': 2})
    if not torch.equal(sd.pop('lm_head.weight', sd['wte.weight']), sd['wte.weight']):
        raise Mistake('lm_head.weight differs from wte.weight; here the output map is the token embedding')
    sd = {k: t for k, t in sd.items() if not k.endswith(('.attn.bias', '.attn.masked_bias'))}  # causal masks
    vocab_size, n_embd = sd['wte.weight'].shape
    model = Model(Config(
        block_size=len(sd['wpe.weight']), vocab_size=vocab_size, n_layer=depth(sd, 'h'), n_head=n_head, n_embd=n_embd,
        attn='mhsa', mlp=True, bias='ln_f.bias' in sd, **overrides))
    names = {'embed.tok_emb.weight': 'wte.weight', 'embed.pos_emb.weight': 'wpe.weight', 'read.weight': 'wte.weight'}
    parts = (('norm1', 'ln_1'), ('attn.QKV', 'attn.c_attn'), ('attn.W', 'attn.c_proj'),
             ('norm2', 'ln_2'), ('mlp.up', 'mlp.c_fc'), ('mlp.down', 'mlp.c_proj'))
    names |= {f'read.norm.{t}': f'ln_f.{t}' for t in WB}
    names |= {f'layers.{l}.{ours}.{t}': f'h.{l}.{theirs}.{t}' for l in range(model.config.n_layer)
              for ours, theirs in parts for t in WB}
    if sd['h.0.attn.c_attn.weight'].shape == (n_embd, 3 * n_embd):
        sd = {k: t.T if '.c_' in k and t.dim() == 2 else t for k, t in sd.items()}
    return fill(model, sd, {k: theirs for k, theirs in names.items() if k in model.state_dict()}, give(model, names))
