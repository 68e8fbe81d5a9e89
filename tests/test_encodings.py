"""Files are read and written alike on every system, whatever its code page."""
import pytest
from helpers import ROOT, run_anew
from small_files import jpeg, tree

TEXT = 'naïve 日本 – ünd\n' * 200
SMALL = '--n_layer=1 --n_head=2 --n_embd=8 --batch_size=2 --max_iters=2 --eval_iters=1'
# an ASCII code page, as some servers and containers have; and a warning where a file is opened without an encoding
HOSTILE = dict(LC_ALL='C', PYTHONCOERCECLOCALE='0', PYTHONUTF8='0', PYTHONWARNDEFAULTENCODING='1')


@pytest.mark.slow
def test_files_are_utf8_with_one_kind_of_line_end_everywhere(tmp_path):
    (tmp_path / 'ünd.txt').write_text(TEXT, encoding='utf-8')
    folders = 'train/größe', 'train/b', 'val/größe', 'val/b'
    tree(tmp_path / 'photos', {f'{folder}/ü.jpg': jpeg() for folder in folders})
    commands = [
        'prepare/text.py ünd.txt --tokenizer chars --out data/mine',
        f'train.py --dataset=mine {SMALL} --block_size=8 --out_dir=out/größe',
        'train.py --init_from=resume --out_dir=out/größe --max_iters=4',
        'sample.py --ckpt=out/größe --start=FILE:ünd.txt --max_new_tokens=9',
        'eval.py --ckpt=out/größe',
        'analyze.py curves out/größe --out=größe.png',
        'analyze.py layers --ckpt=out/größe --num_samples=2 --out=ü.png',
        'prepare/imagefolder.py photos --out data/größe --size 16 --workers 0',
        'train.py --model=crate --dataset=größe --image_size=8 --patch_size=4 --out_dir=out/pictures '
        + SMALL,
        'sample.py --ckpt=out/pictures --image=photos/val/größe',
    ]
    done = run_anew([command.split() for command in commands], tmp_path, **HOSTILE)

    assert not [line for line in done.stderr.splitlines() if 'EncodingWarning' in line and str(ROOT) in line]
    assert 'gr\\udcc3' in done.stdout.splitlines()[-1]  # an ASCII pipe gets escapes instead of an error
    for path in tmp_path.rglob('*'):
        if path.suffix in ('.json', '.jsonl', '.csv'):
            assert b'\r' not in path.read_bytes() and path.read_text(encoding='utf-8')
