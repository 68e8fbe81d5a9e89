"""prepare/crate_alpha_weights.py: the authors' file becomes a run that names pictures, is looked into and
fine-tuned."""
import re

import pytest
import torch
from helpers import JPEGS, fails, go

import analyze
import sample
from engine.trained import open_run
from model_crate_alpha import CRATEAlpha, CRATEAlphaConfig
from prepare import crate_alpha_weights
from tasks import imagenet


def official(path, **settings):
    torch.manual_seed(0)
    model = CRATEAlpha(CRATEAlphaConfig(**dict(n_layer=2, n_head=12, n_embd=24) | settings))
    torch.save({'model': model.to_official()}, path)
    return model


def test_names_of_imagenet():
    """Some that one knows, in the order in which classifiers of ImageNet count them."""
    names = imagenet.names()
    assert len(names) == len(set(names.values())) == 1000 and list(names) == sorted(names)
    known = {0: 'tench', 1: 'goldfish', 9: 'ostrich', 207: 'golden retriever', 281: 'tabby', 388: 'giant panda',
             417: 'balloon', 701: 'parachute', 954: 'banana', 999: 'toilet tissue'}
    assert {i: list(names.values())[i] for i in known} == known
    assert imagenet.readable('n02123045') == 'tabby' and imagenet.readable('n99999999') == 'n99999999'
    assert imagenet.readable('a class') == 'a class' and all(re.fullmatch(r'n\d{8}', wnid) for wnid in names)


def test_the_weights_become_a_run(tmp_path, pictures_data, capsys):
    model = official(tmp_path / 'w.pth')
    words = '--from', f'{tmp_path}/w.pth', '--out_dir', f'{tmp_path}/alpha'
    crate_alpha_weights.main([*words])
    assert f'{model.num_params():,} parameters' in capsys.readouterr().out
    assert 'already holds a run' in fails(capsys, crate_alpha_weights.main, *words)
    run = open_run(tmp_path / 'alpha')
    assert all(torch.equal(run['weights'][k], v) for k, v in model.state_dict().items())
    (tmp_path / 'cat.jpg').write_bytes(JPEGS['train'][0][2])
    sample.main([f'--ckpt={tmp_path}/alpha', f'--image={tmp_path}/cat.jpg'])
    named = re.findall(r'([^,:\n]+) [\d.]+%', capsys.readouterr().out)
    assert len(named) == 5 and {n.strip() for n in named} <= set(imagenet.names().values())
    for command in ('layers', 'attention'):
        analyze.main([command, f'--ckpt={tmp_path}/alpha', f'--image={tmp_path}/cat.jpg', f'--out={tmp_path}/x.png',
                      '--overwrite=true'])
    go(f'--init_from={tmp_path}/alpha', f'--data_dir={pictures_data}', '--dataset=quads', '--new_head=true',
       '--image_size=32', '--batch_size=4', '--max_iters=2', '--eval_iters=1', f'--out_dir={tmp_path}/tuned')
    assert open_run(tmp_path / 'tuned')['data']['classes'] == list('abcd')


@pytest.mark.parametrize('settings, size, message', [
    (dict(patch_size=14, n_head=16, n_embd=32), 'B16', 'do not fit CRATEAlpha with n_head=12'),
    (dict(num_classes=10), 'B16', '(10, 24), expected (1000, 24)'), (dict(), 'L14', 'with n_head=16')])
def test_other_files_are_refused(settings, size, message, tmp_path, capsys):
    official(tmp_path / 'w.pth', **settings)
    told = fails(capsys, crate_alpha_weights.main, '--from', f'{tmp_path}/w.pth', '--size', size, '--out_dir',
                 f'{tmp_path}/alpha')
    assert message in told and not (tmp_path / 'alpha').exists()
