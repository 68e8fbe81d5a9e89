"""Your own pictures, in one folder per class.

    python prepare/imagefolder.py FOLDER --out data/mine
    python prepare/imagefolder.py FOLDER --val 0.2 --out data/mine
    python prepare/imagefolder.py FOLDER --channels 1 --out data/mine         # grey pictures
    python prepare/imagefolder.py FOLDER --masks MASKS --out data/mine        # with true masks, to score masks against

FOLDER has FOLDER/train/CLASS/* and FOLDER/val/CLASS/*; or only FOLDER/CLASS/*. Without a folder val,
the share --val, a tenth by default, is held out for validation. The folder val may also be called
valid, and beside train there may be a folder test. Pictures are .jpg, .jpeg, .png, .webp, .bmp,
.gif, .tif and .tiff, of at most 32,768 pixels on a side and 134 million in all; hidden and other
files are ignored. Which pictures are held out depends only on their names: of each class the first
ones in the order of the sha256 of the name, at least one.

MASKS has a PNG file for each picture, in folders as those of FOLDER: MASKS/train/cat/tom.png for
FOLDER/train/cat/tom.jpg. It is as large as the upright picture, grey or with a palette: 0 is
background, 1, 2, 3, .. are objects of the class of the picture, 255 is unknown; or it is black and
white, for one object. Splits without any mask stay without.

Expect a line for each split, such as `data/mine/train.jpeg.npy: 80 pictures, 0.2 MB, 4 classes`.
"""
import hashlib
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from engine.settings import Mistake, one_line_errors
from prepare.lib import masks
from prepare.lib.command_line import parse, share
from prepare.lib.folders import LAYOUT, class_folders, pictures, same_classes
from prepare.lib.pictures import pack_options, pack_parser, save_pack


def hold_out(classes, val_share):
    """{class: names} -> (train, val), two such dicts; val gets at least one picture of each
    class."""
    train, val = {}, {}
    for c, names in classes.items():
        if len(names) < 2:
            raise Mistake(f'class {c} has one picture only, so none can be held out for validation; add more')
        count = min(max(1, round(val_share * len(names))), len(names) - 1)
        out = set(sorted(names, key=lambda n: hashlib.sha256(os.fsencode(f'{c}/{n}')).hexdigest())[:count])
        train[c], val[c] = [n for n in names if n not in out], [n for n in names if n in out]
    return train, val


def main(argv=None):
    p = pack_parser(__doc__, None)
    p.add_argument('folder', metavar='FOLDER', help='a folder of class folders, or of train and val with class folders')
    p.add_argument('--val', type=share, default=0.1,
                   help='share held out if there is no folder val (default: %(default)s)')
    p.add_argument('--masks', metavar='MASKS', help='a folder with a mask for each picture')
    args = parse(p, argv)
    folder = Path(args.folder)
    if folder.is_file():
        raise Mistake(f'{folder} is a file; if it is an archive, unpack it first and name the folder')
    if not folder.is_dir():
        raise Mistake(f'no such folder: {folder}')
    found = [name for name in ('val', 'valid', 'test') if (folder / name).is_dir()]
    if 'val' in found and 'valid' in found:
        raise Mistake(f'{folder} has both val and valid; remove or rename one')
    source = folder / 'train' if (folder / 'train').is_dir() else folder
    if found and source == folder:
        raise Mistake(f'{folder} has a folder {found[0]} but no folder train; {LAYOUT}')
    train = class_folders(source)
    others = {name: class_folders(folder / name) for name in found}
    same_classes(folder, train, others)
    parts = (train,) if {'val', 'valid'} & set(found) else hold_out(train, args.val)
    splits = {name: pictures(source, part) for name, part in zip(('train', 'val'), parts)}
    splits |= {'val' if name == 'valid' else name: pictures(folder / name, others[name]) for name in others}
    if args.masks:
        if not Path(args.masks).is_dir():
            raise Mistake(f'no such folder: {args.masks}')
        plain, splits = splits, {name: masks.of_folder(args.masks, folder, part) for name, part in splits.items()}
        if splits == plain:
            first = Path(next(iter(plain.values()))[0][2]).relative_to(folder)
            raise Mistake(f'{args.masks} has no mask of any picture; the first would be '
                          f'{Path(args.masks, first).with_suffix(".png")}')
    save_pack(args.out, splits, list(train), **pack_options(args))


if __name__ == '__main__':
    with one_line_errors():
        main()
