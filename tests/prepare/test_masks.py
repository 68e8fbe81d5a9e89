"""True masks: of a folder of PNG files, of PASCAL VOC, of COCO, and of the drawn shapes."""
import json
import re

import numpy as np
import pytest
from helpers import fails
from PIL import Image
from small_files import jpeg, saved, tree

from prepare import coco, imagefolder, shapes, shapes_many, voc
from tasks.files import digests
from tasks.masks import Masks
from tasks.pictures import ImageSplit


def png(numbers, palette=False, **options):
    image = Image.fromarray(np.asarray(numbers))
    if palette:
        image = image.convert('P')
        image.putpalette([i * 7 % 256 for i in range(768)])
        image.putdata(np.asarray(numbers).ravel().tolist())
    return saved(image, 'PNG', **options)


def held(out, split):
    """[(name, label, size of the picture, numbers, classes)] of a prepared split."""
    images = ImageSplit(out, split)
    masks, name_of = Masks(images), np.load(out / f'{split}.names.npy')
    found = []
    for i in range(len(images)):
        picture, *_ = images[np.array([i]), np.zeros((1, 0)), None, None]
        numbers, classes = masks[i]
        assert numbers.shape == picture.shape[1:3] and numbers.dtype == np.uint8
        found.append((name_of[i].decode(), int(images.labels[i]), numbers, classes))
    return found


def squares(*places, shape=(30, 40)):
    """Numbers: a square of 8 x 8 pixels for each (m, row, column)."""
    numbers = np.zeros(shape, np.uint8)
    for m, r, c in places:
        numbers[r:r + 8, c:c + 8] = m
    return numbers


# ---- a folder


def folder(tmp_path, masks, sizes=()):
    """FOLDER with train and val of two classes, MASKS with these: (the command line, MASKS)."""
    names = [f'{split}/{c}/{i}' for split in ('train', 'val') for c in 'ab' for i in (0, 1)]
    files = {f'{n}.jpg': jpeg(*dict(sizes).get(n, (40, 30))) for n in names}
    root, place = tree(tmp_path / 'f', files), tree(tmp_path / 'm', {f'{n}.png': mask for n, mask in masks.items()})
    return [str(root), '--masks', str(place), '--out', str(tmp_path / 'd'), '--workers', '0']


def test_masks_of_a_folder_keep_their_numbers_at_any_size(tmp_path, capsys):
    two, one = squares((1, 2, 2), (2, 20, 20), (255, 10, 30)), squares((255, 4, 4))
    masks = {'val/a/0': png(two), 'val/a/1': png(two, palette=True), 'val/b/0': png(one), 'val/b/1': png(one > 0)}
    words = folder(tmp_path, masks)
    imagefolder.main(words)
    assert 'val.jpeg.npy: 4 pictures with masks, ' in capsys.readouterr().out
    found = held(tmp_path / 'd', 'val')
    for (_, label, numbers, classes), expected, objects in zip(found, (two, two, one > 0, one > 0), (2, 2, 1, 1)):
        assert np.array_equal(numbers, expected) and classes == objects * [label]
    with pytest.raises(ValueError, match=r'no .*train.masks.npy: this needs the true masks'):
        Masks(ImageSplit(tmp_path / 'd', 'train'))
    imagefolder.main([*words[:-4], '--out', str(tmp_path / 'small'), '--workers', '0', '--size', '15'])
    for (_, _, numbers, _), (_, _, large, _) in zip(held(tmp_path / 'small', 'val'), found):
        assert numbers.shape == (15, 20) and set(np.unique(numbers)) <= set(np.unique(large))
        assert (numbers == large[1::2, 1::2]).mean() > 0.95


def test_without_folders_train_and_val_masks_follow_their_pictures(tmp_path):
    names = [f'{c}/{i}' for c in 'ab' for i in range(4)]
    root = tree(tmp_path / 'f', {f'{n}.jpg': jpeg() for n in names})
    masks = {n: squares((1, i, 2 * i)) for i, n in enumerate(names)}
    place = tree(tmp_path / 'm', {f'{n}.png': png(m) for n, m in masks.items()})
    imagefolder.main([str(root), '--masks', str(place), '--out', str(tmp_path / 'd'), '--workers', '2'])
    for split in ('train', 'val'):
        for name, _, numbers, _ in held(tmp_path / 'd', split):
            assert np.array_equal(numbers, masks[name.removesuffix('.jpg')])


def test_a_picture_is_turned_upright_and_its_mask_is_of_that(tmp_path):
    exif = Image.Exif()
    exif[0x112] = 6
    pixels = np.zeros((30, 40, 3), np.uint8)
    pixels[:, :20] = 255                                            # turned right: the upper half
    files = {f'{c}/{i}.jpg': saved(Image.fromarray(pixels), 'JPEG', exif=exif) for c in 'ab' for i in (0, 1)}
    upper = np.zeros((40, 30), np.uint8)
    upper[:20] = 1
    root, place = tree(tmp_path / 'f', files), tree(tmp_path / 'm', {n[:-4] + '.png': png(upper) for n in files})
    imagefolder.main([str(root), '--masks', str(place), '--out', str(tmp_path / 'd'), '--workers', '0'])
    images = ImageSplit(tmp_path / 'd', 'val')
    picture = images[np.array([0]), np.zeros((1, 0)), None, None][0][0]
    assert np.array_equal(picture.mean(-1) > 127, held(tmp_path / 'd', 'val')[0][2] == 1)


GOOD = png(squares((1, 2, 2)))


@pytest.mark.parametrize('masks, message', [
    ({'val/b/9': GOOD}, 'has no mask of any picture; the first would be .*m/.*.png'),
    ({'val/a/0': GOOD}, 'no mask .*val/a/1.png: 3 of 4 pictures have none'),
    ({'val/b/1': png(squares((1, 2, 2), shape=(20, 40)))}, r'is \(20, 40\), its upright picture \(30, 40\)'),
    ({'val/b/1': png(squares((1, 2, 2), (3, 20, 20)))}, 'has pixels of value 3, and none of value 2'),
    ({'val/b/1': png(squares((128, 2, 2)))}, 'has pixels of value 128, and none of value 1'),
    ({'val/b/1': jpeg(kind='PNG')}, 'holds colours; save it in grey or with a palette'),
    ({'val/b/1': png(squares().astype(np.uint16))}, 'holds numbers of type'),
    ({'val/b/1': jpeg()}, 'cannot be read as a PNG file'),
    ({'val/b/1': b'no picture'}, 'cannot be read as a PNG file'), ({'val/b/1': GOOD[:60]}, 'cannot be read')])
def test_masks_that_do_not_fit(masks, message, tmp_path, capsys):
    others = {n: GOOD for n in ('val/a/0', 'val/a/1', 'val/b/0')} if 'val/b/1' in masks else {}
    words = folder(tmp_path, others | masks)
    said = fails(capsys, imagefolder.main, *words)
    assert re.search(message, said), said
    assert not (tmp_path / 'd').exists()


def test_a_mask_of_two_pictures_is_refused(tmp_path, capsys):
    words = folder(tmp_path, {f'val/{c}/{i}': GOOD for c in 'ab' for i in range(2)})
    (tmp_path / 'f/val/a/0.bmp').write_bytes(next((tmp_path / 'f/val/a').glob('0.*')).read_bytes())
    assert 'val/a/0.png would be the mask of two pictures' in fails(capsys, imagefolder.main, *words)
    assert not (tmp_path / 'd').exists()


def test_no_folder_of_masks(tmp_path, capsys):
    words = folder(tmp_path, {'val/a/0': GOOD})
    assert 'nowhere is no folder' in fails(capsys, imagefolder.main, *words[:2], 'nowhere', *words[3:])


# ---- PASCAL VOC


def voc_files(objects, kinds, names=('x', 'y')):
    files = {f'ImageSets/Segmentation/{split}.txt': n.encode() for split, n in zip(('train', 'val'), names)}
    for n in names:
        files |= {f'JPEGImages/{n}.jpg': jpeg(), f'SegmentationObject/{n}.png': png(objects, palette=True),
                  f'SegmentationClass/{n}.png': png(kinds, palette=True)}
    return files


def test_voc(tmp_path, capsys):
    objects = squares((1, 2, 2), (2, 2, 20), (3, 15, 2), (255, 15, 30))
    objects[20:28, 2:10] = 3
    kinds = np.choose(np.minimum(objects, 4), [0, 15, 15, 20, 255]).astype(np.uint8)       # two persons and a monitor
    root = tree(tmp_path / 'VOC2012', voc_files(objects, kinds))
    voc.main(['--from', str(root), '--out', str(tmp_path / 'd'), '--workers', '0'])
    assert 'train.jpeg.npy: 1 pictures with masks' in capsys.readouterr().out
    meta = json.loads((tmp_path / 'd' / 'meta.json').read_text())
    (name, label, numbers, classes), = held(tmp_path / 'd', 'val')
    assert name == 'y.jpg' and meta['classes'][label] == 'tvmonitor' and len(meta['classes']) == 20
    assert [meta['classes'][k] for k in classes] == ['person', 'person', 'tvmonitor']
    assert np.array_equal(numbers, objects)


def test_voc_that_does_not_fit(tmp_path, capsys):
    def said(files):
        root = tree(tmp_path / str(len(list(tmp_path.iterdir()))), files)
        return fails(capsys, voc.main, '--from', str(root), '--out', str(tmp_path / 'd'), '--workers', '0')
    one = squares((1, 2, 2))
    assert 'has the unknown class 21' in said(voc_files(one, one * 21))
    assert 'object 1 has the unknown class 0' in said(voc_files(one, one * 0))
    assert 'is (20, 40), its upright picture (30, 40)' in said(voc_files(one[:20], one))
    assert 'is (20, 40), its upright picture (30, 40)' in said(voc_files(one, one[:20]))
    lacking = said({k: v for k, v in voc_files(one, one).items() if 'Class' not in k})
    assert 'SegmentationClass' in lacking and 'No such file' in lacking and 'make room' not in lacking
    for name in (b'\xff\xfex\0', b'x\0'):
        assert 'cannot be read' in said(voc_files(one, one) | {'ImageSets/Segmentation/train.txt': name})
    assert 'train.txt' in said({'x.jpg': jpeg()})
    assert 'required: --from' in fails(capsys, voc.main, '--out', str(tmp_path / 'd'))


# ---- COCO


def coco_files(annotations, name='instances_val2017', folder='val2017', **more):
    content = {'images': [{'id': 7, 'file_name': 'p.jpg'}, {'id': 9, 'file_name': 'q.jpg'}],
               'categories': [{'id': 18, 'name': 'dog'}, {'id': 3, 'name': 'car'}], 'annotations': annotations} | more
    pictures = {f'{folder}/{picture}.jpg': jpeg() for picture in 'pq'}
    return {f'annotations/{name}.json': json.dumps(content).encode()} | pictures


def thing(form, kind=3, area=50, crowd=0, image=7):
    return {'image_id': image, 'category_id': kind, 'segmentation': form, 'area': area, 'iscrowd': crowd}


def box(r, c, side):
    return [[c, r, c + side - 1, r, c + side - 1, r + side - 1, c, r + side - 1]]


def runs(mask):
    """A run-length code: how many are out, in, out, .., column by column."""
    counts, now = [], False
    for value in mask.T.ravel().tolist():
        if not counts or value != now:
            counts += [0] if counts or not value else [0, 0]
            now = value
        counts[-1] += 1
    return {'counts': counts, 'size': list(mask.shape)}


@pytest.mark.parametrize('folder', ['val2017', 'images/val2017'])
def test_coco(folder, tmp_path, capsys):
    crowd = squares((1, 20, 0)) > 0
    files = coco_files([thing(box(2, 2, 20), 18, 400), thing(box(5, 5, 8), 3, 64), thing(runs(crowd), 3, 900, 1),
                        thing(box(6, 6, 3), 18, 9)], folder=folder)
    root = tree(tmp_path / 'coco', files)
    coco.main(['--from', str(root), '--out', str(tmp_path / 'd'), '--workers', '0'])
    meta = json.loads((tmp_path / 'd' / 'meta.json').read_text())
    assert meta['classes'] == ['car', 'dog'] and list(meta['splits']) == ['val']
    (name, label, numbers, classes), = held(tmp_path / 'd', 'val')             # q.jpg has no object
    expected = np.zeros((30, 40), np.uint8)
    expected[crowd] = 255
    for m, (r, c, side) in enumerate(((2, 2, 20), (5, 5, 8), (6, 6, 3)), 1):   # the smaller ones are in front
        expected[r:r + side, c:c + side] = m
    assert name == 'p.jpg' and label == 1 and classes == [1, 0, 1] and np.array_equal(numbers, expected)


def test_run_lengths_equal_cocos():
    mask = np.zeros((5, 7), bool)
    mask[1:4, 2:5], mask[4, 6] = True, True
    for counts in (';320008N', [11, 3, 2, 3, 2, 3, 10, 1]):                    # the text is pycocotools 2.0.11's
        assert np.array_equal(coco.decode(counts, [5, 7]), mask)


@pytest.mark.parametrize('files, message', [
    (coco_files([thing(box(1, 1, 9), kind=99)]), 'unknown category 99'),
    (coco_files([thing([[1, 2, 3, 4]])]), 'neither polygons nor'),
    (coco_files([thing([[1, 2, 3, 4, float('nan'), 3]])]), 'neither polygons nor'),
    (coco_files([thing({'counts': [5], 'size': [30, 40]})]), 'its runs are not as long as the picture'),
    (coco_files([thing({'counts': [10 ** 30], 'size': [30, 40]})]), 'neither polygons nor a run-length code'),
    (coco_files([thing({'counts': [2 ** 62] * 3 + [2 ** 62 + 1200], 'size': [30, 40]})]), 'its runs are not as long'),
    (coco_files([thing({'counts': [10 ** 12], 'size': [10 ** 6, 10 ** 6]})]), 'neither polygons nor'),
    (coco_files([thing({'counts': [1200], 'size': [3, 400]})]), 'neither polygons nor a run-length code of 40 x 30'),
    (coco_files([thing({'counts': 'zz', 'size': [30, 40]})]), 'neither polygons nor a run-length code'),
    (coco_files([thing('x')]), 'neither polygons nor a run-length code'),
    (coco_files([{'image_id': 7}]), "no file of instances as COCO's"),
    (coco_files([], categories='x'), "no file of instances as COCO's"),
    (coco_files([], images=[{'id': float('inf'), 'file_name': 'p.jpg'}]), "no file of instances as COCO's"),
    (coco_files([]) | {'annotations/instances_val2017.json': b'[' * 100_000}, "no file of instances as COCO's"),
    (coco_files([thing(box(1, 1, 9))], images=[{'id': 7, 'file_name': 'p\0.jpg'}]), 'lies outside of'),
    (coco_files([thing(box(1, 1, 9))], images=[{'id': 7, 'file_name': 'p.jpg', 'height': 40, 'width': 30}]),
     'is (40, 30), its upright picture (30, 40)'),
    (coco_files([thing(box(1, 1, 9))], images=[{'id': 7, 'file_name': '../../p.jpg'}]), 'lies outside of'),
    (coco_files([thing(box(i % 20, 1, 9)) for i in range(300)]), 'more than 254 objects'),
    (coco_files([]), 'split val has no picture'),
    (coco_files([thing(box(1, 1, 9))]) | coco_files([], 'instances_val2014', 'val2014'), 'a second file for val'),
    (coco_files([thing(box(1, 1, 9))]) | coco_files([], 'instances_train2017', 'train2017', categories=[]),
     'has other categories')])
def test_coco_that_does_not_fit(files, message, tmp_path, capsys):
    root = tree(tmp_path / 'coco', files)
    assert message in fails(capsys, coco.main, '--from', str(root), '--out', str(tmp_path / 'd'), '--workers', '0')
    assert not (tmp_path / 'd').exists()


# ---- shapes


def test_one_shape_a_picture_is_drawn_as_ever(tmp_path):
    """The digests are those of the first version."""
    shapes.main(['--out', str(tmp_path / 's'), '--train', '250', '--val', '30', '--test', '10', '--size', '16'])
    names = [tmp_path / 's' / f'{name}.npy' for name in ('train.images', 'train.masks', 'val.images')]
    assert [digest[:16] for digest in digests(names, '').values()] == \
        ['f260f0727a8da4cc', '4ed6eb9a7bb95ef1', '7dbd7b4a90cccd6d']


def test_several_shapes_a_picture(tmp_path, capsys):
    shapes_many.main(['--out', str(tmp_path / 'm'), '--train', '300', '--val', '30', '--test', '10'])
    images = ImageSplit(tmp_path / 'm', 'train')
    masks, counts, kinds = Masks(images), [], []
    for i in range(300):
        numbers, classes = masks[i]
        shown = [int((numbers == m).sum()) for m in range(1, len(classes) + 1)]
        assert images.labels[i] == classes[int(np.argmax(shown))] and numbers.max() <= len(classes)
        counts, kinds = counts + [len(classes)], kinds + classes
        half = [{(r // 16, c // 16) for r, c in zip(*np.nonzero(numbers == m))} for m in range(1, len(classes) + 1)]
        assert all(len(cells) <= 1 for cells in half)                          # each in a quarter of its own
        assert sum(map(len, half)) == len(set().union(*half))
    assert {2, 3, 4} == set(counts) and min(counts.count(n) for n in (2, 3, 4)) > 60
    assert set(kinds) == set(range(10)) and 0.1 < np.mean([(masks[i][0] > 0).mean() for i in range(300)]) < 0.4
    assert 'pictures with masks of 32x32' in capsys.readouterr().out


def test_mistakes_with_shapes(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for option, value in ('--objects', 17), ('--train', 10 ** 12), ('--val', 0), ('--size', 10), ('--seed', -1):
        assert option in fails(capsys, shapes.main, option, str(value), '--out', 'x')
    assert 'give --out data/shapes_many' in fails(capsys, shapes.main, '--objects', '3')
    assert not list(tmp_path.glob('*/*.npy'))
