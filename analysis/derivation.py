"""Is each half of a trained layer the step that it is derived as? theory.py asks this of tokens
drawn at random; these functions ask it of networks. They are called as those in drawings.py."""
import torch
from torch.nn.functional import normalize
from tqdm import tqdm

from analysis import layers, measures
from analysis.drawings import label_panels, level, mean_and_spread, over_layers, side_by_side, warn_if_lengths_differ
from analysis.samples import batches


def only_subspaces(nets):
    """Raises ValueError for a network whose heads have no subspace."""
    for net in nets:
        if not layers.has_subspaces(net.model):
            raise ValueError(f'{net.name} has three projections per head and no subspace; this is for CRATE, CRATE-MAE '
                             'and AoT-MSSA, so leave it out')


# ---- denoising: AoT -------------------------------------------------------------------------------------------------

def draw_signal_to_noise(c, nets):
    """AoT's eq. (6) for trained tokens, before and after each attention step."""
    only_subspaces(nets)
    for net in nets:
        d, p = layers.bases(layers.attentions(net.model)[0]).shape[1:]
        if p >= d:
            raise ValueError(f'{net.name}: a subspace of {p} dimensions fills all {d}, so there is no noise outside '
                             'it; take a network of several heads')
    (figure, axes), rows = side_by_side(2), []
    for net in nets:
        before, after = layers.of_all(batches(c, net, 256), layers.signal_to_noise, net.model)
        factor = after / before
        over_layers(axes[0], net, before)
        over_layers(axes[1], net, factor)
        rows += [(net.name, net.kind, l, b.mean().item(), a.mean().item(), *mean_and_spread(f))
                 for l, (b, a, f) in enumerate(zip(before, after, factor), 1)]
        b, f = before.mean(1), factor.mean(1)
        print(f'{net.name}: the signal-to-noise ratio is {b.min():.3f} to {b.max():.3f} before a step, which '
              f'multiplies it by {f.min():.3f} to {f.max():.3f}')
    level(axes[1], 1)
    titles = "signal to noise of Z^l in the layer's subspaces", 'the attention step multiplies it by'
    label_panels(figure, axes, titles, ['eq. (6), clusters together', 'factor'])
    print('to see: a step with a factor above 1 denoises, as Theorem 1 says for the true subspaces and W = eta [U_1 .. '
          'U_K]; a trained, free W need not map back into the subspaces')
    return figure, ('network', 'weights', 'layer', 'before', 'after', 'factor', 'factor_spread'), rows


# ---- compression: CRATE ---------------------------------------------------------------------------------------------

def rate_changes(model, inputs):
    """R^c in the subspaces of each layer before its attention step and after it, and the cosine
    between how the step and how a step down the gradient, eq. (9), turn the tokens: three tensors
    (L, B). Every token is scaled to norm sqrt(d), about what LayerNorm gives it: R^c grows with the
    norm, and the next LayerNorm undoes that."""
    found = []
    for attention, normed, half, _ in layers.inside(model, *inputs):
        U = layers.bases(attention).float()
        z, after = (half.size(-1) ** 0.5 * normalize(t.float(), dim=-1) for t in (half - attention(normed), half))
        turned = (measures.turning(step, z) for step in (after - z, -measures.compressed_rate_gradient(z, U)))
        found.append((*(measures.compressed_rate(t.unsqueeze(1) @ U) for t in (z, after)), measures.cosine(*turned)))
    return [torch.stack(part) for part in zip(*found)]


def draw_rate_changes(c, nets):
    """CRATE's claim about attention, eqs. (8) to (11), in trained layers: it lowers R^c."""
    only_subspaces(nets)
    (figure, axes), rows = side_by_side(2), []
    for net in nets:
        before, after, cosine = layers.of_all(batches(c, net, 256), rate_changes, net.model)
        over_layers(axes[0], net, before)
        over_layers(axes[1], net, after - before)
        rows += [(net.name, net.kind, l, *mean_and_spread(b), *mean_and_spread(a), *mean_and_spread(s))
                 for l, (b, a, s) in enumerate(zip(before, after, cosine), 1)]
        change, s = (after - before).mean(1), cosine.mean(1)
        print(f'{net.name}: the step lowers R^c in {(change < 0).sum()} of {len(change)} layers, it adds '
              f'{change.min():+.1f} to {change.max():+.1f} nats; its cosine to the gradient step is {s.min():.2f} to '
              f'{s.max():.2f}'
              + ' (the gradient sees later tokens too)' * layers.causal(net.model))
    warn_if_lengths_differ(c, nets)
    level(axes[1], 0)
    titles = "R^c of Z^l in the layer's U, tokens of norm sqrt(d)", 'what the attention step adds to it'
    label_panels(figure, axes, titles, ['nats', 'nats'])
    print('to see: a step below 0 compresses, as it is derived to; a cosine near 0 says that it goes down another way '
          'than the gradient')
    return figure, ('network', 'weights', 'layer', 'before', 'before_spread', 'after', 'after_spread', 'cosine',
                    'cosine_spread'), rows


# ---- sparsification: CRATE ------------------------------------------------------------------------------------------

def lasso_values(model, inputs):
    """The LASSO objective per token of each layer, eq. (16) with a factor 1/2 and Y =
    LN(Z^(l+1/2)): at relu(Y), after the layer, at its minimum and at Z = 0. Four tensors (L, B)."""
    found, steps = [], zip(model.layers, layers.inside(model, *inputs))
    for layer, (*_, half, z) in tqdm(steps, 'LASSO', len(model.layers), leave=False, disable=None):
        Y, D, lam = layers.needed(layer, 'norm2')(half).float(), layer.ista.D.float(), layer.ista.lam
        points = Y.relu(), z.float(), measures.lasso_minimizer(Y, D, lam, tolerance=1e-3), torch.zeros_like(Y)
        found.append([measures.lasso_objective(Z, Y, D, lam).mean(-1) for Z in points])
    return [torch.stack(part) for part in zip(*found)]


def only_ista(nets):
    """Raises ValueError for a network whose layers do not lower a LASSO objective by ISTA."""
    for net in nets:
        if not all(getattr(layer, 'ista', None) for layer in net.model.layers):
            raise ValueError(f'{net.name} has no ISTA, so no LASSO that its layers solve; this is for CRATE and '
                             'CRATE-MAE')
        for layer in net.model.layers:
            [layers.needed(layer.ista, name) for name in ('D', 'lam', 'eta')]
        kind = getattr(net.model.config, 'ista', 'relu')
        if kind != 'relu':
            raise ValueError(f"{net.name} has ista='{kind}', a step of another objective than eq. (16); leave it out")


def draw_lasso(c, nets):
    """CRATE's claim about ISTA, eqs. (16) and (17), in trained layers: it lowers the LASSO objective."""
    only_ista(nets)
    (figure, axes), rows = side_by_side(2), []
    for net in nets:
        start, end, least, empty = layers.of_all(batches(c, net, 4), lasso_values, net.model)
        way = (start - end) / (start - least)
        ista = [layer.ista for layer in net.model.layers]
        steps = [step.eta * torch.linalg.matrix_norm(step.D.float(), 2).item() ** 2 for step in ista]
        over_layers(axes[0], net, way)
        over_layers(axes[1], net, torch.tensor(steps)[:, None], band=False)
        values = torch.stack((start, end, least, empty)).mean(2)                        # (4, L)
        rows += [(net.name, net.kind, l + 1, *values[:, l].tolist(), *mean_and_spread(way[l]), steps[l])
                 for l in range(len(way))]
        w = way.mean(1)
        print(f'{net.name}: the layers go {w.min():.1%} to {w.max():.1%} of the way from relu(Y) to the minimum; eta '
              f'|D|^2 is {min(steps):.2f} to {max(steps):.2f}')
    level(axes[0], 0)
    level(axes[1], 2, 'below this every step from Z >= 0 goes down')
    label_panels(figure, axes, ['share of the way from relu(Y) to the minimum of the LASSO', 'step size times |D|^2'],
                 ['share', 'eta |D|^2'])
    print('to see: a layer above 0 lowers its LASSO objective, as it is derived to; at 1 it would reach the minimum')
    return figure, ('network', 'weights', 'layer', 'at_relu_Y', 'after_layer', 'minimum', 'at_zero', 'share_of_the_way',
                    'share_spread', 'eta_norm2'), rows
