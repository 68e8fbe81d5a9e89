"""The authors' and OpenAI's weights in our networks, and back: all tables of tensor names, and the
checks.

A table {our name: their name} stands beside the functions that use it. It names tensors, and modules
with all that is in them; of two names that fit the first one counts. * stands for the number of a
layer. What both call alike is left out. Sizes that tensors tell are read off them; `given` are other
settings of the network, such as n_head or dropout. A state dict may be nested in a checkpoint under
`state_dict` or `model`, and its names may begin with the `module.` of data-parallel training or the
`_orig_mod.` of a compiled network. Every from_ function raises a Mistake that names the tensors which
are missing, unexpected or of a wrong shape.
"""
import math
import re

import torch
from safetensors.torch import load_file

from engine.networks import config_from
from engine.settings import Mistake, reading, show

LENGTHS = {  # a setting: the tensor that is so long
    'n_embd': 'layers.0.norm1.weight', 'decoder_n_embd': 'decoder_embed.weight', 'num_classes': 'read.head.bias',
    'vocab_size': 'embed.tok_emb.weight', 'block_size': 'embed.pos_emb.weight'}


def read(path):
    """The weights in a file of torch.save or of safetensors. Raises Mistake for a missing or damaged one."""
    with reading(f'{path} is damaged or missing, or holds no state dict'):
        safe = str(path).endswith('.safetensors')
        return unnested(load_file(path) if safe else torch.load(path, map_location='cpu', weights_only=True))


def unnested(state_dict):
    """{name: tensor} of a state dict, or of a checkpoint that nests one, without the prefixes of data-parallel training
    and of compiled networks, and without the causal masks of language models, which are no weights."""
    for nest in ('state_dict', 'model'):
        state_dict = state_dict.get(nest, state_dict)
    plain = {re.sub(r'^(module\.|_orig_mod\.)+', '', name): t for name, t in state_dict.items()}
    return {name: t for name, t in plain.items()
            if isinstance(t, torch.Tensor) and not name.endswith(('.attn.bias', '.attn.masked_bias'))}


def rename(tensors, table):
    """{our name: tensor} -> {their name: tensor}; with a table turned round, the other way. A name that the table lacks
    stays."""
    def renamed(name):
        for old, new in table.items():
            pattern = re.escape(old).replace(r'\*', r'(\d+)') + r'(?=\.|$)'
            if found := re.match(pattern, name):
                return found.expand(new.replace('*', r'\1')) + name[found.end():]
        return name
    return {renamed(name): t for name, t in tensors.items()}


def give(model, table):
    """The model's weights under their names."""
    return rename(model.state_dict(), table)


def load(Model, Config, sd, table, given):
    """The network of the tensors sd, {their name: tensor}. Fixed positions and BatchNorm's counters may be missing."""
    weights = rename(sd, {theirs: ours for ours, theirs in table.items()})
    model = Model(config_from(Config, sizes(weights, given['n_head'], given.get('patch_size', 1)) | given))
    own = model.state_dict()
    weights = {name: own[name] for name, _ in model.named_buffers() if 'running_' not in name} | weights
    has, needs = ({name: tuple(t.shape) for name, t in part.items()} for part in (weights, own))
    missing_first = sorted(needs | has, key=lambda name: name in has)
    wrong = {name: f'{has.get(name, "missing")}, expected {needs.get(name, "none")}'
             for name in missing_first if has.get(name) != needs.get(name)}
    if wrong:
        settings = ', '.join(f'{k}={show(v)}' for k, v in given.items())
        first = '; '.join(f'{name}: {how}' for name, how in list(rename(wrong, table).items())[:4])
        raise Mistake(f'these weights do not fit {Model.__name__} with {settings}: {first}')
    if 'lm_head.weight' in sd and not torch.equal(sd['lm_head.weight'], weights['embed.tok_emb.weight']):
        raise Mistake('lm_head.weight differs from the token embedding; here they are one')
    model.load_state_dict(weights)
    return model


def sizes(weights, n_head, patch_size):
    """Settings that tensors {our name: tensor} tell. For a missing one the network's default stands, until the shapes
    are compared."""
    told = {k: len(weights[name]) for k, name in LENGTHS.items() if name in weights}
    for part in ('', 'decoder_'):
        if numbers := {name.split('.')[1] for name in weights if name.startswith(f'{part}layers.')}:
            told[f'{part}n_layer'] = len(numbers)
    if 'layers.0.attn.U.weight' in weights:
        told['head_dim'] = len(weights['layers.0.attn.U.weight']) // max(1, n_head)
    if 'embed.patch.weight' in weights:
        inputs = weights['embed.patch.weight'][0].numel()
        pixels = math.prod(patch_size) if isinstance(patch_size, (tuple, list)) else patch_size ** 2
        told['channels'] = max(1, inputs // max(1, pixels))
    if 'embed.stem.0.0.weight' in weights:
        told['channels'] = weights['embed.stem.0.0.weight'].shape[1]
    if 'layers.0.ista.D1' in weights:
        d, atoms = weights['layers.0.ista.D1'].shape
        told['atoms'] = atoms // d
    return told


# ---- CRATE ----------------------------------------------------------------------------------------------------------

CLASSIFIER = {
    'embed.pos': 'pos_embedding', 'embed.cls': 'cls_token', 'read.norm': 'mlp_head.0', 'read.head': 'mlp_head.1',
    'layers.*.norm1': 'transformer.layers.*.0.norm', 'layers.*.attn.U': 'transformer.layers.*.0.fn.qkv',
    'layers.*.attn.W': 'transformer.layers.*.0.fn.to_out.0', 'layers.*.norm2': 'transformer.layers.*.1.norm'}
CRATE = CLASSIFIER | {'embed.patch_norm': 'to_patch_embedding.1', 'embed.patch': 'to_patch_embedding.2',
                      'embed.token_norm': 'to_patch_embedding.3', 'layers.*.ista.D': 'transformer.layers.*.1.fn.weight'}
GPT = {'embed.tok_emb': 'transformer.wte', 'embed.pos_emb': 'transformer.wpe', 'read.head': 'lm_head',
       'layers.*.norm1': 'transformer.h.*.prenorm_1', 'layers.*.attn.U': 'transformer.h.*.attn.c_attn',
       'layers.*.attn.W': 'transformer.h.*.attn.c_proj', 'layers.*.norm2': 'transformer.h.*.prenorm_2',
       'layers.*.ista.D': 'transformer.h.*.ista.weight'}


def to_crate(model):
    """For text with the causal masks attn.bias, for which the authors' code looks."""
    c = model.config
    if c.image_size:
        return give(model, CRATE)
    mask = torch.ones(1, 1, c.block_size, c.block_size).tril()
    return give(model, GPT) | {f'transformer.h.{l}.attn.bias': mask for l in range(c.n_layer)}


def from_crate(Model, Config, state_dict, *, patch_size, **given):
    """image_size=0 is for CRATE-GPT. In crate-demo.pth, of the authors' segmentation demo, the classifier may be two
    linear maps, mlp_head.1 and then head; here they are one. A file without a classifier gets one of zeros."""
    sd = unnested(state_dict)
    if not given['image_size']:
        return load(Model, Config, sd, GPT, given)
    if 'transformer.wte.weight' in sd:
        raise Mistake('these are the weights of a CRATE-GPT, which reads text: give --image_size=0')
    if {'head.weight', 'head.bias', 'mlp_head.1.weight', 'mlp_head.1.bias'} <= sd.keys():
        W, b = sd.pop('head.weight'), sd.pop('head.bias')
        sd |= {'mlp_head.1.weight': W @ sd['mlp_head.1.weight'], 'mlp_head.1.bias': W @ sd['mlp_head.1.bias'] + b}
    if 'cls_token' in sd and not has_classifier(sd):
        d, classes = sd['cls_token'].shape[-1], given.get('num_classes', Config.num_classes)
        sd |= {'mlp_head.0.weight': torch.ones(d), 'mlp_head.0.bias': torch.zeros(d),
               'mlp_head.1.weight': torch.zeros(classes, d), 'mlp_head.1.bias': torch.zeros(classes)}
    return load(Model, Config, sd, CRATE, given | {'patch_size': patch_size})


def has_classifier(sd):
    """Whether a file of CRATE, unnested, has one."""
    return any(name.startswith(('mlp_head.', 'head.')) for name in sd)


# ---- CRATE-alpha ----------------------------------------------------------------------------------------------------

LM = GPT | {'read.norm': 'transformer.ln_f'}
CRATE_ALPHA = CLASSIFIER | {'embed.patch': 'conv1', 'layers.*.ista': 'transformer.layers.*.1.fn'}


def to_crate_alpha(model):
    return give(model, CRATE_ALPHA) if model.config.image_size else turned(give(model, LM))


def from_crate_alpha(Model, Config, state_dict, *, patch_size, **given):
    """image_size=0 is for CRATE-LM."""
    sd = unnested(state_dict)
    if given['image_size']:
        if 'transformer.wte.weight' in sd:
            raise Mistake('these are the weights of a CRATE-LM, which reads text: give --image_size=0')
        return load(Model, Config, sd, CRATE_ALPHA, given | {'patch_size': patch_size})
    if 'transformer.wte.weight' in sd and 'transformer.ln_f.weight' not in sd:
        raise Mistake('these are the weights of a CRATE-GPT, with square dictionaries: give --model=crate')
    return load(Model, Config, turned(sd), LM, {'decoupled': False, 'skip': False} | given)


def turned(sd):
    """Dictionaries (d, m) as CRATE-LM's files have them, (m, d), and back."""
    return {name: t.T if name.endswith('ista.weight') else t for name, t in sd.items()}


# ---- CRATE-MAE ------------------------------------------------------------------------------------------------------

DEAD = 'pos_embed', 'decoder_embed.weight', 'decoder_embed.bias'  # the authors' CRATE-MAE has them and never reads them
CRATE_MAE = {
    'embed.cls': 'cls_token', 'embed.mask_token': 'mask_token', 'embed.pos': 'decoder_pos_embed',
    'embed.patch': 'patch_embed.proj', 'pixels': 'decoder_pred',
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


def from_crate_mae(Model, Config, state_dict, **given):
    sd = {name: t for name, t in unnested(state_dict).items() if name not in DEAD}
    return load(Model, Config, sd, CRATE_MAE, given)


# ---- ViT, as in timm and in the CRATE repository, and ViT-MAE -------------------------------------------------------

BLOCKS = {'layers.*.norm1': 'blocks.*.norm1', 'layers.*.attn.QKV': 'blocks.*.attn.qkv',
          'layers.*.attn.W': 'blocks.*.attn.proj', 'layers.*.norm2': 'blocks.*.norm2',
          'layers.*.mlp.up': 'blocks.*.mlp.fc1', 'layers.*.mlp.down': 'blocks.*.mlp.fc2'}
EMBED = {'embed.cls': 'cls_token', 'embed.pos': 'pos_embed', 'embed.patch': 'patch_embed.proj'}
VIT = {pool: EMBED | BLOCKS | {'read.head': 'head', 'read.norm': norm}
       for pool, norm in (('cls', 'norm'), ('mean', 'fc_norm'))}
VIT_MAE = EMBED | BLOCKS | {f'decoder_{ours}': f'decoder_{theirs}' for ours, theirs in BLOCKS.items()} | {
    'decoder_pos': 'decoder_pos_embed', 'pixels': 'decoder_pred'}


def from_vit(Model, Config, state_dict, **given):
    sd = unnested(state_dict)
    pool = 'mean' if 'fc_norm.weight' in sd else 'cls'
    return load(Model, Config, sd, VIT[pool], {'pool': pool} | given)


# ---- GPT-2 ----------------------------------------------------------------------------------------------------------

GPT2 = {'embed.tok_emb': 'wte', 'embed.pos_emb': 'wpe', 'read.norm': 'ln_f', 'read': 'lm_head',
        'layers.*.norm1': 'h.*.ln_1', 'layers.*.attn.QKV': 'h.*.attn.c_attn', 'layers.*.attn.W': 'h.*.attn.c_proj',
        'layers.*.norm2': 'h.*.ln_2', 'layers.*.mlp.up': 'h.*.mlp.c_fc', 'layers.*.mlp.down': 'h.*.mlp.c_proj'}


def from_gpt2(Model, Config, state_dict, **given):
    """GPT-2 from a state dict with nanoGPT's names and shapes, or with OpenAI's and Hugging Face's, which have no
    lm_head and whose matrices are transposed. OpenAI trained with gelu='tanh'."""
    sd = {name.removeprefix('transformer.'): t for name, t in unnested(state_dict).items()}
    if 'wte.weight' in sd:
        sd.setdefault('lm_head.weight', sd['wte.weight'])
    transposed = any(name.endswith('c_attn.weight') and len(t) < t.shape[1] for name, t in sd.items())
    if transposed:
        sd = {name: t.T if re.search(r'\.c_\w+\.weight', name) else t for name, t in sd.items()}
    return load(Model, Config, sd, GPT2, {'attn': 'mhsa', 'mlp': True, 'bias': 'ln_f.bias' in sd} | given)


# ---- ToST -----------------------------------------------------------------------------------------------------------

TOST = {ours.replace('QKV', 'U'): f'transformer.{theirs}' for ours, theirs in GPT2.items()} | {
    'read': 'lm_head', 'layers.*.attn.gamma': 'transformer.h.*.gamma1', 'layers.*.mlp.gamma': 'transformer.h.*.gamma2',
    'layers.*.attn.temp': 'transformer.h.*.attn.temp', 'layers.*.attn.b': 'transformer.h.*.attn.denom_bias'}
TOST_OF_PICTURES = {
    'embed.pos': 'pos_embeder.token_projection', 'embed.stem': 'patch_embed.proj', 'read.cls': 'cls_token',
    'read.norm': 'norm', 'read.head': 'head', 'layers.*.attn.U': 'blocks.*.attn.qkv',
    'layers.*.attn.W': 'blocks.*.attn.to_out.0', 'layers.*.attn.gamma': 'blocks.*.gamma1',
    'layers.*.mlp.gamma': 'blocks.*.gamma2', 'layers.*.mlp.up': 'blocks.*.mlp.fc1',
    'layers.*.mlp.down': 'blocks.*.mlp.fc2', 'layers': 'blocks',
    'read.layers.*.QKV': 'cls_attn_blocks.*.attn.qkv', 'read.layers.*.W': 'cls_attn_blocks.*.attn.proj',
    'read.layers.*.gamma': 'cls_attn_blocks.*.gamma1', 'read.layers.*.mlp.gamma': 'cls_attn_blocks.*.gamma2',
    'read.layers.*.mlp.up': 'cls_attn_blocks.*.mlp.fc1', 'read.layers.*.mlp.down': 'cls_attn_blocks.*.mlp.fc2',
    'read.layers': 'cls_attn_blocks'}


def to_tost(model):
    """Their temp is (K, 1), ours (K,): a matrix would decay, and Muon would orthogonalize it."""
    weights = give(model, TOST_OF_PICTURES if model.config.image_size else TOST)
    return {name: t[:, None] if name.endswith('attn.temp') else t for name, t in weights.items()}


def from_tost(Model, Config, state_dict, **given):
    """Without image_size for text."""
    sd = {name: t.flatten() if name.endswith('attn.temp') else t for name, t in unnested(state_dict).items()}
    if not given.get('image_size'):
        return load(Model, Config, sd, TOST, {'bias': 'transformer.ln_f.bias' in sd} | given)
    return load(Model, Config, sd, TOST_OF_PICTURES, {'bias': 'blocks.0.attn.qkv.bias' in sd} | given)
