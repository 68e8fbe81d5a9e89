"""The figure of confusions; tests/test_eval.py has its table."""
import numpy as np

from analysis import confusion


def test_shares_of_confusions_are_of_the_true_class():
    counts = np.array([[1, 0, 0], [3, 1, 0], [0, 0, 0]])
    shares = confusion.drawn(counts, 'abc', 'network').axes[0].images[0].get_array()
    assert shares.tolist() == [[1, 0, 0], [0.75, 0.25, 0], [0, 0, 0]]
