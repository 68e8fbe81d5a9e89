"""Oxford 102 Flowers (345 MB, from robots.ox.ac.uk): large pictures of 102 species.

    python prepare/flowers102.py                       # downloads 345 MB
    python prepare/flowers102.py --from FOLDER         # or reads your copies of its three files

Expect 1,020 pictures for training (train), 1,020 for validation (val) and 6,149 for testing (test),
102 classes. The classes are called 1 to 102, because the dataset has no names for them.
"""
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from engine.settings import Mistake, one_line_errors
from prepare.lib.archives import listed_pictures
from prepare.lib.command_line import parse
from prepare.lib.download import differs, local_or_fetch
from prepare.lib.pictures import pack_options, pack_parser, save_stream

URL = 'https://www.robots.ox.ac.uk/~vgg/data/flowers/102/'
FILES = {'102flowers.tgz': '52808999861908f626f3c1f4e79d11fa', 'setid.mat': 'a5357ecc9cb78c4bef273ce3793fc85c',
         'imagelabels.mat': 'e0620be6f572b9609742df49c70aed4d'}
SPLITS = {'train': 'trnid', 'val': 'valid', 'test': 'tstid'}


def whole_numbers(path, name):
    """An array of a .mat file, as a list. SciPy 1.17 ends the process for some damaged files (its pull
    request 25349), so it gets the published ones alone."""
    difference = differs(path, FILES[Path(path).name])
    if difference:
        raise Mistake(f'{path} is not the published file ({difference}); remove it, and run this again')
    from scipy.io import loadmat
    return [int(n) for n in loadmat(path)[name].ravel()]


def main(argv=None):
    p = pack_parser(__doc__, 'data/flowers102')
    p.add_argument('--from', dest='source', metavar='FOLDER', help=f'a folder with {", ".join(FILES)}')
    args = parse(p, argv)
    archive, setid, imagelabels = (
        local_or_fetch(args.source, URL + name, Path(args.out).parent / 'downloads' / name, md5,
                       strict=name.endswith('.mat')) for name, md5 in FILES.items())
    labels = whole_numbers(imagelabels, 'labels')
    pictures = {f'image_{number:05}': (split, labels[number - 1] - 1)
                for split, name in SPLITS.items() for number in whole_numbers(setid, name)}
    wanted = re.compile(r'.*image_\d{5}\.jpg').fullmatch
    save_stream(args.out, list(SPLITS), listed_pictures(archive, wanted, pictures, '102flowers.tgz'),
                [str(i) for i in range(1, 103)], total=len(pictures), **pack_options(args))


if __name__ == '__main__':
    with one_line_errors():
        main()
