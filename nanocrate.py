"""The project from Python, such as in a notebook that lies in this folder:

    from nanocrate import generate, inside, load, train

    metrics = train(config='config/train_aot_stdlib.py', max_iters=100, out_dir='out/mine')
    model, tokenizer = load('out/mine')
    ids = torch.tensor([tokenizer.encode('def main')])
    print(tokenizer.decode(generate(model, ids, 50)[0].tolist()))
    steps = inside(model, ids)
"""
import contextlib
import signal
import threading
from pathlib import Path

import numpy as np
import torch

import train as training
from analysis import layers, units
from engine.checkpoint import validations_of
from engine.device import STOP
from engine.mistakes import Mistake
from engine.settings import TYPED, Requested, show
from request import start
from tasks.decode import to_8_bits
from tasks.pictures import seen
from tasks.tokenizer import Tokenizer
from weights.generate import generate  # noqa: F401 (for those who import it from here)
from weights.runs import open_run, own_or_shipped
from weights.surgery import load_model


def load(path, **changes):
    """(model, reader) of a trained network, in evaluation mode, on the CPU.

    path: its run directory, for its best weights, or a .safetensors file in one. Where out/NAME is
    not there, trained/NAME is taken, which came with the project. changes: settings of the network,
    such as image_size. reader: of text the Tokenizer, of pictures a PictureReader, else None.
    Raises Mistake if there is no such run, or a change does not fit.
    """
    run = open_run(own_or_shipped(str(path)))
    model = load_model(run, **changes)
    spec = run.data.get('tokenizer')
    if spec:
        return model, Tokenizer(**spec)
    if run.data['kind'] == 'images':
        return model, PictureReader(run, model)
    return model, None


class PictureReader:
    """How a network reads pictures. classes: the names of its classes, a list, or None."""

    def __init__(self, run, model):
        self.run = run
        self.model = model
        self.classes = run.data.get('classes')

    def prepare(self, pictures):
        """Pictures as evaluation shows them to the network, with its crop: float32 (B, C, H, W), on
        its device. pictures: uint8 (B, H, W, C) or (B, H, W), or a list of such pictures or of
        Pillow's, which may have any size. Raises Mistake for pixels of another type, or if there
        are not as many channels as the network reads."""
        from PIL import Image
        channels = getattr(self.model.config, 'channels', 3)
        rows = []
        for picture in pictures:
            if isinstance(picture, Image.Image):
                picture = to_8_bits(picture, channels)
            pixels = np.asarray(picture)
            if pixels.ndim < 2:
                raise Mistake('one picture is no batch; give [picture]')
            pixels = np.atleast_3d(pixels)
            if pixels.dtype != np.uint8 or pixels.shape[2] != channels:
                raise Mistake(f'pictures are uint8 (H, W, {channels}) here, and this is '
                              f'{pixels.dtype} {pixels.shape}; convert it')
            rows.append(seen(pixels, self.model, self.run))
        return torch.cat(rows)


def train(config=None, **settings):
    """Train as `python train.py CONFIG --NAME=VALUE ..` does. Returns what the last validation of
    the run measured, {name: number}, such as 'loss'. eval_only, which writes no log, is not for
    here.

    Threads, signal handlers, the state of random numbers and PyTorch's settings are afterwards as
    they were before. Raises Mistake for settings that do not fit, and KeyboardInterrupt after
    Ctrl-C, when the run is saved.
    """
    files = [] if config is None else [str(config)]
    typed = {name: Requested(plain(value), TYPED) for name, value in settings.items()}
    request = start.read(files, typed, training.TrainConfig, training.AugmentConfig)
    out_dir = request.config.out_dir
    if request.config.eval_only:
        raise Mistake('eval_only=True writes no log to read; type it: python train.py')
    with as_it_was():
        exit_code = training.train(request)
    if exit_code is not None:  # a signal
        raise KeyboardInterrupt(f'the run in {out_dir} is saved; go on with init_from="resume"')
    return validations_of(out_dir)[-1]


def plain(value):
    """A setting from Python as engine/settings.py takes it: true and false and paths as one types
    them, a number of NumPy as one of Python."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, (bool, Path)):
        return show(value)
    return value


@contextlib.contextmanager
def as_it_was():
    """After this block, what training changes in a process is again as it was before."""
    threads = torch.get_num_threads()
    precision = torch.get_float32_matmul_precision()
    gpu = torch.cuda.current_device() if torch.cuda.is_available() else None
    handlers = {number: signal.getsignal(number) for number in STOP}
    try:
        with torch.random.fork_rng(), compiler_as_it_is():
            yield
    finally:
        torch.set_num_threads(threads)
        torch.set_float32_matmul_precision(precision)
        if gpu is not None:
            torch.cuda.set_device(gpu)
        if threading.current_thread() is threading.main_thread():
            for number, handler in handlers.items():
                # None is a handler of another language, which Python cannot put back
                signal.signal(number, handler or signal.SIG_DFL)


@contextlib.contextmanager
def compiler_as_it_is():
    """After this block PyTorch's compiler has the settings again that compile_network changes."""
    dynamo = torch._dynamo.config  # loaded here: torch._dynamo sets variables of the environment
    functorch = torch._functorch.config
    with (dynamo.patch(suppress_errors=dynamo.suppress_errors, optimize_ddp=dynamo.optimize_ddp,
                       recompile_limit=dynamo.recompile_limit),
          functorch.patch('force_non_lazy_backward_lowering',
                          functorch.force_non_lazy_backward_lowering)):
        yield


def off(model, atoms, to=0.0):
    """A block `with off(model, '3:37,3:40'):`, in which these atoms, LAYER:ATOM counted from 1, are
    0 for every token, or have the value `to`; see analysis/units.py. Other threads that use the
    network meanwhile are not disturbed. Raises Mistake for a layer that the network does not have,
    and in the first pass for an atom that it does not have."""
    return units.fixed(model, units.values_of(atoms, model, to))


@torch.no_grad()
def inside(model, *inputs):
    """What each layer does to the tokens of one batch: a list of Steps, see analysis/layers.py.

    A Step has `z`, `update`, `half` and `after`, each (B, N, d), and `maps`, the attention weights
    (B, K, N, N). inputs: what model.embed takes, such as token ids int64 (B, N).
    """
    return list(layers.inside(model, *inputs))
