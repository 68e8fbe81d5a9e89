"""What a network owes the rest, and what happens where it does not keep it: one line that names the contract. What the
rest owes a network: instruments show what its own layers do."""
import csv
import signal
import threading

import numpy as np
import pytest
import torch
from helpers import (BYTES, CLASSES, column, fails, go, losses, loud, picture_network, save_run,
                     text_network, tokens)
from insides import ALL, fresh
from test_own_network import ANSWER, BUILT, CALL, fork
from torch import nn
from torch.nn import functional as F

import analyze
import eval as scores
import model_aot
import model_crate
import nanocrate
import sample
import tasks
import train
from analysis import layers
from engine import networks, optim
from engine.checkpoint import read_log
from engine.mistakes import Mistake, one_line_errors
from tasks.augment import config_of, eval_pictures
from tasks.pictures import ImageSplit
from weights.runs import open_run, write_run
from weights.surgery import load_model

__all__ = ['fork']  # a fixture


# ---- maps are those of the layer

@pytest.mark.parametrize('name', sorted(ALL))
@torch.no_grad()
def test_maps_times_values_are_what_attention_adds(name):
    """In every network of ours: W of the sums of values is the update of the layer."""
    model = fresh(name)
    c = model.config
    x = {'images': lambda: (torch.randn(2, c.channels, *networks.as_pair(c.image_size)),),
         'text': lambda: (tokens(2, 12, vocab_size=5),),
         'functions': lambda: (torch.randn(2, 6, c.n_dims), torch.randn(2, 6))}[tasks.kind_of(c)]()
    for step in layers.inside(loud(model), *x):
        v = layers.coordinates(step.attention, step.normed, 'value')            # (B, N, K p)
        v = v.unflatten(2, (step.attention.K, -1)).transpose(1, 2)
        heads = (step.maps @ v).transpose(1, 2).flatten(2)
        if step.attention.W is not None:
            update = step.attention.W(heads)
        elif getattr(step.attention, 'tie_out', False):
            update = getattr(step.attention, 'eta', 1.0) * heads @ step.attention.U.weight
        else:
            update = heads
        # two of PyTorch's kernels
        assert (update - step.update).norm() < 1e-5 * step.update.norm()


MIXER = {'self.norm1, self.attn = nn.LayerNorm(c.n_embd), Attention(c)': 'self.mix = nn.Linear(c.n_embd, c.n_embd)',
         'return z + self.attn(self.norm1(z))': 'return (z + self.mix(z.cumsum(1))).relu()'}


def test_layers_without_attention_are_measured_and_other_commands_say_what_is_missing(fork, tmp_path, capsys):
    words = fork('mixer', MIXER)
    go(*words, '--telemetry=true')
    data = [word for word in words if 'data_dir' in word]
    analyze.main(['layers', f'--ckpt={tmp_path}/out', *data, f'--out={tmp_path}/x.png', '--num_samples=4'])
    rows = list(csv.DictReader((tmp_path / 'x.csv').read_text().splitlines()))
    assert len(rows) == 4 and all(0 < float(row['sparsity']) < 1 and float(row['coding_rate']) > 0 for row in rows)
    assert 'norm_2' in read_log(tmp_path / 'out')[0]
    assert (tmp_path / 'out' / 'curve.png').is_file()
    capsys.readouterr()
    for command, more in (('attention', ['--start=some text']), ('subspaces', [])):
        assert 'without `attn`' in fails(capsys, analyze.main, command, f'--ckpt={tmp_path}/out', *more)


class Pooling(model_aot.MSSA):
    def forward(self, z):
        return self.W(self.U(z.cumsum(1)))


def test_a_network_that_does_not_call_attention_is_one_line(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(model_aot, 'MSSA', Pooling)
    run = save_run(tmp_path / 'run', text_network('aot', vocab_size=256), BYTES)
    line = fails(capsys, analyze.main, 'attention', f'--ckpt={run}', '--start=some text', f'--out={tmp_path}/x.png')
    assert 'attention' in line and 'Pooling' in line and 'docs/extend.md' in line


class FISTA(model_crate.ISTA):
    """Two steps with momentum on the same LASSO; its step size is learned, as a logarithm."""

    def __init__(self, c):
        super().__init__(c)
        self.log_eta = nn.Parameter(torch.tensor(self.eta).log())
        del self.eta

    def forward(self, z):
        eta = self.log_eta.exp()
        a = F.relu(z + eta * ((z - z @ self.D.T) @ self.D - self.lam))
        y = a + 0.3 * (a - z)
        return F.relu(y + eta * ((z - y @ self.D.T) @ self.D - self.lam))


def test_another_algorithm_for_the_same_lasso_is_measured(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(model_crate, 'ISTA', FISTA)
    run = save_run(tmp_path / 'run', picture_network(n_layer=2), CLASSES)
    Image = pytest.importorskip('PIL.Image')
    Image.effect_noise((8, 8), 90).convert('RGB').save(tmp_path / 'a.png')
    analyze.main(['ista', f'--ckpt={run}', f'--image={tmp_path}/a.png', f'--out={tmp_path}/x.png'])
    assert 'share_of_the_way' in (tmp_path / 'x.csv').read_text() and 'lowers its LASSO' in capsys.readouterr().out


# ---- contracts

@pytest.mark.parametrize('name, change, said', [
    ('logits', {ANSWER: 'return out'}, '(out, loss)'), ('no_loss', {ANSWER: 'return out, None'}, 'loss'),
    ('four', {ANSWER: ANSWER + ', {}, 1'}, 'extras'),
    ('nan', {CALL: 'z = self.layers(self.embed(x)) * float("nan")'}, 'no step has been taken'),
    ('inside', {BUILT: BUILT + '        self.layers[1].attn.W.bias.data[:] = 1e38\n'
                               '        self.layers[1].attn.W.weight.data[:] = 1e38\n'}, 'loss is not finite')])
def test_a_broken_contract_is_one_line_that_names_it(name, change, said, fork, tmp_path, capsys):
    line = fails(capsys, train.main, *fork(name, change))
    assert said in line and 'learning_rate' not in line


def test_a_crash_at_step_0_leaves_nothing_in_the_way(fork, tmp_path, curve):
    words = fork('crash', {CALL: 'z = self.layers(self.embed(x)) if not self.training else self.bug(x)'})
    with pytest.raises(AttributeError), one_line_errors():
        train.main([word for word in words if 'eval_interval' not in word] + ['--checkpoint_minutes=0'])
    assert (tmp_path / 'out' / 'config.json').exists()
    (tmp_path / 'out' / 'last.pt').unlink(missing_ok=True)
    for name in ('best.safetensors', 'log.jsonl', 'curve.png'):
        (tmp_path / 'out' / name).unlink(missing_ok=True)
    go(*fork('mended', {}))  # the same out_dir


def test_a_network_that_somebody_is_writing_harms_no_other(fork, tmp_path, capsys, monkeypatch):
    words = fork('tiny', {})
    (tmp_path / 'model_wip.py').write_text('def half a file')
    train.main([*words, '--help'])
    said = capsys.readouterr().out
    assert '--max_iters=' in said and 'wip' in said
    assert 'no run in' in fails(capsys, analyze.main, 'layers', f'--ckpt={tmp_path}/nothing')
    with pytest.raises(SyntaxError), one_line_errors():
        train.main(['--model=wip', *words[1:]])


# ---- from Python

def test_training_from_python_gives_numbers_back_and_leaves_the_process_as_it_was(tiny, tmp_path):
    settings = dict(word[2:].split('=') for word in tiny)
    before = signal.getsignal(signal.SIGINT), torch.get_num_threads(), torch.get_rng_state()
    called = nanocrate.train(**settings, learning_rate=1e-3, out_dir=tmp_path / 'called')
    assert signal.getsignal(signal.SIGINT) is before[0] and torch.get_num_threads() == before[1]
    assert torch.equal(torch.get_rng_state(), before[2])
    go(*tiny, '--learning_rate=1e-3', f'--out_dir={tmp_path}/typed')
    assert losses(tmp_path / 'typed') == losses(tmp_path / 'called')
    assert called['loss'] == column(tmp_path / 'typed', 'val')[-1]
    with pytest.raises(Mistake, match='n_layer'):
        nanocrate.train(**settings, n_layers=3)

    found = {}
    thread = threading.Thread(target=lambda: found.update(nanocrate.train(**settings, out_dir=tmp_path / 'thread')))
    thread.start()
    thread.join()
    assert np.isfinite(found['loss'])


def test_ctrl_c_saves_the_run_and_raises(tiny, tmp_path, monkeypatch):
    settings = dict(word[2:].split('=') for word in tiny)

    def interrupt(c, step):
        if step == 2:
            signal.raise_signal(signal.SIGINT)
        return 0
    monkeypatch.setattr(train, 'dropout_seed', interrupt)
    with pytest.raises(KeyboardInterrupt):
        nanocrate.train(**settings, out_dir=tmp_path / 'a')
    assert (tmp_path / 'a' / 'last.pt').exists()
    assert nanocrate.train(init_from='resume', out_dir=tmp_path / 'a')['step'] == 6


def test_a_trained_network_is_loaded_with_what_reads_for_it(text_run, picture_run):
    model, tokenizer = nanocrate.load(text_run)
    steps = nanocrate.inside(model, torch.tensor([tokenizer.encode('the of')]))
    assert len(steps) == 2 and steps[0].maps.shape == (1, 2, 6, 6) and not steps[0].maps.requires_grad
    assert torch.equal(steps[0].z + steps[0].update, steps[0].half)
    model, reader = nanocrate.load(picture_run, image_size=(16, 8))
    classes = reader.classes
    assert classes == list('abcd') and not model.training and model.config.image_size == (16, 8)
    with pytest.raises(Mistake, match='no run in'):
        nanocrate.load('out/nothing_here')


# ---- what somebody found who made ten forks from the page alone

def test_heads_that_share_keys_have_no_subspaces_of_their_own(tmp_path, capsys):
    model = text_network('aot', attn='mhsa', vocab_size=256)
    shared = nn.Linear(16, 24, bias=False)                              # two queries of 8, one key, no room for a value
    for layer in model.layers:
        layer.attn.QKV = shared
    with pytest.raises(Mistake, match='three parts'):
        layers.bases(layers.attentions(model)[0], 'value')


def test_a_network_of_ones_own_writes_from_python(fork, tmp_path):
    go(*fork('tiny', {}))
    model, tokenizer = nanocrate.load(tmp_path / 'out')
    ids = torch.tensor([tokenizer.encode('the of')])
    assert nanocrate.generate(model, ids, 5).shape == (1, 11) and not hasattr(model, 'generate')


def test_a_network_without_ista_is_told_so(tmp_path, capsys):
    run = save_run(tmp_path / 'run', text_network('aot', vocab_size=256), BYTES)
    assert 'without `ista`' in fails(capsys, analyze.main, 'ista', f'--ckpt={run}', '--dataset=x')


def test_pictures_from_python_are_what_evaluation_sees(picture_run, pictures_data, tmp_path, monkeypatch):
    """As an array, as a list, and as Pillow's pictures; the shipped network stands in for out/."""
    from PIL import Image
    model, reader = nanocrate.load(picture_run)
    split = ImageSplit(pictures_data / 'quads', 'val')
    pixels, sizes, *_ = split.batch(np.arange(6))
    view = config_of(open_run(picture_run)).view
    expected = eval_pictures(torch.tensor(pixels), torch.tensor(sizes), model.config.image_size, view)

    assert torch.allclose(reader.prepare(pixels), expected, atol=1e-5)
    assert torch.allclose(reader.prepare([Image.fromarray(p) for p in pixels]), expected, atol=1e-5)
    with pytest.raises(Mistake, match='float32'):
        reader.prepare(pixels.astype(np.float32))
    monkeypatch.chdir(tmp_path)
    assert nanocrate.load('out/crate_shapes')[1].classes[0]


def test_weights_that_somebody_made_of_others_say_what_they_are(text_run, bytes_data, tmp_path, capsys):
    run = open_run(text_run)
    write_run(tmp_path / 'soup', load_model(run), run.settings, run.data, step=5, about='average of 2 runs')
    scores.main([f'--ckpt={tmp_path}/soup', f'--data_dir={bytes_data}', '--device=cpu'])

    out = capsys.readouterr().out
    assert 'average of 2 runs' in out and 'train longer' not in out


# ---- a layer that somebody changed

class ScaledLayer(model_crate.Layer):
    """Its half step is no sum of the tokens and of what attention returns."""

    def forward(self, z):
        z = 0.5 * z + 2.0 * self.attn(self.norm1(z))
        return self.ista(self.norm2(z))


def test_the_half_step_is_what_the_second_half_gets():
    model = picture_network('crate')
    for layer in model.layers:
        layer.__class__ = ScaledLayer
    for step in nanocrate.inside(model, torch.randn(2, *model.embed.picture_shape)):
        assert torch.allclose(step.half, 0.5 * step.z + 2.0 * step.update)
        assert step.sparsifier == {'eta': step.layer.ista.eta, 'lam': step.layer.ista.lam}


def test_an_attention_only_layer_ends_with_its_half_step(text_run):
    model, tokenizer = nanocrate.load(text_run)
    for step in nanocrate.inside(model, torch.tensor([tokenizer.encode('the of')])):
        assert step.half is step.after


def test_what_a_layer_learns_of_its_sparsity_is_logged(words_of, tmp_path, monkeypatch):
    plain = model_crate.ISTA.__init__

    def learned(self, c):
        plain(self, c)
        del self.lam
        self.lam = nn.Parameter(torch.tensor(0.25))
    monkeypatch.setattr(model_crate.ISTA, '__init__', learned)
    go(*words_of('pictures'), '--telemetry=true', f'--out_dir={tmp_path}')

    rows = [row for row in read_log(tmp_path) if row['split'] == 'val']
    assert rows[0]['lam_1'] == 0.25 and rows[-1]['lam_1'] != 0.25


@pytest.fixture
def with_registers(picture_run, tmp_path, monkeypatch):
    """A run of a CRATE with two tokens behind the patches."""
    plain, embed = model_crate.PatchEmbedding.__init__, model_crate.PatchEmbedding.forward

    def with_registers(self, c):
        plain(self, c)
        self.registers = nn.Parameter(torch.zeros(1, 2, c.n_embd))

    def forward(self, x):
        z = embed(self, x)
        return torch.cat((z, self.registers.expand(len(z), -1, -1)), dim=1)
    monkeypatch.setattr(model_crate.PatchEmbedding, '__init__', with_registers)
    monkeypatch.setattr(model_crate.PatchEmbedding, 'forward', forward)
    run = open_run(picture_run)
    run.weights['embed.registers'] = torch.zeros(1, 2, run.network['n_embd'])
    write_run(tmp_path / 'registers', load_model(run), run.settings, run.data)
    return tmp_path / 'registers'


def test_a_page_refuses_any_weight_that_it_does_not_know(with_registers, pictures_data, tmp_path, capsys):
    said = fails(capsys, analyze.main, 'page', f'--ckpt={with_registers}', f'--data_dir={pictures_data}',
                 f'--out={tmp_path}/page.html')
    assert 'embed.registers' in said and not (tmp_path / 'page.html').exists()


@pytest.mark.parametrize('command', ['attention', 'objects'])
def test_what_is_drawn_of_patches_refuses_other_tokens(command, with_registers, pictures_data, tmp_path, capsys):
    n_tokens = load_model(open_run(with_registers)).embed.pos.shape[1] + 2
    said = fails(capsys, analyze.main, command, f'--ckpt={with_registers}', f'--data_dir={pictures_data}',
                 f'--out={tmp_path}/a.png')
    assert f'{n_tokens} tokens' in said and not (tmp_path / 'a.png').exists()


def test_muon_takes_apart_a_parametrized_qkv(monkeypatch):
    parametrize = nn.utils.parametrize
    monkeypatch.setattr(parametrize.ParametrizationList, 'matrices', ('original',), raising=False)
    plain = text_network('aot', attn='mhsa')
    other = text_network('aot', attn='mhsa')
    for layer in other.layers:
        parametrize.register_parametrization(layer.attn.QKV, 'weight', nn.Identity())
    x = tokens(2, 9)
    for model in (plain, other):
        optimizers = optim.build(model, 'muon', 1e-3)
        model(x[:, :-1], x[:, 1:])[1].backward()
        for optimizer in optimizers:
            optimizer.step()
    for a, b in zip(plain.layers, other.layers):
        assert torch.equal(a.attn.QKV.weight, b.attn.QKV.weight)


@pytest.mark.parametrize('kind, program, word', [
    ('functions', scores, '--prompts=8'), ('masked_text', sample, '--start=a[MASK]c')])
def test_a_network_that_returns_numbers_to_log_is_scored_and_sampled(kind, program, word, words_of, tmp_path, monkeypatch,
                                                                     capsys):
    go(*words_of(kind), f'--out_dir={tmp_path}/a')
    run = open_run(tmp_path / 'a')
    Network = networks.network_class(run.model)
    plain = Network.forward

    def forward(self, x, y=None):
        out, loss = plain(self, x, y)
        return out, loss, {'penalty': torch.tensor(0.5)}
    data = next(w for w in words_of(kind) if w.startswith('--data_dir'))
    words = [f'--ckpt={tmp_path}/a', word, '--device=cpu']
    if program is scores:
        words += [data, '--overwrite=true']
    capsys.readouterr()  # what training said
    said = []
    for changed in (plain, forward):
        monkeypatch.setattr(Network, 'forward', changed)
        program.main(words)
        said.append(capsys.readouterr().out)
    assert said[0] == said[1]
