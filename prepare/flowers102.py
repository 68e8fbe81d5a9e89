"""Oxford 102 Flowers (345 MB, from robots.ox.ac.uk): large pictures of 102 species.

    python prepare/flowers102.py                       # downloads 345 MB
    python prepare/flowers102.py --from FOLDER         # or reads your copies of its three files, as published

Expect 1,020 pictures for training (train), 1,020 for validation (val) and 6,149 for testing (test),
102 classes. The classes are called 1 to 102, because the dataset has no names for them.
"""  # noqa: E501 (--help shows it)
from lib.inputs import arguments, local, local_or_fetch, run
from lib.pictures import PACK, listed, save_pack

URL = 'https://www.robots.ox.ac.uk/~vgg/data/flowers/102/'
FILES = {
    '102flowers.tgz': '52808999861908f626f3c1f4e79d11fa',
    'setid.mat': 'a5357ecc9cb78c4bef273ce3793fc85c',
    'imagelabels.mat': 'e0620be6f572b9609742df49c70aed4d',
}
SPLITS = {'train': 'trnid', 'val': 'valid', 'test': 'tstid'}


def read_lists(setid, imagelabels):
    """{name of a picture: (its split, its label)} of the two published files."""
    from scipy.io import loadmat
    labels = loadmat(imagelabels)['labels'].ravel()  # from 1
    numbers = loadmat(setid)
    pictures = {}
    for split, key in SPLITS.items():
        for number in numbers[key].ravel():  # from 1
            pictures[f'image_{number:05}.jpg'] = split, int(labels[number - 1]) - 1
    return pictures


def main(argv=None):
    args = arguments(
        __doc__, argv,
        local(f'a folder with {", ".join(FILES)}'),
        *PACK,
        out='data/flowers102')

    archive, setid, imagelabels = [local_or_fetch(args, URL + name, md5)
                                   for name, md5 in FILES.items()]
    pictures = read_lists(setid, imagelabels)
    classes = [str(number) for number in range(1, 103)]
    save_pack(args, SPLITS, classes, listed(archive, pictures), len(pictures))


if __name__ == '__main__':
    run(main)
