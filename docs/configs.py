"""Writes docs/configs.md, the table of all runs, from the headers of the files in config/.

    python -m docs.configs > docs/configs.md

This script stands beside the page that it writes, and not in config/, because other programs take
each file there for a run. Networks are built without numbers, on PyTorch's meta device.
"""
import re
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from engine import HERE, networks, settings
from engine.mistakes import one_line_errors
from prepare.lib.inputs import Help, Parser
from request import start
from request.build import config_for
from tasks import AugmentConfig
from train import TrainConfig

SMALL_PICTURES = {'kind': 'images', 'splits': {'train': {'height': 32, 'width': 32}},
                  'classes': range(10)}
METAS = {  # what meta.json of a dataset says; ImageNet-21K has several versions, so it is left out
    'stdlib': {'kind': 'text', 'vocab_size': 256},
    'shakespeare_char': {'kind': 'text', 'vocab_size': 65},
    'openwebtext': {'kind': 'text', 'vocab_size': 50257},
    'linear': {'kind': 'functions'},
    'shapes': SMALL_PICTURES,
    'cifar10': SMALL_PICTURES,
    'imagenet': {'kind': 'images', 'splits': {'train': {}}, 'classes': range(1000)},
}
BEGINNING = """# Every run

Each row is one run: its file in `config/`, its network, its data, its number of parameters, and the
time or the hardware that it takes. To start a run, type its file behind `python train.py`:

```sh
python train.py config/train_crate_shapes.py
python train.py config/train_crate_shapes.py --n_layer=3 --out_dir=out/three   # a smaller one
```

* The network `crate` is the file `model_crate.py`. GPT-2 is `aot, mhsa, mlp`.
* The data `cifar10` come from `prepare/cifar10.py`. The data `stdlib`, `shapes` and `linear` need
  no download.
* The first lines of a config file have its commands, in order, and the result to expect.
* The number of parameters of `dino` includes outputs that only training needs.
* On a processor with AVX2 alone, beside other work, three of these runs took about three to four
  times as long (`results/atoms_runs.csv`).
* `python -m docs.configs > docs/configs.md` makes this page from the config files."""
ON_CPU = """
## On two CPU cores

| file | network | data | parameters | minutes |
|---|---|---|---|---|"""
ON_GPU = """
## On GPUs

No run in this table has been started here. The results to expect are those of papers.

| file | network | data | parameters | hardware |
|---|---|---|---|---|"""


def field(header, name):
    """The text behind `hardware` or `minutes` in a header. Its lines are indented by 12 columns and
    become one."""
    text = re.search(rf'^# {name} +(.*(?:\n# {{12,}}.*)*)', header, re.M)[1]
    return re.sub(r'\n# {12}', ' ', text)


def parameters(path, values):
    """How many a network has, such as 0.69M. Where it starts from a trained one, the name of that
    run; '' if the number of classes of its dataset is not known."""
    if 'init_from' in values:
        return f'as `{values["init_from"]}`'
    if values['dataset'] not in METAS:
        return ''
    request = start.read([str(path)], {}, TrainConfig, AugmentConfig)
    Network = networks.network_class(values['model'])
    config = config_for(values['model'], request.network, METAS[values['dataset']])
    with torch.device('meta'):
        count = networks.num_params(Network(config))
    return f'{count / 1e6:.2f}M'


def row(path, header, resource):
    values = settings.read_file(str(path))
    network = [values[name] for name in ('model', 'backbone', 'attn') if name in values]
    if values.get('mlp'):
        network.append('mlp')
    file = f'[{path.stem}](../config/{path.name})'
    cells = [file, ', '.join(network), values['dataset'], parameters(path, values),
             field(header, resource).partition('; with fewer')[0]]
    return f'| {" | ".join(cells)} |'


def main():
    on_cpu = []
    on_gpu = []
    for path in sorted((HERE / 'config').glob('[!_]*.py')):
        header = re.match(r'(#.*\n)+', path.read_text(encoding='utf-8'))[0]
        if 'CPU' in field(header, 'hardware'):
            on_cpu.append(row(path, header, 'minutes'))
        else:
            on_gpu.append(row(path, header, 'hardware'))
    print('\n'.join([BEGINNING, ON_CPU, *on_cpu, ON_GPU, *on_gpu]))


if __name__ == '__main__':
    with one_line_errors():
        Parser(description=__doc__, formatter_class=Help).parse_args()
        main()
