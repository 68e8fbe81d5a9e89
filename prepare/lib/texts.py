"""What the scripts that prepare text share."""
from pathlib import Path

from tasks.files import save_text, split_text
from tasks.tokenizer import Tokenizer

from prepare.lib.command_line import parse, parser
from prepare.lib.download import local_or_fetch


def decode(content):
    """Bytes -> (text, how many places were not UTF-8 and were replaced). A byte order mark at the
    beginning is dropped."""
    text = content.decode('utf-8-sig', errors='replace')
    return text, text.count('\ufffd') - content.count('\ufffd'.encode())


def tokenize_and_save(text, tokenizer, out, val_share=0.1):
    """Write a text dataset. tokenizer: its name; the alphabet of 'chars' is taken from the text."""
    tokenizer = Tokenizer(tokenizer, ''.join(sorted(set(text))) if tokenizer == 'chars' else '')
    save_text(out, tokenizer, *split_text(text, tokenizer, val_share))


def tiny_shakespeare(argv, doc, out, tokenizer):
    """All that shakespeare.py and shakespeare_char.py do."""
    p = parser(doc, out)
    p.add_argument('--from', dest='source', metavar='PATH', help='a local copy of input.txt instead of the download')
    args = parse(p, argv)
    url = 'https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt'
    path = local_or_fetch(args.source, url, Path(args.out).parent / 'downloads' / 'tinyshakespeare.txt',
                          '86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed')
    tokenize_and_save(path.read_text(encoding='utf-8'), tokenizer, args.out)
