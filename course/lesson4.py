"""Lesson 4: CRATE. Fill in the gaps; lesson4.md says what they are about.

    python course/check.py 4
    python course/lesson4.py        # trains your network
"""
import torch


def part(weights: dict, name: str) -> dict:
    """Given: the weights of one part of a network, without its name in front. part(weights,
    'layers.0') has 'norm1.weight' for 'layers.0.norm1.weight'."""
    return {k.removeprefix(f'{name}.'): v for k, v in weights.items() if k.startswith(f'{name}.')}


def patches(x: torch.Tensor, h: int, w: int) -> torch.Tensor:
    """Pictures (B, C, H, W), cut into patches of h x w pixels: (B, N, h w C). Patches go row by
    row. In a patch: row, then column, then channel, as the authors' weights need it; the channel
    changes fastest."""
    raise NotImplementedError


def tokens(x: torch.Tensor, weights: dict, h: int, w: int) -> torch.Tensor:
    """Pictures (B, C, H, W) -> tokens (B, N + 1, d), the class token first. A patch is normalized,
    mapped, and normalized again; then the class token is put in front, then positions are added.
    All norms of this lesson have PyTorch's eps, 1e-5. P is h w C. weights: 'patch_norm.weight' and
    '.bias' (P,), 'patch.weight' (d, P) and '.bias' (d,), 'token_norm.weight' and '.bias' (d,),
    'cls' (1, 1, d), 'pos' (1, N + 1, d)."""
    raise NotImplementedError


def layer(Z: torch.Tensor, weights: dict, heads: int, eta: float, lam: float,
          causal: bool = False) -> torch.Tensor:
    """A layer, eq. (18): Z (B, N, d) -> (B, N, d). Attention and then ISTA, a LayerNorm before each
    of them. With causal, for text, token n gets nothing from tokens n + 1, n + 2, .. weights:
    'norm1.weight' and '.bias' (d,), 'attn.U.weight' (K p, d), in which the rows of head 1 come
    first, 'attn.W.weight' (d, K p) and '.bias' (d,), 'norm2.weight' and '.bias' (d,), 'ista.D' (d,
    d)."""
    raise NotImplementedError


def classify(x: torch.Tensor, weights: dict, layers: int, heads: int, h: int, w: int, eta: float,
             lam: float) -> torch.Tensor:
    """The network: pictures (B, C, H, W) -> logits (B, classes). weights has the names of
    model_crate.py: those of tokens with 'embed.' in front, those of layer with 'layers.0.',
    'layers.1.' and so on, and 'read.norm.weight', 'read.norm.bias' (d,), 'read.head.weight'
    (classes, d), 'read.head.bias'. The class token is normalized, then mapped to logits."""
    raise NotImplementedError


def predict(x: torch.Tensor, weights: dict, layers: int, heads: int, eta: float,
            lam: float) -> torch.Tensor:
    """The network for text: token ids x, int64 (B, N) -> logits (B, N, V) of the next token. A
    token is its row of the table 'embed.tok_emb.weight' (V, d), plus the row of its place in
    'embed.pos_emb.weight' (block_size, d), which may have more rows than N. Then come the layers,
    with a causal mask. The logit of token v is the inner product with row v of the table. There is
    no norm at the end."""
    raise NotImplementedError


def train(loss_of, weights: dict, batches, rate: float) -> tuple:
    """Takes one step of torch.optim.AdamW, with this rate and all other settings at their defaults,
    for each batch (x, y) in batches, down the gradient of loss_of(weights, x, y), a tensor of shape
    (). It works on copies of the weights, a dict of tensors. Returns two things: the trained
    weights, a dict with the same names; and the loss of each batch before its step, a tensor
    (number of batches,)."""
    raise NotImplementedError


# ---- the experiment: your network is trained ----------------------------------------------------

SIZES = {'n_layer': 2, 'n_head': 3, 'n_embd': 96}               # with the names of model_crate.py
NET = {'layers': 2, 'heads': 3, 'eta': 0.1, 'lam': 0.1}         # with those of your functions


def main(steps=300):
    import lab
    start = lab.first_weights('crate', image_size=32, patch_size=8, num_classes=10, **SIZES)
    learn_a_batch_by_heart(start, steps // 3)
    learn_all_pictures(start, 3 * steps)
    take_trained_weights()
    learn_text(steps)


def loss_of_pictures(weights, x, y):
    logits = classify(x, weights, h=8, w=8, **NET)                      # (B, classes)
    return torch.nn.functional.cross_entropy(logits, y)


def loss_of_text(weights, x, y):
    logits = predict(x, weights, **NET)                                 # (B, N, V)
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten())


def learn_a_batch_by_heart(start, steps):
    import lab
    print('one batch of 32 pictures by heart')
    x, y = lab.shapes('train')
    batches = [(x[:32], y[:32])] * steps
    _, losses = train(loss_of_pictures, start, batches, rate=3e-3)
    print(f'  loss {losses[0]:.3f}, after {steps} steps {losses[-1]:.3f}')


def learn_all_pictures(start, steps):
    import lab
    print('all pictures')
    x, y = lab.shapes('train')
    batches = ((x[chosen], y[chosen]) for chosen in torch.randint(len(x), (steps, 64)))
    weights, losses = train(loss_of_pictures, start, lab.progress(batches, steps), rate=1e-3)
    lab.draw('lesson4_shapes.png', 'step', 'loss, nats, mean of 10',
             {'training': lab.smooth(losses)})

    x, y = lab.shapes('val')
    with torch.no_grad():
        classes = classify(x, weights, h=8, w=8, **NET).argmax(1)
    right = (classes == y).double().mean()
    print(f'  loss {losses[0]:.3f}, last 10 of {steps} steps {losses[-10:].mean():.3f}; '
          f'right on new pictures: {right:.1%}')


def take_trained_weights(pictures=1000):
    """Your network with the weights of a run that came with the project."""
    import lab
    weights, c = lab.trained_crate()
    x, y = lab.shapes('test')
    x = x[:pictures]
    y = y[:pictures]
    with torch.no_grad():
        logits = classify(x, weights, c.n_layer, c.n_head, *c.patch_size, c.eta, c.lam)
    right = (logits.argmax(1) == y).double().mean()
    print(f'{c.n_layer} layers of width {c.n_embd}, trained for 900 steps of 128 pictures')
    print(f'  right on {pictures} new pictures: {right:.1%}')


def learn_text(steps):
    """From two starts: as model_crate.py has it, and with five times as large embeddings, U and
    W."""
    import lab
    print(f'text: loss of the last 10 of {steps} steps')
    small = lab.first_weights('crate', image_size=0, vocab_size=256, block_size=64, **SIZES)
    large = {}
    for name, weight in small.items():
        if name.endswith(('emb.weight', 'U.weight', 'W.weight')):
            weight = 5 * weight
        large[name] = weight

    batches = lab.text_batches('train', steps)
    rates = (1e-3, 3e-3, 1e-2)
    curves = {}
    for name, start in (('N(0, 0.02^2)', small), ('N(0, 0.1^2)', large)):
        ends = []
        for rate in rates:
            _, losses = train(loss_of_text, start, lab.progress(batches, steps), rate)
            ends.append(losses[-10:].mean())
            print(f'  weights from {name}, rate {rate}: {ends[-1]:.3f}')
        curves[name] = (rates, ends)
    lab.draw('lesson4_starts.png', 'rate of AdamW', 'loss, nats', curves, xscale='log')


if __name__ == '__main__':
    import lab
    lab.run(main, __doc__)
