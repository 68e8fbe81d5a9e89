"""Settings and fixtures of all tests; functions that tests call by name are in helpers.py."""
import os

import pytest
import torch
from helpers import ROOT, TEXT, WORDS, fails, golden, losses, loud, memorize, run, same_in_chunks  # noqa: F401 until no test imports conftest

from tasks import files
from tasks.tokenizer import Tokenizer

os.environ['OMP_NUM_THREADS'] = '1'  # child processes beside each other must not fight for cores
torch.set_num_threads(1)


@pytest.fixture(scope='session')
def bytes_data(tmp_path_factory):
    """A data_dir that holds one small dataset, `tiny`, as bytes."""
    folder = tmp_path_factory.mktemp('data')
    tokenizer = Tokenizer('bytes')
    files.save_text(folder / 'tiny', tokenizer, *files.split_text(TEXT, tokenizer))
    return folder


@pytest.fixture(scope='session')
def tiny(bytes_data):
    """Command-line words for a run that takes a second."""
    return [f'--data_dir={bytes_data}', '--dataset=tiny', '--n_layer=2', '--n_head=2', '--n_embd=16', '--block_size=16',
            '--batch_size=4', '--max_iters=6', '--eval_interval=3', '--eval_iters=2', '--log_interval=1', '--warmup_iters=2']
