"""Every score on a device without float64."""
import numpy as np
import pytest
import torch
from fake_mps import FakeMPS, OnMPS
from helpers import OF_AUTOENCODERS, SHORT, go

import eval
from prepare.lib.benchmarks import save_benchmark
from scoring import frozen

PICTURES = ['--dtype=float32', '--workers=0', '--batch_size=8']


@pytest.fixture(autouse=True)
def one_probe(monkeypatch):
    """Of the usual six; the others take seconds, and rounding could decide between them."""
    monkeypatch.setattr(frozen, 'PROBE_C', (1.0,))


@pytest.fixture(scope='module')
def bert(tiny, tmp_path_factory):
    out = tmp_path_factory.mktemp('runs') / 'bert'
    go(*tiny, '--model=crate', '--image_size=0', '--causal=false', '--dtype=float32', f'--out_dir={out}')
    return out


@pytest.fixture(scope='module')
def icl(tmp_path_factory):
    out = tmp_path_factory.mktemp('runs') / 'icl'
    go(*SHORT, '--dataset=linear', '--n_dims=4', '--block_size=12', f'--out_dir={out}')
    return out


def test_the_stand_in_refuses_float64_and_nothing_else():
    with FakeMPS():
        x = torch.rand(3, device='mps')
        assert x.device.type == x[None].softmax(1).device.type == 'mps' and x.cpu().double().dtype == torch.float64
        assert torch.nn.Linear(3, 2).to('mps')(x).device.type == 'mps'
        for wrong in (x.double, x.numpy, lambda: x.sum(dtype=torch.float64),
                      lambda: torch.tensor(np.ones(2), device='mps'),
                      lambda: torch.zeros(2, dtype=torch.float64, device='mps'),
                      lambda: torch.from_numpy(np.ones(2)).to('mps')):
            with pytest.raises(TypeError):
                wrong()


@pytest.mark.parametrize('words', [[], ['--probe=true'], ['--knn=3']])
def test_scores_of_pictures(words, picture_run, pictures_data, capsys):
    here = on_both(eval.main, capsys, f'--ckpt={picture_run}', f'--data_dir={pictures_data}', *PICTURES, *words)
    assert 'top-1' in here


@pytest.mark.parametrize('words', [[], ['--probe=true']])
@pytest.mark.parametrize('name', OF_AUTOENCODERS)
def test_scores_of_masked_autoencoders(words, name, pretrained, pictures_data, capsys):
    on_both(eval.main, capsys, f'--ckpt={pretrained}/{name}', f'--data_dir={pictures_data}', *PICTURES, *words)


def test_scores_of_text(text_run, bert, bytes_data, capsys):
    for run in text_run, bert:
        assert 'loss' in on_both(eval.main, capsys, f'--ckpt={run}', f'--data_dir={bytes_data}', '--dtype=float32')


def test_benchmarks(text_run, tmp_path, capsys):
    (tmp_path / 'a.txt').write_text('x')
    save_benchmark(tmp_path / 'ptb', 'text', [{'text': 'a bit of text ' * 9}], 'a.txt')
    save_benchmark(tmp_path / 'lambada', 'last_word', [{'context': 'a b c', 'word': 'd'}] * 3, 'a.txt')
    on_both(eval.main, capsys, f'--ckpt={text_run}', f'--data_dir={tmp_path}', '--benchmarks=all',
            f'--results={tmp_path}/results.csv')


def test_regression_in_context(icl, tmp_path, capsys):
    on_both(eval.main, capsys, f'--ckpt={icl}', '--prompts=20', f'--results={tmp_path}/r.csv', '--overwrite=true')


def test_a_probe_sums_in_what_the_device_has():
    """In float32 throughout, the optimum is that of float64 up to rounding."""
    g = torch.Generator().manual_seed(0)
    x, y = torch.randn(300, 6, generator=g), torch.randint(4, (300,), generator=g)
    want = frozen.fit_logistic(x, y, 4, 1.0)
    with FakeMPS():
        found = frozen.fit_logistic(x.to('mps'), y.to('mps'), 4, 1.0)
        assert isinstance(found, OnMPS) and found.dtype == torch.float32
        assert torch.allclose(found.cpu().double(), want, atol=1e-3)


def on_both(main, capsys, *words):
    """What a command prints on MPS, which is what it prints on the CPU but for the device."""
    capsys.readouterr()
    main([*words, '--device=cpu'])
    want = capsys.readouterr().out
    with FakeMPS():
        main([*words, '--device=mps'])
    found = capsys.readouterr().out
    assert 'float32 on mps' in found
    assert found.replace('on mps', 'on cpu') == want
    return found
