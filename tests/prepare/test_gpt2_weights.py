"""prepare/gpt2_weights.py: OpenAI's file becomes a run that is scored, sampled from and
fine-tuned."""
import json
import os
import struct

import pytest
import torch
from helpers import fails, go, save_text, split_text
from small_benchmarks import WIKI, naive, prepare, write_archives

import eval as scores
import sample
from engine.checkpoints import load_model
from engine.rundir import load_checkpoint
from prepare import gpt2_weights
from tasks.tokenizer import Tokenizer


def gpt2_tensors(V=50257, d=8, layers=2, N=32, dtype=torch.float32):
    """A random GPT-2 with the names and shapes of OpenAI's, the masks too."""
    torch.manual_seed(0)
    shapes = {'wte.weight': (V, d), 'wpe.weight': (N, d), 'ln_f.weight': (d,), 'ln_f.bias': (d,)}
    for i in range(layers):
        shapes |= {f'h.{i}.{k}': s for k, s in {
            'ln_1.weight': (d,), 'ln_1.bias': (d,), 'ln_2.weight': (d,), 'ln_2.bias': (d,), 'attn.bias': (1, 1, N, N),
            'attn.c_attn.weight': (d, 3 * d), 'attn.c_attn.bias': (3 * d,), 'attn.c_proj.weight': (d, d),
            'attn.c_proj.bias': (d,), 'mlp.c_fc.weight': (d, 4 * d), 'mlp.c_fc.bias': (4 * d,),
            'mlp.c_proj.weight': (4 * d, d), 'mlp.c_proj.bias': (d,)}.items()}
    return {k: (0.3 * torch.randn(s)).to(dtype) for k, s in shapes.items()}


@pytest.fixture(scope='module')
def prepared(tmp_path_factory):
    """A data_dir with all six benchmarks."""
    return prepare(write_archives(tmp_path_factory.mktemp('archives')), tmp_path_factory.mktemp('data'))


def safetensors(tensors, change=lambda header: None):
    """As OpenAI's weights are published; `change` spoils the header."""
    header, content = {'__metadata__': {'format': 'pt'}}, b''
    names = {torch.float32: 'F32', torch.float16: 'F16', torch.bfloat16: 'BF16'}
    for k, t in tensors.items():
        mine = t.contiguous().view(torch.uint8).numpy().tobytes()
        places = [len(content), len(content) + len(mine)]
        header[k] = {'dtype': names[t.dtype], 'shape': list(t.shape), 'data_offsets': places}
        content += mine
    change(header)
    head = json.dumps(header).encode()
    return struct.pack('<Q', len(head)) + head + content


def written(tmp_path, content):
    (tmp_path / 'model.safetensors').write_bytes(content)
    return f'{tmp_path}/model.safetensors'


@pytest.mark.parametrize('dtype', [torch.float32, torch.float16, torch.bfloat16])
def test_safetensors_are_read_as_they_were(dtype, tmp_path):
    tensors = gpt2_tensors(V=11, dtype=dtype)
    found = gpt2_weights.read_safetensors(written(tmp_path, safetensors(tensors)))
    assert found.keys() == {k for k in tensors if not k.endswith('.attn.bias')}
    assert all(found[k].dtype == dtype and torch.equal(found[k], tensors[k]) for k in found)


@pytest.mark.parametrize('content, message', [
    (b'', 'header too small'), (b'<html>' * 99, 'its header has more than 10,000,000 bytes'),
    (struct.pack('<Q', 4) + b'[1]x', 'invalid JSON in header'),
    (struct.pack('<Q', 2) + b'[]', 'invalid JSON in header'),
    (safetensors(gpt2_tensors(V=9))[:-1], 'file not fully covered'),
    (safetensors(gpt2_tensors(V=9)) + b'x', 'file not fully covered'),
    (safetensors(gpt2_tensors(V=9))[:99], 'invalid header length'),
    (safetensors({'a': torch.ones(2)}, lambda h: h['a'].update(dtype='I64', shape=[1])), 'a is of torch.int64'),
    (safetensors({'a': torch.ones(2)}, lambda h: h['a'].update(shape=[3])), 'invalid'),
    (safetensors({'a': torch.ones(2)}, lambda h: h['a'].update(shape=[-1, -2])), 'invalid JSON in header'),
    (safetensors({'a': torch.ones(2)}, lambda h: h['a'].update(data_offsets=[0, 800])), 'invalid'),
    (safetensors({'a': torch.ones(2)}, lambda h: h.update(a=5)), 'invalid JSON in header'),
    (safetensors({'a': torch.ones(2), 'b': torch.ones(2)}, lambda h: h['b'].update(data_offsets=[4, 12])),
     'invalid offset for tensor `b`'),
    (safetensors({'a': torch.ones(2)}), 'not a GPT-2 state dict'),
    (safetensors({k: t for k, t in gpt2_tensors(V=9).items() if 'h.1.ln_2' not in k}), 'h.1.ln_2.weight is missing'),
    (safetensors(gpt2_tensors(V=9)), "knows 9 tokens, GPT-2's tokenizer 50257")])
def test_a_file_that_is_not_gpt2_is_refused(content, message, tmp_path, capsys):
    path = written(tmp_path, content)
    told = fails(capsys, gpt2_weights.main, '--from', path, '--n_head', '2', '--out_dir', f'{tmp_path}/gpt2')
    assert message in told and path in told and not (tmp_path / 'gpt2').exists()


def test_gpt2_weights_become_a_run(prepared, tmp_path, capsys, monkeypatch):
    """Converted, scored, sampled from and fine-tuned; with the true tokenizer if it is at hand."""
    tensors = gpt2_tensors()
    words = '--from', written(tmp_path, safetensors(tensors)), '--out_dir', f'{tmp_path}/gpt2'
    assert 'is 8 wide, and gpt2 is 768; give the --size' in fails(capsys, gpt2_weights.main, *words)
    gpt2_weights.main([*words, '--n_head', '2'])
    assert '2 layers of 2 heads, 8 wide, a context of 32' in capsys.readouterr().out
    assert 'already holds a run' in fails(capsys, gpt2_weights.main, *words, '--n_head', '2')
    assert 'already holds a run' in fails(capsys, gpt2_weights.main, *words)
    (tmp_path / 'gpt2' / 'last.pt').write_text('of another run')
    before = (tmp_path / 'gpt2' / 'best.pt').read_bytes()
    monkeypatch.setattr('torch.save', lambda *a: (_ for _ in ()).throw(OSError('full')))
    again = *words, '--n_head', '2', '--overwrite'
    assert 'is untouched: make room, then run this again' in fails(capsys, gpt2_weights.main, *again)
    assert before == (tmp_path / 'gpt2' / 'best.pt').read_bytes() and (tmp_path / 'gpt2' / 'last.pt').exists()
    monkeypatch.undo()
    gpt2_weights.main([*again])
    checkpoint = load_checkpoint(tmp_path / 'gpt2')
    assert {p.name for p in (tmp_path / 'gpt2').iterdir()} == {'best.pt', 'config.json'}
    assert checkpoint['model_config']['gelu'] == 'tanh' and checkpoint['config']['learning_rate'] == 3e-5
    assert torch.equal(checkpoint['weights']['embed.tok_emb.weight'], tensors['wte.weight'])
    assert torch.equal(checkpoint['weights']['layers.1.mlp.up.weight'], tensors['h.1.mlp.c_fc.weight'].T)
    if not os.environ.get('TIKTOKEN_CACHE_DIR'):
        pytest.skip('the rest needs the tokenizer: set TIKTOKEN_CACHE_DIR to a folder that has it')
    capsys.readouterr()
    scores.main([f'--ckpt={tmp_path}/gpt2', f'--data_dir={prepared}', '--benchmarks=all', '--dtype=float32'])
    table = (tmp_path / 'gpt2' / 'results.csv').read_text().splitlines()
    assert len(table) == 14 and table[1].startswith(f'{tmp_path}/gpt2,0,wikitext2,loss,')
    assert table[1].endswith('gpt2,32,16,false')
    capsys.readouterr()
    tokens = Tokenizer('gpt2').encode(WIKI)
    nats = naive(load_model(checkpoint), [50256, *tokens], 1, 16)[0]
    assert table[1].split(',')[4:6] == [f'{sum(nats) / len(nats):.6g}', str(len(tokens))]
    sample.main([f'--ckpt={tmp_path}/gpt2', '--max_new_tokens=5', '--start=The'])
    assert capsys.readouterr().out.startswith('The')
    tokenizer = Tokenizer('gpt2')
    save_text(tmp_path / 'mine', tokenizer, *split_text('a token is no picture. ' * 200, tokenizer))
    go(f'--init_from={tmp_path}/gpt2/best.pt', f'--data_dir={tmp_path}', '--dataset=mine', '--max_iters=2',
       '--batch_size=2', '--eval_iters=2', f'--out_dir={tmp_path}/tuned', '--dtype=float32', '--compile=false')
    assert load_checkpoint(tmp_path / 'tuned')['step'] in (0, 2)


