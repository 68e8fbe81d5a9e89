"""Pictures of the user: the part that the network sees, heat maps over it, and masks in it."""
import dataclasses

import numpy as np
import pytest
from insides import load
from matplotlib.patches import Rectangle
from PIL import Image
from small_files import jpeg, tree

from tasks.augment import visible
from tasks.masks import UNKNOWN
from tasks.pictures import part_seen, seen
from weights.runs import open_run


@pytest.fixture
def photos(tmp_path):
    """A folder with a wide, a high, a long and a small picture, and one in the network's size."""
    sizes = {'wide': (200, 90), 'high': (91, 200), 'long': (400, 40), 'small': (12, 9), 'same': (24, 16)}
    return tree(tmp_path / 'photos', {f'{name}.png': jpeg(*size, kind='PNG') for name, size in sizes.items()})


@pytest.mark.parametrize('view', [0.5, 1.0])
@pytest.mark.parametrize('size', [(161, 163), (100, 1000), (1000, 90), (32, 48)])
def test_the_part_is_all_that_the_network_sees(view, size, place):
    """A picture that is white in this part is white for the network, but for the pixels at the
    border. Where the part is smaller, the border is black."""
    model = load(place, 'crate')
    run = open_run(place / 'runs' / 'crate')
    run = dataclasses.replace(run, settings=run.settings | {'eval_crop': view})
    left, top, width, height = part_seen(np.zeros((*size, 3), np.uint8), model, run)
    assert 0 <= left and 0 <= top and left + width <= size[1] and top + height <= size[0]

    def shown(smaller_by):
        picture = np.zeros((*size, 3), np.uint8)
        dy, dx = int(smaller_by * height), int(smaller_by * width)
        picture[top + dy:top + height - dy, left + dx:left + width - dx] = 255
        return visible(seen(picture, model, run))[0]
    assert (shown(0)[1:-1, 1:-1] > 247).all()
    smaller = shown(0.2)
    assert (smaller[[0, -1]] < 8).all() and (smaller[:, [0, -1]] < 8).all()


@pytest.mark.slow
def test_maps_lie_over_the_part_of_the_photo_that_is_seen(photos, place, look, undrawn):
    words = 'attention', 'crate', f'--image={photos}'
    rows = look(*words)
    assert look(*words, '--over=true') == rows
    model, run = load(place, 'crate'), open_run(place / 'runs' / 'crate')
    files = sorted(photos.iterdir())
    panels = [axis for axis in undrawn[-1].axes if axis.images]
    first_maps = panels[1::6][:len(files)]                              # of two heads, and as many of random weights
    for file, panel in zip(files, first_maps, strict=True):
        photo = np.asarray(Image.open(file))
        heat, below = panel.images
        assert np.array_equal(below.get_array(), photo)
        left, top, width, height = part_seen(photo, model, run)
        frame, = panel.findobj(lambda artist: type(artist) is Rectangle and artist is not panel.patch)
        box = frame.get_bbox()
        assert (box.width, box.height) == (width, height)
        assert heat.get_extent() == [box.x0, box.x1, box.y1, box.y0]
        assert abs((panel.get_xlim()[1] - panel.get_xlim()[0]) - photo.shape[1]) < 1e-6
        assert heat.get_zorder() > below.get_zorder()


@pytest.mark.slow
@pytest.mark.parametrize('name', ['crate', 'grey'])
def test_objects_in_pictures_without_true_masks(name, photos, place, look, tmp_path):
    folder = tmp_path / 'masks' / 'new'
    rows = look('objects', name, f'--image={photos}', f'--masks_to={folder}', '--masks=2',
                '--beside={place}/runs/wide' if name == 'crate' else '--seed=1')
    mine = [row for row in rows if row['network'].endswith(f'runs/{name}')]
    assert len(mine) == 5 * 3                                           # of all heads, and of two masks each
    assert {row['masks'] for row in rows} == {'all heads', 'cut 1', 'cut 2'}
    files = sorted(photos.iterdir())
    assert sorted(file.name for file in folder.iterdir()) == [f'{file.name}.png' for file in files]
    model, run = load(place, name), open_run(place / 'runs' / name)
    found = 0
    for file in files:
        photo, mask = Image.open(file), Image.open(folder / f'{file.name}.png')
        assert mask.size == photo.size
        numbers = np.asarray(mask)
        left, top, width, height = part_seen(np.asarray(photo), model, run)
        part = numbers[top:top + height, left:left + width]
        assert (numbers == UNKNOWN).sum() == numbers.size - part.size and (part <= 2).all()
        for m in (1, 2):
            row, = (row for row in mine if row['picture'] == file.name and row['masks'] == f'cut {m}')
            assert abs((part == m).mean() - float(row['covers'])) < 0.09
            found += (part == m).any()
    assert found >= 5
