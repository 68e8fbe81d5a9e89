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
import sys
import tarfile
from pathlib import Path, PurePosixPath

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from engine.settings import Mistake, one_line_errors
from prepare.lib.archives import ARCHIVE_ERRORS, Header, archive_error, file_in, files_of, tar_files
from prepare.lib.command_line import parse, share
from prepare.lib.folders import class_folders, pictures, same_classes, subfolders
from prepare.lib.pictures import pack_options, pack_parser, save_pack, save_stream
from tasks.decode import is_picture

TRAIN_TAR, VAL_TAR = 'ILSVRC2012_img_train.tar', 'ILSVRC2012_img_val.tar'
WHOLE_TARS = ('winter21_whole.tar.gz', 'fall11_whole.tar')
SOLUTION, SYNSETS = 'LOC_val_solution.csv', 'imagenet_2012_validation_synset_labels.txt'
IN_TAR = 'WNID.tar or WNID/*.JPEG in the archive'

# ---- archives -----------------------------------------------------------------------------------


def tar_pictures(path):
    """Yield (WNID/name, WNID, bytes) of the pictures in a tar of WNID.tar or WNID/*.JPEG."""
    for name, content in tar_files(path, is_picture, IN_TAR):
        wnid, file = PurePosixPath(name).parent.name, PurePosixPath(name).name
        if not wnid:
            raise Mistake(f'{path} has {name} in no class folder; expected {IN_TAR}')
        yield f'{wnid}/{file}', wnid, content


def tar_list(path, expected):
    """(the open archive, its files). It must not be compressed: files are read in any order."""
    try:
        tar = tarfile.open(path, 'r:', tarinfo=Header)
        return tar, list(files_of(tar))
    except ARCHIVE_ERRORS as e:
        raise archive_error(path, e, expected) from None


def tar_classes(path):
    tar, members = tar_list(path, IN_TAR)
    tar.close()
    names = [PurePosixPath(m.name) for m in members]
    return sorted({n.stem for n in names if n.suffix == '.tar'} | {n.parent.name for n in names if is_picture(n)})


def tar_read(path, tar, members):
    for member in members:
        try:
            yield file_in(tar, member)
        except ARCHIVE_ERRORS as e:
            raise archive_error(path, e, 'a whole one') from None


# ---- validation labels --------------------------------------------------------------------------


def read_labels(folders, names, where):
    """The WNID of each validation picture. names: sorted file names; folders: where labels may
    be."""
    for path in (Path(folder, file) for folder in folders for file in (SOLUTION, SYNSETS)):
        if not path.is_file():
            continue
        lines = path.read_text(encoding='utf-8', errors='replace').splitlines()  # Kaggle's has 2 MB
        if path.name == SYNSETS:
            wnids = [line.strip() for line in lines if line.strip()]
            if len(wnids) != len(names):
                raise Mistake(f'{path} has {len(wnids):,} labels, but {where} {len(names):,} pictures')
            return wnids
        # after the column names: `ILSVRC2012_val_00048981,n03995372 85 1 499 272`, class and box
        cells = (line.partition(',') for line in lines[1:])
        by_name = {name: rest.split()[0] for name, _, rest in cells if rest.strip()}
        missing = [name for name in names if PurePosixPath(name).stem not in by_name]
        if missing or len(by_name) != len(names):
            of = f'none for {missing[0]}' if missing else 'more than pictures'
            raise Mistake(f'{path} has {len(by_name):,} labels, {of}, but {where} {len(names):,} pictures')
        return [by_name[PurePosixPath(name).stem] for name in names]
    raise Mistake(f'the pictures of {where} are in no class folders, so their labels are needed: put {SOLUTION} or '
                  f'{SYNSETS} in {folders[0]}')


def check_known(wnids, classes, where):
    unknown = sorted(set(wnids) - set(classes))
    if unknown:
        raise Mistake(f'class {unknown[0]} is in {where} but has no training pictures; complete the training part')


# ---- layouts ------------------------------------------------------------------------------------


def train_part(folder):
    """A folder of class folders, or a tar -> (classes, number of pictures or None, iterable of
    (name, label, source))."""
    if folder.is_dir():
        found = class_folders(folder)
        listed = pictures(folder, found)
        return list(found), len(listed), listed
    classes = tar_classes(folder)
    if not classes:
        raise Mistake(f'{folder} holds no class; expected {IN_TAR}')
    number = {c: i for i, c in enumerate(classes)}
    return classes, None, ((name, number[wnid], content) for name, wnid, content in tar_pictures(folder))


def val_part(folder, classes, folders):
    """-> (number of pictures, iterable of (name, label, source)), in the order of file names."""
    number = {c: i for i, c in enumerate(classes)}
    if folder.is_dir() and subfolders(folder):
        found = class_folders(folder)
        same_classes(folder.parent, dict.fromkeys(classes), {folder.name: found})
        listed = sorted(pictures(folder, found), key=lambda picture: (PurePosixPath(picture[0]).name, picture[0]))
        return len(listed), listed
    if folder.is_dir():
        names = sorted(p.name for p in folder.iterdir() if is_picture(p.name))
        sources = (str(folder / name) for name in names)
    else:
        tar, members = tar_list(folder, 'a tar of validation pictures')
        members = sorted((m for m in members if is_picture(m.name)), key=lambda m: PurePosixPath(m.name).name)
        names, sources = [PurePosixPath(m.name).name for m in members], tar_read(folder, tar, members)
    if not names:
        raise Mistake(f'{folder} holds no pictures')
    wnids = read_labels(folders, names, folder)
    check_known(wnids, classes, folder)
    return len(names), ((name, number[wnid], source) for name, wnid, source in zip(names, wnids, sources))


def hold_out(stream, val_share):
    """(name, WNID, source) -> (split, name, WNID, source). About that share of the pictures, chosen
    by the sha256 of their names, goes to val. The first of each class goes to train, so that no
    class is only in val."""
    seen = set()
    for name, wnid, source in stream:
        low = int(hashlib.sha256(name.encode('utf-8', 'surrogateescape')).hexdigest()[:12], 16) < val_share * 16 ** 12
        yield 'val' if low and wnid in seen else 'train', name, wnid, source
        seen.add(wnid)


def whole(source):
    """A 21K archive, or a folder of class folders -> (number of pictures or None, iterable of
    (name, WNID, source))."""
    if source.is_file():
        return None, tar_pictures(source)
    found = class_folders(source, 'imagenet.py --help says what PATH may be')
    listed = ((f'{c}/{name}', c, f'{source}/{c}/{name}') for c in found for name in found[c])
    return sum(map(len, found.values())), listed


def first(folders, name, test):
    return next((Path(f, name) for f in folders if test(Path(f, name))), None)


def main(argv=None):
    p = pack_parser(__doc__, 'data/imagenet')
    p.add_argument('--from', dest='source', metavar='PATH', help='a folder, or an archive of ImageNet-21K')
    p.add_argument('--val', type=share, default=0.005,
                   help='share held out if there is no validation part (default: %(default)s)')
    args = parse(p, argv)
    if args.source is None:
        raise Mistake('--from is missing. ImageNet needs an account: get it from https://image-net.org, or the '
                      '"imagenet-object-localization-challenge" from Kaggle, and pass --from PATH; --help says what '
                      'PATH may be')
    source = Path(args.source)
    if not source.is_dir() and not source.is_file():
        raise Mistake(f'--from {source}: no such file or folder')
    folders = [source, source / 'ILSVRC/Data/CLS-LOC', source / 'Data/CLS-LOC']
    train = first(folders, 'train', Path.is_dir) or first(folders, TRAIN_TAR, Path.is_file)
    val = first(folders, 'val', Path.is_dir) or first(folders, VAL_TAR, Path.is_file)
    if bool(train) != bool(val):
        have, lack = (train, f'val or {VAL_TAR}') if train else (val, f'train or {TRAIN_TAR}')
        raise Mistake(f'{source} has {have.name} but no {lack}; put it there'
                      + (f', or pass --from {train} to hold out a share of it' if train else ''))
    if train:
        classes, n_train, train_pictures = train_part(train)
        n_val, val_pictures = val_part(val, classes, folders)
        print(f'{len(classes):,} classes; {"" if n_train is None else f"{n_train:,} pictures for training, "}'
              f'{n_val:,} for validation')
        meta = save_pack(args.out, {'train': train_pictures, 'val': val_pictures}, classes,
                         total=n_train and n_train + n_val, **pack_options(args))
        found = [len(classes)] + [s['count'] for s in meta['splits'].values()]
        if found != [1000, 1_281_167, 50_000]:
            print('ImageNet-1K has 1,000 classes, 1,281,167 pictures for training and 50,000 for validation; this has '
                  + ', '.join(f'{n:,}' for n in found))
    else:
        archives = (first([source], name, Path.is_file) for name in WHOLE_TARS)
        source = source if source.is_file() else next(filter(None, archives), source)
        print(f'{source} has no validation part: --val={args.val} of the pictures is held out')
        total, stream = whole(source)
        save_stream(args.out, ['train', 'val'], hold_out(stream, args.val), total=total, **pack_options(args))


if __name__ == '__main__':
    with one_line_errors():
        main()
