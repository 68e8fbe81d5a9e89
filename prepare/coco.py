"""Pictures with the true masks of their objects, from a folder like COCO's (Lin et al. 2014).

    python prepare/coco.py --from coco               # you have it; nothing is downloaded
    python analyze.py segment --ckpt=out/mine --dataset=coco

The folder holds annotations/instances_SPLIT.json and the pictures in SPLIT or images/SPLIT, such as
annotations/instances_val2017.json and val2017. Polygons and run-length codes are both read, crowds
are unknown pixels, and where objects overlap the smaller one is in front. The label of a picture is
the class of the object that shows the most pixels; pictures without objects are left out.
"""
import json
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from engine.settings import Mistake, one_line_errors
from prepare.lib.command_line import parse
from prepare.lib.masks import compact, largest, upright_size
from prepare.lib.pictures import pack_options, pack_parser, save_pack
from tasks.masks import MOST_OBJECTS, UNKNOWN


def splits(folder):
    """({'train' or 'val' or 'test': pictures as save_pack takes them}, names of the classes) of all
    files of a folder; ({}, []) if there are none. Raises Mistake for one that does not fit."""
    found, names = {}, None
    for path in sorted(Path(folder, 'annotations').glob('instances_*.json')):
        folder_name = path.stem.removeprefix('instances_')
        split = next((s for s in ('train', 'val', 'test') if folder_name.startswith(s)), None)
        place = next((p for p in (folder / folder_name, folder / 'images' / folder_name) if p.is_dir()), None)
        if split is None or place is None:
            continue
        if split in found:
            raise Mistake(f'{path.parent} has more than one file for {split}; leave one of them there')
        try:
            held = json.loads(path.read_text(encoding='utf-8'))
            kinds = {int(k['id']): str(k['name']) for k in held['categories']}
            pictures = {int(p['id']): (str(p['file_name']), p.get('height'), p.get('width')) for p in held['images']}
            objects = {}
            for a in held['annotations']:
                objects.setdefault(int(a['image_id']), []).append(
                    (float(a['area']), bool(a.get('iscrowd', 0)), int(a['category_id']), a['segmentation']))
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as e:
            raise Mistake(f"{path} is no file of instances as COCO's ({type(e).__name__}: {str(e)[:80]}); get it "
                          'again') from None
        if names not in (None, kinds):
            raise Mistake(f'{path} has other categories than the file before it; give files of one dataset')
        names = kinds
        found[split] = of_split(path, place, pictures, objects, {k: i for i, k in enumerate(sorted(kinds))})
    return found, [names[k] for k in sorted(names or {})]


def of_split(path, place, pictures, objects, labels):
    """(name, label, path, (numbers, classes of the objects)) of each picture with objects."""
    for i, (name, *stated) in pictures.items():
        source = place / name
        if '\0' in name or not source.resolve().is_relative_to(place.resolve()):
            raise Mistake(f'{path}: picture {i} lies outside of {place}: {name!r}')
        size = upright_size(source) if source.is_file() else None
        if size and None not in stated and stated != list(size):
            raise Mistake(f'{source} is {size[1]} x {size[0]} pixels when it is upright, and its masks in {path} are '
                          f'for {stated[1]} x {stated[0]}; get the picture again')
        mine = sorted(objects.get(i, []), key=lambda o: (not o[1], -o[0]))      # crowds, then from large to small
        if size is None and mine:
            yield name, 0, str(source), (np.zeros((1, 1), np.uint8), [])        # save_pack says that it is left out
            continue
        if len(mine) > MOST_OBJECTS:
            raise Mistake(f'{path}: picture {name} has {len(mine)} objects, of which {MOST_OBJECTS} can be held')
        numbers, classes = np.zeros(size or (1, 1), np.uint8), []
        for _, crowd, kind, form in mine:
            if kind not in labels:
                raise Mistake(f'{path}: picture {name} has an object of the unknown category {kind}')
            if not crowd:
                classes.append(labels[kind])
            numbers[mask_of(form, size, f'{path}: picture {name}')] = UNKNOWN if crowd else len(classes)
        numbers, classes = compact(numbers, classes)
        if classes:
            yield name, largest(numbers, classes), str(source), (numbers, classes)


def mask_of(form, size, what):
    """A segmentation of COCO, polygons or a run-length code, as a mask, bool (H, W)."""
    try:
        return polygons(form, size) if isinstance(form, list) else decode(form['counts'], form['size'], size)
    except (ValueError, KeyError, TypeError, IndexError, OverflowError) as e:
        raise Mistake(f'{what} has a mask that is neither polygons nor a run-length code of {size[1]} x {size[0]} '
                      f'pixels ({type(e).__name__}: {str(e)[:80]})') from None


def polygons(corners, size):
    """[x, y, x, y, ..] of each polygon. Pixels on an edge belong to it; COCO's own reader leaves some
    of them out."""
    from PIL import Image, ImageDraw
    image = Image.new('1', size[::-1])
    for points in corners:
        points = np.asarray(points, float)
        if points.size < 6 or points.size % 2 or not np.isfinite(points).all() or abs(points).max() > 2 ** 20:
            raise Mistake('a polygon needs three points')
        ImageDraw.Draw(image).polygon(points.tolist(), fill=1)
    return np.array(image)


def decode(counts, shape, size):
    """A run-length code: how many pixels are out, in, out, .., column by column. counts: a list, or
    COCO's text of it, six bits a letter, lowest first: five of the number, and one for whether it
    goes on. From the fourth number on the text has differences to the number two before."""
    if tuple(shape) != tuple(size):
        raise Mistake(f'the code is of {shape}')
    if isinstance(counts, str):
        letters, counts, value, shift = iter(counts.encode('ascii')), [], 0, 0
        for letter in letters:
            bits = letter - 48
            value |= (bits & 31) << shift
            shift += 5
            if not bits & 32:                                           # the last letter of this number
                if bits & 16:                                           # a negative one
                    value -= 1 << shift
                counts.append(value + (counts[-2] if len(counts) > 2 else 0))
                value = shift = 0
    counts, pixels = np.asarray(counts, np.int64), size[0] * size[1]
    if counts.ndim != 1 or ((counts < 0) | (counts > pixels)).any() or counts.sum() != pixels:
        raise Mistake('its runs are not as long as the picture')
    return (np.arange(len(counts)) % 2).repeat(counts).astype(bool).reshape(size[::-1]).T


def main(argv=None):
    p = pack_parser(__doc__, 'data/coco')
    p.add_argument('--from', dest='source', metavar='FOLDER', required=True, help="a folder like COCO's")
    args = parse(p, argv)
    found, classes = splits(Path(args.source))
    if not found:
        raise Mistake(f'{args.source} has no annotations/instances_SPLIT.json beside its pictures, as COCO has; give '
                      'another --from')
    save_pack(args.out, found, classes, **pack_options(args))


if __name__ == '__main__':
    with one_line_errors():
        main()
