"""The process in which a student's file runs. grade.py starts it.

It has no answers, and judges nothing. It calls the functions of the file, and writes down what they
return. grade.py compares the numbers in another process, which runs nothing of the student's.
"""
import copy
import importlib.util
import inspect
import io
import os
import sys
import traceback
import types
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

HERE = Path(__file__).resolve().parent
MEMORY = 4 << 30                # bytes
FILE = 64 << 20                 # bytes of a file that is written
NUMBERS_OF_A_RESULT = 100_000   # more than any answer has
# What a file of the course may ask of the system, as Python names it for sys.addaudithook. Names
# that begin as in REFUSED are refused, except ALLOWED, and CHANGES in the file's own folder.
ALLOWED = ('os.listdir', 'os.scandir', 'os.chdir', 'os.putenv', 'os.unsetenv')
CHANGES = ('os.remove', 'os.rmdir', 'os.mkdir')  # PyTorch needs them
REFUSED = ('os.', 'subprocess.', 'ctypes.dlopen')


def main(file, lessons, replaced, ours, hidden, calls, results):
    """Run a file, and write what its functions return.

    file        the path of the student's file, resolved
    lessons     {name: source}: our functions, which stand in for those of other lessons
    replaced    functions of the file in whose place ours stand
    ours        their source
    hidden      folders that the file may not read
    calls       bytes of torch.save, a list of {'name', 'kind', 'inputs', ..} for call_numbers,
                call_network or call_properties
    results     the path of the file to write

    What is written is {'file': what is wrong with the file, 'functions': {name: what is seen}}. A
    function that was called and has not returned yet has {}. All is written again whenever
    something was seen, because the file may end this process. What the file prints is shown
    nowhere.
    """
    os.chdir(Path(results).parent)
    sys.dont_write_bytecode = True
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.dup2(1, 2)
    calls = torch.load(io.BytesIO(calls), weights_only=True)
    torch.set_num_threads(1)
    sys.path[:0] = [str(Path(file).parent), str(HERE), str(HERE.parent)]
    limit_memory()
    if hasattr(os, 'setsid'):
        os.setsid()  # what the file starts belongs to its group, which grade.py ends
        os.closerange(3, 1024)  # open files and pipes of the processes that started this one
    output = open(results, 'r+b')

    written = {'file': '', 'functions': {}}

    def write():
        output.seek(0)
        torch.save(written, output)
        output.truncate()
        output.flush()

    refuse_what_harms(file, results, hidden)
    # after the refusals, because it runs files that are beside the student's
    put_answers_in_other_lessons(lessons, file)
    try:
        module = loaded(file, 'student')
        put_ours(module, replaced, ours)
    except BaseException as e:  # whatever a student's file does
        written['file'] = failure(e, file)
        write()
        return

    for call in calls:
        name = call['name']
        written['functions'][name] = {}
        write()
        written['functions'][name] = seen_of(getattr(module, name, None), call, file)
        write()


def seen_of(function, call, file):
    """What is seen of what stands in a student's file under the name of an exercise."""
    if not callable(function):
        return {'is_missing': True}
    seen = {'is_missing': False}
    kinds = {'numbers': call_numbers, 'network': call_network, 'properties': call_properties}
    try:
        kinds[call['kind']](function, call, seen)
    except BaseException as e:  # whatever a student's file does
        seen['is_gap'] = is_gap(e, function)
        seen['exception'] = failure(e, file)
    return seen


# ---- the process --------------------------------------------------------------------------------

def limit_memory():
    try:
        import resource
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
        resource.setrlimit(resource.RLIMIT_FSIZE, (FILE, FILE))
    except (ImportError, ValueError, OSError):  # Windows has no limit, or a lower one is set
        pass


def refuse_what_harms(file, results, hidden):
    """From now on Python refuses to start or end processes, to change files outside of the folder
    of `results`, and to read hidden folders. The student's own file may be read, also in a hidden
    folder. This stops plain Python, not machine code."""
    own_folder = Path(results).resolve().parent

    def refuse(event, words):
        if event.startswith(REFUSED) and event not in (*ALLOWED, *CHANGES):
            raise PermissionError(f'{event} is refused here')
        if event not in ('open', *CHANGES) or isinstance(words[0], int):
            return
        path = Path(os.fsdecode(words[0])).resolve()
        if path.is_relative_to(own_folder):
            return
        # os.open has no mode, so it is refused. It could open a folder, and with dir_fd= other
        # functions reach the files in an open folder without a path that is seen here
        if event in CHANGES or words[1] not in ('r', 'rb', 'rt'):
            raise PermissionError('a file of the course changes no other files')
        if path != Path(file) and any(path.is_relative_to(folder) for folder in hidden):
            raise PermissionError('this file is hidden from files of the course')

    sys.addaudithook(refuse)


# ---- a file -------------------------------------------------------------------------------------

def loaded(path, name):
    """A Python file as a module."""
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def put_answers_in_other_lessons(lessons, file):
    """Put our functions into the lessons that a student's file imports, so that the verdict does
    not depend on these. A lesson is the file beside the student's, which may have helpers of the
    student's own, or else the one of this folder."""
    for name, source in lessons.items():
        path = Path(file).with_name(f'{name}.py')
        try:
            module = loaded(path if path.is_file() else HERE / path.name, name)
        except BaseException:  # whatever is in that file
            module = types.ModuleType(name)
            sys.modules[name] = module
        sys.modules[f'course.{name}'] = module
        names = {}
        exec(source, names)
        for function_name, value in names.items():
            if inspect.isfunction(value):
                setattr(module, function_name, value)


def put_ours(module, replaced, source):
    """Our functions in place of those of a module. Other functions that they call are still the
    student's."""
    names = dict(vars(module))
    exec(source, names)
    for name in replaced:
        setattr(module, name, names[name])


def failure(exception, file):
    """An exception in words, with the line of the student's file that raised it."""
    frames = traceback.extract_tb(exception.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == file]
    if isinstance(exception, SyntaxError) and exception.filename == file:
        lines.append(exception.lineno)
    line = f'line {lines[-1]}: ' if lines else ''
    return line + in_words(exception)


def in_words(exception):
    text = traceback.format_exception_only(exception)[-1]
    return ' '.join(text.split())[:200]


def is_gap(exception, function):
    """Whether an exception is that of a gap, raise NotImplementedError, in the file in which a
    student's function or class stands. A gap in another file, which this one imports, does not
    count."""
    if not isinstance(exception, NotImplementedError):
        return False
    try:
        file = inspect.getfile(function)
    except (TypeError, OSError):  # it is neither a function nor a class
        return False
    return traceback.extract_tb(exception.__traceback__)[-1].filename == file


# ---- inputs and results -------------------------------------------------------------------------

def made(maker, *inputs):
    """An input that no file can hold: a function of this module makes it where it is needed."""
    return {'made by': maker, 'of': inputs}


def ready(inputs):
    """The inputs of a call, with those made that `made` names."""
    # one_by_one: batches as the experiment of a lesson gives them, once, and nobody knows how many
    makers = {'small_loss': small_loss, 'text_network': text_network, 'one_by_one': iter}
    values = []
    for value in inputs:
        if isinstance(value, dict) and 'made by' in value:
            value = makers[value['made by']](*value['of'])
        values.append(value)
    return values


def small_loss():
    """The loss of a small network: weights, x (n, 3), y (n,) -> ()."""
    def squared_error(weights, x, y):
        hidden = (x @ weights['in']).tanh()
        return (hidden @ weights['out'] - y).square().mean()

    return squared_error


def text_network(table, block):
    """A network whose logits depend on the last token, on all tokens that it sees, and on how many
    they are. It raises ValueError if these are more than `block`."""
    def predict(x):
        if x.dim() != 2 or x.shape[1] > block:
            raise ValueError(f'predict takes (1, n) with n at most {block}, and got '
                             f'{tuple(x.shape)}')
        position = torch.arange(x.shape[1], dtype=table.dtype)[:, None]
        means = table[x].cumsum(1) / (1 + position)
        return table[x] + means + (position * table[0]).sin()

    return predict


def plain(x):
    """What a function returned, as tensors, numbers, tuples and dicts. Anything else is a text that
    says what it is."""
    if isinstance(x, np.generic):  # a number or a bool of scipy
        x = x.item()
    if x is Ellipsis:  # an empty body
        return None
    if x is None or isinstance(x, (bool, float)):
        return x
    if isinstance(x, int):
        return float(x)
    if isinstance(x, torch.Tensor):
        if x.numel() > NUMBERS_OF_A_RESULT:
            return f'a tensor of shape {tuple(x.shape)}'
        return x.detach().clone().as_subclass(torch.Tensor)
    if isinstance(x, dict):
        return {str(key): plain(value) for key, value in x.items()}
    if isinstance(x, (tuple, list)):
        return tuple(plain(value) for value in x[:100])
    return f'a {type(x).__name__}'


def as_lists(x):
    """Tensors, also inside of dicts and tuples, as lists of numbers."""
    if isinstance(x, torch.Tensor):
        return x.tolist()
    if isinstance(x, dict):
        return {name: as_lists(value) for name, value in x.items()}
    if isinstance(x, (tuple, list)):
        return [as_lists(value) for value in x]
    return x


# ---- functions that return numbers --------------------------------------------------------------

def call_numbers(function, call, seen):
    """Call a function with each of call['inputs']. `seen` gets 'results' and 'gradients' of each
    call, 'changes_inputs', and 'operations' of the first call if these count."""
    seen.update(results=[], gradients=[], changes_inputs=False)
    for inputs in call['inputs']:
        used = copy.deepcopy(inputs)
        seen['results'].append(plain(function(*ready(used))))
        if as_lists(used) != as_lists(inputs):
            seen['changes_inputs'] = True
    if call['operations']:
        seen['operations'] = operations(function, call['inputs'][0])
    for inputs in call['inputs']:
        seen['gradients'].append(gradients(function, inputs, call['gradient']))


def operations(function, inputs):
    """How many operations a function takes for its products of matrices."""
    with FlopCounterMode(display=False) as counter:
        function(*ready(copy.deepcopy(inputs)))
    return counter.get_total_flops()


def gradients(function, inputs, places):
    """{name: gradient} of a result with respect to the tensors in the inputs at these places. It is
    empty if PyTorch finds none. The gradient is that of a weighted sum of all numbers of the
    result. Each has another weight, from 1 to 2, so that errors do not cancel."""
    inputs = copy.deepcopy(inputs)
    leaves = {}
    for i in places:
        if isinstance(inputs[i], dict):
            leaves.update(inputs[i])
        else:
            leaves[f'input {i + 1}'] = inputs[i]
    for leaf in leaves.values():
        leaf.requires_grad_()
    try:
        result = function(*ready(inputs)).flatten()
        weights = torch.linspace(1, 2, len(result), dtype=result.dtype)
        found = torch.autograd.grad(result @ weights, list(leaves.values()), materialize_grads=True)
    except Exception:  # whatever a student's file does
        return {}
    return {name: plain(gradient) for name, gradient in zip(leaves, found)}


# ---- a network ----------------------------------------------------------------------------------

def call_network(Network, call, seen):
    """Make a network of each of call['sizes'], and try what docs/extend.md says of it. For each
    size seen['sizes'] gets a dict: what was seen, up to an exception."""
    seen['sizes'] = []
    module = sys.modules.get(Network.__module__)
    if not hasattr(module, 'Config'):
        module = loaded(HERE / 'lesson8.py', 'gaps')
    for seed, (sizes, x, y) in enumerate(call['sizes']):
        seen_here = {}
        seen['sizes'].append(seen_here)
        torch.manual_seed(seed)
        try_network(Network, module.Config(**sizes), x, y, seen_here)


def try_network(Network, config, pictures, y, seen):
    """pictures: (4, C, H, W), y: their classes (4,). judges.py says what each entry of `seen`
    should be."""
    x = pictures.clone()
    model = Network(config)
    for weight in model.parameters():  # none is zero, which could hide a mistake
        weight.data += 0.3 * torch.randn(weight.shape)
    seen['keeps_config'] = getattr(model, 'config', None) is config
    seen['without_classes'] = plain(model(x))

    torch.manual_seed(0)  # for dropout
    out, loss = model(x, y)
    seen['with_classes'] = plain((out, loss))
    seen['loss_has_gradient'] = loss.requires_grad
    if not loss.requires_grad or loss.dim() > 0:
        return
    loss.backward()
    seen['not_reached'] = [name for name, weight in model.named_parameters()
                           if weight.requires_grad and weight.grad is None]

    z = model.embed(x)
    seen['tokens'] = tuple(z.shape)
    seen['layers'] = len(model.layers)
    seen['layers_are_module'] = isinstance(model.layers, nn.Module)
    seen['after_layers'] = []
    for layer in model.layers:
        z = layer(z)
        seen['after_layers'].append(tuple(z.shape))
    deeper = Network(replace(config, n_layer=config.n_layer + 1))
    seen['parameters'] = parameter_count(model)
    seen['parameters_of_deeper'] = parameter_count(deeper)

    model.eval()
    with torch.no_grad():
        seen['out'] = plain(model(x)[0])
        seen['out_again'] = plain(model(x)[0])
        seen['out_alone'] = plain(torch.cat([model(picture[None])[0] for picture in x]))
    seen['changes_pictures'] = not torch.equal(x, pictures)

    x.requires_grad_()
    seen['slope_of_output'] = slope(model(x)[0].square().sum(), x)
    tokens = model.embed(x)
    seen['slope_of_tokens'] = slope(tokens.square().sum(), x)
    token = tokens[0, -1]
    seen['slope_of_first_number'] = slope(token[0], x)
    seen['slope_of_last_number'] = slope(token[-1], x)


def slope(value, x):
    gradient, = torch.autograd.grad(value, x, retain_graph=True, materialize_grads=True)
    return plain(gradient)


def parameter_count(model):
    return sum(weight.numel() for weight in model.parameters())


# ---- properties ---------------------------------------------------------------------------------

def call_properties(properties, call, seen):
    """What each property says about each implementation of MSSA. call['implementations'] are
    sources with a function mssa. seen['properties'] gets the name and the answers of each property:
    True, False, or the exception in words."""
    listed = properties()
    seen['kind'] = type(listed).__name__
    if not isinstance(listed, (tuple, list)):
        return
    seen['others'] = [type(value).__name__ for value in listed if not callable(value)]
    if seen['others']:
        return
    implementations = []
    for source in call['implementations']:
        names = {}
        exec(source, names)
        implementations.append(names['mssa'])
    seen['properties'] = []
    for number, has_property in enumerate(listed, 1):
        name = str(getattr(has_property, '__name__', '<'))
        if '<' in name:  # a lambda has none
            name = f'property {number}'
        answers = [holds(has_property, mssa) for mssa in implementations]
        seen['properties'].append((name, answers))


def holds(has_property, mssa):
    """What a property says about an implementation: True, False, or an exception that it raised."""
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)  # the rounding of float32 is no mistake
    try:
        answer = has_property(mssa)
        if answer is None:
            raise TypeError('returns None, not True or False')
        return bool(answer)
    except Exception as e:
        return in_words(e)
    finally:
        torch.set_default_dtype(torch.float32)
