"""ImageNet from your own copy. There is no download here, because it needs an account: at
https://image-net.org, or at Kaggle for its "imagenet-object-localization-challenge".

    python prepare/imagenet.py --from PATH                          # ImageNet-1K, to data/imagenet
    python prepare/imagenet.py --from PATH --out data/imagenet21k   # ImageNet-21K

PATH is a folder with one of these:

  train/WNID/*.JPEG and val/WNID/*.JPEG                  or other class names in these folders
  ILSVRC/Data/CLS-LOC/train/WNID/*.JPEG, .../val/*.JPEG  Kaggle's, with LOC_val_solution.csv
  ILSVRC2012_img_train.tar and ILSVRC2012_img_val.tar    not unpacked
  fall11_whole.tar, winter21_whole.tar.gz, or WNID/*     ImageNet-21K; the share --val is held out

or PATH is one of these 21K archives. If validation pictures are in no class folders, PATH must also
have LOC_val_solution.csv, or imagenet_2012_validation_synset_labels.txt with one WNID per line in
the order of the file names. Classes are the WNIDs in sorted order. Validation pictures are in the
order of their file names, which is also the order of other labels for them (ImageNet-ReaL).

Expect 1,281,167 pictures for training, 50,000 for validation and 1,000 classes of ImageNet-1K, in
about 40 GB. A core prepares about 250 pictures a second.
"""
import hashlib
import re
import sys
import tarfile
from pathlib import Path, PurePosixPath

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from engine.settings import Mistake
from prepare.lib.archives import ERRORS, MOST_BYTES, tar_files
from prepare.lib.command_line import parse, run, share
from prepare.lib.folders import class_folders
from prepare.lib.pictures import pack_options, pack_parser, save_pack
from tasks.decode import is_picture

TRAIN_TAR, VAL_TAR = 'ILSVRC2012_img_train.tar', 'ILSVRC2012_img_val.tar'
WHOLE_TARS = ('winter21_whole.tar.gz', 'fall11_whole.tar')
SOLUTION, SYNSETS = 'LOC_val_solution.csv', 'imagenet_2012_validation_synset_labels.txt'

# ---- pictures in classes: iterables of (WNID/name, WNID, path or bytes) ---------------------------------------------


def of_folder(folder):
    return [(f'{c}/{name}', c, f'{folder}/{c}/{name}') for c, names in class_folders(folder).items() for name in names]


def of_tar(path):
    """Of a tar of WNID.tar or WNID/*.JPEG."""
    for name, content in tar_files(path, is_picture):
        wnid, file = PurePosixPath(name).parent.name, PurePosixPath(name).name
        if not wnid:
            raise Mistake(f'{path} has {name} in no class folder; expected WNID.tar or WNID/*.JPEG in it')
        yield f'{wnid}/{file}', wnid, content


# ---- validation pictures, in the order of their names ---------------------------------------------------------------


def of_val_folder(folder, labels):
    """(name, WNID, path) of the pictures in a folder, which may have class folders."""
    if any(p.is_dir() and not p.name.startswith('.') for p in folder.iterdir()):
        return sorted(of_folder(folder), key=lambda picture: (PurePosixPath(picture[0]).name, picture[0]))
    names = sorted(p.name for p in folder.iterdir() if is_picture(p.name))
    return [(name, wnid, str(folder / name)) for name, wnid in zip(names, read_labels(labels, names, folder))]


def of_val_tar(path, labels):
    """(name, WNID, bytes) of the pictures in a tar that is not compressed: they are read in any order."""
    try:
        tar = tarfile.open(path, 'r:')
        members = {PurePosixPath(m.name).name: m for m in tar if m.isfile() and is_picture(m.name)}
        if large := [m.name for m in members.values() if m.issparse() or m.size > MOST_BYTES]:
            raise tarfile.ReadError(f'{large[0]} has more than {MOST_BYTES:,} bytes')
    except ERRORS as e:
        raise Mistake(f'{path} is damaged, cut off or no tar archive ({e}); get it again') from None
    names = sorted(members)
    return ((name, wnid, tar.extractfile(members[name]).read())
            for name, wnid in zip(names, read_labels(labels, names, path)))


def read_labels(folders, names, where):
    """The WNID of each validation picture. names: sorted file names; folders: where labels may be."""
    path = first(folders, SOLUTION, Path.is_file) or first(folders, SYNSETS, Path.is_file)
    if not path:
        raise Mistake(f'the pictures of {where} are in no class folders, so their labels are needed: put {SOLUTION} or '
                      f'{SYNSETS} in {folders[0]}')
    text = path.read_text(encoding='utf-8', errors='replace')
    wnids = text.split()
    if path.name == SOLUTION:  # ILSVRC2012_val_00000001,n01440764 x1 y1 x2 y2 ..
        by_name = dict(re.findall(r'^(\S+),(n\d+)', text, re.M))
        wnids = [by_name.pop(PurePosixPath(name).stem, None) for name in names] + list(by_name)
    if len(wnids) != len(names) or None in wnids:
        raise Mistake(f'{path} does not have one label for each of the {len(names):,} pictures of {where}; get it '
                      'again, or what is missing there')
    return wnids


# ---- all pictures ---------------------------------------------------------------------------------------------------


def hold_out(pictures, val_share):
    """(name, WNID, source) -> (split, name, WNID, source). About that share of the pictures, chosen by the sha256 of
    their names, goes to val. The first of each class goes to train, so that no class is only in val."""
    seen = set()
    for name, wnid, source in pictures:
        low = int(hashlib.sha256(name.encode('utf-8', 'surrogateescape')).hexdigest()[:12], 16) < val_share * 16 ** 12
        yield 'val' if low and wnid in seen else 'train', name, wnid, source
        seen.add(wnid)


def first(folders, name, test):
    return next((Path(f, name) for f in folders if test(Path(f, name))), None)


def main(argv=None):
    p = pack_parser(__doc__, 'data/imagenet', 'a folder, or an archive of ImageNet-21K')
    p.add_argument('--val', type=share, default=0.005,
                   help='share held out if there is no validation part (default: %(default)s)')
    args = parse(p, argv)
    source = Path(args.source or '')
    if not args.source or not source.exists():
        raise Mistake(f'--from PATH names your copy, not {args.source}. ImageNet needs an account: get it from '
                      'https://image-net.org, or the "imagenet-object-localization-challenge" from Kaggle; --help says '
                      'what PATH may be')
    folders = [source, source / 'ILSVRC/Data/CLS-LOC', source / 'Data/CLS-LOC']
    train = first(folders, 'train', Path.is_dir) or first(folders, TRAIN_TAR, Path.is_file)
    val = first(folders, 'val', Path.is_dir) or first(folders, VAL_TAR, Path.is_file)
    if bool(train) != bool(val):
        raise Mistake(f'{source} has {(train or val).name} but no {"val or " + VAL_TAR if train else TRAIN_TAR}; put '
                      'it there' + f', or pass --from {train} to hold out a share of it' * bool(train))
    if not train:
        print(f'{source} has no validation part: --val={args.val} of the pictures is held out')
        train = first([source], WHOLE_TARS[0], Path.is_file) or first([source], WHOLE_TARS[1], Path.is_file) or source
    parts = [of_folder(train) if train.is_dir() else of_tar(train)]
    if val:
        parts.append(of_val_folder(val, folders) if val.is_dir() else of_val_tar(val, folders))
    total = None
    if all(isinstance(part, list) for part in parts):
        total, classes = sum(map(len, parts)), [{wnid for _, wnid, _ in part} for part in parts]
        if unknown := classes[-1] - classes[0]:
            raise Mistake(f'class {min(unknown)} is in {val} but has no training pictures; complete the training part')
    if val:
        meta = save_pack(args.out, dict(zip(('train', 'val'), parts)), total=total, **pack_options(args))
    else:
        meta = save_pack(args.out, ('train', 'val'), None, hold_out(*parts, args.val), total, **pack_options(args))
    found = [len(meta['classes'])] + [s['count'] for s in meta['splits'].values()]
    if val and found != [1000, 1_281_167, 50_000]:
        print('ImageNet-1K has 1,000 classes, 1,281,167 pictures for training and 50,000 for validation')


if __name__ == '__main__':
    run(main)
