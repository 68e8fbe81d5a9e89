"""The pictures of assets/, drawn again: `assets`, a command of analyze.py.

COMMANDS lists the pictures, and the command that draws each. The runs of networks lie in one
folder, by default trained/. The run out/crate_tied does not come with the project, and
docs/look_inside.md has its command. If a command fails, for example because a run is missing, its
picture stays as it is, and `assets` prints the command and its error message.
"""
import shlex
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from analysis import figures
from engine import HERE
from engine.mistakes import Mistake
from engine.settings import check, collect

# {name: the command that draws it, without --out}; RUNS is the folder of trained runs
COMMANDS = {
    # the theory alone
    'compress.png': 'analyze.py compress',
    'denoise.png': 'analyze.py denoise',
    'ista.png': 'analyze.py ista',
    'layer.svg': 'analyze.py diagram',
    'nearest.png': 'analyze.py nearest',
    'tweedie.png': 'analyze.py tweedie',
    # networks on drawn shapes
    'atoms.png': 'analyze.py atoms --ckpt=RUNS/crate_shapes',
    'atoms_photographs.png': 'analyze.py atoms --ckpt=RUNS/crate_cifar10 --layer=6 '
                             '--num_samples=2000',
    'attention.png': 'analyze.py attention --ckpt=RUNS/crate_shapes --num_samples=2',
    'compress_trained.png': 'analyze.py compress --ckpt=RUNS/crate_shapes --beside=out/crate_tied',
    'crate_mae_shapes.png': 'sample.py --ckpt=RUNS/crate_mae_shapes --image=data/shapes '
                            '--num_samples=3',
    'crate_shapes.html': 'analyze.py page --ckpt=RUNS/crate_shapes',
    'denoise_trained.png': 'analyze.py denoise --ckpt=RUNS/crate_shapes --beside=out/crate_tied',
    'layers.png': 'analyze.py layers --ckpt=RUNS/crate_shapes --beside=RUNS/vit_shapes',
    'objects_many.png': 'analyze.py objects --ckpt=RUNS/crate_shapes '
                        '--beside=RUNS/crate_mae_shapes,RUNS/vit_shapes --dataset=shapes_many '
                        '--num_samples=4',
    'pca.png': 'analyze.py pca --ckpt=RUNS/crate_shapes --label=ring',
    'subspaces.png': 'analyze.py subspaces --ckpt=RUNS/crate_shapes',
    'tokens.png': 'analyze.py tokens --ckpt=RUNS/crate_shapes',
    # networks of text
    'attention_text.png': 'analyze.py attention --ckpt=RUNS/aot_stdlib '
                          '--start="def __init__(self):" --heads=1,2,3,4',
}
# {name: how it was made} of pictures that no command with --out draws
NOT_DRAWN = {
    'cat.jpg': 'a program drew it, and it is an input of other commands',
    'slide_attention.png': 'a picture of course/tour.ipynb',
    'slide_compress.png': 'a picture of course/tour.ipynb',
    'slide_sparsify.png': 'a picture of course/tour.ipynb',
    'page.png': 'the page of trained/crate_shapes in a browser, 1280 x 900, behind the first '
                'layer, with the third picture and one of its patches pointed at',
    'curve.png': 'curve.png of the run of: python train.py config/train_crate_shapes.py '
                 '--out_dir=out/crate_watched --telemetry=true --keep_checkpoints=true',
    'cifar10.png': 'curves.png of the comparison of CIFAR-10 in docs/results.md',
    'in_context.png': 'python eval.py --ckpt=out/aot_linear --beside=out/aot_mhsa_linear,'
                      'out/gpt2_linear --results=in_context.csv',
    'objective_loss.png': 'made of results/objective.tsv',
}
for lesson in range(1, 9):
    NOT_DRAWN[f'lesson{lesson}.png'] = f'python course/pictures.py {lesson}'


@dataclass
class AssetsConfig:
    runs: str = 'trained'        # folder of the runs: crate_shapes, vit_shapes, crate_mae_shapes ..
    out: str = 'assets'          # folder of the pictures
    overwrite: bool = False      # replace pictures that exist


def main(words):
    """Draw all pictures of COMMANDS that can be drawn, and say why others stay as they are."""
    c = AssetsConfig(**check(collect(words), AssetsConfig))
    if not Path(c.out).is_dir():
        raise Mistake(f'{c.out} is no folder; give another --out')
    for name in COMMANDS:  # before any work
        figures.check_free(Path(c.out) / name, c.overwrite, endings=[Path(name).suffix])

    for name, command in COMMANDS.items():
        words_of_command = shlex.split(command.replace('RUNS', c.runs))
        typed = f'python {shlex.join(words_of_command)}'
        problem = draw(Path(c.out) / name, words_of_command)
        if problem:
            print(f'{name} stays: {typed} ended with: {problem}', flush=True)
        else:
            print(f'{name}: {typed}', flush=True)
    for name, origin in NOT_DRAWN.items():
        print(f'{name} stays: {origin}')


def draw(picture, words):
    """Run the command that draws a picture, in a new process, as if somebody typed it. The picture
    alone is copied to its place, not the table that the command writes beside it. Returns the error
    message of the command, '' if there is none."""
    script, *settings = words
    with tempfile.TemporaryDirectory() as folder:
        new_picture = Path(folder) / picture.name
        command = [sys.executable, str(HERE / script), *settings, f'--out={new_picture}']
        process = subprocess.run(command, capture_output=True, text=True)
        if process.returncode == 0:
            shutil.copy(new_picture, picture)
            return ''
        return process.stderr.strip()
