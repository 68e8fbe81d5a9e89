"""CIFAR-100 (169 MB, from cs.toronto.edu): 32x32 pictures of a hundred classes (the fine labels).

    python prepare/cifar100.py                                       # downloads 169 MB
    python prepare/cifar100.py --from cifar-100-python.tar.gz        # or reads your copy

Your copy must be the published archive, byte for byte.

Expect 50,000 pictures for training (train) and 10,000 for testing (test) of 32x32, 100 classes.
"""
from lib.inputs import arguments, run
from lib.pictures import save_arrays
from prepare import cifar10


def main(argv=None):
    args = arguments(__doc__, argv, cifar10.COPY, out='data/cifar100')
    archive = cifar10.find_archive(args, 100)
    splits, classes = cifar10.read(archive, 'meta', b'fine_')  # there are coarse labels too
    save_arrays(args.out, splits, classes)


if __name__ == '__main__':
    run(main)
