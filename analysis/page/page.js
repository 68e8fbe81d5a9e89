// What one sees and touches. network.js computes; here are the input, the panels of each network (a "board"), and keys.
// Everything that is shown follows from `state` and from the options of each board: change them, then call update().
'use strict';

window.addEventListener('error', e => fault(`${e.message} (line ${e.lineno} of this file)`));
window.addEventListener('unhandledrejection', e => fault(String(e.reason)));

/** Shows a line at the top of the page; '' takes it away. */
function fault(text) {
  const line = document.getElementById('fault');
  line.textContent = text;
  line.hidden = !text;
}

// ---- helpers --------------------------------------------------------------------------------------------------------

const $ = id => document.getElementById(id);

/** An element: attributes (onclick and its like are functions), then children, elements or texts. */
function el(tag, attributes = {}, ...children) {
  const svg = ['svg', 'path', 'circle', 'line', 'text'].includes(tag);
  const made = svg ? document.createElementNS('http://www.w3.org/2000/svg', tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes))
    if (name.startsWith('on')) made.addEventListener(name.slice(2), value);
    else if (typeof value === 'boolean') made.toggleAttribute(name, value);
    else made.setAttribute(name, value);
  made.append(...children);
  return made;
}

const percent = p => `${(100 * p).toFixed(p > 0 && p < 0.1 ? 1 : 0)}%`;
const short = v => Math.abs(v) >= 100 ? v.toFixed(0) : Math.abs(v) >= 10 ? v.toFixed(1) : v.toPrecision(2);

/** A text in which ^(..) stands for a superscript, as nodes. */
const written = text => text.split(/\^\((.*?)\)/).map((part, i) => i % 2 ? el('sup', {}, part) : part);

/** A colour of viridis, for v from 0 to 1; bright is much. Safe for colour-blind people. */
const STOPS = [[68, 1, 84], [71, 44, 122], [59, 81, 139], [44, 113, 142], [33, 144, 141], [39, 173, 129], [92, 200, 99],
  [170, 220, 50], [253, 231, 37]];
function viridis(v) {
  const at = Math.max(0, Math.min(1, v || 0)) * (STOPS.length - 1), i = Math.min(STOPS.length - 2, Math.floor(at));
  return STOPS[i].map((low, c) => low + (STOPS[i + 1][c] - low) * (at - i));
}

/** Blue below 0, white at 0, orange above, for v from -1 to 1. */
function blueOrange(v) {
  const s = Math.sqrt(Math.min(1, Math.abs(v))), end = v < 0 ? [0, 90, 160] : [213, 94, 0];
  return end.map(c => 255 + (c - 255) * s);
}

/** Draws n x m cells on a canvas, colour(row, column) -> [r, g, b], each of so many pixels. */
function cells(canvas, rows, columns, colour, high = 1, wide = 1) {
  const small = new ImageData(columns, rows);
  for (let i = 0, at = 0; i < rows; i++) for (let j = 0; j < columns; j++, at += 4) {
    const [r, g, b] = colour(i, j);
    small.data[at] = r; small.data[at + 1] = g; small.data[at + 2] = b; small.data[at + 3] = 255;
  }
  if (high === 1 && wide === 1) {
    [canvas.width, canvas.height] = [columns, rows];
    return canvas.getContext('2d').putImageData(small, 0, 0);
  }
  const copy = el('canvas', {width: columns, height: rows});
  copy.getContext('2d').putImageData(small, 0, 0);
  [canvas.width, canvas.height] = [columns * wide, rows * high];
  const pen = canvas.getContext('2d');
  pen.imageSmoothingEnabled = false;
  pen.drawImage(copy, 0, 0, canvas.width, canvas.height);
}

/** Draws a frame inside a rectangle of a canvas. */
function frame(canvas, x, y, wide, high, colour, line) {
  const pen = canvas.getContext('2d');
  [pen.strokeStyle, pen.lineWidth] = [colour, line];
  pen.strokeRect(x + line / 2, y + line / 2, wide - line, high - line);
}

/** The colour of a pixel of a picture of C channels, the first three, or grey. */
function pixel(picture, C, i) {
  return C >= 3 ? [picture[i * C], picture[i * C + 1], picture[i * C + 2]] : Array(3).fill(picture[i * C]);
}

/** A number that says, when one presses it, which equation it is of. */
const number = (what, text, net, l) =>
  el('button', {type: 'button', class: 'number', onclick: () => explain(what, net, l)}, text);
const ask = (what, net) => el('button', {type: 'button', class: 'ask', onclick: () => explain(what, net),
  'aria-label': 'which equation and code is this?'}, '?');

// ---- what the numbers are -------------------------------------------------------------------------------------------

const FILES = {crate: 'model_crate.py', crate_mae: 'model_crate_mae.py', aot: 'model_aot.py', vit: 'model_vit.py'};

/** title, equation, meaning, code, lesson of what a number or picture shows, for a network and its layer l. */
function meaningOf(what, net, l = 0) {
  const file = FILES[net.model], mae = net.masked, layer = net.layers[l], U = layer.decodes ? 'V' : 'U';
  const where = layer.decodes ? `layer ${l - net.config.n_layer + 1} of the decoder` : `layer ${l + 1}`;
  const projection = net.subspaces ? `${U}ₖᵀ Z` : 'the values Vₖ Z';
  return {
    compressed: ['Coding rate Rᶜ', 'Rᶜ(Z; U) = ½ Σₖ logdet(I + p/(N ε²) (UₖᵀZ)ᵀ(UₖᵀZ))   CRATE eq. (8), ε = 0.5',
      `About how many nats code each token in all ${layer.K} subspaces of ${where}, here ${projection}. Attention of ` +
      'CRATE is derived from a step that lowers it. It grows with the length of the tokens.',
      'compressed_rate in analysis/measures.py, layer_measures in analysis/layers.py', 1],
    rate: ['Coding rate R', 'R(Z) = ½ logdet(I + d/(N ε²) Z Zᵀ)   CRATE eq. (7), ε = 0.5',
      'About how many nats code each token. Good tokens have a large R and a small Rᶜ, eq. (1): spread out as a ' +
      'whole, compact in each subspace.', 'coding_rate in analysis/measures.py', 1],
    objective: ['The objective', 'R(Z) − Rᶜ(Z; U) − λ |Z|₀   CRATE eq. (1)',
      'What the layers of CRATE are derived to make larger: tokens that are spread out as a whole, compact in each ' +
      'subspace, and sparse. |Z|₀ counts the numbers of all tokens that are not zero.',
      'objective in analysis/measures.py', 4],
    nonzeros: ['Share of non-zeros', '|Z|₀ / (N d)   in CRATE eq. (1)',
      'The share of the numbers in all tokens that are not exactly zero. ISTA sets numbers to zero.',
      'nonzeros in analysis/measures.py', 3],
    attention: net.subspaces
      ? ['Attention of a head (MSSA)', `(${U}ₖᵀZ) softmax((${U}ₖᵀZ)ᵀ(${U}ₖᵀZ) / √p)   ` +
        (mae ? 'CRATE-MAE eq. (2.8)' : net.model === 'aot' ? 'AoT eq. (4)' : 'CRATE eq. (11)'),
        'A head projects the tokens, here Z = LN(tokens), on its subspace and replaces each by an average. A map ' +
        `shows the weights of one token's average; they sum to 1.${layer.decodes ? ' The decoder subtracts it.' : ''}`,
        `MSSA in ${file}, weights in analysis/layers.py`, net.model === 'aot' ? 5 : 2]
      : ['Attention of a head (MHSA)', '(Vₖ Z) softmax((Kₖ Z)ᵀ(Qₖ Z) / √p)   AoT eq. (5)',
        'Query, key and value have three projections, so a head has no one subspace. A map shows the weights of one ' +
        "token's average; they sum to 1.",
        `${net.vit ? 'Attention' : 'MHSA'} in ${file}, weights in analysis/layers.py`, 2],
    mask: ['Where the class token looks', 'softmax over the patches of the class token\'s scores   CRATE-MAE eq. (B.4)',
      'The patches in full colour hold 60% of the attention of the class token, without what it gives to itself. In ' +
      'CRATE such masks can follow objects.', 'class_maps and top_mass in analysis/layers.py', 7],
    atoms: net.second === 'ISTA'
      ? ['Atoms', `z ≈ Σⱼ aⱼ dⱼ   ${mae ? 'CRATE-MAE eq. (2.7)' : 'CRATE eq. (16)'}`,
        'An atom dⱼ is a column of the dictionary D of this layer. ISTA goes a step towards a sum of few atoms that '
        + 'is close to the token, and returns how much of each the sum has: aⱼ. These are the numbers of the token '
        + 'after the layer.', `ISTA in ${file}, examples in analysis/page.py`, 3]
      : ['Hidden units', 'W₂ GELU(W₁ z + b₁) + b₂',
        'A hidden unit is one of the numbers between the two maps of the MLP, after the GELU.',
        `MLP in ${file}, examples in analysis/page.py`, 7],
    tokens: ['Tokens', net.second === 'ISTA'
      ? (mae ? 'Z^(l+½) = Z^(l) + MSSA(Z^(l) | U),  Z^(l+1) = ISTA(Z^(l+½) | D)   CRATE-MAE eq. (2.14)' +
        ';  Y^(l+½) = E Y^(l),  Y^(l+1) = Y^(l+½) − MSSA(Y^(l+½) | V)   eq. (2.17)'
        : 'Z^(l+½) = Z^(l) + MSSA(Z^(l) | U),  Z^(l+1) = ISTA(Z^(l+½) | D)   CRATE eq. (18)')
      : net.model === 'aot' && net.subspaces
        ? 'Z^(l+1) = Z^(l) + η MSSA(Z^(l))   AoT eq. (3)' + (net.second ? ', and an MLP after it' : '')
        : 'Z^(l+½) = Z^(l) + MHSA(LN(Z^(l)))' + (net.second ? ',  Z^(l+1) = Z^(l+½) + MLP(LN(Z^(l+½)))' : ''),
      'Each row is a token, each column one of its d numbers: orange above zero, blue below, white at zero.',
      `${mae ? 'EncoderLayer and DecoderLayer' : 'Layer'} in ${file}`, mae ? 6 : net.model === 'aot' ? 5 : 4],
    classes: ['Class probabilities, layer by layer', 'softmax(W LN(z) + b)',
      `The classifier, applied to the tokens after each layer: to ${net.config.pool === 'cls' ? 'the class token'
        : 'the mean of the tokens'}. It was trained for the last layer alone, so earlier rows are a guess at what ` +
      'the tokens hold.', `Classifier in ${file}`, 7],
    next: ['Next token, layer by layer', 'softmax(E LN(z))   E: the table of token embeddings',
      'The output map, applied to the tokens after each layer (the "logit lens"). It was trained for the last layer ' +
      'alone.', `LanguageHead in ${file}`, 7],
    patches: ['What the decoder says', 'W^(post) LN(Y)   CRATE-MAE eqs. (2.22) and (B.2)',
      'The prediction head, applied to the tokens after each layer of the decoder; it was trained for the last one ' +
      'alone. Below: the mean squared error of the hidden patches, of normalized pixels.',
      'decode, loss and reconstruct of CRATEMAE in model_crate_mae.py', 6],
    eta: net.second === 'ISTA'
      ? ['Step size η', net.config.ista === 'soft' ? 'shrink(Z + η D*(Z − D Z), η λ)   CRATE eqs. (116) and (117)'
        : `ReLU(Z + η D*(Z − D Z) − η λ)   ${mae ? 'CRATE-MAE eq. (2.9)' : 'CRATE eq. (17)'}`,
        'How far ISTA goes from Z = LN(tokens) towards a sparse code. All layers share it.', `ISTA in ${file}`, 3]
      : ['Step size η', 'Z + η Σₖ Uₖ headₖ   AoT eqs. (3) and (4)', 'How far a layer goes.', `MSSA in ${file}`, 5],
    lam: ['Weight of sparsity λ', net.config.ista === 'mm'
      ? 'ReLU((1 + 4/(9(1+α))) D*Z − 4λ/(9α))   CRATE eq. (92)'
      : `λ|Z|₁ + ½|Z^(l+½) − D Z|²   ${mae ? 'CRATE-MAE eq. (2.7)' : 'CRATE eq. (16)'}`,
      'A larger λ sets more numbers to zero. All layers share it.', `ISTA in ${file}`, 3],
    switches: ['Parts switched off', 'Z^(l+½) = Z^(l), or Z^(l+1) = Z^(l+½), or headₖ = 0',
      'A half step that is off leaves the tokens as they are. A head that is off gives zeros to the output map.',
      `${mae ? 'EncoderLayer and DecoderLayer' : 'Layer'} in ${file}; forward in analysis/page/network.js`, 7],
  }[what];
}

function explain(what, net, l) {
  const [title, equation, meaning, code, lesson] = meaningOf(what, net, l);
  $('explain-title').textContent = title;
  $('explain-equation').replaceChildren(...written(equation.replaceAll('   ', '\n')));
  $('explain-meaning').textContent = meaning;
  $('explain-code').textContent = `Code: ${code}. Lesson ${lesson} of the course.`;
  if (!$('explain').open) $('explain').showModal();
}

// ---- the state ------------------------------------------------------------------------------------------------------

const held = JSON.parse($('data').textContent), pictures = held.reads === 'images';
const nets = held.networks.map((h, i) => Object.assign(Network.open(h), {classes: h.classes, index: i}));

/** Says so if a network computes something else than this page, because somebody edited its file. */
function compare() {
  const first = held.samples[0], input = pictures ? Network.bytesOf(first.picture) : first.ids;
  for (const [i, net] of nets.entries()) {
    const off = Network.deviation(net, input, held.networks[i].expected);
    if (!(off <= 0.05))                                               // NaN too
      fault(`${net.name} computes something else than this page: its tokens are off by ${percent(off)}. ` +
        'The page knows the layers of nanoCRATE as they are, and those of this network were edited.');
  }
}
const state = {sample: 0, picture: null, ids: null, hidden: [], token: 0, kept: false, place: 0, mode: 'point',
  brush: 1, random: 7};
const [H, W] = pictures ? nets[0].config.image_size : [0, 0], C = pictures ? nets[0].config.channels : 0;
const masked = nets.find(net => net.masked);

/** Where states lie on the way: l for Z^l, l + 1/2 for Z^(l+1/2), with layers from 1. */
const placeOf = ({layer, step}) => layer + {start: 1, attention: 1.5, code: 1.25, dictionary: 1.5, layer: 2}[step];

/** How the papers call a state, and what made it. */
function nameOf(net, {layer, step}) {
  const {decodes} = net.layers[layer], l = decodes ? layer - net.config.n_layer + 1 : layer + 1;
  const letter = decodes ? 'Y' : 'Z', attention = net.subspaces ? 'MSSA' : 'attention';
  const where = `layer ${l}${!net.masked ? '' : decodes ? ' of the decoder' : ' of the encoder'}`;
  return {start: ['Z^(1)', 'the embedding'], code: ['Y^(1)', 'the code, which the decoder gets'],
    attention: [`${letter}^(${l}+½)`, `after ${attention}, first half of ${where}`],
    dictionary: [`Y^(${l}+½)`, `after the dictionary E, first half of ${where}`],
    layer: [`${letter}^(${l + 1})`, `after ${decodes ? '−MSSA' : net.second || attention}, ${where}`],
  }[step];
}

/** The token in another network's grid that covers the middle of the token pointed at. */
function tokenIn(net) {
  if (!pictures || state.token === 0 || net === nets[0]) return state.token;
  return 1 + patchAt(middle(), net);
}

/** The pixel in the middle of the patch pointed at. */
function middle() {
  const n = state.token - 1, {across, config: {patch_size: [h, w]}} = nets[0];
  return [Math.floor((Math.floor(n / across) + 0.5) * h), Math.floor((n % across + 0.5) * w)];
}

/** The mouse is over a token: one looks at it, unless another one is kept. */
function hover(token) {
  if (state.kept || token === state.token) return;
  state.token = token;
  update();
}

/** The mouse presses a token: it is kept when the mouse moves on, or let go if it was kept. */
function press(token) {
  state.kept = !(state.kept && token === state.token);
  state.token = token;
  update();
}

const count = () => pictures ? nets[0].down * nets[0].across + 1 : state.ids.length;
const isHidden = net => net.masked ? state.hidden : [];

function choose(i) {
  state.sample = i;
  const sample = held.samples[i];
  if (pictures) state.picture = Network.bytesOf(sample.picture);
  else {
    state.ids = sample.ids.slice();
    if ($('writing')) $('writing').value = decode(state.ids);
  }
  state.token = Math.min(state.token, count() - 1);
  update({input: true});
}

let waiting = null;
/** Computes what changed, and draws; once for all changes until the next frame. input: the picture or text changed;
    net: this network's options changed; nothing: only what one looks at. */
function update({input = false, net = null} = {}) {
  if (!waiting) {
    waiting = {input: false, nets: new Set()};
    requestAnimationFrame(() => {
      const {input: all, nets: some} = waiting;
      waiting = null;
      for (const board of boards) {
        if (all) board.trained = null;
        if (all || some.has(board.net)) board.compute();
      }
      if (all) drawSamples();
      drawInput();
      drawWalk();
      boards.forEach(board => board.draw());
    });
  }
  waiting.input ||= input;
  if (net) waiting.nets.add(net);
}

// ---- the input ------------------------------------------------------------------------------------------------------

/** The numbers of up to twelve samples to choose from. The other ones are there for the patches of atoms. */
const mostOffered = Math.min(12, held.samples.length);
const offered = Array.from({length: mostOffered}, (_, i) => Math.floor(i * held.samples.length / mostOffered));

function buildInput() {
  const box = $('input');
  box.className = 'panel';
  box.append(el('h2', {}, pictures ? 'Picture' : 'Text'), el('div', {id: 'samples', class: pictures ? '' : 'texts'}));
  for (const i of offered) {
    const sample = held.samples[i], {name} = sample;
    $('samples').append(el('button', {type: 'button', title: name, 'aria-label': name, onclick: () => choose(i)},
      pictures ? thumbnail(sample) : name.replace(/\s+/g, ' ').trim().slice(0, 16) || `text ${i + 1}`));
  }
  (pictures ? buildPicture : buildText)(box);
}

function thumbnail(sample) {
  const canvas = el('canvas'), picture = Network.bytesOf(sample.picture);
  cells(canvas, H, W, (i, j) => pixel(picture, C, i * W + j));
  canvas.style.width = '38px';
  return canvas;
}

function drawSamples() {
  [...$('samples').children].forEach((b, i) => b.setAttribute('aria-pressed', String(offered[i] === state.sample)));
}

/** Buttons of which one is pressed. */
function modes(names) {
  const row = el('div', {class: 'row', role: 'group', 'aria-label': 'what the mouse does'});
  row.append(...names.map(([mode, text]) => el('button', {type: 'button', 'data-mode': mode,
    onclick: () => { state.mode = mode; update(); }}, text)));
  return row;
}

/** The patch of a network that covers a pixel. */
function patchAt([y, x], net) {
  const [h, w] = net.config.patch_size;
  return Math.floor(y / h) * net.across + Math.floor(x / w);
}

function buildPicture(box) {
  const canvas = el('canvas', {id: 'picture', tabindex: '0', role: 'img', 'aria-label':
    'the picture; up and down arrows choose a patch, with Shift a row; space draws or hides there'});
  let down = false, hides = true, last = null;                    // last: where the pointer was, while it is down
  const at = e => {
    const r = canvas.getBoundingClientRect();
    return [Math.min(H - 1, Math.max(0, Math.floor((e.clientY - r.top) / r.height * H))),
            Math.min(W - 1, Math.max(0, Math.floor((e.clientX - r.left) / r.width * W)))];
  };
  const touch = e => {
    const place = at(e), token = 1 + patchAt(place, nets[0]), [y, x] = last || place;
    const steps = Math.max(1, Math.abs(place[0] - y), Math.abs(place[1] - x));
    for (let s = 1; down && s <= steps; s++) {                      // every pixel from the last place to this one
      const on = [Math.round(y + (place[0] - y) * s / steps), Math.round(x + (place[1] - x) * s / steps)];
      if (state.mode === 'draw') paint(...on);
      if (state.mode === 'hide') hide(patchAt(on, masked), hides);
    }
    last = down ? place : null;
    if (!down) hover(token);
    else if (token !== state.token || state.mode !== 'point') { state.token = token; update(); }
  };
  canvas.addEventListener('pointerdown', e => {
    down = true;
    if (masked) hides = !state.hidden[patchAt(at(e), masked)];
    if (state.mode !== 'point' && e.isTrusted) canvas.setPointerCapture(e.pointerId);
    if (state.mode === 'point') press(1 + patchAt(at(e), nets[0]));
    touch(e);
  });
  canvas.addEventListener('pointermove', touch);
  for (const end of ['pointerup', 'pointercancel']) canvas.addEventListener(end, () => { down = false; last = null; });
  box.append(canvas, el('p', {id: 'pointed', class: 'note', 'aria-live': 'polite'}),
    modes([['point', 'point'], ['draw', 'draw'], ...(masked ? [['hide', 'hide patches']] : [])]),
    el('div', {class: 'row', id: 'drawing'},
      el('label', {}, 'colour ', el('input', {type: 'color', id: 'colour', value: '#ffffff'})),
      el('label', {}, 'width ', el('input', {type: 'range', min: '0', max: '6', value: '1',
        'aria-label': 'width of the brush', oninput: e => { state.brush = +e.target.value; }})),
      el('button', {type: 'button', onclick: () => choose(state.sample)}, 'undo the drawing')),
    el('div', {class: 'row'}, el('button', {type: 'button', id: 'cls',
      onclick: () => press(0)}, 'look at the class token')));
  if (masked) box.append(el('div', {class: 'row'},
    el('button', {type: 'button', onclick: hideOthers}, `hide ${percent(masked.config.mask_ratio)} at random`),
    el('button', {type: 'button', onclick: () => { state.hidden.fill(false); update({input: true}); }}, 'show all')));
  if (masked) {
    state.hidden = Array(masked.down * masked.across).fill(false);
    held.hidden.forEach(n => { state.hidden[n] = true; });
  }
}

function paint(y, x) {
  const value = $('colour').value, rgb = [1, 3, 5].map(i => parseInt(value.slice(i, i + 2), 16)), r = state.brush;
  for (let i = Math.max(0, y - r); i <= Math.min(H - 1, y + r); i++)
    for (let j = Math.max(0, x - r); j <= Math.min(W - 1, x + r); j++)
      if ((i - y) ** 2 + (j - x) ** 2 <= r * r + 0.5)
        for (let c = 0; c < C; c++)
          state.picture[(i * W + j) * C + c] = C >= 3 ? rgb[c] ?? 255 : Math.round((rgb[0] + rgb[1] + rgb[2]) / 3);
  update({input: true});
}

/** Hides or shows a patch; one patch stays visible. */
function hide(n, whether) {
  if (whether && state.hidden.filter(h => !h).length === 1) return;
  state.hidden[n] = whether;
  update({input: true});
}

/** Hides so many random patches as training does. */
function hideOthers() {
  const n = state.hidden.length, visible = Math.floor(n * (1 - masked.config.mask_ratio) + 1e-6);
  const noise = state.hidden.map(() => (state.random = (Math.imul(state.random, 1664525) + 1013904223) >>> 0));
  const order = [...noise.keys()].sort((a, b) => noise[a] - noise[b]);
  state.hidden.fill(true);
  order.slice(0, visible).forEach(i => { state.hidden[i] = false; });
  update({input: true});
}

function drawInput() {
  for (const b of document.querySelectorAll('[data-mode]'))
    b.setAttribute('aria-pressed', String(b.dataset.mode === state.mode));
  (pictures ? drawPicture : drawText)();
}

function drawPicture() {
  const canvas = $('picture'), scale = Math.max(1, Math.round(340 / W)), n = state.token - 1;
  canvas.className = state.mode === 'point' ? '' : 'paints';
  $('drawing').hidden = state.mode !== 'draw';
  cells(canvas, H, W, (i, j) => colourAt(i, j, masked), scale, scale);
  const [h, w] = nets[0].config.patch_size.map(size => size * scale);
  if (n >= 0) for (const [colour, line] of [['#fff', 5], ['#d55e00', 3]])
    frame(canvas, n % nets[0].across * w, Math.floor(n / nets[0].across) * h, w, h, colour, line);
  $('cls').setAttribute('aria-pressed', String(n < 0));
  const i = Math.floor(n / nets[0].across) + 1, j = n % nets[0].across + 1;
  $('pointed').textContent = (n < 0 ? 'the class token' : `patch in row ${i}, column ${j}`)
    + ` of ${held.samples[state.sample].name}` + (state.kept ? ', kept: press it again to let it go' : '');
}

/** A pixel of the picture as a network sees it: in a masked autoencoder, hidden patches are grey with stripes. */
function colourAt(i, j, net) {
  if (net && net.masked && state.hidden[patchAt([i, j], net)]) return Array(3).fill((i + j) % 4 ? 150 : 110);
  return pixel(state.picture, C, i * W + j);
}

const decoded = [];  // pictures of samples, once one of their patches was shown

/** Draws up to nine patches, [picture, patch], in three rows, each with a paler patch around it. */
function drawExamples(canvas, net, places) {
  const [h, w] = net.config.patch_size, high = 3 * h + 1, wide = 3 * w + 1, white = [255, 255, 255];
  cells(canvas, 3 * high - 1, 3 * wide - 1, (i, j) => {
    const place = places[3 * Math.floor(i / high) + Math.floor(j / wide)];
    if (!place) return white;
    const [n, patch] = place, row = i % high - h, column = j % wide - w;  // from the corner of the patch
    const y = Math.floor(patch / net.across) * h + row, x = patch % net.across * w + column;
    if (row === 2 * h || column === 2 * w || y < 0 || y >= H || x < 0 || x >= W) return white;
    decoded[n] ||= Network.bytesOf(held.samples[n].picture);
    const inside = row >= 0 && row < h && column >= 0 && column < w;
    return pixel(decoded[n], C, y * W + x).map(v => inside ? v : (255 + v) / 2);
  });
}

// ---- text

const visibleText = s => s === ' ' ? '␣' : s === '\n' ? '⏎' : s === '\t' ? '⇥' : s;

/** How a token is shown. A byte above 127 is a part of a character. */
function shown(id) {
  const {name, alphabet} = held.tokenizer;
  if (name === 'chars') return visibleText(Array.from(alphabet)[id] ?? `[${id}]`);
  const plain = id === 9 || id === 10 || id > 31 && id < 127;
  return plain ? visibleText(String.fromCharCode(id)) : `x${id.toString(16).padStart(2, '0')}`;
}

function decode(ids) {
  const {name, alphabet} = held.tokenizer;
  if (name === 'bytes') return new TextDecoder().decode(Uint8Array.from(ids));
  const characters = Array.from(alphabet);
  return ids.map(i => characters[i]).join('');
}

/** Token ids of a text; null, and a line that says why, if the alphabet lacks a character. */
function encode(text) {
  if (held.tokenizer.name === 'bytes') return [...new TextEncoder().encode(text)];
  const ids = new Map(Array.from(held.tokenizer.alphabet).map((c, i) => [c, i]));
  const unknown = Array.from(text).find(c => !ids.has(c));
  $('typed').textContent = unknown === undefined ? '' : `the network was not trained with the character ${unknown}`;
  return unknown === undefined ? Array.from(text).map(c => ids.get(c)) : null;
}

function buildText(box) {
  box.append(el('label', {for: 'writing'}, `your own text, up to ${held.most} tokens`),
    el('textarea', {id: 'writing', spellcheck: 'false', maxlength: String(held.most), oninput: e => {
      const ids = encode(e.target.value);
      if (ids && !ids.length) $('typed').textContent = 'write at least one character';
      if (!ids || !ids.length) {
        $('typed').textContent += '; shown is the text before';
        return;
      }
      if (ids.length > held.most) $('typed').textContent = `only the first ${held.most} tokens are read`;
      else if (held.tokenizer.name === 'bytes') $('typed').textContent = '';
      state.ids = ids.slice(0, held.most);
      state.token = Math.min(state.token, state.ids.length - 1);
      update({input: true});
    }}), el('p', {id: 'typed', class: 'note', role: 'status'}), el('h3', {}, 'Tokens: point at one'),
    el('p', {id: 'tokens', class: 'text', tabindex: '0', 'aria-label': 'tokens; up and down arrows choose one',
      onpointerover: e => { if (e.target.dataset.n) { state.token = +e.target.dataset.n; update(); } }}),
    el('p', {id: 'pointed', class: 'note', 'aria-live': 'polite'}));
}

function drawText() {
  const line = $('tokens');
  if (line.textContent !== state.ids.map(shown).join('') || line.children.length !== state.ids.length)
    line.replaceChildren(...state.ids.map((id, n) => el('span', {'data-n': String(n)}, shown(id))));
  [...line.children].forEach((span, n) => { span.className = n === state.token ? 'token' : ''; });
  $('pointed').textContent = `token ${state.token + 1} of ${state.ids.length}: ${shown(state.ids[state.token])}`;
}

// ---- the walk from layer to layer -----------------------------------------------------------------------------------

let places = [];  // of all states of all networks

function drawWalk() {
  places = [...new Set(boards.flatMap(board => board.trace.states.map(placeOf)))].sort((a, b) => a - b);
  state.place = places.reduce((best, p) => Math.abs(p - state.place) < Math.abs(best - state.place) ? p : best);
  $('place').max = String(places.length - 1);
  $('place').value = String(places.indexOf(state.place));
  const names = new Set(boards.map(board => nameOf(board.net, board.current()).join(' ')));
  $('where').replaceChildren(...written([...names].join('; ')));
}

function walk(by) {
  state.place = places[Math.max(0, Math.min(places.length - 1, places.indexOf(state.place) + by))];
  update();
}

let playing = 0;
function play() {
  if (!playing && places.indexOf(state.place) === places.length - 1) state.place = places[0];
  clearInterval(playing);
  playing = playing ? 0 : setInterval(() => {
    if (places.indexOf(state.place) === places.length - 1) play();
    else walk(1);
  }, 700);
  $('play').textContent = playing ? 'stop' : 'play';
  update();
}

function keys(e) {
  const {target, key} = e;
  if (e.altKey || e.ctrlKey || e.metaKey || $('explain').open) return;
  if (target.tagName === 'TEXTAREA' || target.tagName === 'INPUT' && target.type !== 'checkbox') return;
  if (key === 'ArrowLeft' || key === 'ArrowRight') walk(key === 'ArrowLeft' ? -1 : 1);
  else if ((key === 'ArrowUp' || key === 'ArrowDown') && ['picture', 'tokens'].includes(target.id)) {
    const step = (e.shiftKey && pictures ? nets[0].across : 1) * (key === 'ArrowUp' ? -1 : 1);
    state.token = Math.max(0, Math.min(count() - 1, state.token + step));
    update();
  } else if (key === ' ' && target.id === 'picture') {
    const n = state.mode === 'hide' ? tokenIn(masked) - 1 : -1;
    if (state.token && state.mode === 'draw') paint(...middle());
    if (state.token && n >= 0) hide(n, !state.hidden[n]);
  } else return;
  e.preventDefault();
}

// ---- the board of one network ---------------------------------------------------------------------------------------

function makeBoard(net) {
  const c = net.config, options = {eta: c.eta, lam: c.lam, heads: {}, attention: {}, second: {}, atoms: {}};
  const board = {net, options, mixed: null, trace: null, trained: null, draw, compute, current};
  const root = el('section', {class: 'board', 'aria-label': net.name},
    el('div', {class: 'title'}, el('h2', {}, `${net.name}: ${sizeOf(net)}`), el('p', {class: 'note'})));
  const titleNote = root.querySelector('.note');
  const panel = (title, what, plain) => {
    const box = el('section', {class: 'panel', 'aria-label': title}, el('h3', {}, title, ask(what, net)),
      el('p', {class: 'note'}, plain));
    root.append(box);
    return box;
  };
  const tokens = panel('Tokens', 'tokens', 'The numbers that the network computes with, one row a token.');
  const heads = panel('Attention of this token', 'attention', 'Which tokens each head averages for this one.');
  const examples = pictures ? held.atoms[net.index] : [], unit = net.second === 'ISTA' ? 'atom' : 'unit';
  const atoms = examples.length > 0 && panel(`${unit === 'atom' ? 'Atoms' : 'Hidden units'} of this token`, 'atoms',
    `The ${unit}s that it uses most, and the patches of ${held.samples.length} pictures that use each of them most.`);
  const stopped = 'if it stopped after each layer.';
  const said = net.masked ? panel('What the decoder says, layer by layer', 'patches',
    `The picture that the network would draw ${stopped}`)
    : !pictures ? panel('Next token, layer by layer', 'next', `The token that the network would write next ${stopped}`)
      : net.classes && panel('Class probabilities, layer by layer', 'classes',
        `What the network would answer ${stopped}`);
  const masks = pictures && panel('Where the class token looks: 60% of its attention', 'mask',
    'The part of the picture that each head looks at most.');
  const parts = panel('Change the network', 'switches', 'Move or switch something, and see what changes above.');
  $('boards').append(root);

  // -- what is computed

  const used = () => board.mixed || net;

  function compute() {
    const began = performance.now(), hidden = isHidden(net);
    board.trace = traced(used(), {...options, hidden});
    if (changed()) board.trained ||= traced(net, {hidden});
    else board.trained = board.trace;
    board.seconds = (performance.now() - began) / 1000;
  }

  /** The states and attention weights of a network, and the measures of each layer. */
  function traced(some, chosen) {
    const trace = Network.forward(some, pictures ? state.picture : state.ids, chosen);
    trace.measures = Network.measures(some, trace.states, chosen.lam ?? c.lam);
    return trace;
  }

  /** Whether anything is not as it was trained. */
  function changed() {
    const {eta, lam, heads, attention, second, atoms} = options;
    const off = part => Object.values(part).some(v => v === false || Array.isArray(v) && v.includes(false));
    return !!board.mixed || eta !== c.eta || lam !== c.lam || [heads, attention, second, atoms].some(off);
  }

  /** The state that one looks at: the last one up to the place on the walk. */
  function current() {
    return board.trace.states.filter(s => placeOf(s) <= state.place).pop() || board.trace.states[0];
  }

  function draw() {
    const here = current(), same = here === board.shown;          // then only another token is pointed at
    board.shown = here;
    drawTokens(here);
    drawHeads(here);
    if (atoms) drawAtoms(here);
    if (!pictures) drawNext();
    if (same) return;
    titleNote.textContent = `computed in ${board.seconds.toFixed(2)} s, here in the browser`
      + (board.mixed ? '. The weights are mixed: nothing here is learned' : '');
    drawMeasures(here);
    if (masks) drawMasks(here);
    if (net.masked) drawPatches();
    else if (net.classes) drawClasses();
    drawParts();
  }

  // -- tokens and their measures

  const heat = el('canvas', {class: 'tokens', role: 'img', 'aria-label': 'tokens as a heat map'});
  heat.addEventListener('pointermove', e => {
    const r = heat.getBoundingClientRect(), n = Math.floor((e.clientY - r.top) / r.height * current().z.n);
    if (current().z.n === count() && n >= 0 && n < count()) hover(n);
  });
  const tokensNote = el('p', {class: 'note'}), numbers = el('div', {class: 'numbers'});
  tokens.append(tokensNote, heat, numbers, ...remarks(net).map(text => el('p', {class: 'note'}, text)));

  function drawTokens(here) {
    const {z} = here, sizes = Float32Array.from(z.data, Math.abs).sort(), most = sizes[Math.floor(0.995 * sizes.length)]
      || 1;
    tokensNote.replaceChildren(...written(`${nameOf(net, here).join(', ')}: ${z.n} tokens, one per row, of ${z.d} `
      + `numbers; white is 0, colours end at ±${short(most)}`));
    const high = Math.max(2, Math.min(6, Math.round(200 / z.n))), wide = Math.max(1, Math.round(420 / z.d));
    cells(heat, z.n, z.d, (i, j) => blueOrange(z.data[i * z.d + j] / most), high, wide);
    frame(heat, 0, tokenIn(net) * high, heat.width, high, '#000', 1);
  }

  /** The measures of this layer, which are the orange points, and their curves over all layers. Each number names the
      tokens that were measured: for some measures they are those after attention, for others those after the layer. */
  function drawMeasures({layer: l}) {
    const nats = v => `${short(v)} nats`, shares = net.second ? [['nonzeros', 'not zero', percent, percent]] : [];
    numbers.replaceChildren(...[
      ['compressed', 'Rᶜ', nats, short],
      ['rate', 'R', nats, short],
      ...shares,
      ['objective', 'R − Rᶜ − λ|Z|₀', short, short],
    ].map(([what, name, form, formOfCurve]) => {
      const measure = board.trace.measures[l][what];
      return el('div', {}, ...written(`${name} in ${nameOf(net, measure.state)[0]}: `),
        number(what, form(measure.value), net, l), curve(what, formOfCurve));
    }));
  }

  /** A measure over layers: now (a line), and as trained (dashed). */
  function curve(what, form) {
    const points = board.trace.measures.map(m => m[what]), values = points.map(point => point.value);
    const before = board.trained.measures.map(m => m[what].value);
    const L = values.length, most = Math.max(0, ...values, ...before), least = Math.min(0, ...values, ...before);
    const of = ['compressed', 'rate'].includes(what) ? 'attention' : 'layers';
    const width = 150, high = 97, span = most - least || 1;
    const x = l => 8 + (width - 16) * (L > 1 ? l / (L - 1) : 0.5), y = v => 64 - 50 * (v - least) / span;
    const line = (all, name) =>
      el('path', {class: name, d: all.map((v, l) => `${l ? 'L' : 'M'}${x(l)} ${y(v)}`).join('')});
    const svg = el('svg', {viewBox: `0 0 ${width} ${high}`, role: 'img',
      'aria-label': `${what} of layers 1 to ${L}: ${values.map(form).join(', ')}`},
      el('line', {class: 'axis', x1: '0', x2: String(width), y1: String(y(0)), y2: String(y(0))}),
      el('text', {x: '0', y: '9'}, `highest ${form(Math.max(...values))}`),
      el('text', {x: '0', y: '80'}, `lowest ${form(Math.min(...values))}`),
      el('text', {x: '0', y: '94'}, `after ${of} 1 to ${L}`));
    if (net.masked) {                                             // where the decoder begins
      const middle = String((x(c.n_layer - 1) + x(c.n_layer)) / 2);
      svg.append(el('line', {class: 'axis', x1: middle, x2: middle, y1: '14', y2: '64'}));
    }
    if (board.trained !== board.trace) svg.append(line(before, 'trained'));
    svg.append(line(values, 'now'), ...values.map((v, l) => el('circle', {cx: String(x(l)), cy: String(y(v)), r: '4',
      class: l === current().layer ? 'here' : '', onclick: () => { state.place = placeOf(points[l].state); update(); }},
      el('title', {}, `layer ${l + 1}: ${form(v)}`))));
    return svg;
  }

  // -- attention

  const headsNote = el('p', {class: 'note'}), headsBox = el('div', {class: pictures ? 'maps' : ''});
  heads.append(headsNote, headsBox);

  function drawHeads({layer: l, z: {n}}) {
    const token = tokenIn(net), {decodes, K} = net.layers[l];
    const who = !pictures ? 'this token' : token ? 'this patch' : 'the class token';
    headsNote.textContent = `in layer ${decodes ? `${l - c.n_layer + 1} of the decoder` : l + 1}: what ${who} averages `
      + 'in each head; much is bright in pictures and blue in text, and each head has its own scale';
    refill(headsBox, Array.from({length: K}, (_, k) => {
      const map = board.trace.maps[l].subarray((k * n + token) * n, (k * n + token + 1) * n);
      const off = (options.heads[l] || [])[k] === false;
      return (pictures ? headMap : headStrip)(map, l, k, token, off ? 'off' : '');
    }));
  }

  function headSwitch(l, k) {
    const on = (options.heads[l] || [])[k] !== false, name = `head ${k + 1} of layer ${l + 1}`;
    return el('label', {}, el('input', {type: 'checkbox', checked: on, 'aria-label': name, onchange: e => {
      options.heads[l] ||= Array(net.layers[l].K).fill(true);
      options.heads[l][k] = e.target.checked;
      update({net});
    }}), `head ${k + 1}`);
  }

  /** The weights of a head over the patches, and the class token's beside it. */
  function headMap(map, l, k, token, off) {
    const canvas = el('canvas', {role: 'img', 'aria-label': `map of head ${k + 1}`}), {across} = net;
    const most = Math.max(...map.subarray(1));
    cells(canvas, net.down, across, (i, j) => viridis(map[1 + i * across + j] / most), 10, 10);
    if (token) frame(canvas, (token - 1) % across * 10, Math.floor((token - 1) / across) * 10, 10, 10, '#d55e00', 2);
    return el('figure', {class: off}, canvas, headSwitch(l, k), el('br'),
      number('attention', `up to ${percent(most)}`, net, l), el('br'), `class ${percent(map[0])}`);
  }

  /** The weights of a head behind the text; later tokens, which a token does not see, are grey. */
  function headStrip(map, l, k, token, off) {
    const most = Math.max(...map), line = el('p', {class: 'text'});
    state.ids.forEach((id, n) => {
      const kind = n > token ? 'later' : n === token ? 'token' : '';
      const span = el('span', {class: kind, title: percent(map[n])}, shown(id));
      span.style.background = `rgba(0, 114, 178, ${(0.85 * map[n] / most).toFixed(3)})`;
      if (map[n] > 0.6 * most) span.style.color = '#fff';
      line.append(span);
    });
    return el('div', {class: `strip ${off}`}, headSwitch(l, k), ' up to ',
      number('attention', percent(most), net, l), line);
  }

  // -- atoms

  const atomsNote = el('p', {class: 'note'}), atomsBox = el('div', {class: 'maps'});
  const atomsOff = el('p', {class: 'note', role: 'status'});
  const allOn = el('button', {type: 'button'}, `switch all ${unit}s on`);
  allOn.onclick = () => {
    options.atoms = {};
    update({net});
  };
  if (atoms) atoms.append(atomsNote, atomsBox, atomsOff, allOn);

  function drawAtoms({layer: l}) {
    const token = tokenIn(net), values = board.trace.atoms[l], who = token ? 'this patch' : 'the class token';
    const strongest = values ? Network.strongest(values, token) : [];
    if (net.layers[l].decodes) atomsNote.textContent = 'The decoder has no atoms.';
    else if (!values) atomsNote.textContent = `The ${net.second} of layer ${l + 1} is off.`;
    else if (!strongest.length) atomsNote.textContent = `In layer ${l + 1} ${who} uses no ${unit}.`;
    else atomsNote.textContent = `In layer ${l + 1}, for ${who}. Numbers say how much it uses them. Take a tick away, and `
      + `the ${unit} is 0 for all tokens.`;
    refill(atomsBox, strongest.map(j => atomFigure(l, j, values.data[token * values.d + j])));

    const off = Object.entries(options.atoms).flatMap(([layer, on]) =>
      [...on.keys()].filter(j => on[j] === false).map(j => `${unit} ${j + 1} of layer ${Number(layer) + 1}`));
    const line = off.length ? `Off: ${off.join(', ')}.` : '';
    if (atomsOff.textContent !== line) atomsOff.textContent = line;       // else it would be read aloud again
    allOn.hidden = !off.length;
  }

  /** The patches that use atom j of layer l most, its switch, and its value for a token. */
  function atomFigure(l, j, value) {
    const places = examples[l][j].filter(([, patch]) => patch >= 0), name = `${unit} ${j + 1}`;
    const on = (options.atoms[l] || [])[j] !== false;
    const canvas = el('canvas', {role: 'img', 'aria-label': `the ${places.length} patches that use ${name} most`});
    drawExamples(canvas, net, places);
    const box = el('input', {type: 'checkbox', checked: on, 'aria-label': `${name} of layer ${l + 1}`});
    box.onchange = () => {
      options.atoms[l] ||= [];
      options.atoms[l][j] = box.checked;
      update({net});
    };
    return el('figure', {class: on ? '' : 'off'}, el('label', {}, canvas, box, name), el('br'),
      number('atoms', short(value), net, l));
  }

  // -- where the class token looks

  const masksBox = el('div', {class: 'maps'});
  if (masks) masks.append(...(unused(net) ? [el('p', {class: 'note'}, unused(net))] : []), masksBox);

  /** The picture where a head of the class token looks most, and pale elsewhere. */
  function drawMasks({layer: l, z: {n}}) {
    const [h, w] = c.patch_size, size = Math.max(1, Math.round(84 / W));
    masksBox.replaceChildren(...Array.from({length: net.layers[l].K}, (_, k) => {
      const kept = Network.topMass(Network.classMap(board.trace.maps[l], k, n));
      const canvas = el('canvas', {role: 'img', 'aria-label': `mask of head ${k + 1}`});
      cells(canvas, H, W, (i, j) => {
        const inside = kept[Math.floor(i / h) * net.across + Math.floor(j / w)];
        return colourAt(i, j, net).map(v => inside ? v : 200 + v / 8);
      }, size, size);
      const patches = kept.filter(Boolean).length;
      return el('figure', {}, canvas, `head ${k + 1}: `, number('mask', `${patches} patches`, net, l));
    }));
  }

  // -- what the network says after each layer

  const saidBox = el('div', {class: 'scroll'});
  if (said) said.append(saidBox);

  /** The states that are read: the embedding and those after whole layers. */
  const readable = trace => trace.states.filter(s => ['start', 'layer'].includes(s.step));

  /** A row of a table for a state: a press on its name goes there. cells are [text, share, class]. */
  function row(name, what, cells, s = null, last = false) {
    const head = el('th', {scope: 'row'}, ...written(name));
    if (s) head.addEventListener('click', () => { state.place = placeOf(s); update(); });
    return el('tr', {class: `${s && s === current() ? 'here' : ''} ${last ? 'last' : ''}`}, head,
      ...cells.map(([text, share, kind = '']) => {
        const cell = el('td', {class: kind, onclick: () => explain(what, net)}, text);
        cell.style.background = `rgba(0, 114, 178, ${(0.55 * share).toFixed(3)})`;
        return cell;
      }));
  }

  function drawClasses() {
    const states = readable(board.trace), trained = readable(board.trained).pop().z;
    const before = Network.probabilities(Network.read(net, trained));
    const top = [...before.keys()].sort((a, b) => before[b] - before[a]).slice(0, 10).sort((a, b) => a - b);
    const form = p => top.length > 6 ? `${(100 * p).toFixed(0)}%` : percent(p);         // ten columns have little room
    const cells = p => top.map(k => [form(p[k]), p[k]]);
    const rows = states.map((s, i) => row(nameOf(net, s)[0], 'classes',
      cells(Network.probabilities(Network.read(used(), s.z))), s, i === states.length - 1));
    if (board.trained !== board.trace) rows.push(row('was', 'classes', cells(before)));
    saidBox.replaceChildren(el('table', {class: 'classes'},
      el('tr', {}, el('td'), ...top.map(k => el('th', {scope: 'col'}, net.classes[k]))), ...rows));
    if (net.classes.length > 10)
      saidBox.append(el('p', {class: 'note'}, `The ten most likely of ${net.classes.length} classes.`));
  }

  function drawNext() {
    const states = readable(board.trace), truth = state.ids[state.token + 1];
    const predicted = (some, {z: {d, data}}) => {
      const z = {n: 1, d, data: data.slice(state.token * d, (state.token + 1) * d)};
      return Network.probabilities(Network.read(some, z));
    };
    const cells = p => [...[...p.keys()].sort((a, b) => p[b] - p[a]).slice(0, 5)
      .map(k => [`${shown(k)} ${percent(p[k])}`, p[k], k === truth ? 'right' : '']),
      ...(truth === undefined ? [] : [[percent(p[truth]), p[truth]]])];
    const rows = states.map((s, i) =>
      row(nameOf(net, s)[0], 'next', cells(predicted(used(), s)), s, i === states.length - 1));
    if (board.trained !== board.trace)
      rows.push(row('was', 'next', cells(predicted(net, readable(board.trained).pop()))));
    saidBox.replaceChildren(el('table', {}, el('tr', {}, el('td'), el('th', {colspan: '5'}, 'the five most likely'),
      ...(truth === undefined ? [] : [el('th', {}, `true: ${shown(truth)}`)])), ...rows));
  }

  /** CRATE-MAE: the prediction head after each layer of the decoder. */
  function drawPatches() {
    const hidden = isHidden(net), figure = (name, colour, ...more) => {
      const canvas = el('canvas', {role: 'img', 'aria-label': name}), size = Math.max(1, Math.round(84 / W));
      cells(canvas, H, W, colour, size, size);
      return el('figure', {}, canvas, ...written(`${name} `), ...more);
    };
    const steps = board.trace.states.filter(({step, layer}) =>
      step === 'code' || step === 'layer' && net.layers[layer].decodes);
    saidBox.replaceChildren(el('div', {class: 'maps'}, figure('input', (i, j) => colourAt(i, j, net)),
      ...steps.map(s => {
        const patches = Network.predictPatches(used(), s.z);
        const {picture, loss} = Network.reconstruct(net, patches, state.picture, hidden);
        return figure(nameOf(net, s)[0], (i, j) => pixel(picture, C, i * W + j),
          number('patches', loss === null ? 'none hidden' : short(loss), net, s.layer));
      }), figure('picture', (i, j) => pixel(state.picture, C, i * W + j))),
    el('p', {class: 'note'}, 'The numbers are the error of the hidden patches. Visible patches are predicted too.'));
  }

  // -- sliders and switches

  const sliders = el('div'), switches = el('div', {class: 'scroll'});
  const mix = el('button', {type: 'button'}, 'mix the weights'), back = el('button', {type: 'button'}, 'as trained');
  mix.onclick = () => {
    board.mixed = board.mixed ? null : Network.shuffled(net);
    update({net});
  };
  back.onclick = () => {
    Object.assign(options, {eta: c.eta, lam: c.lam, heads: {}, attention: {}, second: {}, atoms: {}});
    board.mixed = null;
    update({net});
  };
  parts.append(sliders, switches, el('div', {class: 'row'}, back, mix), el('p', {class: 'note'},
    'Mixed weights are the same numbers of each matrix in another order: as large, but nothing learned.'));
  const ista = net.second === 'ISTA', redraw = [];
  if (ista) slider('lam', 'λ', 'lambda, weight of sparsity', 100, 3);
  else sliders.append(el('p', {class: 'note'}, 'No λ here: this network has no ISTA.'));
  if (ista && c.ista === 'mm')
    sliders.append(el('p', {class: 'note'}, "No η here: ISTA with ista='mm' has no step size."));
  else if (ista || net.model === 'aot' && c.tie_out) slider('eta', 'η', 'eta, step size', 10, 2);

  /** From 0 to so many times the trained value; to the right it goes up faster. */
  function slider(name, sign, label, times, power) {
    const most = times * (c[name] || 0.01), out = el('span');
    const input = el('input', {type: 'range', min: '0', max: '1000', 'data-option': name, 'aria-label': label});
    input.oninput = () => {
      options[name] = most * (input.value / 1000) ** power;
      update({net});
    };
    sliders.append(el('div', {class: 'slider'}, out, input));
    redraw.push(() => {
      out.replaceChildren(`${sign} = `, number(name, short(options[name]), net));
      input.value = String(Math.round(1000 * (options[name] / most) ** (1 / power)));
    });
  }

  function drawParts() {
    redraw.forEach(each => each());
    mix.setAttribute('aria-pressed', String(!!board.mixed));
    const label = l => net.layers[l].decodes ? `D${l - c.n_layer + 1}` : String(l + 1);
    const box = (what, name, l) => {
      const input = el('input', {type: 'checkbox', 'data-part': what, checked: options[what][l] !== false,
        'aria-label': `${name} of layer ${label(l)}`});
      input.onchange = () => {
        options[what][l] = input.checked;
        update({net});
      };
      return el('td', {class: 'switch'}, input);
    };
    const row = (what, name) =>
      el('tr', {}, el('th', {scope: 'row'}, name), ...net.layers.map((_, l) => box(what, name, l)));
    refill(switches, [el('table', {},
      el('tr', {}, el('th', {scope: 'row'}, 'layer'), ...net.layers.map((_, l) => el('th', {scope: 'col'}, label(l)))),
      row('attention', net.subspaces ? 'MSSA' : 'attention'),
      ...(net.second ? [row('second', net.masked ? 'ISTA or E' : net.second)] : []))]);
  }

  return board;
}

/** Replaces children, and keeps the keyboard where it was. */
function refill(box, children) {
  const label = box.contains(document.activeElement) && document.activeElement.getAttribute('aria-label');
  box.replaceChildren(...children);
  const same = label && [...box.querySelectorAll('input')].find(other => other.getAttribute('aria-label') === label);
  if (same) same.focus();
}

function sizeOf(net) {
  const {n_layer: L, n_embd: d, attn, mlp} = net.config, more = net.layers.length - L;
  const name = {crate: pictures ? 'CRATE' : 'CRATE-GPT', crate_mae: 'CRATE-MAE', vit: 'ViT',
    aot: attn !== 'mhsa' ? 'AoT' : mlp ? 'GPT-2' : 'AoT with MHSA'}[net.model];
  return `${name}, ${more ? `${L} + ${more}` : L} layers, ${net.layers[0].K} heads, width ${d}`;
}

/** What the measures of a network are of, and what they do not mean. */
function remarks(net) {
  const found = ['Curves: over all layers; dashed as trained. The orange point is the number above it.'];
  if (!net.subspaces)
    found.push('Rᶜ: this attention has three projections, so a head has no one subspace. Rᶜ is that of its values, and '
      + 'nothing in this network is derived to lower it.');
  if (net.second === 'MLP')
    found.push('Non-zeros mean little here: what the MLP says is added to the tokens, and sums are hardly ever zero.');
  if (net.masked)
    found.push('Right of the grey line is the decoder. It leaves the code: its tokens need not be sparse, and Rᶜ, in '
      + 'its own subspaces V, may rise.');
  return found;
}

/** Why the class token may mean little, or ''. */
function unused(net) {
  const why = net.masked ? 'reconstructs pictures: training does not use its class token'
    : net.config.pool === 'mean' ? 'classifies the mean of its tokens: training does not use the class token by itself'
      : '';
  return why && `This network ${why}, so where it looks may mean little.`;
}

// ---- start ----------------------------------------------------------------------------------------------------------

const byTouch = matchMedia('(pointer: coarse)').matches;           // a phone has no arrow keys
const how = pictures ? 'Point at a patch, press it to keep it, or draw on the picture.' : 'Point at a token, or write.';
$('lead').textContent = `${how} The ${byTouch ? 'buttons ◀ and ▶' : 'arrow keys ← and →'} walk through the `
  + `${nets.some(net => net.second) ? 'half steps of every layer' : 'layers'}. Press a number to read its equation.`;
buildInput();
const boards = nets.map(makeBoard);
$('boards').className = nets.length > 1 ? 'two' : 'one';
state.place = nets[0].second ? 1.5 : 2;  // after attention of the first layer
state.token = pictures ? 1 + Math.floor(nets[0].down / 2) * nets[0].across + Math.floor(nets[0].across / 2)
  : Math.floor(0.6 * Math.min(...held.samples.map(s => s.ids.length)));
$('back').onclick = () => walk(-1);
$('on').onclick = () => walk(1);
$('place').oninput = e => { state.place = places[+e.target.value]; update(); };
$('play').onclick = play;
$('play').hidden = matchMedia('(prefers-reduced-motion: reduce)').matches;
document.addEventListener('keydown', keys);
compare();
choose(0);
