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
                             'weights were trained with (positions that were interpolated for other sizes are not the authors\')')
    weights = wanted | {k: v for k, v in sd.items() if k not in fixed}
    model.load_state_dict({ours: weights[theirs] for ours, theirs in names.items()})
    return model
