"""analyze.py augment: the contact sheet of training pictures."""
import numpy as np
import pytest
from helpers import fails
from PIL import Image

import analyze
from analysis import sheet
from analysis.sheet import SheetConfig, headers
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


def views_of(words, *more):
    """What a sheet shows: views, each of all pictures, and their classes."""
    return sheet.draw(*sheet.read([*words[1:], *more]))


def test_the_sheet_shows_pictures_before_and_after(words):
    more = ['--rows=5', '--columns=3', '--eval_crop=1', '--randaugment_n=2']
    views, classes = views_of(words, *more)
    assert len(views) == 3 and all(len(view) == len(classes) == 5 for view in views)
    for picture, name in zip(views[0], classes):                        # as it is, beside its class
        i, = np.flatnonzero((picture == pictures(3)).all((1, 2, 3)))
        assert name == ['cat', 'dog'][i % 2]
    assert not any((picture == pictures(3)).all((1, 2, 3)).any() for picture in views[2])
    again, other = views_of(words, *more)[0], views_of(words, *more, '--seed=8')[0]
    assert np.array_equal(views, again) and not np.array_equal(views, other)


def test_the_sheet_is_drawn_and_said(words, tmp_path, capsys):
    analyze.main([*words, '--rows=5', '--columns=3', '--randaugment_n=2'])
    said, (wide, high) = capsys.readouterr().out, Image.open(tmp_path / 'sheet.png').size
    assert '5 pictures of toy' in said and 'randaugment_n=2' in said and high > wide > 300


def test_without_a_config_file_the_sheet_shows_a_bare_run(words):
    """crop_scale is 0.6 and eval_crop 1 in config/train_crate_shapes.py, 0.08 and 0.875 if nothing is said."""
    assert tuple(sheet.read(words[1:]))[1].crop_scale == 0.6
    _, c = sheet.read([*words[1:], '--model=vit', '--crop_scale=0.3'])
    assert c.crop_scale == 0.3 and c.eval_crop == 1


@pytest.mark.parametrize('channels, name', [(1, 'grey'), (2, 'two'), (4, 'four')])
def test_pictures_of_any_number_of_channels(channels, name, words):
    views, _ = views_of(words, f'--dataset={name}', '--rows=20', '--columns=2', '--eval_crop=1')
    shown = pictures(channels)[..., :3] if channels > 2 else pictures(channels)[..., :1].repeat(3, 3)
    assert (views[0] == shown).all()


def test_the_sheet_takes_a_config_file_and_ignores_the_settings_of_others(words, tmp_path):
    (tmp_path / 'c.py').write_text("dataset = 'toy'\ncrop_scale = 0.5\nn_layer = 3\nimage_size = (48, 40)\nlr = 1e-3\n")
    s, c = sheet.read([str(tmp_path / 'c.py'), *words[2:], '--rows=2', '--columns=1'])
    assert c.crop_scale == 0.5 and s.rows == 2 and sheet.draw(s, c)[0][0].shape == (2, 48, 40, 3)


def test_titles_are_in_words():
    def titles(model, **more):
        s, c = SheetConfig(model=model, columns=3), AugmentConfig(**more)
        return [' '.join(title.split()) for title in headers(s, c)]
    assert titles('crate') == ['as evaluation sees it', 'training view 1', 'training view 2']
    assert titles('dino', local_crops=1) == ['as evaluation sees it', 'large crop 1 of 2', 'large crop 2 of 2',
                                             'small crop 1 of 1']


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
    analyze.main([*words, '--overwrite=true', '--rows=1', '--columns=2'])
    assert Image.open(tmp_path / 'sheet.png').size[0] > 100
