"""What a training run tells the one who watches it: what is trained on what, how long it takes, and
what to type when it has ended."""
from pathlib import Path

import torch

from engine.checkpoints import size
from engine.output import quoted
from engine.run import lasting
from engine.rundir import held_in

LOOK = {'text': 'sample.py --ckpt={}', 'masked_text': 'sample.py --ckpt={} --start="def [MASK]ain():"',
        'image': 'sample.py --ckpt={} --image=PICTURE', 'masked_image': 'sample.py --ckpt={} --image=PICTURE',
        'views': 'analyze.py attention --ckpt={}', 'icl': 'analyze.py layers --ckpt={}'}  # the second command, by task


def opening(run, recipe=''):
    """The first lines of a run. recipe: the file that its settings come from, where none was named."""
    c, task, here = run.c, run.task, run.machine
    rows = f'{task.batch} x {task.size}' if task.size > 1 else f'{task.batch}'
    data, passes = f'{c.dataset} functions', ''
    if run.data['kind'] != 'functions':
        data = Path(c.data_dir) / c.dataset
        passes = f', {c.max_iters * task.batch / len(task.train):.3g} passes over the data'
    begun = f'goes on at step {run.step:,} of ' * bool(run.step)
    n = torch.get_num_threads()
    threads = f' with {n} thread{"s" * (n > 1)}' * (here.kind == 'cpu')
    taken = f'settings of {recipe}\n' * bool(recipe)
    mfu = f'; mfu is the share of {run.peak / 1e12:.0f} TFLOP/s, the speed of a plain matrix product' * bool(run.flops)
    return (f'{taken}{c.model}: {size(run.model) / 1e6:.2f}M parameters; learns {data}, writes to {c.out_dir}\n'
            f'{begun}{c.max_iters:,} steps of {rows} {task.unit}{passes}; a validation every {c.eval_interval:,} '
            'steps\n'
            f'on {here.kind} x {here.world}{threads}, {str(here.dtype)[6:]}, '
            f'{"compiled" if here.compiled else "not compiled"}{mfu}')


def ending(run):
    """The last lines of a run."""
    folder, task = run.c.out_dir, run.model.config.task
    place = quoted(folder)
    place += f' --data_dir={quoted(run.c.data_dir)}' * (run.c.data_dir != type(run.c).data_dir)
    return (f'done: {run.step:,} steps, {lasting(run.seconds)} of training; {folder} holds '
            f'{", ".join(held_in(folder))}\n'
            f'now try: python eval.py --ckpt={place}{" --knn=20" * (task == "views")}\n'
            f'         python {LOOK[task].format(place if "analyze" in LOOK[task] else quoted(folder))}')


def nothing_left(run):
    """Of a run that has ended, when it is to be resumed."""
    c = run.c
    return (f'{c.out_dir} has done its {c.max_iters:,} steps: nothing left to do. To train longer: python train.py '
            f'--init_from=resume --out_dir={quoted(c.out_dir)} --max_iters={2 * c.max_iters}')
