"""OpenMP's threads must not spin for long, unless the user decides otherwise."""
import os
import subprocess
import sys

import pytest
from helpers import ROOT


@pytest.mark.slow
@pytest.mark.parametrize('name, value, found', [
    ('', '', '20000'), ('GOMP_SPINCOUNT', '7', '7'),
    ('OMP_WAIT_POLICY', 'active', 'None'), ('OMP_NUM_THREADS', '1', 'None')])
def test_the_spin_count_is_set_before_torch_unless_the_user_set_anything_of_openmp(name, value, found):
    env = {k: v for k, v in os.environ.items() if not k.startswith(('OMP_', 'GOMP_'))} | ({name: value} if name else {})
    code = 'import train, os, sys; print(os.environ.get("GOMP_SPINCOUNT"))'
    done = subprocess.run([sys.executable, '-c', code], cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.stdout.strip() == found, done.stderr


@pytest.mark.parametrize('program', ['train', 'sample', 'eval', 'analyze', 'bench'])
def test_every_program_imports_engine_before_torch(program):
    lines = (ROOT / f'{program}.py').read_text().splitlines()
    first = [line for line in lines if line.startswith(('import torch', 'from torch', 'import engine', 'from engine'))]
    assert first[0].startswith('import engine')
