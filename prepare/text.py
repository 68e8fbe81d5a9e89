"""Your own text: files, or folders of files, with any of the tokenizers.

    python prepare/text.py book.txt --out data/book
    python prepare/text.py notes/ --glob '*.md' --tokenizer gpt2 --out data/notes
    python train.py --dataset=book

The files of a folder are joined in the order of their names; hidden files and folders are ignored.
Between two files comes <|endoftext|> with gpt2 tokens, else a new line. The last tenth of the text
is held out for validation. Bytes that are not UTF-8 are replaced and counted. The files are read
twice, in pieces, so a text may be larger than memory.
"""  # noqa: E501 (--help shows it)
from fnmatch import fnmatch
from pathlib import Path

from lib.inputs import Mistake, arguments, choice, number, option, run
from lib.texts import write_files


def files_of(path, glob):
    """A file, or the files of a folder that match, in the order of their names. Raises Mistake if
    there are none."""
    if path.is_file():
        return [path]
    files = []
    left_out = []
    pattern = f'*/{glob}'.lower()  # the end of a path must match, from some folder on
    for file in sorted(path.rglob('*')):
        name_here = file.relative_to(path).as_posix()
        is_hidden = f'/{name_here}'.count('/.') > 0
        if is_hidden or not file.is_file():
            continue
        if fnmatch(f'/{name_here}'.lower(), pattern):
            files.append(file)
        else:
            left_out.append(file)
    if not files:
        raise Mistake(f'{path} is no file, and no folder with a file that matches --glob={glob}, '
                      'such as *.md')
    if left_out:
        print(f'left out {len(left_out):,} files in {path} that do not match --glob={glob}')
    return files


def main(argv=None):
    args = arguments(
        __doc__, argv,
        option('paths', 'files or folders', nargs='+', type=Path),
        option('--glob', 'which files of a folder', default='*.txt'),
        choice('--tokenizer', 'tokens', 'bytes', 'chars', 'gpt2'),
        number('--val', 'share of the text that is held out', 0.1, 0, 1))

    files = {}  # each file once, though several of the paths may lead to it
    for path in args.paths:
        for file in files_of(path, args.glob):
            files[file.resolve()] = file
    print(f'{len(files)} files')
    write_files(args.out, args.tokenizer, list(files.values()), args.val)


if __name__ == '__main__':
    run(main)
