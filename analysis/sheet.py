"""A contact sheet of training pictures: as evaluation sees them, and several times as training
does, augmented."""
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import numpy as np
import torch

from analysis import figures
from analysis.charts import picture_grid
from analysis.theory import Shared
from engine import networks, plots
from engine.settings import check, collect, filled, show
from tasks import AugmentConfig, views as crops
from tasks.augment import draws_needed, eval_pictures, train_pictures, visible
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
    columns: int = 8             # views of each: first as in evaluation, the others as in training

    ranges = {
        'rows': (1, None),
        'columns': (1, None),
    }


def read(words):
    """Command line -> (SheetConfig, AugmentConfig). A config file may hold settings of train.py and
    of networks too, which are left out. Without a config file the augmentation has its
    defaults."""
    names = {f.name for f in (*fields(SheetConfig), *fields(AugmentConfig))}
    requested = {}
    for name, setting in collect(words).items():
        if name in names or setting.is_typed:  # what is typed must be a setting of ours
            requested[name] = setting
    values = check(requested, SheetConfig, AugmentConfig)
    return filled(SheetConfig, values), filled(AugmentConfig, values)


def main(words):
    """Draw the sheet that a command line asks for. words: the command line without `augment`."""
    s, c = read(words)
    figures.check_out(s)
    views, classes = draw(s, c)
    with plots.house_style():
        figure, axes = picture_grid(1.1, [name[:20] for name in classes], list(views))
        for column, view in zip(axes.T, views.values()):
            for axis, picture in zip(column, visible(view)):
                axis.imshow(picture)
        plots.save_picture(s.out, figure)
    print(f'{s.out}: pictures of {s.dataset}, {s.split}, from top to bottom: {", ".join(classes)}')
    print(', '.join(f'{name}={show(value)}' for name, value in asdict(c).items()))


def draw(s, c):
    """The columns of the sheet, {title: a view of all pictures, normalized (B, C, H, W)}, and the
    class of each picture, a list. s: a SheetConfig; c: an AugmentConfig."""
    images = ImageSplit(Path(s.data_dir) / s.dataset, s.split)
    rng = np.random.default_rng(s.seed)
    count = min(s.rows, len(images))
    chosen = np.sort(rng.choice(len(images), count, replace=False))
    # the random numbers of each view of training: (B, views, numbers)
    draws = rng.random((count, s.columns - 1, draws_needed(c)))
    size = s.image_size
    if not size:
        _, sizes, _, _ = images.batch(chosen)
        size = sizes[0]
    size = tuple(np.broadcast_to(size, 2).tolist())

    def batch(draws, cut_at_random=False):
        arrays = images.batch(chosen, draws, size, cut_at_random)
        return [torch.as_tensor(array) for array in arrays]

    pictures, sizes, labels, _ = batch(draws)
    views = {'as evaluation\nsees it': eval_pictures(pictures, sizes, size, c.view)}
    if networks.config_class(s.model).task == 'views':  # crops of two sizes, as DINO's
        crops.check(c)
        crop_draws = rng.random((count, crops.draws_needed(c)))
        pictures, sizes, _, crop_draws = batch(crop_draws, c.crop_scale < 1)
        large, small = crops.views(pictures, sizes, crop_draws, size, c)
        for kind, crops_of_kind in (('large', large), ('small', small)):
            for i, view in enumerate(crops_of_kind, 1):
                views[f'{kind} crop\n{i} of {len(crops_of_kind)}'] = view
    else:
        for i, view_draws in enumerate(draws.transpose(1, 0, 2), 1):
            pictures, sizes, _, view_draws = batch(view_draws, c.crop_scale < 1)
            view = train_pictures(pictures, sizes, view_draws, size, c)
            views[f'training\nview {i}'] = view
    return views, [str(images.classes[i]) for i in labels]
