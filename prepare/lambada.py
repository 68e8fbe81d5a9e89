"""The test split of LAMBADA (Paperno et al. 2016): guess the last word of a passage from a novel.

    python prepare/lambada.py                    # downloads OpenAI's version (2 MB)
    python prepare/lambada.py --from PATH        # or reads your copy

OpenAI's version has the capitals and punctuation of the printed books: lambada_test.jsonl. The
original is in lower case, with spaces around punctuation: lambada_test_plain_text.txt in its archive.
PATH is one of these files. A line of OpenAI's file is {"text": ".."}, a line of the original is the
passage itself. The last word is what follows the last white space.

Expect 5,153 passages.
"""  # noqa: E501 (--help shows it)
import json
import re

from lib.inputs import arguments, local, local_or_fetch, reading, run
from lib.texts import decode, save_benchmark

URL = 'https://openaipublic.blob.core.windows.net/gpt-2/data/lambada_test.jsonl'
SHA256 = '4aa8d02cd17c719165fc8a7887fddd641f43fcafa4b1c806ca8abc31fabdb226'


def read_passages(text, source):
    """[{'context': .., 'word': ..}] of the lines of a text of either version. Raises Mistake, with
    the number of the line, for another line."""
    is_json = re.search(r'^\s*\{\s*"', text, re.M)
    rows = []
    for number, line in enumerate(text.split('\n'), 1):
        if not line.strip():
            continue
        with reading(f'{source}, line {number} is no passage of at least two words'):
            passage = json.loads(line)['text'] if is_json else line
            context, word = passage.rsplit(None, 1)
            rows.append({'context': context, 'word': word})
    return rows


def main(argv=None):
    args = arguments(
        __doc__, argv,
        local('a file of either version, instead of the download'),
        out='data/lambada')

    path = local_or_fetch(args, URL, None if args.source else SHA256)
    passages = read_passages(decode(path.read_bytes(), path), path)
    save_benchmark(args.out, 'last_word', passages, path.name)


if __name__ == '__main__':
    run(main)
