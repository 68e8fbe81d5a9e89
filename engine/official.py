"""The authors' weight files into our models: their nesting undone, every tensor checked by name and shape.

Each model says by what names the authors' code knows its tensors (`official_names`) and gives its weights back under
them (`to_official`); its `from_official` reads the sizes off a file and then calls `fill`.
"""
import torch


def unnested(state_dict):
    """The tensors of a state dict, or of a checkpoint that nests one, without the prefix of data-parallel training."""
    for nest in ('state_dict', 'model'):
        state_dict = state_dict.get(nest, state_dict)
    return {k.removeprefix('module.'): v for k, v in state_dict.items()}


def depth(sd, blocks):
    """How many layers there are under the name `blocks`: blocks.0.*, blocks.1.*, .."""
    return 1 + max((int(k[len(blocks) + 1:].split('.')[0]) for k in sd if k.startswith(f'{blocks}.')), default=-1)


def fill(model, sd):
    """The model, with the authors' tensors sd {name: tensor} in it. Those in its DEAD are not read. Those in its FIXED may
    be missing; where they are not, they must equal ours to 1e-5.

    Raises ValueError that names the tensors which are missing, unexpected, of a wrong shape, or other than the fixed ones.
    """
    names, wanted, kind, c = model.official_names(), model.to_official(), type(model).__name__, model.config
    fixed, dead = getattr(model, 'FIXED', ()), getattr(model, 'DEAD', ())
    missing, extra = sorted(wanted.keys() - sd.keys() - {*fixed, *dead}), sorted(sd.keys() - wanted.keys())
    if missing or extra:
        raise ValueError(f'{kind} state dict does not fit: missing {missing}, unexpected {extra}')
    needs = f'n_head={c.n_head}, image_size={c.image_size} and patch_size={c.patch_size} need'
    for k in sd:
        if sd[k].shape != wanted[k].shape:
            raise ValueError(f'{k} has shape {tuple(sd[k].shape)}, {needs} {tuple(wanted[k].shape)}')
        slack = max(1e-5, torch.finfo(sd[k].dtype).eps) if sd[k].is_floating_point() else 1e-5  # files may hold float16
        if k in fixed and not (sd[k] - wanted[k]).abs().max() <= slack:
            raise ValueError(f'{k} holds other positions than the sines and cosines that {needs}; give the sizes that the '
                             'weights were trained with (interpolated positions are not the authors\')')
    weights = wanted | {k: v for k, v in sd.items() if k not in fixed}
    model.load_state_dict({ours: weights[theirs] for ours, theirs in names.items()})
    return model


def gpt2(Model, Config, state_dict, **settings):
    """See `AoT.from_gpt2`."""
    sd = state_dict.get('model', state_dict)  # nanoGPT's checkpoints nest it
    for prefix in ('_orig_mod.', 'module.', 'transformer.'):
        sd = {k.removeprefix(prefix): t for k, t in sd.items()}
    if not {'wte.weight', 'wpe.weight', 'h.0.attn.c_attn.weight'} <= sd.keys():
        raise ValueError('not a GPT-2 state dict: no wte.weight, wpe.weight or h.0.attn.c_attn.weight among '
                         f'{sorted(sd)[:4]} ..')
    if not torch.equal(sd.pop('lm_head.weight', sd['wte.weight']), sd['wte.weight']):
        raise ValueError('lm_head.weight differs from wte.weight; here the output layer is the token embedding')
    sd = {k: t for k, t in sd.items() if not k.endswith(('.attn.bias', '.attn.masked_bias'))}  # causal masks
    (vocab_size, n_embd), block_size = sd['wte.weight'].shape, len(sd['wpe.weight'])
    model = Model(Config(block_size, vocab_size, n_layer=depth(sd, 'h'), n_embd=n_embd, attn='mhsa', mlp=True,
                         bias='ln_f.bias' in sd, **settings))
    new, transposed = {}, sd['h.0.attn.c_attn.weight'].shape == (n_embd, 3 * n_embd)
    for k, t in model.state_dict().items():
        theirs = k.replace('norm', 'ln_1') if k.startswith('layers.') else k.replace('norm', 'ln_f')
        for a, b in (('ln_1_mlp', 'ln_2'), ('tok_emb', 'wte'), ('pos_emb', 'wpe'), ('layers.', 'h.'), ('QKV', 'c_attn'),
                     ('attn.W', 'attn.c_proj'), ('mlp.up', 'mlp.c_fc'), ('mlp.down', 'mlp.c_proj')):
            theirs = theirs.replace(a, b)
        if theirs not in sd:
            raise ValueError(f'GPT-2 state dict does not fit: {theirs} is missing')
        new[k] = sd.pop(theirs)
        if transposed and '.c_' in theirs and t.dim() == 2:
            new[k] = new[k].T
        if new[k].shape != t.shape:
            raise ValueError(f'GPT-2 state dict does not fit: {theirs} should be {tuple(t.shape)}, '
                             f'is {tuple(new[k].shape)}')
    if sd:
        raise ValueError(f'GPT-2 state dict does not fit: unexpected {sorted(sd)}')
    model.load_state_dict(new)
    return model
