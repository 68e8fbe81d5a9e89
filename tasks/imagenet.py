"""The 1000 classes of ImageNet-1K. imagenet_classes.txt has a line for each: its WordNet id, by which
folders of pictures are called, and the first of WordNet's words for it (as ILSVRC2012 lists them;
"crane" and "maillot", which occur twice, are told apart)."""
import functools
from pathlib import Path


@functools.cache
def names():
    """{WordNet id: name}, in the order of the classes."""
    lines = Path(__file__).with_name('imagenet_classes.txt').read_text(encoding='utf-8').splitlines()
    return dict(line.split(' ', 1) for line in lines)


def readable(label):
    """The name of a class: what a WordNet id stands for, else the label itself."""
    return names().get(label, label)
