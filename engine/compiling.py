"""Which parts of a network repeat, and how they are compiled."""


def blocks(model):
    """The layers that repeat: those of the network, and of its decoder if it has one."""
    return [layer for name in ('layers', 'decoder_layers') for layer in getattr(model, name, ())]


def compile_layers(model):
    """Compile each layer in place. Layers of one kind share their code, so it is compiled once."""
    for layer in blocks(model):
        layer.compile(dynamic=False)
