"""Oxford-IIIT Pets (810 MB, from robots.ox.ac.uk): large pictures of 37 breeds of cats and dogs.

    python prepare/pets.py                       # downloads 810 MB
    python prepare/pets.py --from FOLDER         # or reads your copies of its two archives, as published

Expect 3,680 pictures for training (train) and 3,669 for testing (test), 37 classes.
"""  # noqa: E501 (--help shows it)
from lib.inputs import arguments, local, local_or_fetch, run, tar_named
from lib.pictures import PACK, listed, save_pack

URL = 'https://thor.robots.ox.ac.uk/~vgg/data/pets/'
FILES = {
    'images.tar.gz': '5c4f3ee8e5d25df40f4fd59a7f44e54c',
    'annotations.tar.gz': '95a8c909bbe2e81eed6a22bccdf3f68f',
}
SPLITS = {'train': 'trainval.txt', 'test': 'test.txt'}


def read_lists(annotations):
    """({name of a picture: (its split, its label)}, names of the classes) of the published
    archive."""
    lists = dict(tar_named(annotations, lambda name: name in SPLITS.values()))
    pictures = {}
    breeds = {}
    for split, file in SPLITS.items():
        for line in lists[file].decode().splitlines():
            # such as great_pyrenees_37 16 2 10: the picture, then its breed, from 1
            name, number, *_ = line.split()
            pictures[f'{name}.jpg'] = split, int(number) - 1
            breeds[int(number)] = name.rpartition('_')[0].replace('_', ' ')
    return pictures, [breeds[number] for number in sorted(breeds)]


def main(argv=None):
    args = arguments(
        __doc__, argv,
        local(f'a folder with {" and ".join(FILES)}'),
        *PACK,
        out='data/pets')

    images, annotations = [local_or_fetch(args, URL + name, md5, f'pets-{name}')
                           for name, md5 in FILES.items()]
    pictures, classes = read_lists(annotations)
    save_pack(args, SPLITS, classes, listed(images, pictures), len(pictures))


if __name__ == '__main__':
    run(main)
