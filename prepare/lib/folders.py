"""Folders of class folders, as imagefolder.py and imagenet.py read them."""
import os
from pathlib import Path

from engine.settings import Mistake
from tasks.decode import is_picture

LAYOUT = 'expected FOLDER/train/CLASS/* and FOLDER/val/CLASS/*, or FOLDER/CLASS/*'


def class_folders(folder):
    """folder/CLASS/* -> {class: names of its pictures}, all sorted. An empty class is refused."""
    classes, ignored = {}, 0
    for name in sorted(p.name for p in Path(folder).iterdir() if p.is_dir() and not p.name.startswith('.')):
        files = sorted(os.listdir(Path(folder, name)))
        classes[name] = [f for f in files if is_picture(f)]
        ignored += len(files) - len(classes[name])
        if not classes[name]:
            raise Mistake(f'the class folder {Path(folder, name)} holds no picture directly in it; add some or remove '
                          f'it; {LAYOUT}')
    if not classes:
        raise Mistake(f'no class folder in {folder}; {LAYOUT}')
    if ignored:
        print(f'ignored {ignored:,} files in {folder} that are not pictures')
    return classes
