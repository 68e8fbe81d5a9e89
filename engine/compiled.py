"""Networks that are compiled, and layers that are computed twice. Runs that do neither do not load
this."""
import functools
import os
import platform
import shutil
import subprocess

import torch
from torch.utils.checkpoint import checkpoint

from engine.mistakes import Mistake


def check_compiler():
    """Raises Mistake if the C++ compiler is missing that PyTorch needs for a CPU."""
    default = {'Darwin': 'clang++', 'Windows': 'cl'}.get(platform.system(), 'g++')
    compiler = os.environ.get('CXX', default)
    # a Mac without Xcode has a clang++ that ends with an error
    version = [compiler, '--version']
    if not shutil.which(compiler) or subprocess.run(version, capture_output=True).returncode != 0:
        raise Mistake(f'compile=true needs a C++ compiler, and {compiler} is not here: install it, '
                      'or say --compile=false')


def repeated_layers(model):
    """The layers of a network, and those of its decoder if it has one."""
    return [*getattr(model, 'layers', ()), *getattr(model, 'decoder_layers', ())]


def recompute_layers(model):
    """Activation checkpointing: from now on a layer keeps its input alone, and computes the rest
    again in the backward pass. Raises Mistake for a network without layers."""
    layers = repeated_layers(model)
    if not layers:
        raise Mistake(f'recompute=true is for networks with `layers`, and {type(model).__name__} '
                      'has none; leave it out')
    for layer in layers:
        layer.forward = functools.partial(checkpoint, layer.forward, use_reentrant=False)


def compile_network(model, in_one_piece):
    """Compile a network in place, for batches of one size: in one piece, or each layer by itself.
    Then layers of one kind share their compiled code. On a CPU steps of CRATE-T were 1.4 times as
    fast in one piece; compiling takes two seconds longer for each layer. What cannot be compiled
    computes as written, and PyTorch says so."""
    torch._dynamo.config.suppress_errors = True
    # without this a backward pass that cannot be compiled ends the run
    torch._functorch.config.force_non_lazy_backward_lowering = True
    torch._dynamo.config.recompile_limit = 64  # a curriculum has a graph for each prompt length
    # DDP makes the compiler cut layers into parts, to send gradients earlier
    torch._dynamo.config.optimize_ddp = False
    pieces = repeated_layers(model)
    if in_one_piece or not pieces:
        pieces = [model]
    for piece in pieces:
        piece.compile(dynamic=False)
