"""analyze.py page: one HTML file that computes. Its JavaScript runs here in Node and in a browser, where
there is one."""
import base64
import html
import json
import re
import shutil
import subprocess

import numpy as np
import pytest
import torch
from helpers import ROOT
from insides import ALL, MORE, PICTURES, kind_of, load, loud_network, walk

import analyze
import model_aot
import tasks
from analysis import layers, measures, page
from analysis.subjects import Subject
from engine import networks
from engine.mistakes import Mistake
from tasks.augment import denormalize, normalize
from weights.runs import Run

NODE = shutil.which('node')
BROWSER = next(filter(None, map(shutil.which, ('chromium', 'chromium-browser', 'google-chrome', 'chrome'))), None)
in_node = pytest.mark.skipif(not NODE, reason='there is no node, which runs the JavaScript of the page')
in_browser = pytest.mark.skipif(not BROWSER, reason='there is no chromium or chrome, which opens the page')

MAE = ['crate_mae', 'zeros', 'listing 3', 'tied mae']
KINDS = [*MORE, 'crate', 'vit', 'aot_text', 'gpt2', 'mean', 'soft', 'wide', 'grey']


@pytest.fixture
def write(place, tmp_path, monkeypatch):
    """A function that writes the page of a run; returns its text."""
    monkeypatch.chdir(tmp_path)

    def write(name, *words, out='page.html'):
        analyze.main(['page', f'--ckpt={place}/runs/{name}', f'--data_dir={place}/data', f'--out={out}',
                      *[w.format(place=place) for w in words]])
        return (tmp_path / out).read_text(encoding='utf-8')
    return write


def held(text):
    """The networks and samples in a page."""
    return json.loads(re.search('<script type="application/json" id="data">(.*?)</script>', text, re.S)[1])


@torch.no_grad()
def rounded(name):
    """(the name of its file, a loud network whose weights are rounded as the page's)."""
    file, model = ALL[name][0], loud_network(name)
    tensors = dict([*model.named_parameters(), *model.named_buffers()])
    for t in tensors.values():
        t.copy_(t.half())
    return file, model


def in_javascript(tmp_path, file, model, code, **given):
    """What `code` returns in Node, as numpy arrays; it finds `net`, and `given` by their names."""
    subject = Subject('a run', Run(file, {}, {}, {}), model, 'a run', 'C0')
    given |= {'network': page.network(subject)}
    (tmp_path / 'given.json').write_text(json.dumps(given))
    (tmp_path / 'run.js').write_text(
        f'const Network = require({json.dumps(str(page.FOLDER / "network.js"))});\n'
        f'const {{{", ".join(given)}}} = JSON.parse(require("fs").readFileSync("given.json"));\n'
        f'const net = Network.open(network);\n'
        f'console.log(JSON.stringify((() => {{ {code} }})()));')
    done = subprocess.run([NODE, 'run.js'], cwd=tmp_path, capture_output=True, text=True)
    assert not done.returncode, done.stderr[-2000:]
    return json.loads(done.stdout)


def same(got, want):
    """Fails unless numbers are equal to 1e-4, of the largest one if that is above 1."""
    got = torch.tensor(got).flatten()
    assert got.numel() == want.numel()
    difference = (got - want.flatten()).abs().max().item()
    assert difference <= 1e-4 * max(1, want.abs().max().item()), difference


def random_input(model):
    """What JavaScript gets and what the network gets: a picture in bytes and its pixels, or ids."""
    rng, c = np.random.default_rng(3), model.config
    if tasks.kind_of(c) == 'text':
        ids = rng.integers(0, c.vocab_size, 11)
        return ids.tolist(), torch.tensor(ids)[None]
    picture = rng.integers(0, 256, (*c.image_size, c.channels), np.uint8)
    return picture.flatten().tolist(), normalize(torch.tensor(picture)[None].permute(0, 3, 1, 2).float())


# ---- the forward pass -----------------------------------------------------------------------------------------------

@pytest.mark.slow
@in_node
@pytest.mark.parametrize('name', sorted(set(KINDS) - set(MAE)))
@torch.no_grad()
def test_the_page_computes_what_the_network_does(name, tmp_path):
    """Every half step, attention weight and logit; coding rates, sparsity and masks."""
    file, model = rounded(name)
    given, x = random_input(model)
    found = in_javascript(tmp_path, file, model, '''
        const {states, maps} = Network.forward(net, input), z = states[states.length - 1].z, n = z.n;
        const measured = Network.measures(net, states, net.config.lam);
        const values = name => measured.map(layer => layer[name].value);
        return {states: states.map(s => [...s.z.data]), maps: maps.map(m => [...m]),
          logits: [...Network.read(net, z).data],
          compressed: values('compressed'), rate: values('rate'), nonzeros: values('nonzeros'),
          objective: values('objective'), of: measured.map(layer => Object.fromEntries(
            Object.entries(layer).map(([name, {state}]) => [name, states.indexOf(state)]))),
          masks: net.layers.map((layer, l) => Array.from({length: layer.K}, (_, k) =>
            Network.topMass(Network.classMap(maps[l], k, n))))};''', input=given)
    steps, second = list(walk(model, x)), hasattr(model.layers[0], 'ista') or getattr(model.layers[0], 'mlp', None)
    expected = [model.embed(x)] + [z for *_, half, after in steps for z in ((half, after) if second else (after,))]
    assert len(found['states']) == len(expected)
    for got, want in zip(found['states'], expected):
        same(got, want)
    same(found['logits'], model(x)[0])
    for l, (attention, normed, _, half, after) in enumerate(steps):
        same(found['maps'][l], layers.weights(attention, normed))
        assert found['rate'][l] == pytest.approx(measures.coding_rate(half).item(), rel=1e-4)
        if tasks.kind_of(model.config) == 'images':
            want = layers.top_mass(layers.class_maps(attention, normed)[0], 0.6)
            assert (torch.tensor(found['masks'][l]) != want).sum() <= 1  # of weights that are nearly equal
    measured = layers.measure_layers(model, [(x,)], layers.layer_measures)
    assert found['objective'] == pytest.approx(measured['objective'][:, 0].tolist(), rel=1e-3, abs=0.5)
    assert found['compressed'] == pytest.approx(measured['rate'][:, 0].tolist(), rel=1e-4)
    if 'sparsity' in measured:
        assert found['nonzeros'] == pytest.approx(measured['sparsity'][:, 0].tolist(), abs=0.02)
    for l, (attention, normed, _, half, after) in enumerate(steps):  # the tokens that a measure says it is of
        same(found['states'][found['of'][l]['compressed']], half)
        same(found['states'][found['of'][l]['rate']], half)
        same(found['states'][found['of'][l]['nonzeros']], after)
        same(found['states'][found['of'][l]['objective']], after)


class Turned(model_aot.MSSA):
    """A fork: the order of the tokens counts."""

    def forward(self, z):
        return super().forward(z * torch.linspace(0.2, 2, z.size(1))[:, None])


@in_node
@pytest.mark.parametrize('name, fork', [('aot_text', False), ('aot_text', True), ('crate', False)])
def test_a_page_notices_a_network_that_somebody_edited(name, fork, tmp_path, monkeypatch):
    if fork:
        monkeypatch.setattr(model_aot, 'MSSA', Turned)
    file, model = rounded(name)
    given, x = random_input(model)
    sample = {'ids': given} if kind_of(name) == 'text' else {'picture': base64.b64encode(bytes(given)).decode()}
    subject = Subject('a run', Run(file, {}, {}, {}), model, 'a run', 'C0')
    off = in_javascript(tmp_path, file, model, 'return Network.deviation(net, input, expected);', input=given,
                        expected=page.last_token(subject, sample))
    assert off > 0.1 if fork else off < 1e-3


def test_a_network_without_a_table_of_positions_is_refused():
    model = networks.network_class('aot')(networks.config_class('aot')(**ALL['aot_text'][1]))
    subject = Subject('a run', Run('aot', {}, {}, {'tokenizer': {'name': 'bytes'}}), model, 'a run', 'C0')
    page.check([subject])
    model.embed.pos_emb = None
    with pytest.raises(Mistake, match='positions'):
        page.check([subject])


@in_node
@pytest.mark.parametrize('name', MAE)
@torch.no_grad()
def test_encoder_and_decoder_with_hidden_patches(name, tmp_path):
    file, model = rounded(name)
    given, x = random_input(model)
    noise = torch.rand(1, model.embed.N, generator=torch.Generator().manual_seed(4))
    hidden = model.hide(noise)
    found = in_javascript(tmp_path, file, model, '''
        const {states, maps} = Network.forward(net, input, {hidden}), last = states[states.length - 1].z;
        const patches = Network.predictPatches(net, last), made = Network.reconstruct(net, patches, input, hidden);
        return {states: states.map(s => [...s.z.data]), patches: [...patches.data], loss: made.loss,
          picture: [...made.picture], maps: maps.length};''', input=given, hidden=hidden[0].tolist())
    expected = [model.embed(x, hidden)] + [z for *_, half, after in walk(model, x, hidden) for z in (half, after)]
    y = model.norm(expected[-1])
    expected.append(y)
    for layer in model.decoder_layers:
        expected.append(layer.E(layer.norm1(y)))
        y = layer(y)
        expected.append(y)
    assert len(found['states']) == len(expected) and found['maps'] == len(model.layers) + len(model.decoder_layers)
    for got, want in zip(found['states'], expected):
        same(got, want)
    patches, loss = model(x, noise)
    same(found['patches'], patches)
    assert found['loss'] == pytest.approx(loss.item(), rel=1e-4)
    picture = denormalize(model.reconstruct(x, noise))[0].flatten().int()
    assert (torch.tensor(found['picture']) - picture).abs().max() <= 1


@in_node
@torch.no_grad()
def test_sliders_and_switches_change_what_they_say(tmp_path):
    """Another eta and lambda; a head of layer 2, the attention of layer 1 and ISTA of layer 3 off."""
    file, model = rounded('crate')
    given, x = random_input(model)
    code = 'const {states} = Network.forward(net, input, options); return [...Network.read(net, states.pop().z).data];'
    options = {'eta': 0.4, 'lam': 0.7, 'heads': [None, [True, False]], 'attention': [False],
               'second': [True, True, False]}
    found = in_javascript(tmp_path, file, model, code, input=given, options=options)
    as_trained = in_javascript(tmp_path, file, model, code, input=given, options={})
    same(as_trained, model(x)[0])
    first, second, third = model.layers
    for layer in model.layers:
        layer.ista.eta, layer.ista.lam = 0.4, 0.7
    first.attn.register_forward_hook(lambda module, args, out: 0 * out)
    second.attn.W.register_forward_pre_hook(lambda module, args: args[0] * (torch.arange(10) < 5))
    third.forward = lambda z: z + third.attn(third.norm1(z))
    same(found, model(x)[0])
    assert (torch.tensor(found) - torch.tensor(as_trained)).abs().max() > 0.1


@in_node
@pytest.mark.parametrize('name', ['crate', 'soft', 'vit'])
@torch.no_grad()
def test_an_atom_that_is_off_is_zero_for_all_tokens(name, tmp_path):
    """Atoms 2 and 5 of layer 1, and 3 of layer 3. The page lists what they were before."""
    file, model = rounded(name)
    given, x = random_input(model)
    off = {0: [1, 4], 2: [2]}
    options = {'atoms': {l: [False if j in atoms else None for j in range(5)] for l, atoms in off.items()}}
    found = in_javascript(tmp_path, file, model, '''
        const {states, atoms} = Network.forward(net, input, options);
        const last = states.filter(s => s.layer === net.config.n_layer - 1).pop();
        return {z: [...last.z.data], atoms: atoms.map(a => [...a.data]), strongest: Network.strongest(atoms[2], 1),
          trained: [...Network.forward(net, input).states.filter(s => s.layer === net.config.n_layer - 1).pop().z.data]};
        ''', input=given, options=options)
    z = model.embed(x)
    seen = []

    def switch(l, units):
        seen.append(units)
        on = torch.ones(units.size(-1))
        on[off.get(l, [])] = 0
        return units * on

    same(found['trained'], model.layers(z))
    for l, layer in enumerate(model.layers):
        if hasattr(layer, 'ista'):
            layer.ista.register_forward_hook(lambda module, args, out, l=l: switch(l, out))
        else:
            layer.mlp.down.register_forward_pre_hook(lambda module, args, l=l: switch(l, *args))
    same(found['z'], model.layers(z))
    for got, want in zip(found['atoms'], seen, strict=True):
        same(got, want)
    assert (torch.tensor(found['z']) - torch.tensor(found['trained'])).abs().max() > 0.01
    strongest = seen[2][0, 1].abs().topk(5)
    assert found['strongest'] == strongest.indices[strongest.values > 0].tolist()


@in_node
def test_mixed_weights_are_the_same_numbers_elsewhere(tmp_path):
    file, model = rounded('crate')
    found = in_javascript(tmp_path, file, model, '''const other = Network.shuffled(net);
        return Object.keys(net.tensors).map(k => [[...net.tensors[k].data], [...other.tensors[k].data]]);''')
    assert all(sorted(a) == sorted(b) for a, b in found)
    assert all(a != b for a, b in found if len(set(a)) > 9)


# ---- the file -------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize('name', ['crate_mae', 'letters'])
def test_the_same_command_writes_the_same_bytes_and_asks_for_nothing(name, write):
    text = write(name)
    assert write(name) == text
    assert "default-src 'none'" in text                                 # the browser itself refuses requests
    assert set(re.findall(r'https?://[^\'" <]+', text)) <= {'http://www.w3.org/2000/svg'}  # a name, not an address
    assert text.count('</script>') == 3


def test_a_page_holds_what_one_network_sees_or_two(place, write):
    found = held(write('crate', '--num_samples=5'))
    network, = found['networks']
    assert network['classes'] == ['ant', 'bee', 'cat'] and network['config']['head_dim'] == 5
    i = int(re.match(r'test (\d+), ', found['samples'][0]['name'])[1])
    picture = np.frombuffer(page.base64.b64decode(found['samples'][0]['picture']), np.uint8).reshape(16, 24, 3)
    assert (picture == np.load(place / 'data' / 'pics' / 'test.images.npy')[i, 2:18, 3:27]).all()
    assert len(found['samples']) == 5
    assert [s['name'] for s in held(write('crate', '--image={place}/FOLDER'))['samples']] == ['0.png', '1.png', '2.png']
    assert held(write('letters', '--start=ab\\nc'))['samples'] == [{'name': 'ab\nc', 'ids': [0, 1, 3, 2]}]
    found = held(write('gpt2', '--num_samples=2'))
    assert [len(s['ids']) for s in found['samples']] == [12, 12] and found['most'] == 12
    found = held(write('crate', '--beside={place}/runs/crate_mae'))
    assert [n['name'] for n in found['networks']] == ['crate', 'crate_mae']
    assert len(found['hidden']) == 12 - 3                               # of 4 x 3 patches


@pytest.mark.parametrize('name, words, pictures', [
    ('crate', [], 18), ('vit', [], 18), ('crate', ['--image={place}/FOLDER'], 3)])
@torch.no_grad()
def test_the_patches_of_an_atom_use_it_most(name, words, pictures, write, place):
    """Each is from another picture, and has the largest unit of it; no other picture has a larger one. A picture that
    does not use the atom is left out."""
    found = held(write(name, *words))
    model = load(place, name)
    shape = *model.config.image_size, model.config.channels
    seen = np.stack([np.frombuffer(base64.b64decode(s['picture']), np.uint8).reshape(shape) for s in found['samples']])
    assert len(seen) == pictures
    steps = walk(model, normalize(torch.tensor(seen).permute(0, 3, 1, 2).float()))
    examples, = found['atoms']
    unused = 0
    for layer, (*_, half, after), of_layer in zip(model.layers, steps, examples, strict=True):
        units = after if hasattr(layer, 'ista') else torch.nn.functional.gelu(layer.mlp.up(layer.norm2(half)))
        sizes = units[:, 1:].abs().numpy()                              # (n, N, m)
        assert len(of_layer) == sizes.shape[2]
        for atom, places in enumerate(of_layer):
            assert len(places) == min(9, pictures) == len({i for i, _ in places})
            got = [sizes[i, patch, atom] if patch >= 0 else 0 for i, patch in places]
            want = np.sort(sizes[:, :, atom].max(1))[::-1][:9]
            assert got == pytest.approx(want, rel=1e-3, abs=1e-4)
            unused += sum(patch < 0 for _, patch in places)
    assert unused or name == 'vit'                      # so that the rule is tested


def test_networks_of_attention_alone_have_no_atoms(write):
    assert held(write('aot_pictures'))['atoms'] == [[]]
    assert not held(write('crate_gpt')).get('atoms')


def test_names_from_elsewhere_cannot_end_the_script(write):
    text = write('aot_text', '--start=</script><b>', out='<i>.html')
    assert text.count('</script>') == 3 and held(text)['samples'][0]['name'] == '</script><b>'
    assert held(write('aot_text', '--start=[[page.js]]'))['samples'][0]['name'] == '[[page.js]]'


def test_a_network_without_labels_has_no_classes():
    """As DINO's, which opens as CRATE with one class that means nothing."""
    Network, Config = networks.network_class('crate'), networks.config_class('crate')
    subject = Subject('', Run('crate', {}, {}, {}), Network(Config(**PICTURES, num_classes=1)), '', 'C0')
    assert page.network(subject)['classes'] is None


# ---- in a browser ---------------------------------------------------------------------------------------------------

SELF_TEST = (ROOT / 'tests' / 'analysis' / 'page_test.js').read_text(encoding='utf-8')
# --dump-dom waits for timers, and not for frames
FRAMES = '<head><script>window.requestAnimationFrame = draw => setTimeout(draw, 1);</script>'


@in_browser
@pytest.mark.slow
@pytest.mark.parametrize('width', [1200, 360])
@pytest.mark.parametrize('names, least, with_atoms', [
    (['crate', 'crate_mae'], 30, 2), (['vit', 'aot_pictures'], 18, 1), (['gpt2', 'aot_text'], 16, 0)])
def test_in_a_browser(names, least, with_atoms, width, place, write, tmp_path):
    """Choosing, hovering, keys, sliders, switches, atoms, drawing, hiding and writing change what they should, and
    numbers are those of their points.
    The page is in a frame, because a window cannot be narrower than 500 pixels."""
    text = write(names[0], f'--beside={place}/runs/{names[1]}')
    script = f'<script>const WITH_ATOMS = {with_atoms};\n{SELF_TEST}</script>'
    text = html.escape(text.replace('<head>', FRAMES).replace('</body>', f'{script}</body>'))
    frame = f'<!doctype html><body><iframe style="width: {width}px; height: 800px; border: 0" srcdoc="{text}"></iframe>'
    (tmp_path / 'frame.html').write_text(frame, encoding='utf-8')
    words = ['--headless', '--no-sandbox', '--disable-gpu', f'--user-data-dir={tmp_path}/profile', '--dump-dom',
             '--enable-logging=stderr', '--virtual-time-budget=60000', '--window-size=1300,900',
             *['--force-prefers-reduced-motion'] * (width == 360)]
    done = subprocess.run([BROWSER, *words, f'file://{tmp_path}/frame.html'], capture_output=True, text=True,
                          timeout=300)
    report = re.search('<pre id="report">(.*?)</pre>', done.stdout, re.S)
    assert report, done.stderr[-2000:]
    report = json.loads(html.unescape(report[1]))
    assert report['width'] == width and report['plays'] == (width != 360) and not report['problems'], report['problems']
    assert len(report['said']) >= least and not [line for line in report['said'] if line.startswith('NO ')]
    assert not re.findall('CONSOLE.*', done.stderr)
