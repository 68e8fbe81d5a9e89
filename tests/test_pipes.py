"""What is no file, such as a named pipe, is refused in one line wherever a user may name it: to open it would wait."""
import os
import shutil

import pytest
from helpers import ROOT, run
from small_files import jpeg, tree


@pytest.mark.parametrize('line', [
    'sample.py --ckpt=trained/crate_shapes --image={}/pipe.jpg',
    'prepare/arrays.py --images {}/pipe.jpg --labels {}/pipe.jpg --out {}/a',
    'prepare/arrays.py --npz {}/pipe.jpg --out {}/a',
    'prepare/pairs.py {}/pipe.jpg --out {}/a',
    'prepare/text.py {}/pipe.jpg --out {}/a',
    'eval.py --ckpt={}',
    'train.py --dataset=tiny --data_dir={} --out_dir={}/a',
])
def test_a_pipe_is_one_line(line, bytes_data, tmp_path):
    shutil.copytree(bytes_data / 'tiny', tmp_path / 'tiny')
    (tmp_path / 'tiny' / 'train.npy').unlink()
    for name in ('pipe.jpg', 'config.json', 'tiny/train.npy'):
        os.mkfifo(tmp_path / name)
    done = run(*[word.format(tmp_path) for word in line.split()], cwd=ROOT)
    assert done.returncode == 2 and done.stderr.count('error: ') == 1 and 'Traceback' not in done.stderr, done.stderr
    assert not (tmp_path / 'a').exists()


@pytest.mark.skipif(not os.path.exists('/dev/zero'), reason='the system has no file without an end')
@pytest.mark.parametrize('target', ['pipe', '/dev/zero'])
def test_what_is_no_file_in_a_folder_of_pictures_is_left_out_or_named(target, tmp_path):
    tree(tmp_path, {f'photos/cats/{i}.jpg': jpeg() for i in range(4)})
    os.mkfifo(tmp_path / 'pipe')
    (tmp_path / 'photos' / 'cats' / 'pipe.jpg').symlink_to(tmp_path / target)
    done = run('prepare/imagefolder.py', tmp_path / 'photos', '--out', tmp_path / 'a', cwd=ROOT)
    assert 'pipe.jpg' in done.stdout + done.stderr and 'Traceback' not in done.stderr
