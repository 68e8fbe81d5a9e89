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
from engine.settings import Mistake
from prepare.lib.command_line import parse, run
from prepare.lib.masks import compact, largest, same_size, upright_size
from prepare.lib.pictures import pack_options, pack_parser, save_pack
from tasks.masks import UNKNOWN, read_png

CLASSES = ['aeroplane', 'bicycle', 'bird', 'boat', 'bottle', 'bus', 'car', 'cat', 'chair', 'cow', 'diningtable', 'dog',
           'horse', 'motorbike', 'person', 'pottedplant', 'sheep', 'sofa', 'train', 'tvmonitor']


def pictures(folder, split):
    """(name, label, path, (numbers, classes of the objects)) of the pictures that a list of VOC names."""
    for name in read(folder / 'ImageSets' / 'Segmentation' / f'{split}.txt').decode(errors='replace').split():
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
        if classes:
            numbers, classes = compact(objects, classes)
            yield f'{name}.jpg', largest(numbers, classes), str(picture), (numbers, classes)


def read_mask(path, size):
    """A mask as numbers, uint8 (H, W)."""
    numbers = read_png(read(path), path)
    if numbers.dtype != np.uint8:
        raise Mistake(f'mask {path} is {numbers.dtype}, not one byte for each pixel; get it again')
    same_size(numbers.shape, path, size)
    return numbers


def read(path):
    try:
        return path.read_bytes()
    except (OSError, ValueError) as e:  # ValueError: a zero byte in a name
        raise Mistake(f'{path} cannot be read ({e}); give another --from, or unpack the archive again. For a folder '
                      "like COCO's: python prepare/coco.py") from None


def main(argv=None):
    args = parse(pack_parser(__doc__, 'data/voc', 'the folder VOC2012', required=True), argv)
    splits = {split: pictures(Path(args.source), split) for split in ('train', 'val')}
    save_pack(args.out, splits, CLASSES, **pack_options(args))


if __name__ == '__main__':
    run(main)
