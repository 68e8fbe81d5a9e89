"""Small pictures, archives and folders for the tests of prepare/, and a check of what it wrote."""
import io
import json

import downloads
import numpy as np
from PIL import Image

RNG = np.random.default_rng(0)


def jpeg(width=40, height=30, colour=None, kind='JPEG', **options):
    """The bytes of a picture file: one colour, or noise."""
    pixels = RNG.integers(0, 256, (height, width, 3), np.uint8)
    if colour is not None:
        pixels[:] = colour
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, kind, **options)
    return out.getvalue()


def saved(image, kind, **options):
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def tar(path, files, compression=''):
    """A tar archive of {name: bytes} at path; returns path."""
    path.write_bytes(downloads.tar(files, compression))
    return path


def tree(root, files):
    """{relative path: bytes} as files below root; returns root."""
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    return root


def read(out):
    """A pack -> meta, {split: [(name, label, JPEG bytes)]}. Checks types, shapes and counts of its files."""
    meta = json.loads((out / 'meta.json').read_text())
    assert meta['kind'] == 'images' and meta['storage'] == 'pack'
    splits = {}
    for split, s in meta['splits'].items():
        content, offsets, labels, names = (np.load(out / f'{split}.{a}.npy', mmap_mode='r')
                                           for a in ('jpeg', 'offsets', 'labels', 'names'))
        n = s['count']
        assert content.dtype == np.uint8 and content.shape == (s['bytes'],)
        assert offsets.dtype == labels.dtype == np.int64
        assert labels.shape == names.shape == (n,) and offsets.shape == (n + 1,) and names.dtype.kind == 'S'
        assert offsets[0] == 0 and offsets[-1] == s['bytes'] and (np.diff(offsets) > 0).all()
        assert labels.min() >= 0 and labels.max() < len(meta['classes'])
        jpegs = [bytes(content[a:b]) for a, b in zip(offsets, offsets[1:])]
        splits[split] = [(name.decode(), int(label), j) for name, label, j in zip(names, labels, jpegs)]
    assert len(list(out.iterdir())) == 1 + 4 * len(splits)
    return meta, splits


def decoded(content, mode='RGB'):
    image = Image.open(io.BytesIO(content))
    image.load()
    assert image.format == 'JPEG' and image.mode == mode
    return image


def names(pictures):
    return [name for name, _, _ in pictures]


def labels(pictures):
    return [label for _, label, _ in pictures]
