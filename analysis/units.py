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
import io
import keyword
import re
import threading
import tokenize
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F

from analysis import layers
from engine.mistakes import Mistake

ON_SHARES = 2.0 ** -torch.arange(1, 10, 0.5)  # of the tokens that a threshold may leave on
FEWEST = 30  # tokens of each half that have a concept, and that have it not
COVERS = 0.5  # the score from which on a unit covers its concept
STRONGEST = 8  # units of a token that are asked how well they alone give the layer's output


# ---- the units of a layer -----------------------------------------------------------------------

def operator_of(layer):
    """The second half of a layer, which has the units: its `ista` or `mlp`, or None."""
    return getattr(layer, 'ista', None) or getattr(layer, 'mlp', None)


@contextlib.contextmanager
def changed(layer, change):
    """In this block, `change(units)` takes the place of the units (B, N, m) in each pass of this
    thread through a layer. `change` may also only look at them, and return them as they are.

    An operator with the methods `code` and `decode` names its units so. Else they are what its
    module `down` gets, as in an MLP, or else what the operator itself returns, as in ISTA."""
    thread = threading.get_ident()

    def of_thread(units):
        return change(units) if threading.get_ident() == thread else units

    def decode_others(operator, inputs, result):
        return operator.decode(of_thread(operator.code(*inputs)))

    def return_others(operator, inputs, result):
        return of_thread(result)

    def send_others(down, inputs):
        return (of_thread(*inputs),)

    operator = operator_of(layer)
    if hasattr(operator, 'code'):
        hook = operator.register_forward_hook(decode_others)
    elif hasattr(operator, 'down'):
        hook = operator.down.register_forward_pre_hook(send_others)
    else:
        hook = operator.register_forward_hook(return_others)
    try:
        yield
    finally:
        hook.remove()


def units_of(step):
    """The units of a layer, (B, N, m), for a Step of layers.inside."""
    seen = []

    def look(units):
        seen.append(units)
        return units

    with changed(step.layer, look):
        step.layer(step.z)
    return seen[0]


def outputs(step, change):
    """What the second half of a layer returns, (B, N, d), and what it returns if `change(units)`
    takes the place of its units."""
    operator = operator_of(step.layer)
    with layers.calls_of(operator) as calls:
        step.layer(step.z)
    x, output = calls[0]
    with changed(step.layer, change):
        return output, operator(x)


def strongest(units):
    """Units (B, N, m) of which all but the STRONGEST of each token are 0."""
    sizes = units.abs()
    weakest = sizes.topk(min(STRONGEST, units.size(-1))).values[..., -1:]
    return torch.where(sizes >= weakest, units, 0)


# ---- switched off -------------------------------------------------------------------------------

def places(words, model, to=0.0):
    """{layer: {unit: value}} of words such as '3:37,3:40', layer and unit counted from 1. to: the
    value of each. Raises Mistake for a layer that the network does not have."""
    values = {}
    for word in words.split(','):
        layer, _, unit = word.strip().partition(':')
        if not (layer.isdecimal() and unit.isdecimal() and 1 <= int(layer) <= len(model.layers)):
            raise Mistake(f'{word} is no LAYER:UNIT; the network has layers 1 to '
                          f'{len(model.layers)}')
        values.setdefault(int(layer), {})[int(unit)] = to
    return values


def fixing(layer, values):
    """A function that gives units (B, N, m) of a layer other values, {unit: value}. It raises
    Mistake for a unit that the layer does not have."""
    def change(units):
        m = units.size(-1)
        units = units.clone()
        for unit, value in values.items():
            if not 1 <= unit <= m:
                raise Mistake(f'layer {layer} has units 1 to {m}, not {unit}')
            units[..., unit - 1] = value
        return units
    return change


@contextlib.contextmanager
def fixed(model, values):
    """In this block, units of a network have a fixed value for every token, {layer: {unit:
    value}}."""
    with contextlib.ExitStack() as stack:
        for layer, of_layer in values.items():
            stack.enter_context(changed(model.layers[layer - 1], fixing(layer, of_layer)))
        yield


# ---- concepts -----------------------------------------------------------------------------------

def concepts_of_pictures(pictures, grid, labels=None, classes=(), true=None):
    """{concept: which patches have it, bool (n, N)} of pictures as the network sees them, uint8
    (n, H, W, 3), in a grid (down, across) of N patches. labels: the class of each, (n,); true:
    which pixels are of an object, bool (n, H, W)."""
    from matplotlib.colors import rgb_to_hsv
    down, across = grid
    n, H, W, _ = pictures.shape
    x = torch.from_numpy(pictures).permute(0, 3, 1, 2).float() / 255    # (n, 3, H, W)

    def of_patches(values):
        """Means over patches: (n, .., H, W) -> (n, .., down, across)."""
        return F.avg_pool2d(values, (H // down, W // across))

    concepts = {}
    hue, saturation, value = rgb_to_hsv(of_patches(x).permute(0, 2, 3, 1).numpy()).transpose(
        3, 0, 1, 2)
    is_coloured = (saturation > 0.3) & (value > 0.2)
    concepts['dark'] = value <= 0.2
    concepts['grey'] = (saturation <= 0.3) & (value > 0.2)
    for number, name in enumerate(('red', 'yellow', 'green', 'cyan', 'blue', 'magenta')):
        concepts[name] = is_coloured & (np.round(hue * 6) % 6 == number)

    # the direction in which brightness changes most, as in the structure tensor
    rows, columns = torch.gradient(x.mean(1), dim=(1, 2))               # (n, H, W) each
    products = torch.stack((columns ** 2, rows ** 2, columns * rows), 1)
    across_edge, down_edge, both = of_patches(products).unbind(1)       # (n, down, across) each
    strength = across_edge + down_edge
    angle = torch.atan2(2 * both, across_edge - down_edge) / 2          # 0: along the columns
    is_straight = (across_edge - down_edge) ** 2 + 4 * both ** 2 > 0.25 * strength ** 2
    is_edge = is_straight & (strength > strength.mean())
    for number, name in enumerate(('|', '/', '-', '\\')):
        turned = torch.round(angle / (np.pi / 4)).long() % 4 == number
        concepts[f'edge {name}'] = (is_edge & turned).numpy()

    for name, axis, count in (('row', 1, down), ('column', 2, across)):
        bands = min(8, count)
        band = np.arange(count) * bands // count
        for number in range(bands):
            shape = (1, -1, 1) if axis == 1 else (1, 1, -1)
            concepts[f'{name} {number + 1} of {bands}'] = np.broadcast_to(
                (band == number).reshape(shape), (n, down, across))

    if true is not None:
        share = of_patches(true[:, None].float())[:, 0].numpy()         # (n, down, across)
        concepts['on the object'] = share > 0.5
        concepts['its border'] = (share > 0.1) & (share < 0.9)
    if labels is not None:
        for number, name in enumerate(classes):
            of_class = np.broadcast_to((labels == number)[:, None, None], (n, down, across))
            concepts[name] = of_class
            if true is not None:
                concepts[f'on a {name}'] = of_class & concepts['on the object']
    return {name: torch.tensor(has).flatten(1) for name, has in concepts.items()}


def concepts_of_text(text, pieces):
    """{concept: which tokens have it, bool (T,)} of a text of T tokens, and whether Python could
    read the text, which has other concepts then. pieces: how many bytes each token has, (T,). A
    token has the concepts of its last byte."""
    spans = spans_of_python(text)
    is_python = spans is not None
    if not is_python:
        spans = spans_of_words(text)
    # of each byte, the place of its character in the text
    sizes = [len(character.encode('utf-8', 'surrogateescape')) for character in text]
    character_of_byte = np.repeat(np.arange(len(text)), sizes)
    character_of_token = character_of_byte[np.cumsum(pieces) - 1]

    concepts = {}
    for name, start, end in spans:
        if name not in concepts:
            concepts[name] = np.zeros(len(text), bool)
        concepts[name][start:end] = True
    return {name: torch.from_numpy(has[character_of_token])
            for name, has in concepts.items()}, is_python


def spans_of_python(text):
    """[(concept, start, end)] of a text that begins as Python source, by Python's own tokenizer;
    None if it cannot read half of it. The end of the text may be in the middle of a string."""
    lines = text.splitlines(keepends=True)
    line_starts = np.cumsum([0, *map(len, lines)])
    spans = []
    before = ''  # the token before
    end = 0
    begins_statement = True
    readline = io.StringIO(text, newline='').readline
    try:
        for kind, string, (row, column), (end_row, end_column), _ in tokenize.generate_tokens(
                readline):
            start = line_starts[row - 1] + column
            end = line_starts[end_row - 1] + end_column
            names = names_of(tokenize.tok_name[kind], string, before, begins_statement)
            spans += [(name, start, end) for name in names]
            if kind == tokenize.ERRORTOKEN and not string.isspace():
                break
            if kind not in (tokenize.COMMENT, tokenize.NL):
                begins_statement = kind in (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
                before = string
    except (tokenize.TokenError, SyntaxError):
        pass
    if end < len(text) / 2:
        return None
    for start, line in zip(line_starts, lines):
        depth = len(line) - len(line.lstrip(' '))
        spans += [('indentation', start, start + depth),
                  (f'indentation of {depth}', start, start + depth)]
        for column in range(0, len(line), 10):
            begin = start + column
            name = f'columns {column} to {column + 9}'
            spans.append((name, begin, min(begin + 10, start + len(line))))
    spans += [('first letter of a word', word.start(), word.start() + 1)
              for word in re.finditer(r'[^\W\d_]\w*', text)]
    return spans


def names_of(kind, string, before, begins_statement):
    """The concepts of a token of Python. kind: its name in `tokenize`; before: the token before."""
    if kind == 'NAME' and keyword.iskeyword(string):
        return 'keyword', f'keyword {string}'
    if kind == 'NAME':
        names = ['identifier']
        if before == '.':
            names.append('attribute')
        if before == 'def':
            names.append('name of a function')
        return names
    if kind == 'OP':
        return 'operator', f'operator {string}'
    if kind == 'STRING' and begins_statement:
        return 'string', 'docstring'
    if kind in ('STRING', 'FSTRING_START', 'FSTRING_MIDDLE', 'FSTRING_END'):
        return ['string']
    if kind in ('COMMENT', 'NUMBER', 'NEWLINE'):
        return [kind.lower()]
    return []


def spans_of_words(text):
    """[(concept, start, end)] of any text: its characters, the places in a word, and its 20
    commonest words."""
    spans = [(f'character {character!r}', i, i + 1) for i, character in enumerate(text)]
    words = list(re.finditer(r'\w+', text))
    counts = collections.Counter(word[0].lower() for word in words)
    common = {word for word, _ in counts.most_common(20)}
    for word in words:
        start, end = word.span()
        for place in range(start, end):
            spans.append((f'letter {min(place - start + 1, 6)} of a word', place, place + 1))
        if word[0].lower() in common:
            spans.append((f'word {word[0].lower()!r}', start, end))
    return spans


def joined(concepts, is_first):
    """The names of those concepts {name: bool (T,)} that are frequent and rare enough in both
    halves, and their columns, float (T, C). is_first: which tokens are of the first half, (T,)."""
    names = []
    columns = []
    for name, has in concepts.items():
        halves = has[is_first], has[~is_first]
        counts = [count for half in halves for count in (half.sum(), (~half).sum())]
        if min(counts) >= FEWEST:
            names.append(name)
            columns.append(has.float())
    return names, torch.stack(columns, 1)


# ---- scores -------------------------------------------------------------------------------------

class Scores(NamedTuple):
    """Of each of m units, (m,): its concept, and how well it tells it, on the second half."""
    concept: torch.Tensor       # the number of the concept
    threshold: torch.Tensor     # a unit is on above it
    mcc: torch.Tensor           # Matthews correlation, from -1 to 1; 0: as good as chance
    lift: torch.Tensor          # average precision over the share of tokens that have the concept
    on: torch.Tensor            # the share of tokens for which it is above zero
    is_dead: torch.Tensor       # whether it is the same number for all tokens


def matthews(is_on, has):
    """The Matthews correlation of units that are on, (T, m), and concepts, (T, C), both 0 or 1: (m,
    C). It is 0 for a unit or a concept that never changes."""
    T = len(is_on)
    both = is_on.T @ has                                                # (m, C)
    on = is_on.sum(0)[:, None]                                          # (m, 1)
    had = has.sum(0)[None]                                              # (1, C)
    spread = (on * (T - on)).sqrt() * (had * (T - had)).sqrt()
    return (T * both - on * had) / spread.clamp_min(1)


def average_precision(units, has):
    """The average precision of m units, (T, m), each for a concept of its own, (T, m): (m,). Tokens
    are ranked by the unit; the precision is measured at each token that has the concept."""
    order = units.T.contiguous().argsort(descending=True)               # (m, T)
    ranked = has.T.gather(1, order)
    precision = ranked.cumsum(1) / torch.arange(1, len(units) + 1)
    return (precision * ranked).sum(1) / ranked.sum(1).clamp_min(1)


def scores(units, concepts, is_first):
    """The Scores of units, float (T, m), for concepts, float (T, C). Each unit chooses a concept
    and a threshold on the tokens of the first half, bool (T,), and is scored on the others."""
    first, second = units[is_first], units[~is_first]
    ranked = first.T.contiguous().sort(descending=True).values      # (m, T / 2)
    best = torch.full(units.shape[1:], -2.0)
    concept = torch.zeros_like(best, dtype=torch.long)
    threshold = torch.zeros_like(best)
    for share in ON_SHARES.tolist():
        level = ranked[:, int(share * len(first))]                      # (m,)
        found = matthews((first > level).float(), concepts[is_first])   # (m, C)
        top, which = found.max(1)
        is_better = top > best
        best = torch.where(is_better, top, best)
        concept = torch.where(is_better, which, concept)
        threshold = torch.where(is_better, level, threshold)

    own = concepts[~is_first][:, concept]                               # (T / 2, m)
    is_on = (second > threshold).float()
    mcc = matthews(is_on, concepts[~is_first]).gather(1, concept[:, None])[:, 0]
    lift = average_precision(second, own) / own.mean(0).clamp_min(1e-9)
    return Scores(concept, threshold, mcc, lift, on=(units > 0).float().mean(0),
                  is_dead=units.amin(0) == units.amax(0))
