"""The pictures of the lessons: the program draws those in assets/ again, and replaces nothing
elsewhere."""
import numpy as np
import pytest
from helpers import ROOT, fails, snapshot
from PIL import Image

from course import pictures


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


def test_a_picture_that_is_there_is_replaced_in_assets_alone(tmp_path, capsys):
    folder = tmp_path / 'new' / 'slides'
    pictures.main(['8', f'--out={folder}'])
    before = snapshot(folder)
    assert list(before) == ['lesson8.png']
    assert 'lesson8.png' in fails(capsys, pictures.main, f'--out={folder}')
    assert snapshot(folder) == before


@pytest.mark.parametrize('word', ['9', 'three', '--lesson=3'])
def test_a_wrong_number_is_one_line(word, tmp_path, capsys):
    assert word.split('=')[0] in fails(capsys, pictures.main, word, f'--out={tmp_path / "new"}')
    assert not (tmp_path / 'new').exists()


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path, capsys):
    (tmp_path / 'file').write_text('')
    assert 'file' in fails(capsys, pictures.main, '8', f'--out={tmp_path / "file"}')
