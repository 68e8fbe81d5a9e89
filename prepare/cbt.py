"""The Children's Book Test (Hill et al. 2016): choose the word that is missing in a sentence.

    python prepare/cbt.py                 # 120 MB; writes data/cbt_cn and data/cbt_ne
    python prepare/cbt.py --from PATH     # your CBTest.tgz

A question has 20 sentences of a children's book as context, and ten words to choose from for the
gap in the 21st. The missing words are common nouns (CN) or named entities (NE). A question is stored
as lines `1 sentence` .. `20 sentence`, `21 question XXXXX<tab>answer<tab><tab>choice|choice|..` and
an empty line.

The archive is compared with the checksum that Hugging Face sends with it.

Expect 2,500 questions of each kind.
"""
import re

from lib.inputs import Mistake, dataset, local, local_or_fetch, reading, tar_named
from lib.texts import decode, save_benchmark

URL = 'https://huggingface.co/datasets/cam-cst/cbt/resolve/1cdc548cca1ff7416d3be8c6a91755d64d519126/data/CBTest.tgz'


def questions(text, name):
    """[{'context': [..], 'question': .., 'answer': .., 'choices': [..]}] of a text."""
    if not text.endswith('\n'):
        raise Mistake(f'{name} is missing, or ends within a question; get it again')
    rows = []
    for number, part in enumerate(re.split(r'\n\s*\n', text.strip()), 1):
        with reading(f'{name}, question {number} is not numbered sentences, a question, its answer and choices'):
            *context, asked = (line.partition(' ')[2].strip() for line in part.split('\n'))  # without its number
            question, answer, *_, choices = (words.strip() for words in asked.split('\t'))
            choices = [word.strip() for word in choices.split('|') if word.strip()]
            assert 'XXXXX' in question and answer in choices and len(choices) > 1
            rows.append({'context': context, 'question': question, 'answer': answer, 'choices': choices})
    return rows


@dataset(__name__, 'data/cbt', local('CBTest.tgz, instead of the download'), ends=('_cn', '_ne'))
def main(args):
    outs = {'cbtest_CN_test_2500ex.txt': f'{args.out}_cn', 'cbtest_NE_test_2500ex.txt': f'{args.out}_ne'}
    path = local_or_fetch(args, URL)
    files = dict(tar_named(path, lambda name: name in outs))
    rows = {name: questions(decode(files.get(name, b''), name), name) for name in outs}
    for name, out in outs.items():
        save_benchmark(out, 'cloze', rows[name], path.name)
