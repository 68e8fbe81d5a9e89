"""Pictures with the true masks of their objects, from a folder like COCO's (Lin et al. 2014).

    python prepare/coco.py --from coco               # you have it; nothing is downloaded
    python analyze.py segment --ckpt=out/mine --dataset=coco

The folder holds annotations/instances_SPLIT.json and the pictures in SPLIT or images/SPLIT, such as
annotations/instances_val2017.json and val2017. Polygons and run-length codes are both read, crowds
are unknown pixels, and where objects overlap the smaller one is in front. The label of a picture is
the class of the object that shows the most pixels; pictures without objects are left out.
"""
import json
import re
from collections import defaultdict
from pathlib import Path

import numpy as np

from lib.archives import reading
from lib.command_line import Mistake, parse, run
from lib.masks import labelled
from lib.pictures import pack_options, pack_parser, save_pack
from tasks.masks import MOST_OBJECTS, UNKNOWN


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
            kinds = {int(k['id']): str(k['name']) for k in held['categories']}
            objects = defaultdict(list)
            for a in held['annotations']:
                objects[int(a['image_id'])].append(
                    (bool(a.get('iscrowd', 0)), float(a['area']), int(a['category_id']), a['segmentation']))
            pictures = [(str(p['file_name']), (int(p['height']), int(p['width'])), objects[int(p['id'])])
                        for p in held['images']]
        if split in found or names not in (None, kinds):
            raise Mistake(f'{path} is a second file for {split}, or has other categories than the file before; leave '
                          'files of one dataset there, one for each split')
        names = kinds
        found[split] = of_split(path, place, pictures, {k: i for i, k in enumerate(sorted(kinds))})
    if not found:
        raise Mistake(f'{folder} has no annotations/instances_SPLIT.json beside its pictures, as COCO has; give '
                      'another --from')
    return found, [names[k] for k in sorted(names)]


def of_split(path, place, pictures, labels):
    """(name, label, path, (numbers, classes of the objects)) of each picture with objects."""
    for name, size, objects in pictures:
        with reading(f'{path}: picture {name} has a mask that is neither polygons nor a run-length code of '
                     f'{size[1]} x {size[0]} pixels, an unknown category or more than {MOST_OBJECTS} objects'):
            numbers, classes = np.zeros(size, np.uint8), {}
            for crowd, _, kind, form in sorted(objects, key=lambda o: (not o[0], -o[1])):  # crowds, then large to small
                if not crowd:
                    classes[len(classes) + 1] = labels[kind]
                assert len(classes) <= MOST_OBJECTS
                numbers[mask_of(form, size)] = UNKNOWN if crowd else len(classes)
            yield from labelled(name, f'{place}/{name}', numbers, classes)


def mask_of(form, size):
    """A segmentation of COCO as a mask, bool (H, W): a run-length code, or polygons [x, y, x, y, ..]. Pixels on an edge
    belong to a polygon; COCO's own reader leaves some of them out."""
    if not isinstance(form, list):
        return decode(form['counts'], form['size'])
    from PIL import Image, ImageDraw
    image = Image.new('1', size[::-1])
    for polygon in form:
        ImageDraw.Draw(image).polygon(polygon, fill=1)
    return np.array(image)


def decode(counts, shape):
    """A run-length code of a mask (H, W): how many pixels are out, in, out, .., column by column. counts: a list, or
    COCO's text of it, six bits a letter, lowest first: five of the number, and one for whether it goes on. From the
    fourth number on the text has differences to the number two before."""
    if isinstance(counts, str):
        numbers, counts = re.findall('[P-o]*[0-O]', counts), []             # letters from P on go on
        for letters in numbers:
            value = sum((ord(letter) - 48 & 31) << 5 * i for i, letter in enumerate(letters))
            if ord(letters[-1]) - 48 & 16:                                  # a negative one
                value -= 1 << 5 * len(letters)
            counts.append(value + (counts[-2] if len(counts) > 2 else 0))
    assert sum(counts) == shape[0] * shape[1], 'its runs are not as long as the picture'
    return (np.arange(len(counts)) % 2).repeat(counts).astype(bool).reshape(shape[::-1]).T


def main(argv=None):
    args = parse(pack_parser(__doc__, 'data/coco', "a folder like COCO's", required=True), argv)
    found, classes = splits(Path(args.source))
    save_pack(args.out, found, classes, **pack_options(args))


if __name__ == '__main__':
    run(main)
