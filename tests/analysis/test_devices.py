"""Every look inside, on a device without float64."""
import math

import pytest
from fake_mps import FakeMPS
from insides import kind_of, why_not

import analyze


@pytest.mark.parametrize('name', ['vit', 'aot_text', 'functions', *(
    pytest.param(name, marks=pytest.mark.slow) for name in ('crate', 'crate_mae', 'crate_bert'))])
def test_every_command_does_without_float64(name, look):
    """The numbers are those of the CPU up to rounding."""
    for command in analyze.COMMANDS:
        few = ['--num_samples=2'] * (command in ('layers', 'pca', 'segment', 'objects', 'denoise', 'compress', 'ista'))
        try:
            want = look(command, name, '--device=cpu', *few)
        except ValueError:
            assert why_not(command, name), command
            continue
        with FakeMPS():
            found = look(command, name, '--device=mps', *few)
        assert len(found) == len(want) > 0, kind_of(name)
        for a, b in zip(found, want):
            assert a.keys() == b.keys() and all(same(a[k], b[k]) for k in a), (command, a, b)


def same(a, b):
    try:
        return math.isclose(float(a), float(b), rel_tol=1e-2, abs_tol=1e-3)
    except ValueError:
        return a == b
