"""The test split of WikiText (Merity et al. 2016): 60 Wikipedia articles, to score language models.

    python prepare/wikitext.py                   # WikiText-2 (4 MB), to data/wikitext2
    python prepare/wikitext.py --size 103        # WikiText-103 (190 MB), to data/wikitext103
    python prepare/wikitext.py --raw             # the text before rare words became <unk> (5 MB)
    python prepare/wikitext.py --from PATH       # your wikitext-2-v1.zip as published, or wiki.test.tokens

Both have the same articles in their test splits (AoT, footnote 5), but many more words of
WikiText-2 became <unk>. The raw test splits are the same file, so --raw reads the small archive for
both.

Expect 4,358 lines; of WikiText-2 1,256,449 bytes, raw 1,290,590.
"""
import zipfile
from pathlib import Path

from lib.benchmarks import save_text
from lib.command_line import claim, parser, run
from lib.download import local_or_fetch
from lib.texts import decode

URL = 'https://wikitext.smerity.com/'  # the first author's; the address in the paper is closed
FILES = {'2': ('wikitext-2-v1.zip', '92675f1d63015c1c8b51f1656a52d5bdbc33aafa60cc47a218a66e7ee817488c'),
         '103': ('wikitext-103-v1.zip', '242ba0f20b329cfdf1ccc61e9e9e5b59becf189db7f7a81cd2a0e2fc31539590'),
         'raw': ('wikitext-2-raw-v1.zip', 'ef7edb566e3e2b2d31b29c1fdb0c89a4cc683597484c3dc2517919c615435a11')}


def main(argv=None):
    p = parser(__doc__, 'data/wikitextSIZE', 'the archive as published, or the text, instead of the download')
    p.add_argument('--size', choices=['2', '103'], default='2', help='which WikiText')
    p.add_argument('--raw', action='store_true', help='the version without <unk>')
    args = p.parse_args(argv)
    args.out = args.out.replace('SIZE', args.size)
    claim(args, args.out)
    file, sha256 = FILES['raw' if args.raw else args.size]
    if args.source and Path(args.source).is_file() and not args.source.endswith('.zip'):
        return save_text(args.out, decode(Path(args.source).read_bytes(), args.source), Path(args.source).name)
    path = local_or_fetch(args, URL + file, sha256)
    with zipfile.ZipFile(path) as archive:
        name, = (name for name in archive.namelist() if '.test.' in name)
        save_text(args.out, archive.read(name).decode(), path.name)


if __name__ == '__main__':
    run(main)
