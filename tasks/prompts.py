"""Text that people type, and text that comes piece by piece. Training does not load this."""
import codecs
from pathlib import Path

from engine.mistakes import reading


def as_utf8(typed):
    """A text that the user typed in UTF-8. Where the locale is ASCII, Python has not decoded it."""
    return typed.encode(errors='surrogateescape').decode(errors='surrogateescape')


def prompt_of(start):
    """The text of a prompt on the command line: \\n is a new line, \\\\ is a backslash, FILE:path
    reads a file. Raises Mistake if the file cannot be read."""
    if not start.startswith('FILE:'):
        # pairs of backslashes come first, so that the second one of a pair begins no \n
        pieces = [piece.replace('\\n', '\n') for piece in as_utf8(start).split('\\\\')]
        return '\\'.join(pieces)
    path = start.removeprefix('FILE:')
    with reading(f'{start} cannot be read as UTF-8 text', 'save it as UTF-8, or name another file'):
        return Path(path).expanduser().read_text(encoding='utf-8-sig')


def texts_of(tokenizer, tokens):
    """Yield the text of tokens, an iterable of ids, as they come. A character that is several
    tokens waits until it is complete."""
    decoder = codecs.getincrementaldecoder('utf-8')('replace')
    for token in tokens:
        yield decoder.decode(tokenizer.decode_bytes([token]))
    yield decoder.decode(b'', final=True)


def until(stop, texts):
    """Yield texts as they come, up to where the text `stop` begins in them; all of them if it is
    empty. What may be the beginning of `stop` waits for the next text."""
    waiting = ''
    for text in texts:
        waiting += text
        if stop and stop in waiting:
            yield waiting[:waiting.index(stop)]
            return
        sure = waiting
        for n in range(1, len(stop)):  # the longest beginning of `stop` counts
            if waiting.endswith(stop[:n]):
                sure = waiting[:-n]
        yield sure
        waiting = waiting[len(sure):]
    yield waiting


def with_masks(tokenizer, text):
    """The ids of a text, a list, in which [MASK] stands for tokenizer.mask_id."""
    first, *following = text.split('[MASK]')
    ids = tokenizer.encode(first)
    for piece in following:
        ids += [tokenizer.mask_id, *tokenizer.encode(piece)]
    return ids
