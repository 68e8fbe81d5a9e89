"""Pictures with the true masks of their objects, from a folder like COCO's (Lin et al. 2014).

    python prepare/coco.py --from coco               # you have it; nothing is downloaded
    python analyze.py segment --ckpt=out/mine --dataset=coco

The folder holds annotations/instances_SPLIT.json and the pictures in SPLIT or images/SPLIT, such as
annotations/instances_val2017.json and val2017. Polygons and lists of run lengths are both read, crowds
are unknown pixels, and where objects overlap the smaller one is in front. The label of a picture is
the class of the object that shows the most pixels; pictures without objects are left out.
"""
import json
from collections import defaultdict

import lib  # noqa: F401 (first: it says what to type where a library is missing)
import numpy as np

from lib.inputs import Mistake, dataset, local, reading
from lib.pictures import PACK, labelled, pack
from tasks.masks import UNKNOWN

MOST_OBJECTS = UNKNOWN - 1  # of a picture


def splits(folder):
    """({'train' or 'val' or 'test': pictures as save_pack takes them}, names of the classes) of all files of a
    folder. Raises Mistake for one that does not fit, and if there is none."""
    found, names = {}, None
    for path in sorted((folder / 'annotations').glob('instances_*.json')):
        part = path.stem.removeprefix('instances_')
        split = next((s for s in ('train', 'val', 'test') if part.startswith(s)), None)
        place = next((p for p in (folder / part, folder / 'images' / part) if p.is_dir()), None)
        if split is None or place is None:
            continue
        with reading(f"{path} is no file of instances as COCO's"):
            held = json.loads(path.read_text(encoding='utf-8'))
            kinds = {kind['id']: kind['name'] for kind in held['categories']}
            assert split not in found, f'it is a second file for {split}'
            assert names in (None, kinds), 'it has other categories than the file before'
            objects = defaultdict(list)
            for thing in held['annotations']:
                objects[thing['image_id']].append(thing)
            names = kinds
            labels = {kind: i for i, kind in enumerate(sorted(kinds))}
            pictures = [(p, objects[p['id']]) for p in held['images']]
            found[split] = of_split(path, place, pictures, labels)
    if not found:
        raise Mistake(f'{folder} has no annotations/instances_SPLIT.json beside pictures; give another --from')
    return found, [names[k] for k in sorted(names)]


def of_split(path, place, pictures, labels):
    """(name, label, path, (numbers, classes of the objects)) of each picture with objects. pictures: its entry in the
    file, and those of its objects; labels: {category: class}."""
    for picture, things in pictures:
        name = picture['file_name']
        with reading(f'{path}: picture {name} has a mask that is neither polygons nor a list of run lengths, or more '
                     f'than {MOST_OBJECTS} objects'):
            numbers, classes = np.zeros((picture['height'], picture['width']), np.uint8), {}
            for thing in sorted(things, key=lambda t: (not t['iscrowd'], -t['area'])):  # crowds, then large to small
                if not thing['iscrowd']:
                    classes[len(classes) + 1] = labels[thing['category_id']]
                assert len(classes) <= MOST_OBJECTS
                shown = mask_of(thing['segmentation'], numbers.shape)
                numbers[shown] = UNKNOWN if thing['iscrowd'] else len(classes)
            yield from labelled(name, f'{place}/{name}', numbers, classes)


def mask_of(form, size):
    """A segmentation of COCO as a mask, bool (H, W): polygons [x, y, x, y, ..], or the number of pixels that are out,
    in, out, .., column by column. Pixels on an edge belong to a polygon; COCO's own reader leaves some of them out."""
    if isinstance(form, dict):
        inside = np.arange(len(form['counts'])) % 2 == 1
        return inside.repeat(form['counts']).reshape(form['size'][::-1]).T
    from PIL import Image, ImageDraw
    image = Image.new('1', size[::-1])
    for polygon in form:
        ImageDraw.Draw(image).polygon(polygon, fill=1)
    return np.array(image)


@dataset(__name__, 'data/coco', local("a folder like COCO's", required=True), *PACK)
def main(args):
    pack(args, *splits(args.source))
