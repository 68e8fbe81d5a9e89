"""The test split of WikiText (Merity et al. 2016): 60 Wikipedia articles, to score language models.

    python prepare/wikitext.py                   # WikiText-2 (4 MB), to data/wikitext2
    python prepare/wikitext.py --size 103        # WikiText-103 (190 MB), to data/wikitext103
    python prepare/wikitext.py --raw             # the text before rare words became <unk> (5 MB)
    python prepare/wikitext.py --from PATH       # your archive, a folder, or wiki.test.tokens

Both have the same articles in their test splits (AoT, footnote 5), but many more words of
WikiText-2 became <unk>. The raw test splits are the same file, so --raw reads the small archive for
both.

Expect 4,358 lines; of WikiText-2 1,256,449 bytes, raw 1,290,590.
"""
from lib.benchmarks import SOURCES, options, prepare
from lib.command_line import run


def main(argv=None):
    p = options(__doc__, SOURCES['wikitext2']._replace(out=''))
    p.add_argument('--size', choices=['2', '103'], default='2', help='which WikiText (default: %(default)s)')
    p.add_argument('--raw', action='store_true', help='the version without <unk>')
    args = p.parse_args(argv)
    args.out = args.out or f'data/wikitext{args.size}'
    prepare(args, SOURCES['raw' if args.raw else f'wikitext{args.size}'])


if __name__ == '__main__':
    run(main)
