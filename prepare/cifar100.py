"""CIFAR-100 (169 MB, from cs.toronto.edu): 32x32 pictures of a hundred classes (the fine labels).

    python prepare/cifar100.py                                       # downloads 169 MB
    python prepare/cifar100.py --from cifar-100-python.tar.gz        # or reads your copy

Your copy must be the published archive, byte for byte.

Expect 50,000 pictures for training (train) and 10,000 for testing (test) of 32x32, 100 classes.
"""
from lib.inputs import dataset
from prepare import cifar10

main = dataset(__name__, 'data/cifar100', cifar10.COPY)(lambda args: cifar10.save(args, 100))
