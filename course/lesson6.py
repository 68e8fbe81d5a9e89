"""Lesson 6: CRATE-MAE. Fill in the gaps; lesson6.md says what they are about.

    python course/check.py 6
    python course/lesson6.py        # your network fills in what is hidden
"""
import torch


def visible(noise: torch.Tensor, ratio: float) -> tuple:
    """Which patches stay. noise (B, N): a random number for each patch. Of each picture the M =
    int(N (1 - ratio)) patches with the least noise stay. Returns two tensors of whole numbers: keep
    (B, M), the numbers of the patches that stay, the least noise first; and back (B, N), the place
    of each patch in the list of all N patches that is sorted by noise. So patch n stays if back[n]
    < M, as keep[back[n]]."""
    raise NotImplementedError


def embed(patches: torch.Tensor, hidden: torch.Tensor, weights: dict) -> torch.Tensor:
    """Patches (B, N, P) -> tokens (B, N + 1, d) for the encoder. A patch is mapped; where hidden,
    bool (B, N), is true, the mask token takes its place. Then the class token is put in front, then
    positions are added. weights: 'patch.weight' (d, P), 'patch.bias' (d,), 'mask_token' (1, 1, d),
    'cls' (1, 1, d), 'pos' (1, N + 1, d)."""
    raise NotImplementedError


def decoder_layer(Y: torch.Tensor, weights: dict, heads: int) -> torch.Tensor:
    """A layer of the decoder, eq. (2.17), with a LayerNorm (eps 1e-5) before each half: Y (B, N, d)
    -> (B, N, d). The skip takes E y, not the normed E y. Scores are divided by sqrt(p). weights:
    'norm1.weight' and '.bias' (d,), 'E.weight' (d, d), 'norm2.weight' and '.bias' (d,),
    'attn.U.weight' (K p, d), 'attn.W.weight' (d, K p) and '.bias' (d,)."""
    raise NotImplementedError


def targets(patches: torch.Tensor) -> torch.Tensor:
    """What to predict if brightness and contrast shall not count: each patch of patches (B, N, P)
    less its mean, divided by the root of (its variance + 1e-6). The variance has the divisor P -
    1."""
    raise NotImplementedError


def masked_loss(pred: torch.Tensor, target: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
    """The loss, eq. (2.22) on hidden patches alone: the mean of the squared errors of all numbers
    of all patches where hidden, bool (B, N), is true. pred and target (B, N, P). Returns one
    number, shape ()."""
    raise NotImplementedError


def there_and_back(Z: torch.Tensor, U: torch.Tensor, steps: int) -> tuple:
    """So many steps Z + kappa MSSA(Z | U) of eq. (2.11) with kappa = 1 / steps, and then as many
    steps Y - kappa MSSA(Y | U) of eq. (2.16). MSSA is that of lesson 2, without a mask. Z (B, N,
    d), U (K, d, p). Returns two: the tokens after the first steps, and at the end, (B, N, d)
    each."""
    raise NotImplementedError


# ---- the experiment: your network fills in what is hidden ---------------------------------------

LAYERS = 2
HEADS = 3
SIDE = 4                                                                # pixels of a patch


def named_norm(z, weights, name):
    weight = weights[f'{name}.weight']
    bias = weights[f'{name}.bias']
    return torch.nn.functional.layer_norm(z, z.shape[-1:], weight, bias)


def fill_in(cut, hidden, weights):
    """Patches (B, N, P), and which of them are hidden, bool (B, N) -> all patches, predicted
    (B, N, P)."""
    from lesson4 import layer, part
    z = embed(cut, hidden, part(weights, 'embed'))                      # (B, N + 1, d)
    for i in range(LAYERS):
        z = layer(z, part(weights, f'layers.{i}'), HEADS, eta=0.1, lam=0.5)
    z = named_norm(z, weights, 'norm')
    for i in range(LAYERS):
        z = decoder_layer(z, part(weights, f'decoder_layers.{i}'), HEADS)
    z = named_norm(z, weights, 'decoder_norm')[:, 1:]             # without the class token
    return torch.nn.functional.linear(z, weights['pixels.weight'], weights['pixels.bias'])


def hide(cut):
    """Hide 75% of patches (B, N, P), at random: bool (B, N)."""
    keep, back = visible(torch.rand(cut.shape[:2]), 0.75)
    return back >= keep.shape[1]


def loss_of_hidden(weights, cut, hidden):
    return masked_loss(fill_in(cut, hidden, weights), targets(cut), hidden)


def main(steps=600):
    import lab
    from lesson4 import patches, train
    show_ways_back()
    start = lab.first_weights('crate_mae', image_size=32, patch_size=SIDE, n_layer=LAYERS,
                              n_head=HEADS, n_embd=96)
    x, _ = lab.shapes('train')

    def batches():
        for chosen in torch.randint(len(x), (steps, 64)):
            cut = patches(x[chosen], SIDE, SIDE)
            yield cut, hide(cut)

    weights, losses = train(loss_of_hidden, start, lab.progress(batches(), steps), rate=2e-3)
    print(f'loss on hidden patches {losses[0]:.3f}, last 10 of {steps} steps '
          f'{losses[-10:].mean():.3f}')
    lab.draw('lesson6_loss.png', 'step', 'squared error, mean of 10',
             {'training': lab.smooth(losses)}, ylim=(0, 1.2))
    show_what_is_filled_in(weights)


def show_ways_back():
    import lab
    Z, U = lab.mixture(K=8, p=16, N=64, d=128, delta=0.2)
    print('there and back: how far from the start, as a share of its length')
    for steps in (1, 2, 8, 32, 128):
        there, back = there_and_back(Z[None], U, steps)
        print(f'  {steps:3} steps: there {(there - Z).norm() / Z.norm():.3f}, '
              f'back {(back - Z).norm() / Z.norm():.5f}')


def show_what_is_filled_in(weights):
    import lab
    from lesson4 import patches
    from model_crate_mae import statistics, unpatchify
    images, _ = lab.shapes('val')
    images = images[:6]
    cut = patches(images, SIDE, SIDE)                                   # (6, N, P)
    hidden = hide(cut)[..., None]                                       # (6, N, 1)

    # the network predicts patches of mean 0 and deviation 1, so its prediction is scaled by the
    # mean and deviation of the true patch
    mean, deviation = statistics(cut)
    predicted = fill_in(cut, hidden[..., 0], weights) * deviation + mean
    rows = {'original': images}
    for name, instead in (('seen', torch.zeros_like(cut)), ('filled in', predicted)):
        shown = torch.where(hidden, instead, cut)
        rows[name] = unpatchify(shown, (32, 32), (SIDE, SIDE))
    lab.draw_pictures('lesson6_filled.png', rows)


if __name__ == '__main__':
    import lab
    lab.run(main, __doc__)
