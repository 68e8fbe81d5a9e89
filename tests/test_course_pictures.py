"""The pictures of the lessons: the program draws those in assets/ again, and replaces nothing
elsewhere."""
import numpy as np
import pytest
import torch
from helpers import ROOT, fails, snapshot
from PIL import Image

from course import pictures
from course.lab import weights_of
from nanocrate import load


@pytest.mark.slow
def test_the_program_draws_the_pictures_in_assets(tmp_path):
    pictures.main([f'--out={tmp_path}'])
    assert len(snapshot(tmp_path)) == 8
    for path in tmp_path.iterdir():
        assert path.stat().st_size < 80_000, path.name
        new = Image.open(path).convert('L')
        old = Image.open(ROOT / 'assets' / path.name).convert('L')
        assert new.size == old.size, path.name
        # of 255: a picture moved by one pixel differs by 6 to 12
        difference = np.abs(np.float32(new) - np.float32(old)).mean()
        assert difference < 2, (path.name, difference)


def predicted_patches(model, patches, hidden):
    """Patches (B, N, P), and which of them are hidden, bool (B, N) -> what the network predicts
    for all patches, (B, N, P). The functions of lessons 4 and 6 are the network."""
    c = model.config
    weights = weights_of(model)
    z = pictures.lesson6.embed(patches, hidden, pictures.lesson4.part(weights, 'embed'))
    for i in range(c.n_layer):
        z = pictures.lesson4.layer(z, pictures.lesson4.part(weights, f'layers.{i}'), c.n_head, c.eta, c.lam)
    y = pictures.lesson6.norm(z, weights, 'norm')
    for i in range(c.n_layer):
        y = pictures.lesson6.decoder_layer(y, pictures.lesson4.part(weights, f'decoder_layers.{i}'), c.n_head)
    y = pictures.lesson6.norm(y, weights, 'decoder_norm')
    return torch.nn.functional.linear(y, weights['pixels.weight'], weights['pixels.bias'])[:, 1:]


@torch.no_grad()
def test_the_functions_of_the_lessons_are_the_network():
    model, _ = load(ROOT / 'trained' / 'crate_mae_shapes')
    x, _ = pictures.drawn_shapes(['ring', 'bar'], seed=1)
    noise = torch.rand(2, 64)
    patches = pictures.lesson4.patches(x, 4, 4)
    predicted = predicted_patches(model, patches, model.hide(noise))
    torch.testing.assert_close(predicted, model(x, noise)[0], rtol=1e-3, atol=1e-3)


def test_a_picture_that_is_there_is_replaced_in_assets_alone(tmp_path, capsys):
    folder = tmp_path / 'new' / 'slides'
    pictures.main(['8', f'--out={folder}'])
    before = snapshot(folder)
    assert list(before) == ['lesson8.png']
    assert 'lesson8.png' in fails(capsys, pictures.main, f'--out={folder}')
    assert snapshot(folder) == before


@pytest.mark.parametrize('word', ['0', '9', 'three', '1.5', '--lesson=3'])
def test_a_wrong_number_is_one_line(word, tmp_path, capsys):
    assert word.split('=')[0] in fails(capsys, pictures.main, word, f'--out={tmp_path / "new"}')
    assert not (tmp_path / 'new').exists()


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path, capsys):
    (tmp_path / 'file').write_text('')
    assert 'file' in fails(capsys, pictures.main, '8', f'--out={tmp_path / "file"}')
