"""Folders of class folders, as imagefolder.py and imagenet.py read them."""
import os
from pathlib import Path

from engine.settings import Mistake
from tasks.decode import EXTENSIONS, is_picture

LAYOUT = 'expected FOLDER/train/CLASS/* and FOLDER/val/CLASS/*, or FOLDER/CLASS/*'


def subfolders(folder):
    return sorted(p.name for p in Path(folder).iterdir() if p.is_dir() and not p.name.startswith('.'))


def class_folders(folder, layout=LAYOUT):
    """folder/CLASS/* -> {class: names of its pictures}, all sorted. An empty class is refused."""
    classes, ignored = {}, 0
    for name in subfolders(folder):
        files = sorted(os.listdir(Path(folder, name)))
        classes[name] = [f for f in files if is_picture(f)]
        ignored += len(files) - len(classes[name])
        if not classes[name]:
            raise Mistake(f'the class folder {Path(folder, name)} holds no picture ({" ".join(EXTENSIONS)}, '
                          f'directly in it); add some or remove it; {layout}')
    if not classes:
        raise Mistake(f'no class folder in {folder}; {layout}')
    if ignored:
        print(f'ignored {ignored:,} files in {folder} that are not pictures')
    return classes


def same_classes(folder, train, others):
    """Raise Mistake if a split has other classes than `train`. others: {split: {class: ..}};
    folder holds the folders of all splits."""
    for split, classes in others.items():
        for has, a, lacks, b in (split, classes, 'train', train), ('train', train, split, classes):
            only = sorted(a.keys() - b.keys())
            if only:
                more = f' (and {len(only) - 1} more)' if only[1:] else ''
                raise Mistake(f'class {only[0]}{more} is in {Path(folder, has)} but not in {Path(folder, lacks)}; '
                              f'add a folder {only[0]} with pictures there, or remove the one in {has}')


def pictures(folder, classes):
    """{class: names} -> [(CLASS/name, label, path)], as save_pack needs them."""
    return [(f'{c}/{name}', label, f'{folder}/{c}/{name}') for label, c in enumerate(classes) for name in classes[c]]
