"""Networks by name, and the contract that a network keeps.

The contract. A file model_x.py beside train.py is the whole of a network x. It sets two names:

  Config    a flat dataclass, each field with a default. `task`, a class attribute or a property,
            says what the network is trained on: x for the file tasks/task_x.py. The dataset sets
            vocab_size and other fields that `sizes` in request/build.py names, if the config has
            them.
  Network   a torch module: Network(config) with `config`; forward(x, y=None) -> (out, loss), where
            the loss is None if it needs a y and there is none; or (out, loss, extras), a dict of
            numbers to log, of which 'penalty' is added to the loss in training. x, y and out of
            each task are in docs/extend.md.

It may set a third, ConfigError, a subclass of ValueError: what Config raises for settings that make
no sense, and what programs print in one line. Any other exception is a bug and keeps its traceback.

Some commands need more. Muon trains the matrices of `layers`. analyze.py walks `embed`, `layers`
and their `attn`. A new head replaces `read.head`. Probes ask `features(x)`.
"""
import importlib

from engine import HERE
from engine.mistakes import Mistake
from engine.settings import names_of_fields

SIDES = ('image_size', 'patch_size')  # int or (height, width)


def names():
    """The networks there are: x for each file model_x.py."""
    return sorted(path.stem.removeprefix('model_') for path in HERE.glob('model_*.py'))


def network_class(name):
    """The class Network of model_NAME.py. Raises Mistake if there is no such file."""
    return model_file(name).Network


def config_class(name):
    """The class Config of model_NAME.py. Raises Mistake if there is no such file."""
    return model_file(name).Config


def model_file(name):
    if name not in names():
        raise Mistake(f"model='{name}' is unknown; choose {', '.join(names())}, or write "
                      f'model_{name}.py')
    return importlib.import_module(f'model_{name}')


def config_from(Config, settings):
    """Config(**settings), where sizes of pictures have become (height, width). Raises Mistake for a
    setting that the network does not know, or whose value its Config refuses."""
    unknown = settings.keys() - names_of_fields(Config)
    if unknown:
        raise Mistake(f'{Config.__name__} has no setting {min(unknown)}: this is of another '
                      'network, or of another version, which you can check out')
    settings = dict(settings)
    for name in SIDES:
        if settings.get(name):  # 0: the network reads no pictures
            settings[name] = as_pair(settings[name])
    try:
        return Config(**settings)
    except ValueError as e:
        # any other ValueError, such as that of `a, b = 1, 2, 3`, is a bug
        if type(e).__name__ != 'ConfigError':
            raise
        raise Mistake(e) from None


def num_params(model):
    """Number of trainable parameters; shared ones count once."""
    return sum(t.numel() for t in model.parameters() if t.requires_grad)


def size_in_words(model):
    """Such as '0.87M parameters', or of a small network '1,024 parameters'."""
    count = num_params(model)
    return f'{count / 1e6:.2f}M parameters' if count >= 1e5 else f'{count:,} parameters'


def as_pair(size):
    """(height, width) of a size that is an int or such a pair."""
    return (size, size) if isinstance(size, int) else size


def grid(c):
    """Patches of a picture, (rows, columns)."""
    return tuple(i // p for i, p in zip(c.image_size, c.patch_size))
