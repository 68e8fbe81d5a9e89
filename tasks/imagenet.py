"""The 1000 classes of ImageNet-1K.

imagenet_classes.txt has a line for each class: its WordNet id, after which folders of pictures are
named, and the first of WordNet's words for it, as ILSVRC2012 lists them. Two words, "crane" and
"maillot", occur twice there; their classes have different names here.
"""
import functools
from pathlib import Path


@functools.cache
def names():
    """{WordNet id: name}, in the order of the classes."""
    path = Path(__file__).with_name('imagenet_classes.txt')
    lines = path.read_text(encoding='utf-8').splitlines()
    return dict(line.split(' ', 1) for line in lines)


def readable(label):
    """The name of the class that a WordNet id stands for; any other label stays as it is."""
    return names().get(label, label)
