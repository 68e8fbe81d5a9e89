"""Pictures with the true masks of their objects, from a folder like COCO's (Lin et al. 2014).

    python prepare/coco.py --from coco               # you have it; nothing is downloaded
    python analyze.py segment --ckpt=out/mine --dataset=coco

The folder holds annotations/instances_SPLIT.json and the pictures in SPLIT or images/SPLIT, such as
annotations/instances_val2017.json and val2017. Polygons and lists of run lengths are both read, crowds
are unknown pixels, and where objects overlap the smaller one is in front. The label of a picture is
the class of the object that shows the most pixels; pictures without objects are left out.
"""  # noqa: E501 (--help shows it)
import json
from collections import defaultdict

import lib  # noqa: F401 (first: it says what to type where a library is missing)
import numpy as np

from lib.inputs import Mistake, arguments, first_path, local, reading, run
from lib.pictures import PACK, labelled, save_pack
from tasks.masks import UNKNOWN

MOST_OBJECTS = UNKNOWN - 1  # of a picture


def read_splits(folder):
    """({'train' or 'val' or 'test': pictures as save_pack takes them}, names of the classes) of all
    files of a folder. Raises Mistake for a file that does not fit, and if there is none."""
    splits = {}
    names = None
    for path in sorted((folder / 'annotations').glob('instances_*.json')):
        stem = path.stem.removeprefix('instances_')  # such as val2017
        split = next((s for s in ('train', 'val', 'test') if stem.startswith(s)), None)
        place = first_path([folder, folder / 'images'], stem)
        if split is None or place is None:
            continue
        with reading(f"{path} is no file of instances as COCO's"):
            content = json.loads(path.read_text(encoding='utf-8'))
            categories = {row['id']: row['name'] for row in content['categories']}
            if split in splits:
                raise Mistake(f'{path} is a second file for {split}; remove one of them')
            if names not in (None, categories):
                raise Mistake(f'{path} has other categories than the file before; remove one')
            objects = defaultdict(list)
            for row in content['annotations']:
                objects[row['image_id']].append(row)
            names = categories
            pictures = [(row, objects[row['id']]) for row in content['images']]
            labels = {category: i for i, category in enumerate(sorted(categories))}
            splits[split] = pictures_with_objects(path, place, pictures, labels)
    if not splits:
        raise Mistake(f'{folder} has no annotations/instances_SPLIT.json beside pictures; give '
                      'another --from')
    return splits, [names[category] for category in sorted(names)]


def pictures_with_objects(path, place, pictures, labels):
    """Yield (name, label, (numbers, classes of the objects), path) of each picture with objects.
    pictures: its entry in the file, and those of its objects; labels: {category: class}."""
    for picture, objects in pictures:
        name = picture['file_name']
        with reading(f'{path}: picture {name} has a mask that is neither polygons nor a list of '
                     f'run lengths, or more than {MOST_OBJECTS} objects'):
            size = picture['height'], picture['width']
            numbers, classes = draw(objects, size, labels)
            yield from labelled(name, f'{place}/{name}', numbers, classes)


def draw(objects, size, labels):
    """The objects of a picture: the number of the one that each pixel shows, uint8 (H, W), UNKNOWN
    for crowds; and {number: class}."""
    numbers = np.zeros(size, np.uint8)
    classes = {}
    # crowds are behind all objects, and larger objects are behind smaller ones
    for row in sorted(objects, key=lambda row: (not row['iscrowd'], -row['area'])):
        if not row['iscrowd']:
            classes[len(classes) + 1] = labels[row['category_id']]
        if len(classes) > MOST_OBJECTS:
            raise ValueError('too many objects')
        mask = mask_of(row['segmentation'], size)
        numbers[mask] = UNKNOWN if row['iscrowd'] else len(classes)
    return numbers, classes


def mask_of(segmentation, size):
    """A segmentation of COCO as a mask, bool (H, W). It is polygons [x, y, x, y, ..]; or the number
    of pixels that are out, in, out, .., column by column. Pixels on an edge belong to a polygon;
    COCO's own reader leaves some of them out."""
    if isinstance(segmentation, dict):
        counts = segmentation['counts']
        inside = np.arange(len(counts)) % 2 == 1
        return inside.repeat(counts).reshape(segmentation['size'][::-1]).T
    from PIL import Image, ImageDraw
    image = Image.new('1', size[::-1])
    for polygon in segmentation:
        ImageDraw.Draw(image).polygon(polygon, fill=1)
    return np.array(image)


def main(argv=None):
    args = arguments(
        __doc__, argv,
        local("a folder like COCO's", required=True),
        *PACK,
        out='data/coco')
    splits, classes = read_splits(args.source)
    save_pack(args, splits, classes)


if __name__ == '__main__':
    run(main)
