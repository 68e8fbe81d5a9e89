"""A layer of CRATE, what each of its steps does to tokens, and a block of ViT. This is `diagram`, a
command of analyze.py that needs no trained network.

The small pictures are computed by `attention` and `ISTA` of model_crate.py, on made-up tokens.
"""
import math
from dataclasses import dataclass

import torch

from analysis import figures
from analysis.theory import shipped_ista
from engine import plots
from engine.settings import check, collect
from model_crate import attention

BLUE, ORANGE = plots.COLOURS[:2]
GREY = '#707070'


@dataclass
class DiagramConfig:
    out: str = 'diagram.svg'    # the picture to write; diagram.svg is replaced if it exists
    overwrite: bool = False     # replace another file if it exists


def main(words):
    c = DiagramConfig(**check(collect(words), DiagramConfig))
    figures.check_out(c)
    with plots.house_style():
        plots.save_picture(c.out, draw())
    print(f'{c.out}: a layer of CRATE, and a block of ViT')


# ---- what the steps do to tokens ----------------------------------------------------------------

def compress(n=7):
    """Projections onto one subspace of three groups of n tokens, before and after a compression:
    two tensors (3 n, 2).

    The compression adds to the projection of each token the average that `attention` makes, as in a
    layer with W = [U_1 .. U_K] and orthogonal subspaces. The sum is divided by 2, so that the
    projections before and after it have the same scale.
    """
    generator = torch.Generator().manual_seed(3)
    angles = torch.arange(3) * 2 * math.pi / 3 + math.pi / 6        # of the centres of the groups
    centres = 2.4 * torch.stack((angles.cos(), angles.sin()), dim=1)
    proj = centres.repeat_interleave(n, dim=0)
    proj = proj + 0.7 * torch.randn(proj.shape, generator=generator)
    q = proj[None, None]                                            # (B, K, N, p) = (1, 1, 3 n, 2)
    average = attention(q, q, q)[0, 0]
    return proj, (proj + average) / 2


def sparsify(d=16):
    """The d numbers of a token before and after ISTA: two tensors (d,).

    The dictionary is the identity, so that one sees the threshold alone. The threshold is larger
    than in a network: eta lambda is 0.36 instead of 0.01.
    """
    generator = torch.Generator().manual_seed(5)
    ista = shipped_ista(torch.eye(d), eta=0.6, lam=0.6)
    z = 0.45 * torch.randn(d, generator=generator)
    z[[3, 8, 12]] = torch.tensor([1.6, 1.1, 1.9])                   # numbers above the threshold
    return z, ista(z)


# ---- the drawing --------------------------------------------------------------------------------

# All lengths are in inches.
ABOVE = 4.85                    # heights at which the rows of the two networks stand
BELOW = 0.95
HALF_HEIGHT = 0.32              # of a box
RADIUS = 0.2                    # of a sum
STYLE = dict(ha='center', va='center', fontsize=13)


def draw():
    """The figure: a layer of CRATE, under it what its steps do, and a block of ViT."""
    figure = plots.empty_figure(12, 6.1, layout=None)
    canvas = figure.add_axes((0, 0, 1, 1))
    canvas.set(xlim=(0, 12), ylim=(0, 6.1))
    canvas.axis('off')

    title_style = dict(fontsize=15, weight='bold', va='center')
    canvas.text(0.25, 5.8, 'A layer of CRATE', **title_style)
    draw_row(canvas, ABOVE, 'MSSA', BLUE, 'ISTA', ORANGE, second_skip=False)
    canvas.text(6.0, ABOVE + 0.28, r'$Z^{\ell+1/2}$', **STYLE)
    canvas.text(3.95, 4.28, 'compress: one projection U', color=BLUE, **STYLE)
    canvas.text(8.6, 4.28, 'sparsify: a dictionary D, no skip', color=ORANGE, **STYLE)
    draw_compression(figure.add_axes((0.225, 0.42, 0.21, 0.26)))
    canvas.text(3.95, 2.3, 'in each subspace, similar\ntokens move together', **STYLE)
    draw_sparsity(figure.add_axes((0.615, 0.45, 0.205, 0.215)))
    canvas.text(8.6, 2.3, 'small and negative numbers\nof a token become 0', **STYLE)
    canvas.text(10.95, 3.3, 'grey: before\ncolour: after', color=GREY, **STYLE)

    canvas.text(0.25, 1.9, 'A block of ViT', **title_style)
    draw_row(canvas, BELOW, 'MHSA', GREY, 'MLP', GREY, second_skip=True)
    canvas.text(3.95, 0.38, 'projections Q, K and V', color=GREY, **STYLE)
    canvas.text(8.6, 0.38, 'two maps, together 8 times the weights of D', color=GREY, **STYLE)
    return figure


def draw_row(canvas, y, first, first_colour, second, second_colour, second_skip):
    """The boxes of a layer at height y, from left to right: LN and the first step of the layer,
    then LN and the second step. second_skip: whether the second step has a skip around it."""
    canvas.text(0.55, y, r'$Z^{\ell}$', **STYLE | {'fontsize': 17})
    draw_box(canvas, 2.1, y, 'LN', 'black', 0.4)
    draw_box(canvas, 3.95, y, first, first_colour, 0.75)
    draw_skip(canvas, 1.15, 5.45, y)
    draw_box(canvas, 6.75, y, 'LN', 'black', 0.4)
    draw_box(canvas, 8.6, y, second, second_colour, 0.75)
    arrows = [(0.85, 1.7), (2.5, 3.2), (4.7, 5.25), (5.65, 6.35), (7.15, 7.85)]  # from, to
    if second_skip:
        draw_skip(canvas, 5.95, 10.1, y)
        arrows += [(9.35, 9.9), (10.3, 10.95)]
    else:
        arrows += [(9.35, 10.95)]
    for start, end in arrows:
        draw_arrow(canvas, (start, y), (end, y))
    canvas.text(11.4, y, r'$Z^{\ell+1}$', **STYLE | {'fontsize': 17})


def draw_box(canvas, x, y, text, colour, half_width):
    from matplotlib.patches import Rectangle
    corner = (x - half_width, y - HALF_HEIGHT)
    box = Rectangle(corner, 2 * half_width, 2 * HALF_HEIGHT, fill=False, linewidth=2,
                    edgecolor=colour)
    canvas.add_patch(box)
    canvas.text(x, y, text, color=colour, weight='bold', **STYLE)


def draw_arrow(canvas, start, end):
    canvas.annotate('', end, start, arrowprops=dict(arrowstyle='-|>', color='black'))


def draw_skip(canvas, start, end, y):
    """A sum at x = end, and a line by which the tokens go around a step to it, from x = start."""
    from matplotlib.patches import Circle
    canvas.add_patch(Circle((end, y), RADIUS, fill=False, linewidth=2))
    canvas.text(end, y, '+', **STYLE)
    top = y + 0.6
    canvas.plot([start, start, end], [y, top, top], color='black', linewidth=1)
    draw_arrow(canvas, (end, top), (end, y + RADIUS))


def draw_compression(panel):
    """The tokens of `compress` in a panel, with an arrow from before to after for each."""
    before, after = compress()
    for start, end in zip(before.tolist(), after.tolist()):
        panel.annotate('', xy=end, xytext=start, arrowprops=dict(arrowstyle='->', color=GREY))
    panel.plot(*before.T.tolist(), 'o', color='#c0c0c0', markersize=6)
    panel.plot(*after.T.tolist(), 'o', color=BLUE, markersize=6)
    panel.set_aspect('equal', 'datalim')
    panel.axis('off')


def draw_sparsity(panel):
    """The numbers of `sparsify` in a panel: wide bars before, narrow ones after."""
    before, after = sparsify()
    places = range(len(before))
    panel.bar(places, before.tolist(), color='#c0c0c0')
    panel.bar(places, after.tolist(), color=ORANGE, width=0.45)
    panel.axhline(0, color='black', linewidth=1)
    panel.axis('off')
