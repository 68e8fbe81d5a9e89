"""Pictures with the true masks of their objects: PASCAL VOC 2012. For COCO there is prepare/coco.py.

    python prepare/voc.py --from VOCdevkit/VOC2012               # you have it; nothing is downloaded
    python analyze.py segment --ckpt=out/mine --dataset=voc

VOC2012 holds JPEGImages, SegmentationObject, SegmentationClass and ImageSets/Segmentation, with
train.txt and val.txt. The label of a picture is the class of the object that shows the most pixels;
pictures without objects are left out.

Expect of VOC 2012 1,464 pictures for training (train) and 1,449 for validation (val), 20 classes.
"""
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from engine.settings import Mistake, one_line_errors
from prepare.lib.command_line import parse
from prepare.lib.masks import compact, largest, upright_size
from prepare.lib.pictures import pack_options, pack_parser, save_pack
from tasks.masks import UNKNOWN, read_png

CLASSES = ['aeroplane', 'bicycle', 'bird', 'boat', 'bottle', 'bus', 'car', 'cat', 'chair', 'cow', 'diningtable', 'dog',
           'horse', 'motorbike', 'person', 'pottedplant', 'sheep', 'sofa', 'train', 'tvmonitor']
LISTS = Path('ImageSets', 'Segmentation')


def read_mask(path, size):
    """A mask of VOC as numbers, uint8 (H, W)."""
    if not path.exists():
        raise Mistake(f'No such file: {path}; unpack the archive again')
    numbers = read_png(Path(path).read_bytes(), path)
    if numbers.dtype != np.uint8 or numbers.ndim != 2 or size and numbers.shape != tuple(size):
        raise Mistake(f'mask {path} is {numbers.dtype} {numbers.shape}, not uint8 {size or "(height, width)"}, one '
                      'number for each pixel of its picture; get it again')
    return numbers


def names_in(path):
    """The names in a list of VOC."""
    try:
        names = path.read_text(encoding='utf-8-sig').split()
    except UnicodeDecodeError as e:
        raise Mistake(f'{path} is no text in UTF-8 ({e}); get it again') from None
    if any('\0' in name for name in names):
        raise Mistake(f'{path} has a name with a zero byte; get it again')
    return names


def voc(folder, names):
    """(name, label, path, (numbers, classes of the objects)) of pictures of VOC, by name."""
    for name in names:
        picture = folder / 'JPEGImages' / f'{name}.jpg'
        size = upright_size(picture) if picture.exists() else None
        path = folder / 'SegmentationObject' / f'{name}.png'
        objects, kinds = read_mask(path, size), read_mask(folder / 'SegmentationClass' / f'{name}.png', size)
        classes = [0] * int(objects[objects < UNKNOWN].max(initial=0))
        for m in np.unique(objects[(objects > 0) & (objects < UNKNOWN)]):
            found = np.bincount(kinds[objects == m]).argmax() - 1
            if not 0 <= found < len(CLASSES):
                raise Mistake(f'mask {path}: object {m} has the unknown class {found + 1}, of 1 to {len(CLASSES)}; '
                              'get it again')
            classes[m - 1] = int(found)
        if any(objects[objects < UNKNOWN]):
            numbers, classes = compact(objects, classes)
            yield f'{name}.jpg', largest(numbers, classes), str(picture), (numbers, classes)


def main(argv=None):
    p = pack_parser(__doc__, 'data/voc')
    p.add_argument('--from', dest='source', metavar='FOLDER', required=True, help='the folder VOC2012')
    args = parse(p, argv)
    folder = Path(args.source)
    lists = {split: folder / LISTS / f'{split}.txt' for split in ('train', 'val')}
    if not all(path.is_file() for path in lists.values()):
        raise Mistake(f'{folder} lacks {LISTS}/train.txt and val.txt, which VOC2012 has; give another --from, or for '
                      "a folder like COCO's: python prepare/coco.py")
    splits = {split: voc(folder, names_in(path)) for split, path in lists.items()}
    save_pack(args.out, splits, CLASSES, **pack_options(args))


if __name__ == '__main__':
    with one_line_errors():
        main()
