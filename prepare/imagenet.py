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
"""
import hashlib
import os
import re
import tarfile
from pathlib import Path, PurePosixPath

from lib.inputs import MOST_BYTES, Mistake, dataset, local, number, reading, tar_files
from lib.pictures import PACK, pack
from prepare.imagefolder import of_folder
from tasks.decode import is_picture

TRAIN_TAR, VAL_TAR = 'ILSVRC2012_img_train.tar', 'ILSVRC2012_img_val.tar'
SOLUTION, SYNSETS = 'LOC_val_solution.csv', 'imagenet_2012_validation_synset_labels.txt'

# ---- pictures in classes: iterables of (WNID/name, WNID, path or bytes), as of_folder makes one ----------------------


def of_tar(path):
    """Of a tar of WNID.tar or WNID/*.JPEG."""
    for name, content in tar_files(path, is_picture):
        wnid, file = PurePosixPath(name).parent.name, PurePosixPath(name).name
        if not wnid:
            raise Mistake(f'{path} has {name} in no class folder; expected WNID.tar or WNID/*.JPEG in it')
        yield f'{wnid}/{file}', wnid, content


# ---- validation pictures, in the order of their names ---------------------------------------------------------------


def of_val(path, folders):
    """(name, WNID, path or bytes) of the pictures in a folder, which may have class folders, or in a tar that is not
    compressed, so that they can be read in any order. folders: where labels may be."""
    if path.is_dir() and any(p.is_dir() and not p.name.startswith('.') for p in path.iterdir()):
        return sorted(of_folder(path), key=lambda picture: (PurePosixPath(picture[0]).name, picture[0]))
    if path.is_dir():
        labels = read_labels(folders, filter(is_picture, os.listdir(path)))
        return ((name, wnid, f'{path}/{name}') for name, wnid in labels)
    with reading(f'{path} is damaged, cut off or no tar archive'):
        tar = tarfile.open(path, 'r:')
        found = {PurePosixPath(m.name).name: m for m in tar if m.isfile() and is_picture(m.name)}
        assert not any(m.issparse() or m.size > MOST_BYTES for m in found.values()), 'a picture is too large'
    return ((name, wnid, tar.extractfile(found[name]).read()) for name, wnid in read_labels(folders, found))


def read_labels(folders, names):
    """(name, WNID) of each validation picture, sorted. folders: where labels may be."""
    path, names = first(folders, SOLUTION, SYNSETS), sorted(names)
    if not path:
        raise Mistake(f'the validation pictures need labels: put {SOLUTION} or {SYNSETS} in {folders[0]}')
    text = path.read_text(encoding='utf-8', errors='replace')
    by_name = dict(re.findall(r'^(\S+),(n\d+)', text, re.M))  # ILSVRC2012_val_00000001,n01440764 x1 y1 x2 y2 ..
    wnids = [by_name.get(PurePosixPath(name).stem) for name in names] if by_name else text.split()
    if len(by_name or wnids) != len(names) or None in wnids:
        raise Mistake(f'{path} does not have one label for each of {len(names):,} validation pictures; get it again')
    return zip(names, wnids)


# ---- all pictures ---------------------------------------------------------------------------------------------------


def hold_out(pictures, val_share):
    """(name, WNID, source) -> (split, name, WNID, source). About that share of the pictures, chosen by the sha256 of
    their names, goes to val. The first of each class goes to train, so that no class is only in val."""
    seen = set()
    for name, wnid, source in pictures:
        digest = hashlib.sha256(name.encode('utf-8', 'surrogateescape')).hexdigest()
        low = int(digest[:12], 16) < val_share * 16 ** 12
        yield 'val' if low and wnid in seen else 'train', name, wnid, source
        seen.add(wnid)


def first(folders, *names):
    """The path of the first of these names that is in one of the folders, or None."""
    return next((Path(folder, name) for name in names for folder in folders if Path(folder, name).exists()), None)


@dataset(__name__, 'data/imagenet', local('a folder, or an archive of ImageNet-21K', required=True), *PACK,
         number('--val', 'share held out without a validation part', 0.005, 0, 1))
def main(args):
    source, folders = args.source, [args.source, args.source / 'ILSVRC/Data/CLS-LOC']
    train, val = first(folders, 'train', TRAIN_TAR), first(folders, 'val', VAL_TAR)
    if bool(train) != bool(val):
        raise Mistake(f'{source} has {(train or val).name}, but no {"val or " + VAL_TAR if train else TRAIN_TAR}')
    train = train or source
    pictures = of_folder(train) if train.is_dir() else of_tar(train)
    if val:
        pack(args, {'train': pictures, 'val': of_val(val, folders)})
    else:
        print(f'{source} has no validation part: --val={args.val} of the pictures is held out')
        pack(args, ('train', 'val'), None, hold_out(pictures, args.val))
