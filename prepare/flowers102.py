"""Oxford 102 Flowers (345 MB, from robots.ox.ac.uk): large pictures of 102 species.

    python prepare/flowers102.py                       # downloads 345 MB
    python prepare/flowers102.py --from FOLDER         # or reads your copies of its three files

Expect 1,020 pictures for training (train), 1,020 for validation (val) and 6,149 for testing (test),
102 classes. The classes are called 1 to 102, because the dataset has no names for them.
"""
import re
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from engine.settings import one_line_errors
from prepare.lib.archives import listed_pictures
from prepare.lib.command_line import parse
from prepare.lib.download import local_or_fetch
from prepare.lib.matlab import load_mat
from prepare.lib.pictures import pack_options, pack_parser, save_stream

URL = 'https://www.robots.ox.ac.uk/~vgg/data/flowers/102/'
FILES = {'102flowers.tgz': '52808999861908f626f3c1f4e79d11fa', 'setid.mat': 'a5357ecc9cb78c4bef273ce3793fc85c',
         'imagelabels.mat': 'e0620be6f572b9609742df49c70aed4d'}
SPLITS = {'train': 'trnid', 'val': 'valid', 'test': 'tstid'}


def whole_numbers(path, name):
    """An array of a .mat file as 1-D int64."""
    arrays = load_mat(path)
    if name not in arrays:
        raise ValueError(f'{path} has no array {name}, only {", ".join(arrays) or "none"}; get it again')
    return arrays[name].ravel().astype(np.int64)


def main(argv=None):
    p = pack_parser(__doc__, 'data/flowers102')
    p.add_argument('--from', dest='source', metavar='FOLDER', help=f'a folder with {", ".join(FILES)}')
    args = parse(p, argv)
    archive, setid, imagelabels = (
        local_or_fetch(args.source, URL + name, Path(args.out).parent / 'downloads' / name, md5, strict=False)
        for name, md5 in FILES.items())
    labels = whole_numbers(imagelabels, 'labels')
    if not ((1 <= labels) & (labels <= 102)).all():
        raise ValueError(f'{imagelabels} has labels from {labels.min()} to {labels.max()}, not from 1 to 102; '
                         'get it again')
    pictures = {}  # {image_0000i: (split, label)}
    for split, name in SPLITS.items():
        for number in whole_numbers(setid, name).tolist():
            stem = f'image_{number:05}'
            if not 1 <= number <= len(labels) or stem in pictures:
                raise ValueError(f'{setid}: {name} has picture {number} of {len(labels)}, or it is in two splits; '
                                 'get it again')
            pictures[stem] = split, int(labels[number - 1]) - 1
    wanted = re.compile(r'.*image_\d{5}\.jpg').fullmatch
    save_stream(args.out, list(SPLITS), listed_pictures(archive, wanted, pictures, '102flowers.tgz'),
                [str(i) for i in range(1, 103)], total=len(pictures), **pack_options(args))


if __name__ == '__main__':
    with one_line_errors():
        main()
