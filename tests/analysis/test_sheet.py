"""analyze.py augment: the contact sheet of training pictures."""
import numpy as np
import pytest
from helpers import fails
from PIL import Image

import analyze
from analysis.sheet import SheetConfig, headers, labelled
from prepare.lib.pictures import save_arrays
from tasks.augment import AugmentConfig


def pictures(channels):
    return np.random.default_rng(0).integers(0, 256, (20, 32, 32, channels), np.uint8)


@pytest.fixture
def words(tmp_path):
    """A command line for pictures of cats and dogs, in colour (`toy`) and of other numbers of channels."""
    for channels, name in ((3, 'toy'), (1, 'grey'), (2, 'two'), (4, 'four')):
        save_arrays(tmp_path / 'd' / name, {'train': (pictures(channels), np.arange(20) % 2)}, ['cat', 'dog'])
    return ['augment', '--dataset=toy', f'--data_dir={tmp_path}/d', '--out', f'{tmp_path}/sheet.png']


def cells(path, columns, rows, side=32, zoom=4):
    """The views on a sheet, (rows, columns, side, side, 3), as small as they were; and what is left of
    them and above."""
    sheet, step = np.array(Image.open(path)), zoom * side + 6
    left, top = sheet.shape[1] - columns * step + 6, sheet.shape[0] - rows * step + 6
    found = [[sheet[top + y * step:, left + x * step:][:step - 6, :step - 6] for x in range(columns)]
             for y in range(rows)]
    small = np.array(found)[:, :, ::zoom, ::zoom]
    assert (small.repeat(zoom, 2).repeat(zoom, 3) == found).all()       # every pixel is a square
    return small, sheet[:, :left], sheet[:top]


def test_the_sheet_shows_pictures_before_and_after(words, tmp_path, capsys):
    more = ['--rows=5', '--columns=3', '--eval_crop=1', '--randaugment_n=2']
    analyze.main([*words, *more])
    said = capsys.readouterr().out
    assert '5 pictures of toy' in said and 'cat' in said and 'randaugment_n=2' in said
    sheet = np.array(Image.open(tmp_path / 'sheet.png'))
    views, left, top = cells(tmp_path / 'sheet.png', 3, 5)
    assert all((view == pictures(3)).all((1, 2, 3)).any() for view in views[:, 0])
    assert not any((view == pictures(3)).all((1, 2, 3)).any() for view in views[:, 2])
    for row in range(5):  # the class beside each row, and a title above each column
        assert (left[len(top) + 134 * row:][:128] < 128).any()
    for column in range(3):
        assert (top[:, left.shape[1] + 134 * column:][:, :128] < 128).any()
    again = [*words[:-1], f'{tmp_path}/again.png', *more]
    analyze.main(again)
    assert (np.array(Image.open(tmp_path / 'again.png')) == sheet).all()
    analyze.main([*again, '--seed=8', '--overwrite=true'])
    assert (np.array(Image.open(tmp_path / 'again.png')) != sheet).any()


def test_without_a_config_file_the_sheet_shows_a_bare_run(words, capsys):
    """crop_scale is 0.6 and eval_crop 1 in config/train_crate_shapes.py, 0.08 and 0.875 if nothing is said."""
    analyze.main([*words, '--rows=2', '--columns=2'])
    assert 'crop_scale=0.6' in capsys.readouterr().out
    analyze.main([*words, '--rows=2', '--columns=2', '--model=vit', '--crop_scale=0.3', '--overwrite=true'])
    said = capsys.readouterr().out
    assert 'crop_scale=0.3' in said and 'eval_crop=1.0' in said


@pytest.mark.parametrize('channels, name', [(1, 'grey'), (2, 'two'), (4, 'four')])
def test_pictures_of_any_number_of_channels(channels, name, words, tmp_path):
    analyze.main([*words, f'--dataset={name}', '--rows=20', '--columns=2', '--eval_crop=1'])
    shown = pictures(channels)[..., :3] if channels > 2 else pictures(channels)[..., :1].repeat(3, 3)
    assert (cells(tmp_path / 'sheet.png', 2, 20)[0][:, 0] == shown).all()


def test_the_sheet_takes_a_config_file_and_ignores_the_settings_of_others(words, tmp_path, capsys):
    (tmp_path / 'c.py').write_text("dataset = 'toy'\ncrop_scale = 0.5\nn_layer = 3\nimage_size = (48, 40)\nlr = 1e-3\n")
    analyze.main(['augment', str(tmp_path / 'c.py'), *words[2:], '--rows=2', '--columns=1'])
    said = capsys.readouterr().out
    assert 'crop_scale=0.5' in said and 'height 48, width 40' in said
    wide, high = Image.open(tmp_path / 'sheet.png').size
    assert wide > 2 * 40 and 0 < high - (2 * (2 * 48 + 6) - 6) < 50    # twice as large, below a title


def test_titles_are_in_words():
    def titles(model, **more):
        s, c = SheetConfig(model=model, columns=3), AugmentConfig(**more)
        return [' '.join(title.split()) for title in headers(s, c)]
    assert titles('crate') == ['as evaluation sees it', 'training view 1', 'training view 2']
    assert titles('dino', local_crops=1) == ['as evaluation sees it', 'large crop 1 of 2', 'large crop 2 of 2',
                                             'small crop 1 of 1']


def test_views_of_any_size_and_names_of_any_length_do_not_overlap():
    views = [np.full((2, h, w, 3), i, np.uint8) for i, (h, w) in enumerate(((8, 8), (8, 8), (20, 30)))]
    sheet = np.array(labelled(views, ['a\nb', 80 * 'wide', 'c'], [100 * 'x', 'caf\udce9']))
    for i, view in enumerate(views):
        assert (sheet == i).all(-1).sum() >= 2 * 16 ** 2 * view.shape[1] * view.shape[2] > 0
    assert sheet.shape[0] < 800 and sheet.shape[1] < 5000


def test_mistakes_get_one_line(words, tmp_path, capsys):
    def said(*more):
        return fails(capsys, analyze.main, *words, *more)
    assert 'unknown setting n_layer' in said('--n_layer=3') and 'toy' in said('toy')
    assert 'rows=0' in said('--rows=0') and 'image_size=3,0' in said('--image_size=3,0')
    for out in ('sheet.txt', f'{tmp_path}/none/sheet.png'):
        assert 'give another --out' in said(f'--out={out}')
    assert 'no data in' in said('--dataset=absent')
    (tmp_path / 'sheet.png').write_text('mine')
    assert '--overwrite=true' in said() and (tmp_path / 'sheet.png').read_text() == 'mine'
    analyze.main([*words, '--overwrite=true', '--rows=1'])
    assert Image.open(tmp_path / 'sheet.png').size[1] == 36 + 128
