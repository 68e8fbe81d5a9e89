"""Your own pictures, in a folder for every class.

    python prepare/imagefolder.py FOLDER --out data/mine         # FOLDER/train/CLASS/*, FOLDER/val/CLASS/*
    python prepare/imagefolder.py FOLDER --out data/mine         # FOLDER/CLASS/*: a tenth is held back for validation
    python prepare/imagefolder.py FOLDER --val 0.2 --out data/mine

Instead of val the folder may be called valid, and there may be a folder test. Pictures are .jpg, .jpeg, .png, .webp,
.bmp, .gif, .tif and .tiff; hidden and other files are ignored. What is held back depends on the names alone: of every
class that share, at least one picture, in order of their names' sha256. Expect to see the pictures, bytes and classes
of each split, as in `data/mine/train.jpeg.npy: 80 pictures, 0.2 MB, 4 classes`.
"""
import hashlib
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from engine.settings import one_line_errors
from tasks.files import check_free
from prepare.images import EXTENSIONS, is_picture, pack_options, pack_parser, save_pack

LAYOUT = 'expected FOLDER/train/CLASS/* and FOLDER/val/CLASS/*, or FOLDER/CLASS/*'


def subfolders(folder):
    return sorted(p.name for p in Path(folder).iterdir() if p.is_dir() and not p.name.startswith('.'))


def class_folders(folder, layout=LAYOUT):
    """folder/CLASS/* -> {class: sorted names of its pictures}, classes sorted. Raises ValueError for a class without."""
    classes, ignored = {}, 0
    for name in subfolders(folder):
        files = sorted(os.listdir(Path(folder, name)))
        classes[name] = [f for f in files if is_picture(f)]
        ignored += len(files) - len(classes[name])
        if not classes[name]:
            raise ValueError(f'the class folder {Path(folder, name)} holds no picture ({" ".join(EXTENSIONS)}, directly '
                             f'in it); add some or remove it; {layout}')
    if not classes:
        raise ValueError(f'no class folder in {folder}; {layout}')
    if ignored:
        print(f'ignored {ignored:,} files in {folder} that are no pictures')
    return classes


def same_classes(folder, train, other):
    """Raise ValueError where `other`, {split: {class: ..}}, has not the classes of `train`; folder holds the splits."""
    for split, classes in other.items():
        for has, a, lacks, b in (split, classes, 'train', train), ('train', train, split, classes):
            only = sorted(a.keys() - b.keys())
            if only:
                more = f' (and {len(only) - 1} more)' if only[1:] else ''
                raise ValueError(f'class {only[0]}{more} is in {Path(folder, has)} but not in {Path(folder, lacks)}; add a '
                                 f'folder {only[0]} with pictures there, or remove the one in {has}')


def pictures(folder, classes):
    """{class: names} -> [(CLASS/name, label, path)], for save_pack."""
    return [(f'{c}/{name}', label, f'{folder}/{c}/{name}') for label, c in enumerate(classes) for name in classes[c]]


def hold_back(classes, share):
    """{class: names} -> two of the same, the second with `share` of every class, at least one picture."""
    train, val = {}, {}
    for c, names in classes.items():
        if len(names) < 2:
            raise ValueError(f'class {c} has one picture only, so none can be held back for validation; add more')
        count = min(max(1, round(share * len(names))), len(names) - 1)
        back = set(sorted(names, key=lambda n: hashlib.sha256(f'{c}/{n}'.encode()).hexdigest())[:count])
        train[c], val[c] = [n for n in names if n not in back], [n for n in names if n in back]
    return train, val


def main(argv=None):
    p = pack_parser(__doc__, None)
    p.add_argument('folder', metavar='FOLDER', help='a folder of class folders, or of train and val with class folders')
    p.add_argument('--val', type=float, default=0.1,
                   help='share held back where there is no folder for validation (default: %(default)s)')
    args = p.parse_args(argv)
    if not args.out:
        raise ValueError('--out is missing: name the folder to write, such as --out data/mine')
    if not 0 < args.val < 1:
        raise ValueError(f'--val={args.val} must lie between 0 and 1')
    check_free(args.out, args.overwrite)
    folder = Path(args.folder)
    if folder.is_file():
        raise ValueError(f'{folder} is a file; if it is an archive, unpack it first and name the folder')
    if not folder.is_dir():
        raise ValueError(f'no such folder: {folder}')
    found = [name for name in ('val', 'valid', 'test') if (folder / name).is_dir()]
    if 'val' in found and 'valid' in found:
        raise ValueError(f'{folder} has both val and valid; remove or rename one')
    if (folder / 'train').is_dir():
        train, source = class_folders(folder / 'train'), folder / 'train'
    elif found:
        raise ValueError(f'{folder} has a folder {found[0]} but no folder train; {LAYOUT}')
    else:
        train, source = class_folders(folder), folder
    other = {name: class_folders(folder / name) for name in found}
    same_classes(folder, train, other)
    classes = list(train)
    if other:
        splits = {'train': pictures(source, train)}
        splits |= {'val' if name == 'valid' else name: pictures(folder / name, other[name]) for name in other}
    else:
        splits = {name: pictures(source, part) for name, part in zip(('train', 'val'), hold_back(train, args.val))}
    save_pack(args.out, splits, classes, **pack_options(args))


if __name__ == '__main__':
    with one_line_errors():
        main()
