"""What the parts of a layer stand for: its units, the concepts that they answer to, and what the
network does without them.

A unit is a number that a layer computes of each token between attention and its output. Of CRATE it
is a coordinate of the sparse code that ISTA makes, and its atom is a column of the dictionary D. Of
a network with MLPs it is a hidden number after the GELU. Units are counted from 1.

A concept is a property that a token has or has not, such as to lie on the border of an object. The
data say so, no judge does. On one half of the samples each unit chooses the concept that it tells
best, and the threshold from which on it counts as on. On the other half this choice is scored. So
a unit that says nothing scores 0, however many concepts and thresholds there are to choose from.
"""
import collections
import contextlib
import functools
import io
import keyword
import re
import threading
import tokenize
from typing import NamedTuple

import numpy as np
import torch

from analysis import layers
from analysis.measures import relative_distance
from engine.mistakes import Mistake

# the thresholds that are tried leave a unit on for these shares of the tokens
ON_SHARES = 2.0 ** -torch.arange(1, 10, 0.5)
STRONGEST = 8  # units of a token that are asked how well they alone give what ISTA or MLP returns

COLOURS = 'red', 'yellow', 'green', 'cyan', 'blue', 'magenta', 'dark', 'grey'
DARK, GREY = 6, 7   # their places in COLOURS
EDGES = '|', '/', '-', '\\'  # directions of an edge, each turned by 45 degrees

# the concepts that Python's tokenizer does not know: regular expressions of what has them
PLACES_IN_PYTHON = {
    'indentation': '(?m)^ +',
    'first letter of a word': r'\b[^\W\d_]',
}
for spaces in range(4, 41, 4):
    PLACES_IN_PYTHON[f'indentation of {spaces}'] = rf'(?m)^ {{{spaces}}}(?! )'
for column in range(0, 100, 10):
    PLACES_IN_PYTHON[f'columns {column} to {column + 9}'] = rf'(?m)(?<=^.{{{column}}}).{{1,10}}'


# ---- the units of a layer -----------------------------------------------------------------------

@contextlib.contextmanager
def changed(layer, change):
    """In this block, `change(units)` takes the place of the units (B, N, m) in each pass of this
    thread through a layer. `change` may also only look at them, and return them as they are.

    An operator with the methods `code` and `decode` names its units so: they are what `code`
    returns. Else they are what its module `down` gets, as in an MLP, or what the operator itself
    returns, as in ISTA. Blocks may stand inside each other, but an operator with `code` obeys the
    innermost one alone, which calls `code` anew."""
    thread = threading.get_ident()

    def change_input(down, inputs):
        if threading.get_ident() != thread:  # another thread may call this network meanwhile
            return inputs
        return change(*inputs)

    def change_result(operator, inputs, result):
        if threading.get_ident() != thread:
            return result
        if hasattr(operator, 'code'):
            return operator.decode(change(operator.code(*inputs)))
        return change(result)

    operator = layers.operator_of(layer)
    if hasattr(operator, 'down') and not hasattr(operator, 'code'):
        hook = operator.down.register_forward_pre_hook(change_input)
    else:
        hook = operator.register_forward_hook(change_result)
    with hook:  # it is removed when the block ends
        yield


def units_of(step):
    """The units of a layer, (B, N, m), for a Step of layers.inside."""
    seen = []

    def look(units):
        seen.append(units)
        return units

    with changed(step.layer, look):
        step.layer(step.z)
    return seen[0]


def output_of(step):
    """What the second half of a layer returns, (B, N, d), for a Step of layers.inside."""
    with layers.calls_of(layers.operator_of(step.layer)) as calls:
        step.layer(step.z)
    return calls[0][1]


def explained(step):
    """How well the STRONGEST units of each token alone give what the second half of a layer
    returns: 1 - |error|^2 / |output|^2, where the error is what changes without the other units."""
    output = output_of(step)
    with changed(step.layer, strongest):
        output_of_few = output_of(step)
    return 1 - relative_distance(output_of_few, output) ** 2


def strongest(units):
    """Units (B, N, m) of which all but the STRONGEST of each token are 0."""
    sizes = units.abs()
    weakest = sizes.topk(min(STRONGEST, units.size(-1))).values[..., -1:]
    return torch.where(sizes >= weakest, units, 0)


# ---- switched off -------------------------------------------------------------------------------

def values_of(words, model, to):
    """{(layer, unit): value} of words such as '3:37,3:40', layer and unit counted from 1. to: the
    value of each. Raises Mistake for other words, and for a layer that the network does not
    have."""
    values = {}
    for word in words.split(','):
        layer, _, unit = word.strip().partition(':')
        if not (layer.isdecimal() and unit.isdecimal() and 1 <= int(layer) <= len(model.layers)):
            raise Mistake(f'{word} is no LAYER:UNIT; the network has layers 1 to '
                          f'{len(model.layers)}')
        values[int(layer), int(unit)] = to
    return values


@contextlib.contextmanager
def fixed(model, values):
    """In this block, units of a network have a fixed value for every token, {(layer, unit): value}.
    A pass through the network raises Mistake for a unit that a layer does not have."""
    with contextlib.ExitStack() as stack:
        for number in {layer for layer, _ in values}:
            change = functools.partial(fix, number, values)
            stack.enter_context(changed(model.layers[number - 1], change))
        yield


def fix(number, values, units):
    """Units (B, N, m) of the layer with this number, with the values of `fixed`."""
    m = units.size(-1)
    units = units.clone()
    for (layer, unit), value in values.items():
        if layer == number:
            if not 1 <= unit <= m:
                raise Mistake(f'layer {layer} has atoms 1 to {m}, not {unit}')
            units[..., unit - 1] = value
    return units


# ---- concepts of pictures -----------------------------------------------------------------------

def concepts_of_picture(picture, grid, label=-1, classes=(), true=None):
    """{concept: which patches have it, bool (down, across)} of a picture as the network sees it,
    uint8 (H, W, 3), in a grid (down, across) of patches. label: the number of its class in
    `classes`; true: which pixels are of an object, bool (H, W)."""
    from matplotlib.colors import rgb_to_hsv
    down, across = grid
    H, W, _ = picture.shape
    concepts = {}

    def of_patches(pixels):
        """The mean of each patch: (H, W, ..) -> (down, across, ..)."""
        cut = pixels.reshape(down, H // down, across, W // across, *pixels.shape[2:])
        return cut.mean((1, 3))

    def add(numbers, names):
        """A concept for each name: the patches that have its place among the names as number."""
        for number, name in enumerate(names):
            concepts[name] = numbers == number

    hue, saturation, value = np.moveaxis(rgb_to_hsv(of_patches(picture / 255)), 2, 0)
    add(np.select([value <= 0.2, saturation <= 0.3], [DARK, GREY], np.round(hue * 6) % 6), COLOURS)

    # The direction in which brightness changes, as a complex number. The square has twice its
    # angle, so the squares on both sides of a bar do not cancel (this is the structure tensor).
    down_change, across_change = np.gradient(picture.mean(2))
    gradient = across_change + 1j * down_change                         # (H, W)
    square = of_patches(gradient ** 2)                                  # (down, across)
    strength = of_patches(abs(gradient) ** 2)
    is_edge = (strength > strength.mean()) & (abs(square) > strength / 2)
    direction = np.round(np.angle(square) / (np.pi / 2)) % 4
    add(np.where(is_edge, direction, -1), [f'edge {name}' for name in EDGES])

    row, column = np.indices(grid)
    for name, place, count in (('row', row, down), ('column', column, across)):
        bands = min(8, count)
        add(place * bands // count, [f'{name} {band + 1} of {bands}' for band in range(bands)])

    add(np.full(grid, label), [f'class {name}' for name in classes])
    if true is not None:
        share = of_patches(true)
        concepts['on the object'] = share > 0.5
        concepts['its border'] = (share > 0.1) & (share < 0.9)
        add(np.where(share > 0.5, label, -1), [f'on a {name}' for name in classes])
    return concepts


# ---- concepts of text ---------------------------------------------------------------------------

def concepts_of_text(text, pieces):
    """{concept: which tokens have it, bool (T,)} of a text of T tokens, and whether Python could
    read the text, which has other concepts then. pieces: how many bytes each token has, (T,). A
    token has the concepts of its last byte."""
    # the text may end in the middle of a string, which is closed here
    attempts = [spans_of_python(text + ending) for ending in ('', '"""', "'''")]
    end, spans = max(attempts, key=lambda attempt: attempt[0])
    is_python = end > len(text) / 2
    patterns = PLACES_IN_PYTHON
    if not is_python:
        spans = {}
        patterns = places_in_words(text)
    for name, pattern in patterns.items():
        spans[name] = [match.span() for match in re.finditer(pattern, text)]

    sizes = [len(character.encode('utf-8', 'surrogateescape')) for character in text]
    # the place in the text of the character that has the last byte of each token
    characters = np.searchsorted(np.cumsum(sizes), np.cumsum(pieces))   # (T,)
    concepts = {}
    for name, ranges in spans.items():
        has = np.zeros(len(text), bool)
        for start, end in ranges:
            has[start:end] = True
        concepts[name] = has[characters]
    return concepts, is_python


def spans_of_python(text):
    """How far Python's own tokenizer can read a text, and what it finds on the way: {concept:
    [(start, end)]}, counted in characters."""
    lines = io.StringIO(text).readlines()
    line_starts = np.cumsum([0, *map(len, lines)])
    spans = collections.defaultdict(list)
    end = 0
    before = (tokenize.NEWLINE, '')  # the token before: its kind, and its text
    with contextlib.suppress(tokenize.TokenError, SyntaxError, UnicodeError):
        for token in tokenize.generate_tokens(iter(lines).__next__):
            if token.type == tokenize.ERRORTOKEN and not token.string.isspace():
                break
            start, end = (line_starts[row - 1] + column for row, column in token[2:4])
            for name in names_of(token.type, token.string, *before):
                spans[name].append((start, end))
            if token.type not in (tokenize.COMMENT, tokenize.NL):
                before = token[:2]
    return end, spans


def names_of(kind, string, kind_before, before):
    """The concepts of a token of Python with the text `string`, given the token before it."""
    kind = tokenize.tok_name[kind]
    if kind == 'NAME' and keyword.iskeyword(string):
        return 'keyword', f'keyword {string}'
    names = []
    if kind == 'NAME':
        names.append('identifier')
        if before == '.':
            names.append('attribute')
        if before == 'def':
            names.append('name of a function')
    if kind == 'OP':
        names += 'operator', f'operator {string}'
    if kind == 'STRING' or kind.startswith('FSTRING'):  # f-strings have parts since Python 3.12
        names.append('string')
        if kind_before in (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT):
            names.append('docstring')
    if kind in ('COMMENT', 'NUMBER', 'NEWLINE'):
        names.append(kind.lower())
    return names


def places_in_words(text):
    """{concept: a regular expression of what has it} of any text: its 100 commonest characters,
    the places in a word, and its 20 commonest words."""
    patterns = {}
    for character, _ in collections.Counter(text).most_common(100):
        patterns[f'character {character!r}'] = re.escape(character)
    for place in range(6):
        patterns[f'letter {place + 1} of a word'] = rf'(?<=\b\w{{{place}}})\w'
    words = re.findall(r'\w+', text.lower())
    for word, _ in collections.Counter(words).most_common(20):
        patterns[f'word {word!r}'] = rf'(?i)\b{word}\b'
    return patterns


# ---- scores -------------------------------------------------------------------------------------

class Scores(NamedTuple):
    """Of each of m units, (m,). mcc and lift are of the second half, `on` and `is_dead` of all."""
    concept: torch.Tensor       # the number of the concept
    mcc: torch.Tensor           # Matthews correlation, from -1 to 1; 0: as good as chance
    lift: torch.Tensor          # average precision, divided by how often the concept occurs
    on: torch.Tensor            # the share of tokens for which it is above zero
    is_dead: torch.Tensor       # whether it is the same number for all tokens


def matthews(is_on, has):
    """The Matthews correlation of units that are on, (T, m), and concepts, (T, C), both 0 or 1: (m,
    C). It is 0 for a unit or a concept that never changes."""
    T = len(is_on)
    both = is_on.T @ has                                                # (m, C)
    on = is_on.sum(0)[:, None]                                          # (m, 1)
    had = has.sum(0)                                                    # (C,)
    spread = (on * (T - on)).sqrt() * (had * (T - had)).sqrt()
    return (T * both - on * had) / spread.clamp_min(1)


def average_precision(units, has):
    """The average precision of m units, (T, m), each for a concept of its own, (T, m), 0 or 1:
    (m,). For each token with the concept, take all tokens for which the unit is at least as large:
    how many of these have the concept? The result is the mean of these shares."""
    units = units.T.contiguous()                                        # (m, T)
    has = has.T.contiguous()

    def at_least(some):
        """How many of some units (m, T) are at least as large as each unit."""
        smaller = torch.searchsorted(some.sort().values, units, out_int32=True)
        return units.size(1) - smaller

    precision = at_least(units.where(has > 0, -torch.inf)) / at_least(units)
    return (precision * has).sum(1) / has.sum(1)


def choose(units, concepts, is_first):
    """The concept that each unit tells best, as its number, and the Matthews correlation with it:
    (m,) each. units: float (T, m); concepts: float (T, C). Each unit chooses a concept and a
    threshold on the tokens of the first half, bool (T,). The correlation is that of the others."""
    first, second = units[is_first], units[~is_first]
    ranked = first.sort(0, descending=True).values
    levels = ranked[(ON_SHARES * len(first)).long()]                    # (S, m)
    found = torch.stack([matthews((first > level).float(), concepts[is_first])
                         for level in levels])                          # (S, m, C)
    concept = found.amax(0).argmax(1)                                   # (m,)
    every = torch.arange(len(concept))
    best_level = found[:, every, concept].argmax(0)                     # (m,)
    is_on = (second > levels[best_level, every]).float()
    return concept, matthews(is_on, concepts[~is_first])[every, concept]


def scores(units, concepts, is_first):
    """The Scores of units, for the arguments of `choose`."""
    concept, mcc = choose(units, concepts, is_first)
    has = concepts[~is_first][:, concept]                               # (T / 2, m)
    lift = average_precision(units[~is_first], has) / has.mean(0)
    is_dead = units.amin(0) == units.amax(0)
    return Scores(concept, mcc, lift, on=(units > 0).float().mean(0), is_dead=is_dead)
