"""The network of a run, and the config that it gets for a dataset."""
from engine.mistakes import Mistake
from engine.networks import config_class, config_from, network_class
from request.forms import check_forms
from tasks import kind_of, task_of

# {kind of data: the field by which one tells that a network reads it}
DATA = {'text': 'vocab_size', 'images': 'image_size', 'functions': 'n_dims'}


def build_network(request, meta, folder):
    """The network of a Request, for the dataset in `folder` with this meta.json. Raises Mistake
    where they do not fit, and if the two forms of its attention differ."""
    c = request.config
    place = folder or 'the dataset'
    if request.checkpoint is not None:
        from request.trained import trained_network  # here: a new run reads no trained network
        model = trained_network(request, meta, place)
    elif c.new_head:
        raise Mistake('new_head=true needs a network to put it on: --init_from=PATH')
    else:
        Network = network_class(c.model)
        model = Network(config_for(c.model, request.network, meta, place))
    check_forms(model)
    return model


# ---- networks and datasets -----------------------------------------------------------------------

def config_for(name, network_settings, meta, folder='the dataset'):
    """The config of a network with these settings, for a dataset with this meta.json. Raises
    Mistake if the network does not read such data."""
    Config = config_class(name)
    kind = meta['kind']
    readable = [k for k, field in DATA.items() if hasattr(Config, field)]
    if kind not in DATA:  # arrays, which a task of one's own reads
        readable = [kind_of(Config())]
    if kind in readable:
        decided = {k: v for k, v in sizes(meta).items() if hasattr(Config, k)}
        config = config_from(Config, decided | network_settings)
        readable = [kind_of(config)]
    if kind not in readable:
        from engine.advice import what_to_read  # here and below: few runs need it
        raise Mistake(what_to_read(name, readable, kind, folder))
    # such as [MASK]. Which task it is, only the config can say, so it is built again
    if task_of(config).extra_tokens:
        decided['vocab_size'] += task_of(config).extra_tokens
        config = config_from(Config, decided | network_settings)
    check_sizes(config, decided, folder)
    return config


def check_sizes(config, decided, folder):
    """Raises Mistake where somebody gave another size than the dataset has. A vocabulary may be
    larger: some are rounded up."""
    for name in ('vocab_size', 'num_classes', 'channels'):
        if name not in decided:
            continue
        size_of_config = getattr(config, name)
        too_small = size_of_config < decided[name]
        too_large = size_of_config > decided[name] and name != 'vocab_size'
        if too_small or too_large:
            raise Mistake(f'{name}={size_of_config} does not fit {folder}, which has '
                          f'{decided[name]}; leave it out')


def sizes(meta):
    """The config fields that a dataset with this meta.json decides. One of text or functions sets
    image_size to 0, one of text or pictures n_dims."""
    if meta['kind'] == 'text':
        return {'vocab_size': meta['vocab_size'], 'image_size': 0, 'n_dims': 0}
    if meta['kind'] == 'functions':
        # 41 examples of two tokens, as Garg et al.
        return {'n_dims': 20, 'block_size': 82, 'image_size': 0}
    if meta['kind'] == 'arrays':
        from tasks.arrays import sizes_of_arrays
        return sizes_of_arrays(meta)
    first_split = next(iter(meta['splits'].values()))
    image_size = 224  # JPEG files of many sizes
    if 'height' in first_split:
        image_size = (first_split['height'], first_split['width'])
    return {'image_size': image_size, 'n_dims': 0, 'channels': meta.get('channels', 3),
            'num_classes': len(meta['classes'])}
