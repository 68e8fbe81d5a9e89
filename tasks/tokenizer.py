"""Text to token ids and back: bytes, characters, or GPT-2's byte pairs."""
import codecs
import re
from pathlib import Path

from engine.mistakes import Mistake, reading

# A text up to the last place where white space follows a character that is none: of "two words  an"
# it is "two words". GPT-2 splits a text into words before it merges bytes, and no word goes on
# there. Only common white space is named, because \s of Python has four control characters that
# are none for tiktoken.
LAST_CUT = re.compile(r'.*\S(?=[ \t\r\n])', re.DOTALL)


class Tokenizer:
    """Text to token ids and back. A small dict describes a tokenizer, and travels in meta.json and
    in config.json: {'name': 'bytes'}, {'name': 'chars', 'alphabet': '..'} or {'name': 'gpt2'}.

    beginning: the token that a text begins with if there is no prompt: the end of the text before
    it, or a new line.
    mask_id: the token [MASK] of networks that fill gaps, the first after those of the text."""

    def __init__(self, name, alphabet=''):
        """Raises Mistake for an unknown name, or if GPT-2's tokenizer cannot be downloaded."""
        self.spec = {'name': name}
        if name == 'bytes':
            self.vocab_size = 256
            self.beginning = ord('\n')
        elif name == 'chars':
            self.spec['alphabet'] = alphabet
            self.ids = {character: i for i, character in enumerate(alphabet)}
            self.vocab_size = len(alphabet)
            self.beginning = self.ids.get('\n', 0)
        elif name == 'gpt2':
            import tiktoken
            try:
                self.bpe = tiktoken.get_encoding('gpt2')
            except OSError as e:  # what requests raises too
                raise Mistake(f"GPT-2's tokenizer could not be downloaded ({type(e).__name__}); "
                              "copy tiktoken's cache from another machine and set "
                              'TIKTOKEN_CACHE_DIR to that folder') from None
            self.vocab_size = self.bpe.n_vocab
            self.beginning = self.bpe.eot_token
        else:
            raise Mistake(f"tokenizer '{name}' is unknown; choose bytes, chars or gpt2")
        self.mask_id = self.vocab_size

    def encode(self, text):
        """str -> list of ids. GPT-2's tokenizer makes one token of <|endoftext|>, wherever it
        stands. Raises Mistake for a character that the alphabet lacks, or that UTF-8 lacks."""
        try:
            content = text.encode()
        except UnicodeEncodeError as e:  # Python reads bytes that are not UTF-8 as such characters
            excerpt = text[:e.start + 1][-20:]
            raise Mistake(f'{excerpt!r} ends with what is not UTF-8; write the text in UTF-8, such '
                          'as in a file: --start=FILE:prompt.txt') from None
        name = self.spec['name']
        if name == 'bytes':
            return list(content)
        if name == 'gpt2':
            return self.bpe.encode(text, allowed_special='all')
        try:
            return [self.ids[character] for character in text]
        except KeyError as e:
            raise Mistake(f'the tokenizer has no character {e}; it knows only '
                          f'{self.spec["alphabet"]!r}') from None

    def last_cut(self, text):
        """The last place where a text can be cut without changing its tokens, whatever follows the
        text; 0 if there is none."""
        if self.spec['name'] != 'gpt2':
            return len(text)
        before = LAST_CUT.match(text)
        return before.end() if before else 0

    def piece(self, i):
        """The bytes of the token with the id i."""
        name = self.spec['name']
        if name == 'bytes':
            return bytes([i])
        if name == 'gpt2':
            return self.bpe.decode_single_token_bytes(i)
        return self.spec['alphabet'][i].encode()

    def decode_bytes(self, ids):
        """ids -> UTF-8 bytes. A token that is a part of a character stays a part, so that output
        can be streamed. Ids beyond the vocabulary, with which a model pads it, are left out."""
        return b''.join(self.piece(i) for i in ids if i < self.vocab_size)

    def decode(self, ids):
        return self.decode_bytes(ids).decode('utf-8', errors='replace')


def prompt_of(start):
    """The text of a prompt that the user typed: \\n is a new line, FILE:path reads a file. Raises
    Mistake if the file cannot be read."""
    if not start.startswith('FILE:'):
        return start.replace('\\n', '\n')
    path = start.removeprefix('FILE:')
    with reading(f'{start} cannot be read as UTF-8 text', 'save it as UTF-8, or name another file'):
        return Path(path).read_text(encoding='utf-8-sig')


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
        for n in range(1, len(stop)):
            if waiting.endswith(stop[:n]):
                sure = waiting[:-n]
        yield sure
        waiting = waiting[len(sure):]
    yield waiting


def with_masks(tokenizer, text):
    """The ids of a text, a list, in which [MASK] stands for tokenizer.mask_id."""
    first, *following = text.split('[MASK]')
    ids = list(tokenizer.encode(first))
    for piece in following:
        ids.append(tokenizer.mask_id)
        ids.extend(tokenizer.encode(piece))
    return ids
