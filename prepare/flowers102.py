"""Oxford 102 Flowers (345 MB, from robots.ox.ac.uk): large pictures of 102 species.

    python prepare/flowers102.py                       # downloads 345 MB
    python prepare/flowers102.py --from FOLDER         # or reads your copies of its three files, as published

Expect 1,020 pictures for training (train), 1,020 for validation (val) and 6,149 for testing (test),
102 classes. The classes are called 1 to 102, because the dataset has no names for them.
"""
from lib.inputs import dataset, local, local_or_fetch
from lib.pictures import PACK, save_listed

URL = 'https://www.robots.ox.ac.uk/~vgg/data/flowers/102/'
FILES = {'102flowers.tgz': '52808999861908f626f3c1f4e79d11fa', 'setid.mat': 'a5357ecc9cb78c4bef273ce3793fc85c',
         'imagelabels.mat': 'e0620be6f572b9609742df49c70aed4d'}
SPLITS = {'train': 'trnid', 'val': 'valid', 'test': 'tstid'}


@dataset(__name__, 'data/flowers102', local(f'a folder with {", ".join(FILES)}'), *PACK)
def main(args):
    archive, setid, imagelabels = (local_or_fetch(args, URL + name, md5) for name, md5 in FILES.items())
    from scipy.io import loadmat
    labels, numbers = loadmat(imagelabels)['labels'].ravel(), loadmat(setid)
    pictures = {f'image_{number:05}.jpg': (split, int(labels[number - 1]) - 1)
                for split, name in SPLITS.items() for number in numbers[name].ravel()}
    save_listed(args, SPLITS, list(map(str, range(1, 103))), archive, pictures)
