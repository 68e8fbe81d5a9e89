"""Your own pictures, in one folder per class, or without classes.

    python prepare/imagefolder.py FOLDER --out data/mine
    python prepare/imagefolder.py FOLDER --val 0.2 --out data/mine
    python prepare/imagefolder.py FOLDER --channels 1 --out data/mine         # grey pictures
    python prepare/imagefolder.py FOLDER --labels labels.csv --out data/mine  # classes from a table

FOLDER has FOLDER/train/CLASS/* and FOLDER/val/CLASS/*; or only FOLDER/CLASS/*. Without a folder val,
the share --val, a tenth by default, is held out for validation. The folder val may also be called
valid or validation, and beside train there may be a folder test. Pictures of a class may also be in
folders inside its folder.

Pictures without classes are directly in FOLDER, or in FOLDER/train and FOLDER/val, and not in
folders below. The dataset then has one class, with the name of FOLDER. CRATE-MAE, ViT-MAE
and self-distillation (DINO) learn from it, because they use no classes.

With --labels the folders do not count. The table has a header, file,class, and a row for each
picture: its path in FOLDER, with its ending, and its class. Other pictures are left out.

Pictures are .jpg, .png, .webp, .bmp, .gif, .tif, .ppm, .avif and their variants, of at most 178
million pixels, as Pillow allows. In grey pictures of more than 8 bits white is 255, 4,095 or
65,535, the first of them that no number exceeds. Hidden files are ignored; other files, such as
.heic, and pictures beside class folders are left out and counted. Which pictures are held out
depends only on their names: of each class the first ones in the order of the sha256 of the name, at
least one. Links are followed. If they lead to one picture from two places, the script asks you to
remove one.

Expect a line for each split, such as `data/mine/train.jpeg.npy: 80 pictures, 0.2 MB, 4 classes`.
"""  # noqa: E501 (--help shows it)
import csv
import itertools
import os
from pathlib import Path

from lib.inputs import Mistake, arguments, hash_of_name, number, option, reading, run
from lib.pictures import PACK, save_pack
from tasks.decode import files_below, is_picture, say_left_out

LAYOUT = ('expected FOLDER/train/CLASS/* and FOLDER/val/CLASS/*, or FOLDER/CLASS/*; or pictures '
          'without classes, FOLDER/* alone')


def read_splits(folder):
    """{split: pictures of of_split} of train, val and test in a folder; {} if there is none of
    them. Raises Mistake if train is missing."""
    if not folder.is_dir():
        raise Mistake(f'no folder {folder}; {LAYOUT}')
    splits = {}
    for place in sorted(folder.iterdir()):
        split = place.name.lower()
        if split in ('valid', 'validation'):
            split = 'val'
        if split not in ('train', 'val', 'test') or not place.is_dir():
            continue
        if split in splits:
            raise Mistake(f'{folder} has two folders for {split}; keep one')
        splits[split] = of_split(place, folder)
    if splits and 'train' not in splits:
        raise Mistake(f'{folder} has no folder train beside {min(splits)}; {LAYOUT}')
    return splits


def of_split(place, folder):
    """The pictures of a split, as of_folder has them. place: FOLDER, or its folder train, val or
    test. If all pictures lie directly in it, they are of one class with the name of FOLDER. Else
    its folders are classes."""
    files = [file for file in files_below(place) if is_picture(file)]
    in_folders = [file for file in files if os.path.dirname(file) != os.path.normpath(place)]
    if not files or in_folders:
        pictures = of_folder(place)
        classes = {class_of(picture) for picture in pictures}
        if len(in_folders) < len(files) and len(classes) == 1:
            raise Mistake(f'{place} has pictures beside its only class folder, {min(classes)}; '
                          'move them into class folders, or that folder away')
        return pictures
    print(f'{place}: one class, for model=crate_mae, vit_mae or dino')
    only_class = os.path.basename(os.path.abspath(folder))  # abspath: FOLDER may be `.`
    return [(f'{only_class}/{os.path.basename(file)}', only_class, file) for file in files]


def of_folder(folder):
    """[(CLASS/name, CLASS, path)] of the pictures folder/CLASS/*, and of those in folders there,
    sorted. Raises Mistake for a class without a picture of its own, or if there is no class."""
    pictures = []
    for path in sorted(Path(folder).glob('*')):
        if not path.is_dir() or path.name.startswith('.'):
            continue
        if not any(is_picture(name) for name in os.listdir(path)):
            raise Mistake(f'the class folder {path} holds no picture itself; {LAYOUT}')
        for file in files_below(path):
            if is_picture(file):
                pictures.append((os.path.relpath(file, folder), path.name, file))
    if not pictures:
        raise Mistake(f'no class folder in {folder}; {LAYOUT}')
    return pictures


def of_table(table, folder):
    """Pictures as of_folder has them, from the rows of a CSV file with the columns file and class.
    Raises Mistake if there are no such columns, and for a file without a class or with two rows."""
    pictures = {}  # {path: picture}
    with reading(f'{table}: expected a CSV file with the header file,class', 'give it this header'):
        with open(table, encoding='utf-8-sig', newline='') as f:
            for row in csv.DictReader(f):
                path = os.path.normpath(folder / row['file'])
                if path in pictures or not row['class']:
                    raise Mistake(f'{table} has no class for {row["file"]}, or two rows; give it '
                                  'one row with a class')
                pictures[path] = row['file'], row['class'], path
    return sorted(pictures.values(), key=class_of)


def check_once(paths):
    """Raises Mistake if two paths lead to one picture. It would be in two classes, or be trained on
    and validated on."""
    path_of = {}  # {picture: the path that leads there}
    for path in paths:
        picture = os.path.realpath(path)
        if picture in path_of:
            raise Mistake(f'{path_of[picture]} and {path} are one picture; remove one of the links '
                          'to it')
        path_of[picture] = path


def check_classes(splits):
    """Raises Mistake if a class is not in every split."""
    classes = []  # a set for each split
    for pictures in splits.values():
        classes.append({class_of(picture) for picture in pictures})
    different = sorted(set.union(*classes) - set.intersection(*classes))
    if different:
        raise Mistake(f'classes that are not in every split: {", ".join(different)[:200]}; add or '
                      'remove them')


def hold_out(pictures, val_share):
    """Pictures of of_folder -> (train, val), two such lists. val gets the share val_share of each
    class, and at least one picture; but the only picture of a class stays in train."""
    val = set()
    for _, of_class in itertools.groupby(pictures, class_of):  # of_folder has sorted them by class
        by_hash = sorted(of_class, key=lambda picture: hash_of_name(picture[0]))
        count = max(1, round(val_share * len(by_hash)))
        count = min(count, len(by_hash) - 1)
        val.update(by_hash[:count])
    train = [picture for picture in pictures if picture not in val]
    return train, [picture for picture in pictures if picture in val]


def class_of(picture):
    return picture[1]


def main(argv=None):
    args = arguments(
        __doc__, argv,
        *PACK,
        number('--val', 'share held out if there is no folder val', 0.1, 0, 1),
        option('--labels', 'a CSV file of the classes, with the header file,class', metavar='FILE'),
        option('folder', 'of pictures, class folders, or train and val', metavar='FOLDER',
               type=Path))

    if args.labels:
        splits = {'train': of_table(args.labels, args.folder)}
    else:
        splits = read_splits(args.folder)
    if not splits:
        splits['train'] = of_split(args.folder, args.folder)
    check_classes(splits)
    if 'val' not in splits:
        splits['train'], splits['val'] = hold_out(splits['train'], args.val)
    taken = []
    for pictures in splits.values():
        taken += [path for _, _, path in pictures]
    check_once(taken)
    save_pack(args, splits, total=len(taken))
    say_left_out(files_below(args.folder), taken, 'no pictures, in no class, or unreadable')


if __name__ == '__main__':
    run(main)
