"""LAMBADA (Paperno et al. 2016), its test split: passages of novels whose last word is to be guessed.

    python prepare/lambada.py                    # OpenAI's version, with capitals and punctuation as printed (2 MB)
    python prepare/lambada.py --from PATH        # your lambada_test.jsonl; or the original, in lower case and words apart:
                                                 # lambada-dataset.tar.gz, a folder, or lambada_test_plain_text.txt itself

OpenAI's lines are {"text": ".."}, the original's the passage itself. The last word is what follows the last white space.

Expect 5,153 passages.
"""
import json
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from engine.settings import one_line_errors
from tasks.files import check_free
from prepare.benchmark import benchmark_parser, save_benchmark, texts

URL = 'https://openaipublic.blob.core.windows.net/gpt-2/data/'
SHA256 = '4aa8d02cd17c719165fc8a7887fddd641f43fcafa4b1c806ca8abc31fabdb226'
FILES = ['lambada_test.jsonl', 'lambada_test_plain_text.txt']


def passages(text, path):
    """Lines of either version -> {'context', 'word'}. Raises ValueError with the number of the line that does not fit."""
    is_json, rows = path.suffix == '.jsonl' or re.search(r'^\s*\{"', text, re.M), []
    for number, line in enumerate(text.split('\n'), 1):
        if not line.strip():
            continue
        if is_json:
            try:
                line = json.loads(line)['text']
                line.encode()  # half a surrogate pair is no text
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
                raise ValueError(f'{path}, line {number}: expected {{"text": ".."}}; get the file again') from None
        parts = line.rsplit(None, 1)
        if len(parts) < 2:
            raise ValueError(f'{path}, line {number}: a passage of {len(parts)} words; there must be two, to guess the last')
        rows.append({'context': parts[0], 'word': parts[1]})
    return rows


def main(argv=None):
    p = benchmark_parser(__doc__, 'data/lambada', ', '.join(FILES) + ', lambada-dataset.tar.gz, or a folder')
    p.add_argument('--url', default=URL, help='where lambada_test.jsonl is (default: %(default)s)')
    args = p.parse_args(argv)
    check_free(args.out, args.overwrite)
    found, path = texts(args.source, args.url + FILES[0], SHA256, Path(args.out).parent / 'downloads', FILES, enough=any)
    name, text = next((name, found[name]) for name in FILES if name in found)
    rows = passages(text, path)
    save_benchmark(args.out, 'last_word', rows, path, name)
    print(f'{args.out}: {len(rows):,} passages; expected are 5,153')


if __name__ == '__main__':
    with one_line_errors():
        main()
