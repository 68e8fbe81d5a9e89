"""Which dataset a trained network is scored on, or shown."""
from pathlib import Path

from engine.settings import Mistake
from engine.trained import check_reads
from tasks import files, find_data


def dataset_of(c, run, name='the network'):
    """(folder, split) for a trained network: c.dataset and c.split. Where these are empty, the
    dataset that it was trained on, and its test split, or val if there is no test. Raises Mistake
    if the network, called `name`, cannot read that."""
    dataset = c.dataset or run['settings'].get('dataset')
    if not dataset:
        raise Mistake(f'{c.ckpt} does not say what to score it on; give --dataset')
    folder = find_data(dataset, c.data_dir) or Path(c.data_dir) / dataset
    meta = files.read_meta(folder)
    check_reads(run, meta, folder, name)
    if getattr(c, 'verify', False):
        files.verify(folder)
    if c.split:
        return folder, c.split
    return folder, 'test' if 'test' in meta['splits'] else 'val'
