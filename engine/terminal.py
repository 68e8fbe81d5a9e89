"""What reaches a terminal. Names of files, classes and archive members, error messages and texts that
a network writes may hold control characters, with which a stranger could write into the title of a
window, hide lines or turn the writing direction. A terminal shows them as escapes, such as \\x1b. A
file or a pipe gets everything as it is."""
import contextlib
import re
import sys

# not tabs and ends of lines; the last ones change the writing direction
CONTROL = '[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]'
BARS = rf'(?!\r|\x1b\[A){CONTROL}'  # progress bars go to the start of the line, and a line up


def harmless(text, pattern=CONTROL):
    """The text with control characters written as escapes."""
    return re.sub(pattern, lambda found: found[0].encode('unicode_escape').decode(), text)


class Terminal:
    """A text stream to a terminal that writes harmless text."""

    def __init__(self, stream, pattern=CONTROL):
        self.stream, self.pattern = stream, pattern

    def write(self, text):
        return self.stream.write(harmless(text, self.pattern))

    def __getattr__(self, name):
        return getattr(self.stream, name)


@contextlib.contextmanager
def safe():
    """Around a program's main: standard output and error are safe, and characters that they cannot
    encode become escapes instead of an error."""
    old = sys.stdout, sys.stderr
    for stream in old:
        if hasattr(stream, 'reconfigure'):
            stream.reconfigure(errors='backslashreplace')
    out, error = old
    sys.stdout = Terminal(out) if out.isatty() else out
    sys.stderr = Terminal(error, BARS) if error.isatty() else error
    try:
        yield
    finally:
        sys.stdout, sys.stderr = old
