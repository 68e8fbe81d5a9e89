"""Every score on a device without float64."""
import pytest
import torch
from fake_mps import FakeMPS
from helpers import OF_AUTOENCODERS, SHORT, go

import eval
from lib.benchmarks import save_benchmark
from scoring import frozen


@pytest.fixture(scope='module')
def at(tiny, bytes_data, text_run, pictures_data, picture_run, pretrained, tmp_path_factory):
    """{name: folder} of a run of every kind, and of the data of each: pictures, text and two benchmarks."""
    out = tmp_path_factory.mktemp('at')
    go(*tiny, '--model=crate', '--image_size=0', '--causal=false', '--dtype=float32', f'--out_dir={out}/bert')
    go(*SHORT, '--dataset=linear', '--n_dims=4', '--block_size=12', f'--out_dir={out}/functions')
    (out / 'a.txt').write_text('x')
    save_benchmark(out / 'ptb', 'text', [{'text': 'a bit of text ' * 9}], 'a.txt')
    save_benchmark(out / 'lambada', 'last_word', [{'context': 'a b c', 'word': 'd'}] * 3, 'a.txt')
    runs = {name: out / name for name in ('bert', 'functions')} | {name: pretrained / name for name in OF_AUTOENCODERS}
    return runs | {'text': text_run, 'crate': picture_run, 'data': bytes_data, 'pictures': pictures_data, 'small': out}


def test_the_stand_in_refuses_float64_and_tensors_on_the_cpu():
    with FakeMPS():
        x = torch.rand(3, device='mps')
        for error, wrong in ((TypeError, x.double), (TypeError, x.numpy), (RuntimeError, lambda: x + torch.ones(3))):
            with pytest.raises(error):
                wrong()


@pytest.mark.parametrize('run, data, words', [
    *((run, 'pictures', ['--workers=0', '--batch_size=8', *words]) for run in ('crate', *OF_AUTOENCODERS)
      for words in ([], ['--probe=true'], ['--knn=3'])),
    ('text', 'data', []), ('bert', 'data', []), ('text', 'small', ['--benchmarks=all', '--results=r.csv']),
    ('functions', 'data', ['--prompts=20', '--results=r.csv', '--overwrite=true'])])
def test_a_score_is_that_on_the_cpu(run, data, words, at, tmp_path, capsys, monkeypatch):
    """All that is printed, but for the device."""
    monkeypatch.setattr(frozen, 'PROBE_C', (1.0,))  # between several, rounding could decide
    monkeypatch.chdir(tmp_path)
    words = [f'--ckpt={at[run]}', f'--data_dir={at[data]}', *words]
    words += [] if run == 'functions' else ['--dtype=float32']
    capsys.readouterr()
    eval.main([*words, '--device=cpu'])
    want = capsys.readouterr().out
    with FakeMPS():
        eval.main([*words, '--device=mps'])
    found = capsys.readouterr().out
    assert 'float32 on mps' in found and found.replace('on mps', 'on cpu') == want
