"""analyze.py augment: the contact sheet of training pictures."""
import sys

import numpy as np
import pytest
from helpers import fails
from PIL import Image

import analyze
from prepare.lib.pictures import save_arrays


def pictures(channels):
    return np.random.default_rng(0).integers(0, 256, (20, 32, 32, channels), np.uint8)


@pytest.fixture
def words(tmp_path):
    """A command line for pictures of cats and dogs, in colour (`toy`) and of other numbers of channels."""
    for channels, name in ((3, 'toy'), (1, 'grey'), (2, 'two'), (4, 'four')):
        save_arrays(tmp_path / 'd' / name, {'train': (pictures(channels), np.arange(20) % 2)}, ['cat', 'dog'])
    return ['augment', '--dataset=toy', f'--data_dir={tmp_path}/d', '--out', f'{tmp_path}/sheet.png']


def test_the_sheet_shows_pictures_before_and_after(words, tmp_path, capsys):
    more = ['--rows=5', '--columns=3', '--eval_crop=1', '--randaugment_n=2']
    analyze.main([*words, *more])
    said = capsys.readouterr().out
    assert '5 pictures of toy' in said and 'cat' in said and 'randaugment_n=2' in said
    sheet = np.array(Image.open(tmp_path / 'sheet.png'))
    assert sheet.shape == (5 * 36 - 4, 3 * 36 - 4, 3)
    assert (sheet[:32, :32] == pictures(3)).all((1, 2, 3)).any() and (sheet[32:36] == 255).all()
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
    sheet = np.array(Image.open(tmp_path / 'sheet.png'))
    shown = pictures(channels)[..., :3] if channels > 2 else pictures(channels)[..., :1].repeat(3, 3)
    for i, picture in enumerate(shown):
        assert (sheet[36 * i:36 * i + 32, :32] == picture).all()


def test_the_sheet_takes_a_config_file_and_ignores_the_settings_of_others(words, tmp_path, capsys):
    (tmp_path / 'c.py').write_text("dataset = 'toy'\ncrop_scale = 0.5\nn_layer = 3\nimage_size = (48, 40)\nlr = 1e-3\n")
    analyze.main(['augment', str(tmp_path / 'c.py'), *words[2:], '--rows=2', '--columns=1'])
    assert 'crop_scale=0.5' in capsys.readouterr().out
    assert Image.open(tmp_path / 'sheet.png').size == (40, 2 * 52 - 4)


def test_mistakes_get_one_line(words, tmp_path, capsys):
    def said(*more):
        return fails(capsys, analyze.main, *words, *more)
    assert 'unknown setting n_layer' in said('--n_layer=3') and '--dataset=toy' in said('toy')
    assert 'rows=0' in said('--rows=0') and 'image_size=3,0' in said('--image_size=3,0')
    for out in ('sheet.txt', f'{tmp_path}/none/sheet.png'):
        assert 'give another --out' in said(f'--out={out}')
    assert 'no data in' in said('--dataset=absent')
    (tmp_path / 'sheet.png').write_text('mine')
    assert '--overwrite=true' in said() and (tmp_path / 'sheet.png').read_text() == 'mine'
    analyze.main([*words, '--overwrite=true', '--rows=1'])
    assert Image.open(tmp_path / 'sheet.png').size[1] == 32


def test_without_pillow_it_says_what_to_install(words, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, 'PIL', None)
    assert 'pip install pillow' in fails(capsys, analyze.main, *words)
