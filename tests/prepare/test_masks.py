"""True masks: of PASCAL VOC, of COCO, and of the drawn shapes."""
import numpy as np
import pytest
from small_files import box, coco_files, squares, thing, tree, voc_files, with_masks

from prepare import coco, shapes, shapes_many, voc
from tasks.checksums import digest


@pytest.mark.parametrize('words', [(), ('--size', '15')])
def test_voc(words, tmp_path):
    objects = squares((1, 2, 2), (2, 2, 20), (4, 15, 2), (255, 15, 30))  # none is the third
    objects[20:28, 2:10] = 4
    # two persons and a monitor
    kinds = np.choose(np.minimum(objects, 5), [0, 15, 15, 0, 20, 255]).astype(np.uint8)
    root = tree(tmp_path / 'VOC2012', voc_files(objects, kinds))
    voc.main(['--from', str(root), '--out', f'{tmp_path}/d', '--workers', '0', *words])
    ((name, label, numbers, kinds),), classes = with_masks(tmp_path / 'd', 'val')
    assert (name, label) == ('y.jpg', 'tvmonitor') and len(classes) == 20
    assert kinds == ['person', 'person', 'tvmonitor']
    whole = np.where(objects == 4, 3, objects)
    if words:
        assert (numbers == whole[1::2, 1::2]).mean() > 0.95
    else:
        assert np.array_equal(numbers, whole)


@pytest.mark.parametrize('folder', ['val2017', 'images/val2017'])
def test_coco(folder, tmp_path):
    crowd = squares((1, 20, 0)) > 0
    runs = [20, *[8, 22] * 7, 8, 962]  # pixels that are out, in, out, .., column by column
    files = coco_files([
        thing(box(2, 2, 20), 18, 400), thing(box(5, 5, 8), 3, 64), thing(box(6, 6, 3), 18, 9),
        thing({'counts': runs, 'size': [30, 40]}, 3, 1, 1)], folder=folder)
    tree(tmp_path / 'coco', files)
    coco.main(['--from', f'{tmp_path}/coco', '--out', f'{tmp_path}/d', '--workers', '0'])
    ((name, label, numbers, kinds),), classes = with_masks(tmp_path / 'd', 'val')
    expected = np.where(crowd, 255, 0)  # crowds are behind all, the smaller objects in front
    for number, (r, c, side) in enumerate(((2, 2, 20), (5, 5, 8), (6, 6, 3)), 1):
        expected[r:r + side, c:c + side] = number
    assert (name, label, classes) == ('p.jpg', 'dog', ['car', 'dog'])  # q.jpg has no object
    assert kinds == ['dog', 'car', 'dog']
    assert np.array_equal(numbers, expected) and not list((tmp_path / 'd').glob('train*'))


# ---- shapes


@pytest.mark.parametrize('script, expected', [
    (shapes, {'train.images': 'f260f0727a8da4cc', 'train.masks': '4ed6eb9a7bb95ef1',
              'val.images': '7dbd7b4a90cccd6d'}),
    (shapes_many, {'train.images': 'a348f67e9ffcc8dc', 'train.masks': '5c258253c9ea3628',
                   'train.labels': '5827baf2a34926ce', 'train.objects': '86c321f9f5dff279'})])
def test_shapes_are_drawn_as_ever(script, expected, tmp_path):
    """The digests of one shape are of the first version. Those of several are of drawings in which
    each shape lay in a quarter of its own, and the label was that of the largest."""
    script.main(['--out', f'{tmp_path}/s', '--train', '250', '--val', '30', '--test', '10',
                 '--size', '16'])
    for name, start in expected.items():
        assert digest(tmp_path / 's' / f'{name}.npy').startswith(start)


def test_the_number_of_pictures_is_printed_before_the_first_is_drawn(tmp_path, monkeypatch, capsys):
    printed = []

    def draw(*arguments):
        printed.append(capsys.readouterr().out)
        raise KeyboardInterrupt

    monkeypatch.setattr(shapes, 'draw', draw)
    with pytest.raises(KeyboardInterrupt):
        shapes.main(['--out', f'{tmp_path}/s', '--train', '1200', '--val', '30', '--test', '4'])
    assert '1,234' in printed[0]
