"""The test split of LAMBADA (Paperno et al. 2016): guess the last word of a passage from a novel.

    python prepare/lambada.py                    # downloads OpenAI's version (2 MB)
    python prepare/lambada.py --from PATH        # or reads your copy

OpenAI's version has the capitals and punctuation of the printed books: lambada_test.jsonl. The
original is in lower case, with spaces around punctuation: lambada-dataset.tar.gz or
lambada_test_plain_text.txt. PATH is one of these files, or a folder with one. A line of OpenAI's
file is {"text": ".."}, a line of the original is the passage itself. The last word is what follows
the last white space.

Expect 5,153 passages.
"""
from lib.benchmarks import SOURCES, options, prepare
from lib.command_line import run


def main(argv=None):
    prepare(options(__doc__, SOURCES['lambada']).parse_args(argv), SOURCES['lambada'])


if __name__ == '__main__':
    run(main)
