"""Text to token ids and back: bytes, characters, or GPT-2's byte pairs."""
from pathlib import Path

from engine.settings import Mistake, reading


class Tokenizer:
    """Text to token ids and back, described by a small dict that travels in meta.json and in
    config.json: {'name': 'bytes'}, {'name': 'chars', 'alphabet': '..'} or {'name': 'gpt2'}.

    beginning: the token to begin a text with when there is no prompt, end of the text before, or a new line.
    piece(id): the bytes of a token."""

    def __init__(self, name, alphabet=''):
        self.spec = {'name': name}
        if name == 'bytes':
            self.vocab_size, self.beginning, self.piece = 256, ord('\n'), lambda i: bytes([i])
        elif name == 'chars':
            self.spec['alphabet'] = alphabet
            self.ids = {c: i for i, c in enumerate(alphabet)}
            self.vocab_size, self.beginning = len(alphabet), self.ids.get('\n', 0)
            self.piece = lambda i: alphabet[i].encode()
        elif name == 'gpt2':
            import tiktoken
            try:
                self.bpe = tiktoken.get_encoding('gpt2')
            except OSError as e:  # what requests raises too
                raise Mistake(f"GPT-2's tokenizer could not be downloaded ({type(e).__name__}); copy tiktoken's cache "
                              'from another machine and set TIKTOKEN_CACHE_DIR to that folder') from None
            self.vocab_size, self.beginning = self.bpe.n_vocab, self.bpe.eot_token
            self.piece = self.bpe.decode_single_token_bytes
        else:
            raise Mistake(f"tokenizer '{name}' is unknown; choose bytes, chars or gpt2")

    def encode(self, text):
        """str -> list of ids; of GPT-2's, <|endoftext|> alone is that token. Raises Mistake for
        a character that the alphabet lacks."""
        if self.spec['name'] == 'bytes':
            return list(text.encode())
        if self.spec['name'] == 'gpt2':
            return [self.bpe.eot_token] if text == '<|endoftext|>' else self.bpe.encode_ordinary(text)
        try:
            return [self.ids[c] for c in text]
        except KeyError as e:
            raise Mistake(f'the tokenizer has no character {e}; it knows only {self.spec["alphabet"]!r}') from None

    def decode_bytes(self, ids):
        """ids -> UTF-8 bytes; a part of a character stays a part, so that output can be
        streamed."""
        return b''.join(self.piece(i) for i in ids if i < self.vocab_size)  # ids beyond are padding of the model

    def decode(self, ids):
        return self.decode_bytes(ids).decode('utf-8', errors='replace')


def prompt_of(start):
    """The text of a prompt that was typed: \\n is a new line, FILE:path reads a file. Raises
    Mistake if that fails."""
    if not start.startswith('FILE:'):
        return start.replace('\\n', '\n')
    with reading(f'--start={start}: cannot be read as UTF-8 text', 'name another file'):
        return Path(start[5:]).read_text(encoding='utf-8')


def with_masks(tokenizer, text):
    """The ids of a text in which [MASK] stands for the first id after the tokenizer's."""
    return [i for piece in text.split('[MASK]') for i in (*tokenizer.encode(piece), tokenizer.vocab_size)][:-1]
