"""The authors' and OpenAI's weights in our networks, and back.

A table {our name: their name} stands before the functions that use it. It names tensors, or modules
with all tensors in them; where two rows fit a name, the first one counts. * stands for the number
of a layer. A name that is the same on both sides is left out.

Each from_ function takes a state dict and settings of the network, such as n_head or dropout, and
reads sizes off the tensors. The state dict may be nested in a checkpoint, under one of NESTS. Its
names may begin with one of PREFIXES. Tensors that are missing, unexpected or of a wrong shape raise
a Mistake, which names them.
"""
import math
import re

import torch

from engine.mistakes import Mistake
from engine.networks import as_pair, config_from
from engine.settings import show
from weights.surgery import check_numbers, misfits

# where people keep a state dict in a checkpoint; of several, the first one is taken
NESTS = ('state_dict', 'model', 'model_state_dict', 'weights', 'teacher', 'student', 'model_ema',
         'state_dict_ema', 'ema')
# of data-parallel training, of a compiled network, and of a network inside a LightningModule
PREFIXES = r'^(module\.|_orig_mod\.|model\.|net\.)+'
# {setting: our name of the tensor that has this length}
LENGTHS = {
    'n_embd': 'layers.0.norm1.weight',
    'decoder_n_embd': 'decoder_embed.weight',
    'num_classes': 'read.head.bias',
    'vocab_size': 'embed.tok_emb.weight',
    'block_size': 'embed.pos_emb.weight',
}


# ---- names --------------------------------------------------------------------------------------

def unnested(state_dict):
    """{name: tensor} of a state dict, or of a checkpoint with a state dict under one of NESTS.
    PREFIXES are gone. So are the causal masks of language models, because they are no weights.
    Raises ValueError if something else is where a state dict should be."""
    for nest in NESTS:
        if isinstance(state_dict, dict):
            state_dict = state_dict.get(nest, state_dict)
    if not isinstance(state_dict, dict):
        what = type(state_dict).__name__
        raise ValueError(f'{what} stands where the weights are looked for')
    tensors = {}
    for name, t in state_dict.items():
        name = re.sub(PREFIXES, '', name)
        is_mask = name.endswith(('.attn.bias', '.attn.masked_bias'))
        if isinstance(t, torch.Tensor) and not is_mask:
            tensors[name] = t
    return tensors


def encoder_of(tensors):
    """(encoder {name: tensor}, other names) of a network that learned without labels.
    DINO has its encoder under `backbone.`, others have it under `encoder.`, and beside it a
    projection head. MAE has a decoder, whose names begin with `decoder`, and its mask token."""
    prefix = ''
    for word in ('backbone.', 'encoder.'):
        if any(name.startswith(word) for name in tensors):
            prefix = word
            break
    encoder = {}
    left_out = []
    for name, t in tensors.items():
        own_name = name.removeprefix(prefix)
        is_of_decoder = own_name.startswith(('decoder', 'mask_token'))
        if is_of_decoder or not name.startswith(prefix):
            left_out.append(own_name)
        else:
            encoder[own_name] = t
    return encoder, left_out


def rename(tensors, table):
    """{our name: tensor} -> {their name: tensor}. With a table from their names to ours it is the
    other way round. A name that is not in the table stays."""
    return {renamed(name, table): t for name, t in tensors.items()}


def renamed(name, table):
    for old, new in table.items():
        pattern = re.escape(old).replace(r'\*', r'(\d+)')
        match = re.match(pattern + r'(?=\.|$)', name)
        if match:
            return match.expand(new.replace('*', r'\1')) + name[match.end():]
    return name


def give(model, table):
    """The model's weights under their names. Raises Mistake for a part that their code lacks.

    No two of the tensors share memory, and what the to_ functions below make of them is contiguous,
    because safetensors saves nothing else.
    """
    weights = rename(model.state_dict(), table)
    if 'lm_head.weight' in weights:  # the output map, which is the token embedding
        weights['lm_head.weight'] = weights['lm_head.weight'].clone()
    for name in weights:
        if name.startswith(('layers.', 'read.')):  # it was not renamed
            raise Mistake(f'{name} is of no network of the authors; take model.state_dict()')
    return weights


# ---- a network of the tensors -------------------------------------------------------------------

def load(Model, Config, sd, table, settings):
    """The network with the weights sd, {their name: tensor}. Fixed positions and BatchNorm's
    counters may be missing. Raises Mistake if the tensors do not fit."""
    weights = rename(sd, {theirs: ours for ours, theirs in table.items()})
    sizes_read = sizes(weights, settings['n_head'], settings.get('patch_size', 1))
    model = Model(config_from(Config, sizes_read | settings))
    expected = model.state_dict()
    for name, _ in model.named_buffers():
        if 'running_' not in name:
            weights.setdefault(name, expected[name])

    wrong = rename(misfits(weights, expected), table)
    if wrong:
        typed = ', '.join(f'{name}={show(value)}' for name, value in settings.items())
        problems = [f'{name}: {what}' for name, what in wrong.items()]
        if len(problems) > 4:  # the first names are missing, the last ones are those of the file
            problems[2:-2] = ['..']
        raise Mistake(f'these weights do not fit {Model.__name__} with {typed}: '
                      f'{"; ".join(problems)}; docs/pictures.md renames tensors')
    if 'lm_head.weight' in sd:
        if not torch.equal(sd['lm_head.weight'], weights['embed.tok_emb.weight']):
            raise Mistake('lm_head.weight differs from the token embedding; here they are one')
    check_numbers(model, weights)
    model.load_state_dict(weights)
    return model


def sizes(weights, n_head, patch_size):
    """Settings that can be read off the weights {our name: tensor}. If a tensor is missing, its
    setting is left out. Then the network has its default, and `load` names the tensor."""
    settings = {}
    for setting, name in LENGTHS.items():
        if name in weights:
            settings[setting] = len(weights[name])
    for prefix in ('', 'decoder_'):
        layers = [name for name in weights if name.startswith(f'{prefix}layers.')]
        if layers:
            settings[f'{prefix}n_layer'] = len({name.split('.')[1] for name in layers})
    if 'layers.0.attn.U.weight' in weights:
        settings['head_dim'] = len(weights['layers.0.attn.U.weight']) // max(1, n_head)
    if 'embed.patch.weight' in weights:
        inputs = weights['embed.patch.weight'][0].numel()
        pixels = math.prod(as_pair(patch_size))
        settings['channels'] = max(1, inputs // max(1, pixels))
    if 'embed.stem.0.0.weight' in weights:
        settings['channels'] = weights['embed.stem.0.0.weight'].shape[1]  # of ToST
    if 'layers.0.ista.D1' in weights:
        d, n_atoms = weights['layers.0.ista.D1'].shape
        settings['atoms'] = n_atoms // d
    elif 'layers.0.ista.D' in weights:
        d, n_atoms = weights['layers.0.ista.D'].shape
        if n_atoms > d:  # of CRATE-LM; that of CRATE is square, and CRATE has no such setting
            settings['atoms'] = n_atoms // d
    return settings


# ---- CRATE --------------------------------------------------------------------------------------

CLASSIFIER = {
    'embed.pos': 'pos_embedding',
    'embed.cls': 'cls_token',
    'read.norm': 'mlp_head.0',
    'read.head': 'mlp_head.1',
    'layers.*.norm1': 'transformer.layers.*.0.norm',
    'layers.*.attn.U': 'transformer.layers.*.0.fn.qkv',
    'layers.*.attn.W': 'transformer.layers.*.0.fn.to_out.0',
    'layers.*.norm2': 'transformer.layers.*.1.norm',
}
CRATE = CLASSIFIER | {
    'embed.patch_norm': 'to_patch_embedding.1',
    'embed.patch': 'to_patch_embedding.2',
    'embed.token_norm': 'to_patch_embedding.3',
    'layers.*.ista.D': 'transformer.layers.*.1.fn.weight',
}
GPT = {
    'embed.tok_emb': 'transformer.wte',
    'embed.pos_emb': 'transformer.wpe',
    'read.head': 'lm_head',
    'layers.*.norm1': 'transformer.h.*.prenorm_1',
    'layers.*.attn.U': 'transformer.h.*.attn.c_attn',
    'layers.*.attn.W': 'transformer.h.*.attn.c_proj',
    'layers.*.norm2': 'transformer.h.*.prenorm_2',
    'layers.*.ista.D': 'transformer.h.*.ista.weight',
}


def to_crate(model):
    """The weights of CRATE, or of CRATE-GPT with its causal masks attn.bias, which the authors'
    code expects."""
    c = model.config
    if c.image_size:
        return give(model, CRATE)
    weights = give(model, GPT)
    mask = torch.ones(1, 1, c.block_size, c.block_size).tril()
    for layer in range(c.n_layer):
        weights[f'transformer.h.{layer}.attn.bias'] = mask.clone()
    return weights


def from_crate(Model, Config, state_dict, *, patch_size, **settings):
    """CRATE, or with image_size=0 CRATE-GPT.

    crate-demo.pth, of the authors' segmentation demo, may have two linear maps as its classifier,
    first mlp_head.1, then head. Here they become one. A file without a classifier gets one of
    zeros.
    """
    sd = unnested(state_dict)
    if not settings['image_size']:
        return load(Model, Config, sd, GPT, settings)
    if 'transformer.wte.weight' in sd:
        raise Mistake('these are the weights of a CRATE-GPT, which reads text: give --image_size=0')
    if {'head.weight', 'head.bias', 'mlp_head.1.weight', 'mlp_head.1.bias'} <= sd.keys():
        W = sd.pop('head.weight')
        b = sd.pop('head.bias')
        sd['mlp_head.1.weight'] = W @ sd['mlp_head.1.weight']
        sd['mlp_head.1.bias'] = W @ sd['mlp_head.1.bias'] + b
    if 'cls_token' in sd and not has_classifier(sd):
        d = sd['cls_token'].shape[-1]
        sd['mlp_head.0.weight'] = torch.ones(d)
        sd['mlp_head.0.bias'] = torch.zeros(d)
        add_zeros(sd, 'mlp_head.1', settings.get('num_classes', Config.num_classes), d)
    return load(Model, Config, sd, CRATE, settings | {'patch_size': patch_size})


def add_zeros(sd, name, outputs, inputs):
    """Add a linear map of zeros to a state dict."""
    sd[f'{name}.weight'] = torch.zeros(outputs, inputs)
    sd[f'{name}.bias'] = torch.zeros(outputs)


def has_classifier(sd):
    """Whether a file of CRATE, unnested, has a classifier."""
    return any(name.startswith(('mlp_head.', 'head.')) for name in sd)


# ---- CRATE-alpha --------------------------------------------------------------------------------

LM = GPT | {'read.norm': 'transformer.ln_f'}
DICTIONARIES = r'ista\.weight$'  # (d, m) in our networks, (m, d) in CRATE-LM's files
CRATE_ALPHA = CLASSIFIER | {
    'embed.patch': 'conv1',
    'layers.*.ista': 'transformer.layers.*.1.fn',
}


def to_crate_alpha(model):
    """The weights of CRATE-alpha, or of CRATE-LM."""
    if model.config.image_size:
        return give(model, CRATE_ALPHA)
    return turned(give(model, LM), DICTIONARIES)


def from_crate_alpha(Model, Config, state_dict, *, patch_size, **settings):
    """CRATE-alpha, or with image_size=0 CRATE-LM."""
    sd = unnested(state_dict)
    is_text = 'transformer.wte.weight' in sd
    if settings['image_size']:
        if is_text:
            raise Mistake('these are the weights of a CRATE-LM, which reads text: '
                          'give --image_size=0')
        return load(Model, Config, sd, CRATE_ALPHA, settings | {'patch_size': patch_size})
    if is_text and 'transformer.ln_f.weight' not in sd:
        raise Mistake('these are the weights of a CRATE-GPT, with square dictionaries: '
                      'give --model=crate')
    settings = {'decoupled': False, 'skip': False} | settings
    return load(Model, Config, turned(sd, DICTIONARIES), LM, settings)


def turned(sd, pattern):
    """The weights, those transposed whose names have this pattern in them."""
    weights = dict(sd)
    for name, t in sd.items():
        if re.search(pattern, name):
            weights[name] = t.T.contiguous()
    return weights


# ---- CRATE-MAE ----------------------------------------------------------------------------------

# the authors' CRATE-MAE has these and never reads them
DEAD = 'pos_embed', 'decoder_embed.weight', 'decoder_embed.bias'
CRATE_MAE = {
    'embed.cls': 'cls_token',
    'embed.mask_token': 'mask_token',
    'embed.pos': 'decoder_pos_embed',  # their encoder uses it too
    'embed.patch': 'patch_embed.proj',
    'pixels': 'decoder_pred',
    'layers.*.norm1': 'blocks.*.layers.0.0.norm',
    'layers.*.attn.U': 'blocks.*.layers.0.0.fn.qkv',
    'layers.*.attn.W': 'blocks.*.layers.0.0.fn.to_out.0',
    'layers.*.norm2': 'blocks.*.layers.0.1.norm',
    'layers.*.ista.D': 'blocks.*.layers.0.1.fn.weight',
    'decoder_layers.*.norm1': 'decoder_blocks.*.layers.0.0.norm',
    'decoder_layers.*.E': 'decoder_blocks.*.layers.0.0.fn',
    'decoder_layers.*.norm2': 'decoder_blocks.*.layers.0.1.norm',
    'decoder_layers.*.attn.U': 'decoder_blocks.*.layers.0.1.fn.qkv',
    'decoder_layers.*.attn.W': 'decoder_blocks.*.layers.0.1.fn.to_out.0',
}


def to_crate_mae(model):
    """The weights of CRATE-MAE, and tensors for the names in DEAD: the positions, and a linear map
    of zeros."""
    weights = give(model, CRATE_MAE)
    d = model.config.n_embd
    pos = model.embed.pos
    weights['pos_embed'] = pos.clone()
    weights['decoder_embed.weight'] = pos.new_zeros(d, d)
    weights['decoder_embed.bias'] = pos.new_zeros(d)
    return weights


def from_crate_mae(Model, Config, state_dict, **settings):
    sd = unnested(state_dict)
    for name in DEAD:
        sd.pop(name, None)
    return load(Model, Config, sd, CRATE_MAE, settings)


# ---- ViT, as in timm and in the CRATE repository, and ViT-MAE -----------------------------------

BLOCKS = {
    'layers.*.norm1': 'blocks.*.norm1',
    'layers.*.attn.QKV': 'blocks.*.attn.qkv',
    'layers.*.attn.W': 'blocks.*.attn.proj',
    'layers.*.norm2': 'blocks.*.norm2',
    'layers.*.mlp.up': 'blocks.*.mlp.fc1',
    'layers.*.mlp.down': 'blocks.*.mlp.fc2',
}
ENCODER = BLOCKS | {
    'embed.cls': 'cls_token',
    'embed.pos': 'pos_embed',
    'embed.patch': 'patch_embed.proj',
}
VIT = {  # one table for each pool
    'cls': ENCODER | {'read.head': 'head', 'read.norm': 'norm'},
    'mean': ENCODER | {'read.head': 'head', 'read.norm': 'fc_norm'},
}
DECODER = {f'decoder_{ours}': f'decoder_{theirs}' for ours, theirs in BLOCKS.items()}
VIT_MAE = ENCODER | DECODER | {
    'decoder_pos': 'decoder_pos_embed',
    'pixels': 'decoder_pred',
}


def from_vit(Model, Config, state_dict, **settings):
    """ViT, or the encoder of MAE or DINO, which is a ViT without a head. It gets a head of
    zeros."""
    sd, _ = encoder_of(unnested(state_dict))
    pool = 'cls'
    norm = 'norm.weight'
    if 'fc_norm.weight' in sd:
        pool = 'mean'
        norm = 'fc_norm.weight'
    if norm in sd and not has_head(sd):
        add_zeros(sd, 'head', settings.get('num_classes', Config.num_classes), len(sd[norm]))
    return load(Model, Config, sd, VIT[pool], {'pool': pool} | settings)


def has_head(sd):
    """Whether a file of ViT, unnested, has a classifier."""
    return any(name.startswith('head.') for name in sd)


# ---- GPT-2 --------------------------------------------------------------------------------------

GPT2 = {
    'embed.tok_emb': 'transformer.wte',
    'embed.pos_emb': 'transformer.wpe',
    'read.norm': 'transformer.ln_f',
    'read': 'lm_head',
    'layers.*.norm1': 'transformer.h.*.ln_1',
    'layers.*.attn.QKV': 'transformer.h.*.attn.c_attn',
    'layers.*.attn.W': 'transformer.h.*.attn.c_proj',
    'layers.*.norm2': 'transformer.h.*.ln_2',
    'layers.*.mlp.up': 'transformer.h.*.mlp.c_fc',
    'layers.*.mlp.down': 'transformer.h.*.mlp.c_proj',
}
# in AoT one matrix U stands where GPT-2 has query, key and value; an MLP may be missing
AOT = {ours.replace('QKV', 'U'): theirs for ours, theirs in GPT2.items()}
MATRICES = r'\.c_\w+\.weight'  # transposed in OpenAI's and Hugging Face's files
OPENAI_VOCABULARY = 50257


def to_gpt2(model):
    """The weights of GPT-2 in nanoGPT's names. AoT gets the same names where it has such a weight,
    because the names of its authors are not known to us. Raises Mistake for a network
    of pictures or functions, for which there are no names but ours."""
    if model.config.task != 'text':
        raise Mistake('an AoT of pictures or functions has no names but ours: take '
                      'model.state_dict()')
    return give(model, AOT if model.config.attn == 'mssa' else GPT2)


def to_hugging_face(model):
    """The weights of GPT-2 for GPT2LMHeadModel of Hugging Face: nanoGPT's names, matrices of layers
    transposed, a bias of zeros where the network has none, and the output map left out, because it
    is the token embedding. A vocabulary that was rounded up to 50,304 is cut to OpenAI's 50,257
    tokens, and a line is printed. Raises Mistake for another network than GPT-2."""
    c = model.config
    if c.attn != 'mhsa' or not c.mlp or c.head_dim not in (0, c.n_embd // c.n_head):
        raise Mistake("Hugging Face knows GPT-2 alone, with attn='mhsa', mlp=True and head_dim=0; "
                      "take model.to_official(), which has nanoGPT's names")
    weights = to_gpt2(model)
    del weights['lm_head.weight']
    for name, t in list(weights.items()):
        is_embedding = name.endswith(('wte.weight', 'wpe.weight'))
        if not c.bias and not is_embedding:
            weights[name.removesuffix('weight') + 'bias'] = t.new_zeros(len(t))
    if OPENAI_VOCABULARY < c.vocab_size <= 50304:
        print(f'left out: the last {c.vocab_size - OPENAI_VOCABULARY} rows of the token embedding, '
              'which are of no token')
        rows = weights['transformer.wte.weight'][:OPENAI_VOCABULARY]
        weights['transformer.wte.weight'] = rows.clone()
    return turned(weights, MATRICES)


def from_gpt2(Model, Config, state_dict, **settings):
    """GPT-2 from a state dict with nanoGPT's names and shapes, or with those of OpenAI and Hugging
    Face, which have no lm_head and whose matrices are transposed. OpenAI trained with
    gelu='tanh'. AoT, which has a square map where GPT-2 has query, key and value, in nanoGPT's
    names."""
    sd = {}
    for name, t in unnested(state_dict).items():
        if not name.startswith(('transformer.', 'lm_head.')):  # as OpenAI has it
            name = f'transformer.{name}'
        sd[name] = t
    if 'transformer.wte.weight' in sd:
        sd.setdefault('lm_head.weight', sd['transformer.wte.weight'])
    settings = layers_of(sd) | settings
    if settings['attn'] == 'mssa':
        return load(Model, Config, sd, AOT, settings)
    if is_transposed(sd):
        sd = turned(sd, MATRICES)
    return load(Model, Config, sd, GPT2, settings)


def layers_of(sd):
    """Settings that tell the layers of AoT from those of GPT-2, read off weights of `unnested`."""
    attn = 'mhsa'
    if 'transformer.h.0.attn.c_attn.weight' in sd:
        shape = sd['transformer.h.0.attn.c_attn.weight'].shape
        if len(shape) == 2 and shape[0] == shape[1]:  # one projection, not three
            attn = 'mssa'
    has_mlp = any('.mlp.' in name for name in sd)
    return {'attn': attn, 'mlp': has_mlp, 'bias': 'transformer.ln_f.bias' in sd}


def is_of_nanogpt(sd):
    """Whether weights of `unnested` are of nanoGPT and not of OpenAI or Hugging Face: there is the
    output map, and matrices are not transposed."""
    return 'lm_head.weight' in sd and not is_transposed(sd)


def is_transposed(sd):
    """Whether the map to query, key and value is (d, 3 d), as OpenAI has it, and not (3 d, d)."""
    return any(name.endswith('c_attn.weight') and t.shape[0] < t.shape[-1]
               for name, t in sd.items())


# ---- ToST ---------------------------------------------------------------------------------------

# as in AoT, one matrix U stands where GPT-2 has query, key and value
TOST = AOT | {
    'layers.*.attn.gamma': 'transformer.h.*.gamma1',
    'layers.*.mlp.gamma': 'transformer.h.*.gamma2',
    'layers.*.attn.temp': 'transformer.h.*.attn.temp',
    'layers.*.attn.b': 'transformer.h.*.attn.denom_bias',
}
TOST_OF_PICTURES = {
    'embed.pos': 'pos_embeder.token_projection',
    'embed.stem': 'patch_embed.proj',
    'read.cls': 'cls_token',
    'read.norm': 'norm',
    'read.head': 'head',
    'layers.*.attn.U': 'blocks.*.attn.qkv',
    'layers.*.attn.W': 'blocks.*.attn.to_out.0',
    'layers.*.attn.gamma': 'blocks.*.gamma1',
    'layers.*.mlp.gamma': 'blocks.*.gamma2',
    'layers.*.mlp.up': 'blocks.*.mlp.fc1',
    'layers.*.mlp.down': 'blocks.*.mlp.fc2',
    'layers': 'blocks',
    'read.layers.*.QKV': 'cls_attn_blocks.*.attn.qkv',
    'read.layers.*.W': 'cls_attn_blocks.*.attn.proj',
    'read.layers.*.gamma': 'cls_attn_blocks.*.gamma1',
    'read.layers.*.mlp.gamma': 'cls_attn_blocks.*.gamma2',
    'read.layers.*.mlp.up': 'cls_attn_blocks.*.mlp.fc1',
    'read.layers.*.mlp.down': 'cls_attn_blocks.*.mlp.fc2',
    'read.layers': 'cls_attn_blocks',
}


def to_tost(model):
    """The weights of ToST. The authors' temp is (K, 1). Ours is (K,): as a matrix it would decay,
    and Muon would orthogonalize it."""
    table = TOST_OF_PICTURES if model.config.image_size else TOST
    weights = give(model, table)
    for name, t in weights.items():
        if name.endswith('attn.temp'):
            weights[name] = t[:, None]
    return weights


def from_tost(Model, Config, state_dict, **settings):
    """ToST for pictures, or without an image_size for text."""
    sd = unnested(state_dict)
    for name, t in sd.items():
        if name.endswith('attn.temp'):
            sd[name] = t.flatten()
    table = TOST
    bias = 'transformer.ln_f.bias'
    if settings.get('image_size'):
        table = TOST_OF_PICTURES
        bias = 'blocks.0.attn.qkv.bias'
    return load(Model, Config, sd, table, {'bias': bias in sd} | settings)
