"""The test split of LAMBADA (Paperno et al. 2016): guess the last word of a passage from a novel.

    python prepare/lambada.py                    # downloads OpenAI's version (2 MB)
    python prepare/lambada.py --from PATH        # or reads your copy

OpenAI's version has the capitals and punctuation of the printed books: lambada_test.jsonl. The
original is in lower case, with spaces around punctuation: lambada-dataset.tar.gz or
lambada_test_plain_text.txt. PATH is one of these files, or a folder with one. A line of OpenAI's
file is {"text": ".."}, a line of the original is the passage itself. The last word is what follows
the last white space.

Expect 5,153 passages.
"""
import json
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from engine.settings import Mistake, one_line_errors
from prepare.lib.benchmark import benchmark_parser, save_benchmark, texts
from prepare.lib.command_line import parse

URL = 'https://openaipublic.blob.core.windows.net/gpt-2/data/'
SHA256 = '4aa8d02cd17c719165fc8a7887fddd641f43fcafa4b1c806ca8abc31fabdb226'
FILES = ['lambada_test.jsonl', 'lambada_test_plain_text.txt']


def passages(text, path):
    """Lines of either version -> [{'context', 'word'}]. A wrong line is refused with its number."""
    is_json, rows = path.suffix == '.jsonl' or re.search(r'^\s*\{"', text, re.M), []
    for number, line in enumerate(text.split('\n'), 1):
        if not line.strip():
            continue
        if is_json:
            try:
                line = json.loads(line)['text']
                line.encode()  # fails for half a surrogate pair
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
                raise Mistake(f'{path}, line {number}: expected {{"text": ".."}}; get the file again') from None
        parts = line.rsplit(None, 1)
        if len(parts) < 2:
            raise Mistake(f'{path}, line {number}: a passage of {len(parts)} words; it needs at least two; '
                          'get the file again')
        rows.append({'context': parts[0], 'word': parts[1]})
    return rows


def main(argv=None):
    p = benchmark_parser(__doc__, 'data/lambada', ', '.join(FILES) + ', lambada-dataset.tar.gz, or a folder')
    p.add_argument('--url', default=URL, help='where lambada_test.jsonl is (default: %(default)s)')
    args = parse(p, argv)
    downloads = Path(args.out).parent / 'downloads'
    found, path = texts(args.source, args.url + FILES[0], SHA256, downloads, FILES, enough=any)
    name, text = next((name, found[name]) for name in FILES if name in found)
    rows = passages(text, path)
    save_benchmark(args.out, 'last_word', rows, path, name)
    print(f'{args.out}: {len(rows):,} passages; expected are 5,153')


if __name__ == '__main__':
    with one_line_errors():
        main()
