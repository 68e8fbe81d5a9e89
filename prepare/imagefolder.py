"""Your own pictures, in one folder per class.

    python prepare/imagefolder.py FOLDER --out data/mine
    python prepare/imagefolder.py FOLDER --val 0.2 --out data/mine
    python prepare/imagefolder.py FOLDER --channels 1 --out data/mine         # grey pictures

FOLDER has FOLDER/train/CLASS/* and FOLDER/val/CLASS/*; or only FOLDER/CLASS/*. Without a folder val,
the share --val, a tenth by default, is held out for validation. The folder val may also be called
valid or validation, and beside train there may be a folder test. Pictures are .jpg, .jpeg, .png,
.webp, .bmp, .gif, .tif and .tiff, of at most 32,768 pixels on a side and 134 million in all; hidden
and other files are ignored. Which pictures are held out depends only on their names: of each class
the first ones in the order of the sha256 of the name, at least one.

Expect a line for each split, such as `data/mine/train.jpeg.npy: 80 pictures, 0.2 MB, 4 classes`.
"""
import hashlib
import itertools
import os
from pathlib import Path

from lib.inputs import Mistake, dataset, number, option
from lib.pictures import PACK, pack
from tasks.decode import is_picture

LAYOUT = 'expected FOLDER/train/CLASS/* and FOLDER/val/CLASS/*, or FOLDER/CLASS/*'


def of_folder(folder):
    """[(CLASS/name, CLASS, path)] of the pictures folder/CLASS/*, sorted. An empty class is refused."""
    pictures = []
    for place in sorted(p for p in Path(folder).glob('*') if p.is_dir() and not p.name.startswith('.')):
        names = sorted(filter(is_picture, os.listdir(place)))
        if not names:
            raise Mistake(f'the class folder {place} holds no picture itself; {LAYOUT}')
        pictures += [(f'{place.name}/{name}', place.name, f'{place}/{name}') for name in names]
    if not pictures:
        raise Mistake(f'no class folder in {folder}; {LAYOUT}')
    return pictures


def hold_out(pictures, val_share):
    """Pictures of of_folder -> (train, val), two such lists; val gets a picture of each class that has two."""
    val = set()
    for _, of_class in itertools.groupby(pictures, lambda picture: picture[1]):
        by_hash = sorted(of_class, key=lambda picture: hashlib.sha256(os.fsencode(picture[0])).hexdigest())
        count = max(1, round(val_share * len(by_hash)))
        val |= {*by_hash[:min(count, len(by_hash) - 1)]}
    return [p for p in pictures if p not in val], [p for p in pictures if p in val]


@dataset(__name__, None, *PACK, number('--val', 'share held out if there is no folder val', 0.1, 0, 1),
         option('folder', 'of class folders, or of train and val with them', metavar='FOLDER', type=Path))
def main(args):
    found = [name for name in ('train', 'val', 'valid', 'validation', 'test') if (args.folder / name).is_dir()]
    if found and 'train' not in found:
        raise Mistake(f'{args.folder} has no folder train beside {found[0]}; {LAYOUT}')
    splits = {'val' if name.startswith('val') else name: of_folder(args.folder / name) for name in found}
    splits = splits or {'train': of_folder(args.folder)}
    classes = [{c for _, c, _ in pictures} for pictures in splits.values()]
    if different := sorted(set.union(*classes) - set.intersection(*classes)):
        raise Mistake(f'classes that are not in every split: {", ".join(different)[:200]}; add or remove them')
    if 'val' not in splits:
        splits['train'], splits['val'] = hold_out(splits['train'], args.val)
    pack(args, splits, total=sum(map(len, splits.values())))
