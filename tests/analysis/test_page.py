"""analyze.py page: one HTML file that computes. Its JavaScript runs here in Node and in a browser, where
there is one."""
import html
import json
import re
import shutil
import subprocess

import insides
import numpy as np
import pytest
import torch
from helpers import ROOT, fails, loud, normalized
from insides import loud_network, walk

import analyze
from analysis import layers, measures, page
from analysis.samples import Subject
from engine import networks
from tasks.augment import denormalize, normalize

NODE = shutil.which('node')
BROWSER = next(filter(None, map(shutil.which, ('chromium', 'chromium-browser', 'google-chrome', 'chrome'))), None)
in_node = pytest.mark.skipif(not NODE, reason='there is no node, which runs the JavaScript of the page')
in_browser = pytest.mark.skipif(not BROWSER, reason='there is no chromium or chrome, which opens the page')

PICTURES, TEXT = insides.PICTURES | {'num_classes': 3}, insides.TEXT
MORE = {  # kinds of layers that tests/insides.py does not have: the model file and its settings
    'mm': ('crate', dict(PICTURES, ista='mm', alpha=0.5)), 'bare': ('crate', dict(PICTURES, patch_norm=False)),
    'soft text': ('crate', dict(TEXT, ista='soft', final_norm=True, tie_out=True)),
    'class token': ('vit', dict(PICTURES, pool='cls')), 'two norms': ('vit', dict(PICTURES, final_norms=2)),
    'tied': ('aot', dict(TEXT, tie_out=True, eta=0.3)), 'gelu': ('aot', dict(TEXT, mlp=True, gelu='tanh', head_dim=5)),
    'mean of all': ('aot', dict(PICTURES, pool='mean', bias=True)),
    'zeros': ('crate_mae', dict(insides.PICTURES, masking='zero', norm_pix_loss=True)),
    'listing 3': ('crate_mae', dict(insides.PICTURES, decoder_skip='normed', decoder_n_layer=2, decoder_n_head=4)),
    'tied mae': ('crate_mae', dict(insides.PICTURES, tie_out=True, lam=0.1, eta=0.3))}
MAE = ['crate_mae', 'zeros', 'listing 3', 'tied mae']
KINDS = [*MORE, 'crate', 'vit', 'aot_pictures', 'aot_text', 'gpt2', 'mhsa', 'crate_gpt', 'letters', 'crate_mae', 'mean',
         'soft', 'one_head', 'wide', 'grey', 'four']


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
    if name not in MORE:
        file, model = (insides.NETWORKS | insides.OTHERS)[name][0], loud_network(name)
    else:
        torch.manual_seed(0)
        file, (Network, Config) = MORE[name][0], networks.network(MORE[name][0])
        model = loud(Network(Config(**MORE[name][1])))
    tensors = dict([*model.named_parameters(), *model.named_buffers()])
    for k, numbers, scale in page.whole_numbers(model):
        tensors[k].copy_(numbers * scale)
    return file, model


def in_javascript(tmp_path, file, model, code, **given):
    """What `code` returns in Node, as numpy arrays; it finds `net`, and `given` by their names."""
    subject = Subject('a run', {'model': file, 'data': {}}, model, 'C0')
    given |= {'network': page.network(subject)}
    (tmp_path / 'given.json').write_text(json.dumps(given))
    (tmp_path / 'run.js').write_text(
        f'const Network = require({json.dumps(str(page.PARTS / "network.js"))});\n'
        f'const {{{", ".join(given)}}} = JSON.parse(require("fs").readFileSync("given.json"));\n'
        f'const net = Network.open(network);\n'
        f'const list = x => x && x.data ? {{n: x.n, data: [...x.data]}} : x;\n'
        f'console.log(JSON.stringify((() => {{ {code} }})()));')
    done = subprocess.run([NODE, 'run.js'], cwd=tmp_path, capture_output=True, text=True)
    assert not done.returncode, done.stderr[-2000:]
    return json.loads(done.stdout)


def tensor(matrix):
    return torch.tensor(matrix['data']).view(matrix['n'], -1)


def same(got, want):
    """Fails unless numbers are equal to 1e-4, of the largest one if that is above 1."""
    got = got if isinstance(got, torch.Tensor) else torch.tensor(got)
    assert got.numel() == want.numel()
    difference = (got.flatten() - want.flatten()).abs().max().item()
    assert difference <= 1e-4 * max(1, want.abs().max().item()), difference


def random_input(model):
    """What JavaScript gets and what the network gets: a picture in bytes and its pixels, or ids."""
    rng, c = np.random.default_rng(3), model.config
    if networks.kind_of(c) == 'text':
        ids = rng.integers(0, c.vocab_size, 11)
        return ids.tolist(), torch.tensor(ids)[None]
    picture = rng.integers(0, 256, (*c.image_size, c.channels), np.uint8)
    return picture.flatten().tolist(), pixels_of(picture)


def pixels_of(picture):
    return normalize(torch.tensor(picture)[None].permute(0, 3, 1, 2).float())


# ---- the forward pass -----------------------------------------------------------------------------------------------

@in_node
@pytest.mark.parametrize('name', sorted(set(KINDS) - set(MAE)))
@torch.no_grad()
def test_the_page_computes_what_the_network_does(name, tmp_path):
    """Every half step, attention weight and logit; coding rates, sparsity and masks."""
    file, model = rounded(name)
    given, x = random_input(model)
    found = in_javascript(tmp_path, file, model, '''
        const {states, maps} = Network.forward(net, input), z = states[states.length - 1].z, n = z.n;
        const halves = net.layers.map((_, l) => states.find(s => s.layer === l && s.step !== 'start').z);
        return {states: states.map(s => list(s.z)), maps: maps.map(m => [...m]), logits: list(Network.read(net, z)),
          compressed: halves.map((z, l) => Network.compressedRate(net, l, z)),
          rate: halves.map(z => Network.codingRate(z)),
          nonzeros: Network.nonzeros(z), objective: Network.objective(net, net.layers.length - 1, z, net.config.lam),
          masks: net.layers.map((layer, l) => Array.from({length: layer.K}, (_, k) =>
            Network.topMass(Network.classMap(maps[l], k, n))))};''', input=given)
    steps, second = list(walk(model, x)), hasattr(model.layers[0], 'ista') or getattr(model.layers[0], 'mlp', None)
    expected = [model.embed(x)] + [z for *_, half, after in steps for z in ((half, after) if second else (after,))]
    assert len(found['states']) == len(expected)
    for got, want in zip(found['states'], expected):
        same(tensor(got), want)
    same(tensor(found['logits']), model(x)[0])
    for l, (attention, normed, _, half, after) in enumerate(steps):
        same(found['maps'][l], layers.weights(attention, normed, layers.causal(model)))
        assert found['rate'][l] == pytest.approx(measures.coding_rate(half).item(), rel=1e-4)
        if networks.kind_of(model.config) == 'images':
            want = layers.top_mass(layers.class_maps(attention, normed)[0], 0.6)
            assert (torch.tensor(found['masks'][l]) != want).sum() <= 1  # of weights that are nearly equal
    rates, shares, objectives = layers.layer_measures(model, (x,))
    assert found['objective'] == pytest.approx(objectives[-1, 0].item(), rel=1e-3, abs=0.5)
    assert found['compressed'] == pytest.approx(rates[:, 0].tolist(), rel=1e-4)
    assert found['nonzeros'] == pytest.approx(shares[-1, 0].item(), abs=0.02)


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
        return {states: states.map(s => list(s.z)), patches: list(patches), loss: made.loss, picture: [...made.picture],
          maps: maps.length};''', input=given, hidden=hidden[0].tolist())
    z = model.embed(x, hidden)
    expected = [z]
    for layer in model.layers:
        half = z + layer.attn(layer.norm1(z))
        z = layer.ista(layer.norm2(half))
        expected += half, z
    y = model.norm(z)
    expected.append(y)
    for layer in model.decoder_layers:
        expected.append(layer.E(layer.norm1(y)))
        y = layer(y)
        expected.append(y)
    assert len(found['states']) == len(expected) and found['maps'] == len(model.layers) + len(model.decoder_layers)
    for got, want in zip(found['states'], expected):
        same(tensor(got), want)
    patches, loss = model(x, noise)
    same(tensor(found['patches']), patches)
    assert found['loss'] == pytest.approx(loss.item(), rel=1e-4)
    picture = denormalize(model.reconstruct(x, noise))[0].flatten().int()
    assert (torch.tensor(found['picture']) - picture).abs().max() <= 1


@in_node
@torch.no_grad()
def test_sliders_and_switches_change_what_they_say(tmp_path):
    """Another eta and lambda; a head of layer 2, the attention of layer 1 and ISTA of layer 3 off."""
    file, model = rounded('crate')
    given, x = random_input(model)
    code = 'const {states} = Network.forward(net, input, options); return list(Network.read(net, states.pop().z));'
    options = {'eta': 0.4, 'lam': 0.7, 'heads': [None, [True, False]], 'attention': [False],
               'second': [True, True, False]}
    found = in_javascript(tmp_path, file, model, code, input=given, options=options)
    as_trained = in_javascript(tmp_path, file, model, code, input=given, options={})
    same(tensor(as_trained), model(x)[0])
    first, second, third = model.layers
    for layer in model.layers:
        layer.ista.eta, layer.ista.lam = 0.4, 0.7
    first.attn.register_forward_hook(lambda module, args, out: 0 * out)
    second.attn.W.register_forward_pre_hook(lambda module, args: args[0] * (torch.arange(10) < 5))
    third.forward = lambda z: z + third.attn(third.norm1(z))
    same(tensor(found), model(x)[0])
    assert (tensor(found) - tensor(as_trained)).abs().max() > 0.1


@in_node
def test_a_larger_lambda_gives_sparser_tokens(tmp_path):
    file, model = rounded('crate')
    found = in_javascript(tmp_path, file, model, '''return [0, 1, 4, 16, 1e4].map(lam => {
        const {states} = Network.forward(net, input, {lam}); return Network.nonzeros(states[2].z); });''',
                          input=random_input(model)[0])
    assert found == sorted(found, reverse=True) and found[0] > 0.3 and found[-1] == 0


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
    assert write(name, '--num_samples=3') != text
    assert "default-src 'none'" in text                                 # the browser itself refuses requests
    for word in (r'\bsrc\s*=', r'\bhref\s*=', '@import', r'\burl\(', 'fetch', 'XMLHttpRequest', 'WebSocket',
                 r'\bimport\b', 'importScripts', 'EventSource', 'sendBeacon', '<link', '<img', '<iframe'):
        assert not re.search(word, text), word
    assert set(re.findall(r'https?://[^\'" <]+', text)) <= {'http://www.w3.org/2000/svg'}  # a name, not an address
    assert text.count('</script>') == 3


def test_the_page_holds_the_weights_and_what_the_network_sees(place, write):
    found = held(write('crate', '--num_samples=5'))
    assert held(write('crate', '--num_samples=5', '--seed=1'))['samples'] != found['samples']
    assert len(found['samples']) == 5 and found['reads'] == 'images'
    network, = found['networks']
    assert network['classes'] == ['ant', 'bee', 'cat'] and network['config']['head_dim'] == 5
    bits = np.unpackbits(np.frombuffer(page.base64.b64decode(network['weights']), np.uint8))
    numbers, at = bits.reshape(-1, 12) @ 2 ** np.arange(11, -1, -1) - 2048, 0
    for (name, shape, scale), (k, p) in zip(network['tensors'], loud_network('crate').named_parameters(), strict=True):
        assert name == k and shape == [*p.shape]
        kept = torch.from_numpy(numbers[at:at + p.numel()]).view(p.shape) * scale
        assert (kept - p).abs().max() <= p.abs().max() / 4000   # half of one of 2,047 steps, and a little
        at += p.numel() + p.numel() % 2
    assert at == len(numbers)
    i = int(re.match(r'test (\d+), ', found['samples'][0]['name'])[1])
    picture = np.frombuffer(page.base64.b64decode(found['samples'][0]['picture']), np.uint8).reshape(16, 24, 3)
    assert (picture == np.load(place / 'data' / 'pics' / 'test.images.npy')[i, 2:18, 3:27]).all()
    assert (pixels_of(picture) - normalized(picture[None])).abs().max() < 1e-6


@pytest.mark.parametrize('name', ['crate', 'crate_mae', 'vit'])
def test_a_network_on_shapes_with_12_pictures_takes_at_most_3_mb(name):
    """The networks of config/train_crate_shapes.py, pretrain_crate_mae_shapes.py and train_vit_shapes.py."""
    Network, Config = networks.network(name)
    sizes = {'n_layer': 4, 'n_head': 4, 'n_embd': 128} if name == 'vit' else {'n_layer': 6, 'n_head': 6, 'n_embd': 192}
    sizes |= {} if name == 'crate_mae' else {'num_classes': 10}
    model = Network(Config(image_size=32, patch_size=4, **sizes))
    subject = Subject('a run', {'model': name, 'data': {'classes': list('abcdefghij')}}, model, 'C0')
    size = len(json.dumps(page.network(subject))) + sum(len(f.read_bytes()) for f in page.PARTS.iterdir())
    assert size + 12 * (32 * 32 * 3 * 4 / 3 + 60) < 3e6


def test_names_from_elsewhere_cannot_end_the_script(place, tmp_path, write):
    text = write('aot_text', '--start=</script><b>', out='<i>.html')
    assert text.count('</script>') == 3 and held(text)['samples'][0]['name'] == '</script><b>'
    assert held(write('aot_text', '--start=[[page.js]]'))['samples'][0]['name'] == '[[page.js]]'


def test_your_own_pictures_and_text(write):
    assert [s['name'] for s in held(write('crate', '--image={place}/FOLDER'))['samples']] == ['0.png', '1.png', '2.png']
    sample, = held(write('letters', '--start=ab\\nc'))['samples']
    assert sample == {'name': 'ab\nc', 'ids': [0, 1, 3, 2]}
    found = held(write('gpt2', '--num_samples=2'))
    assert [len(s['ids']) for s in found['samples']] == [12, 12] and found['most'] == 12


def test_two_networks_side_by_side(place, write):
    found = held(write('crate', '--beside={place}/runs/crate_mae'))
    assert [n['model'] for n in found['networks']] == ['crate', 'crate_mae']
    assert len(found['hidden']) == 12 - 3                               # of 4 x 3 patches
    shutil.copytree(place / 'runs' / 'mean', place / 'again' / 'crate', dirs_exist_ok=True)
    names = [n['name'] for n in held(write('crate', '--beside={place}/again/crate'))['networks']]
    assert names == [f'{place}/runs/crate', f'{place}/again/crate']


@pytest.mark.parametrize('name, words, line', [
    ('crate_alpha', [], 'cannot compute model=crate_alpha yet; it shows CRATE'),
    ('vit_mae', [], 'cannot compute model=vit_mae'), ('crate_bert', [], 'cannot compute hidden text'),
    ('functions', [], 'cannot compute functions'),
    ('crate', ['--beside={place}/runs/vit_mae'], 'cannot compute model=vit_mae'),
    ('crate', ['--beside={place}/runs/aot_text'], 'leave one out'),
    ('crate', ['--beside={place}/runs/grey'], 'sees pictures of height, width and channels'),
    ('crate', ['--beside={place}/runs/vit,{place}/runs/mean'], 'room for two networks'),
    ('aot_text', ['--beside={place}/runs/letters'], 'reads other tokens'),
    ('crate', ['--start=abc'], 'leave --start out'),
    ('aot_text', ['--image={place}/FOLDER'], 'leave --image out'),
    ('letters', ['--start=abx'], "no character 'x'"), ('letters', ['--start=a'], '--start has 1 tokens'),
    ('aot_text', ['--start=' + 13 * 'a'], 'give between 2 and 12'),
    ('crate', ['--image={place}/FOLDER', '--split=val'], '--split does not go with --image'),
    ('crate', ['--num_samples=0'], 'num_samples=0 must lie between 1 and 200'),
    ('crate', ['--layer=2'], 'unknown setting layer'), ('crate', ['--out=page.png'], '.html; give another --out'),
    ('crate', ['--out=nowhere/page.html'], 'nowhere is no folder')])
def test_mistakes_get_one_line(name, words, line, place, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = [w.format(place=place) for w in words]
    said = fails(capsys, analyze.main, 'page', f'--ckpt={place}/runs/{name}', f'--data_dir={place}/data', *words)
    assert line in said and not list(tmp_path.glob('*.html*'))


def test_a_network_without_labels_has_no_classes():
    """As DINO's, which opens as CRATE with one class that means nothing."""
    run = {'model': 'crate', 'data': {'classes': ['no class']}}
    Network, Config = networks.network('crate')
    model = Network(Config(**PICTURES | {'num_classes': 1}))
    assert page.network(Subject('a run', run, model, 'C0'))['classes'] is None


def test_large_networks_and_vocabularies_are_refused(place, monkeypatch, capsys):
    words = 'page', f'--ckpt={place}/runs/aot_text', f'--data_dir={place}/data'
    monkeypatch.setattr(page, 'LARGEST', 1000)
    assert 'million parameters' in fails(capsys, analyze.main, *words)
    model = loud_network('aot_text')
    run = {'model': 'aot', 'data': {'tokenizer': {'name': 'gpt2'}}}
    with pytest.raises(ValueError, match='gpt2 tokens, of which a page would hold 256'):
        page.check_computed(Subject('a run', run, model, 'C0'))


def test_a_page_with_a_name_of_ones_own_stays(tmp_path, write):
    (tmp_path / 'mine.html').write_text('mine')
    with pytest.raises(ValueError, match='--overwrite=true'):
        write('crate', out='mine.html')
    assert (tmp_path / 'mine.html').read_text() == 'mine'
    assert len(write('crate', '--overwrite=true', out='mine.html')) > 10_000


@in_node
@pytest.mark.parametrize('name', ['crate', 'crate_mae', 'aot_text', 'gpt2', 'vit'])
def test_the_functions_that_the_page_names_exist(name, tmp_path):
    """An equation stands beside the function and file where it is computed."""
    script = (page.PARTS / 'page.js').read_text(encoding='utf-8')
    script = script[script.index('const FILES'):script.index('function explain')]
    own = {'crate': ['classes', 'eta', 'lam'], 'crate_mae': ['patches', 'eta', 'lam'], 'vit': ['classes']}
    kinds = ['compressed', 'rate', 'nonzeros', 'attention', 'mask', 'tokens', 'switches', *own.get(name, ['next'])]
    code = f'{script}; return kinds.map(kind => meaningOf(kind, net));'
    found = in_javascript(tmp_path, *rounded(name), code, kinds=kinds)
    for title, equation, meaning, code, lesson in found:
        assert 1 <= lesson <= 7 and title and equation and meaning
        for part in code.split('; '):
            for names, file in re.findall(r'([\w, ]+?)(?: of CRATEMAE)? in ([\w/]+\.(?:py|js))', part):
                source = (ROOT / file).read_text(encoding='utf-8')
                for named in filter(None, re.split(', | and ', names)):
                    assert re.search(rf'(def|class|function) {named}\b', source), (named, file)


# ---- in a browser ---------------------------------------------------------------------------------------------------

# --dump-dom waits for timers, and not for frames
FRAMES = '<head><script>window.requestAnimationFrame = draw => setTimeout(draw, 1);</script>'
SELF_TEST = '''
<script>
'use strict';
{
const problems = [], said = [];
addEventListener('error', e => problems.push(e.message));
addEventListener('unhandledrejection', e => problems.push(String(e.reason)));
console.error = (...words) => problems.push(words.join(' '));
const frame = () => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)));
const get = name => document.querySelector(name), text = name => get(name).textContent;
const key = (name, key, more = {}) => {
  get(name).dispatchEvent(new KeyboardEvent('keydown', {key, bubbles: true, ...more}));
  return frame();
};
const press = name => { (name.click ? name : get(name)).click(); return frame(); };
const named = (tag, part) => [...document.querySelectorAll(tag)].find(b => b.textContent.includes(part));
const check = (what, whether) => { said.push((whether ? 'yes ' : 'NO ') + what); };
/** The mouse at a share of the width and height of an element. */
function mouse(name, kind, x, y) {
  const r = get(name).getBoundingClientRect(), clientX = r.left + x * r.width, clientY = r.top + y * r.height;
  get(name).dispatchEvent(new PointerEvent(kind, {clientX, clientY, bubbles: true}));
  return frame();
}
/** Whether an action changes what a part of the page says. */
async function changes(what, part, action) {
  const before = [].concat(part).map(text).join();
  await action();
  check(what, [].concat(part).map(text).join() !== before);
}
async function shared() {
  await changes('right arrow walks on', '#where', () => key('body', 'ArrowRight'));
  const here = text('#where');
  await key('body', 'ArrowRight'); await key('body', 'ArrowLeft');
  check('left arrow walks back', text('#where') === here);
  for (let i = 0; i < 40; i++) await key('body', 'ArrowLeft');
  check('the walk begins at the embedding', text('#where').includes('the embedding'));
  for (let i = 0; i < 40; i++) await key('body', 'ArrowRight');
  check('and ends after the last layer', !text('#where').includes('½'));
  await press('.number');
  check('a number opens its equation', get('#explain').open && text('#explain').includes('eq. (8)')
    && text('#explain').includes('measures.py') && text('#explain').includes('Lesson 1'));
  await press('#explain button');
  check('and it closes', !get('#explain').open);
}
const table = '.board table';
async function switches() {
  const head = '[aria-label="head 1 of layer 3"]';
  get(head).focus();
  await changes('a head off', table, () => press(head));
  check('the keyboard stays there', document.activeElement === get(head) && !get(head).checked);
  await changes('attention off', table, () => press('[data-part=attention]'));
  await changes('as trained again', table, () => press(named('button', 'as trained')));
  await changes('mixed weights', table, () => press(named('button', 'mix the')));
  await press(named('button', 'as trained'));
}
async function pictures() {
  await changes('choosing', ['#pointed', table], () => press('#samples button:nth-child(2)'));
  await mouse('#picture', 'pointermove', 0.5, 0.1);
  check('hovering', text('#pointed').includes('row 1, column 2'));
  await key('#picture', 'ArrowDown', {shiftKey: true});
  check('down a row', text('#pointed').includes('row 2, column 2'));
  await key('#picture', 'ArrowUp');
  check('up a patch', text('#pointed').includes('row 2, column 1'));
  await shared();
  const slide = (name, value) => {
    get(name).value = value;
    get(name).dispatchEvent(new Event('input'));
    return frame();
  };
  const was = text(table), sparse = () => parseFloat(document.querySelectorAll('.number')[2].textContent);
  const before = sparse();
  await slide('[data-option=lam]', 1000);
  check('lambda makes tokens sparser', sparse() < before / 2);
  check('and changes the classes', text(table) !== was);
  await press(named('button', 'as trained'));
  check('as trained', text(table) === was && sparse() === before);
  await changes('eta', table, () => slide('[data-option=eta]', 900));
  await switches();
  await press('[data-mode=draw]');
  await slide('[aria-label="width of the brush"]', 5);
  const click = async (x, y) => {
    await mouse('#picture', 'pointerdown', x, y);
    await mouse('#picture', 'pointerup', x, y);
  };
  await changes('drawing', table, () => click(0.5, 0.5));
  await press(named('button', 'undo'));
  check('undone', text(table) === was);
  await press('[data-mode=hide]');
  const decoder = () => [...document.querySelectorAll('.board')].pop().querySelector('.scroll').textContent;
  const error = decoder();
  await click(0.5, 0.6);
  check('hiding', decoder() !== error);
  await press(named('button', 'show all'));
  check('nothing hidden', decoder().includes('none hidden'));
  await key('#picture', ' ');
  check('space hides', !decoder().includes('none hidden'));
}
async function texts() {
  await changes('choosing', ['#tokens', table], () => press('#samples button:nth-child(2)'));
  const spans = document.querySelectorAll('#tokens span');
  spans[3].dispatchEvent(new PointerEvent('pointerover', {bubbles: true})); await frame();
  check('hovering', text('#pointed').startsWith('token 4 of 12'));
  await key('#tokens', 'ArrowDown');
  check('down a token', text('#pointed').startsWith('token 5 of 12'));
  await shared();
  await switches();
  await changes('writing', ['#tokens', table], async () => { get('#writing').value = 'to be';
    get('#writing').dispatchEvent(new Event('input')); await frame(); });
  check('what was written', text('#tokens') === 'to␣be');
}
(async () => {
  await frame(); await frame();
  await (get('#picture') ? pictures() : texts());
  check('nothing is wider than the window', document.documentElement.scrollWidth <= innerWidth);
  check('no fault is shown', get('#fault').hidden);
  fault('a fault');
  check('a fault would be', !get('#fault').hidden && get('#fault').getBoundingClientRect().height > 0);
})().catch(e => problems.push(e.stack)).finally(() => {
  const box = document.createElement('pre');
  box.id = 'report';
  box.textContent = JSON.stringify({said, problems, width: innerWidth, plays: !get('#play').hidden});
  parent.document.body.append(box);
});
}
</script>
</body>'''


@in_browser
@pytest.mark.slow
@pytest.mark.parametrize('width', [1200, 360])
@pytest.mark.parametrize('names', [['crate', 'crate_mae'], ['gpt2', 'aot_text']])
def test_in_a_browser(names, width, place, write, tmp_path):
    """Choosing, hovering, keys, sliders, switches, drawing, hiding and writing change what they should.
    The page is in a frame, because a window cannot be narrower than 500 pixels."""
    text = write(names[0], f'--beside={place}/runs/{names[1]}')
    text = html.escape(text.replace('<head>', FRAMES).replace('</body>', SELF_TEST))
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
    assert len(report['said']) > 15 and not [line for line in report['said'] if line.startswith('NO ')]
    assert not re.findall('CONSOLE.*', done.stderr)
