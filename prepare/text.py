"""Your own text: files, or folders of files, with any of the tokenizers.

    python prepare/text.py book.txt --out data/book
    python prepare/text.py notes/ --glob '*.md' --tokenizer gpt2 --out data/notes
    python train.py --dataset=book

The files of a folder are joined in the order of their names. The last tenth of the text is held out
for validation. Bytes that are not UTF-8 are replaced and counted. The whole text is in memory at once.
"""
from fnmatch import fnmatch
from pathlib import Path

from lib.command_line import Mistake, parse, parser, run, share
from lib.texts import tokenize_and_save


def files_of(paths, glob):
    for path in map(Path, paths):
        if not path.exists():
            raise Mistake(f'no such file or folder: {path}')
        found = [path] if path.is_file() else sorted(
            p for p in path.rglob('*') if p.is_file() and fnmatch(f'/{p.relative_to(path).as_posix()}', f'*/{glob}'))
        if not found:
            raise Mistake(f'{path} holds no file that matches --glob={glob}; pass another, such as *.md')
        yield from found


def main(argv=None):
    p = parser(__doc__, None)
    p.add_argument('paths', nargs='+', help='files or folders')
    p.add_argument('--glob', default='*.txt', help='which files of a folder (default: %(default)s)')
    p.add_argument('--tokenizer', default='bytes', choices=['bytes', 'chars', 'gpt2'], help='default: %(default)s')
    p.add_argument('--val', type=share, default=0.1, help='share of the text that is held out (default: %(default)s)')
    args = parse(p, argv)
    paths = [*{path.resolve(): path for path in files_of(args.paths, args.glob)}.values()]  # each file once
    print(f'{len(paths)} files')
    tokenize_and_save(paths, args.tokenizer, args.out, {'val': args.val})


if __name__ == '__main__':
    run(main)
