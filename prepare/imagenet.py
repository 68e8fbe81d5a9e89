"""ImageNet from your own copy. There is no download here, because it needs an account: at
https://image-net.org, or at Kaggle for its "imagenet-object-localization-challenge".

    python prepare/imagenet.py --from PATH                          # ImageNet-1K, to data/imagenet
    python prepare/imagenet.py --from PATH --out data/imagenet21k   # ImageNet-21K

PATH is a folder with one of these:

  train/WNID/*.JPEG and val/WNID/*.JPEG                  or other class names in these folders
  ILSVRC/Data/CLS-LOC/train/WNID/*.JPEG, .../val/*.JPEG  Kaggle's, with LOC_val_solution.csv
  ILSVRC2012_img_train.tar and ILSVRC2012_img_val.tar    not unpacked
  WNID/*                                                 ImageNet-21K; the share --val is held out

or PATH is an archive of ImageNet-21K, fall11_whole.tar or winter21_whole.tar.gz. If validation
pictures are in no class folders, PATH must also have LOC_val_solution.csv, or
imagenet_2012_validation_synset_labels.txt with one WNID per line in the order of the file names.
Classes are the WNIDs in sorted order. Validation pictures are in the order of their file names, which
is also the order of other labels for them (ImageNet-ReaL).

Expect 1,281,167 pictures for training, 50,000 for validation and 1,000 classes of ImageNet-1K, in
about 40 GB. A core prepares about 250 pictures a second.
"""  # noqa: E501 (--help shows it)
import os
import re
import tarfile
from pathlib import PurePosixPath

from lib.inputs import (
    MOST_BYTES, Mistake, arguments, first_path, hash_of_name, local, number, reading, run,
    tar_files)
from lib.pictures import PACK, save_pack
from prepare.imagefolder import of_folder
from tasks.decode import is_picture

TRAIN_TAR = 'ILSVRC2012_img_train.tar'
VAL_TAR = 'ILSVRC2012_img_val.tar'
SOLUTION = 'LOC_val_solution.csv'
SYNSETS = 'imagenet_2012_validation_synset_labels.txt'


# ---- pictures of train, or of all ---------------------------------------------------------------

def of_tar(path):
    """Yield (WNID/name, WNID, bytes) of the pictures in a tar of WNID.tar or WNID/*.JPEG. Raises
    Mistake for a picture outside of these."""
    for name, content in tar_files(path, is_picture):
        file = PurePosixPath(name)
        wnid = file.parent.name
        if not wnid:
            raise Mistake(f'{path} has {name} in no class folder; expected WNID.tar or WNID/*.JPEG '
                          'in it')
        yield f'{wnid}/{file.name}', wnid, content


def hold_out(pictures, val_share):
    """Yield (split, name, WNID, source) of pictures (name, WNID, source). About the share val_share
    of them, chosen by the sha256 of their names, goes to val. The first of each class goes to
    train, so that no class is only in val."""
    seen = set()
    for name, wnid, source in pictures:
        is_low = int(hash_of_name(name)[:12], 16) < val_share * 16 ** 12
        split = 'val' if is_low and wnid in seen else 'train'
        yield split, name, wnid, source
        seen.add(wnid)


# ---- validation pictures, in the order of their names -------------------------------------------

def of_val(path, folders):
    """(name, WNID, path or bytes) of the validation pictures. They are in a folder, which may have
    class folders, or in a tar. The tar may not be compressed, since its pictures are read in
    another order. folders: where labels may be."""
    if not path.is_dir():
        return of_val_tar(path, folders)
    names = [name for name in os.listdir(path) if is_picture(name)]
    if not names:
        return sorted(of_folder(path), key=by_file_name)
    return [(name, wnid, f'{path}/{name}') for name, wnid in read_labels(folders, names)]


def by_file_name(picture):
    """What pictures (WNID/name, WNID, path) are sorted by."""
    return os.path.basename(picture[2])


def of_val_tar(path, folders):
    """What of_val gives, of a tar: an iterator that reads one picture after the other. Raises
    Mistake at once if the list of its files is damaged or the labels do not fit."""
    with reading(f'{path} is damaged, cut off or no tar archive'):
        tar = tarfile.open(path, 'r:')
        members = {}
        for member in tar:
            if member.isfile() and is_picture(member.name):
                members[PurePosixPath(member.name).name] = member
        for member in members.values():
            if member.issparse() or member.size > MOST_BYTES:
                raise ValueError('a picture is too large')
    labels = read_labels(folders, members)
    return ((name, wnid, tar.extractfile(members[name]).read()) for name, wnid in labels)


def read_labels(folders, names):
    """[(name, WNID)] of the validation pictures, sorted. folders: where labels may be. Raises
    Mistake if there are none, or if they do not fit the names."""
    path = first_path(folders, SOLUTION, SYNSETS)
    names = sorted(names)
    if not path:
        raise Mistake(f'the validation pictures need labels: put {SOLUTION} or {SYNSETS} in '
                      f'{folders[0]}')
    text = path.read_text(encoding='utf-8', errors='replace')
    # A line of LOC_val_solution.csv is ILSVRC2012_val_00000001,n01440764 x1 y1 x2 y2 ..; the other
    # file has a WNID a line, in the order of the pictures.
    by_name = dict(re.findall(r'^(\S+),(n\d+)', text, re.M))
    if by_name:
        wnids = [by_name.get(PurePosixPath(name).stem) for name in names]
        count = len(by_name)
    else:
        wnids = text.split()
        count = len(wnids)
    if count != len(names) or None in wnids:
        raise Mistake(f'{path} does not have one label for each of {len(names):,} validation '
                      'pictures; get it again')
    return list(zip(names, wnids))


def main(argv=None):
    args = arguments(
        __doc__, argv,
        local('a folder, or an archive of ImageNet-21K', required=True),
        *PACK,
        number('--val', 'share held out without a validation part', 0.005, 0, 1),
        out='data/imagenet')

    folders = [args.source, args.source / 'ILSVRC/Data/CLS-LOC']
    train = first_path(folders, 'train', TRAIN_TAR)
    val = first_path(folders, 'val', VAL_TAR)
    if bool(train) != bool(val):
        raise Mistake(f'{args.source} has {(train or val).name} alone; expected train and val, '
                      f'or {TRAIN_TAR} and {VAL_TAR}')

    train = train or args.source
    pictures = of_folder(train) if train.is_dir() else of_tar(train)
    if val:
        save_pack(args, {'train': pictures, 'val': of_val(val, folders)})
    else:
        print(f'{args.source} has no validation part: --val={args.val} of the pictures is held out')
        save_pack(args, ('train', 'val'), mixed=hold_out(pictures, args.val))


if __name__ == '__main__':
    run(main)
