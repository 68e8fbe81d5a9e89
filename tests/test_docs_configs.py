"""docs/configs.md is what its command prints, and its rows are those of the runs in config/."""
import re

import pytest
from helpers import ROOT
from test_configs import FILES, header

from docs import configs

PAGE = (ROOT / 'docs' / 'configs.md').read_text(encoding='utf-8')
ROWS = {re.search(r'\w+', row)[0]: row.strip('| ').split(' | ') for row in PAGE.splitlines() if row.startswith('| [')}


@pytest.mark.slow
def test_the_page_is_what_its_command_prints(capsys):
    configs.main()
    assert PAGE == capsys.readouterr().out, 'type: python -m docs.configs > docs/configs.md'


def test_each_config_has_one_row():
    assert list(ROWS) == [name for on_cpu in (True, False) for name in FILES if ('2 CPU cores' in header(name)) == on_cpu]


@pytest.mark.parametrize('name, network, data, size', [
    ('train_crate_imagenet', 'crate', 'imagenet', '22.80M'),  # the paper's Table 1
    ('train_tost_owt', 'tost', 'openwebtext', '110.38M'),     # the README of the authors' code
    ('train_vit_dino_shapes', 'dino, vit', 'shapes', '0.41M'),
    ('finetune_crate', 'crate', 'cifar10', 'as `out/crate_imagenet`'),
    ('pretrain_aot_imagenet21k', 'aot, mssa', 'imagenet21k', '')])
def test_a_row_names_network_data_and_size(name, network, data, size):
    assert ROWS[name][1:4] == [network, data, size]
