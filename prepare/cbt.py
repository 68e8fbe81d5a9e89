"""The Children's Book Test (Hill et al. 2016): choose the word that is missing in a sentence.

    python prepare/cbt.py                 # 120 MB; writes data/cbt_cn and data/cbt_ne
    python prepare/cbt.py --from PATH     # your CBTest.tgz, a folder, or one of the two files

A question has 20 sentences of a children's book as context, and ten words to choose from for the
gap in the 21st. The missing words are common nouns (CN) or named entities (NE). A question is stored
as lines `1 sentence` .. `20 sentence`, `21 question XXXXX<tab>answer<tab><tab>choice|choice|..` and
an empty line.

The archive is compared with the checksum that Hugging Face sends with it.

Expect 2,500 questions of each kind.
"""
from lib.benchmarks import SOURCES, options, prepare
from lib.command_line import run


def main(argv=None):
    prepare(options(__doc__, SOURCES['cbt']).parse_args(argv), SOURCES['cbt'])


if __name__ == '__main__':
    run(main)
