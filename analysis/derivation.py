"""Is each half of a trained layer the step that it is derived as? denoising.py, compression.py and
sparsification.py ask this of tokens drawn at random; these functions ask it of networks. They are
called as those in drawings.py."""
import torch
from tqdm import tqdm

from engine.settings import Mistake
from analysis import layers, measures
from analysis.drawings import warn_if_lengths_differ
from analysis.panels import label_panels, levels, mean_and_spread, over_layers, side_by_side
from analysis.samples import batches


def only_subspaces(nets):
    """Raises Mistake for a network whose heads have no subspace."""
    for net in nets:
        if not layers.has_subspaces(net.model):
            raise Mistake(f'{net.name} has three projections per head and no subspace; this is for CRATE, CRATE-MAE '
                          'and AoT-MSSA, so leave it out')


# ---- denoising: AoT -------------------------------------------------------------------------------------------------

def draw_signal_to_noise(c, nets):
    """AoT's eq. (6) for trained tokens, before and after each attention step."""
    only_subspaces(nets)
    for net in nets:
        d, p = layers.bases(layers.attentions(net.model)[0]).shape[1:]
        if p >= d:
            raise Mistake(f'{net.name}: a subspace of {p} dimensions fills all {d}, so there is no noise outside '
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
    levels(axes[1], {'as before the step': 1})
    titles = "signal to noise before a layer, Z^l, in its subspaces", 'what the attention step multiplies it by'
    label_panels(figure, axes, titles, ['ratio, eq. (6), clusters together', 'factor'], nets)
    tied = getattr(nets[0].model.config, 'tie_out', False)
    print('to see: a step with a factor above 1 denoises, as Theorem 1 says for the true subspaces and W = eta [U_1 .. '
          'U_K]; ' + ('here W has that form, and the subspaces are learned' if tied else
                      'here W is free, and need not map back into the subspaces'))
    return figure, ('network', 'weights', 'layer', 'before', 'after', 'factor', 'factor_spread'), rows


# ---- compression: CRATE ---------------------------------------------------------------------------------------------

COMPRESSED = 'eq. (8), tokens as they are', 'as the released code measures it'  # the two measures
AROUND = 'before', 'half', 'after'                                      # Z^l, Z^(l+1/2), Z^(l+1)


def rates_around_steps(model, inputs):
    """R^c in the subspaces of each layer: six tensors (L, B), of Z^l, Z^(l+1/2) and Z^(l+1), first by eq. (8), then as
    the released code measures it; and the cosine between the attention step and the step down the gradient, eq. (9).

    Eq. (8) is of the tokens as they are: the step of eq. (10) and Figure 3 go from Z^l to Z^(l+1/2), the tokens of the
    skip. There R^c grows with their length. The released code takes tokens behind the LayerNorm of the layer and
    projections of unit length, so that only directions count. The gradient is taken where the network computes, at
    LN(Z^l). Of both steps only what turns tokens is compared, without its mean over tokens: a part that is the same
    for all tells none from another.
    """
    found = []
    for layer, (attention, normed, half, after) in zip(model.layers, layers.inside(model, *inputs)):
        U, step, norm = layers.bases(attention).float(), attention(normed), layers.needed(layer, 'norm1')
        tokens = half - step, half, after
        raw = [measures.compressed_rate(t.unsqueeze(1) @ U) for t in tokens]
        released = [measures.released_rate(norm(t).unsqueeze(1) @ U) for t in tokens]
        turns = (measures.turning(s, normed) for s in (step, -measures.compressed_rate_gradient(normed, U)))
        found.append((*raw, *released, measures.cosine(*(s - s.mean(-2, keepdim=True) for s in turns))))
    return [torch.stack(part) for part in zip(*found)]


def changes(step, old, new):
    """In how many layers a step lowers R^c, and what it adds to it, in words."""
    added = (new - old).mean(1)
    return f'{step} lowers R^c in {(added < 0).sum()} of {len(added)} layers, adds {added.min():+.1f} to ' \
           f'{added.max():+.1f} nats'


def draw_rate_changes(c, nets):
    """CRATE's claim about attention, eqs. (8) to (11), in trained layers: it lowers R^c."""
    only_subspaces(nets)
    (figure, axes), rows = side_by_side(2), []
    for net in nets:
        *rates, cosine = layers.of_all(batches(c, net, 256), rates_around_steps, net.model)
        rows += [(net.name, net.kind, l, *(v for part in parts for v in mean_and_spread(part)))
                 for l, parts in enumerate(zip(*rates, cosine), 1)]
        for axis, measure, (before, half, after) in zip(axes, COMPRESSED, (rates[:3], rates[3:])):
            draw_steps(axis, net, [part.mean(1) for part in (before, half, after)])
            said = [changes('attention', before, half)]
            if not layers.why_not_sparse(net.model):
                said.append(changes('ISTA' if hasattr(net.model.layers[0], 'ista') else 'the MLP', half, after))
            print(f'{net.name}, {measure}: ' + '; '.join(said))
        s = cosine.mean(1)
        print(f'{net.name}: the cosine of the attention step to the gradient step is {s.min():.2f} to {s.max():.2f}'
              + ' (the gradient sees later tokens too)' * layers.causal(net.model))
    warn_if_lengths_differ(c, nets)
    titles = [f"R^c in the layer's subspaces, {measure}" for measure in COMPRESSED]
    label_panels(figure, axes, titles, ['R^c, nats'] * 2, nets)
    for axis in axes:
        axis.set(xlabel='layer: before it (ring), after its attention, after it')
    print('to see: each line is a layer, from Z^l (the ring) to Z^(l+1/2) and Z^(l+1); where it goes down from the '
          'ring, attention compresses, as it is derived to. Eq. (8) also counts how long tokens are. The cosine is 1 '
          'where attention goes the way of the gradient, 0 where it goes another')
    columns = [f'{part}{end}' for how in ('', '_released') for part in AROUND for end in (how, f'{how}_spread')]
    return figure, ('network', 'weights', 'layer', *columns, 'cosine', 'cosine_spread'), rows


def draw_steps(axis, net, parts):
    """A line for each layer: R^c of Z^l (a ring), Z^(l+1/2) and Z^(l+1), three tensors (L,)."""
    style = '-' if net.kind == 'trained' else '--'
    for l, rates in enumerate(torch.stack(parts, 1).tolist(), 1):
        axis.plot((l, l + 0.35, l + 0.7), rates, marker='.', markersize=3, linestyle=style, color=net.colour,
                  label=net.name if l == 1 else None)
        axis.plot(l, rates[0], marker='o', fillstyle='none', color=net.colour)


# ---- sparsification: CRATE ------------------------------------------------------------------------------------------

def lasso_values(model, inputs):
    """The LASSO objective per token of each layer, eq. (16) with a factor 1/2 and Y =
    LN(Z^(l+1/2)): where the layer starts (relu(Y), or 0 if it decodes), at its codes, at the minimum
    and at Z = 0. Four tensors (L, B)."""
    found, steps = [], zip(model.layers, layers.inside(model, *inputs))
    for layer, (*_, half, z) in tqdm(steps, 'LASSO', len(model.layers), leave=False, disable=None):
        Y, D, lam = layers.needed(layer, 'norm2')(half).float(), layer.ista.D.float(), layer.ista.lam
        empty, Z = Y.new_zeros(*Y.shape[:-1], D.shape[1]), layers.codes(layer, half, z).float()
        start = empty if layers.decodes(layer) else Y.relu()
        points = start, Z, measures.lasso_minimizer(Y, D, lam, tolerance=1e-3), empty
        found.append([measures.lasso_objective(Z, Y, D, lam).mean(-1) for Z in points])
    return [torch.stack(part) for part in zip(*found)]


def only_ista(nets):
    """Raises Mistake for a network whose layers do not lower a LASSO objective by ISTA."""
    for net in nets:
        if not all(getattr(layer, 'ista', None) for layer in net.model.layers):
            raise Mistake(f'{net.name} has no ISTA, so no LASSO that its layers solve; this is for CRATE and '
                          'CRATE-MAE')
        for layer in net.model.layers:
            [layers.needed(layer.ista, name) for name in ('D', 'lam', 'eta')]
        kind = getattr(net.model.config, 'ista', 'relu')
        if kind != 'relu':
            raise Mistake(f"{net.name} has ista='{kind}', a step of another objective than eq. (16); leave it out")


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
        begun = '0' if layers.decodes(net.model.layers[0]) else 'relu(Y)'
        print(f'{net.name}: the layers go {w.min():.1%} to {w.max():.1%} of the way from {begun} to the minimum; eta '
              f'|D|^2 is {min(steps):.2f} to {max(steps):.2f}')
    levels(axes[0], {'where the layer starts': 0})
    levels(axes[1], {'below this every step from Z >= 0 goes down': 2}, letters='b')
    titles = 'share of the way from its start to the minimum of the LASSO', 'step size for the dictionary'
    label_panels(figure, axes, titles, ['share', 'eta |D|^2'], nets)
    print('to see: a layer above 0 lowers its LASSO objective, as it is derived to; at 1 it would reach the minimum')
    return figure, ('network', 'weights', 'layer', 'at_start', 'after_layer', 'minimum', 'at_zero', 'share_of_the_way',
                    'share_spread', 'eta_norm2'), rows
