"""The authors' and OpenAI's weights in our networks, and back: all tables of tensor names, and the
checks.

A table {our name: their name} stands beside the function that reads a format. It names tensors and
modules with a weight and perhaps a bias; * stands for the number of a layer. Sizes that tensors tell
are read off them; `given` are other settings of the network, such as pool or dropout. A state dict
may be nested in a checkpoint under `state_dict` or `model`, and its names may begin with the
`module.` of data-parallel training or the `_orig_mod.` of a compiled network. Every function raises
a Mistake that names the tensors which are missing, unexpected or of a wrong shape.
"""
import re

import torch

from engine.settings import Mistake

POSITIONS = 'pos_embedding', 'decoder_pos_embed', 'pos_embed'  # the names under which a file may hold them
VIEWS = {'crate_alpha': {'eval_crop': 1.0}}  # what their evaluation sees, where it is not our default
CRATE_GPT = 'transformer.h.0.ista.weight'  # a tensor that tells CRATE on text from CRATE on pictures


def read(path):
    """The state dict in an official file. Raises Mistake for a missing or damaged one."""
    try:
        sd = unnested(torch.load(path, map_location='cpu', weights_only=True))
        if not all(isinstance(t, torch.Tensor) for t in sd.values()):
            raise ValueError('not all of it are tensors')
    except Exception as e:  # of many types, depending on the damage
        raise Mistake(f'{path} is damaged or missing, or holds no state dict ({e}); the authors link '
                      'theirs from https://github.com/Ma-Lab-Berkeley/CRATE') from None
    return sd


def unnested(state_dict):
    """The tensors of a state dict, or of a checkpoint that nests one, without the prefixes of
    data-parallel training and of compiled networks."""
    for nest in ('state_dict', 'model'):
        state_dict = state_dict.get(nest, state_dict)
    return {re.sub(r'^(module\.|_orig_mod\.)+', '', k): v for k, v in state_dict.items()}


def require(sd, kind, dims):
    """Raises Mistake unless there are tensors of these names and numbers of dimensions, {name:
    n}."""
    for name, n in dims.items():
        if name not in sd or sd[name].dim() != n:
            raise Mistake(f'not a {kind} state dict: no {name} with {n} dimensions among {sorted(sd)[:4]} ..')


def depth(sd, blocks):
    """Number of layers under the name `blocks`: blocks.0.*, blocks.1.*, .."""
    return len({k[len(blocks) + 1:].split('.')[0] for k in sd if k.startswith(f'{blocks}.')})


def names_of(model, table):
    """{our name: their name} of all weights of the model."""
    names = {}
    for ours in model.state_dict():
        number = re.search(r'\.(\d+)\.|$', ours)[1] or ''
        part, end = re.fullmatch(r'(.*?)(\.weight|\.bias|)', ours.replace(f'.{number}.', '.*.')).groups()
        names[ours] = table[part].replace('*', number) + end
    return names


def give(model, table):
    """The model's weights under their names."""
    weights = model.state_dict()
    return {theirs: weights[ours] for ours, theirs in names_of(model, table).items()}


def fill(model, sd, table, wanted, fixed=(), dead=()):
    """Load tensors sd {their name: tensor} into the model. wanted {their name: tensor} are all that
    a complete file has. `dead` tensors are not read. `fixed` ones may be missing, but must equal
    ours to 1e-5."""
    c = model.config
    missing, extra = sorted(wanted.keys() - sd.keys() - {*fixed, *dead}), sorted(sd.keys() - wanted.keys())
    if missing or extra:
        raise Mistake(f'{type(model).__name__} state dict does not fit: missing {missing[:4]}, unexpected {extra[:4]}')
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
    model.load_state_dict({ours: weights[theirs] for ours, theirs in names_of(model, table).items()})
    return model


# ---- CRATE ----------------------------------------------------------------------------------------------------------

CLASSIFIER = {
    'embed.pos': 'pos_embedding', 'embed.cls': 'cls_token', 'read.norm': 'mlp_head.0', 'read.head': 'mlp_head.1',
    'layers.*.norm1': 'transformer.layers.*.0.norm', 'layers.*.attn.U': 'transformer.layers.*.0.fn.qkv',
    'layers.*.attn.W': 'transformer.layers.*.0.fn.to_out.0', 'layers.*.norm2': 'transformer.layers.*.1.norm'}
CRATE = CLASSIFIER | {'embed.patch_norm': 'to_patch_embedding.1', 'embed.patch': 'to_patch_embedding.2',
                      'embed.token_norm': 'to_patch_embedding.3', 'layers.*.ista.D': 'transformer.layers.*.1.fn.weight'}


def to_crate(model):
    return give(model, CRATE) if model.config.image_size else to_crate_gpt(model)


def from_crate(Model, Config, state_dict, *, n_head, image_size, patch_size, **given):
    sd = unnested(state_dict)
    if CRATE_GPT in sd or not image_size:
        return from_crate_gpt(Model, Config, sd, n_head=n_head, image_size=image_size, **given)
    first, patch = 'transformer.layers.0.0.fn.qkv.weight', 'to_patch_embedding.2.weight'
    require(sd, 'CRATE', {first: 2, patch: 2, 'mlp_head.1.weight': 2, 'pos_embedding': 3})
    inner, n_embd = sd[first].shape
    h, w = patch_size if isinstance(patch_size, (tuple, list)) else (patch_size, patch_size)
    model = Model(Config(**dict(
        image_size=image_size, patch_size=patch_size, n_head=n_head, n_embd=n_embd, head_dim=inner // n_head,
        channels=max(1, sd[patch].shape[1] // max(1, h * w)),  # a remainder is found when shapes are compared
        num_classes=len(sd['mlp_head.1.weight']), n_layer=depth(sd, 'transformer.layers')) | given))
    return fill(model, sd, CRATE, to_crate(model))


# ---- CRATE-alpha ----------------------------------------------------------------------------------------------------

CRATE_ALPHA = CLASSIFIER | {'embed.patch': 'conv1', 'layers.*.ista.D': 'transformer.layers.*.1.fn.D',
                            'layers.*.ista.D1': 'transformer.layers.*.1.fn.D1'}


def to_crate_alpha(model):
    c = model.config
    if not (c.decoupled and c.skip and c.steps == 2):
        raise Mistake("the authors' CRATE-alpha has decoupled=True, skip=True and steps=2, this network "
                      f'decoupled={c.decoupled}, skip={c.skip} and steps={c.steps}')
    return give(model, CRATE_ALPHA)


def from_crate_alpha(Model, Config, state_dict, *, n_head, **given):
    sd, first, patch = unnested(state_dict), 'transformer.layers.0.0.fn.qkv.weight', 'conv1.weight'
    D = 'transformer.layers.0.1.fn.D1'
    require(sd, 'CRATE-alpha', {first: 2, patch: 4, D: 2, 'mlp_head.1.weight': 2, 'pos_embedding': 3})
    inner, n_embd = sd[first].shape
    model = Model(Config(**dict(
        channels=sd[patch].shape[1], n_head=n_head, n_embd=n_embd, head_dim=inner // n_head,
        num_classes=len(sd['mlp_head.1.weight']), n_layer=depth(sd, 'transformer.layers'),
        atoms=max(1, sd[D].shape[1] // n_embd)) | given))
    return fill(model, sd, CRATE_ALPHA, to_crate_alpha(model))


# ---- CRATE-GPT ------------------------------------------------------------------------------------------------------

GPT = {'embed.tok_emb': 'transformer.wte', 'embed.pos_emb': 'transformer.wpe', 'read.head': 'lm_head',
       'layers.*.norm1': 'transformer.h.*.prenorm_1', 'layers.*.attn.U': 'transformer.h.*.attn.c_attn',
       'layers.*.attn.W': 'transformer.h.*.attn.c_proj', 'layers.*.norm2': 'transformer.h.*.prenorm_2',
       'layers.*.ista.D': 'transformer.h.*.ista.weight'}


def to_crate_gpt(model):
    """With the causal masks attn.bias, which are no weights, but which the authors' code looks for."""
    c = model.config
    if c.final_norm or not c.causal:
        raise Mistake("the authors' CRATE-GPT has final_norm=False and causal=True, this network "
                      f'final_norm={c.final_norm} and causal={c.causal}')
    mask = model.embed.pos_emb.weight.new_ones(1, 1, c.block_size, c.block_size).tril()
    return give(model, GPT) | {f'transformer.h.{l}.attn.bias': mask for l in range(c.n_layer)}


def from_crate_gpt(Model, Config, sd, *, n_head, image_size, **given):
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
        n_head=n_head, n_embd=n_embd, head_dim=inner // n_head) | given))
    with torch.device('meta'):  # its masks can be larger than the network
        wanted = to_crate_gpt(Model(model.config))
    masks = [k for k in wanted if k.endswith('.attn.bias')]
    return fill(model, sd, GPT, wanted, dead=masks)


# ---- ViT, as in timm and in the CRATE repository --------------------------------------------------------------------

BLOCKS = {'layers.*.norm1': 'blocks.*.norm1', 'layers.*.attn.QKV': 'blocks.*.attn.qkv',
          'layers.*.attn.W': 'blocks.*.attn.proj', 'layers.*.norm2': 'blocks.*.norm2',
          'layers.*.mlp.up': 'blocks.*.mlp.fc1', 'layers.*.mlp.down': 'blocks.*.mlp.fc2'}
EMBED = {'embed.cls': 'cls_token', 'embed.pos': 'pos_embed', 'embed.patch': 'patch_embed.proj'}
VIT = {**EMBED, **BLOCKS, 'read.head': 'head'}


def vit_table(model):
    return VIT | {'read.norm': 'norm' if model.config.pool == 'cls' else 'fc_norm'}


def to_vit(model):
    return give(model, vit_table(model))


def from_vit(Model, Config, state_dict, **given):
    sd, patch = unnested(state_dict), 'patch_embed.proj.weight'
    require(sd, 'ViT', {'head.weight': 2, 'pos_embed': 3, 'blocks.0.attn.qkv.weight': 2, patch: 4})
    num_classes, n_embd = sd['head.weight'].shape
    model = Model(Config(**dict(
        channels=sd[patch].shape[1], num_classes=num_classes, n_embd=n_embd, n_layer=depth(sd, 'blocks'),
        pool='mean' if 'fc_norm.weight' in sd else 'cls') | given))
    return fill(model, sd, vit_table(model), to_vit(model))


# ---- CRATE-MAE ------------------------------------------------------------------------------------------------------

FIXED = 'pos_embed', 'decoder_pos_embed'
DEAD = 'pos_embed', 'decoder_embed.weight', 'decoder_embed.bias'  # the authors' CRATE-MAE has them and never reads them
CRATE_MAE = {
    'embed.cls': 'cls_token', 'embed.mask_token': 'mask_token', 'embed.pos': 'decoder_pos_embed',
    'embed.patch': 'patch_embed.proj', 'norm': 'norm', 'decoder_norm': 'decoder_norm', 'pixels': 'decoder_pred',
    'layers.*.norm1': 'blocks.*.layers.0.0.norm', 'layers.*.attn.U': 'blocks.*.layers.0.0.fn.qkv',
    'layers.*.attn.W': 'blocks.*.layers.0.0.fn.to_out.0', 'layers.*.norm2': 'blocks.*.layers.0.1.norm',
    'layers.*.ista.D': 'blocks.*.layers.0.1.fn.weight',
    'decoder_layers.*.norm1': 'decoder_blocks.*.layers.0.0.norm',
    'decoder_layers.*.E': 'decoder_blocks.*.layers.0.0.fn',
    'decoder_layers.*.norm2': 'decoder_blocks.*.layers.0.1.norm',
    'decoder_layers.*.attn.U': 'decoder_blocks.*.layers.0.1.fn.qkv',
    'decoder_layers.*.attn.W': 'decoder_blocks.*.layers.0.1.fn.to_out.0'}


def to_crate_mae(model):
    """With zeros for the layer that the authors' code never reads."""
    d, pos = model.config.n_embd, model.embed.pos
    zeros = pos.new_zeros(d, d)
    return give(model, CRATE_MAE) | dict(zip(DEAD, (pos, zeros, zeros[0])))


def from_crate_mae(Model, Config, state_dict, *, n_head, **given):
    """The dead tensors are ignored; position tables may be missing."""
    sd, first, patch = unnested(state_dict), 'blocks.0.layers.0.0.fn.qkv.weight', 'patch_embed.proj.weight'
    require(sd, 'CRATE-MAE', {first: 2, patch: 4})
    if 'decoder_pred.weight' not in sd:
        raise Mistake('this CRATE-MAE state dict has no decoder, so it cannot reconstruct pictures; take the '
                      'checkpoint of pre-training')
    inner, n_embd = sd[first].shape
    model = Model(Config(**dict(
        channels=sd[patch].shape[1], n_head=n_head, n_embd=n_embd, head_dim=inner // n_head,
        n_layer=depth(sd, 'blocks'), decoder_n_layer=depth(sd, 'decoder_blocks')) | given))
    return fill(model, sd, CRATE_MAE, to_crate_mae(model), FIXED, DEAD)


# ---- ViT-MAE --------------------------------------------------------------------------------------------------------

VIT_MAE = EMBED | BLOCKS | {f'decoder_{ours}': f'decoder_{theirs}' for ours, theirs in BLOCKS.items()} | {
    'mask_token': 'mask_token', 'decoder_pos': 'decoder_pos_embed', 'norm': 'norm', 'decoder_embed': 'decoder_embed',
    'decoder_norm': 'decoder_norm', 'pixels': 'decoder_pred'}


def to_vit_mae(model):
    return give(model, VIT_MAE)


def from_vit_mae(Model, Config, state_dict, **given):
    """The file may lack the two tables of fixed positions."""
    sd, patch = unnested(state_dict), 'patch_embed.proj.weight'
    require(sd, 'ViT-MAE', {'blocks.0.attn.qkv.weight': 2, 'cls_token': 3, patch: 4})
    if 'decoder_embed.weight' not in sd:
        raise Mistake('this ViT-MAE state dict has no decoder, so it cannot reconstruct pictures; take the '
                      'checkpoint with a decoder, which the authors offer for visualization')
    width, n_embd = sd['decoder_embed.weight'].shape
    model = Model(Config(**dict(
        channels=sd[patch].shape[1], n_embd=n_embd, n_layer=depth(sd, 'blocks'),
        decoder_n_layer=depth(sd, 'decoder_blocks'), decoder_n_embd=width) | given))
    return fill(model, sd, VIT_MAE, to_vit_mae(model), FIXED)


def spare_decoder(Network, Config, sd, shape):
    """The tensors of a small decoder, never used, that completes the encoder sd so that it can be
    read."""
    patch, first = 'patch_embed.proj.weight', 'blocks.0.layers.0.0.fn.qkv.weight'  # the latter is CRATE-MAE's
    require(sd, Network.__name__, {patch: 4})
    small = {'head_dim': len(sd[first]) // shape['n_head']} if first in sd else \
        {'decoder_n_embd': 4, 'decoder_n_head': 1}
    model = Network(Config(n_layer=1, decoder_n_layer=1, n_embd=len(sd[patch]), channels=sd[patch].shape[1],
                           **shape, **small))
    return {k: v for k, v in model.to_official().items() if k.startswith(('decoder', 'mask_token'))}


# ---- GPT-2 ----------------------------------------------------------------------------------------------------------

GPT2 = {'embed.tok_emb': 'wte', 'embed.pos_emb': 'wpe', 'read': 'wte', 'read.norm': 'ln_f',
        'layers.*.norm1': 'h.*.ln_1', 'layers.*.attn.QKV': 'h.*.attn.c_attn', 'layers.*.attn.W': 'h.*.attn.c_proj',
        'layers.*.norm2': 'h.*.ln_2', 'layers.*.mlp.up': 'h.*.mlp.c_fc', 'layers.*.mlp.down': 'h.*.mlp.c_proj'}


def from_gpt2(Model, Config, state_dict, *, n_head, **given):
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
        attn='mhsa', mlp=True, bias='ln_f.bias' in sd, **given))
    if sd['h.0.attn.c_attn.weight'].shape == (n_embd, 3 * n_embd):
        sd = {k: t.T if '.c_' in k and t.dim() == 2 else t for k, t in sd.items()}
    return fill(model, sd, GPT2, give(model, GPT2))
