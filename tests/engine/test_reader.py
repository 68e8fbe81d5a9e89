"""Files of weights that lie, each a real one with one thing changed: one line says what is wrong and
what to do, and no file is touched. Nothing that is not finite is saved."""
import json
import math
import os
import pickle
import shutil
import signal
import struct
import zipfile

import pytest
import torch
from helpers import equal, fails, run, snapshot, weights

import analyze
import eval as scores
import sample
import train
from engine import checkpoints, reader
from engine.rundir import load_checkpoint
from model_aot import AoT
from model_vit import ViT, ViTConfig
from prepare.gpt2_weights import read_safetensors
from tasks.text import NextToken, TextSplit

GIANT = torch.zeros(1).expand(10 ** 9)
QUANTIZED = torch.quantize_per_tensor(torch.zeros(4), 0.1, 0, torch.qint8)
NESTED = torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)])


def nested(depth):
    value = []
    for _ in range(depth):
        value = [value]
    return value


# ---- checkpoints of ours

TABLE = 'embed.tok_emb.weight'  # of the text run: (256, 16)


def weight(change):
    """A checkpoint with another TABLE."""
    def lie(c):
        c['weights'] = dict(c['weights'], **{TABLE: change(c['weights'][TABLE])})
    return lie


def put(value, *place):
    """A checkpoint with another value at checkpoint[place[0]][place[1]].."""
    def lie(c):
        for k in place[:-1]:
            c = c[k]
        c[place[-1]] = value
    return lie


def drop(*place):
    def lie(c):
        for k in place[:-1]:
            c = c[k]
        del c[place[-1]]
    return lie


def filled(number):
    def change(t):
        t = t.clone()
        t[3, 5] = number
        return t
    return change


# {name: (what lies, what is said)}; all are tried in training, scoring, sampling and looking inside
LIES = {
    **{f'no_{k}': (drop(k), f'{k} is missing') for k in (
        'weights', 'ema', 'model_config', 'config', 'data', 'optimizers', 'scaler', 'step', 'best', 'seconds')},
    'extra_key': (put(1, 'surprise'), 'surprise is unknown'),
    'format_3': (put(3, 'format'), 'another version'), 'format_word': (put('2', 'format'), 'format is of type str'),
    **{f'{k}_none': (put(None, k), f'{k} is of type NoneType') for k in ('weights', 'model_config', 'config', 'step')},
    **{f'{k}_number': (put(7, k), f'{k} is of type int') for k in (
        'weights', 'ema', 'model_config', 'config', 'data', 'optimizers', 'scaler', 'best', 'seconds')},
    'step_word': (put('x', 'step'), 'step is of type str'), 'step_bool': (put(True, 'step'), 'step is of type bool'),
    'step_negative': (put(-1, 'step'), 'out of range'), 'step_huge': (put(10 ** 30, 'step'), 'step is out of range'),
    'best_nan': (put(math.nan, 'best'), 'best is out of range'),
    'seconds_inf': (put(math.inf, 'seconds'), 'out of range'),
    'config_empty': (put({}, 'config'), 'config.model is missing'),
    'config_seed': (put('x', 'config', 'seed'), 'config.seed is of type str'),
    'config_tensor': (put(torch.ones(1), 'config', 'n_embd'), 'config.n_embd is of type Tensor'),
    'config_deep': (put(nested(100), 'config', 'note'), 'nested too deep'),
    'config_bomb': (put([[[[[0] * 20] * 20] * 20] * 20], 'config', 'note'), 'too many values'),
    'config_set': (put({1, 2}, 'config', 'note'), ''), 'config_key': (put(1, 'config', (1, 2)), 'a name that is none'),
    'config_escape': (put(1, 'config', '\x1b[2J'), 'a name that is none'),
    'config_model': (put('../aot', 'config', 'model'), "model='../aot' is unknown"),
    'model_config_empty': (put({}, 'model_config'), 'is damaged'),
    'model_config_word': (put('x', 'model_config', 'n_embd'), 'n_embd'),
    'model_config_layers': (put(3, 'model_config', 'n_layer'), 'layers.2'),
    'model_config_zero': (put(0, 'model_config', 'n_head'), ''),
    'model_config_heads': (put(-2, 'model_config', 'n_head'), ''),
    'model_config_kind': (put(5, 'model_config', 'n_dims'), ''),
    'data_kind': (put('sounds', 'data', 'kind'), 'data.kind'), 'data_empty': (put({}, 'data'), 'data.kind is missing'),
    'data_no_tokenizer': (drop('data', 'tokenizer'), 'data'),
    'data_tokenizer': (put(3, 'data', 'tokenizer'), 'data'),
    'data_alphabet': (put({'name': 'chars', 'alphabet': 'a' * 300}, 'data', 'tokenizer'), ''),
    'data_images': (put({'kind': 'images', 'classes': None}, 'data'), ''),
    'data_functions': (put({'kind': 'functions'}, 'data'), ''),
    'data_classes': (put({'kind': 'images', 'classes': [1]}, 'data'), 'data'),
    'weights_empty': (put({}, 'weights'), 'is damaged'),
    'weights_list': (put([], 'weights'), 'weights is of type list'),
    'weights_missing': (drop('weights', TABLE), TABLE),
    'weights_extra': (put(torch.ones(1), 'weights', 'surprise'), 'surprise'),
    'weights_layer': (put(torch.ones(1), 'weights', 'layers.1000000000.x'), 'layers.1000000000.x'),
    'weights_number': (weight(lambda t: 1.5), f'weights.{TABLE} is of type float'),
    'weights_none': (weight(lambda t: None), f'weights.{TABLE} is of type NoneType'),
    'weights_nested': (weight(lambda t: {'a': t}), f'weights.{TABLE} is of type dict'),
    'name_number': (put(torch.ones(1), 'weights', 3), 'weights.3 is unknown'),
    'name_long': (put(torch.ones(1), 'weights', 'x' * 10 ** 5), 'a name that is none'),
    'shape': (weight(lambda t: t.T.contiguous()), TABLE), 'scalar': (weight(lambda t: t[0, 0]), TABLE),
    'empty': (weight(lambda t: torch.zeros(0, 10 ** 15)), TABLE),
    'vector': (weight(lambda t: t.flatten()), TABLE), 'sparse': (weight(lambda t: t.to_sparse()), 'no dense tensor'),
    'sparse_rows': (weight(lambda t: t.to_sparse_csr()), 'no dense tensor'),
    'meta': (weight(lambda t: t.to('meta')), 'no dense tensor'),
    'nested': (weight(lambda t: NESTED), 'no dense tensor'),
    'quantized': (weight(lambda t: QUANTIZED), 'qint8'), 'complex': (weight(lambda t: t + 0j), 'complex64'),
    'float8': (weight(lambda t: t.to(torch.float8_e5m2)), 'float8'), 'integer': (weight(lambda t: t.long()), TABLE),
    'bool': (weight(lambda t: t > 0), TABLE), 'giant': (weight(lambda t: GIANT), 'not wholly in the file'),
    'giant_table': (weight(lambda t: torch.zeros(1).expand(256, 16)), 'not wholly'),
    'optimizers_dict': (put({}, 'optimizers'), 'optimizers is of type dict'),
    'optimizers_word': (put(['x'], 'optimizers'), 'optimizers.0 is of type str'),
    'scaler_word': (put({'scale': 'x'}, 'scaler'), 'scaler.scale is of type str')}


def state(c, optimizer=0):
    """What a checkpoint keeps of the first parameter of an optimizer, AdamW or Muon."""
    states = c['optimizers'][optimizer]['state']
    return states[min(states)]


def swapped(key, change, optimizer=0):
    def lie(c):
        state(c, optimizer)[key] = change(state(c, optimizer)[key])
    return lie


# lies about the optimizers, which only a resumed run reads
OPTIMIZERS = {
    'none': lambda c: c['optimizers'].clear(), 'one_less': lambda c: c['optimizers'].pop(),
    'one_more': lambda c: c['optimizers'].append(c['optimizers'][0]),
    'exchanged': lambda c: c['optimizers'].reverse(),
    'no_groups': lambda c: c['optimizers'][0].update(param_groups=[]),
    'other_groups': lambda c: c['optimizers'][0]['param_groups'][0].update(params=[7, 8, 9]),
    'other_parameter': lambda c: c['optimizers'][0]['state'].update({10 ** 9: state(c)}),
    'negative': lambda c: c['optimizers'][0]['state'].update({-1: state(c)}),
    'no_state': lambda c: state(c).clear(), 'missing': lambda c: state(c).pop('exp_avg_sq'),
    'extra': lambda c: state(c).update(more=torch.ones(1)), 'short': swapped('exp_avg', lambda t: t.flatten()[:1]),
    'short_square': swapped('exp_avg_sq', lambda t: t[:1]), 'flat': swapped('exp_avg', lambda t: t.flatten()),
    'scalar': swapped('exp_avg', lambda t: t.sum()), 'turned': swapped('exp_avg', lambda t: t.T.contiguous()),
    'strided': swapped('exp_avg', lambda t: t.T.contiguous().T), 'halves': swapped('exp_avg', torch.Tensor.half),
    'doubles': swapped('exp_avg_sq', torch.Tensor.double), 'integers': swapped('exp_avg', torch.Tensor.long),
    'steps': swapped('step', lambda t: torch.ones(5)), 'whole_step': swapped('step', lambda t: torch.tensor(3)),
    'muon_short': swapped('momentum_buffer', lambda t: t[:1], 1),
    'muon_halves': swapped('momentum_buffer', torch.Tensor.half, 1)}


@pytest.fixture
def copy(text_run, tmp_path):
    return shutil.copytree(text_run, tmp_path / 'copy')


def lie(out, change):
    """Both checkpoints of a run with one thing changed."""
    checkpoint = torch.load(out / 'last.pt')
    change(checkpoint)
    for name in ('last.pt', 'best.pt'):
        torch.save(checkpoint, out / name)


def refused(capsys, out, data, message='', programs=range(5)):
    """Fails unless these programs refuse a run in one line, and touch nothing."""
    before, new = snapshot(out), f'--out_dir={out}/new'
    readers = ((train.main, '--init_from=resume', f'--out_dir={out}'), (scores.main, f'--ckpt={out}', *data),
               (train.main, f'--init_from={out}/last.pt', *data, new), (sample.main, f'--ckpt={out}', '--start=the'),
               (analyze.main, 'layers', f'--ckpt={out}', *data, f'--out={out}/a.png'))
    for main, *words in (readers[i] for i in programs):
        said = fails(capsys, main, *words)
        assert message in said and len(said) < 1000 and said.isprintable(), said
        assert any(word in said for word in ('take another', 'to go on from', 'train it again', 'choose', 'must ',
                                             'expected', 'not divisible', 'start from scratch')), said
        assert snapshot(out) == before


@pytest.mark.parametrize('name', LIES)
def test_a_checkpoint_that_lies_is_refused(name, copy, tiny, capsys):
    """By train.py, and by one other program in turn."""
    change, message = LIES[name]
    lie(copy, change)
    refused(capsys, copy, tiny[:2], message, (0, 1 + list(LIES).index(name) % 4))


@pytest.mark.slow
@pytest.mark.parametrize('name', LIES)
def test_a_checkpoint_that_lies_is_refused_by_all_programs(name, copy, tiny, capsys):
    change, message = LIES[name]
    lie(copy, change)
    refused(capsys, copy, tiny[:2], message)


@pytest.mark.parametrize('name', OPTIMIZERS)
def test_optimizers_that_lie_are_refused(name, copy, quick, capsys):
    lie(copy, OPTIMIZERS[name])
    before = snapshot(copy)
    said = fails(capsys, train.main, '--init_from=resume', f'--out_dir={copy}', '--max_iters=9')
    assert 'last.pt cannot be resumed (' in said and 'start from its weights: train.py --init_from=' in said
    assert snapshot(copy) == before


@pytest.mark.slow
def test_wrong_optimizers_end_no_process(copy):
    """The fused kernel of AdamW writes where the tensor is not, and the process ended with SIGSEGV."""
    def short(c):
        for kept in c['optimizers'][0]['state'].values():
            kept['exp_avg'] = kept['exp_avg_sq'] = torch.zeros(1)
    lie(copy, short)
    before = snapshot(copy)
    done = run('train.py', '--init_from=resume', f'--out_dir={copy}', '--max_iters=9')
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1 and 'cannot be resumed' in done.stderr
    assert snapshot(copy) == before


def repacked(path, change):
    """A file of torch.save with another pickle in it."""
    with zipfile.ZipFile(path) as z:
        held = {name: z.read(name) for name in z.namelist()}
    with zipfile.ZipFile(path, 'w') as z:
        for name, content in held.items():
            z.writestr(name, change(content) if name.endswith('data.pkl') else content)


def overlapping(path):
    """A file whose list of contents names the same content many times."""
    with zipfile.ZipFile(path, 'a') as z:
        first = next(i for i in z.infolist() if i.file_size > 1000)
        for i in range(100):
            twin = zipfile.ZipInfo(f'{first.filename}{i}')
            for k in ('header_offset', 'CRC', 'compress_size', 'file_size', 'compress_type'):
                setattr(twin, k, getattr(first, k))
            z.filelist.append(twin)
        z._didModify = True


FILES = {
    'missing': os.remove, 'empty': lambda p: p.write_bytes(b''), 'half': lambda p: p.write_bytes(p.read_bytes()[:9999]),
    'one_byte_less': lambda p: p.write_bytes(p.read_bytes()[:-1]), 'text': lambda p: p.write_bytes(b'hello' * 100),
    'a_folder': lambda p: (p.unlink(), p.mkdir()), 'a_number': lambda p: torch.save(3, p),
    'no_zip': lambda p: torch.save(torch.load(p), p, _use_new_zipfile_serialization=False),
    'a_list': lambda p: torch.save([1, 2], p), 'a_tensor': lambda p: torch.save(torch.ones(3), p),
    'code': lambda p: repacked(p, lambda b: b'cos\nsystem\n(S"touch /tmp/owned"\ntR.'),
    'pickle': lambda p: p.write_bytes(pickle.dumps({'weights': 1})),
    'overlapping': overlapping,
    'deep_list': lambda p: repacked(p, lambda b: b'\x80\x02' + b']' * 30000 + b'a' * 29999 + b'.'),
    'larger_storage': lambda p: repacked(p, lambda b: b.replace(b'M\x00\x10t', b'J\x00\x00\x00\x10t')),
    'larger_shape': lambda p: repacked(p, lambda b: b.replace(b'M\x00\x01K\x10\x86', b'J\x00\x00\x00\x10K\x10\x86'))}


@pytest.mark.parametrize('name', FILES)
def test_a_file_that_is_damaged_is_refused(name, copy, tiny, capsys):
    FILES[name](copy / 'last.pt')
    for words in (('--init_from=resume', f'--out_dir={copy}'),
                  (f'--init_from={copy}/last.pt', *tiny[:2], f'--out_dir={copy}/new')):
        said = fails(capsys, train.main, *words)
        assert 'last.pt' in said and any(word in said for word in ('to go on from', 'train it')), said
    assert not (copy / 'new').exists()


def test_shared_weights_stay_shared_and_count_once(tmp_path):
    table = torch.randn(100, 10)
    torch.save({'a': table, 'b': table, 'c': table[3:5], 'd': table.T}, tmp_path / 'a.pt')
    held = reader.state_dict(reader.load(tmp_path / 'a.pt'))
    assert held['a'].data_ptr() == held['b'].data_ptr() and equal(held, {
        'a': table, 'b': table, 'c': table[3:5], 'd': table.T})


# ---- official files

SIZES = dict(image_size=16, patch_size=4, num_classes=7, n_layer=2, n_head=3, n_embd=24)
KEY = 'blocks.1.mlp.fc2.weight'


def key(change):
    return lambda sd: sd | {KEY: change(sd[KEY])}


OFFICIAL = {
    'integer': (key(torch.Tensor.long), KEY), 'scalar': (key(lambda t: t[0, 0]), KEY),
    'complex': (key(lambda t: t + 0j), KEY), 'sparse': (key(torch.Tensor.to_sparse), KEY),
    'meta': (key(lambda t: t.to('meta')), KEY), 'quantized': (key(lambda t: QUANTIZED), KEY),
    'giant': (key(lambda t: GIANT), KEY), 'empty': (key(lambda t: t[:0]), KEY),
    'nested': (key(lambda t: NESTED), KEY), 'number': (key(lambda t: 3), KEY), 'none': (key(lambda t: None), KEY),
    'huge_layer': (lambda sd: sd | {'blocks.1000000000.norm1.weight': torch.ones(24)}, 'none of them is blocks.2'),
    'word_layer': (lambda sd: sd | {'blocks.x.norm1.weight': torch.ones(24)}, 'none of them is blocks.2'),
    'no_layer': (lambda sd: {k: v for k, v in sd.items() if 'blocks.0.mlp' not in k}, 'blocks.0.mlp'),
    'many_layers': (lambda sd: sd | {f'blocks.{i}.x': torch.ones(1) for i in range(2, 500)}, 'differ'),
    'wide': (lambda sd: sd | {'head.weight': torch.ones(1, 99999)}, 'weights, and it holds'),
    'scalar_head': (lambda sd: sd | {'head.weight': torch.tensor(1.0)}, 'head.weight has shape ()'),
    'flat_positions': (lambda sd: sd | {'pos_embed': torch.ones(9)}, 'pos_embed has shape (9,)'),
    'flat_patch': (lambda sd: sd | {'patch_embed.proj.weight': torch.ones(9)}, 'patch_embed.proj.weight has shape'),
    'flat_first': (lambda sd: sd | {'blocks.0.attn.qkv.weight': torch.ones(9)}, 'blocks.0.attn.qkv.weight has shape'),
    'twins': (lambda sd: sd | {f'module.{KEY}': sd[KEY]}, 'the same name'),
    'long_name': (lambda sd: sd | {'x' * 10 ** 5: torch.ones(1)}, 'a name that is none'),
    'number_name': (lambda sd: sd | {3: torch.ones(1)}, '3 is unknown'),
    'many_names': (lambda sd: sd | {f'x{i}': torch.ones(1) for i in range(99)}, "unexpected ['x0', 'x1', 'x10', 'x"),
    'nest_none': (lambda sd: {'model': None}, 'NoneType'), 'nest_list': (lambda sd: {'state_dict': [sd]}, 'list'),
    'nest_deep': (lambda sd: {'state_dict': {'model': {'model': sd}}}, 'dict'), 'set': (lambda sd: {1, 2}, 'w.pth')}


@pytest.mark.parametrize('name', OFFICIAL)
def test_an_official_file_that_lies_is_refused(name, tmp_path, capsys):
    torch.manual_seed(1)
    change, message = OFFICIAL[name]
    torch.save(change(ViT(ViTConfig(**SIZES)).to_official()), tmp_path / 'w.pth')
    before = snapshot(tmp_path)
    words = '--model=vit', '--n_head=3', '--patch_size=4', '--dataset=x', f'--data_dir={tmp_path}'
    for main, more in ((scores.main, f'--official={tmp_path}/w.pth'), (sample.main, f'--official={tmp_path}/w.pth')):
        said = fails(capsys, main, *(words if main is scores.main else words[:3]), more)
        assert 'w.pth' in said and message in said and len(said) < 1000 and said.isprintable(), said
    assert snapshot(tmp_path) == before


def test_an_official_file_may_be_of_before_pytorch_16(tmp_path):
    model = ViT(ViTConfig(**SIZES))
    torch.save(model.to_official(), tmp_path / 'w.pth', _use_new_zipfile_serialization=False)
    held = checkpoints.load_weights(f'official:{tmp_path}/w.pth', 'vit', n_head=3, patch_size=4)
    assert equal(held['weights'], model.state_dict())


# ---- safetensors

def safetensors(header, content=bytes(16)):
    head = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack('<Q', len(head)) + head + content


def entry(dtype='F32', shape=(2, 2), places=(0, 16)):
    return {'dtype': dtype, 'shape': shape, 'data_offsets': places}


SAFETENSORS = {
    'none': b'', 'no_header': bytes(8), 'long_header': struct.pack('<Q', 2 ** 63) + b'{}', 'list': safetensors(b'[]'),
    'deep': safetensors(b'[' * 10 ** 5 + b']' * 10 ** 5), 'deep_dict': safetensors(b'{"a":' * 10 ** 5),
    'no_json': safetensors(b'{hello}'), 'no_utf8': safetensors(b'{"\xff": 1}'), 'none_entry': safetensors({'a': None}),
    'no_dtype': safetensors({'a': {'shape': [4], 'data_offsets': [0, 16]}}),
    'no_shape': safetensors({'a': {'dtype': 'F32', 'data_offsets': [0, 16]}}),
    'long': safetensors({'a': entry(shape=[2 ** 62], places=[0, 2 ** 64])}),
    'behind': safetensors({'a': entry(places=[16, 32])}), 'negative': safetensors({'a': entry(places=[-16, 0])}),
    'backwards': safetensors({'a': entry(places=[16, 0])}), 'overlap': safetensors({'a': entry(), 'b': entry()}),
    'inside': safetensors({'a': entry(), 'b': entry(shape=[1], places=[4, 8])}),
    'gap': safetensors({'a': entry(shape=[1], places=[0, 4]), 'b': entry(shape=[1], places=[12, 16])}),
    'rest': safetensors({'a': entry(shape=[1], places=[0, 4])}), 'three': safetensors({'a': entry(places=[0, 8, 16])}),
    'fraction': safetensors({'a': entry(shape=[4.0])}), 'true': safetensors({'a': entry(shape=[True, 4])}),
    'word': safetensors({'a': entry(shape=['4'])}), 'no_list': safetensors({'a': entry(shape=4)}),
    'minus': safetensors({'a': entry(shape=[-2, -2])}), 'nothing': safetensors({'a': entry(shape=[0], places=[0, 0])}),
    'dimensions': safetensors({'a': entry(shape=[1] * 10 ** 4 + [4])}), 'I64': safetensors({'a': entry('I64', [2])}),
    'dtype_list': safetensors({'a': entry(['F32'])}), 'name': safetensors({'\x1b[2J': entry()}),
    'long_name': safetensors({'x' * 10 ** 5: entry()}), 'digits': safetensors(b'{"a": ' + b'9' * 10 ** 5 + b'}')}


@pytest.mark.parametrize('name', SAFETENSORS)
def test_safetensors_that_lie_are_refused(name, tmp_path):
    path = tmp_path / 'a.safetensors'
    path.write_bytes(SAFETENSORS[name])
    with pytest.raises(ValueError) as e:
        read_safetensors(path)
    said = str(e.value)
    assert str(path) in said and said.endswith('; get it again') and len(said) < 1000, said


def gpt2(**more):
    shapes = {'wte.weight': (9, 4), 'wpe.weight': (8, 4), 'ln_f.weight': (4,), 'h.0.attn.c_attn.weight': (4, 12),
              'h.0.attn.c_proj.weight': (4, 4), 'h.0.ln_1.weight': (4,), 'h.0.ln_2.weight': (4,),
              'h.0.mlp.c_fc.weight': (4, 16), 'h.0.mlp.c_proj.weight': (16, 4)}
    return {k: torch.ones(s) for k, s in shapes.items()} | more


@pytest.mark.parametrize('more, message', [
    ({'h.1000000000.ln_1.weight': torch.ones(4)}, 'none of them is h.1'), ({'wte.weight': torch.ones(9)}, 'wte.weight'),
    ({'wpe.weight': torch.tensor(1.0)}, 'wpe.weight'),
    ({'ln_f.weight': torch.ones(4, dtype=torch.long)}, 'ln_f.weight'),
    ({'wte.weight': torch.ones(1, 10 ** 4)}, 'and it holds'), ({'h.0.attn.c_attn.weight': torch.ones(3)}, 'c_attn'),
    ({f'x{i}': torch.ones(1) for i in range(99)}, "unexpected ['x0', 'x1'")])
def test_a_gpt2_that_lies_is_refused(more, message):
    AoT.from_gpt2(gpt2(), n_head=2)
    with pytest.raises(ValueError) as e:
        AoT.from_gpt2(gpt2(**more), n_head=2)
    assert message in str(e.value) and len(str(e.value)) < 500


# ---- nothing that is not finite is saved


def stop_at(monkeypatch, at):
    """A stop signal in the step `at`."""
    batches = TextSplit.batches

    def stopping(self, n, seed, share, first, last):
        for step in range(first, last):
            if step == at:
                os.kill(os.getpid(), signal.SIGTERM)
            yield from batches(self, n, seed, share, step, step + 1)
    monkeypatch.setattr(TextSplit, 'batches', stopping)


@pytest.mark.parametrize('words', [[], ['--ema=0.9']])
@pytest.mark.parametrize('at', [6, 7, 8])
def test_a_signal_in_the_step_that_diverges_keeps_the_good_checkpoint(at, words, copy, quick, monkeypatch, capsys):
    """The loss of step 6 is finite, its gradient too; the weights after it are of no use."""
    good = weights(copy)
    stop_at(monkeypatch, at)
    said = fails(capsys, train.main, '--init_from=resume', f'--out_dir={copy}', '--max_iters=60', '--grad_clip=0',
                 '--schedule=constant', '--learning_rate=1e30', '--muon_lr=1e30', *words)
    assert 'not finite' in said and '--init_from=resume and a lower --learning_rate' in said
    assert load_checkpoint(copy / 'last.pt')['step'] == 6 and equal(weights(copy), good)


def test_a_signal_in_a_validation_that_diverges_keeps_the_good_checkpoint(copy, quick, monkeypatch, capsys):
    good, metrics = (copy / 'last.pt').read_bytes(), NextToken.metrics

    def diverged(self, out, loss, y):
        os.kill(os.getpid(), signal.SIGTERM)
        return metrics(self, out, loss * math.nan, y)
    monkeypatch.setattr(NextToken, 'metrics', diverged)
    said = fails(capsys, train.main, '--init_from=resume', f'--out_dir={copy}', '--max_iters=9')
    assert 'the validation loss is not finite at step 6' in said and (copy / 'last.pt').read_bytes() == good
