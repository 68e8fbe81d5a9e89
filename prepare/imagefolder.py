"""Your own pictures, in one folder per class.

    python prepare/imagefolder.py FOLDER --out data/mine
    python prepare/imagefolder.py FOLDER --val 0.2 --out data/mine
    python prepare/imagefolder.py FOLDER --channels 1 --out data/mine         # grey pictures

FOLDER has FOLDER/train/CLASS/* and FOLDER/val/CLASS/*; or only FOLDER/CLASS/*. Without a folder val,
the share --val, a tenth by default, is held out for validation. The folder val may also be called
valid, and beside train there may be a folder test. Pictures are .jpg, .jpeg, .png, .webp, .bmp,
.gif, .tif and .tiff, of at most 32,768 pixels on a side and 134 million in all; hidden and other
files are ignored. Which pictures are held out depends only on their names: of each class the first
ones in the order of the sha256 of the name, at least one.

Expect a line for each split, such as `data/mine/train.jpeg.npy: 80 pictures, 0.2 MB, 4 classes`.
"""
import hashlib
import os
from pathlib import Path

from lib.command_line import Mistake, between, parse, run
from lib.pictures import pack_options, pack_parser, save_pack
from tasks.decode import is_picture

LAYOUT = 'expected FOLDER/train/CLASS/* and FOLDER/val/CLASS/*, or FOLDER/CLASS/*'


def class_folders(folder):
    """{class: names of its pictures} of folder/CLASS/*, all sorted. An empty class is refused."""
    classes = {}
    for place in sorted(p for p in Path(folder).glob('*') if p.is_dir() and not p.name.startswith('.')):
        classes[place.name] = sorted(filter(is_picture, os.listdir(place)))
        if not classes[place.name]:
            raise Mistake(f'the class folder {place} holds no picture itself; {LAYOUT}')
    if not classes:
        raise Mistake(f'no class folder in {folder}; {LAYOUT}')
    return classes


def hold_out(classes, val_share):
    """{class: names} -> (train, val), two such dicts; val gets a picture of each class that has two."""
    train, val = {}, {}
    for c, names in classes.items():
        count = min(max(1, round(val_share * len(names))), len(names) - 1)
        names = sorted(names, key=lambda n: hashlib.sha256(os.fsencode(f'{c}/{n}')).hexdigest())
        train[c], val[c] = sorted(names[count:]), sorted(names[:count])
    return train, val


def main(argv=None):
    p = pack_parser(__doc__, None)
    p.add_argument('folder', metavar='FOLDER', type=Path, help='of class folders, or of train and val with them')
    p.add_argument('--val', type=between(float, 0, 1), default=0.1, help='share held out if there is no folder val')
    args = parse(p, argv)
    found = [name for name in ('train', 'val', 'valid', 'test') if (args.folder / name).is_dir()]
    if found and 'train' not in found:
        raise Mistake(f'{args.folder} has no folder train beside {found[0]}; {LAYOUT}')
    places = {name.replace('valid', 'val'): args.folder / name for name in found} or {'train': args.folder}
    held = {split: class_folders(place) for split, place in places.items()}
    classes = list(held['train'])
    for split in held.values():
        if different := sorted({*classes} ^ {*split}):
            raise Mistake(f'classes that are not in every split: {", ".join(different)[:200]}; add or remove them')
    if 'val' not in held:
        places['val'] = places['train']
        held['train'], held['val'] = hold_out(held['train'], args.val)
    splits = {split: [(f'{c}/{name}', label, f'{places[split]}/{c}/{name}')
                      for label, c in enumerate(classes) for name in held[split][c]]
              for split in ('train', 'val', 'test') if split in held}
    save_pack(args.out, splits, classes, total=sum(map(len, splits.values())), **pack_options(args))


if __name__ == '__main__':
    run(main)
