"""The Children's Book Test (Hill et al. 2016): choose the word that is missing in a sentence.

    python prepare/cbt.py                 # 120 MB; writes data/cbt_cn and data/cbt_ne
    python prepare/cbt.py --from PATH     # your CBTest.tgz, a folder, or one of the two files

A question has 20 sentences of a children's book as context, and ten words to choose from for the
gap in the 21st. The missing words are common nouns (CN) or named entities (NE). A question is stored
as lines `1 sentence` .. `20 sentence`, `21 question XXXXX<tab>answer<tab><tab>choice|choice|..` and
an empty line.

Expect 2,500 questions of each kind.
"""
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from engine.settings import Mistake, one_line_errors
from prepare.lib.benchmark import benchmark_parser, save_benchmark, texts
from prepare.lib.files import check_free

URL = 'https://huggingface.co/datasets/cam-cst/cbt/resolve/1cdc548cca1ff7416d3be8c6a91755d64d519126/data/'
FILES = {'cbtest_CN_test_2500ex.txt': 'cn', 'cbtest_NE_test_2500ex.txt': 'ne'}


def questions(text, path):
    """The text of a file -> [{'context', 'question', 'answer', 'choices'}]. A wrong line is refused
    with its number."""
    rows, context = [], []
    if not text.endswith('\n'):
        raise Mistake(f'{path} ends in the middle of a line: it is cut off; get it again')
    for number, line in enumerate(text.split('\n') + [''], 1):
        def wrong(what):
            return Mistake(f'{path}, line {number}: {what}; get the file again')
        if not line.strip():
            if context:
                raise wrong('a question is missing after the sentences')
            continue
        sentence, *rest = line.split('\t')
        found = re.fullmatch(r'(\d+) (.*)', sentence.rstrip() + ' ' * (not rest))
        if not found or int(found[1]) != len(context) + 1:
            raise wrong(f'expected `{len(context) + 1} sentence`')
        if not rest:
            context.append(found[2].strip())
            continue
        answer, choices = rest[0].strip(), [choice.strip() for choice in rest[-1].split('|') if choice.strip()]
        if 'XXXXX' not in found[2]:
            raise wrong('the question has no XXXXX')
        if len(rest) < 2 or len(choices) < 2:
            raise wrong('fewer than two choices')
        if answer not in choices:
            raise wrong(f'the answer {answer!r} is not among the choices')
        rows.append({'context': context, 'question': found[2].strip(), 'answer': answer, 'choices': choices})
        context = []
    return rows


def main(argv=None):
    p = benchmark_parser(__doc__, 'data/cbt', 'CBTest.tgz, a folder, or one of its test files')
    p.add_argument('--url', default=URL, help='where CBTest.tgz is (default: %(default)s)')
    args = p.parse_args(argv)
    one = Path(args.source or '').name
    files = [one] if one in FILES else list(FILES)
    for name in files:
        check_free(f'{args.out}_{FILES[name]}', args.overwrite)
    found, path = texts(args.source, args.url + 'CBTest.tgz', None, Path(args.out).parent / 'downloads', files)
    rows = {name: questions(found[name], path if name == path.name else f'{path}: {name}') for name in files}
    for name in files:
        out = f'{args.out}_{FILES[name]}'
        save_benchmark(out, 'cloze', rows[name], path, name)
        print(f'{out}: {len(rows[name]):,} questions; expected are 2,500')
        odd = sum((len(row['context']), len(row['choices'])) != (20, 10) for row in rows[name])
        if odd:
            print(f'{odd:,} of them do not have 20 sentences and ten choices')


if __name__ == '__main__':
    with one_line_errors():
        main()
