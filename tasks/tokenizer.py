"""Text to token ids and back: bytes, characters, or GPT-2's byte pairs."""
from pathlib import Path

from engine.settings import Mistake


class Tokenizer:
    """Text to token ids and back, described by a small dict that travels in meta.json and in
    config.json: {'name': 'bytes'}, {'name': 'chars', 'alphabet': '..'} or {'name': 'gpt2'}."""

    def __init__(self, name, alphabet=''):
        self.spec = {'name': name} | ({'alphabet': alphabet} if name == 'chars' else {})
        if name == 'bytes':
            self.vocab_size = 256
        elif name == 'chars':
            self.alphabet, self.ids = alphabet, {c: i for i, c in enumerate(alphabet)}
            self.vocab_size = len(alphabet)
        elif name == 'gpt2':
            self.bpe = gpt2_bpe()
            self.vocab_size = self.bpe.n_vocab
        else:
            raise Mistake(f"tokenizer '{name}' is unknown; choose bytes, chars or gpt2")

    @property
    def beginning(self):
        """The token to begin a text with when there is no prompt: end of the text before, or a new
        line."""
        if self.spec['name'] == 'gpt2':
            return self.bpe.eot_token
        return 10 if self.spec['name'] == 'bytes' else self.ids.get('\n', 0)

    def encode(self, text):
        """str -> list of ids; of GPT-2's, <|endoftext|> alone is that token. Raises Mistake for
        a character that the alphabet lacks."""
        name = self.spec['name']
        if name == 'bytes':
            return list(text.encode())
        if name == 'gpt2':
            return [self.bpe.eot_token] if text == '<|endoftext|>' else self.bpe.encode_ordinary(text)
        unknown = sorted(set(text) - self.ids.keys())
        if unknown:
            raise Mistake(f'the tokenizer has no character {unknown[0]!r}; it knows only {self.alphabet!r}')
        return [self.ids[c] for c in text]

    def decode_bytes(self, ids):
        """ids -> UTF-8 bytes; a part of a character stays a part, so that output can be
        streamed."""
        name, ids = self.spec['name'], [i for i in ids if i < self.vocab_size]  # ids beyond are padding of the model
        if name == 'bytes':
            return bytes(ids)
        if name == 'chars':
            return ''.join(self.alphabet[i] for i in ids).encode()
        return self.bpe.decode_bytes(ids)

    def decode(self, ids):
        return self.decode_bytes(ids).decode('utf-8', errors='replace')


def prompt_of(start):
    """The text of a prompt that was typed: \\n is a new line, FILE:path reads a file. Raises
    Mistake if that fails."""
    if not start.startswith('FILE:'):
        return start.replace('\\n', '\n')
    try:
        return Path(start[5:]).read_text(encoding='utf-8')
    except (OSError, ValueError) as e:
        raise Mistake(f'--start={start}: cannot be read as UTF-8 text ({e}); name another file') from None


def with_masks(tokenizer, text):
    """The ids of a text in which [MASK] stands for the first id after the tokenizer's."""
    return [i for piece in text.split('[MASK]') for i in (*tokenizer.encode(piece), tokenizer.vocab_size)][:-1]


def gpt2_bpe():
    import requests
    import tiktoken
    try:
        return tiktoken.get_encoding('gpt2')
    except (requests.RequestException, OSError) as e:
        raise Mistake(
            f"GPT-2's tokenizer could not be downloaded ({type(e).__name__}); without a network, copy tiktoken's cache "
            'from a machine that has it and set TIKTOKEN_CACHE_DIR to that folder') from None
