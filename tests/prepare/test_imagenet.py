"""prepare/imagenet.py on every layout that it reads."""
import shutil

import pytest
from helpers import fails
from small_files import jpeg, names, read, tar, tree

from prepare import imagenet


WNIDS = ('n01440764', 'n02000001', 'n03000002')
VAL = {f'ILSVRC2012_val_{i:08}.JPEG': WNIDS[(2 * i + 1) % 3] for i in range(1, 6)}  # name: class
TRAIN = {f'{w}/{w}_{i}.JPEG': jpeg(24, 20) for w in WNIDS for i in range(3)}
VAL_PICTURES = {name: jpeg(24, 20) for name in VAL}
LINES = [f'{n[:-5]},{w} 1 2 3 4 {w} 5 6 7 8\n' for n, w in reversed(VAL.items())]
SOLUTION = ''.join(['ImageId,PredictionString\n', *LINES])
SYNSETS = ''.join(f'{w}\n' for w in VAL.values())


def tars(root, synsets=False):
    """The two archives as they are published, and labels."""
    root.mkdir(exist_ok=True)
    nested = {}
    for w in WNIDS:
        path = tar(root / 'one.tar', {n.split('/')[1]: c for n, c in TRAIN.items() if n.startswith(w)})
        nested[f'{w}.tar'] = path.read_bytes()
        path.unlink()
    tar(root / imagenet.TRAIN_TAR, nested)
    tar(root / imagenet.VAL_TAR, dict(reversed(VAL_PICTURES.items())))
    (root / (imagenet.SYNSETS if synsets else imagenet.SOLUTION)).write_text(SYNSETS if synsets else SOLUTION)
    return root


def in_class_folders(root):
    val = {f'val/{w}/{n}': VAL_PICTURES[n] for n, w in VAL.items()}
    return tree(root, {f'train/{n}': c for n, c in TRAIN.items()} | val)


def kaggle(root):
    pictures = {f'train/{n}': c for n, c in TRAIN.items()} | {f'val/{n}': c for n, c in VAL_PICTURES.items()}
    tree(root / 'ILSVRC/Data/CLS-LOC', pictures)
    return tree(root, {imagenet.SOLUTION: SOLUTION.encode()})


@pytest.mark.parametrize('layout', [in_class_folders, kaggle, tars, lambda root: tars(root, synsets=True)])
def test_imagenet_in_every_layout(tmp_path, capsys, layout):
    source = str(layout(tmp_path / 'i'))
    imagenet.main(['--from', source, '--out', str(tmp_path / 'd'), '--workers', '0', '--size', '20'])
    meta, splits = read(tmp_path / 'd')
    assert meta['classes'] == list(WNIDS)
    assert splits['train'] == [(n, WNIDS.index(n[:9]), c) for n, c in TRAIN.items()]
    folder = {n: f'{w}/' if layout is in_class_folders else '' for n, w in VAL.items()}
    assert splits['val'] == [(folder[n] + n, WNIDS.index(w), VAL_PICTURES[n]) for n, w in VAL.items()]
    said = capsys.readouterr().out
    assert 'train.jpeg.npy: 9 pictures' in said and '3 classes' in said and '1,281,167' in said


def test_imagenet_21k_from_archives_and_folders(tmp_path, capsys):
    counts = {'n2': 30, 'n1': 30, 'n3': 1}
    flat = {f'{c}/{c}_{i}.JPEG': jpeg(8, 8) for c, n in counts.items() for i in range(n)}
    nested = {'whole/n4.tar': b''}
    for c in counts:
        path = tar(tmp_path / 'one.tar', {n.split('/')[1]: content for n, content in flat.items() if n.startswith(c)})
        nested[f'whole/{c}.tar'] = path.read_bytes()
    sources = [tmp_path / name for name in ('winter', 'fall', 'tree')]
    for folder in sources[:2]:
        folder.mkdir()
    tar(sources[0] / 'winter21_whole.tar.gz', nested, 'gz')
    tar(sources[1] / 'fall11_whole.tar', flat)
    tree(sources[2], flat)
    held = []
    for i, source in enumerate(sources):
        imagenet.main(['--from', str(source), '--out', str(tmp_path / str(i)), '--workers', '0', '--val', '0.2'])
        meta, splits = read(tmp_path / str(i))
        assert meta['classes'] == ['n1', 'n2', 'n3'] and 'held out' in capsys.readouterr().out
        assert all(meta['classes'][label] == name[:2] for p in splits.values() for name, label, _ in p)
        assert sorted(names(splits['train']) + names(splits['val'])) == sorted(flat)
        held.append(set(names(splits['val'])))
        assert 3 < len(held[-1]) < 25 and 'n3/n3_0.JPEG' not in held[-1]
    assert held[0] == held[1] and len(held[1] ^ held[2]) <= 2  # which picture of a class is its first differs


def test_mistakes_with_imagenet_write_nothing(tmp_path, capsys):
    def told(source, *named):
        words = ('--from', str(source)) if source else ()
        line = fails(capsys, imagenet.main, '--out', str(tmp_path / 'd'), '--workers', '0', *words)
        assert all(name in line for name in named), line
        assert not list(tmp_path.glob('d*'))

    told(None, 'https://image-net.org')
    told(tmp_path / 'nowhere', 'nowhere')
    root = kaggle(tmp_path / 'k')
    solution = root / imagenet.SOLUTION
    for text in SOLUTION.rpartition('ILSVRC')[0], SOLUTION + 'x,n01440764 1 2 3 4\n':
        solution.write_text(text)
        told(root, str(solution), '5 pictures')
    solution.write_text(SOLUTION.replace(WNIDS[0], 'n9'))
    told(root, 'n9', 'no training pictures')
    solution.unlink()
    told(root, 'LOC_val_solution.csv or imagenet_2012_validation_synset_labels.txt')
    (root / imagenet.SYNSETS).write_text(SYNSETS + 'n01440764\n')
    told(root, imagenet.SYNSETS, '5 pictures')
    root = in_class_folders(tmp_path / 't')
    shutil.rmtree(root / 'train' / WNIDS[1])
    told(root, WNIDS[1])
    shutil.rmtree(root / 'val')
    told(root, 'val or ILSVRC2012_img_val.tar', f'--from {root}/train')
    root = tars(tmp_path / 'r')
    told(root / imagenet.VAL_TAR, 'ILSVRC2012_val_00000005.JPEG in no class folder')
    for name in imagenet.TRAIN_TAR, imagenet.VAL_TAR:
        whole = (root / name).read_bytes()
        for content in whole[:len(whole) // 2], b'no tar':
            (root / name).write_bytes(content)
            told(root, name, 'is damaged')
        (root / name).write_bytes(whole)
    (root / imagenet.TRAIN_TAR).unlink()
    told(root, 'ILSVRC2012_img_train.tar')
    (tmp_path / 'x.zip').write_bytes(b'PK')
    told(tmp_path / 'x.zip', 'no tar archive')
    (tmp_path / 'void').mkdir()
    told(tmp_path / 'void', 'no class folder')
