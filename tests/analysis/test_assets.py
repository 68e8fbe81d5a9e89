"""The pictures of assets/ are those that the commands draw from trained runs."""
import contextlib
import io
import json
import re
import runpy
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from helpers import ROOT, fails
from PIL import Image

import analyze
from analysis import assets, subjects
from prepare import shapes, shapes_many

RUNS = 'trained'


def test_every_picture_is_in_one_list():
    files = [file.name for file in (ROOT / 'assets').iterdir()]
    shown = sorted(name for name in files if not name.startswith('.'))
    assert shown == sorted([*assets.COMMANDS, *assets.NOT_DRAWN])


@pytest.fixture
def in_this_process(monkeypatch):
    """Pictures are drawn in this process, which has imported PyTorch. `layers` measures 64 pictures
    instead of 256, because the curves hardly move; and `atoms`, which draws one network, does not
    score random weights beside it."""
    without = (*subjects.WITHOUT_RANDOM_WEIGHTS, 'atoms')
    monkeypatch.setattr(subjects, 'WITHOUT_RANDOM_WEIGHTS', without)

    def run_command(command, **settings):
        _, script, *words = command
        if words[0] == 'layers':
            words.append('--num_samples=64')
        with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stderr(io.StringIO()) as errors:
            patch.setattr(sys, 'argv', [script, *words])
            try:
                runpy.run_path(script, run_name='__main__')
            except SystemExit as e:
                return SimpleNamespace(returncode=e.code, stderr=errors.getvalue())
        return SimpleNamespace(returncode=0)
    monkeypatch.setattr(assets, 'subprocess', SimpleNamespace(run=run_command))


@pytest.fixture
def few(monkeypatch, tmp_path):
    """Two quick pictures in a folder of one's own: one of the theory, and one of a network of runs/."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(assets, 'COMMANDS', {
        'theory.png': 'analyze.py ista --n_embd=8 --tokens=8',
        'network.png': 'analyze.py subspaces --ckpt=RUNS/crate --directions=2'})
    monkeypatch.setattr(assets, 'NOT_DRAWN', {'odd.png': 'drawn by hand'})
    (tmp_path / 'pictures').mkdir()
    return tmp_path / 'pictures'


@pytest.mark.slow
def test_it_draws_what_it_can_and_says_what_the_rest_needs(few, in_this_process, place, capsys):
    analyze.main(['assets', '--runs=nowhere', '--out=pictures'])
    said = capsys.readouterr().out
    assert [file.name for file in few.iterdir()] == ['theory.png']      # no table is beside it
    assert Image.open(few / 'theory.png').width > 500
    assert re.search(r'network.png stays: .*subspaces --ckpt=nowhere/crate.*nowhere/crate', said)
    assert 'odd.png stays: drawn by hand' in said

    assert 'theory.png exists' in fails(capsys, analyze.main, 'assets', f'--runs={place}/runs', '--out=pictures')
    analyze.main(['assets', f'--runs={place}/runs', '--out=pictures', '--overwrite=true'])
    assert {file.name for file in few.iterdir()} == {'theory.png', 'network.png'}
    assert 'network.png stays' not in capsys.readouterr().out


@pytest.mark.slow
def test_a_command_that_fails_is_told_with_what_it_said(few, tmp_path, monkeypatch, capsys):
    monkeypatch.delitem(assets.COMMANDS, 'theory.png')  # which would not fail
    (tmp_path / 'runs' / 'crate').mkdir(parents=True)
    (tmp_path / 'runs' / 'crate' / 'config.json').write_text(json.dumps({'model': 'crate'}))
    analyze.main(['assets', '--runs=runs', '--out=pictures'])
    said = capsys.readouterr().out
    assert not list(few.iterdir()) and 'network.png' in said and 'config.json is damaged' in said
    assert 'nowhere' in fails(capsys, analyze.main, 'assets', '--out=nowhere')


@pytest.mark.slow
def test_the_pictures_of_assets_are_what_the_commands_draw_now(in_this_process, tmp_path, monkeypatch):
    """Rounding of another machine may move a line by a pixel, so colours may differ by a little, in
    the mean."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / RUNS).symlink_to(ROOT / RUNS)  # titles name the run by this path
    for script in (shapes, shapes_many):  # pictures are of the test splits alone
        script.main(['--train', '100', '--val', '100', '--out', f'data/{script.__name__.rpartition(".")[2]}'])
    (tmp_path / 'new').mkdir()
    analyze.main(['assets', '--out=new'])
    drawn = sorted((tmp_path / 'new').glob('*.png'))
    of_others = {'atoms_photographs.png', 'compress_trained.png', 'denoise_trained.png'}
    pictures = {name for name in assets.COMMANDS if name.endswith('.png')}
    # the runs or data of others are not here
    assert {file.name for file in drawn} == pictures - of_others
    old = []
    for file in drawn:
        now, before = (np.asarray(Image.open(f).convert('RGB'), float) for f in (file, ROOT / 'assets' / file.name))
        if now.shape != before.shape or np.abs(now - before).mean() > 2:
            old.append(file.name)
    assert not old, f'draw them again: python analyze.py assets --overwrite=true; they differ: {old}'
