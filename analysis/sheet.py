"""A contact sheet of training pictures: as evaluation sees them, and several times as training
does, augmented."""
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import numpy as np
import torch

from analysis.charts import picture_grid
from analysis.theory import Shared
from engine import figures, networks, plots
from engine.settings import TYPED, check, collect, filled, show
from tasks import AugmentConfig, views as crops
from tasks.augment import draws_needed, eval_pictures, place_columns, train_pictures, visible
from tasks.pictures import ImageSplit


@dataclass
class SheetConfig(Shared):
    dataset: str = 'shapes'      # folder in data_dir
    data_dir: str = 'data'       # where prepared datasets lie
    model: str = 'crate'         # without a config file: the network whose run is shown
    split: str = 'train'         # its split
    out: str = 'augment.png'     # the picture to write; augment.png is replaced if it exists
    image_size: int | tuple = 0  # pixels, or height,width; 0: the size of the first picture
    rows: int = 8                # pictures
    columns: int = 8             # views of each: the first as in evaluation, the others as in training
    ranges = {'rows': (1, None), 'columns': (1, None)}


def read(words):
    """Command line -> (SheetConfig, AugmentConfig). A config file may hold settings of train.py and
    of networks too; without one, the augmentation has its defaults."""
    ours = {f.name for cls in (SheetConfig, AugmentConfig) for f in fields(cls)}
    given = {k: v for k, v in collect(words).items() if k in ours or v[1] == TYPED}
    given = check(given, SheetConfig, AugmentConfig)
    return filled(SheetConfig, given), filled(AugmentConfig, given)


def main(words):
    s, c = read(words)
    figures.check_free(s.out, s.overwrite or s.out == SheetConfig.out)
    views, classes = draw(s, c)
    figure, axes = picture_grid(1.1, [name[:20] for name in classes], list(views))
    for column, view in zip(axes.T, views.values()):
        for axis, picture in zip(column, visible(view)):
            axis.imshow(picture)
    plots.save_picture(s.out, figure)
    print(f'{s.out}: pictures of {s.dataset}, {s.split}, from top to bottom: {", ".join(classes)}')
    print(', '.join(f'{k}={show(v)}' for k, v in asdict(c).items()))


def draw(s, c):
    """{title: a view of all pictures, normalized (B, C, H, W)}; the class of each picture."""
    images, rng = ImageSplit(Path(s.data_dir) / s.dataset, s.split), np.random.default_rng(s.seed)
    chosen = np.sort(rng.choice(len(images), min(s.rows, len(images)), replace=False))
    draws = rng.random((len(chosen), s.columns - 1, draws_needed(c)))
    size = tuple(np.broadcast_to(s.image_size or images[chosen, draws, None, None][1][0], 2).tolist())

    def read(draws, columns=None):
        return (torch.as_tensor(a) for a in images[chosen, draws, size, columns])
    pictures, sizes, labels, _ = read(draws)
    views = {'as evaluation\nsees it': eval_pictures(pictures, sizes, size, c.view)}
    if networks.network(s.model)[1].task == 'views':                    # crops of two sizes, as DINO's
        crops.check(c)
        pictures, sizes, _, d = read(rng.random((len(chosen), crops.draws_needed(c))), place_columns(c))
        for kind, part in zip(('large', 'small'), crops.views(pictures, sizes, d, size, c)):
            views |= {f'{kind} crop\n{i} of {len(part)}': view for i, view in enumerate(part, 1)}
    else:
        for i, d in enumerate(draws.transpose(1, 0, 2), 1):
            pictures, sizes, _, d = read(d, place_columns(c))
            views[f'training\nview {i}'] = train_pictures(pictures, sizes, d, size, c)
    return views, [str(images.classes[i]) for i in labels]
