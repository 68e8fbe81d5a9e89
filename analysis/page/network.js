// The forward pass of CRATE, CRATE-MAE, AoT (with GPT-2) and ViT, as model_crate.py, model_crate_mae.py, model_aot.py
// and model_vit.py compute it in evaluation. Pure functions: they read no page and keep no state. Node runs them too.
//
// A matrix is {n, d, data}: n rows of d numbers, one after the other in a Float32Array. Tokens are rows, as in Python.
// A sum is added up in double precision. Layers and heads are counted from 0 here, and from 1 on the page.
'use strict';

const Network = (() => {

  // ---- a network from the page --------------------------------------------------------------------------------------

  /** A float16, of which these are the 16 bits. */
  function half(bits) {
    const exponent = bits >> 10 & 31, rest = bits & 1023;
    return (bits >> 15 ? -1 : 1) * (exponent ? 2 ** (exponent - 25) * (1024 + rest) : 2 ** -24 * rest);
  }

  const bytesOf = base64 => Uint8Array.from(atob(base64), c => c.charCodeAt(0));

  /** What page.py wrote of a network -> {model, config, tensors: {name: {shape, data}}, layers, ..}: what all functions
      below call `net`. */
  function open(held) {
    const halves = new Uint16Array(bytesOf(held.weights).buffer), tensors = {}, c = held.config;
    let at = 0;
    for (const [name, shape] of held.tensors) {
      const data = halves.subarray(at, at += shape.reduce((a, b) => a * b, 1));
      tensors[name] = {shape, data: Float32Array.from(data, half)};
    }
    const net = {name: held.name, model: held.model, config: c, tensors, turned: {}};
    net.reads = c.image_size ? 'images' : 'text';
    net.causal = net.reads === 'text';
    net.masked = held.model === 'crate_mae';
    net.vit = held.model === 'vit';
    net.layers = Array.from({length: c.n_layer}, (_, l) => ({prefix: `layers.${l}.`, K: c.n_head, decodes: false}));
    for (let l = 0; net.masked && l < (c.decoder_n_layer || c.n_layer); l++)
      net.layers.push({prefix: `decoder_layers.${l}.`, K: c.decoder_n_head || c.n_head, decodes: true});
    net.subspaces = 'layers.0.attn.U.weight' in tensors;          // one projection for query, key and value
    net.second = held.model === 'crate' || net.masked ? 'ISTA' : net.vit || c.mlp ? 'MLP' : '';
    net.eps = net.vit ? 1e-6 : 1e-5;                              // of the LayerNorms in layers
    if (net.reads === 'images') [net.down, net.across] = [0, 1].map(i => c.image_size[i] / c.patch_size[i]);
    return net;
  }

  // ---- parts that every network has ---------------------------------------------------------------------------------

  const matrix = (n, d, data = new Float32Array(n * d)) => ({n, d, data});
  const weightOf = (net, name) => net.tensors[name] && net.tensors[name].data;

  /** x W^T + b, as F.linear: x (n, m), W (d, m) -> (n, d). Four outputs at a time, which is faster. */
  function product(x, W, d, b = null) {
    const {n, d: m, data} = x, y = matrix(n, d);
    for (let i = 0; i < n; i++) {
      const row = i * m;
      let o = 0;
      for (; o + 3 < d; o += 4) {
        let s0 = 0, s1 = 0, s2 = 0, s3 = 0;
        for (let j = 0, w0 = o * m, w1 = w0 + m, w2 = w1 + m, w3 = w2 + m; j < m; j++) {
          const v = data[row + j];
          s0 += v * W[w0 + j]; s1 += v * W[w1 + j]; s2 += v * W[w2 + j]; s3 += v * W[w3 + j];
        }
        const at = i * d + o;
        y.data[at] = s0; y.data[at + 1] = s1; y.data[at + 2] = s2; y.data[at + 3] = s3;
      }
      for (; o < d; o++) {
        let s = 0;
        for (let j = 0; j < m; j++) s += data[row + j] * W[o * m + j];
        y.data[i * d + o] = s;
      }
      if (b) for (o = 0; o < d; o++) y.data[i * d + o] += b[o];
    }
    return y;
  }

  /** The linear map `name` of a network, with its bias if it has one. */
  function linear(net, name, x) {
    const W = net.tensors[name + '.weight'];
    return product(x, W.data, W.shape[0], weightOf(net, name + '.bias'));
  }

  /** x W for the tensor W (m, d) with this name, x (n, m) -> (n, d). W^T is kept for the next time. */
  function turned(net, name, x) {
    const {shape: [m, d], data} = net.tensors[name];
    if (!net.turned[name]) {
      const T = net.turned[name] = new Float32Array(m * d);
      for (let i = 0; i < m; i++) for (let j = 0; j < d; j++) T[j * m + i] = data[i * d + j];
    }
    return product(x, net.turned[name], d);
  }

  /** LayerNorm of every row. */
  function layerNorm(net, name, x, eps) {
    const {n, d, data} = x, y = matrix(n, d), g = weightOf(net, name + '.weight'), b = weightOf(net, name + '.bias');
    for (let i = 0; i < n; i++) {
      let mean = 0, variance = 0;
      for (let j = 0; j < d; j++) mean += data[i * d + j] / d;
      for (let j = 0; j < d; j++) variance += (data[i * d + j] - mean) ** 2 / d;
      const scale = 1 / Math.sqrt(variance + eps);
      for (let j = 0; j < d; j++) y.data[i * d + j] = (data[i * d + j] - mean) * scale * g[j] + (b ? b[j] : 0);
    }
    return y;
  }

  /** f of each pair of numbers of two matrices, or of each number of one. */
  const combine = (x, y, f) => matrix(x.n, x.d, x.data.map(y ? (v, i) => f(v, y.data[i]) : v => f(v)));
  const add = (x, y) => combine(x, y, (a, b) => a + b);

  /** The softmax of numbers from `first` to `last` - 1, in place. */
  function softmax(data, first = 0, last = data.length) {
    let most = -Infinity, sum = 0;
    for (let i = first; i < last; i++) most = Math.max(most, data[i]);
    for (let i = first; i < last; i++) sum += data[i] = Math.exp(data[i] - most);
    for (let i = first; i < last; i++) data[i] /= sum;
    return data;
  }

  /** softmax(q k^T / sqrt(p)) v in each of K heads -> {h (n, K p), maps: K n n weights, a row for each token}. The
      output of a head that is `off` is zero. q, k and v are columns of one matrix that begin at 0, keys and values. */
  function average(w, width, keys, values, K, causal, off) {
    const n = w.n, p = width / K, h = matrix(n, width), maps = new Float32Array(K * n * n), row = new Float64Array(n);
    for (let k = 0; k < K; k++)
      for (let i = 0; i < n; i++) {
        const last = causal ? i + 1 : n, q = i * w.d + k * p, out = i * width + k * p;
        for (let j = 0; j < last; j++) {
          let s = 0;
          for (let a = 0, key = j * w.d + keys + k * p; a < p; a++) s += w.data[q + a] * w.data[key + a];
          row[j] = s / Math.sqrt(p);
        }
        softmax(row, 0, last);
        for (let j = 0; j < last; j++) maps[(k * n + i) * n + j] = row[j];
        if (off(k)) continue;
        for (let a = 0; a < p; a++) {
          let s = 0;
          for (let j = 0; j < last; j++) s += row[j] * w.data[j * w.d + values + k * p + a];
          h.data[out + a] = s;
        }
      }
    return {h, maps};
  }

  /** MSSA or MHSA of normed tokens -> {update (n, d), maps}. MSSA: CRATE eqs. (11), (12) and (115), AoT eq. (4),
      CRATE-MAE eq. (2.8). MHSA: AoT eq. (5). off(k): whether head k is switched off; eta: AoT's, with tie_out. */
  function attend(net, {prefix, K}, z, off, eta) {
    const name = prefix + 'attn.', one = name + 'U.weight' in net.tensors;
    const w = linear(net, name + (one ? 'U' : 'QKV'), z), width = one ? w.d : w.d / 3;   // U_k^T Z, side by side
    const {h, maps} = average(w, width, one ? 0 : width, one ? 0 : 2 * width, K, net.causal, off);
    if (name + 'W.weight' in net.tensors) return {update: linear(net, name + 'W', h), maps};    // W [head_1; ..]
    if (!net.config.tie_out) return {update: h, maps};            // one head as wide as a token has no output map
    const tied = turned(net, name + 'U.weight', h);               // sum_k U_k head_k
    return {update: net.model === 'aot' ? combine(tied, null, v => eta * v) : tied, maps};
  }

  /** One proximal-gradient step on the LASSO of CRATE's eq. (16): eq. (17), eqs. (116) and (117), or eq. (92);
      CRATE-MAE's eq. (2.9). */
  function ista(net, prefix, z, eta, lam) {
    const D = prefix + 'ista.D', {ista: kind = 'relu', alpha} = net.config;
    if (kind === 'mm') {                                                                  // eq. (92)
      const gain = 1 + 4 / (9 * (1 + alpha)), shift = 4 * lam / (9 * alpha);
      return combine(turned(net, D, z), null, v => Math.max(0, gain * v - shift));
    }
    const residual = combine(z, product(z, weightOf(net, D), z.d), (a, b) => a - b);      // Z - D Z
    const step = combine(z, turned(net, D, residual), (a, b) => a + eta * b);             // Z + eta D^* (Z - D Z)
    const shrink = eta * lam;
    if (kind === 'soft') return combine(step, null, v => Math.sign(v) * Math.max(0, Math.abs(v) - shrink));  // (117)
    return combine(step, null, v => Math.max(0, v - shrink));                             // eq. (17)
  }

  /** The hidden numbers of the MLP of ViT and GPT-2, (n, 4 d). */
  function hiddenOf(net, prefix, z) {
    const gelu = net.config.gelu === 'tanh'
      ? v => v / 2 * (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (v + 0.044715 * v ** 3)))
      : v => v / 2 * (1 + erf(v / Math.SQRT2));
    return combine(linear(net, prefix + 'mlp.up', z), null, gelu);
  }

  /** Abramowitz and Stegun 7.1.26; the error is below 2e-7. */
  function erf(x) {
    const t = 1 / (1 + 0.3275911 * Math.abs(x));
    const sum = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))));
    return Math.sign(x) * (1 - sum * Math.exp(-x * x));
  }

  /** A matrix whose column j is 0 where on[j] is false. */
  function switched(x, on) {
    const y = matrix(x.n, x.d, x.data.slice());
    for (let j = 0; j < x.d; j++)
      if (on[j] === false)
        for (let i = 0; i < x.n; i++) y.data[i * x.d + j] = 0;
    return y;
  }

  // ---- inputs -------------------------------------------------------------------------------------------------------

  /** Normalized patches (N, P) of a picture, H W C bytes; like=true: in a patch row, column, channel, as patchify has
      them; else channel, row, column, as a convolution has them. */
  function patches(net, picture, like = true) {
    const {image_size: [H, W], patch_size: [h, w], channels: C} = net.config;
    const x = matrix(net.down * net.across, h * w * C);
    for (let i = 0; i < H; i++) for (let j = 0; j < W; j++) for (let c = 0; c < C; c++) {
      const n = Math.floor(i / h) * net.across + Math.floor(j / w), a = i % h, b = j % w;
      const place = like ? (a * w + b) * C + c : (c * h + a) * w + b;
      x.data[n * x.d + place] = normalized(picture[(i * W + j) * C + c], c, C);
    }
    return x;
  }

  // mean and deviation of a channel, as in tasks/augment.py
  const STATISTICS = [[0.485, 0.229], [0.456, 0.224], [0.406, 0.225]], GREY = [0.449, 0.226];
  function normalized(byte, c, C) {
    const [mean, deviation] = C === 3 ? STATISTICS[c] : GREY;
    return (byte / 255 - mean) / deviation;
  }

  /** A picture (H W C bytes), in which the patches n with hidden[n] are hidden, -> tokens (N + 1, d), the class token
      first. */
  function embedPicture(net, picture, hidden) {
    const patch = net.tensors['embed.patch.weight'], normed = 'embed.patch_norm.weight' in net.tensors;
    const d = net.config.n_embd;
    let z = patches(net, picture, patch.shape.length === 2);      // a linear map, or a convolution
    if (normed) z = layerNorm(net, 'embed.patch_norm', z, 1e-5);
    z = product(z, patch.data, d, weightOf(net, 'embed.patch.bias'));                     // (N, d)
    if (normed) z = layerNorm(net, 'embed.token_norm', z, 1e-5);
    const masked = weightOf(net, 'embed.mask_token') || weightOf(net, 'embed.patch.bias');
    const tokens = matrix(z.n + 1, d), cls = weightOf(net, 'embed.cls'), pos = weightOf(net, 'embed.pos');
    tokens.data.set(cls);
    tokens.data.set(z.data, d);
    for (let n = 0; net.masked && hidden && n < z.n; n++) if (hidden[n]) tokens.data.set(masked, (n + 1) * d);
    return combine(tokens, {data: pos}, (a, b) => a + b);                                 // CRATE-MAE eq. (B.1)
  }

  /** Token ids -> tokens (N, d). */
  function embedText(net, ids) {
    const d = net.config.n_embd, z = matrix(ids.length, d);
    const table = weightOf(net, 'embed.tok_emb.weight'), pos = weightOf(net, 'embed.pos_emb.weight');
    ids.forEach((id, n) => { for (let j = 0; j < d; j++) z.data[n * d + j] = table[id * d + j] + pos[n * d + j]; });
    return z;
  }

  // ---- the network --------------------------------------------------------------------------------------------------

  /** A network on a picture or on token ids -> {states, maps, atoms}. `states` are the tokens on their way, {z, layer,
      step}: the embedding, then two of each layer (one where there is no second half step), and between encoder and
      decoder the normed code. maps[l] are the attention weights of layer l, K n n. atoms[l] (n, m) are what ISTA
      returns in layer l, or the hidden numbers of its MLP, before some are switched off; none if this half is off.

      options, all optional: eta, lam; heads[l][k] = false, attention[l] = false, second[l] = false, atoms[l][j] = false
      switch parts off; hidden (N), for CRATE-MAE. A half step that is off leaves the tokens as they are. An atom that
      is off is 0 for all tokens. */
  function forward(net, input, options = {}) {
    const {eta = net.config.eta, lam = net.config.lam} = options, maps = [], atoms = [];
    const is = (what, l) => !options[what] || options[what][l] !== false;
    let z = net.reads === 'images' ? embedPicture(net, input, options.hidden) : embedText(net, input);
    const states = [{z, layer: 0, step: 'start'}];
    net.layers.forEach((layer, l) => {
      const {prefix} = layer, off = k => !!(options.heads && options.heads[l]) && options.heads[l][k] === false;
      if (!layer.decodes) {
        const {update, maps: weights} = attend(net, layer, layerNorm(net, prefix + 'norm1', z, net.eps), off, eta);
        maps.push(weights);
        if (is('attention', l)) z = add(z, update);               // Z^(l+1/2): CRATE eq. (18), AoT eq. (3)
        states.push({z, layer: l, step: net.second ? 'attention' : 'layer'});
        if (!net.second) return;
        if (is('second', l)) {
          const normed = layerNorm(net, prefix + 'norm2', z, net.eps), isIsta = net.second === 'ISTA';
          atoms[l] = isIsta ? ista(net, prefix, normed, eta, lam) : hiddenOf(net, prefix, normed);
          const used = switched(atoms[l], (options.atoms && options.atoms[l]) || []);
          z = isIsta ? used : add(z, linear(net, prefix + 'mlp.down', used));
        }
        states.push({z, layer: l, step: 'layer'});                // Z^(l+1)
        return;
      }
      if (l === net.config.n_layer) {
        z = layerNorm(net, 'norm', z, 1e-6);
        states.push({z, layer: l, step: 'code'});                 // Y^1
      }
      if (is('second', l)) z = linear(net, prefix + 'E', layerNorm(net, prefix + 'norm1', z, 1e-5));
      states.push({z, layer: l, step: 'dictionary'});             // Y^(l+1/2), CRATE-MAE eq. (2.17) left
      const normed = layerNorm(net, prefix + 'norm2', z, 1e-5);
      const {update, maps: weights} = attend(net, layer, normed, off, eta);
      maps.push(weights);
      if (is('attention', l))
        z = combine(net.config.decoder_skip === 'normed' ? normed : z, update, (a, b) => a - b);
      states.push({z, layer: l, step: 'layer'});                  // Y^(l+1), eq. (2.17) right
    });
    return {states, maps, atoms};
  }

  /** Tokens to logits: of classes (1, num_classes), or of next tokens (N, vocab_size). Works after any layer. */
  function read(net, z) {
    if (net.reads === 'text') {
      const normed = 'read.norm.weight' in net.tensors ? layerNorm(net, 'read.norm', z, 1e-5) : z;
      return product(normed, weightOf(net, 'embed.tok_emb.weight'), net.config.vocab_size);
    }
    const d = z.d, first = net.vit ? 1 : 0, seen = matrix(1, d);  // ViT's mean is without the class token
    if (net.config.pool === 'cls') seen.data.set(z.data.subarray(0, d));
    else for (let j = 0; j < d; j++) {
      let sum = 0;
      for (let i = first; i < z.n; i++) sum += z.data[i * d + j];
      seen.data[j] = sum / (z.n - first);
    }
    let normed = seen;
    for (let i = 0; i < (net.config.final_norms || 1); i++) normed = layerNorm(net, 'read.norm', normed, net.eps);
    return linear(net, 'read.head', normed);
  }

  /** How far the last token behind the layers of the encoder is from the expected one, as a share of its length. */
  function deviation(net, input, expected) {
    const {z} = forward(net, input).states.filter(s => s.layer === net.config.n_layer - 1).pop();
    const token = Array.from(rowOf(z, z.n - 1)), length = v => Math.hypot(...v);
    return length(token.map((x, j) => x - expected[j])) / length(expected);
  }

  /** Probabilities of the logits in row i. */
  const rowOf = (x, i) => x.data.subarray(i * x.d, (i + 1) * x.d);
  const probabilities = (logits, i = 0) => softmax(Float64Array.from(rowOf(logits, i)));

  /** The decoder's tokens to patches (N, P), CRATE-MAE eq. (B.2). Works after any layer of the decoder. */
  function predictPatches(net, y) {
    const out = linear(net, 'pixels', layerNorm(net, 'decoder_norm', y, 1e-6));
    return matrix(out.n - 1, out.d, out.data.slice(out.d));       // without the class token
  }

  /** Mean and standard deviation (divisor P - 1) of patch n of (N, P). */
  function statistics(x, n) {
    const row = rowOf(x, n), mean = row.reduce((a, b) => a + b, 0) / x.d;
    return [mean, Math.sqrt(row.reduce((a, b) => a + (b - mean) ** 2, 0) / (x.d - 1) + 1e-6)];
  }

  /** Predicted patches -> {picture: H W C bytes, loss: eq. (2.22) over the hidden patches, or null if none is}. With
      norm_pix_loss each patch gets the true picture's mean and deviation back, as CRATEMAE.reconstruct does. */
  function reconstruct(net, predicted, picture, hidden) {
    const {image_size: [H, W], patch_size: [h, w], channels: C, norm_pix_loss: normed} = net.config, {d} = predicted;
    const truth = patches(net, picture), bytes = new Uint8ClampedArray(H * W * C);
    let error = 0, count = 0;
    for (let n = 0; n < predicted.n; n++) {
      const [mean, deviation] = normed ? statistics(truth, n) : [0, 1];
      for (let i = 0; i < d; i++) {
        const said = predicted.data[n * d + i], c = i % C, b = Math.floor(i / C) % w, a = Math.floor(i / C / w);
        if (hidden[n]) error += (said - (truth.data[n * d + i] - mean) / deviation) ** 2 / d;
        const [m, s] = C === 3 ? STATISTICS[c] : GREY;
        const y = Math.floor(n / net.across) * h + a, x = n % net.across * w + b;
        bytes[(y * W + x) * C + c] = Math.round(((said * deviation + mean) * s + m) * 255);
      }
      count += hidden[n] ? 1 : 0;
    }
    return {picture: bytes, loss: count ? error / count : null};
  }

  // ---- measures, as in analysis/measures.py and analysis/layers.py --------------------------------------------------

  /** R(Z), CRATE eq. (7), in nats: 1/2 logdet(I + d / (n eps^2) Z Z^T) of columns first .. first + d - 1 of z, with the
      smaller of the two Gram matrices, by Cholesky's decomposition in double precision. */
  function codingRate(z, eps = 0.5, first = 0, d = z.d) {
    const {n, d: wide, data} = z, rows = n < d, m = rows ? n : d, scale = d / (n * eps ** 2);
    const A = new Float64Array(m * m);
    for (let i = 0; i < m; i++) for (let j = 0; j <= i; j++) {
      let s = 0;
      if (rows) for (let a = 0; a < d; a++) s += data[i * wide + first + a] * data[j * wide + first + a];
      else for (let a = 0; a < n; a++) s += data[a * wide + first + i] * data[a * wide + first + j];
      A[i * m + j] = scale * s + (i === j ? 1 : 0);
    }
    let rate = 0;
    for (let i = 0; i < m; i++) for (let j = 0; j <= i; j++) {
      let s = A[i * m + j];
      for (let a = 0; a < j; a++) s -= A[i * m + a] * A[j * m + a];
      A[i * m + j] = i === j ? Math.sqrt(s) : s / A[j * m + j];
      if (i === j) rate += Math.log(A[i * m + i]);
    }
    return rate;
  }

  /** R^c(Z; U_[K]), CRATE eq. (8), in the subspaces of layer l: the sum of the rates of U_k^T Z. Of three projections
      it takes the value's, as analyze.py layers does. */
  function compressedRate(net, l, z, eps = 0.5) {
    const {prefix, K} = net.layers[l], one = weightOf(net, prefix + 'attn.U.weight'), d = z.d;
    const all = one || weightOf(net, prefix + 'attn.QKV.weight'), width = all.length / d / (one ? 1 : 3);
    const w = product(z, one ? all : all.subarray(2 * width * d), width);                 // U_k^T Z, side by side
    let rate = 0;
    for (let k = 0; k < K; k++) rate += codingRate(w, eps, k * width / K, width / K);
    return rate;
  }

  /** |Z|_0 / (n d), the share of non-zeros. */
  const nonzeros = z => z.data.reduce((count, v) => count + (v !== 0), 0) / z.data.length;

  /** What CRATE maximizes, eq. (1): R(Z) - R^c(Z; U_[K]) - lambda |Z|_0, in the subspaces of layer l. */
  const objective = (net, l, z, lam = 0.1) =>
    codingRate(z) - compressedRate(net, l, z) - lam * nonzeros(z) * z.data.length;

  /** For each layer, of the states of `forward`: {name: {state, value}}, the measures of analyze.py layers, and R. R^c
      and R are those of the tokens after attention, the others those of the tokens after the layer. */
  function measures(net, states, lam) {
    return net.layers.map((layer, l) => {
      const made = states.filter(s => s.layer === l && !['start', 'code'].includes(s.step));
      const last = made[made.length - 1], attended = layer.decodes ? last : made[0];
      return {
        compressed: {state: attended, value: compressedRate(net, l, attended.z)},
        rate: {state: attended, value: codingRate(attended.z)},
        nonzeros: {state: last, value: nonzeros(last.z)},
        objective: {state: last, value: objective(net, l, last.z, lam)},
      };
    });
  }

  /** Where the class token looks in head k: its weights over the patches, without itself; CRATE-MAE eq. (B.4). */
  function classMap(maps, k, n) {
    const row = Float64Array.from(maps.subarray(k * n * n + 1, k * n * n + n)), sum = row.reduce((a, b) => a + b, 0);
    return row.map(v => v / sum);
  }

  /** The `most` numbers of row i of a matrix that are farthest from 0, those that are 0 left out: their columns. */
  function strongest(x, i, most = 5) {
    const row = rowOf(x, i), order = [...row.keys()].filter(j => row[j] !== 0);
    return order.sort((a, b) => Math.abs(row[b]) - Math.abs(row[a])).slice(0, most);
  }

  /** The fewest places of a map that hold `share` of it: an array of booleans. */
  function topMass(map, share = 0.6) {
    const kept = Array(map.length).fill(false), order = [...map.keys()].sort((a, b) => map[b] - map[a]);
    for (let i = 0, held = 0; i < order.length && held < share; held += map[order[i++]]) kept[order[i]] = true;
    return kept;
  }

  /** The same network with the numbers of every tensor in another order: as large, and nothing learned. */
  function shuffled(net) {
    let seed = 1337;
    const tensors = {};
    for (const [name, {shape, data}] of Object.entries(net.tensors)) {
      const mixed = data.slice();
      for (let i = mixed.length - 1; i > 0; i--) {
        seed = (Math.imul(seed, 1664525) + 1013904223) >>> 0;
        const j = Math.floor(seed / 2 ** 32 * (i + 1));
        [mixed[i], mixed[j]] = [mixed[j], mixed[i]];
      }
      tensors[name] = {shape, data: mixed};
    }
    return {...net, tensors, turned: {}};
  }

  return {bytesOf, open, forward, deviation, read, probabilities, predictPatches, reconstruct, measures, classMap,
          strongest, topMass, shuffled};
})();

if (typeof module !== 'undefined') module.exports = Network;
