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
  * Texts are scored as published, with spaces around punctuation. <unk> stays.
  * The network computes in float32 unless --dtype says otherwise: logits rounded to bfloat16 change
    the loss and create ties.

GPT-2's paper used its own de-tokenizers, and a token <UNK> of its own for <unk>, so its losses are
not matched exactly.
"""
import json
import math
from pathlib import Path

import torch
import torch.nn.functional as F
from torch.nn.utils.rnn import pad_sequence
from tqdm import tqdm

from engine.mistakes import Mistake
from engine.settings import choice_of
from engine.tables import write_rows
from tasks.checksums import digest
from tasks.files import meta_of

# {benchmark: the command in prepare/ that writes it to a data_dir}
SCRIPTS = {
    'wikitext2': 'wikitext.py --out {}/wikitext2',
    'wikitext103': 'wikitext.py --size 103 --out {}/wikitext103',
    'ptb': 'ptb.py --out {}/ptb',
    'lambada': 'lambada.py --out {}/lambada',
    'cbt_cn': 'cbt.py --out {}/cbt',  # it writes cbt_cn and cbt_ne
    'cbt_ne': 'cbt.py --out {}/cbt',
}
LOGITS_AT_ONCE = 2 ** 28  # 1 GiB in float32
COLUMNS = ['ckpt', 'step', 'benchmark', 'measure', 'value', 'count', 'unit', 'tokenizer', 'context',
           'stride']

# ---- prepared benchmarks ------------------------------------------------------------------------

def read(asked, data_dir):
    """{name: (rows, name of the file they come from)} of prepared benchmarks.

    asked: names with commas between them, or 'all' for all that are prepared. Raises Mistake for a
    benchmark that is unknown, not prepared or damaged, with the command to type. With 'all' it only
    prints which ones are missing, unless all of them are.
    """
    asked = asked.lower()
    names = list(SCRIPTS) if asked == 'all' else asked.split(',')
    benchmarks = {}
    for name in names:
        name = choice_of('benchmarks', name, SCRIPTS)
        folder = Path(data_dir, name)
        try:
            benchmarks[name] = read_folder(folder)
        except (OSError, ValueError, KeyError):
            command = f'python prepare/{SCRIPTS[name].format(data_dir)} --overwrite'
            problem = f'{folder} is missing or damaged; run: {command}'
            all_are_missing = name == names[-1] and not benchmarks
            if asked != 'all' or all_are_missing:
                raise Mistake(problem) from None
            print(problem)
    return benchmarks


def read_folder(folder):
    """(rows, name of the file they come from) of a prepared benchmark.

    Raises OSError, ValueError or KeyError if it is missing or damaged.
    """
    meta = meta_of(folder)
    path = folder / 'test.jsonl'
    if digest(path) != meta['splits']['test']['sha256']:
        raise ValueError(f'{path} has changed since it was prepared')
    rows = [json.loads(line) for line in path.read_bytes().splitlines()]
    return rows, meta['source']


# ---- nats of tokens -----------------------------------------------------------------------------

def windows(last, first, size, stride):
    """The windows that score tokens first .. last of a sequence 0 .. last.

    Yields (start, first, end) of each: its input tokens are start .. end - 1, and its scored tokens
    first .. end. Token 0 is never scored. size: the most input tokens of a window.
    """
    if last - first < size:
        end = last
    else:
        # as far as a window from the beginning reaches, or else by `stride` tokens
        end = max(size, first - 1 + stride)
    while first <= last:
        start = max(0, end - size)
        yield start, first, end
        first = end + 1
        end = min(end + stride, last)


@torch.no_grad()
def score(model, sequences, stride, batch_size, autocast, label):
    """Scores of the tokens of sequences [(tokens, first)], each from its index `first` on.

    Returns a float64 tensor (2, n) for each sequence: the nats of its n tokens, and 1 where the
    token was the most likely one, else 0. label: what the progress bar says.
    """
    c = model.config
    results = []
    jobs = []  # (number of the sequence, start, first, end) of all windows
    for number, (tokens, first) in enumerate(sequences):
        results.append(torch.zeros(2, len(tokens) - first, dtype=torch.float64))
        for window in windows(len(tokens) - 1, first, c.block_size, stride):
            jobs.append((number, *window))

    # longest first: similar lengths are in a batch, and too little memory is noticed early
    jobs.sort(key=lambda job: job[1] - job[3])
    bar = tqdm(total=len(jobs), desc=label, unit=' windows', disable=None)
    position = 0
    while position < len(jobs):
        _, start, _, end = jobs[position]
        logits_per_row = (end - start) * c.vocab_size  # this window is the longest of the batch
        n_rows = max(1, min(batch_size, LOGITS_AT_ONCE // logits_per_row))
        batch = jobs[position:position + n_rows]
        rows = []
        for number, start, _, end in batch:
            tokens, _ = sequences[number]
            rows.append(tokens[start:end + 1])
        scores = score_rows(model, rows, autocast)          # (2, B, N)

        for row, (number, start, first, end) in enumerate(batch):
            # column 0 of the scores is of token start + 1; column 0 of a result, of token offset
            new_scores = scores[:, row, first - 1 - start:end - start]
            _, offset = sequences[number]
            results[number][:, first - offset:end + 1 - offset] = new_scores
        position += len(batch)
        bar.update(len(batch))
    bar.close()
    return results


def score_rows(model, rows, autocast):
    """The scores of all tokens but the first of each row, a list of tokens: (2, rows, N), on the
    CPU, as `score` has them.

    Short rows are padded on the right, which a causal network ignores. Padding has scores too.
    """
    device = next(model.parameters()).device
    tokens = pad_sequence([torch.tensor(row) for row in rows], batch_first=True)
    x = tokens[:, :-1].to(device)                           # (B, N)
    y = tokens[:, 1:].to(device)                            # (B, N)
    with autocast:
        logits = model(x)[0]                                # (B, N, V)
    logits_of_tokens = logits.flatten(0, 1).float()         # (B N, V)
    nats = F.cross_entropy(logits_of_tokens, y.flatten(), reduction='none')
    is_most_likely = logits.argmax(2) == y                  # (B, N)
    return torch.stack((nats.view(y.shape), is_most_likely)).cpu()


# ---- kinds of benchmark: rows -> [(measure, value, count, unit)] --------------------------------

def measures(name, rows, model, tokenizer, stride, batch_size, autocast):
    """What a language model scores on the rows of a benchmark: [(measure, value, count, unit)]."""
    def score_all(sequences):
        """As `score`, of this model."""
        return score(model, sequences, stride, batch_size, autocast, name)

    if name == 'lambada':
        return last_words(rows, tokenizer, score_all)
    if name in ('cbt_cn', 'cbt_ne'):
        return cloze(rows, tokenizer, score_all, model.config.block_size)
    return whole_texts(rows, tokenizer, score_all)


def whole_texts(rows, tokenizer, score_all):
    """WikiText and Penn Treebank: {'text'} of each row."""
    texts = [row['text'] for row in rows]
    sequences = []
    for text in texts:
        tokens = [tokenizer.beginning, *tokenizer.encode(text)]
        sequences.append((tokens, 1))
    return text_measures(score_all(sequences), texts)


def text_measures(scores, texts):
    """Measures of texts, from the scores of all their tokens."""
    nats, _ = torch.cat(scores, 1)
    n_bytes = len(''.join(texts).encode())
    bits = nats.sum().item() / math.log(2)
    return [
        ('loss', nats.mean().item(), len(nats), 'tokens'),
        ('bits_per_byte', bits / n_bytes, n_bytes, 'bytes'),
    ]


def last_words(rows, tokenizer, score_all):
    """LAMBADA: {'context', 'word'} of each row."""
    texts = []
    words = []     # sequences of which the last word is scored
    passages = []  # the same ones, of which everything is
    for row in rows:
        context = row['context']
        word = ' ' + row['word']
        context_tokens = [tokenizer.beginning, *tokenizer.encode(context)]
        tokens = context_tokens + tokenizer.encode(word)
        texts.append(context + word)
        words.append((tokens, len(context_tokens)))
        passages.append((tokens, 1))

    scores = score_all(words)
    correct = 0
    for _, is_most_likely in scores:
        if is_most_likely.all():
            correct += 1
    nats, _ = torch.cat(scores, 1)
    count = len(rows)
    measures_of_words = [
        ('accuracy', correct / count, count, 'passages'),
        ('last_word_loss', nats.mean().item(), len(nats), 'tokens'),
        ('loss_per_word', nats.sum().item() / count, count, 'words'),
    ]
    return measures_of_words + text_measures(score_all(passages), texts)


def cloze(rows, tokenizer, score_all, block_size):
    """CBT: {'context', 'question', 'choices', 'answer'} of each row."""
    sequences = []
    for row in rows:
        context = ' '.join(row['context'])
        context_tokens = [tokenizer.beginning, *tokenizer.encode(context)]
        context_tokens = context_tokens[-block_size:]  # no window reaches further back
        for choice in row['choices']:
            sentence = ' ' + row['question'].replace('XXXXX', choice)
            tokens = context_tokens + tokenizer.encode(sentence)
            sequences.append((tokens, len(context_tokens)))

    scores = iter(score_all(sequences))
    correct = 0
    for row in rows:
        nats_of = {}
        for choice in row['choices']:
            nats, _ = next(scores)
            nats_of[choice] = nats.sum().item()
        prediction = min(nats_of, key=nats_of.get)  # of equal ones the first
        if prediction == row['answer']:
            correct += 1
    return [('accuracy', correct / len(rows), len(rows), 'questions')]


# ---- the table of results -----------------------------------------------------------------------

def check_table(path):
    """Raises Mistake, before any work, if `append` could not add to the table at path."""
    header = ','.join(COLUMNS)
    if path.exists() and not path.read_text().startswith(header):
        raise Mistake(f'{path} holds another table, so it is left as it is; '
                      'give another --results')


def append(path, row):
    """Add a row to a table of results. A new table begins with the names of its columns."""
    with open(path, 'a', encoding='utf-8', newline='') as f:
        if f.tell() == 0:
            write_rows(f, [COLUMNS])
        write_rows(f, [row])
