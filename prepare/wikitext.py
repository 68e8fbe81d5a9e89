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
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from engine.settings import one_line_errors
from prepare.lib.benchmark import benchmark_parser, save_benchmark, texts
from prepare.lib.files import check_free

URL = 'https://wikitext.smerity.com/'  # the first author's; the address in the paper is closed
ARCHIVES = {'2': ('wikitext-2-v1.zip', '92675f1d63015c1c8b51f1656a52d5bdbc33aafa60cc47a218a66e7ee817488c'),
            '103': ('wikitext-103-v1.zip', '242ba0f20b329cfdf1ccc61e9e9e5b59becf189db7f7a81cd2a0e2fc31539590'),
            'raw': ('wikitext-2-raw-v1.zip', 'ef7edb566e3e2b2d31b29c1fdb0c89a4cc683597484c3dc2517919c615435a11')}


def main(argv=None):
    p = benchmark_parser(__doc__, None, 'the archive, a folder, or the text')
    p.add_argument('--size', choices=['2', '103'], default='2', help='which WikiText (default: %(default)s)')
    p.add_argument('--raw', action='store_true', help='the version without <unk>')
    p.add_argument('--url', default=URL, help='where the archives are (default: %(default)s)')
    args = p.parse_args(argv)
    out = args.out or f'data/wikitext{args.size}'
    check_free(out, args.overwrite)
    archive, checksum = ARCHIVES['raw' if args.raw else args.size]
    file = 'wiki.test.raw' if args.raw else 'wiki.test.tokens'
    found, path = texts(args.source, args.url + archive, checksum, Path(out).parent / 'downloads', [file])
    text = found[file]
    save_benchmark(out, 'text', [{'text': text}], path, file)
    print(f'{out}: {text.count(chr(10)):,} lines, {len(text.encode()):,} bytes; expected are 4,358 lines'
          + ('' if args.size == '103' and not args.raw else f' and {1290590 if args.raw else 1256449:,} bytes'))


if __name__ == '__main__':
    with one_line_errors():
        main()
