"""Files and folders that the user may not read or write: one line, whichever program it is, and nothing is left.
Also where Python leaves asserts out."""
import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
from helpers import ROOT, edited
from small_files import jpeg, npy, tree

pytestmark = [pytest.mark.slow,
              pytest.mark.skipif(os.name != 'posix', reason='rights are those of POSIX'),
              pytest.mark.skipif(os.geteuid() == 0 and not shutil.which('setpriv'),
                                 reason='needs setpriv, or another user than root')]
# what is closed; then words that name it, or a file in it
CLOSED = {
    'run': ['sample.py --ckpt=run', 'train.py --init_from=resume --out_dir=run',
            'analyze.py curves run'],
    'run/config.json': ['sample.py --ckpt=run'],
    'run/best.safetensors': ['eval.py --ckpt=run --data_dir=data'],
    'run/last.pt': ['train.py --init_from=resume --out_dir=run'],
    'run/log.jsonl': ['train.py --init_from=resume --out_dir=run', 'analyze.py curves run'],
    'data': ['eval.py --ckpt=run --data_dir=data',
             'train.py --dataset=tiny --data_dir=data --out_dir=new'],
    'data/tiny/val.npy': ['eval.py --ckpt=run --data_dir=data'],
    'data/tiny/meta.json': ['eval.py --ckpt=run --data_dir=data'],
    't.txt': ['prepare/text.py t.txt --out new', 'sample.py --ckpt=run --start=FILE:t.txt',
              'prepare/pairs.py t.txt --out new', 'prepare/gpt2_weights.py --from t.txt --out_dir new'],
    'x.npy': ['prepare/arrays.py --images x.npy --labels x.npy --out new'],
    'photos/b': ['prepare/imagefolder.py photos --out new'],
    'c.py': ['train.py c.py --out_dir=new'],
    'shut': ['train.py --dataset=tiny --data_dir=data --out_dir=shut/new',
             'prepare/text.py t.txt --out shut/new', 'analyze.py curves run --out=shut/c.png',
             'sample.py --ckpt=shut/run', 'sample.py --ckpt=pictures --image=photos --out=shut/g.png',
             'eval.py --ckpt=pictures --data_dir=data --confusion=shut/c.png'],
}
TRY_ALL = """
import importlib, json, os, sys
from pathlib import Path
from test_command_lines import outcome
for closed, line in json.loads(sys.argv[1]):
    program, *words = line.split()
    main = importlib.import_module(program.removesuffix('.py').replace('/', '.')).main
    rights = os.stat(closed).st_mode
    os.chmod(closed, 0)
    code, said = outcome(main, words, Path('none'))
    os.chmod(closed, rights)
    print(json.dumps([closed, line, code, said]), flush=True)
"""


def try_all(cases, cwd, *option):
    """Run commands in one Python, each while a file is closed to all, without the right of root to read everything.
    cases: [(closed file, command)]. Fails unless each is refused. Returns [(closed file, what is said)]."""
    (cwd / 'none').mkdir()
    words = [sys.executable, *option, '-c', TRY_ALL, json.dumps(cases)]
    if os.geteuid() == 0:
        words = ['setpriv', '--bounding-set', '-dac_override,-dac_read_search', *words]
    path = os.pathsep.join(str(ROOT / name) for name in ('.', 'prepare', 'tests', 'tests/prepare'))
    done = subprocess.run(words, cwd=cwd, capture_output=True, text=True, timeout=300,
                          env=os.environ | {'PYTHONPATH': path})
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(rows) == len(cases)
    for closed, line, code, said in rows:
        assert code == 'refused', (closed, line, code)
    return [(closed, said) for closed, _, _, said in rows]


def test_what_may_not_be_read_or_written_is_one_line(text_run, picture_run, bytes_data, pictures_data, tmp_path):
    for source, copy in ((text_run, 'run'), (picture_run, 'pictures'), (bytes_data / 'tiny', 'data/tiny'),
                         (pictures_data / 'quads', 'data/quads')):
        shutil.copytree(source, tmp_path / copy)
    with edited(tmp_path / 'run' / 'config.json') as config:
        config['settings']['data_dir'] = 'data'
    tree(tmp_path / 'photos', {f'{c}/{i}.jpg': jpeg(8, 8) for c in 'ab' for i in range(3)})
    tree(tmp_path, {'t.txt': b'words ' * 99, 'c.py': b'max_iters = 1\n', 'shut/run/config.json': b'{}',
                    'x.npy': npy(np.zeros((4, 8, 8), np.uint8))})

    cases = [(closed, line) for closed, lines in CLOSED.items() for line in lines]
    for closed, said in try_all(cases, tmp_path):
        assert 'ermission denied' in said and closed.split('/')[0] in said, (closed, said)
    assert not (tmp_path / 'new').exists() or not os.listdir(tmp_path / 'new')


def test_checks_of_data_stay_when_python_leaves_asserts_out(text_run, bytes_data, tmp_path):
    shutil.copytree(text_run, tmp_path / 'run')
    for name, change in (('cut', lambda ids: ids[:100]), ('other', lambda ids: ids.astype(np.int64))):
        path = shutil.copytree(bytes_data / 'tiny', tmp_path / 'data' / name) / 'train.npy'
        np.save(path, change(np.load(path)))
    tree(tmp_path, {'floats': b'\0\0\x0d\1\0\0\0\2ab',        # an idx file
                    'x.npy': npy(np.zeros((4, 8, 8), np.uint8)), 'y.npy': npy(np.arange(3)), 'nothing': b''})
    lines = ['prepare/arrays.py --images floats --labels floats --out new',
             'prepare/arrays.py --images x.npy --labels y.npy --out new',
             'eval.py --ckpt=run --data_dir=data --dataset=cut --split=train',
             'train.py --dataset=other --data_dir=data --out_dir=new']
    try_all([('nothing', line) for line in lines], tmp_path, '-O')
    assert not (tmp_path / 'new').exists()
