"""Zero-shot language benchmarks, as in the tables of GPT-2 and of AoT: `python eval.py --ckpt=PATH --benchmarks=all`.

    wikitext2, wikitext103, ptb     loss and bits per byte of a text
    lambada                         the last word of a passage: its loss, and how often it is guessed
    cbt_cn, cbt_ne                  which of ten words is missing in a sentence: how often it is found

The protocol.

  * Tokens are those of the checkpoint's tokenizer. A loss is in nats: the mean over all tokens of the benchmark, so losses of
    two tokenizers do not compare; bits per byte = nats of all tokens / ln 2 / bytes of the text in UTF-8 do.
  * Each text follows the token that the tokenizer begins texts with (GPT-2's <|endoftext|>, else a new line): all its tokens
    are predicted, the first one too. WikiText and Penn Treebank are one text.
  * A text longer than the context of B tokens is scored in windows of B. The first one scores B tokens. Each next one is
    `stride` tokens further, the last one as far as there is text, and scores what no window before it did: every token
    counts once, and each beyond the first B is predicted from B - stride + 1 to B tokens. stride is half of B unless given.
  * LAMBADA: the last word is what follows the last white space. It is scored as ' word', tokenized apart from what is before
    it, of which the last tokens are kept if all do not fit. It is guessed if each of its tokens is the likeliest one given
    those before, which is to say if greedy decoding writes it. The loss over whole passages is there too, 'context word'.
  * CBT: XXXXX is replaced by each of the choices. The sentence is scored as ' sentence' after the 20 others, joined by
    spaces; the last of their tokens are kept if all do not fit. The choice whose sentence has the largest sum of
    log-probabilities is taken; of equals the first one listed.
  * Such a word or sentence of more than B tokens is scored in windows as a text is; the first ends `stride` tokens into it,
    or at the B-th token of all if that is later.
  * Texts are scored as they were published, with spaces around punctuation, unless `detokenize` undoes these by the rules
    of DETOKENIZE. It does so for each part alone (LAMBADA: the context; CBT: the context, the sentence), and bytes are
    counted after it. <unk> stays.
  * The model computes in float32 unless --dtype says otherwise: rounding logits to bfloat16 changes losses, and makes ties.

GPT-2's paper used de-tokenizers of its own, and took a model's own <UNK> for <unk>, so its losses are not matched exactly.
"""
import csv
import difflib
import hashlib
import io
import json
import math
import re
from pathlib import Path

import torch
import torch.nn.functional as F
from tqdm import tqdm

from engine.run import check_writable, folder_of, write_file
from tasks.tokenizer import Tokenizer

# what prepares them
SCRIPTS = {'wikitext2': 'wikitext.py', 'wikitext103': 'wikitext.py --size 103', 'ptb': 'ptb.py', 'lambada': 'lambada.py',
           'cbt_cn': 'cbt.py', 'cbt_ne': 'cbt.py'}
TASKS = {name: {'l': 'last_word', 'c': 'cloze'}.get(name[0], 'text') for name in SCRIPTS}
LOGITS_AT_ONCE = 2 ** 28  # 1 GiB in float32
COLUMNS = ('ckpt', 'step', 'benchmark', 'measure', 'value', 'count', 'unit', 'tokenizer', 'context', 'stride', 'detokenize')

DETOKENIZE = [(re.compile(pattern), into) for pattern, into in (
    (r' @([-,.])@ ', r'\1'),                            # WikiText: twenty @-@ two, 1 @,@ 000, 0 @.@ 5
    (r'" ([^"\n]+) "', r'"\1"'),                        # its quotation marks, in pairs within a line
    (r'`` ?', '"'), (r" ?''", '"'),                     # Penn Treebank's, in CBT
    (r'-LRB- ?', '('), (r' ?-RRB-', ')'),               # its brackets
    (r" (n't|'(?:s|re|ve|ll|d|m))\b", r'\1'),           # did n't, Teddy 's
    (r' ([,.;:!?%)\]}])', r'\1'),                       # no space before these
    (r'([(\[{$£]) ', r'\1'),                            # nor after these
    (r' *\n *', '\n'))]                                 # nor where a line ends or begins


def detokenize(text):
    for pattern, into in DETOKENIZE:
        text = pattern.sub(into, text)
    return text


# ---- what is prepared ---------------------------------------------------------------------------------------------------


def command(name, data_dir, more=''):
    out = f' --out {Path(data_dir) / name.removesuffix("_cn").removesuffix("_ne")}' * (Path(data_dir) != Path('data'))
    return f'python prepare/{SCRIPTS[name]}{out}{more}'


def chosen(asked, data_dir):
    """The names that were asked for. Raises ValueError for one that is unknown or not prepared, with what to type."""
    there = [name for name in SCRIPTS if (Path(data_dir) / name / 'meta.json').exists()]
    names = [name.strip() for name in asked.split(',')]
    for name in names:
        if name not in (*SCRIPTS, 'all'):
            near = difflib.get_close_matches(name, [*SCRIPTS, 'all'], 1)
            raise ValueError(f"unknown benchmark '{name}'; " + (f'did you mean {near[0]}?' if near else
                                                                f'choose among {", ".join(SCRIPTS)}, or all'))
    if 'all' in names:
        for name in SCRIPTS:
            if name not in there:
                print(f'{name} is not prepared; run: {command(name, data_dir)}')
        if not there:
            raise ValueError(f'no benchmark is prepared in {data_dir}; run for example: {command("lambada", data_dir)}')
        return there
    for name in names:
        if name not in there:
            raise ValueError(f'{Path(data_dir) / name} is not prepared; run: {command(name, data_dir)}')
    return list(dict.fromkeys(names))


def read(name, data_dir):
    """The rows of a benchmark that prepare/ wrote, and the file that they are from. Raises ValueError unless they are whole."""
    folder = Path(data_dir) / name
    try:
        meta, content = json.loads((folder / 'meta.json').read_text()), (folder / 'test.jsonl').read_bytes()
        assert meta['kind'] == 'benchmark' and meta['task'] == TASKS[name], 'it is another kind of dataset'
        assert len(content) == meta['splits']['test']['bytes'], 'test.jsonl is cut off or longer than it was'
        assert hashlib.sha256(content).hexdigest() == meta['splits']['test']['sha256'], 'test.jsonl is not what was written'
        return [json.loads(line) for line in content.decode().split('\n')[:-1]], meta['source']
    except (OSError, ValueError, KeyError, TypeError, AssertionError) as e:
        raise ValueError(f'{folder} is damaged ({e if isinstance(e, AssertionError) else type(e).__name__}); run: '
                         f'{command(name, data_dir, " --overwrite")}') from None


# ---- scoring ------------------------------------------------------------------------------------------------------------


def windows(n, first, size, stride):
    """Windows in which tokens first .. n of a sequence 0 .. n are scored: (start, a, end), input tokens start .. end - 1,
    scored a .. end. They begin with the token at 0, which nothing predicts."""
    end = n if n - first < size else max(size, first - 1 + stride)
    while first <= n:
        yield max(0, end - size), first, end
        first, end = end + 1, min(end + stride, n)


@torch.no_grad()
def score(model, sequences, stride, batch_size, autocast, label=''):
    """[(tokens, first)] -> for each the nats of its tokens from index `first` on, float64, and whether each was the likeliest.

    Short rows of a batch are padded at the right, which a causal model cannot see.
    """
    size, device = model.config.block_size, next(model.parameters()).device
    jobs = [(i, *w) for i, (tokens, first) in enumerate(sequences) for w in windows(len(tokens) - 1, first, size, stride)]
    jobs.sort(key=lambda job: job[1] - job[3])  # the longest first: rows of a batch are about as long, memory fails early
    nats = [torch.zeros(len(tokens) - first, dtype=torch.float64) for tokens, first in sequences]
    right = [torch.zeros(len(tokens) - first, dtype=torch.bool) for tokens, first in sequences]
    with autocast:
        vocab_size = model(torch.zeros(1, 1, dtype=torch.long, device=device))[0].size(-1)
    bar, done = tqdm(total=len(jobs), desc=label, unit=' windows', leave=False, disable=None), 0
    while done < len(jobs):
        N = jobs[done][3] - jobs[done][1]
        batch = jobs[done:done + max(1, min(batch_size, LOGITS_AT_ONCE // (N * vocab_size)))]
        x, y = torch.zeros(len(batch), N, dtype=torch.long), torch.full((len(batch), N), -1)        # (B, N)
        for row, (i, start, first, end) in enumerate(batch):
            tokens = torch.as_tensor(sequences[i][0][start:end + 1])
            x[row, :end - start], y[row, first - 1 - start:end - start] = tokens[:-1], tokens[first - start:]
        with autocast:
            logits = model(x.to(device))[0]                                                         # (B, N, V)
        counts, y = (y >= 0).to(device), y.to(device)
        logits, y = logits[counts].float(), y[counts]                                               # (n, V), (n)
        losses, hits = F.cross_entropy(logits, y, reduction='none').double().cpu(), (logits.argmax(1) == y).cpu()
        scored = [end + 1 - first for _, _, first, end in batch]
        for (i, _, first, end), mine, hit in zip(batch, losses.split(scored), hits.split(scored)):
            place = slice(first - sequences[i][1], end + 1 - sequences[i][1])
            nats[i][place], right[i][place] = mine, hit
        bar.update(len(batch))
        done += len(batch)
    bar.close()
    return nats, right


# ---- the tasks: rows -> [(measure, value, how many, of what)] -----------------------------------------------------------


def whole(nats, texts):
    """Measures of whole texts from the nats of their tokens."""
    total, tokens, n_bytes = sum(n.sum().item() for n in nats), sum(map(len, nats)), sum(len(t.encode()) for t in texts)
    return [('loss', total / tokens, tokens, 'tokens'), ('bits_per_byte', total / math.log(2) / n_bytes, n_bytes, 'bytes')]


def text(rows, encode, begin, block_size, clean, score):
    texts = [clean(row['text']) for row in rows]
    return whole(score([([begin, *encode(t)], 1) for t in texts])[0], texts)


def last_word(rows, encode, begin, block_size, clean, score):
    contexts, words = [clean(row['context']) for row in rows], [' ' + row['word'] for row in rows]
    targets = [encode(word) for word in words]
    passages = [[begin, *encode(context), *target] for context, target in zip(contexts, targets)]
    nats, right = score([(tokens, 1) for tokens in passages])
    last = [(n[-len(t):], r[-len(t):]) for n, r, t in zip(nats, right, targets)]
    long = [i for i, tokens in enumerate(passages) if len(tokens) > block_size + 1]  # their word: in one window, if it fits
    for i, *both in zip(long, *score([(passages[i], len(passages[i]) - len(targets[i])) for i in long])):
        last[i] = both
    total, tokens = sum(n.sum().item() for n, _ in last), sum(map(len, targets))
    return [('accuracy', sum(r.all().item() for _, r in last) / len(rows), len(rows), 'passages'),
            ('last_word_loss', total / tokens, tokens, 'tokens'), ('loss_per_word', total / len(rows), len(rows), 'words'),
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


# ---- results ------------------------------------------------------------------------------------------------------------


def results_of(path):
    """What a table of results holds already, '' if there is none. Raises ValueError if it is something else."""
    header = ','.join(COLUMNS) + '\n'
    try:
        if not path.parent.is_dir():
            raise ValueError(f'no folder {path.parent} for the results; make it, or give another --results=PATH')
        before = path.read_bytes().decode() if path.exists() else ''
    except (OSError, UnicodeDecodeError):
        before = 'no text'
    if before and not (before.startswith(header) and before.endswith('\n')):
        raise ValueError(f'{path} is no whole table of such results, and is left as it is; give another --results=PATH')
    return before


def append(path, rows):
    """Add rows to a table of results. A crash leaves it as it was."""
    new, before = io.StringIO(), results_of(path)
    writer = csv.writer(new, lineterminator='\n')
    writer.writerows(rows if before else [COLUMNS, *rows])
    advice = 'run this again, or give another --results=PATH'
    write_file(path, lambda f: f.write((before + new.getvalue()).encode()), 'wb', advice)


def run(names, model, checkpoint, c, autocast):
    """Score a language model on benchmarks by eval.py's settings c, print a table, and add it to results.csv."""
    size = model.config.block_size
    stride = c.stride or max(1, size // 2)
    if not 1 <= stride <= size:
        raise ValueError(f'--stride={c.stride} must lie between 1 and the context of {size} tokens; or 0 for half of it')
    path = Path(c.results or folder_of(c.ckpt) / 'results.csv')
    results_of(path)  # refused now, not after the work
    check_writable(path, 'give another --results=PATH')
    tokenizer = Tokenizer(**checkpoint['data']['tokenizer'])
    kind, clean = tokenizer.spec['name'], detokenize if c.detokenize else str
    print(f'{kind} tokens, a context of {size}, windows {stride} apart, texts '
          f'{"de-tokenized" if c.detokenize else "as published"}')
    print(f'{"benchmark":<12} {"measure":<15} {"value":>9}   count')
    for name in names:
        rows, source = read(name, c.data_dir)
        task = {'text': text, 'last_word': last_word, 'cloze': cloze}[TASKS[name]]
        try:
            found = task(rows, tokenizer.encode, tokenizer.beginning, size, clean,
                         lambda sequences: score(model, sequences, stride, c.batch_size, autocast, name))
        except ValueError as e:  # a character that the tokenizer lacks
            raise ValueError(f'{name}: {e}') from None
        for measure, value, count, unit in found:
            shown = f'{value:.2%}' if measure == 'accuracy' else f'{value:.4f}'
            print(f'{name:<12} {measure:<15} {shown:>9}   {count:,} {unit} of {source}', flush=True)
        append(path, [(c.ckpt, checkpoint['step'], name, measure, f'{value:.6g}', count, unit, kind, size, stride,
                       str(c.detokenize).lower()) for measure, value, count, unit in found])
    print(f'added to {path}')
