"""Oxford-IIIT Pets (810 MB, from robots.ox.ac.uk): large pictures of 37 breeds of cats and dogs.

    python prepare/pets.py                       # downloads 810 MB
    python prepare/pets.py --from FOLDER         # or reads your copies of its two archives

Expect 3,680 pictures for training (train) and 3,669 for testing (test), 37 classes.
"""
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from engine.settings import Mistake, one_line_errors
from prepare.lib.archives import listed_pictures, tar_files
from prepare.lib.command_line import parse
from prepare.lib.download import local_or_fetch
from prepare.lib.pictures import pack_options, pack_parser, save_stream
from tasks.decode import is_picture

URL = 'https://thor.robots.ox.ac.uk/~vgg/data/pets/'
FILES = {'images.tar.gz': '5c4f3ee8e5d25df40f4fd59a7f44e54c', 'annotations.tar.gz': '95a8c909bbe2e81eed6a22bccdf3f68f'}
SPLITS = {'train': 'trainval.txt', 'test': 'test.txt'}


def read_lists(path):
    """annotations.tar.gz -> {picture name: (split, label)}, and the breeds in label order.

    A line is like `great_pyrenees_37 16 2 10`: the picture, then its breed as a number from 1.
    """
    found = {name.rpartition('/')[2]: content for name, content in
             tar_files(path, lambda name: name.endswith(tuple('/' + n for n in SPLITS.values())), 'annotations.tar.gz')}
    pictures, breeds = {}, {}
    for split, file in SPLITS.items():
        if file not in found:
            raise Mistake(f'{path} has no annotations/{file}; expected annotations.tar.gz; get it again')
        for line in found[file].decode(errors='replace').splitlines():
            name, number, *_ = line.split() + ['', '']
            breed = name.rpartition('_')[0].replace('_', ' ')
            if not (breed and number.isdecimal() and breeds.setdefault(int(number), breed) == breed
                    and name not in pictures):
                raise Mistake(f'{path}: {file} has a line that does not fit: {line!r}; get it again')
            pictures[name] = split, int(number) - 1
    if sorted(breeds) != list(range(1, len(breeds) + 1)):
        raise Mistake(f'{path}: the breeds are not numbered from 1 to {len(breeds)}; get it again')
    return pictures, [breeds[number] for number in sorted(breeds)]


def main(argv=None):
    p = pack_parser(__doc__, 'data/pets')
    p.add_argument('--from', dest='source', metavar='FOLDER', help=f'a folder with {" and ".join(FILES)}')
    args = parse(p, argv)
    images, annotations = (
        local_or_fetch(args.source, URL + name, Path(args.out).parent / 'downloads' / f'pets-{name}', md5, strict=False)
        for name, md5 in FILES.items())
    pictures, breeds = read_lists(annotations)
    save_stream(args.out, list(SPLITS), listed_pictures(images, is_picture, pictures, 'images.tar.gz'), breeds,
                total=len(pictures), **pack_options(args))


if __name__ == '__main__':
    with one_line_errors():
        main()
