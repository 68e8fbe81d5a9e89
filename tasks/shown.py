"""The dataset that a trained network is shown."""
from pathlib import Path

from engine.settings import Mistake
from engine.trained import check_reads
from tasks import files


def dataset_of(c, run, name='the network'):
    """(folder, split) to show a trained network: c.dataset and c.split, or the dataset it was trained on, and there
    test, or else val. Raises Mistake if the network, called `name`, cannot read that."""
    dataset = c.dataset or run['settings'].get('dataset')
    if not dataset:
        raise Mistake(f'{c.ckpt} does not say what to score it on; give --dataset')
    folder = Path(c.data_dir) / dataset
    meta = files.read_meta(folder)
    check_reads(run, meta, folder, name)
    if getattr(c, 'verify', False):
        files.verify(folder)
    return folder, c.split or ('test' if 'test' in meta['splits'] else 'val')
