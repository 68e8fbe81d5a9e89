"""analyze.py augment: the contact sheet of training pictures."""
import numpy as np
import pytest

import analyze
from lib.pictures import save_arrays

pytestmark = pytest.mark.slow  # to draw a sheet takes a second


def pictures(channels):
    return np.random.default_rng(0).integers(0, 256, (20, 32, 32, channels), np.uint8)


@pytest.fixture
def views_of(tmp_path, undrawn):
    """A function that draws a sheet; returns its views, each of all pictures, and their classes: cats and dogs in
    colour (`toy`), or of other numbers of channels."""
    for channels, name in ((3, 'toy'), (1, 'grey'), (4, 'four')):
        save_arrays(tmp_path / 'd' / name, {'train': (pictures(channels), np.arange(20) % 2)}, ['cat', 'dog'])

    def views_of(*words):
        analyze.main(['augment', *words, f'--data_dir={tmp_path}/d', f'--out={tmp_path}/x.png', '--overwrite=true'])
        axes = undrawn[-1].axes
        wide = axes[0].get_subplotspec().get_gridspec().ncols
        views = [np.stack([axis.images[0].get_array() for axis in axes[i::wide]]) for i in range(wide)]
        return views, [axis.get_ylabel() for axis in axes[::wide]]
    return views_of


def test_the_sheet_shows_pictures_before_and_after(views_of):
    words = '--dataset=toy', '--rows=5', '--columns=3', '--eval_crop=1', '--randaugment_n=2'
    views, classes = views_of(*words)
    assert len(views) == 3 and all(len(view) == len(classes) == 5 for view in views)
    for picture, name in zip(views[0], classes):                        # as it is, beside its class
        i, = np.flatnonzero((picture == pictures(3)).all((1, 2, 3)))
        assert name == ['cat', 'dog'][i % 2]
    assert not any((picture == pictures(3)).all((1, 2, 3)).any() for picture in views[2])
    assert np.array_equal(views, views_of(*words)[0])
    assert not np.array_equal(views, views_of(*words, '--seed=8')[0])


@pytest.mark.parametrize('channels, name', [(1, 'grey'), (4, 'four')])
def test_pictures_of_any_number_of_channels(channels, name, views_of):
    views, _ = views_of(f'--dataset={name}', '--rows=20', '--columns=2', '--eval_crop=1')
    shown = pictures(channels)[..., :3] if channels > 2 else pictures(channels)[..., :1].repeat(3, 3)
    assert (views[0] == shown).all()


def test_settings_come_from_a_config_file_or_the_defaults(views_of, tmp_path, capsys):
    views_of('--dataset=toy')
    assert {'crop_scale=0.08', 'eval_crop=0.875'} <= set(capsys.readouterr().out.replace('\n', ', ').split(', '))
    views_of('--dataset=toy', '--crop_scale=0.3')
    assert 'crop_scale=0.3' in capsys.readouterr().out
    (tmp_path / 'c.py').write_text("dataset = 'toy'\ncrop_scale = 0.5\nn_layer = 3\nimage_size = (48, 40)\nlr = 1e-3\n")
    views, _ = views_of(f'{tmp_path}/c.py', '--rows=2', '--columns=2')  # it passes over settings of others
    assert views[0].shape == (2, 48, 40, 3) and 'crop_scale=0.5' in capsys.readouterr().out


def test_a_network_that_learns_from_crops_shows_them(views_of):
    views, _ = views_of('--dataset=toy', '--model=dino', '--local_crops=1', '--local_size=16')
    assert [view.shape[1:3] for view in views] == [(32, 32)] * 3 + [(16, 16)]
