"""Text to token ids and back: bytes, characters, or GPT-2's byte pairs."""
from engine.mistakes import Mistake


class Tokenizer:
    """Text to token ids and back. A small dict describes a tokenizer, and travels in meta.json and
    in config.json: {'name': 'bytes'}, {'name': 'chars', 'alphabet': '..'} or {'name': 'gpt2'}.

    beginning: the token that a text begins with if there is no prompt: the end of the text before
    it, or a new line.
    mask_id: the token [MASK] of networks that fill gaps, the first after those of the text."""

    def __init__(self, name='', alphabet='', **others):
        """Raises Mistake for an unknown name, or if GPT-2's tokenizer cannot be downloaded. others:
        what a file of somebody's own says beside these, and what means nothing here."""
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
            some = self.spec['alphabet'][:60]
            raise Mistake(f'the tokenizer has no character {e}; it knows {self.vocab_size:,} '
                          f'characters, such as {some!r}') from None

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
