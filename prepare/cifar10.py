"""CIFAR-10 (170 MB, from cs.toronto.edu): 32x32 pictures of ten classes.

    python prepare/cifar10.py                                      # downloads 170 MB
    python prepare/cifar10.py --from cifar-10-python.tar.gz        # or reads your copy

Your copy must be the published archive, byte for byte.

Expect 50,000 pictures for training (train) and 10,000 for testing (test) of 32x32, 10 classes.
"""
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from prepare.lib.cifar import prepare
from prepare.lib.command_line import run


def main(argv=None):
    prepare(argv, __doc__, 10)


if __name__ == '__main__':
    run(main)
