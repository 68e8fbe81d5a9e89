"""prepare/crate_lm_weights.py: the authors' file becomes a run that writes, is scored and is fine-tuned."""
import numpy as np
import pytest
import torch
from helpers import equal, fails, go, save_text

import eval as scores
import sample
from engine.trained import load_model, open_run
from model_crate import CRATE, CRATEConfig
from model_crate_alpha import CRATEAlpha, CRATEAlphaConfig
from prepare import crate_lm_weights, official_weights

SMALL = dict(n_layer=2, n_head=12, n_embd=24, image_size=0, block_size=16, vocab_size=50304)


class PairsWithoutDownload:
    """In the place of GPT-2's tokenizer: bytes, which with padding are as many tokens."""
    n_vocab, eot_token = 50257, 50256

    def encode_ordinary(self, text):
        return list(text.encode())

    def decode_bytes(self, ids):
        return bytes(97 + i % 26 for i in ids)


def official(path, **settings):
    """A network, and its weights in a file as the authors' training script saves it."""
    torch.manual_seed(0)
    model = CRATEAlpha(CRATEAlphaConfig(decoupled=False, skip=False, **SMALL | settings)).eval()
    torch.save({'model': {f'_orig_mod.{k}': v for k, v in model.to_official().items()}, 'optimizer': {'state': {}},
                'model_args': SMALL, 'iter_num': 600_000, 'best_val_loss': torch.tensor(2.5), 'config': {}}, path)
    return model


@pytest.fixture
def words(tmp_path, monkeypatch):
    monkeypatch.setattr('tasks.tokenizer.gpt2_bpe', PairsWithoutDownload)
    return ['--from', f'{tmp_path}/ckpt.pt', '--out_dir', f'{tmp_path}/crate_lm']


def test_the_weights_become_a_run(words, tmp_path, capsys):
    model = official(tmp_path / 'ckpt.pt')
    crate_lm_weights.main(words)
    assert f'{model.num_params():,} parameters' in capsys.readouterr().out
    assert 'already holds a run' in fails(capsys, crate_lm_weights.main, *words)
    run, x = open_run(tmp_path / 'crate_lm'), torch.randint(50257, (2, 16))
    assert torch.equal(load_model(run)(x)[0], model(x)[0]) and run['data']['tokenizer'] == {'name': 'gpt2'}
    capsys.readouterr()
    sample.main([f'--ckpt={tmp_path}/crate_lm', '--start=ab', '--max_new_tokens=9', '--device=cpu'])
    assert len(capsys.readouterr().out.strip()) >= 9
    ids = np.random.default_rng(0).integers(0, 50257, 200)
    gpt2 = type('GPT2', (), {'vocab_size': 50257, 'spec': {'name': 'gpt2'}})
    save_text(tmp_path / 'data' / 'pairs', gpt2, {'train': ids, 'val': ids}, {'train': 800, 'val': 800})
    data = f'--data_dir={tmp_path}/data', '--dataset=pairs', '--device=cpu', '--dtype=float32'
    scores.main([f'--ckpt={tmp_path}/crate_lm', *data])
    assert 'bits per byte' in capsys.readouterr().out
    go(f'--init_from={tmp_path}/crate_lm', *data, '--max_iters=0', '--eval_iters=1', f'--out_dir={tmp_path}/tuned')
    assert equal(open_run(tmp_path / 'tuned')['weights'], run['weights'])


def test_files_of_other_sizes_are_read_by_the_script_for_all(words, tmp_path):
    model = official(tmp_path / 'ckpt.pt', n_layer=1, n_head=4)
    official_weights.main([words[1], '--model=crate_alpha', '--image_size=0', '--n_head=4', *words[2:]])
    run, x = open_run(tmp_path / 'crate_lm'), torch.randint(50257, (2, 16))
    assert torch.equal(load_model(run)(x)[0], model(x)[0]) and run['data']['tokenizer'] == {'name': 'gpt2'}


@pytest.mark.parametrize('held, message', [
    (dict(n_embd=28), 'do not fit CRATEAlpha with'), (dict(vocab_size=99), "knows 99 tokens, GPT-2's tokenizer 50257"),
    ('crate', 'give --model=crate'), (None, 'no such file')])
def test_other_files_are_refused(held, message, words, tmp_path, capsys):
    if held == 'crate':
        torch.save(CRATE(CRATEConfig(**SMALL)).to_official(), tmp_path / 'ckpt.pt')
    elif held:
        official(tmp_path / 'ckpt.pt', **{'n_head': 7} | held if 'n_embd' in held else held)
    assert message in fails(capsys, crate_lm_weights.main, *words)
    assert not (tmp_path / 'crate_lm').exists()
