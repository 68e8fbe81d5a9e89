"""The test split of WikiText (Merity et al. 2016): 60 Wikipedia articles, to score language models.

    python prepare/wikitext.py                   # WikiText-2 (4 MB), to data/wikitext2
    python prepare/wikitext.py --size 103        # WikiText-103 (190 MB), to data/wikitext103
    python prepare/wikitext.py --raw             # the text before rare words became <unk> (5 MB)
    python prepare/wikitext.py --from PATH       # your wikitext-2-v1.zip as published, or wiki.test.tokens

Both have the same articles in their test splits (AoT, footnote 5), but many more words of
WikiText-2 became <unk>. The raw test splits are the same file, so --raw reads the small archive for
both.

Expect 4,358 lines; of WikiText-2 1,256,449 bytes, raw 1,290,590.
"""  # noqa: E501 (--help shows it)
import zipfile

from lib.inputs import arguments, choice, local, local_or_fetch, option, run
from lib.texts import decode, save_text

URL = 'https://wikitext.smerity.com/'  # the first author's; the address in the paper is closed
FILES = {  # sha256
    'wikitext-2-v1.zip': '92675f1d63015c1c8b51f1656a52d5bdbc33aafa60cc47a218a66e7ee817488c',
    'wikitext-103-v1.zip': '242ba0f20b329cfdf1ccc61e9e9e5b59becf189db7f7a81cd2a0e2fc31539590',
    'wikitext-2-raw-v1.zip': 'ef7edb566e3e2b2d31b29c1fdb0c89a4cc683597484c3dc2517919c615435a11',
}


def main(argv=None):
    args = arguments(
        __doc__, argv,
        choice('--size', 'which WikiText', '2', '103'),
        option('--raw', 'the version without <unk>', action='store_true'),
        local('the archive as published, or the text, instead of the download'),
        out='data/wikitextSIZE')

    source = args.source
    if source and source.is_file() and source.suffix != '.zip':
        text = decode(source.read_bytes(), source)
        save_text(args.out, text, source.name)
        return

    file = 'wikitext-2-raw-v1.zip' if args.raw else f'wikitext-{args.size}-v1.zip'
    path = local_or_fetch(args, URL + file, FILES[file])
    with zipfile.ZipFile(path) as archive:
        name, = [name for name in archive.namelist() if '.test.' in name]
        text = archive.read(name).decode()
    save_text(args.out, text, path.name)


if __name__ == '__main__':
    run(main)
