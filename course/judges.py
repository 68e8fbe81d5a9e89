"""The verdicts of exercises for which many answers are right: a network of lesson 8, and the
properties of lesson 7. They are made from what student.py has seen."""
import math

import torch
from torch.nn import functional as F


class Broken(Exception):
    """A property that does not hold. Its arguments say it in words, and name the mistake or ''."""


def need(holds, message, diagnosis=''):
    if not holds:
        raise Broken(message, diagnosis)


def wrong(message, diagnosis=''):
    return {'verdict': 'wrong', 'message': message, 'diagnosis': diagnosis}


# ---- a network: what must hold for any ----------------------------------------------------------

def network(asked, seen):
    """The verdict of a network: the properties of docs/extend.md must hold in three sizes, with
    weights drawn at random."""
    question = ''
    for (sizes, _, y), seen_here in zip(asked['sizes'], seen['sizes']):
        try:
            question = judge_size(sizes, y, seen_here)
        except Broken as e:
            message, diagnosis = e.args
            return wrong(f'{message}; with {sizes}', diagnosis)
        except KeyError:  # an exception came before that was seen
            return wrong(f'{seen["exception"]}; with {sizes}')
    if seen.get('exception'):  # the file has no class that takes a config
        return wrong(seen['exception'])
    return {'verdict': 'right', 'message': f'for {len(asked["sizes"])} sizes{question}'}


def judge_size(sizes, y, seen):
    """Raises Broken for the first property that does not hold, and KeyError for the first one that
    was not seen. If all hold, it returns a question about what may be a mistake all the same, or
    ''."""
    need(seen['keeps_config'], 'model.config is not the config that it was made with',
         'a network that does not keep its config')
    judge_output(seen['without_classes'], len(y), sizes['num_classes'])
    judge_loss(seen, y)
    judge_tokens_and_layers(sizes, len(y), seen)
    need(seen['parameters_of_deeper'] > seen['parameters'],
         'a network of one layer more has as many parameters',
         'one layer that is used again and again')
    judge_evaluation(seen)
    return judge_gradients(seen)


def judge_output(results, B, classes):
    """What model(x) returns."""
    need(isinstance(results, tuple) and len(results) == 2, 'model(x) does not return (out, loss)',
         'an output without a loss beside it')
    out, loss = results
    need(loss is None, 'model(x) returns a loss, although it gets no classes',
         'loss and out exchanged: out comes first' if out is None else '')

    shape = tuple(getattr(out, 'shape', ()))
    name = 'an output for each token, not for each picture' if len(shape) == 3 else ''
    need(shape == (B, classes), f'out has the shape {shape}, expected {(B, classes)}', name)
    need(not out.isnan().any(), 'out has NaN')
    sums_to_1 = (out.sum(1) - 1).abs().max() <= 1e-4
    need((out < 0).any() or not sums_to_1, 'the numbers of out are positive and sum to 1',
         'probabilities in place of logits')


def judge_loss(seen, y):
    """The loss that model(x, y) returns, and its gradient."""
    out, loss = seen['with_classes']
    need(isinstance(loss, torch.Tensor), 'model(x, y) returns a loss that is no tensor')
    need(loss.dim() == 0, f'the loss has the shape {tuple(loss.shape)}, expected ()',
         'a loss for each picture, not their mean')

    expected = F.cross_entropy(out, y)
    mistakes = {
        'a loss that is the sum over the batch, not the mean': len(y) * expected,
        'a loss of softmax(out): cross_entropy has its own softmax':
            F.cross_entropy(out.softmax(1), y),
        'a loss in bits: nats have the natural logarithm': expected / math.log(2),
        'a loss with label smoothing': F.cross_entropy(out, y, label_smoothing=0.1),
        'nll_loss of out, which needs logarithms of probabilities: take cross_entropy':
            F.nll_loss(out, y),
    }
    diagnosis = ''
    for name, value in mistakes.items():
        if (loss - value).abs() < 1e-4 * value.abs():
            diagnosis = name
    need((loss - expected).abs() < 1e-4 * expected,
         f'the loss is {loss.item():.6g}, and the mean cross-entropy of out and y is '
         f'{expected.item():.6g}', diagnosis)

    need(seen['loss_has_gradient'], 'the loss has no gradient',
         'a loss that was cut off: .item(), .detach() or no_grad')
    not_reached = seen['not_reached']
    names = ', '.join(not_reached[:3])
    if len(not_reached) > 3:
        names += ', ..'
    need(not not_reached, f'the gradient of the loss does not reach {names}',
         'parameters that the loss does not reach')


def judge_tokens_and_layers(sizes, B, seen):
    """model.embed and model.layers."""
    H, W = sizes['image_size']
    patch_size = sizes['patch_size']  # one number if a patch is a square
    h, w = patch_size if isinstance(patch_size, tuple) else (patch_size, patch_size)
    N = (H // h) * (W // w)
    d = sizes['n_embd']
    shape = seen['tokens']
    name = 'tokens as columns, (B, d, N)' if shape[:2] == (B, d) else ''
    is_right = len(shape) == 3 and shape[0] == B and shape[1] >= N and shape[2] == d
    need(is_right,
         f'model.embed(x) has the shape {shape}, expected {(B, N, d)}, or more tokens', name)

    need(seen['layers_are_module'],
         'model.layers is no module, so its weights are not among the parameters of the network: '
         'use nn.Sequential or nn.ModuleList',
         'layers in a plain list, which nobody trains')
    need(seen['layers'] == sizes['n_layer'],
         f'{seen["layers"]} layers, expected n_layer={sizes["n_layer"]}')
    for after in seen['after_layers']:
        need(after == shape, f'a layer turns {shape} into {after}')


def judge_evaluation(seen):
    """After model.eval() a picture has one output, whenever and with whatever others it comes."""
    out = seen['out']
    tolerance = 1e-4 * out.abs().max().clamp_min(1)
    need(not seen['changes_pictures'], 'changes the pictures that it is given',
         'a network that changes its input')
    need((out - seen['out_again']).abs().max() < tolerance,
         'after model.eval() it gives different numbers when it is called again',
         'dropout that does not ask self.training')
    need((out - seen['out_alone']).abs().max() < tolerance,
         'a picture alone gives other numbers than in a batch (after model.eval())',
         'pictures of a batch that see each other')


def judge_gradients(seen):
    """All numbers of the pictures must count in the output. Returns a question if the first and the
    last number of a token come from different pixels."""
    unseen = unseen_by(seen['slope_of_output'])
    if unseen:
        diagnosis = ('an output that some tokens do not reach: attention along another axis, '
                     'or a causal mask')
        if unseen_by(seen['slope_of_tokens']):
            diagnosis = 'patches with gaps between them'
        count = seen['slope_of_output'][0].numel()
        raise Broken(f'no output depends on {len(unseen)} of the {count} numbers of a picture, '
                     f'first on channel, row, column {tuple(unseen[0])}', diagnosis)

    pixels_of_first = seen['slope_of_first_number'] != 0
    pixels_of_last = seen['slope_of_last_number'] != 0
    # a token that sees no pixel is a class token
    if not pixels_of_first.any() or torch.equal(pixels_of_first, pixels_of_last):
        return ''
    return ('; the numbers of a token come from different pixels: does embed reshape where it '
            'should transpose?')


def unseen_by(slope):
    """The places [channel, row, column] of pictures on which a value with this slope does not
    depend."""
    return (slope.abs().amax(0) == 0).nonzero().tolist()


# ---- properties ---------------------------------------------------------------------------------

def properties(asked, seen):
    """The verdict of properties: how many mistakes they find together. One that raises an exception
    for a right implementation does not count. asked['mistakes'] has the name of the mistake in each
    implementation, and that of a right one begins with 'right, '."""
    if seen.get('exception'):
        return wrong(seen['exception'])
    if seen['kind'] in ('NoneType', 'ellipsis'):
        return {'verdict': 'empty', 'message': 'returns None: fill in the gap'}
    if seen['kind'] not in ('tuple', 'list'):
        return wrong(f'returns a {seen["kind"]}, and should return a list of functions')
    if seen['others']:
        return wrong(f'returns a list with a {seen["others"][0]}, and should return a list of '
                     'functions',
                     'properties that were called already: the list is of functions, without ()')
    if not seen['properties']:
        return wrong('the list is empty', 'a list without properties')

    findings = []       # (name of a property, the mistakes that it finds)
    exceptions = []     # (name of a property, the exception that it raised)
    for name, answers in seen['properties']:
        answer_of = dict(zip(asked['mistakes'], answers))
        of_right = {way: answer for way, answer in answer_of.items() if way.startswith('right, ')}
        if not any(of_right.values()):
            return wrong(f'{name} does not hold for right implementations',
                         'a property that does not hold for MSSA')
        for way, answer in of_right.items():
            if answer is False:
                return wrong(f'{name} refuses a right implementation, {way[7:]}, which rounds in '
                             'another way: use torch.allclose',
                             'a property that compares to the last digit')
        raised = [answer for answer in of_right.values() if answer is not True]
        if raised:
            exceptions.append((name, raised[0]))
        else:
            findings.append((name, [way for way, answer in answer_of.items() if answer is False]))
    return verdict_of_hunt(findings, exceptions, len(answer_of) - len(of_right), asked['mistakes'])


def verdict_of_hunt(findings, exceptions, total, ways):
    """The verdict of properties of which none refused a right implementation."""
    found_together = set()
    for _, mistakes in findings:
        found_together.update(mistakes)
    count = len(found_together)
    needed = math.ceil(0.7 * total)

    message = f'{count} of {total} mistakes found'
    if exceptions:
        names = ', '.join(name for name, _ in exceptions)
        message = f'not counted: {names} ({exceptions[-1][1]}); {message}'
    if count < needed:
        message += f', {needed} are needed'
    not_found = [way for way in ways
                 if not way.startswith('right, ') and way not in found_together]
    if not_found:
        message += f'; not found: {" | ".join(not_found)}'
    useless = [name for name, mistakes in findings if not mistakes]
    if useless:
        message += f'; no mistake is found by {", ".join(useless)}'
    # lesson7.md forbids writing MSSA again: the lecturer sees which property to look at
    copies = [name for name, mistakes in findings if len(mistakes) == total]
    if copies:
        message += (f'; one property finds all {total} alone: is it MSSA again? '
                    f'({", ".join(copies)})')

    if count >= needed:
        return {'verdict': 'right', 'message': message}
    if not findings:
        return wrong(message, 'properties that raise exceptions')
    if count == 0:
        return wrong(message, 'properties that hold for every implementation, right or wrong')
    return wrong(message, 'too few properties: each finds its own kind of mistake')
