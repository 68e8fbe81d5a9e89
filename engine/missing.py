"""What to type where a checkpoint or a dataset is not there."""
from pathlib import Path

from engine.settings import HERE

TOOLS = 'text', 'imagefolder', 'arrays', 'gpt2_weights', 'crate_alpha_weights'  # for data of your own, and weights


def checkpoint(path):
    """The line for a checkpoint that does not exist: how to make it, and which runs there are."""
    path = Path(path)
    folder = path.parent if path.suffix == '.pt' else path
    held = sorted(p.name for p in folder.glob('*.pt'))
    if not held and (folder / 'model.safetensors').exists():
        return (f'no checkpoint {path}; {folder} was exported and holds weights alone, so it cannot be resumed: start '
                f'from them with train.py --init_from={folder} --out_dir=ANOTHER')
    if held:
        resume = '; to go on from it: train.py --init_from=resume_best' * (path.name == 'last.pt' and 'best.pt' in held)
        return f'no checkpoint {path}; {folder} holds {", ".join(held)}: name one, such as {folder / held[0]}{resume}'
    inside = sorted({str(p.parent) for p in folder.glob('*/*.pt')})
    if inside:
        return f'no checkpoint {path}; {folder} holds the runs {", ".join(inside[:12])}: name one'
    runs = sorted({str(p.parent) for p in folder.parent.glob('*/*.pt')})
    there = f'runs in {folder.parent}: {", ".join(runs[:12])}{" .." * (len(runs) > 12)}' if runs else \
        f'there is no run in {folder.parent} yet'
    return (f'no checkpoint {path}; train it, with a file of config/ for CONFIG: python train.py CONFIG '
            f'--out_dir={folder}; {there}')


def script_of(folder):
    """The script in prepare/ that writes a dataset of this name, or None."""
    name = Path(folder).name
    script = HERE / 'prepare' / f'{"imagenet" if name == "imagenet21k" else name}.py'
    return script if script.exists() and script.stem not in (*TOOLS, '__init__') else None


def dataset(folder):
    """The line for a dataset that does not exist: the script that prepares it, or which datasets
    there are."""
    folder, script = Path(folder), script_of(folder)
    if script:
        out = f' --out {folder}' * (folder.as_posix() != f'data/{script.stem}')
        return f'no data in {folder}; run: python prepare/{script.name}{out}'
    known = sorted(p.parent.name for p in folder.parent.glob('*/meta.json'))
    return (f'no data in {folder}; prepared are {", ".join(known) or "none"}; for your own: python prepare/text.py '
            f'FILES --out {folder}, or python prepare/imagefolder.py FOLDER --out {folder}')
