"""Files of weights as other people publish them."""
import pickle
import zipfile

import torch
from safetensors.torch import load_file

from engine.mistakes import Mistake, reading
from weights.official import NESTS, unnested


class ForeignObject:
    """Stands for any object in a checkpoint that is no weight, such as the command line of the
    training, an argparse.Namespace. It takes what the file gives to the object, and keeps
    nothing."""

    def __new__(cls, *args):
        return super().__new__(cls)

    def __setstate__(self, state):
        pass


def empty_dict(*args):
    """Stands for collections.defaultdict: PyTorch fills only plain dicts."""
    return {}


def read(path, nest=''):
    """The weights {name: tensor} in a file of torch.save or of safetensors. nest: of a checkpoint
    with several, the name under which they are; without it one of NESTS is taken, and a line says
    which. Raises Mistake if there are none under this name, if the file is missing or damaged, or
    if PyTorch refuses what it holds beside the weights."""
    with reading(f'{path} is damaged or missing, or holds no state dict',
                 'remove it, and get it again; or, if it is whole, save the weights alone where it '
                 'was written: torch.save(model.state_dict(), PATH)'):
        if str(path).endswith('.safetensors'):
            content = load_file(path)
        else:
            content = checkpoint(path)
        if isinstance(content, dict):
            content = chosen(path, content, nest)
        return unnested(content)


def chosen(path, content, nest):
    """What a checkpoint holds under the name `nest`, or all of it if that is ''. See `read`."""
    nests = []
    for name, value in content.items():
        if isinstance(value, dict) and any(torch.is_tensor(t) for t in value.values()):
            nests.append(name)
    if nest in nests:
        return content[nest]
    known = [name for name in NESTS if name in nests]
    if nest or (nests and not known):
        raise Mistake(f'{path} has weights under {", ".join(nests)}; give one of these names to '
                      'official_weights.py --weights')
    if len(nests) > 1:
        print(f'{path} has weights under {", ".join(nests)}; {known[0]} is taken, and '
              'official_weights.py --weights takes others')
    return content


def checkpoint(path):
    """The content of a file of torch.save. No code of a stranger runs: PyTorch makes tensors and
    plain values alone, and a ForeignObject takes the place of every other object. Raises ValueError
    with PyTorch's reason if it refuses the file."""
    foreign = ['argparse.Namespace']
    if zipfile.is_zipfile(path):  # PyTorch lists the names of no file that is older than its 1.6
        foreign = torch.serialization.get_unsafe_globals_in_checkpoint(path)
    stand_ins = {name: ForeignObject for name in foreign}
    stand_ins['collections.defaultdict'] = empty_dict
    try:
        with torch.serialization.safe_globals([(make, name) for name, make in stand_ins.items()]):
            return torch.load(path, map_location='cpu', weights_only=True)
    except pickle.UnpicklingError as e:
        # PyTorch's own message says how to load such a file unsafely; its cause is the reason
        raise ValueError(e.__context__ or e) from None
