"""Changes that people make with docs/extend.md: networks, losses, numbers and tasks in files of
their own, for which no other file changes. (The diffs of the page are tried in
test_forks.py.)"""
import csv
import math
import re

import pytest
from helpers import ROOT, column, config_of, fails, go, losses, weights

import analyze
import eval as scores
import sample
import tasks
import train
from engine import networks
from engine.mistakes import Mistake, one_line_errors

PAGE = (ROOT / 'docs' / 'extend.md').read_text(encoding='utf-8')
# the first block of Python under the heading that names model_tiny.py
TINY = re.search(r'^#+ [^\n]*model_tiny\.py.*?^```python\n(.*?)^```', PAGE, re.M | re.S)[1]
# what tests replace in it
CALL = 'z = self.layers(self.embed(x))'
BUILT = 'self.head = nn.Linear(d, config.vocab_size if self.text else config.num_classes)\n'
ANSWER = 'return out, None if y is None else F.cross_entropy(out.flatten(0, -2), y.flatten())'

TRAINING = '''--max_iters=4 --eval_interval=2 --eval_iters=2 --batch_size=4 --log_interval=1
              --optimizer=adamw --dtype=float32 --device=cpu'''.split()
SIZES = ['--n_embd=16', '--block_size=16']
ON_TEXT = ['--dataset=text', *SIZES]
ON_PICTURES = ['--dataset=quads', '--n_embd=16']


def search_in(folder, patch):
    """From now on networks are those of this folder, as if train.py lay there, and tasks too."""
    patch.setattr(networks, 'HERE', folder)
    patch.setattr('engine.advice.HERE', folder)
    patch.setattr(tasks, '__path__', [*tasks.__path__, str(folder)])
    patch.syspath_prepend(folder)


def changed(source, changes):
    for old, new in changes.items():
        assert source.count(old) == 1
        source = source.replace(old, new)
    return source


def with_extras(extras):
    """Changes after which the network returns (out, loss, extras)."""
    loss_line = ANSWER.replace('return out, None', 'loss = None')
    return {ANSWER: f'{loss_line}\n        return out, loss, {extras}'}


@pytest.fixture
def fork(tmp_path, monkeypatch, bytes_data):
    """fork(name, {old: new}) writes model_NAME.py, the network of docs/extend.md with changes.
    Returns the words that train it on text."""
    search_in(tmp_path, monkeypatch)

    def fork(name, changes):
        (tmp_path / f'model_{name}.py').write_text(changed(TINY, changes))
        return [f'--model={name}', f'--data_dir={bytes_data}', '--dataset=tiny',
                *SIZES, *TRAINING, f'--out_dir={tmp_path}/out']
    return fork


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    """For files and runs that several tests look at."""
    folder = tmp_path_factory.mktemp('networks')
    with pytest.MonkeyPatch.context() as patch:
        search_in(folder, patch)
        yield folder


@pytest.fixture(scope='module')
def trained(folder, pictures_data):
    """trained(name, source, words) writes model_NAME.py and trains it for four steps, then,
    resumed, for twenty more. Returns the run directory."""
    def trained(name, source, words):
        out = folder / name
        (folder / f'model_{name}.py').write_text(source)
        go(f'--model={name}', f'--data_dir={pictures_data}', *TRAINING,
           '--learning_rate=1e-2', *words, f'--out_dir={out}')
        go('--init_from=resume', f'--out_dir={out}', '--max_iters=24')
        return out
    return trained


# ---- the network of the page, as it stands

@pytest.fixture(scope='module')
def tiny_runs(trained):
    """{kind of data: a run on it}"""
    return {
        'text': trained('tiny_text', TINY, ON_TEXT),
        'pictures': trained('tiny_pictures', TINY, ON_PICTURES),
    }


@pytest.fixture(params=['text', 'pictures'])
def tiny_run(request, tiny_runs):
    return tiny_runs[request.param]


def test_with_its_file_alone_a_network_learns(tiny_run):
    val_losses = column(tiny_run, 'val')

    assert val_losses[-1] < val_losses[0] - 0.1


def test_the_dataset_sets_the_sizes_of_a_network(tiny_runs):
    of_text = config_of(tiny_runs['text'])
    of_pictures = config_of(tiny_runs['pictures'])

    assert of_text['vocab_size'] == 256
    assert of_pictures['image_size'] == [8, 8]
    assert of_pictures['num_classes'] == 4
    assert of_pictures['channels'] == 3


def test_a_network_of_text_writes_and_is_scored(tiny_runs, pictures_data, capsys):
    checkpoint = f'--ckpt={tiny_runs["text"]}'

    sample.main([checkpoint, '--start=the', '--max_new_tokens=9'])
    scores.main([checkpoint, f'--data_dir={pictures_data}', '--split=val'])

    printed = capsys.readouterr().out
    assert 'bits per byte' in printed
    assert 'top-1' not in printed


def test_a_network_of_pictures_names_classes_and_is_scored(tiny_runs, pictures_data, capsys):
    checkpoint = f'--ckpt={tiny_runs["pictures"]}'

    sample.main([checkpoint, f'--image={pictures_data}/quads'])
    scores.main([checkpoint, f'--data_dir={pictures_data}', '--split=val'])

    printed = capsys.readouterr().out
    assert 'top-1' in printed
    assert 'bits per byte' not in printed


def test_analyze_measures_and_draws_each_layer(tiny_run, pictures_data, tmp_path):
    analyze.main(['layers', f'--ckpt={tiny_run}', f'--data_dir={pictures_data}',
                  f'--out={tmp_path}/x.png'])

    rows = csv.DictReader((tmp_path / 'x.csv').read_text().splitlines())
    assert len({row['layer'] for row in rows}) == 2
    assert (tmp_path / 'x.png').stat().st_size > 5000


def test_a_page_of_another_network_than_ours_is_refused(tiny_run, pictures_data, capsys):
    error = fails(capsys, analyze.main, 'page', f'--ckpt={tiny_run}',
                  f'--data_dir={pictures_data}', '--out=none.html')

    assert f'model={tiny_run.name}' in error


def test_data_that_a_network_does_not_read_are_refused(tiny_run, capsys):
    model = f'model={tiny_run.name}'

    error = fails(capsys, train.main, f'--{model}', '--dataset=linear', '--out_dir=none')

    assert model in error


def test_a_network_without_features_is_not_probed(tiny_runs, pictures_data, capsys):
    fails(capsys, scores.main, f'--ckpt={tiny_runs["pictures"]}', f'--data_dir={pictures_data}',
          '--probe=true')


def test_a_new_head_needs_a_module_read_head(tiny_runs, pictures_data, capsys):
    error = fails(capsys, train.main, f'--init_from={tiny_runs["pictures"]}',
                  f'--data_dir={pictures_data}', '--new_head=true', '--out_dir=none')

    assert 'read.head' in error


# ---- other networks

def test_a_patch_size_may_be_an_int(trained, capsys):
    channels = '    channels: int = 3 '
    source = changed(TINY, {channels: f'    patch_size: int = 4\n{channels}'})

    trained('patched', source, ON_PICTURES)

    assert 'patches of 4 x 4' in capsys.readouterr().out


LEAST = """
from dataclasses import dataclass
import torch
from torch import nn

@dataclass
class Config:
    {fields}
    task = '{task}'

class Network(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.net = {net}
        self.embed = nn.Module()
        self.embed.pos = nn.Parameter(torch.zeros(1))

    def forward(self, x, y=None):
        out = self.net(x) + self.embed.pos
        if y is None:
            return out, None
        return out, nn.functional.cross_entropy(out.flatten(0, -2), y.flatten())
"""
LEAST_IMAGE = LEAST.format(
    fields='image_size: int = 8',
    task='image',
    net='nn.Sequential(nn.Flatten(), nn.Linear(192, 4))')
LEAST_TEXT = LEAST.format(
    fields='vocab_size: int = 9; block_size: int = 4',
    task='text',
    net='nn.Sequential(nn.Embedding(256, 8), nn.Linear(8, 256))')

NETWORKS = {  # name: (source, words)
    'least_image': (LEAST_IMAGE, ['--dataset=quads']),
    'least_text': (LEAST_TEXT, ['--dataset=text']),
    'infinite': (changed(TINY, {  # numbers that no weight may have
        BUILT: BUILT + "        self.register_buffer('mine', -self.head.weight.detach() / 0)\n",
    }), ON_TEXT),
    'looking': (changed(TINY, {  # at its weights while it is built
        BUILT: BUILT + '        self.scale = self.head.weight.std().item()\n',
    }), ON_TEXT),
    'looped': (changed(TINY, {  # more layers than tensors
        '*(Layer(config) for _ in range(config.n_layer))': 'Layer(config)',
        CALL: 'z = self.embed(x)\n        for _ in range(20):\n            z = self.layers(z)',
    }), ON_TEXT),
}


@pytest.fixture(scope='module', params=NETWORKS)
def unusual_run(request, trained):
    """A run of an unusual network. In its folder tuned/ a fine-tuned one."""
    out = trained(request.param, *NETWORKS[request.param])
    go(f'--init_from={out}', f'--out_dir={out}/tuned', '--max_iters=2')
    return out


@pytest.mark.slow
def test_a_network_of_any_form_learns(unusual_run):
    val_losses = column(unusual_run, 'val')

    assert val_losses[-1] < val_losses[0]


def test_fine_tuning_begins_with_the_weights_of_the_run(unusual_run):
    first_loss = column(unusual_run / 'tuned', 'val')[0]

    assert first_loss in column(unusual_run, 'val')


@pytest.mark.parametrize('name', ['momentum', 'randaugment_n'])
def test_a_setting_with_the_name_of_one_of_training_is_refused(name, fork, tmp_path, capsys):
    words = fork(f'with_{name}', {'n_layer: int = 2 ': f'{name}: int = 3\n    n_layer: int = 2 '})

    error = fails(capsys, train.main, *words)

    assert f'model_with_{name}.py has a setting {name}' in error
    assert not (tmp_path / 'out').exists()


# ---- losses and numbers

@pytest.fixture(scope='module')
def penalty_run(trained):
    extras = "{'penalty': self.head.weight.square().sum(), 'size': z.norm(), 'tokens': z}"
    return trained('penalty', changed(TINY, with_extras(extras)), ON_TEXT)


@pytest.mark.parametrize('split', ['train', 'val'])
def test_the_loss_that_is_logged_is_without_the_penalty(split, penalty_run, tiny_runs):
    # both runs begin with the same weights
    assert column(penalty_run, split)[0] == column(tiny_runs['text'], split)[0]


def test_a_penalty_changes_training(penalty_run, tiny_runs):
    plain_run = tiny_runs['text']
    norm = weights(penalty_run)['head.weight'].norm()

    assert norm < weights(plain_run)['head.weight'].norm()
    assert all(norm > 0 for norm in column(penalty_run, 'train', 'grad_norm'))
    assert column(penalty_run, 'val')[-1] != column(plain_run, 'val')[-1]


@pytest.mark.parametrize('split', ['train', 'val'])
def test_extras_of_one_number_are_logged_and_larger_ones_are_not(split, penalty_run):
    for name in ('penalty', 'size'):
        assert all(number > 0 for number in column(penalty_run, split, name))
    assert 'tokens' not in losses(penalty_run)[0]


def test_eval_prints_extras_in_the_precision_of_the_run(penalty_run, bytes_data, capsys):
    scores.main([f'--ckpt={penalty_run}', f'--data_dir={bytes_data}', '--dataset=tiny'])

    out = capsys.readouterr().out
    assert 'float32 on' in out and 'penalty ' in out and 'size ' in out


def test_a_number_is_a_mean_over_passes(fork, tmp_path):
    words = fork('counted', with_extras("{'ones': 1.0}"))

    go(*words, '--gradient_accumulation_steps=3')

    assert column(tmp_path / 'out', 'train', 'ones') == pytest.approx([1.0, 1.0, 1.0, 1.0])


@pytest.mark.parametrize('name', ['step', 'grad_norm'])
def test_a_number_that_would_replace_one_of_the_log_is_refused_at_once(name, fork, tmp_path, capsys):
    words = fork(f'with_{name}', with_extras(f"{{'{name}': 7.0}}"))

    assert f' {name} ' in fails(capsys, train.main, *words)
    assert (tmp_path / 'out' / 'log.jsonl').read_text() == ''


@pytest.mark.parametrize('target, validations', [
    ('0', 3),
    ('-2', 1),
])
def test_a_loss_below_zero_ends_a_run_only_at_a_target_that_it_reaches(
        target, validations, fork, tmp_path):
    words = fork('low', {ANSWER: f'{ANSWER} - 8.0'})

    go(*words, f'--target_loss={target}')

    val_losses = column(tmp_path / 'out', 'val')
    assert max(val_losses) < 0
    assert len(val_losses) == validations
    assert (tmp_path / 'out' / 'best.safetensors').exists()


# ---- tasks

TASK = re.search(r'^```python\n(import torch\n\nfrom tasks.*?^Task = \w+\n)```', PAGE,
                 re.M | re.S)[1]
ROTATIONS = {
    "return 'image' if self.image_size else 'text'": "return 'rotations'",
    "self.text = config.task == 'text'": 'self.text = False',
    "self.causal = c.task == 'text'": 'self.causal = False',
    'config.vocab_size if self.text else config.num_classes': '4',
}


@pytest.fixture(scope='module')
def rotations_run(folder, trained):
    """A run with the task of the page, which needs two new files."""
    (folder / 'task_rotations.py').write_text(TASK)
    return trained('turn', changed(TINY, ROTATIONS), ON_PICTURES)


def test_a_network_learns_the_task_of_the_page(rotations_run):
    val_losses = column(rotations_run, 'val')

    assert val_losses[0] == pytest.approx(math.log(4), abs=0.5)
    assert val_losses[-1] < val_losses[0]
    assert 'top1' in losses(rotations_run)[0]


def test_eval_prints_the_numbers_of_a_task(rotations_run, pictures_data, capsys):
    scores.main([f'--ckpt={rotations_run}', f'--data_dir={pictures_data}', '--split=val',
                 '--batch_size=4'])

    printed = capsys.readouterr().out
    assert re.search(r'quads val: 20 targets, loss \d\.\d{4}, top1 \d', printed)


def test_sample_names_the_command_for_a_task_of_its_own(rotations_run, pictures_data, capsys):
    error = fails(capsys, sample.main, f'--ckpt={rotations_run}',
                  f'--image={pictures_data}/quads')

    assert 'eval.py' in error


def test_a_run_with_a_task_of_its_own_advises_only_what_works(rotations_run, capsys):
    go('--init_from=resume', f'--out_dir={rotations_run}', '--max_iters=25')

    advice = capsys.readouterr().out.split('now try:')[1]
    assert 'eval.py' in advice
    assert 'sample.py' not in advice


def test_an_unknown_task_is_one_line_with_those_there_are(fork, capsys):
    words = fork('txt', {"if self.image_size else 'text'": "if self.image_size else 'txt'"})

    error = fails(capsys, train.main, *words)

    assert "task='txt'" in error
    assert 'masked_text' in error
    assert 'tasks/task_txt.py' in error


# ---- bugs

BUGS = {
    'in_init': {
        'd = config.n_embd\n': 'd, e = 1, 2, 3\n'},
    'in_config': {
        '    @property\n':
            '    def __post_init__(self):\n        a, b = 1, 2, 3\n\n    @property\n'},
}


@pytest.mark.parametrize('name', BUGS)
def test_a_bug_in_a_network_keeps_its_traceback(name, fork):
    words = fork(name, BUGS[name])

    with pytest.raises(ValueError) as e, one_line_errors():
        train.main(words)

    assert not isinstance(e.value, Mistake)
    assert f'model_{name}.py' in str(e.traceback[-1].path)
