"""What a file of weights may hold, ours, the authors' and OpenAI's alike: plain values, and dense
tensors.

`load` reads what torch.save wrote, `load_safetensors` a .safetensors file, `plain` copies what is
allowed, and `fit` compares it with a schema. Each raises a Mistake that names what is wrong; the
caller adds the file, and what to do next. Checkpoints are held to the same rule before they are
saved; that their parameters are finite, engine/rundir.py sees to.
"""
import os
import zipfile

import torch

from engine.settings import Mistake

DEEP, MANY, LONG = 8, 10 ** 5, 200  # containers in each other; values in a file; letters of a name
OVERLAPS = 16                       # other views of the same memory
HEADER = 10 ** 7                    # bytes in front of the tensors of a .safetensors file
FLOATS = torch.float16, torch.bfloat16, torch.float32, torch.float64
WHOLE = torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64


class Unfit(Mistake):
    """What is wrong with a file, in words."""


def load(path, legacy=False):
    """What torch.save wrote, not yet checked. legacy: also in the format before PyTorch 1.6."""
    try:
        if not legacy or zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as z:
                if sum(max(i.file_size, i.compress_size) for i in z.infolist()) > os.path.getsize(path):
                    raise Unfit('it unpacks to more than its size')
                if z.testzip():  # torch.load does not compare checksums
                    raise Unfit('a checksum differs')
        return torch.load(path, map_location='cpu', weights_only=True)
    except Exception as e:  # of many types, depending on the damage
        raise Unfit(str(e) if isinstance(e, Unfit) else type(e).__name__) from None


def load_safetensors(path, leave_out=()):
    """{name: tensor} of a .safetensors file, not yet checked, without the names that end as one of
    leave_out. Of weights that share memory the file holds one, and its metadata {other name: its
    name}."""
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError:
        raise Mistake(f'{path} is read by a library that is missing: pip install safetensors') from None
    try:
        with open(path, 'rb') as f:
            if int.from_bytes(f.read(8), 'little') > HEADER:
                raise Unfit(f'its header has more than {HEADER:,} bytes')
        with safe_open(path, 'pt') as f:
            names = [name for name in f.keys() if not name.endswith(leave_out)]
            for name in names:
                if len(f.get_slice(name).get_shape()) > DEEP:
                    raise Unfit(f'{name[:LONG]} has more than {DEEP} dimensions')
            tensors, shared = {name: f.get_tensor(name).clone() for name in names}, f.metadata() or {}
    except (SafetensorError, OSError, RuntimeError) as e:
        raise Unfit(str(e)[:LONG]) from None
    return tensors | {k: tensors[name] for k, name in shared.items() if name in tensors and k not in tensors}


def plain(value):
    """A copy of nested dicts, lists and tuples, in which nothing has a type or a method that came
    with the file."""
    left, seen, used = iter(range(MANY)), set(), {}

    def copy(value, name, depth=0):
        if depth > DEEP or next(left, None) is None:
            raise Unfit(f'{name[:LONG]} is nested too deep, or is one of too many values')
        if isinstance(value, dict):
            items = list(dict.items(value))
            for k, _ in items:
                if type(k) is not int and not (type(k) is str and len(k) <= LONG and k.isprintable()):
                    raise Unfit(f'{name or "it"} holds a name that is none ({type(k).__name__})')
            return {k: copy(v, f'{name}.{k}' if name else str(k), depth + 1) for k, v in items}
        if type(value) in (list, tuple):
            return type(value)([copy(v, name, depth + 1) for v in value])
        if isinstance(value, torch.Tensor):
            check_tensor(value, name, seen, used)
            return torch.Tensor.detach(value)
        if value is not None and type(value) not in (bool, int, float, str):
            raise Unfit(f'{name or "it"} is a {type(value).__name__}')
        if value != value or type(value) is int and abs(value) >= 2 ** 63:  # NaN
            raise Unfit(f'{name or "it"} is out of range')
        return value
    return copy(value, '')


def check_tensor(t, name, seen, used):
    """Raises Mistake if a tensor is not a dense one of numbers that are all in memory. Of
    the others in its file, `seen` are those already looked at, and `used` how many bytes of each
    memory that was."""
    if type(t) not in (torch.Tensor, torch.nn.Parameter) or t.is_nested or t.layout is not torch.strided or t.is_meta:
        raise Unfit(f'{name} is no dense tensor')
    if t.dtype not in FLOATS + WHOLE:  # such as complex and quantized ones
        raise Unfit(f'{name} is of {t.dtype}; expected real numbers')
    memory, this = t.untyped_storage(), (t.data_ptr(), t.dtype, t.shape, t.stride())
    if this in seen:  # shared weights
        return
    seen.add(this)
    size, at = t.numel() * t.itemsize, memory.data_ptr()
    used[at] = used.get(at, 0) + size
    if size > memory.nbytes() or used[at] > OVERLAPS * memory.nbytes():
        raise Unfit(f'{name} of shape {tuple(t.shape)} is not wholly in the file')


def state_dict(held):
    """A checked copy of a dict {name: tensor}."""
    weights = plain(held)
    fit(weights, {str: torch.Tensor})
    return weights


def fit(value, schema, name=''):
    """Raises Mistake if a plain value differs from its schema: a type; None or a text, itself;
    [schema of each item]; {type of the keys: schema of each value}; {'key': schema of its value,
    'key?': the same, if it is there}; (one schema, or another)."""
    place = f'{name}.' if name else ''
    if isinstance(schema, tuple):
        for i, one in enumerate(schema, 1):
            try:
                return fit(value, one, name)
            except Unfit:
                if i == len(schema):
                    raise
    expected = schema if isinstance(schema, type) else type(schema)
    if type(value) is not expected:
        raise Unfit(f'{name or "it"} is of type {type(value).__name__}; expected {expected.__name__}')
    if isinstance(schema, (str, type(None))) and value != schema:
        raise Unfit(f'{name} is {value[:40]!r}')
    if isinstance(schema, list):
        for i, v in enumerate(value):
            fit(v, schema[0], f'{place}{i}')
    if isinstance(schema, dict):
        missing = [k for k in schema if type(k) is str and not k.endswith('?') and k not in value]
        if missing:
            raise Unfit(f'{place}{missing[0]} is missing')
        for k, v in value.items():
            its = [schema[w] for w in (k, f'{k}?', type(k)) if w in schema]
            if not its:
                raise Unfit(f'{place}{k} is unknown')
            fit(v, its[0], f'{place}{k}')
