"""Which dataset a trained network is scored on, or shown, and whether both fit."""
from engine.mistakes import Mistake
from tasks import checksums, files, find_data


def dataset_of(c, run, name='the network'):
    """(folder, split) for a trained network: c.dataset and c.split. Where these are empty, the
    dataset that it was trained on, and its test split, or val if there is no test. Raises Mistake
    if the network, called `name`, cannot read that."""
    dataset = c.dataset or run.settings.get('dataset')
    if not dataset:
        raise Mistake(f'{c.ckpt} does not say what to score it on; give --dataset')
    folder = find_data(dataset, c.data_dir)  # None for functions
    meta = files.read_meta(folder)
    check_reads(run, meta, folder or dataset, name)
    if getattr(c, 'verify', False):
        checksums.verify(folder)
    if c.split:
        return folder, c.split
    return folder, 'test' if 'test' in meta['splits'] else 'val'


def check_reads(run, meta, folder, name='the network'):
    """Raises Mistake if a trained network, called `name`, does not read the dataset in `folder`."""
    network_reads = {
        'kind': run.data['kind'],
        'tokenizer': run.data.get('tokenizer'),
        'channels': run.network.get('channels', 3),
        'shape': run.data.get('shape'),
    }
    for what, expected in network_reads.items():
        present = meta.get(what, expected)
        if present != expected:
            advice = 'give another --dataset'
            if what == 'channels' and expected in (1, 3):
                advice += f', or prepare a folder of pictures with --channels {expected}'
            raise Mistake(f'{name} reads {what} {str(expected)[:60]}, {folder} has '
                          f'{str(present)[:60]}; {advice}')


def check_labelled(run):
    """Raises Mistake, with what to do instead, if a network was trained without labels and names no
    classes."""
    if run.unlabelled:
        raise Mistake('the network names nothing, because it was trained without labels; score its '
                      'features with eval.py --knn=20, or give it a classifier with train.py '
                      '--init_from=PATH --new_head=true')


def check_classes(run, classes, where):
    """Raises Mistake, with the setting that replaces the head, if a classifier knows other classes
    than a dataset."""
    check_labelled(run)
    known = run.data.get('classes')
    count = run.network.get('num_classes')
    if count != len(classes) or (known is not None and known != classes):
        raise Mistake(f'the network knows {count} classes, {where} has {len(classes)} '
                      f'({", ".join(classes[:3])} ..), not the same; put a new head on it: '
                      'train.py --init_from=PATH --new_head=true')
