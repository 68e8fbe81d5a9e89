"""prepare/gpt2_weights.py: OpenAI's file becomes a run that is scored, sampled from and fine-tuned."""
import os
from pathlib import Path

import pytest
import torch
from helpers import fails, go, save_text, split_text
from safetensors.torch import save_file
from small_benchmarks import WIKI, naive, prepare, write_archives

import eval as scores
import sample
from engine import official
from engine.trained import load_model, open_run
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


def written(folder, tensors):
    """As OpenAI's weights are published."""
    save_file(tensors, folder / 'model.safetensors', {'format': 'pt'})
    return f'{folder}/model.safetensors'


@pytest.mark.parametrize('dtype', [torch.float32, torch.float16, torch.bfloat16])
def test_all_but_masks_is_read_as_it_was(dtype, tmp_path):
    tensors = gpt2_tensors(V=11, dtype=dtype)
    found = official.read(written(tmp_path, tensors))
    assert found.keys() == {k for k in tensors if not k.endswith('.attn.bias')}
    assert all(found[k].dtype == dtype and torch.equal(found[k], tensors[k]) for k in found)


@pytest.mark.parametrize('tensors, message', [
    (b'<html>' * 99, 'damaged'), ({'wte.weight': torch.ones(9, 8)}, 'wpe.weight: missing'),
    ({k: t for k, t in gpt2_tensors(V=9).items() if 'h.1.ln_2' not in k}, 'h.1.ln_2'),
    (gpt2_tensors(V=9), "knows 9 tokens, GPT-2's tokenizer 50257")])
def test_a_file_that_is_not_gpt2_is_refused(tensors, message, tmp_path, capsys):
    path = written(tmp_path, gpt2_tensors(V=9) if isinstance(tensors, bytes) else tensors)
    if isinstance(tensors, bytes):
        Path(path).write_bytes(tensors)
    told = fails(capsys, gpt2_weights.main, '--from', path, '--n_head', '2', '--out_dir', f'{tmp_path}/gpt2')
    assert message in told and not (tmp_path / 'gpt2').exists()


def test_gpt2_weights_become_a_run(prepared, tmp_path, capsys):
    """Converted, scored, sampled from and fine-tuned; with the true tokenizer if it is at hand."""
    tensors = gpt2_tensors()
    words = '--from', written(tmp_path, tensors), '--out_dir', f'{tmp_path}/gpt2'
    assert 'n_head=0' in fails(capsys, gpt2_weights.main, *words)  # 8 wide
    gpt2_weights.main([*words, '--n_head', '2'])
    assert 'parameters, 2 heads' in capsys.readouterr().out
    assert 'already holds a run' in fails(capsys, gpt2_weights.main, *words, '--n_head', '2')
    (tmp_path / 'gpt2' / 'last.pt').write_text('of another run')
    gpt2_weights.main([*words, '--n_head', '2', '--overwrite'])
    run = open_run(tmp_path / 'gpt2')
    assert {p.name for p in (tmp_path / 'gpt2').iterdir()} == {'best.safetensors', 'config.json'}
    assert run['network']['gelu'] == 'tanh' and run['settings']['learning_rate'] == 3e-5
    assert torch.equal(run['weights']['embed.tok_emb.weight'], tensors['wte.weight'])
    assert torch.equal(run['weights']['layers.1.mlp.up.weight'], tensors['h.1.mlp.c_fc.weight'].T)
    if not os.environ.get('TIKTOKEN_CACHE_DIR'):
        pytest.skip('the rest needs the tokenizer: set TIKTOKEN_CACHE_DIR to a folder that has it')
    capsys.readouterr()
    scores.main([f'--ckpt={tmp_path}/gpt2', f'--data_dir={prepared}', '--benchmarks=all', '--dtype=float32'])
    table = (tmp_path / 'gpt2' / 'results.csv').read_text().splitlines()
    assert len(table) == 14 and table[1].startswith(f'{tmp_path}/gpt2,0,wikitext2,loss,')
    assert table[1].endswith('gpt2,32,16,false')
    capsys.readouterr()
    tokens = Tokenizer('gpt2').encode(WIKI)
    nats = naive(load_model(run), [50256, *tokens], 1, 16)[0]
    assert table[1].split(',')[4:6] == [f'{sum(nats) / len(nats):.6g}', str(len(tokens))]
    sample.main([f'--ckpt={tmp_path}/gpt2', '--max_new_tokens=5', '--start=The'])
    assert capsys.readouterr().out.startswith('The')
    tokenizer = Tokenizer('gpt2')
    save_text(tmp_path / 'mine', tokenizer, *split_text('a token is no picture. ' * 200, tokenizer))
    go(f'--init_from={tmp_path}/gpt2', f'--data_dir={tmp_path}', '--dataset=mine', '--max_iters=2',
       '--batch_size=2', '--eval_iters=2', f'--out_dir={tmp_path}/tuned', '--dtype=float32', '--compile=false')
    assert open_run(tmp_path / 'tuned')['step'] in (0, 2)
