"""Your own text: files, or folders of files, with any of the tokenizers.

    python prepare/text.py book.txt --out data/book
    python prepare/text.py notes/ --glob '*.md' --tokenizer gpt2 --out data/notes
    python prepare/text.py pages.jsonl --tokenizer gpt2 --out data/pages
    python train.py --dataset=book

The files of a folder are joined in the order of their names; hidden files and folders are ignored.
In a file .jsonl each line is a document, {"text": ".."}; any other file is one document. Between two
documents comes <|endoftext|> with gpt2 tokens, else a new line. A tenth of the text is held out for
validation (val) and a twentieth for testing (test): whole files, in the order of the sha256 of their
names, or the end of the text if the files are too few. --test 0 makes no split test.

New lines of Windows become \\n. Bytes that are not UTF-8 are replaced and counted. The files are read
twice, in pieces, so a text may be larger than memory.
"""  # noqa: E501 (--help shows it)
import os
from collections import Counter
from fnmatch import fnmatch
from pathlib import Path

from lib.inputs import Mistake, arguments, choice, number, option, run
from lib.texts import write_files
from tasks.decode import files_below, say_left_out


def files_of(path, glob):
    """[(path, name)] of a file, or of the files of a folder that match, in the order of their
    names. glob: None if the user has typed none. Raises Mistake if there are none, or if without
    --glob more files are left out than taken."""
    if path.is_file():
        return [(path, path.name)]
    pattern = glob or '*.txt'
    files = []
    unreadable = []
    endings = Counter()  # of the files that do not match
    for file in sorted(map(Path, files_below(path))):
        name = Path(os.path.relpath(file, path)).as_posix()
        if not os.path.isfile(file) or not os.access(file, os.R_OK):
            unreadable.append(file)
        elif fnmatch(f'/{name}'.lower(), f'*/{pattern}'.lower()):  # the end, from some folder on
            files.append((file, name))
        else:
            endings[file.suffix or 'without ending'] += 1

    if not files and not endings:
        raise Mistake(f'{path} is no file, and no folder with a file that can be read; name '
                      'another one')
    say_left_out(unreadable, [], 'cannot be read')
    left_out = ', '.join(f'{count:,} {ending}' for ending, count in endings.most_common())
    if not files or (not glob and len(files) < endings.total()):
        raise Mistake(f'{path} has {len(files):,} files that match {pattern}, and others: '
                      f'{left_out}; choose with --glob, such as --glob=*.md')
    if endings:
        print(f'left out {left_out} of {path}, which do not match {pattern}')
    return files


def main(argv=None):
    args = arguments(
        __doc__, argv,
        option('paths', 'files or folders', nargs='+', type=Path),
        option('--glob', 'which files of a folder; without, *.txt'),
        choice('--tokenizer', 'tokens', 'bytes', 'chars', 'gpt2'),
        number('--val', 'share of the text for validation', 0.1, 0, 1),
        number('--test', 'share of the text for testing', 0.05, 0, 1))

    files = {}  # each file once, though several of the paths may lead to it
    for path in args.paths:
        for file, name in files_of(path, args.glob):
            files[file.resolve()] = file, name
    write_files(args.out, args.tokenizer, dict(files.values()), args.val, args.test)


if __name__ == '__main__':
    run(main)
