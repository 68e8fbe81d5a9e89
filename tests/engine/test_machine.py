"""Device, precision, shares of a batch between processes, and what a step costs."""
import pytest
import torch
from helpers import column, fails, go, text_network

import train
from engine import machine
from engine.machine import Machine, choose_compile, choose_device, choose_dtype
from model_aot import AoT, AoTConfig


def test_what_is_asked_for_is_what_one_gets():
    assert choose_device('cpu') == 'cpu' and choose_dtype('float32', 'cpu') == torch.float32
    assert choose_dtype('auto', 'cpu') in (torch.float32, torch.bfloat16)
    assert choose_compile('True', 'cpu') and not choose_compile('auto', 'cpu') and not choose_compile('false', 'cuda')
    here = Machine('cpu', 'bfloat16', 'false')
    assert (here.kind, here.dtype, here.compiled, here.main, here.world) == ('cpu', torch.bfloat16, False, True, 1)
    with here.autocast:
        assert text_network('aot')(torch.zeros(1, 4, dtype=torch.long))[0].dtype == torch.bfloat16
    assert here.matmul_flops() > 1e6


@pytest.mark.parametrize('choose, words, message', [
    (choose_device, ['tpu9'], 'device=tpu9 is not usable here'), (choose_device, ['meta'], 'device=meta is not usable'),
    (choose_dtype, ['int8', 'cpu'], 'choose auto'), (choose_compile, ['maybe', 'cpu'], 'choose auto')])
def test_what_is_not_there_says_what_to_choose(choose, words, message):
    with pytest.raises(ValueError, match=message):
        choose(*words)


def test_shares_keep_the_global_batch(monkeypatch):
    for world, passes, rows, want in ((1, 5, 3, (5, 3)), (4, 8, 3, (2, 3)), (4, 3, 8, (3, 2))):
        monkeypatch.setenv('WORLD_SIZE', str(world))
        got = Machine('cpu', 'float32', 'false').share(passes, rows)
        assert got == want and got[0] * got[1] * world == passes * rows
    with pytest.raises(ValueError, match='multiple of 4'):
        Machine('cpu', 'float32', 'false').share(3, 5)


@pytest.mark.parametrize('dtype', ['float32', 'bfloat16', 'float16'])
def test_every_precision_trains(dtype, tiny, tmp_path):
    go(*tiny, '--optimizer=muon', '--grad_clip=0', f'--dtype={dtype}', '--max_iters=40', '--eval_interval=20',
       f'--out_dir={tmp_path}/a')
    val = column(tmp_path / 'a', 'val')
    assert val[-1] < val[0] - 0.5


def test_an_overflow_in_float16_skips_the_step_of_every_optimizer(tiny, tmp_path, monkeypatch):
    norm = torch.nn.utils.get_total_norm
    monkeypatch.setattr(torch.nn.utils, 'get_total_norm', lambda grads: norm(grads) * torch.inf)  # one gradient's
    go(*tiny, '--optimizer=muon', '--grad_clip=0', '--dtype=float16', '--weight_decay=0', f'--out_dir={tmp_path}/a')
    assert len(set(column(tmp_path / 'a', 'val'))) == 1  # not one weight moved


def test_gradients_are_clipped_to_the_norm_asked_for():
    here, model = Machine('cpu', 'float32', 'false'), torch.nn.Linear(3, 3)
    for most, left in ((0.1, 0.1), (1e9, None), (0, None)):
        model.weight.grad, model.bias.grad = torch.full((3, 3), 2.0), torch.full((3,), 2.0)
        assert here.clip(model, [], most).item() == pytest.approx(48 ** 0.5)
        after = torch.cat((model.weight.grad.flatten(), model.bias.grad)).norm().item()
        assert after == pytest.approx(left or 48 ** 0.5, rel=1e-4)


def test_work_is_counted_for_pictures_too():
    pictures = dict(image_size=(8, 12), patch_size=(4, 2), num_classes=5, n_layer=2, n_head=2, n_embd=16)
    flops = machine.train_flops(AoT(AoTConfig(**pictures)))
    matrices = 6 * (13 * 2 * 2 * 16 * 16 + 12 * 24 * 16 + 5 * 16)  # 13 tokens; 12 patches; one classified token
    attention = 2 * 12 * 13 * 13 * 16
    assert 0.85 * (matrices + attention) < flops < 1.3 * (matrices + attention)


def test_memory_that_does_not_suffice_gets_advice(tiny, tmp_path, capsys):
    said = fails(capsys, train.run_it, *tiny, '--n_embd=1000000000', f'--out_dir={tmp_path}/a')
    assert 'out of memory' in said and '--batch_size' in said
