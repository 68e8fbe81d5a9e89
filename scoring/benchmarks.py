"""Zero-shot language benchmarks, as in the tables of GPT-2 and AoT.

    python eval.py --ckpt=out/aot_owt --benchmarks=all

    wikitext2, wikitext103, ptb   loss and bits per byte of a text
    lambada                       the last word of a passage: its loss, and how often it is right
    cbt_cn, cbt_ne                which of ten words is missing in a sentence: how often it is right

The protocol:

  * Tokens are those of the checkpoint's tokenizer. A loss is the mean over all tokens of the
    benchmark, in nats. Losses of two tokenizers cannot be compared; bits per byte can: the nats of
    all tokens / ln 2 / the bytes of the text in UTF-8.
  * Each text follows the token that starts texts (GPT-2's <|endoftext|>, else a new line), so its
    first token is predicted too. WikiText and Penn Treebank are one text each.
  * A text longer than the context of B tokens is scored in windows of B tokens. The first window
    scores all its tokens. Each later window starts `stride` tokens after the one before (the last
    one ends with the text) and scores only the new tokens. So every token counts once, and each one
    after the first B is predicted from B - stride + 1 to B tokens. stride is half of B by default.
  * LAMBADA: the last word is what follows the last white space. It is scored as ' word', tokenized
    separately from the context. If both together do not fit, the last tokens of the context are
    kept. The word counts as correct if each of its tokens is the most likely one given the tokens
    before it, as greedy decoding would write it. The loss over whole passages 'context word' is
    reported too.
  * CBT: XXXXX is replaced by each choice in turn. The sentence is scored as ' sentence' after the
    20 others, joined by spaces; if they do not fit, their last tokens are kept. The prediction is
    the choice whose sentence has the highest sum of log-probabilities; of equal ones, the first.
  * A word or sentence of more than B tokens is scored in windows, as a text is. Its first window
    ends `stride` tokens into it, or at the B-th token of all if that is later.
  * Texts are scored as published, with spaces around punctuation, unless `detokenize` removes these
    by the rules of DETOKENIZE. It treats each part separately (LAMBADA: the context; CBT: the
    context, the sentence), and bytes are counted afterwards. <unk> stays.
  * The network computes in float32 unless --dtype says otherwise: logits rounded to bfloat16 change
    the loss and create ties.

GPT-2's paper used its own de-tokenizers, and a token <UNK> of its own for <unk>, so its losses are
not matched exactly."""
import csv
import hashlib
import json
import math
import re
from pathlib import Path

import torch
import torch.nn.functional as F
from tqdm import tqdm

from engine.settings import Mistake

# benchmark: the script in prepare/ that writes it
SCRIPTS = {'wikitext2': 'wikitext.py', 'wikitext103': 'wikitext.py --size 103', 'ptb': 'ptb.py',
           'lambada': 'lambada.py', 'cbt_cn': 'cbt.py', 'cbt_ne': 'cbt.py'}
TASKS = {name: {'l': 'last_word', 'c': 'cloze'}.get(name[0], 'text') for name in SCRIPTS}
LOGITS_AT_ONCE = 2 ** 28  # 1 GiB in float32
COLUMNS = ('ckpt', 'step', 'benchmark', 'measure', 'value', 'count', 'unit', 'tokenizer', 'context', 'stride',
           'detokenize')

DETOKENIZE = [(re.compile(pattern), into) for pattern, into in (
    (r' @([-,.])@ ', r'\1'),                            # WikiText: twenty @-@ two, 1 @,@ 000, 0 @.@ 5
    (r'" ([^"\n]+) "', r'"\1"'),                        # its quotation marks, in pairs within a line
    (r'`` ?', '"'), (r" ?''", '"'),                     # Penn Treebank's, in CBT
    (r'-LRB- ?', '('), (r' ?-RRB-', ')'),               # its brackets
    (r" (n't|'(?:s|re|ve|ll|d|m))\b", r'\1'),           # did n't, Teddy 's
    (r' ([,.;:!?%)\]}])', r'\1'),                       # no space before these,
    (r'([(\[{$£]) ', r'\1'),                            # nor after these,
    (r' *\n *', '\n'))]                                 # nor at the end or start of a line


def detokenize(text):
    for pattern, into in DETOKENIZE:
        text = pattern.sub(into, text)
    return text


# ---- prepared benchmarks --------------------------------------------------------------------------------------------

def command(name, data_dir, more=''):
    out = f' --out {Path(data_dir) / name.removesuffix("_cn").removesuffix("_ne")}' * (Path(data_dir) != Path('data'))
    return f'python prepare/{SCRIPTS[name]}{out}{more}'


def chosen(asked, data_dir):
    """The names in `asked`, with commas between them, or of 'all' those that are prepared. Raises Mistake for one that
    is unknown or not prepared, with the command to type."""
    names = list(SCRIPTS) if asked == 'all' else [name.strip() for name in asked.split(',')]
    there = [name for name in names if (Path(data_dir) / name / 'meta.json').exists()]
    for name in names:
        if name not in SCRIPTS:
            raise Mistake(f"unknown benchmark '{name}'; choose among {', '.join(SCRIPTS)}, or all")
        if name not in there:
            said = f'{Path(data_dir) / name} is not prepared; run: {command(name, data_dir)}'
            if asked != 'all' or not there:
                raise Mistake(said)
            print(said)
    return there


def read(name, data_dir):
    """(rows of a prepared benchmark, name of their file). Raises Mistake if it is damaged."""
    folder = Path(data_dir) / name
    try:
        meta = json.loads((folder / 'meta.json').read_text(encoding='utf-8'))
        content = (folder / 'test.jsonl').read_bytes()
        assert hashlib.sha256(content).hexdigest() == meta['splits']['test']['sha256']
        return [json.loads(line) for line in content.decode().split('\n')[:-1]], meta['source']
    except (OSError, ValueError, KeyError, TypeError, AssertionError):
        raise Mistake(f'{folder} is damaged; run: {command(name, data_dir, " --overwrite")}') from None


# ---- scoring --------------------------------------------------------------------------------------------------------

def windows(n, first, size, stride):
    """The windows that score tokens first .. n of a sequence 0 .. n: (start, a, end), with input
    tokens start .. end - 1 and scored tokens a .. end. Token 0 is never scored."""
    end = n if n - first < size else max(size, first - 1 + stride)
    while first <= n:
        yield max(0, end - size), first, end
        first, end = end + 1, min(end + stride, n)


@torch.no_grad()
def score(model, sequences, stride, batch_size, autocast, label=''):
    """Sequences [(tokens, first)] -> two lists of tensors: the nats of the tokens from index
    `first` on, float64, and whether each was the most likely one. Short rows of a batch are padded
    on the right, which a causal network ignores."""
    size, device = model.config.block_size, next(model.parameters()).device
    jobs = [(i, *window) for i, (tokens, first) in enumerate(sequences)
            for window in windows(len(tokens) - 1, first, size, stride)]
    jobs.sort(key=lambda job: job[1] - job[3])  # longest first: similar lengths in a batch, and memory fails early
    nats = [torch.zeros(len(tokens) - first, dtype=torch.float64) for tokens, first in sequences]
    right = [torch.zeros(len(tokens) - first, dtype=torch.bool) for tokens, first in sequences]
    with autocast:
        vocab_size = model(torch.zeros(1, 1, dtype=torch.long, device=device))[0].size(-1)
    bar, done = tqdm(total=len(jobs), desc=label, unit=' windows', disable=None), 0
    while done < len(jobs):
        N = jobs[done][3] - jobs[done][1]
        batch = jobs[done:done + max(1, min(batch_size, LOGITS_AT_ONCE // (N * vocab_size)))]
        x, y = torch.zeros(len(batch), N, dtype=torch.long), torch.full((len(batch), N), -1)        # (B, N)
        for row, (i, start, first, end) in enumerate(batch):
            tokens = torch.as_tensor(sequences[i][0][start:end + 1])
            x[row, :end - start], y[row, first - 1 - start:end - start] = tokens[:-1], tokens[first - start:]
        with autocast:
            logits = model(x.to(device))[0].flatten(0, 1)                                           # (B N, V)
        losses = F.cross_entropy(logits.float(), y.flatten().to(device), ignore_index=-1, reduction='none')
        losses, hits = losses.view(y.shape).cpu().double(), logits.argmax(1).view(y.shape).cpu() == y
        for (i, _, first, end), mine, hit, new in zip(batch, losses, hits, y >= 0):
            place = slice(first - sequences[i][1], end + 1 - sequences[i][1])
            nats[i][place], right[i][place] = mine[new], hit[new]
        bar.update(len(batch))
        done += len(batch)
    bar.close()
    return nats, right


# ---- kinds of benchmark: rows -> [(measure, value, count, unit)] ----------------------------------------------------

def whole(nats, texts):
    """Measures of whole texts, from the nats of their tokens."""
    total, tokens = sum(n.sum().item() for n in nats), sum(map(len, nats))
    n_bytes = sum(len(text.encode()) for text in texts)
    return [('loss', total / tokens, tokens, 'tokens'),
            ('bits_per_byte', total / math.log(2) / n_bytes, n_bytes, 'bytes')]


def text(rows, encode, begin, block_size, clean, score):
    texts = [clean(row['text']) for row in rows]
    return whole(score([([begin, *encode(t)], 1) for t in texts])[0], texts)


def last_word(rows, encode, begin, block_size, clean, score):
    contexts, words = [clean(row['context']) for row in rows], [' ' + row['word'] for row in rows]
    targets = [encode(word) for word in words]
    passages = [[begin, *encode(context), *target] for context, target in zip(contexts, targets)]
    nats, right = score([(tokens, 1) for tokens in passages])
    last = [(n[-len(t):], r[-len(t):]) for n, r, t in zip(nats, right, targets)]
    long = [i for i, tokens in enumerate(passages) if len(tokens) > block_size + 1]  # of these, score the word alone
    for i, *both in zip(long, *score([(passages[i], len(passages[i]) - len(targets[i])) for i in long])):
        last[i] = both
    total, tokens = sum(n.sum().item() for n, _ in last), sum(map(len, targets))
    return [('accuracy', sum(r.all().item() for _, r in last) / len(rows), len(rows), 'passages'),
            ('last_word_loss', total / tokens, tokens, 'tokens'),
            ('loss_per_word', total / len(rows), len(rows), 'words'),
            *whole(nats, [context + word for context, word in zip(contexts, words)])]


def cloze(rows, encode, begin, block_size, clean, score):
    sequences = []
    for row in rows:
        context = [begin, *encode(clean(' '.join(row['context'])))][-block_size:]  # no window reaches further back
        for choice in row['choices']:
            sentence = encode(' ' + clean(row['question'].replace('XXXXX', choice)))
            sequences.append((context + sentence, len(context)))
    sums, right = iter([n.sum().item() for n in score(sequences)[0]]), 0
    for row in rows:
        nats = [next(sums) for _ in row['choices']]
        right += row['choices'][nats.index(min(nats))] == row['answer']
    return [('accuracy', right / len(rows), len(rows), 'questions')]


def measures(name, rows, model, tokenizer, stride, batch_size, autocast, clean=str):
    """The scores of a language model on the rows of a benchmark: [(measure, value, count, unit)].
    clean: `detokenize`, or str for the texts as published."""
    kind = {'text': text, 'last_word': last_word, 'cloze': cloze}[TASKS[name]]
    try:
        return kind(rows, tokenizer.encode, tokenizer.beginning, model.config.block_size, clean,
                    lambda sequences: score(model, sequences, stride, batch_size, autocast, name))
    except Mistake as e:  # a character that the tokenizer lacks
        raise Mistake(f'{name}: {e}') from None


def stride_for(asked, block_size):
    """Tokens between windows: as asked, or for 0 half the context."""
    stride = asked or max(1, block_size // 2)
    if not 1 <= stride <= block_size:
        raise Mistake(f'--stride={asked} must lie between 1 and the context of {block_size} tokens, or be 0 for '
                      'half of it')
    return stride


# ---- the table of results -------------------------------------------------------------------------------------------

def check_table(path):
    """Raises Mistake, before any work, if `append` could not add to the table at path."""
    if not path.parent.is_dir():
        raise Mistake(f'no folder {path.parent} for the results; make it, or give another --results=PATH')
    if path.exists() and not path.read_bytes().startswith(','.join(COLUMNS).encode() + b'\n'):
        raise Mistake(f'{path} is no table of such results, so it is left as it is; give another --results=PATH')


def append(path, rows):
    """Add rows to a table of results."""
    with open(path, 'a', encoding='utf-8', newline='\n') as f:
        csv.writer(f, lineterminator='\n').writerows(rows if f.tell() else [COLUMNS, *rows])
