"""Small pictures, archives and folders for the tests of prepare/, and what the scripts made of
them."""
import io
import json
import struct
import zlib

import numpy as np
from downloads import tar
from PIL import Image

from tasks.masks import Masks
from tasks.pictures import ImageSplit

RNG = np.random.default_rng(0)

# ---- files


def saved(image, kind, **options):
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def jpeg(width=40, height=30, colour=None, kind='JPEG', **options):
    """The bytes of a picture file: one colour, or noise."""
    pixels = RNG.integers(0, 256, (height, width, 3), np.uint8)
    if colour is not None:
        pixels[:] = colour
    return saved(Image.fromarray(pixels), kind, **options)


def png(numbers, palette=False):
    image = Image.fromarray(np.asarray(numbers))
    if palette:
        image.putpalette([i * 7 % 256 for i in range(768)])
    return saved(image, 'PNG')


def huge_png(side=30_000):
    """A PNG file that says it has so many rows and columns."""
    file = bytearray(jpeg(8, 8, kind='PNG'))
    file[16:24] = struct.pack('>II', side, side)
    file[29:33] = struct.pack('>I', zlib.crc32(file[12:29]))
    return bytes(file)


def npy(array):
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


def tree(root, files):
    """{relative path: bytes} as files below root; returns root."""
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    return root


def squares(*places, shape=(30, 40)):
    """A mask: a square of 8 x 8 pixels for each (m, row, column)."""
    numbers = np.zeros(shape, np.uint8)
    for m, r, c in places:
        numbers[r:r + 8, c:c + 8] = m
    return numbers


def voc_files(objects, kinds):
    files = {}
    for split, name in ('train', 'x'), ('val', 'y'):
        files |= {f'ImageSets/Segmentation/{split}.txt': name.encode(),
                  f'JPEGImages/{name}.jpg': jpeg(),
                  f'SegmentationObject/{name}.png': png(objects, palette=True),
                  f'SegmentationClass/{name}.png': png(kinds, palette=True)}
    return files


def coco_files(annotations, name='instances_val2017', folder='val2017', shape=(30, 40), **more):
    size = dict(zip(('height', 'width'), shape))
    images = [{'id': 7, 'file_name': 'p.jpg'} | size, {'id': 9, 'file_name': 'q.jpg'} | size]
    categories = [{'id': 18, 'name': 'dog'}, {'id': 3, 'name': 'car'}]
    content = {'images': images, 'categories': categories, 'annotations': annotations} | more
    pictures = {f'{folder}/{picture}.jpg': jpeg() for picture in 'pq'}
    return {f'annotations/{name}.json': json.dumps(content).encode()} | pictures


def thing(form, kind=3, area=50, crowd=0):
    return {'image_id': 7, 'category_id': kind, 'segmentation': form, 'area': area,
            'iscrowd': crowd}


def box(r, c, side):
    return [[c, r, c + side - 1, r, c + side - 1, r + side - 1, c, r + side - 1]]


def subset(number, packs=3, documents=20):
    """An archive of OpenWebText, xz-compressed tars of documents, some of which need cleaning or
    are not UTF-8."""
    files = {'openwebtext/README': b'not a pack of documents'}
    for k in range(packs):
        inner = {f'{i}.txt': document(number, k, i) for i in range(documents)}
        inner['notes.md'] = b'not a document'
        files[f'openwebtext/urlsf_subset{number:02}-{k}_data.xz'] = tar(inner, 'xz')
    return tar(files)


def document(subset, pack, i):
    """A document whose text says where it is from."""
    text = f'  Document {subset}-{pack}-{i}.\n\n\n\nnaïve words ' + 'words ' * (i % 7) + '\n'
    return text.encode() + b'\xff\xfe' * (i % 10 == 3)


# ---- datasets


def arrays(out):
    """meta.json, {split: {name: array}} of a dataset."""
    meta = json.loads((out / 'meta.json').read_text())
    assert {*meta['files']} == {path.name for path in out.glob('*.npy')}
    splits = {}
    for split in meta['splits']:
        paths = out.glob(f'{split}.*.npy')
        splits[split] = {path.name.split('.')[1]: np.load(path) for path in paths}
    return meta, splits


def read(out):
    """A pack -> meta, {split: [(name, label, JPEG bytes)]}. Checks types, shapes, counts and labels
    of its files."""
    meta, arrays_of = arrays(out)
    splits = {}
    for split, named in arrays_of.items():
        ImageSplit(out, split)  # which checks them
        offsets = named['offsets']
        assert offsets[0] == 0 and offsets[-1] == len(named['jpeg'])
        splits[split] = []
        for i, (name, label) in enumerate(zip(named['names'], named['labels'], strict=True)):
            content = bytes(named['jpeg'][offsets[i]:offsets[i + 1]])
            splits[split].append((name.decode(), int(label), content))
    return meta, splits


def decoded(content, mode='RGB'):
    image = Image.open(io.BytesIO(content))
    image.load()
    assert image.format == 'JPEG' and image.mode == mode
    return image


def names(pictures):
    return [name for name, *_ in pictures]


def with_masks(out, split):
    """[(name, class, mask, classes of its objects)] of a prepared split, and all classes."""
    images = ImageSplit(out, split)
    classes = images.classes
    masks = Masks(images)
    rows = []
    for i, name in enumerate(np.load(out / f'{split}.names.npy')):
        mask, objects = masks[i]
        named = [classes[k] for k in objects]
        rows.append((name.decode(), classes[images.labels[i]], mask, named))
    return rows, classes
