"""Is each half of a trained layer the step that it is derived as? What theory.py shows on drawn data, asked of checkpoints:
`denoise`, `compress` and `ista` of analyze.py with --ckpt. Functions are as in looks.py."""
import torch
from torch.nn.functional import normalize
from tqdm import tqdm

from analysis import layers as inside
from analysis import measures
from analysis.drawings import level, mean_and_spread, over_layers, say_what, side_by_side, warn_if_they_differ
from analysis.samples import batches


def only_subspaces(nets):
    """Raises ValueError for a network whose heads have no subspace."""
    for net in nets:
        if not all(hasattr(a, 'U') for a in inside.attentions(net.model)):
            raise ValueError(f'{net.name} has three projections a head and no subspace; this is for CRATE, CRATE-MAE and '
                             'AoT-MSSA, so leave it out')


# ---- denoise: AoT ---------------------------------------------------------------------------------------------------------


def denoise(c, nets):
    """AoT's eq. (6), of trained tokens: how far each lies in its own subspace before an attention step, and after it."""
    only_subspaces(nets)
    for net in nets:
        d, p = inside.bases(inside.attentions(net.model)[0]).shape[1:]
        if p >= d:
            raise ValueError(f'{net.name}: a subspace of {p} dimensions fills all {d}, and signal has no noise beside it; take '
                             'a network of several heads')
    (figure, axes), rows = side_by_side(2), []
    for net in nets:
        before, after = inside.of_all(batches(c, net, 256), inside.signal_to_noise, net.model)
        factor = after / before
        over_layers(axes[0], net, before)
        over_layers(axes[1], net, factor)
        rows += [(net.name, net.kind, l, b.mean().item(), a.mean().item(), *mean_and_spread(f))
                 for l, (b, a, f) in enumerate(zip(before, after, factor), 1)]
        b, f = before.mean(1), factor.mean(1)
        print(f'{net.name}: signal to noise {b.min():.3f} to {b.max():.3f} before a step, which multiplies it by {f.min():.3f} '
              f'to {f.max():.3f}')
    level(axes[1], 1)
    say_what(figure, axes, ["signal to noise of Z^l in its layer's subspaces", 'the attention step multiplies it by'],
             ['eq. (6), clusters together', 'factor'])
    print('to see: above 1 a step denoises, as Theorem 1 has it for true subspaces and W = eta [U_1 .. U_K]; a trained, free W '
          'need not return to the subspaces it read')
    return figure, ('network', 'weights', 'layer', 'before', 'after', 'factor', 'factor_spread'), rows


# ---- compress: CRATE --------------------------------------------------------------------------------------------------------


def compression(model, inputs):
    """R^c by a layer's own U before its attention step and after it, and the cosine between how the step turns tokens and how
    eq. (9)'s descent would: three tensors (L, B). Every token is made sqrt(d) long, as LayerNorm would about make it, since
    R^c grows with length and each next layer undoes that."""
    found = []
    for attention, normed, half, _ in inside.inside(model, *inputs):
        U = inside.bases(attention).float()
        z, after = (half.size(-1) ** 0.5 * normalize(t.float(), dim=-1) for t in (half - attention(normed), half))
        turned = (measures.sideways(move, z) for move in (after - z, -measures.compressed_rate_gradient(z, U)))
        found.append((*(measures.compressed_rate(t.unsqueeze(1) @ U) for t in (z, after)), measures.cosine(*turned)))
    return [torch.stack(part) for part in zip(*found)]


def compress(c, nets):
    """CRATE's claim of its attention, eqs. (8) to (11), of trained layers: it lowers R^c."""
    only_subspaces(nets)
    (figure, axes), rows = side_by_side(2), []
    for net in nets:
        before, after, cosine = inside.of_all(batches(c, net, 256), compression, net.model)
        over_layers(axes[0], net, before)
        over_layers(axes[1], net, after - before)
        rows += [(net.name, net.kind, l, *mean_and_spread(b), *mean_and_spread(a), *mean_and_spread(s))
                 for l, (b, a, s) in enumerate(zip(before, after, cosine), 1)]
        change, s = (after - before).mean(1), cosine.mean(1)
        print(f'{net.name}: the step lowers R^c in {(change < 0).sum()} of {len(change)} layers, it adds {change.min():+.1f} '
              f'to {change.max():+.1f} nats; its cosine to the gradient step is {s.min():.2f} to {s.max():.2f}'
              + ', which sees the future too' * any(a.causal for a in inside.attentions(net.model) if hasattr(a, 'causal')))
    warn_if_they_differ(nets)
    level(axes[1], 0)
    say_what(figure, axes, ["R^c of Z^l by its layer's U, tokens sqrt(d) long", 'what the attention step adds to it'],
             ['nats', 'nats'])
    print('to see: below 0 a step compresses, as it is derived to; a cosine near 0 says that it goes another way down than the '
          'gradient')
    return figure, ('network', 'weights', 'layer', 'before', 'before_spread', 'after', 'after_spread', 'cosine',
                    'cosine_spread'), rows


# ---- ista: CRATE ------------------------------------------------------------------------------------------------------------


def sparsification(model, inputs):
    """Of each layer's LASSO, eq. (16) with its half, Y = LN(Z^(l+1/2)): the objective a token at relu(Y), after the layer, at
    its minimum and at Z = 0: four tensors (L, B)."""
    found = []
    for layer, (*_, half, z) in tqdm(zip(model.layers, inside.inside(model, *inputs)), 'LASSO', len(model.layers), False, disable=None):
        Y, D, lam = layer.norm2(half).float(), layer.ista.D.float(), layer.ista.lam
        points = Y.relu(), z.float(), measures.lasso_minimizer(Y, D, lam, tolerance=1e-3), torch.zeros_like(Y)
        found.append([measures.lasso_objective(Z, Y, D, lam).mean(-1) for Z in points])
    return [torch.stack(part) for part in zip(*found)]


def ista(c, nets):
    """CRATE's claim of its other half, eqs. (16) and (17), of trained layers: it lowers the LASSO objective."""
    for net in nets:
        kind = getattr(net.model.config, 'ista', 'relu')
        if not all(hasattr(layer, 'ista') for layer in net.model.layers):
            raise ValueError(f'{net.name} has no ISTA, so no LASSO that its layers solve; this is for CRATE and CRATE-MAE')
        if kind != 'relu':
            raise ValueError(f"{net.name} has ista='{kind}', which is a step of another objective than eq. (16)")
    (figure, axes), rows = side_by_side(2), []
    for net in nets:
        start, end, least, empty = inside.of_all(batches(c, net, 4), sparsification, net.model)
        gone = (start - end) / (start - least)
        norms = [layer.ista.eta * torch.linalg.matrix_norm(layer.ista.D.float(), 2).item() ** 2 for layer in net.model.layers]
        over_layers(axes[0], net, gone)
        over_layers(axes[1], net, torch.tensor(norms)[:, None], band=False)
        values = torch.stack((start, end, least, empty)).mean(2)                                # (4, L)
        rows += [(net.name, net.kind, l + 1, *values[:, l].tolist(), *mean_and_spread(gone[l]), norms[l])
                 for l in range(len(gone))]
        g = gone.mean(1)
        print(f'{net.name}: the layers go {g.min():.1%} to {g.max():.1%} of the way from relu(Y) to the minimum; eta |D|^2 is '
              f'{min(norms):.2f} to {max(norms):.2f}')
    level(axes[0], 0)
    level(axes[1], 2, 'below this every step from Z >= 0 goes down')
    say_what(figure, axes, ['share of the way from relu(Y) to the least LASSO', 'step size times |D|^2'],
             ['share', 'eta |D|^2'])
    print('to see: above 0 a layer lowers its LASSO objective, as it is derived to; 1 would be the sparse code itself')
    return figure, ('network', 'weights', 'layer', 'at_relu_Y', 'after_layer', 'minimum', 'at_zero', 'share_of_the_way',
                    'share_spread', 'eta_norm2'), rows
