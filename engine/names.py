"""Texts that strangers wrote, such as the names of files and of classes: what a terminal or a
figure may get of them."""
import re

# Control characters, of which terminals obey some, such as the one that begins an escape sequence;
# ends of lines; characters that turn the direction of writing; bytes of a file's name that are no
# text, which Python makes halves of characters (surrogates).
CONTROL = re.compile('[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]')


def printable(text, keep=''):
    """A text in which each control character is an escape, such as \\x1b. keep: those that stay."""
    def escape(match):
        character = match[0]
        return character if character in keep else ascii(character)[1:-1]

    return CONTROL.sub(escape, text)
