"""Your own text: files, or folders of files, with any of the tokenizers.

    python prepare/text.py book.txt --out data/book
    python prepare/text.py notes/ --glob '*.md' --tokenizer gpt2 --out data/notes
    python train.py --dataset=book

The files of a folder are joined in the order of their names. The last tenth of the text is held out
for validation. Bytes that are not UTF-8 are replaced and counted. The whole text is in memory at once.
"""
from fnmatch import fnmatch
from pathlib import Path

from lib.inputs import Mistake, choice, dataset, number, option
from lib.texts import decode, write_text


def files_of(path, glob):
    """A file, or the files of a folder that match, in the order of their names."""
    found = [path] if path.is_file() else sorted(
        p for p in path.rglob('*') if p.is_file() and fnmatch(f'/{p.as_posix()}', f'*/{glob}'))
    if not found:
        raise Mistake(f'{path} is no file, and no folder with a file that matches --glob={glob}, such as *.md')
    return found


@dataset(__name__, None, option('paths', 'files or folders', nargs='+', type=Path),
         option('--glob', 'which files of a folder', default='*.txt'),
         choice('--tokenizer', 'tokens', 'bytes', 'chars', 'gpt2'),
         number('--val', 'share of the text that is held out', 0.1, 0, 1))
def main(args):
    files = {file.resolve(): file for path in args.paths for file in files_of(path, args.glob)}  # each once
    print(f'{len(files)} files')
    text = '\n'.join(decode(file.read_bytes(), file) for file in files.values())
    cut = int(len(text) * (1 - args.val))
    write_text(args.out, args.tokenizer, {'train': text[:cut], 'val': text[cut:]})
