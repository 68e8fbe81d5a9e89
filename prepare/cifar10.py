"""CIFAR-10 (170 MB, from cs.toronto.edu): 32x32 pictures of ten classes.

    python prepare/cifar10.py                                      # downloads 170 MB
    python prepare/cifar10.py --from cifar-10-python.tar.gz        # or reads your copy

Expect 50,000 pictures for training (train) and 10,000 for testing (test) of 32x32, 10 classes.
"""
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from engine.settings import one_line_errors
from prepare.lib.cifar import cifar


def main(argv=None):
    cifar(argv, __doc__, 10, 'c58f30108f718f92721af3b95e74349a',
          {'train': [f'data_batch_{i}' for i in range(1, 6)], 'test': ['test_batch']},
          'batches.meta', 'label_names', 'labels')


if __name__ == '__main__':
    with one_line_errors():
        main()
