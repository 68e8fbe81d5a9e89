"""Prompts and answers: a network learns to write the answers, and sees the prompts.

    python prepare/pairs.py chat.jsonl --out data/chat
    python prepare/pairs.py chat.jsonl --tokenizer gpt2 --out data/chat
    python train.py --init_from=out/aot_owt --dataset=chat --out_dir=out/chat

Each line of the file is an object, such as {"prompt": "2+2=", "answer": "4"}. Prompt, answer and the
end of the pair follow each other, pair after pair: <|endoftext|> with gpt2 tokens, else a new line.
The loss counts the answers and the ends. The last tenth of the pairs is held out for validation.
"""  # noqa: E501 (--help shows it)
from pathlib import Path

import lib  # noqa: F401 (first: it says what to type where a library is missing)
import numpy as np

from engine.mistakes import reading, regular
from lib.inputs import arguments, choice, number, option, run
from lib.texts import decode, read_json, write_tokens
from tasks.tokenizer import Tokenizer


def encode(tokenizer, pairs):
    """(ids (n,), UTF-8 bytes, which ids count, bool (n,)) of pairs, one after the other."""
    ids = []
    counted = []
    n_bytes = 0
    for prompt, answer in pairs:
        prompt_ids = tokenizer.encode(prompt)
        # what ends a pair is what a text begins with
        answer_ids = [*tokenizer.encode(answer), tokenizer.beginning]
        ids += [*prompt_ids, *answer_ids]
        counted += [False] * len(prompt_ids) + [True] * len(answer_ids)
        n_bytes += len(prompt.encode()) + len(answer.encode()) + 1
    return np.array(ids), n_bytes, np.array(counted, bool)


def main(argv=None):
    args = arguments(
        __doc__, argv,
        option('path', 'a file of pairs, JSON lines', type=Path),
        option('--prompt', 'name of the prompts in the file', default='prompt'),
        option('--answer', 'name of the answers in the file', default='answer'),
        choice('--tokenizer', 'tokens', 'bytes', 'chars', 'gpt2'),
        number('--val', 'share of the pairs that is held out', 0.1, 0, 1))

    with reading(f'{args.path} cannot be read', 'name a file of JSON lines'):
        content = regular(args.path).read_bytes()
    lines = decode(content, args.path).split('\n')
    pairs = []
    characters = {'\n'}
    for values in read_json(lines, args.path, (args.prompt, args.answer), (str, int, float)):
        prompt, answer = map(str, values)
        pairs.append((prompt, answer))
        characters.update(prompt, answer)
    tokenizer = Tokenizer(args.tokenizer, ''.join(sorted(characters)))

    cut = int(len(pairs) * (1 - args.val))
    parts = []
    counted = {}
    for split, of_split in ('train', pairs[:cut]), ('val', pairs[cut:]):
        ids, n_bytes, counted[split] = encode(tokenizer, of_split)
        parts.append((split, ids, n_bytes))
    print(f'{len(pairs):,} pairs')
    write_tokens(args.out, tokenizer, parts, counted)


if __name__ == '__main__':
    run(main)
