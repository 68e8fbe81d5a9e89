"""A contact sheet of training pictures: as evaluation sees them, and several times as training
does, augmented."""
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from engine import starts
from engine.plots import check_image, pillow, write_image
from engine.settings import TYPED, check, check_least, collect, show
from tasks import views as crops
from tasks.augment import (AugmentConfig, as_rgb, denormalize, draws_needed, eval_pictures, place_columns,
                           train_pictures)
from tasks.pictures import ImageSplit


MAKER = 'nanoCRATE analyze.py augment'


@dataclass
class SheetConfig:
    dataset: str = 'shapes'      # folder in data_dir
    data_dir: str = 'data'       # where prepared datasets lie
    model: str = 'crate'         # without a config file: the network whose run is shown
    split: str = 'train'         # its split
    out: str = 'augment.png'     # the picture to write
    overwrite: bool = False      # replace it if it exists
    image_size: int | tuple = 0  # pixels, or height,width; 0: the size of the pictures, or 224 if they differ in size
    rows: int = 8                # pictures
    columns: int = 8             # views of each: the first as in evaluation, the others as in training
    seed: int = 1337             # of the choice of pictures and of their augmentation

    def __post_init__(self):
        if isinstance(self.image_size, int):
            self.image_size = (self.image_size, self.image_size)
        check_least(self, rows=1, columns=1, seed=0)
        if self.image_size != (0, 0) and min(self.image_size) < 1:
            raise ValueError(f'image_size={show(self.image_size)} must be positive, or 0')


def read(words):
    """Command line -> (SheetConfig, AugmentConfig). A config file may hold settings of train.py and
    of networks too. Without one, the augmentation is that of a bare run on this dataset."""
    augmented = {f.name for f in fields(AugmentConfig)}
    ours = augmented | {f.name for f in fields(SheetConfig)}
    given = {k: v for k, v in collect(words).items() if k in ours or v[1] == TYPED}
    if not starts.names_a_file(given):
        of_run = {k: given[k][0] if k in given else getattr(SheetConfig, k) for k in ('dataset', 'data_dir', 'model')}
        recipe, _ = starts.recipe(str(of_run['model']), {k: str(v) for k, v in of_run.items()})
        given = {k: v for k, v in collect([], recipe).items() if k in augmented} | given
    given = check(given, SheetConfig, AugmentConfig)
    return (cls(**{f.name: given[f.name] for f in fields(cls) if f.name in given})
            for cls in (SheetConfig, AugmentConfig))


def main(words):
    s, c = read(words)
    check_image(s.out, s.overwrite, MAKER)
    sheet, size, classes = draw(s, c)
    write_image(pillow().fromarray(sheet.numpy()), s.out, MAKER)
    seen = f'the two large and the {c.local_crops} small crops of training' if s.model == 'dino' else \
        f'{s.columns - 1} times as training does'
    print(f'{s.out}: {len(classes)} pictures of {s.dataset}, {s.split}, height {size[0]}, width {size[1]}; first as '
          f'evaluation sees them, then {seen}')
    print(f'classes from top to bottom: {", ".join(classes)}')
    print(', '.join(f'{k}={show(v)}' for k, v in asdict(c).items()))


def draw(s, c):
    """A row of views for each picture, uint8 (height, width, 3); the size of each view; the class
    of each picture."""
    images, rng = ImageSplit(Path(s.data_dir) / s.dataset, s.split), np.random.default_rng(s.seed)
    chosen = np.sort(rng.choice(len(images), min(s.rows, len(images)), replace=False))
    draws = rng.random((len(chosen), s.columns - 1, draws_needed(c)))
    size = s.image_size
    if not any(size):
        sizes = torch.as_tensor(images.at(chosen, draws)[1])
        size = tuple(sizes[0].tolist()) if (sizes == sizes[0]).all() else (224, 224)

    def read(*how):
        return (torch.as_tensor(a) for a in images.at(chosen, *how))
    pictures, sizes, labels, _ = read(draws, size)
    views = [eval_pictures(pictures, sizes, size, c.view)]
    if s.model == 'dino':
        pictures, sizes, _, d = read(rng.random((len(chosen), crops.draws_needed(c))), size, place_columns(c))
        views += [view for part in crops.views(pictures, sizes, d, size, c) for view in part]
    else:
        for d in draws.transpose(1, 0, 2):
            pictures, sizes, _, d = read(d, size, place_columns(c))
            views.append(train_pictures(pictures, sizes, d, size, c))
    cells = [as_rgb(denormalize(view)).permute(0, 3, 1, 2) for view in views]
    cells = torch.stack([F.pad(x, (0, size[1] + 4 - x.size(3), 0, size[0] + 4 - x.size(2)), value=255)
                         for x in cells])                               # at least 4 white pixels between
    sheet = cells.permute(1, 3, 0, 4, 2).flatten(2, 3).flatten(0, 1)[:-4, :-4]
    return sheet, size, [str(images.classes[i]) for i in labels]
