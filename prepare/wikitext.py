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

from lib.inputs import choice, dataset, local, local_or_fetch, option
from lib.texts import decode, save_text

URL = 'https://wikitext.smerity.com/'  # the first author's; the address in the paper is closed
FILES = {'2': ('wikitext-2-v1.zip', '92675f1d63015c1c8b51f1656a52d5bdbc33aafa60cc47a218a66e7ee817488c'),
         '103': ('wikitext-103-v1.zip', '242ba0f20b329cfdf1ccc61e9e9e5b59becf189db7f7a81cd2a0e2fc31539590'),
         'raw': ('wikitext-2-raw-v1.zip', 'ef7edb566e3e2b2d31b29c1fdb0c89a4cc683597484c3dc2517919c615435a11')}


@dataset(__name__, 'data/wikitextSIZE', choice('--size', 'which WikiText', '2', '103'),
         option('--raw', 'the version without <unk>', action='store_true'),
         local('the archive as published, or the text, instead of the download'))
def main(args):
    file, sha256 = FILES['raw' if args.raw else args.size]
    if args.source and args.source.is_file() and args.source.suffix != '.zip':
        return save_text(args.out, decode(args.source.read_bytes(), args.source), args.source.name)
    path = local_or_fetch(args, URL + file, sha256)
    with zipfile.ZipFile(path) as archive:
        name, = (name for name in archive.namelist() if '.test.' in name)
        save_text(args.out, archive.read(name).decode(), path.name)
