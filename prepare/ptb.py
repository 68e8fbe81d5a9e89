"""The test split of Penn Treebank as Mikolov prepared it (2010), to score language models on.

It is text from the Wall Street Journal of 1989, in lower case and without punctuation. Numbers are
replaced by N, and all but the 10,000 most frequent words by <unk>.

    python prepare/ptb.py                   # downloads 0.4 MB
    python prepare/ptb.py --from PATH       # your simple-examples.tgz, a folder, or ptb.test.txt

Expect 3,761 lines and 78,669 words.
"""
from lib.benchmarks import SOURCES, options, prepare
from lib.command_line import run


def main(argv=None):
    prepare(options(__doc__, SOURCES['ptb']).parse_args(argv), SOURCES['ptb'])


if __name__ == '__main__':
    run(main)
