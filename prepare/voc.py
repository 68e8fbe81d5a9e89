"""Pictures with the true masks of their objects: PASCAL VOC 2012. For COCO there is prepare/coco.py.

    python prepare/voc.py --from VOCdevkit/VOC2012               # you have it; nothing is downloaded
    python analyze.py segment --ckpt=out/mine --dataset=voc

VOC2012 holds JPEGImages, SegmentationObject, SegmentationClass and ImageSets/Segmentation, with
train.txt and val.txt. The label of a picture is the class of the object that shows the most pixels;
pictures without objects are left out.

Expect of VOC 2012 1,464 pictures for training (train) and 1,449 for validation (val), 20 classes.
"""
from pathlib import Path

import numpy as np

from lib.archives import reading
from lib.command_line import parse, run
from lib.pictures import labelled, pack_options, pack_parser, save_pack
from tasks.masks import UNKNOWN, read_png

CLASSES = ['aeroplane', 'bicycle', 'bird', 'boat', 'bottle', 'bus', 'car', 'cat', 'chair', 'cow', 'diningtable', 'dog',
           'horse', 'motorbike', 'person', 'pottedplant', 'sheep', 'sofa', 'train', 'tvmonitor']


def pictures(folder, split):
    """(name, label, path, (numbers, classes of the objects)) of the pictures that a list of VOC names."""
    with reading(f'{folder} is not the whole folder VOC2012; for a folder like COCO\'s: python prepare/coco.py'):
        for name in (folder / 'ImageSets' / 'Segmentation' / f'{split}.txt').read_text(encoding='ascii').split():
            objects, kinds = (read_png((folder / place / f'{name}.png').read_bytes(), name)
                              for place in ('SegmentationObject', 'SegmentationClass'))
            classes = {m: int(np.bincount(kinds[objects == m]).argmax()) - 1
                       for m in np.unique(objects) if 0 < m < UNKNOWN}
            assert all(0 <= kind < len(CLASSES) for kind in classes.values()), f'{name} has an object of no class'
            yield from labelled(f'{name}.jpg', f'{folder}/JPEGImages/{name}.jpg', objects, classes)


def main(argv=None):
    args = parse(pack_parser(__doc__, 'data/voc', 'the folder VOC2012', required=True), argv)
    splits = {split: pictures(Path(args.source), split) for split in ('train', 'val')}
    save_pack(args.out, splits, CLASSES, **pack_options(args))


if __name__ == '__main__':
    run(main)
