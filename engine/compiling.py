"""How a network is compiled: in place, for batches of one size."""
import torch


def blocks(model):
    """The layers that repeat: those of the network, and of its decoder if it has one."""
    return [layer for name in ('layers', 'decoder_layers') for layer in getattr(model, name, ())]


def compile_layers(model):
    """Compile each layer in place. Layers of one kind share their code, so it is compiled once."""
    for layer in blocks(model) or [model]:
        compile_whole(layer)


def compile_whole(model):
    """Compile a network in place as one piece. On a CPU steps of CRATE-T were 1.4 times as fast as
    with its layers compiled one by one; compiling takes two seconds longer for each layer."""
    import torch._dynamo  # not before: it takes a second
    torch._dynamo.config.recompile_limit = 64  # a curriculum has a graph for each length of its prompts
    model.compile(dynamic=False)


def plain_again(model):
    """Undo both."""
    for module in model.modules():
        module._compiled_call_impl = None


def pays_on_cpu(dtype):
    """Whether compiled steps are faster on a CPU. In float32 those of five networks were not: most of
    a step is matrix products and attention, and compiling does not change these."""
    return dtype != torch.float32


def seconds_to_compile(model):
    """How long compiling on a CPU takes at most: 24 s for 6 layers and 35 s for 12, on two cores.
    About half of it if the compiler has been used before, 2 s if this network has been compiled."""
    return 12 + 2 * len(blocks(model))


def without_compiled():
    """The context in which compiled networks compute as written: for validation, whose last batch
    may be smaller, and for looking inside."""
    return torch.compiler.set_stance('force_eager')
