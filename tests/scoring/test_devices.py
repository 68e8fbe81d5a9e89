"""Every score on a device without float64."""
import pytest
import torch
from fake_mps import FakeMPS

import eval
from lib.texts import save_benchmark
from scoring import probes


@pytest.fixture(scope='module')
def data(bytes_data, pictures_data, tmp_path_factory):
    """{what: data_dir}: pictures, text and a benchmark."""
    out = tmp_path_factory.mktemp('benchmarks')
    save_benchmark(out / 'ptb', 'text', [{'text': 'a bit of text ' * 9}], 'a.txt')
    return {'text': bytes_data, 'pictures': pictures_data, 'benchmarks': out}


def test_the_stand_in_refuses_float64_and_tensors_on_the_cpu():
    with FakeMPS():
        x = torch.rand(3, device='mps')
        with pytest.raises(TypeError):
            x.double()
        with pytest.raises(TypeError):
            x.numpy()
        with pytest.raises(RuntimeError):
            x + torch.ones(3)


@pytest.mark.slow
@pytest.mark.parametrize('kind, where, words', [
    ('pictures', 'pictures', []),
    ('pictures', 'pictures', ['--probe=true']),
    ('pictures', 'pictures', ['--knn=3']),
    ('crate_mae', 'pictures', []),
    ('vit_mae', 'pictures', []),
    ('text', 'text', []),
    ('masked_text', 'text', []),
    ('text', 'benchmarks', ['--benchmarks=all', '--results=r.csv']),
    ('functions', 'text', ['--prompts=20', '--results=r.csv', '--overwrite=true']),
])
def test_a_score_is_that_on_the_cpu(kind, where, words, whole, data, tmp_path, capsys, monkeypatch):
    """All that is printed, but for the device."""
    monkeypatch.setattr(probes, 'PROBE_C', (1.0,))  # between several, rounding could decide
    monkeypatch.chdir(tmp_path)
    words = [f'--ckpt={whole(kind)}', f'--data_dir={data[where]}', *words]
    if where == 'pictures':
        words += ['--workers=0', '--batch_size=8']
    if kind != 'functions':
        words.append('--dtype=float32')
    capsys.readouterr()

    eval.main([*words, '--device=cpu'])
    on_cpu = capsys.readouterr().out
    with FakeMPS():
        eval.main([*words, '--device=mps'])
    on_mps = capsys.readouterr().out

    assert 'float32 on mps' in on_mps
    assert on_mps.replace('on mps', 'on cpu') == on_cpu
