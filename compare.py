"""Runs side by side: training and validation loss over steps, over data seen, and over time.

    python compare.py out/aot_owt out/aot_mhsa_owt out/gpt2_owt            # writes compare.png (AoT's Figure 5)
    python compare.py out/* --out=all.png --overwrite=true --log=true

Also printed: where each run ended, and its best validation loss.
"""
import sys
from dataclasses import dataclass
from pathlib import Path

import engine  # before torch
from engine import plots, settings
from engine.checkpoint import read_log
from engine.settings import Mistake
from engine.trained import read_config


@dataclass
class CompareConfig:
    out: str = 'compare.png'     # the picture to write; compare.png is replaced if it exists
    overwrite: bool = False      # replace another file if it exists
    log: bool = False            # logarithmic horizontal axes: the early part of a run takes more room
    top: float = 0.0             # where the axis of losses ends; 0 shows all


MEASURES = 'bits_per_byte', 'top1', 'relative_loss'  # columns of a log beside its loss; they tell the tasks apart
AXES = {'step': 'steps', 'seen': 'tokens or pictures seen', 'seconds': 'seconds of training'}


def read_run(folder):
    """({split: [{'step', 'seen', 'seconds', 'loss'}, ..]}, what was learned) from a run's log.jsonl
    and config.json. Raises Mistake if one is missing."""
    rows, dataset = read_log(folder), read_config(folder)['settings']['dataset']
    if not any(row['split'] == 'val' for row in rows):
        raise Mistake(f'{folder} has no validation loss yet; leave it out, or wait for its first one')
    measures = ['loss', *(name for name in MEASURES if any(name in row for row in rows))]
    points = {split: [row for row in rows if row['split'] == split] for split in ('train', 'val')}
    return points, f'{dataset} ({", ".join(measures)})'


def draw(runs, c):
    """Write the picture of runs {folder: what read_run returns}."""
    names = plots.told_apart({folder: Path(folder).resolve().name for folder in runs})
    size = 13, 7 + 0.25 * -(-len(runs) // 4)                            # four names in a row of the legend
    figure, axes = plots.pyplot().subplots(2, 3, figsize=size, sharey=True, sharex='col', layout='constrained')
    for row, (split, name) in zip(axes, (('train', 'training loss'), ('val', 'validation loss'))):
        for axis, (k, label) in zip(row, AXES.items()):
            for i, (folder, points) in enumerate(runs.items()):
                axis.plot([p[k] for p in points[split]], [p['loss'] for p in points[split]], label=names[folder],
                          linewidth=1, marker='.' if split == 'val' else None,
                          linestyle=('-', '--', ':')[i // len(plots.COLOURS) % 3])
            if c.log:
                axis.set_xscale('symlog', linthresh=1)
            if split == 'val':
                axis.set_xlabel(label)
        row[0].set_ylabel(name)
    plots.plain_numbers(*axes.flat)
    if c.top:
        axes[0, 0].set_ylim(top=c.top)
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc='outside lower center', ncols=4)
    plots.save_picture(c.out, figure, '--out')


def main(argv):
    if '--help' in argv or '-h' in argv:
        return print(settings.help_text(__doc__, CompareConfig))
    folders, typed = settings.split(argv)
    c = CompareConfig(**settings.check(typed, CompareConfig))
    if not folders:
        raise Mistake('name the directories of runs to compare, such as: python compare.py out/mssa out/gpt2')
    settings.check_ranges(c, {(0, 1e30): ('top',)})
    plots.check_figure(c.out, c.overwrite or c.out == CompareConfig.out, '--out', table=False)
    runs, learned = {}, {}
    for folder in folders:
        runs[folder], learned[folder] = read_run(folder)
    if len(set(learned.values())) > 1:
        print('careful: these runs learn different things, so their losses do not compare: '
              + '; '.join(f'{folder} {what}' for folder, what in learned.items()))
    width = max(map(len, runs))
    for folder, points in runs.items():
        last, best = points['val'][-1], min(points['val'], key=lambda point: point['loss'])
        print(f'{folder:<{width}}  validation loss {last["loss"]:.4f} at step {last["step"]:.0f}, {last["seen"]:.3g} '
              f'seen, {last["seconds"]:.0f} s; best {best["loss"]:.4f} at step {best["step"]:.0f}')
    draw(runs, c)
    print(f'{c.out}: {len(runs)} run{"s" * (len(runs) > 1)}')


if __name__ == '__main__':
    with settings.one_line_errors():
        main(sys.argv[1:])
