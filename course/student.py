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
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

HERE = Path(__file__).resolve().parent
MEMORY = 4 << 30                # bytes
FILE = 64 << 20                 # bytes of a file that is written
NUMBERS_OF_A_RESULT = 100_000   # more than any answer has
# what a file of the course has no reason to do, as Python names it for sys.addaudithook
REFUSED = ('os.fork', 'os.forkpty', 'os.posix_spawn', 'os.exec', 'os.system', 'os.kill',
           'os.killpg', 'subprocess.Popen', 'ctypes.dlopen')
# what it may do in its own folder alone
CHANGES = ('os.link', 'os.symlink', 'os.remove', 'os.rename', 'os.rmdir', 'os.truncate', 'os.chmod',
           'os.mkdir')


def main(job, calls, results, started):
    """Run a file, and write what its functions return to the path `results`.

    job: a dict with the keys
        file            the path of the student's file
        lessons         {name: source}: our functions, which stand in for those of other lessons
        replaced        functions of the file in whose place ours stand
        ours            their source
        hidden          folders that the file may not read
    calls: bytes of torch.save, a list of {'name', 'kind', 'inputs', ..} for call_numbers,
        call_network or call_properties.
    started: a connection that is closed as soon as PyTorch is there.

    What is written is {'file': what is wrong with the file, 'functions': {name: what is seen},
    'printed': how many lines the file printed, 'ended': whether all functions were called}. It is
    written again whenever something was seen, because the file may end this process.
    """
    os.chdir(Path(results).parent)
    sys.dont_write_bytecode = True
    printed = silence()
    calls = torch.load(io.BytesIO(calls), weights_only=True)
    torch.set_num_threads(1)
    file = job['file']  # a resolved path
    sys.path[:0] = [str(Path(file).parent), str(HERE), str(HERE.parent)]
    put_answers_in_other_lessons(job['lessons'], file)
    limit_memory()
    started.close()
    if hasattr(os, 'setsid'):
        os.setsid()  # what the file starts belongs to its group, which grade.py ends
        os.closerange(3, 1024)  # lines to the processes that started this one
    output = open(results, 'r+b')

    written = {'file': '', 'functions': {}, 'printed': 0, 'ended': False}

    def write():
        written['printed'] = printed.lines
        output.seek(0)
        torch.save(written, output)
        output.truncate()
        output.flush()

    refuse_what_harms(file, results, job['hidden'])
    try:
        module = loaded(file, 'student')
        put_ours(module, job['replaced'], job['ours'])
    except BaseException as e:  # whatever a student's file does
        written['file'] = failure(e, file)
        write()
        return

    for call in calls:
        name = call['name']
        written['functions'][name] = {}  # begun
        write()
        written['functions'][name] = seen_of(getattr(module, name, None), call, file)
        write()
    written['ended'] = True
    write()


def seen_of(function, call, file):
    """What is seen of what stands in a student's file under the name of an exercise."""
    if not callable(function):
        return {'is_missing': True, 'ended': True}
    seen = {'is_missing': False, 'ended': True}
    kinds = {'numbers': call_numbers, 'network': call_network, 'properties': call_properties}
    try:
        kinds[call['kind']](function, call, seen, file)
    except BaseException as e:  # whatever a student's file does
        seen['is_gap'] = is_gap(e, function)
        seen['exception'] = failure(e, file)
    return seen


# ---- the process --------------------------------------------------------------------------------

class Printed(io.TextIOBase):
    """Where a student's file prints to. It counts the lines, and does not keep them."""
    lines = 0

    def write(self, text):
        self.lines += text.count('\n')
        return len(text)


def silence():
    """Send what is printed elsewhere, also what is printed without sys.stdout. Returns the counter
    of lines."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.dup2(1, 2)
    printed = Printed()
    sys.stdout = printed
    sys.stderr = printed
    warnings.simplefilter('ignore')  # those of PyTorch are no lines that the file printed
    return printed


def limit_memory():
    try:
        import resource
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
        resource.setrlimit(resource.RLIMIT_FSIZE, (FILE, FILE))
    except (ImportError, ValueError, OSError):  # Windows has no limit, or a lower one is set
        pass


def refuse_what_harms(file, results, hidden):
    """From now on Python refuses to start or end processes, to change files outside of the folder
    of `results`, and to read hidden folders, but for the student's file. This stops plain Python,
    not machine code."""
    own_folder = os.path.dirname(os.path.realpath(results))
    hidden = [os.path.realpath(path) for path in hidden]

    def is_in(path, folder):
        return os.path.commonpath((path, folder)) == folder

    def refuse(event, words):
        if event in REFUSED:
            raise PermissionError(f'{event} is refused here')
        changes = event in CHANGES
        if event == 'open':
            # os.open has no mode, and may open a folder, from which other functions reach files
            is_os_open = words[1] is None
            changes = is_os_open or words[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        elif not changes:
            return
        # the second word of os.rename is a path too; that of open is a mode
        for word in words[:1] if event == 'open' else words[:2]:
            if isinstance(word, int):
                continue
            path = os.path.realpath(os.fsdecode(word))
            if changes and path != os.devnull and not is_in(path, own_folder):
                raise PermissionError('a file of the course changes no other files')
            if path != file and any(is_in(path, folder) for folder in hidden):
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
    """Put our functions into the lessons that a student's file imports. The lesson is that beside
    the student's file, which may have helpers of the student's own, or else that of this folder.
    With our functions the verdict does not depend on what else is in these files."""
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
    """Our functions in place of those of a module. What they call is the student's."""
    names = dict(vars(module))
    exec(source, names)
    for name in replaced:
        setattr(module, name, names[name])


def failure(exception, file):
    """An exception in words, with the line of the student's file that raised it."""
    if isinstance(exception, SyntaxError) and exception.filename == str(file):
        line = f'line {exception.lineno}: '
    else:
        line = last_line(traceback.extract_tb(exception.__traceback__), file)
    return line + in_words(exception)


def last_line(frames, file):
    """'line 7: ' for the last frame that is in a file; '' if none is."""
    lines = [frame.lineno for frame in frames if frame.filename == str(file)]
    return f'line {lines[-1]}: ' if lines else ''


def in_words(exception):
    try:
        text = str(exception.msg if isinstance(exception, SyntaxError) else exception)
    except Exception:  # the exception of a student can do that
        text = ''
    words = ' '.join(text.split())[:200]
    name = type(exception).__name__
    return f'{name}: {words}' if words else name


def is_gap(exception, function):
    """Whether an exception is that of a gap, in the file in which a student's function or class
    stands. A gap in a file that this one imports is none."""
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
    makers = {function.__name__: function for function in (small_loss, text_network, one_by_one)}
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
            shape = tuple(x.shape)
            raise ValueError(f'predict takes (1, n) with n at most {block}, and got {shape}')
        position = torch.arange(x.shape[1], dtype=table.dtype)[:, None]
        means = table[x].cumsum(1) / (1 + position)
        return table[x] + means + (position * table[0]).sin()

    return predict


def one_by_one(batches):
    """Batches as the experiment of a lesson gives them: once, and nobody knows how many."""
    return (batch for batch in batches)


def plain(x):
    """What a function returned, as tensors, numbers, lists and dicts. Anything else is a text that
    says what it is."""
    if isinstance(x, np.generic):  # a number or a bool of scipy
        x = x.item()
    if x is Ellipsis:  # an empty body
        return None
    if x is None or isinstance(x, (bool, float)):
        return x
    if isinstance(x, int):
        try:
            return float(x)
        except OverflowError:
            return 'a number that is too large for float64'
    if isinstance(x, torch.Tensor):
        if x.numel() > NUMBERS_OF_A_RESULT:
            return f'a tensor of shape {tuple(x.shape)}'
        return x.detach().clone().as_subclass(torch.Tensor)
    if isinstance(x, dict):
        return {str(key): plain(value) for key, value in x.items()}
    if isinstance(x, (tuple, list)):
        return tuple(plain(value) for value in x[:100])
    return f'a {type(x).__name__}'


def tensors_in(x):
    """The tensors in nested tuples, lists and dicts."""
    if isinstance(x, torch.Tensor):
        return [x]
    if isinstance(x, dict):
        x = list(x.values())
    tensors = []
    if isinstance(x, (tuple, list)):
        for value in x:
            tensors += tensors_in(value)
    return tensors


# ---- functions that return numbers --------------------------------------------------------------

def call_numbers(function, call, seen, file):
    """Call a function with each of call['inputs']. `seen` gets 'results', 'inputs' (what became of
    them), 'float32' (where float32 came in, or '') and 'gradients' of each call, and 'products' of
    the first."""
    seen.update(results=[], inputs=[], float32=[], gradients=[])
    for inputs in call['inputs']:
        used = copy.deepcopy(inputs)
        result = function(*ready(used))
        seen['float32'].append(float32_source(function, inputs, result, file))
        seen['results'].append(plain(result))
        seen['inputs'].append(plain(used))
    if call['products']:
        seen['products'] = products(function, call['inputs'][0])
    for inputs in call['inputs']:
        seen['gradients'].append(gradients(function, inputs, call['gradient']))


class Products(TorchDispatchMode):
    """Counts products of two matrices."""
    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        if name in ('mm', 'bmm', 'addmm', 'baddbmm', 'matmul'):
            self.count += 1
        return func(*args, **(kwargs or {}))


def products(function, inputs):
    """How many products of matrices a function takes."""
    with Products() as counter:
        function(*ready(copy.deepcopy(inputs)))
    return counter.count


def gradients(function, inputs, places):
    """The gradients of a result with respect to the float tensors in the inputs at these places, a
    list of tensors. It is empty if the function has none, which may be because it is no function of
    PyTorch. The gradient is that of a sum over the result in which each number has a weight of its
    own."""
    inputs = copy.deepcopy(inputs)
    leaves = [x for x in tensors_in([inputs[i] for i in places]) if x.is_floating_point()]
    for leaf in leaves:
        leaf.requires_grad_()
    try:
        result = function(*ready(inputs)).flatten()
        weights = torch.linspace(1, 2, len(result), dtype=result.dtype)
        found = torch.autograd.grad(result @ weights, leaves, materialize_grads=True)
    except Exception:  # whatever a student's file does
        return []
    return [plain(gradient) for gradient in found]


# ---- float32 ------------------------------------------------------------------------------------

class NoFloat32(TorchFunctionMode):
    """Inside of `with`, the first call of PyTorch that makes rounded float32 numbers raises
    ValueError. Whole numbers do not count, because float32 does not round them."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if has_float32(result):
            name = function.__name__.strip('_')
            raise ValueError(f'{name} gives float32, and inputs are float64: write dtype=Z.dtype '
                             'where you make a tensor, .to(Z.dtype) behind bools and whole '
                             'numbers, torch.stack and not torch.tensor for a list of tensors')
        return result


def has_float32(result):
    """Whether float32 has rounded a tensor in a result."""
    for tensor in tensors_in(result):
        if tensor.dtype == torch.float32 and not torch.equal(tensor, tensor.round()):
            return True
    return False


def float32_source(function, inputs, result, file):
    """Where float32 came into a result, in words; '' if the result has no float32."""
    if not has_float32(result):
        return ''
    try:
        with NoFloat32():
            function(*ready(copy.deepcopy(inputs)))
    except BaseException as e:  # NoFloat32, or whatever a student's file does
        return failure(e, file)
    return 'returns float32, and the inputs are float64'


# ---- a network ----------------------------------------------------------------------------------

def call_network(Network, call, seen, file):
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
        try_network(Network, module.Config(**sizes), x.clone(), y, seen_here)


def try_network(Network, config, x, y, seen):
    """x: pictures (4, C, H, W), y: their classes (4,). judges.py says what each entry of `seen`
    should be."""
    model = Network(config)
    seen['kind'] = type(model).__name__
    seen['is_module'] = isinstance(model, nn.Module)
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
    not_reached = []
    for name, weight in model.named_parameters():
        if weight.requires_grad and weight.grad is None:
            not_reached.append(name)
    seen['not_reached'] = tuple(not_reached)

    seen['has_embed'] = callable(getattr(model, 'embed', None))
    tokens = model.embed(x)
    seen['tokens'] = tuple(tokens.shape)
    layers = getattr(model, 'layers', None)
    seen['layers'] = len(layers) if hasattr(layers, '__len__') else None
    seen['kind_of_layers'] = type(layers).__name__
    seen['layers_are_module'] = isinstance(layers, nn.Module)
    after = tokens
    seen['after_layers'] = []
    for layer in layers:
        after = layer(after)
        seen['after_layers'].append(tuple(after.shape))
    deeper = Network(replace(config, n_layer=config.n_layer + 1))
    seen['parameters'] = parameter_count(model)
    seen['parameters_of_deeper'] = parameter_count(deeper)

    model.eval()
    before = x.clone()
    with torch.no_grad():
        seen['out'] = plain(model(x)[0])
        seen['out_again'] = plain(model(x)[0])
        seen['out_alone'] = plain(torch.cat([model(picture[None])[0] for picture in x]))
    seen['changes_pictures'] = not torch.equal(x, before)

    x.requires_grad_()
    seen['slope_of_output'] = slope(model(x)[0].square().sum(), x)
    seen['slope_of_tokens'] = slope(model.embed(x).square().sum(), x)
    token = model.embed(x)[0, -1]
    seen['slope_of_first_number'] = slope(token[0], x)
    seen['slope_of_last_number'] = slope(token[-1], x)


def slope(value, x):
    gradient, = torch.autograd.grad(value, x, retain_graph=True, materialize_grads=True)
    return plain(gradient)


def parameter_count(model):
    return sum(weight.numel() for weight in model.parameters())


# ---- properties ---------------------------------------------------------------------------------

def call_properties(properties, call, seen, file):
    """What each property says about each implementation of MSSA. call['implementations'] are
    sources with a function mssa. seen['answers'] gets a list for each property: True, False, or the
    exception in words."""
    listed = properties()
    seen['kind'] = type(listed).__name__
    seen['kinds'] = []
    seen['names'] = []
    seen['answers'] = []
    if not isinstance(listed, (tuple, list)):
        return
    implementations = []
    for source in call['implementations']:
        names = {'__name__': 'mssa'}
        exec(source, names)
        implementations.append(names['mssa'])
    for has_property in listed:
        seen['kinds'].append(type(has_property).__name__ if not callable(has_property) else '')
    if any(seen['kinds']):
        return
    for number, has_property in enumerate(listed, 1):
        name = str(getattr(has_property, '__name__', '<'))
        seen['names'].append(f'property {number}' if '<' in name else name)  # a lambda has none
        seen['answers'].append([holds(has_property, mssa) for mssa in implementations])


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
