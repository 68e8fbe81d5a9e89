"""What is said where a checkpoint or a dataset is not there: the command that makes it."""
import pytest
from helpers import fails

import analyze
import eval
import sample
import train


@pytest.mark.parametrize('main, more', [(eval.main, []), (sample.main, []), (analyze.main, ['layers'])],
                         ids=['eval', 'sample', 'analyze'])
def test_a_missing_checkpoint(main, more, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    said = fails(capsys, main, *more, '--ckpt=out/crate_shapes')
    assert 'no checkpoint out/crate_shapes' in said and said.endswith('no run in out yet')
    assert 'python train.py CONFIG --out_dir=out/crate_shapes;' in said
    for name in ('a/best.pt', 'b/step_3.pt', 'crate_shapes/last.pt', 'c/log.csv'):
        (tmp_path / 'out' / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / 'out' / name).touch()
    said = fails(capsys, main, *more, '--ckpt=out/crate_shapes')
    assert 'out/crate_shapes holds last.pt: name one, such as out/crate_shapes/last.pt' in said
    said = fails(capsys, main, *more, '--ckpt=out/mine/last.pt')
    assert '--out_dir=out/mine' in said and said.endswith('runs in out: out/a, out/b, out/crate_shapes')
    said = fails(capsys, main, *more, '--ckpt=out')
    assert said.endswith('out holds the runs out/a, out/b, out/crate_shapes: name one')


def test_missing_pictures(picture_run, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for main, more in ((sample.main, []), (analyze.main, ['attention'])):
        said = fails(capsys, main, *more, f'--ckpt={picture_run}', '--image=data/shapes')
        assert said.endswith('no data in data/shapes; run: python prepare/shapes.py')
        assert 'cat.jpg cannot be read' in fails(capsys, main, *more, f'--ckpt={picture_run}', '--image=cat.jpg')


def test_a_missing_dataset(text_run, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for words, script in ((['--dataset=imagenet21k', '--model=crate'], 'imagenet.py --out data/imagenet21k'),
                          (['--dataset=cifar10', '--model=crate'], 'cifar10.py'),
                          (['--dataset=wikitext'], 'wikitext.py')):
        assert fails(capsys, train.main, *words).endswith(f'run: python prepare/{script}')
    score = [f'--ckpt={text_run}', '--data_dir=elsewhere']
    assert fails(capsys, eval.main, *score, '--dataset=stdlib').endswith(
        'no data in elsewhere/stdlib; run: python prepare/stdlib.py --out elsewhere/stdlib')
    for name in ('lib', 'text', '__init__', 'nothing'):  # in prepare/, but no dataset
        assert f'prepared are none; for your own: python prepare/text.py FILES --out elsewhere/{name}' in \
            fails(capsys, eval.main, *score, f'--dataset={name}')
    assert not list(tmp_path.iterdir())
