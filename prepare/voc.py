"""Pictures with the true masks of their objects: PASCAL VOC 2012. For COCO there is prepare/coco.py.

    python prepare/voc.py --from VOCdevkit/VOC2012               # you have it; nothing is downloaded
    python analyze.py segment --ckpt=out/mine --dataset=voc

VOC2012 holds JPEGImages, SegmentationObject, SegmentationClass and ImageSets/Segmentation, with
train.txt and val.txt. The label of a picture is the class of the object that shows the most pixels;
pictures without objects are left out.

Expect of VOC 2012 1,464 pictures for training (train) and 1,449 for validation (val), 20 classes.
"""

import lib  # noqa: F401 (first: it says what to type where a library is missing)
import numpy as np

from lib.inputs import dataset, local, reading
from lib.pictures import PACK, labelled, pack
from tasks.decode import open_picture
from tasks.masks import UNKNOWN

CLASSES = ['aeroplane', 'bicycle', 'bird', 'boat', 'bottle', 'bus', 'car', 'cat', 'chair', 'cow', 'diningtable', 'dog',
           'horse', 'motorbike', 'person', 'pottedplant', 'sheep', 'sofa', 'train', 'tvmonitor']


def pictures(folder, split):
    """(name, label, path, (numbers, classes of the objects)) of the pictures that a list of VOC names."""
    with reading(f'{folder} is not the whole folder VOC2012; for a folder like COCO\'s: python prepare/coco.py'):
        for name in (folder / 'ImageSets' / 'Segmentation' / f'{split}.txt').read_text(encoding='ascii').split():
            objects, kinds = (np.asarray(open_picture(folder / place / f'{name}.png'))
                              for place in ('SegmentationObject', 'SegmentationClass'))
            classes = {m: int(np.bincount(kinds[objects == m]).argmax()) - 1
                       for m in np.unique(objects) if 0 < m < UNKNOWN}
            assert all(0 <= kind < len(CLASSES) for kind in classes.values()), f'{name} has an object of no class'
            yield from labelled(f'{name}.jpg', f'{folder}/JPEGImages/{name}.jpg', objects, classes)


@dataset(__name__, 'data/voc', local('the folder VOC2012', required=True), *PACK)
def main(args):
    splits = {split: pictures(args.source, split) for split in ('train', 'val')}
    pack(args, splits, CLASSES)
