"""analysis/units.py: units are found, changed and scored; concepts are what one reads off a picture or a text."""
import threading

import numpy as np
import pytest
import torch
import torch.nn as nn
from helpers import generator, text_network, tokens

import nanocrate
from analysis import layers, units
from engine.mistakes import Mistake


NETWORKS = {  # a network, and how many units a layer has
    'crate': (lambda: text_network('crate'), 16),
    'crate_alpha': (lambda: text_network('crate_alpha'), 64),
    'gpt2': (lambda: text_network('aot', attn='mhsa', mlp=True, bias=True), 64),
}


@pytest.fixture(params=NETWORKS)
def network(request):
    """(name, network, its inputs, units of a layer)."""
    make, m = NETWORKS[request.param]
    model = make()
    return request.param, model, tokens(2, 12), m


def last_step(model, x):
    return list(layers.inside(model, x))[-1]


# ---- the units of a layer


@torch.no_grad()
def test_units_are_what_the_operator_computes_between_its_two_maps(network):
    name, model, x, m = network
    step = last_step(model, x)
    seen = units.units_of(step)
    assert seen.shape == (*step.z.shape[:2], m)
    inputs = step.layer.norm2(step.half)
    if name == 'gpt2':
        operator = step.layer.mlp
        assert torch.allclose(seen, nn.functional.gelu(operator.up(inputs)), atol=1e-6)
        assert torch.allclose(operator.down(seen), units.output_of(step), atol=1e-6)
    elif name == 'crate':
        assert torch.equal(seen, step.after)
    else:
        assert torch.equal(seen, step.layer.ista.code(inputs))
        assert torch.allclose(step.layer.ista.decode(seen), units.output_of(step), atol=1e-6)


@torch.no_grad()
def test_a_change_counts_in_its_block_alone(network):
    name, model, x, _ = network
    before = model(x)[0]
    step = last_step(model, x)
    with units.changed(step.layer, lambda a: 2 * a):
        doubled = units.output_of(step)
        assert not torch.allclose(model(x)[0], before, atol=1e-3)
    with units.changed(step.layer, torch.zeros_like):
        empty = units.output_of(step)
    output = units.output_of(step)
    # all these operators are linear in their units, but for the bias of an MLP
    assert torch.allclose(doubled - output, output - empty, atol=1e-5)
    assert torch.equal(model(x)[0], before)


@torch.no_grad()
def test_another_thread_sees_the_network_as_it_is(network):
    _, model, x, _ = network
    answers = []

    @torch.no_grad()
    def answer():
        answers.append(model(x)[0])

    with nanocrate.off(model, '1:1,2:3', to=50.0):
        thread = threading.Thread(target=answer)
        thread.start()
        thread.join()
        answer()
    answer()
    theirs, changed, afterwards = answers
    assert torch.equal(theirs, afterwards)
    assert not torch.allclose(changed, afterwards, atol=1e-3)


@torch.no_grad()
def test_units_are_as_before_after_an_exception(network):
    _, model, x, _ = network
    before = model(x)[0]
    with pytest.raises(KeyError):
        with nanocrate.off(model, '1:2', to=50.0):
            assert not torch.allclose(model(x)[0], before, atol=1e-3)
            raise KeyError
    assert torch.equal(model(x)[0], before)


@torch.no_grad()
def test_several_units_of_a_layer_are_set_together(network):
    _, model, x, m = network
    step = next(layers.inside(model, x))
    expected = units.units_of(step)
    expected[..., 0] = expected[..., m - 1] = 3
    with units.changed(step.layer, lambda a: expected):
        output = units.output_of(step)
    with nanocrate.off(model, f'1:1, 1:{m}', to=3.0):
        assert torch.equal(units.output_of(step), output)


@pytest.mark.parametrize('words', ['3', '0:1', '4:1', 'a:b', '1:-2', '1:1,'])
def test_what_is_not_there_is_named_with_its_range(words):
    with pytest.raises(Mistake, match='layers 1 to 3'):
        nanocrate.off(text_network('crate'), words)


@pytest.mark.parametrize('words', ['2:0', '2:1,2:17'])
def test_an_atom_that_is_not_there_is_named_with_its_range(words):
    model = text_network('crate')
    with pytest.raises(Mistake, match='1 to 16'), nanocrate.off(model, words):
        model(tokens(1, 4))


@torch.no_grad()
def test_few_units_explain_what_only_few_write():
    model = text_network('aot', attn='mhsa', mlp=True)
    mlp = model.layers[0].mlp
    nn.init.constant_(mlp.up.weight, 0)
    mlp.up.weight[:5] = 4 * torch.randn(5, 16, generator=generator(2))
    x = tokens(2, 12)
    assert units.explained(next(layers.inside(model, x))) == pytest.approx(1, abs=1e-5)
    assert 0 < units.explained(last_step(model, x)) < 0.9


# ---- scores


def random_concepts(T=6000, C=5):
    """Concepts with base rates from a tenth to a half, and which tokens choose."""
    rates = torch.linspace(0.1, 0.5, C)
    return (torch.rand(T, C, generator=generator(3)) < rates).float(), torch.arange(T) < T // 2


def test_planted_units_are_found_and_their_basis_turned_is_not():
    concepts, is_first = random_concepts()
    values = torch.randn(len(concepts), 24, generator=generator(4))
    values[:, 3] += 8 * concepts[:, 2]
    values[:, 7] = concepts[:, 0]
    values[:, 11] -= 8 * concepts[:, 1]                 # a unit that is off for its concept
    values[:, 20] = 2.5                                 # dead
    values[:, 21] = 0
    own = units.scores(values, concepts, is_first)
    assert own.concept[3] == 2 and own.mcc[3] > 0.85 and own.lift[3] > 3
    assert own.concept[7] == 0 and own.mcc[7] > 0.999 and own.lift[7] == pytest.approx(10, rel=0.2)
    assert own.mcc[11] < 0.3
    assert own.is_dead.nonzero()[:, 0].tolist() == [20, 21]
    assert own.mcc[20] == own.mcc[21] == 0 and own.lift[20] == pytest.approx(1)
    assert own.on[20] == 1 and own.on[21] == 0 and own.on[0] == pytest.approx(0.5, abs=0.05)
    noise = [i for i in range(24) if i not in (3, 7, 11)]
    assert own.mcc[noise].abs().max() < 0.1 and own.mcc[noise].mean().abs() < 0.02

    turn, _ = torch.linalg.qr(torch.randn(24, 24, generator=generator(5)))
    _, turned = units.choose(values @ turn, concepts, is_first)
    assert turned.max() < 0.8


def test_the_half_that_chooses_is_not_scored():
    """Many units and few tokens: on the first half the best of all choices looks good, by chance."""
    T, C = 300, 40
    concepts = (torch.rand(T, C, generator=generator(6)) < 0.5).float()
    values = torch.randn(T, 100, generator=generator(7))
    is_first = torch.arange(T) < T // 2
    own = units.scores(values, concepts, is_first)
    assert own.mcc.mean().abs() < 0.03 and (own.lift.mean() - 1).abs() < 0.1
    both = units.scores(values, concepts.where(is_first[:, None], 1 - concepts), is_first)
    assert torch.equal(own.concept, both.concept)       # of the first half alone
    assert torch.allclose(own.mcc, -both.mcc, atol=1e-5)


def test_matthews_of_a_table():
    """3 tokens on, of which 2 are right; 1 of the other 5 is missed: 7 / 15 by hand."""
    is_on = torch.tensor([[1., 1, 1, 0, 0, 0, 0, 0], [1] * 8, [0] * 8, [0, 0, 0, 1, 1, 1, 1, 1]]).T
    has = torch.tensor([[1., 1, 0, 1, 0, 0, 0, 0], [0, 1] * 4, [1] * 8]).T
    expected = torch.tensor([[7 / 15, -0.2582, 0], [0, 0, 0], [0, 0, 0], [-7 / 15, 0.2582, 0]])
    assert torch.allclose(units.matthews(is_on, has), expected, atol=1e-4)


@pytest.mark.parametrize('values, has, expected', [
    ([4., 3, 2, 1], [1, 0, 1, 0], 5 / 6),
    ([1., 1, 0, 0], [1, 0, 0, 1], 1 / 2),               # tokens that are equally strong count together
    ([-1., -2, 7, 7], [1, 0, 0, 0], 1 / 3),
])
def test_average_precision_by_hand(values, has, expected):
    one = units.average_precision(torch.tensor([values]).T, torch.tensor([has]).T.float())
    assert one.item() == pytest.approx(expected)


# ---- concepts of text


SOURCE = '''# old
import os
def find(self, x):
    """Say."""
    return os.path + 'a' * 42
'''
IN_SOURCE = {  # each with all that has it
    'comment': ['# old'],
    'keyword': ['import', 'def', 'return'],
    'keyword def': ['def'],
    'identifier': ['os', 'find', 'self', 'x', 'os', 'path'],
    'attribute': ['path'],
    'name of a function': ['find'],
    'string': ['"""Say."""', "'a'"],
    'docstring': ['"""Say."""'],
    'number': ['42'],
    'operator *': ['*'],
    'operator': ['(', ',', ')', ':', '.', '+', '*'],
    'indentation': ['    ', '    '],
    'indentation of 4': ['    ', '    '],
    'columns 0 to 9': ['# old', 'import os', 'def find(s', '    """Say', '    return'],
    'columns 20 to 29': [" 'a' * 42"],
    'first letter of a word': list('oiodfsxSropa'),
}


def bytes_of(text):
    return [1] * len(text.encode('utf-8', 'surrogateescape'))


def parts(text, has):
    """The parts of an ASCII text whose characters have a concept, without gaps in them."""
    marked = ''.join(character if one else '\0' for character, one in zip(text, has))
    return [part for part in marked.split('\0') if part]


def test_concepts_of_python_are_those_of_a_table():
    concepts, is_python = units.concepts_of_text(SOURCE, bytes_of(SOURCE))
    assert is_python
    assert all(has.shape == (len(SOURCE),) and has.dtype == bool for has in concepts.values())
    for name, expected in IN_SOURCE.items():
        if name == 'operator':  # three of them stand side by side
            assert ''.join(parts(SOURCE, concepts[name])) == ''.join(expected)
        elif name == 'columns 0 to 9':
            assert ''.join(parts(SOURCE, concepts[name])) == ''.join(expected)
        else:
            assert parts(SOURCE, concepts[name]) == expected, name


def test_a_token_has_the_concepts_of_its_last_byte():
    text = 'é = naïve  # ü\n'
    sizes = [len(text[i:i + 2].encode()) for i in range(0, len(text), 2)]
    pairs, is_python = units.concepts_of_text(text, sizes)
    single, _ = units.concepts_of_text(text, [len(character.encode()) for character in text])
    assert is_python
    for name, has in pairs.items():
        ends = [min(i + 1, len(text) - 1) for i in range(0, len(text), 2)]
        assert has.tolist() == single[name][ends].tolist(), name
    of_bytes, _ = units.concepts_of_text(text, bytes_of(text))
    assert of_bytes['identifier'][:2].tolist() == [True, True]      # both bytes of é


def test_a_text_may_end_in_the_middle_of_a_long_string():
    text = "def f():\n    '''Once upon a time\n" + '    there were words.\n' * 30
    concepts, is_python = units.concepts_of_text(text, bytes_of(text))
    assert is_python
    assert concepts['docstring'][20:].all() and concepts['keyword def'].sum() == 3


@pytest.mark.parametrize('ending', ['x = (1,\n', "y = 'abc", 'if x:\n  y\n z\n', '\n\n    '])
def test_a_text_may_end_anywhere(ending):
    text = SOURCE * 5 + ending
    concepts, is_python = units.concepts_of_text(text, bytes_of(text))
    assert is_python and concepts['docstring'].sum() == 50


def test_places_are_right_behind_unusual_line_ends():
    """A form feed ends no line for Python, though it does for str.splitlines."""
    text = 'a = 1\n\x0c\nb = 2  # c\r\nd = \u2028"e"\n'.replace('\u2028', '')
    concepts, is_python = units.concepts_of_text(text, bytes_of(text))
    assert is_python
    assert parts(text, concepts['number']) == ['1', '2'] and parts(text, concepts['string']) == ['"e"']


@pytest.mark.parametrize('text', [
    "To be, or not to be: that's the question. ``It is'', said she.\n" * 4,
    'ein \udcff byte, der kein text ist\n' * 4, '\0' * 30, '文字がある。「本」\n' * 9])
def test_what_python_cannot_read_has_characters_and_words(text):
    concepts, is_python = units.concepts_of_text(text, bytes_of(text))
    assert not is_python and not {'keyword', 'identifier'} & set(concepts)
    character = text[0]
    size = len(character.encode())
    assert concepts[f'character {character!r}'].sum() == size * text.count(character)


def test_words_of_any_text():
    text = "the cat isn't The dog, $5 abcdefgh the\n"
    concepts, _ = units.concepts_of_text(text, bytes_of(text))
    assert parts(text, concepts["word 'the'"]) == ['the', 'The', 'the']
    assert ''.join(parts(text, concepts['letter 1 of a word'])) == 'tcitTd5at'
    assert ''.join(parts(text, concepts['letter 6 of a word'])) == 'f'


# ---- concepts of pictures


def test_concepts_of_a_picture_one_can_see():
    """Red on the left and a darker blue on the right, dark below, in patches of 4 x 4."""
    picture = np.zeros((16, 24, 3), np.uint8)
    picture[:12, :10, 0] = 250
    picture[:12, 10:, 2] = 120
    true = np.zeros((16, 24), bool)
    true[4:10, 4:12] = True
    has = units.concepts_of_picture(picture, (4, 6), 1, ['ant', 'bee'], true)
    assert all(of.shape == (4, 6) for of in has.values())
    assert has['red'][:3, :2].all() and not has['red'][:, 3:].any()
    assert has['blue'][:3, 3:].all() and not has['blue'][:, :2].any()
    assert has['dark'][3].all() and not has['dark'][:3].any()
    assert has['edge |'][:2, 2].all() and not has['edge |'][:, [0, 5]].any()
    assert has['edge -'][2:, :2].any() and not has['edge -'][:2].any()
    assert has['on the object'].sum() == has['on a bee'].sum() == has['its border'].sum() == 2
    assert not has['on a ant'].any()
    assert has['class bee'].all() and not has['class ant'].any()
    assert has['row 4 of 4'].nonzero()[0].tolist() == [3] * 6 and has['column 1 of 6'].sum() == 4


@pytest.mark.parametrize('turns, name', [(0, '/'), (1, '\\')])
def test_edges_have_the_direction_that_one_sees(turns, name):
    row, column = np.indices((16, 16))
    corner = np.where(row + column >= 16, np.uint8(255), np.uint8(0))   # the lower right one, below an edge like /
    picture = np.rot90(corner, turns)[..., None].repeat(3, 2)
    has = units.concepts_of_picture(picture, (2, 2))
    assert has[f'edge {name}'].sum() == 2
    assert not any(has[f'edge {other}'].any() for other in '|-/\\' if other != name)


def test_many_rows_become_eight_bands():
    has = units.concepts_of_picture(np.zeros((32, 16, 3), np.uint8), (16, 16))
    assert has['row 1 of 8'].sum() == 32 and has['row 8 of 8'][14:].all()
    assert sum(has[f'column {band + 1} of 8'].astype(int) for band in range(8)).min() == 1


def test_a_picture_of_one_colour_has_no_edges():
    has = units.concepts_of_picture(np.full((8, 8, 3), 128, np.uint8), (2, 2))
    assert not any(of.any() for name, of in has.items() if name.startswith('edge'))
    assert has['grey'].all()
