"""What stands in meta.json of a dataset and in config.json of a run. Somebody may have written or
edited such a file, so each of its fields is compared with its type once, when the file is read. A
file may have fields beside these, which nobody looks at."""
import typing
from dataclasses import dataclass

from engine.mistakes import Mistake
from engine.names import printable
from engine.networks import SIDES
from engine.settings import EXPECTED, SIZE, cast, show


@dataclass
class FileFields:
    """All fields but those of a network, and those that a Run of weights/runs.py has."""
    # of a dataset; tasks/files.py tells more
    kind: str
    splits: dict
    tokenizer: dict
    vocab_size: int
    storage: str
    classes: list[str]
    channels: int
    shape: list[int]
    num_targets: int
    # of its tokenizer
    name: str
    alphabet: str
    # of one of its splits
    tokens: int
    count: int
    bytes: int
    dtype: str
    height: int
    width: int
    # of training: those settings that are read without train.py
    max_iters: int
    dataset: str
    sparsity: int
    seed: int


class Fields(dict):
    """Fields of a file, {name: value}. To ask for one that is missing raises Mistake."""

    def __init__(self, path, values):
        if not isinstance(values, dict):
            raise Mistake(f'{show(values)}: expected an object')
        super().__init__(values)
        # none of these makes sense if it is null, empty or 0, such as the count of a split
        for name in FileFields.__annotations__:
            if not self.get(name):
                self.pop(name, None)
        check_types(self, FileFields)
        self.path = path

    def __missing__(self, name):
        raise Mistake(f'{self.path}: {name} is missing or empty; get a whole one')


def data_fields(path, values):
    """What a file says of a dataset, as Fields. Raises Mistake for a value of another type."""
    fields = Fields(path, values)
    check_types(fields.get('tokenizer', {}), FileFields)
    splits = fields.get('splits', {})
    for split, entry in splits.items():
        splits[split] = Fields(path, entry)
    if 'classes' in fields:
        fields['classes'] = [printable(name) for name in fields['classes']]
    return fields


def check_types(values, cls):
    """Put each of the values, {name: value}, into the type that its field has in a dataclass.
    Raises Mistake for one that does not fit. Somebody's own class may have fields of other types,
    which are not looked at."""
    types = typing.get_type_hints(cls)
    for name, value in values.items():
        want = SIZE if name in SIDES else types.get(name)  # a side: a number, or (height, width)
        if want in EXPECTED:
            try:
                values[name] = cast(value, want, typed=False)
            except (TypeError, ValueError):
                raise Mistake(f'{name}={show(value)}: expected {EXPECTED[want]}') from None
