"""Pictures with the true masks of their objects: PASCAL VOC 2012. For COCO there is prepare/coco.py.

    python prepare/voc.py --from VOCdevkit/VOC2012               # you have it; nothing is downloaded
    python analyze.py segment --ckpt=out/mine --dataset=voc

VOC2012 holds JPEGImages, SegmentationObject, SegmentationClass and ImageSets/Segmentation, with
train.txt and val.txt. The label of a picture is the class of the object that shows the most pixels;
pictures without objects are left out.

Expect of VOC 2012 1,464 pictures for training (train) and 1,449 for validation (val), 20 classes.
"""  # noqa: E501 (--help shows it)
import lib  # noqa: F401 (first: it says what to type where a library is missing)
import numpy as np

from lib.inputs import arguments, local, reading, run
from lib.pictures import PACK, labelled, save_pack
from tasks.decode import open_picture
from tasks.masks import UNKNOWN

CLASSES = ['aeroplane', 'bicycle', 'bird', 'boat', 'bottle', 'bus', 'car', 'cat', 'chair', 'cow',
           'diningtable', 'dog', 'horse', 'motorbike', 'person', 'pottedplant', 'sheep', 'sofa',
           'train', 'tvmonitor']


def read_pictures(folder, split):
    """Yield (name, label, (numbers, classes of the objects), path) of the pictures that a list of
    VOC names. Raises Mistake if a file is missing or does not fit."""
    with reading(f"{folder} is not the whole folder VOC2012; for a folder like COCO's: python "
                 'prepare/coco.py'):
        names = folder / 'ImageSets' / 'Segmentation' / f'{split}.txt'
        for name in names.read_text(encoding='ascii').split():
            objects = np.asarray(open_picture(folder / 'SegmentationObject' / f'{name}.png'))
            kinds = np.asarray(open_picture(folder / 'SegmentationClass' / f'{name}.png'))
            classes = {}
            for number in np.unique(objects):
                if 0 < number < UNKNOWN:
                    pixels = kinds[objects == number]
                    kind = int(np.bincount(pixels).argmax()) - 1  # the most frequent
                    if not 0 <= kind < len(CLASSES):
                        raise ValueError(f'{name} has an object of no class')
                    classes[number] = kind
            path = f'{folder}/JPEGImages/{name}.jpg'
            yield from labelled(f'{name}.jpg', path, objects, classes)


def main(argv=None):
    args = arguments(
        __doc__, argv,
        local('the folder VOC2012', required=True),
        *PACK,
        out='data/voc')
    splits = {split: read_pictures(args.source, split) for split in ('train', 'val')}
    save_pack(args, splits, CLASSES)


if __name__ == '__main__':
    run(main)
