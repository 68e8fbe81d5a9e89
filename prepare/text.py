"""Your own text: files, or folders of them, with any of the tokenizers.

    python prepare/text.py book.txt --out data/book
    python prepare/text.py notes/ --glob '*.md' --tokenizer gpt2 --out data/notes
    python train.py --dataset=book

Files are joined in the order of their names; the last tenth of the text validates. Bytes that are not UTF-8 are
replaced and counted.
"""
import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from engine.settings import one_line_errors
from tasks.files import check_free, save_text, split_text
from prepare.download import local_or_fetch
from tasks.tokenizer import Tokenizer


def decode(content):
    """(text of bytes, how many places in them are not UTF-8). These are replaced; a byte order mark at the beginning goes."""
    text = content.decode('utf-8-sig', errors='replace')
    return text, text.count('\ufffd') - content.count('\ufffd'.encode())


def parser(doc, out):
    p = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument('--out', default=out, help='folder to write (default: %(default)s)')
    p.add_argument('--overwrite', action='store_true', help='replace the folder if it exists')
    return p


def prepare(text, tokenizer, out, val_share=0.1):
    """Split, encode and save; tokenizer is a name, and the alphabet of 'chars' is the text's own."""
    tokenizer = Tokenizer(tokenizer, ''.join(sorted(set(text))) if tokenizer == 'chars' else '')
    save_text(out, tokenizer, *split_text(text, tokenizer, val_share))


def tiny_shakespeare(tokenizer, out, doc):
    """What shakespeare.py and shakespeare_char.py do."""
    p = parser(doc, out)
    p.add_argument('--from', dest='source', metavar='PATH', help='a local copy of input.txt instead of the download')
    args = p.parse_args()
    check_free(args.out, args.overwrite)
    url = 'https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt'
    path = local_or_fetch(args.source, url, Path(args.out).parent / 'downloads' / 'tinyshakespeare.txt',
                          '86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed')
    prepare(path.read_text(encoding='utf-8'), tokenizer, args.out)


def files_of(paths, glob):
    for path in map(Path, paths):
        if not path.exists():
            raise ValueError(f'no such file or folder: {path}')
        found = [path] if path.is_file() else sorted(p for p in path.rglob(glob) if p.is_file())
        if not found:
            raise ValueError(f'{path} holds no file that matches {glob}; pass another --glob')
        yield from found


def main():
    p = parser(__doc__, None)
    p.add_argument('paths', nargs='+', help='files or folders')
    p.add_argument('--glob', default='*.txt', help='which files of a folder (default: %(default)s)')
    p.add_argument('--tokenizer', default='bytes', choices=['bytes', 'chars', 'gpt2'], help='default: %(default)s')
    p.add_argument('--val', type=float, default=0.1, help='share of the text that validates (default: %(default)s)')
    args = p.parse_args()
    if not args.out:
        raise ValueError('--out is missing: name the folder to write, such as --out data/mine')
    if not 0 < args.val < 1:
        raise ValueError(f'--val={args.val} must lie between 0 and 1')
    check_free(args.out, args.overwrite)
    texts, replaced = zip(*(decode(path.read_bytes()) for path in files_of(args.paths, args.glob)))
    replaced = sum(replaced)
    print(f'{len(texts)} files' + (f'; {replaced} places that are not UTF-8 were replaced' if replaced else ''))
    prepare('\n'.join(texts), args.tokenizer, args.out, args.val)


if __name__ == '__main__':
    with one_line_errors():
        main()
