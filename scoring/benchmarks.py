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
from torch.nn.utils.rnn import pad_sequence
from tqdm import tqdm

from engine.figures import check_free
from engine.settings import Mistake, check_choice

# benchmark: the script in prepare/ that writes it to a data_dir
SCRIPTS = {'wikitext2': 'wikitext.py --out {}/wikitext2', 'wikitext103': 'wikitext.py --size 103 --out {}/wikitext103',
           'ptb': 'ptb.py --out {}/ptb', 'lambada': 'lambada.py --out {}/lambada', 'cbt_cn': 'cbt.py --out {}/cbt',
           'cbt_ne': 'cbt.py --out {}/cbt'}
LOGITS_AT_ONCE = 2 ** 28  # 1 GiB in float32
COLUMNS = ['ckpt', 'step', 'benchmark', 'measure', 'value', 'count', 'unit', 'tokenizer', 'context', 'stride',
           'detokenize']

DETOKENIZE = {
    r' @([-,.])@ ': r'\1',                              # WikiText: twenty @-@ two, 1 @,@ 000, 0 @.@ 5
    r'" ([^"\n]+) "': r'"\1"',                          # its quotation marks, in pairs within a line
    r"`` ?| ?''": '"',                                  # Penn Treebank's, in CBT
    r'-LRB- ?': '(', r' ?-RRB-': ')',                   # its brackets
    r" (n't|'(?:s|re|ve|ll|d|m))\b": r'\1',             # did n't, Teddy 's
    r' ([,.;:!?%)\]}])': r'\1',                         # no space before these,
    r'([(\[{$£]) ': r'\1',                              # nor after these,
    r' *\n *': '\n'}                                    # nor at the end or start of a line


def detokenize(text):
    for pattern, into in DETOKENIZE.items():
        text = re.sub(pattern, into, text)
    return text


# ---- prepared benchmarks --------------------------------------------------------------------------------------------

def read(asked, data_dir):
    """{name: (rows, name of their file)} of the benchmarks in `asked`, with commas between them, or of 'all' of those
    that are prepared. Raises Mistake for one that is unknown, not prepared or damaged, with the command to type."""
    found, names = {}, list(SCRIPTS) if asked == 'all' else asked.split(',')
    for name in names:
        check_choice('benchmarks', name, SCRIPTS)
        folder = Path(data_dir, name)
        try:
            meta = json.loads((folder / 'meta.json').read_text(encoding='utf-8'))
            content = (folder / 'test.jsonl').read_bytes()
            assert hashlib.sha256(content).hexdigest() == meta['splits']['test']['sha256']
            found[name] = [json.loads(line) for line in content.splitlines()], meta['source']
        except (OSError, ValueError, KeyError, AssertionError):
            said = f'{folder} is missing or damaged; run: python prepare/{SCRIPTS[name].format(data_dir)} --overwrite'
            if asked != 'all' or name == names[-1] and not found:
                raise Mistake(said) from None
            print(said)
    return found


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
    """Sequences [(tokens, first)] -> a tensor for each, float64 (2, n): the nats of its n tokens from
    index `first` on, and 1 where the token was the most likely one, else 0. Short rows of a batch
    are padded on the right, which a causal network ignores."""
    c, device = model.config, next(model.parameters()).device
    found = [torch.zeros(2, len(tokens) - first, dtype=torch.float64) for tokens, first in sequences]
    jobs = [(i, *window) for i, (tokens, first) in enumerate(sequences)
            for window in windows(len(tokens) - 1, first, c.block_size, stride)]
    jobs.sort(key=lambda job: job[1] - job[3])  # longest first: similar lengths in a batch, and memory fails early
    bar = tqdm(total=len(jobs), desc=label, unit=' windows', disable=None)
    while jobs:
        _, start, _, end = jobs[0]
        rows = max(1, min(batch_size, LOGITS_AT_ONCE // ((end - start) * c.vocab_size)))
        batch, jobs = jobs[:rows], jobs[rows:]
        tokens = pad_sequence([torch.tensor(sequences[i][0][start:end + 1]) for i, start, _, end in batch], True)
        x, y = tokens[:, :-1].to(device), tokens[:, 1:].to(device)                                  # (B, N)
        with autocast:
            logits = model(x)[0]                                                                    # (B, N, V)
        nats = F.cross_entropy(logits.flatten(0, 1).float(), y.flatten(), reduction='none').view(y.shape)
        scores = torch.stack((nats, logits.argmax(2) == y)).cpu()                                   # (2, B, N)
        for row, (i, start, a, end) in enumerate(batch):
            first = sequences[i][1]
            found[i][:, a - first:end + 1 - first] = scores[:, row, a - 1 - start:end - start]
        bar.update(len(batch))
    bar.close()
    return found


# ---- kinds of benchmark: rows -> [(measure, value, count, unit)] ----------------------------------------------------

def whole(found, texts):
    """Measures of whole texts, from the scores of their tokens."""
    nats, _ = torch.cat(found, 1)
    n_bytes = len(''.join(texts).encode())
    return [('loss', nats.mean().item(), len(nats), 'tokens'),
            ('bits_per_byte', nats.sum().item() / math.log(2) / n_bytes, n_bytes, 'bytes')]


def text(rows, tokenizer, clean, block_size, score):
    texts = [clean(row['text']) for row in rows]
    return whole(score([([tokenizer.beginning, *tokenizer.encode(text)], 1) for text in texts]), texts)


def last_word(rows, tokenizer, clean, block_size, score):
    texts, words = [], []
    for row in rows:
        context, word = clean(row['context']), ' ' + row['word']
        before = [tokenizer.beginning, *tokenizer.encode(context)]
        texts.append(context + word)
        words.append((before + tokenizer.encode(word), len(before)))
    last = score(words)
    nats, _ = torch.cat(last, 1)
    right = sum(found[1].all().item() for found in last)
    return [('accuracy', right / len(rows), len(rows), 'passages'),
            ('last_word_loss', nats.mean().item(), len(nats), 'tokens'),
            ('loss_per_word', nats.sum().item() / len(rows), len(rows), 'words'),
            *whole(score([(tokens, 1) for tokens, _ in words]), texts)]


def cloze(rows, tokenizer, clean, block_size, score):
    sequences = []
    for row in rows:
        context = [tokenizer.beginning, *tokenizer.encode(clean(' '.join(row['context'])))]
        context = context[-block_size:]  # no window reaches further back
        for choice in row['choices']:
            sentence = ' ' + clean(row['question'].replace('XXXXX', choice))
            sequences.append((context + tokenizer.encode(sentence), len(context)))
    sums, right = iter([found[0].sum().item() for found in score(sequences)]), 0
    for row in rows:
        nats = {choice: next(sums) for choice in row['choices']}
        right += min(nats, key=nats.get) == row['answer']
    return [('accuracy', right / len(rows), len(rows), 'questions')]


def measures(name, rows, model, tokenizer, stride, batch_size, autocast, clean=str):
    """The scores of a language model on the rows of a benchmark: [(measure, value, count, unit)].
    clean: `detokenize`, or str for the texts as published."""
    kind = {'lambada': last_word, 'cbt_cn': cloze, 'cbt_ne': cloze}.get(name, text)
    return kind(rows, tokenizer, clean, model.config.block_size,
                lambda sequences: score(model, sequences, stride, batch_size, autocast, name))


# ---- the table of results -------------------------------------------------------------------------------------------

def check_table(path):
    """Raises Mistake, before any work, if `append` could not add to the table at path."""
    check_free(path, True, '--results', ['.csv'])
    if path.exists() and not path.read_text().startswith(','.join(COLUMNS)):
        raise Mistake(f'{path} holds another table, so it is left as it is; give another --results')


def append(path, row):
    """Add a row to a table of results."""
    with open(path, 'a', encoding='utf-8', newline='') as f:
        csv.writer(f, lineterminator='\n').writerows([row] if f.tell() else [COLUMNS, row])
