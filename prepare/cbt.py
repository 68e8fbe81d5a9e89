"""The Children's Book Test (Hill et al. 2016): choose the word that is missing in a sentence.

    python prepare/cbt.py                 # 120 MB; writes data/cbt_cn and data/cbt_ne
    python prepare/cbt.py --from PATH     # your CBTest.tgz

A question has 20 sentences of a children's book as context, and ten words to choose from for the
gap in the 21st. The missing words are common nouns (CN) or named entities (NE). A question is stored
as lines `1 sentence` .. `20 sentence`, `21 question XXXXX<tab>answer<tab><tab>choice|choice|..` and
an empty line.

The archive is compared with the checksum that Hugging Face sends with it.

Expect 2,500 questions of each kind.
"""  # noqa: E501 (--help shows it)
import re

from lib.inputs import (
    Mistake, arguments, local, local_or_fetch, reading, run, tar_named)
from lib.texts import decode, save_benchmark

URL = ('https://huggingface.co/datasets/cam-cst/cbt/resolve/'
       '1cdc548cca1ff7416d3be8c6a91755d64d519126/data/CBTest.tgz')
# {file in the archive: what the name of its folder ends with}
FILES = {'cbtest_CN_test_2500ex.txt': '_cn', 'cbtest_NE_test_2500ex.txt': '_ne'}


def read_questions(text, name):
    """[{'context': [..], 'question': .., 'answer': .., 'choices': [..]}] of the text of a file.
    Raises Mistake, with the number of the question, for another text."""
    if not text.endswith('\n'):
        raise Mistake(f'{name} is missing, or ends within a question; remove it, and get it '
                      'again')
    rows = []
    for number, lines in enumerate(re.split(r'\n\s*\n', text.strip()), 1):
        with reading(f'{name}, question {number} is not numbered sentences, a question, its answer '
                     'and choices'):
            rows.append(read_question(lines))
    return rows


def read_question(lines):
    """One question as a dict. Raises ValueError for other lines."""
    sentences = [line.partition(' ')[2].strip() for line in lines.split('\n')]  # without numbers
    *context, last_line = sentences
    question, answer, *_, choices = [words.strip() for words in last_line.split('\t')]
    choices = [word.strip() for word in choices.split('|') if word.strip()]
    if 'XXXXX' not in question or answer not in choices or len(choices) < 2:
        raise ValueError('a question without a gap, or without its answer')
    return {'context': context, 'question': question, 'answer': answer, 'choices': choices}


def main(argv=None):
    args = arguments(
        __doc__, argv,
        local('CBTest.tgz, instead of the download'),
        out='data/cbt', ends=FILES.values())

    path = local_or_fetch(args, URL)
    files = dict(tar_named(path, lambda name: name in FILES))
    questions = {}
    for name in FILES:
        text = decode(files.get(name, b''), name)
        questions[name] = read_questions(text, f'{path}: {name}')
    # nothing is written before both are read
    for name, end in FILES.items():
        save_benchmark(args.out + end, 'cloze', questions[name], path.name)


if __name__ == '__main__':
    run(main)
