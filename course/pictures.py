"""A picture for each lesson of the course. The answers in course/answers/ compute what it shows.

    python course/pictures.py                   # draw all eight into assets/, in half a minute
    python course/pictures.py 3                 # lesson 3 alone
    python course/pictures.py --out=slides      # into another folder, where nothing is replaced

Seeds are fixed, nothing is downloaded, and nothing is trained: the networks are those of trained/.
"""
import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from nanocrate import load  # noqa: E402  (from the project, which is above)

import numpy as np  # noqa: E402
import torch  # noqa: E402
from PIL import Image  # noqa: E402
from torch.nn.functional import normalize  # noqa: E402

from analysis import layers  # noqa: E402
from analysis.figures import DASHES, FROM_BLACK, FROM_WHITE  # noqa: E402
from analysis.measures import noisy_mixture  # noqa: E402
from course.answers import lesson1, lesson2, lesson3, lesson4  # noqa: E402
from course.answers import lesson5, lesson6, lesson7, lesson8  # noqa: E402
from course.lab import weights_of  # noqa: E402
from engine.mistakes import Mistake, one_line_errors  # noqa: E402
from engine.plots import COLOURS, empty_figure, house_style  # noqa: E402
from engine.writing import write_file  # noqa: E402
from model_crate_mae import unpatchify  # noqa: E402
from prepare.lib.inputs import Parser  # noqa: E402
from prepare.shapes import CLASSES, draw  # noqa: E402
from tasks import augment  # noqa: E402

ASSETS = ROOT / 'assets'
TRAINED = ROOT / 'trained'
BLUE, ORANGE = COLOURS[:2]
BELOW_AND_ABOVE_ZERO = 'PuOr_r'     # colours of a map in which zero is white
MARKERS = 'o', '^', 's'
WIDTH = 1000                        # pixels of a picture
PIXELS_PER_INCH = 120
SIDE = 32                           # pixels on each side of a drawn shape
PATCH = 4                           # pixels on each side of a patch
GRID = SIDE // PATCH                # patches on each side of a drawn shape
# settings of matplotlib; texts may have formulas between $ signs
LESSON_STYLE = {'font.size': 12, 'figure.dpi': PIXELS_PER_INCH}


# ---- what several lessons need ------------------------------------------------------------------

def new_figure(height):
    """An empty figure of WIDTH x height pixels."""
    figure = empty_figure(WIDTH / PIXELS_PER_INCH, height / PIXELS_PER_INCH)
    figure.get_layout_engine().set(w_pad=0.06, h_pad=0.06)  # inches
    return figure


def save(figure, path):
    """Write a figure in 256 colours, which makes the file half as large."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    pixels = np.asarray(canvas.buffer_rgba())[..., :3]              # without the opacity
    image = Image.fromarray(np.ascontiguousarray(pixels))
    image = image.quantize(256, kmeans=1)   # without kmeans rare colours become grey
    write_file(path, lambda f: image.save(f, 'png'), 'wb')


def random_numbers(seed):
    """A generator of random numbers for PyTorch."""
    return torch.Generator().manual_seed(seed)


def drawn_shapes(names, seed):
    """A new picture of each of these shapes, as networks see pictures: float (n, 3, 32, 32), of
    mean 0 and deviation 1. And the pixels that show the shape, bool (n, 32, 32)."""
    labels = np.array([CLASSES.index(name) for name in names])
    pixels, shown = draw(np.random.default_rng(seed), labels[:, None], SIDE)
    x = augment.normalize(augment.planes(torch.from_numpy(pixels)))
    return x, torch.from_numpy(shown) > 0


# ---- lesson 1: the coding rate ------------------------------------------------------------------

def lesson_1():
    """What tokens cost along two axes, and where the gradient of R^c moves them."""
    figure = new_figure(520)
    panels = figure.subplots(1, 2)
    draw_steps_of_two_axes(panels[0])
    draw_gradient_step(panels[1])
    return figure


def draw_steps_of_two_axes(panel):
    """Tokens in the plane that vary by 6 steps along one axis, and by half a step along the other.
    A step is eps / sqrt(d). The costs of the axes add up to R, because the tokens have no
    correlation between them."""
    N, d = 200, 2
    eps = 0.5
    step = eps / d ** 0.5
    deviations = torch.tensor([6.0, 0.5], dtype=torch.float64)      # in steps
    noise = torch.randn(N, d, generator=random_numbers(1), dtype=torch.float64)
    uncorrelated = N ** 0.5 * torch.linalg.qr(noise)[0]             # (N, d), with variances of 1
    Z = step * deviations * uncorrelated

    panel.plot(Z[:, 0] / step, Z[:, 1] / step, 'o', color=BLUE, markersize=3)
    for axis, height in ((0, 10), (1, -10)):
        one_axis = torch.zeros_like(Z)
        one_axis[:, axis] = Z[:, axis]
        cost = lesson1.coding_rate(one_axis, eps)
        steps = deviations[axis]
        formula = rf'$\frac{{1}}{{2}}\,\log(1 + {steps:g}^2)$ = {cost:.2f} nats'
        panel.text(0, height, f'axis {axis + 1}: deviation {steps:g} steps\n{formula}', ha='center',
                   va='center', backgroundcolor='white')

    panel.set(xlim=(-19, 19), ylim=(-19, 19), aspect='equal')
    panel.set_xticks(range(-19, 20), minor=True)
    panel.set_yticks(range(-19, 20), minor=True)
    panel.grid(which='minor', color='0.9')                          # a line for each step
    panel.set_axisbelow(True)
    panel.set_title(f'R = {lesson1.coding_rate(Z, eps):.2f} nats, nearly all for axis 1')
    panel.set_xlabel(r'axis 1, in steps of $\epsilon / \sqrt{d}$')
    panel.set_ylabel(r'axis 2, in steps of $\epsilon / \sqrt{d}$')


def draw_gradient_step(panel):
    """Tokens near two lines of the plane, and where a step against the gradient of R^c moves
    them."""
    n = 8           # tokens near a line
    eps = 0.5
    angles = torch.tensor([0.0, torch.pi / 3], dtype=torch.float64)
    U = torch.stack((angles.cos(), angles.sin()), 1).unsqueeze(2)   # two lines: (2, 2, 1)
    along = torch.linspace(-4, 4, n, dtype=torch.float64).view(1, n, 1)
    noise = torch.randn(2, n, 2, generator=random_numbers(1), dtype=torch.float64)
    Z = (along @ U.mT + 0.2 * noise).flatten(0, 1)                  # (2 n, 2)

    step = -30 * lesson1.compressed_rate_gradient(Z, U, eps)        # so large that one sees it
    before = lesson1.compressed_rate(Z, U, eps)
    after = lesson1.compressed_rate(Z + step, U, eps)

    for k in range(2):
        near = Z[n * k:n * k + n]
        panel.axline((0, 0), U[k, :, 0], color=COLOURS[k], linestyle=DASHES[k], linewidth=1)
        panel.plot(near[:, 0], near[:, 1], MARKERS[k], color=COLOURS[k],
                   label=f'tokens near line {k + 1}')
    panel.quiver(Z[:, 0], Z[:, 1], step[:, 0], step[:, 1], angles='xy', scale_units='xy', scale=1,
                 width=0.007)
    panel.set(xlim=(-5, 5), ylim=(-5, 5), aspect='equal', xlabel='coordinate 1',
              ylabel='coordinate 2', title='Does a step turn tokens, or shorten them?')
    panel.text(-4.8, 4.7, f'arrows: one step, which takes\n$R^c$ from {before:.2f} to '
               f'{after:.2f} nats', va='top', fontsize='small')
    panel.legend(loc='lower right', fontsize='small')


# ---- lesson 2: MSSA -----------------------------------------------------------------------------

def lesson_2():
    """24 tokens, sorted by their subspace: what one head makes of them, and what all heads do."""
    K, p, n, d = 3, 4, 8, 12
    Z, U = noisy_mixture(K, p, n, d, delta=0.25, generator=random_numbers(1))
    Z = d ** 0.5 * normalize(Z.flatten(0, 1), dim=1)                # as behind a LayerNorm
    P = Z @ U[0]                                                    # (N, p), of the first head
    scores = P @ P.T / p ** 0.5                                     # (N, N)
    weights = lesson2.attention_weights(Z[None], U, False)[0, 0]    # (N, N)
    after = lesson2.half_step(Z[None], U, False)[0]                 # (N, d)

    figure = new_figure(470)
    figure.suptitle('No label names the subspace of a token: the softmax finds it')
    panels = figure.subplots(1, 3, width_ratios=(1, 1, 0.9))
    draw_pairs(panels[0], scores, BELOW_AND_ABOVE_ZERO, (-8, 8), r'inner product / $\sqrt{p}$')
    draw_pairs(panels[1], weights, FROM_WHITE, (0, 1), 'weight')
    panels[0].set_title('head 1: large in block 1 alone')
    panels[1].set_title('weights: large there alone')

    draw_lengths(panels[2], Z.unflatten(0, (K, n)), U, 0, 'Z')
    draw_lengths(panels[2], after.unflatten(0, (K, n)), U, 1, 'Z + MSSA(Z)')
    panels[2].set_title('own part gains most')
    panels[2].set(ylabel='length, mean of all tokens', ylim=(0, 10))
    panels[2].set_xticks([0.2, 1.2], ['in their own\nsubspace', 'outside\nof it'])
    panels[2].legend()
    return figure


def draw_pairs(panel, numbers, colours, limits, name):
    """A map of numbers (24, 24), one for each pair of tokens, in groups of 8."""
    image = panel.imshow(numbers, cmap=colours, vmin=limits[0], vmax=limits[1])
    for border in (7.5, 15.5):
        panel.axhline(border, color='0.5', linewidth=1)
        panel.axvline(border, color='0.5', linewidth=1)
    panel.set_xticks([3.5, 11.5, 19.5], ['1', '2', '3'])
    panel.set_yticks([3.5, 11.5, 19.5], ['1', '2', '3'])
    panel.set(xlabel='with tokens of subspace', ylabel='tokens of subspace')
    panel.figure.colorbar(image, ax=panel, location='bottom', label=name)


def draw_lengths(panel, Z, U, number, name):
    """How long the parts of tokens Z (K, n, d) inside and outside of their own subspaces are, as
    two bars with one name, the first or the second (number 0 or 1) of their group."""
    signal = Z @ U @ U.mT                                           # (K, n, d)
    inside_length = signal.norm(dim=2).mean().item()
    outside_length = (Z - signal).norm(dim=2).mean().item()
    positions = np.arange(2) + 0.4 * number
    bars = panel.bar(positions, [inside_length, outside_length], 0.38, color=COLOURS[number],
                     label=name)
    panel.bar_label(bars, fmt='%.1f')


# ---- lesson 3: ISTA -----------------------------------------------------------------------------

def lesson_3():
    """Why the proximal step is a ReLU, and how codes become sparse in many steps."""
    figure = new_figure(620)
    halves = figure.subfigures(1, 2, width_ratios=(1, 1.2))
    draw_threshold(halves[0])
    draw_codes(halves[1])
    return figure


def draw_threshold(figure):
    """The function that the proximal step minimizes, for three z, and the minimum as a function of
    z: relu(z - t)."""
    figure.suptitle(r'The lowest point is at v = relu(z $-$ t)')
    upper, lower = figure.subplots(2, 1)
    t = 1.0
    dictionary = torch.ones(1, 1)       # eq. (16) for a token of one number
    v = torch.linspace(0, 3, 301)
    z = torch.linspace(-0.5, 3, 351)
    lower.plot(z, lesson3.prox(z, t), color='0.5')

    for i, number in enumerate((0.5, 1.5, 2.5)):
        target = torch.tensor([number])
        values = lesson3.lasso_objective(v[:, None], target, dictionary, t)
        best = lesson3.prox(target, t)
        lowest = lesson3.lasso_objective(best, target, dictionary, t)
        style = {'marker': MARKERS[i], 'color': COLOURS[i], 'markersize': 9, 'linestyle': 'none'}
        upper.plot(v, values, color=COLOURS[i], linestyle=DASHES[i])
        upper.plot(best, lowest, **style)
        lower.plot(target, best, label=f'z = {number}', **style)
    upper.set(xlabel='v', ylabel=r't v + $\frac{1}{2}$(v $-$ z)$^2$,  t = 1', ylim=(0, 5))
    lower.set(xlabel='z', ylabel=r'relu(z $-$ t)')
    lower.legend()


def draw_codes(figure):
    """The code of one token at the start of a layer, after it, after 32 steps of ISTA, and the code
    that made the token."""
    figure.suptitle('How sparse is a code after one layer?')
    N, d = 64, 64
    lam = 0.1
    generator = random_numbers(1)
    D = normalize(torch.randn(d, d, generator=generator, dtype=torch.float64), dim=0)
    true_codes = torch.rand(N, d, generator=generator, dtype=torch.float64)
    true_codes[torch.rand(N, d, generator=generator) > 0.1] = 0     # nine of ten numbers
    Y = true_codes @ D.T

    codes = {
        'start, relu(y)': Y.relu(),
        r'one layer, $\eta$ = 0.1': lesson3.ista(Y, D, 0.1, lam),
        '32 steps': lesson3.solve(Y, D, lam, 32),
        'the code that made y': true_codes,
    }
    panels = figure.subplots(4, 1, sharex=True, sharey=True)
    for panel, (name, Z) in zip(panels, codes.items()):
        panel.bar(range(d), Z[0].numpy(), 1, color=BLUE)
        panel.set_title(name, loc='left')
    panels[3].set_xlabel('place in the code of one token')
    figure.supylabel('number at this place', fontsize='medium')


# ---- lesson 4: the network ----------------------------------------------------------------------

@torch.no_grad()
def lesson_4():
    """A picture becomes patches, patches become tokens, and the class token becomes logits."""
    model, reader = load(TRAINED / 'crate_shapes')
    c = model.config
    weights = weights_of(model)
    x, _ = drawn_shapes(['heart'], seed=1)
    patches = lesson4.patches(x, PATCH, PATCH)[0]                                   # (64, 48)
    tokens = lesson4.tokens(x, lesson4.part(weights, 'embed'), PATCH, PATCH)[0]     # (65, 192)
    logits = lesson4.classify(x, weights, c.n_layer, c.n_head, PATCH, PATCH, c.eta, c.lam)[0]

    figure = new_figure(500)
    figure.suptitle('Patches become tokens; the class token in front gives the logits')
    panels = figure.subplots(1, 4, width_ratios=(4, 1.5, 3, 1))
    panels[0].imshow(augment.visible(x)[0], extent=(0, GRID, GRID, 0))
    panels[0].set(xticks=range(GRID + 1), yticks=range(GRID + 1), title=f'{SIDE} x {SIDE} pixels')
    panels[0].set_xlabel(f'{GRID ** 2} patches of {PATCH} x {PATCH} pixels')
    panels[0].tick_params(length=0, labelcolor='none')
    panels[0].grid(color='white', linewidth=1)
    for panel, rows in zip(panels[1:], (patches, tokens)):
        panel.imshow(rows, cmap=BELOW_AND_ABOVE_ZERO, vmin=-2.5, vmax=2.5, aspect='auto',
                     interpolation='nearest')  # the file becomes smaller
        panel.set_xticks([])
        panel.set_xlabel(f'{rows.shape[1]} numbers')
    panels[1].set(title='patches', yticks=[0, 63], yticklabels=['1', '64'])
    panels[2].set(title='tokens', yticks=[0, 64], yticklabels=['class', '64'])
    panels[3].barh(reader.classes, logits.numpy(), color=BLUE)
    panels[3].yaxis.tick_right()
    panels[3].invert_yaxis()
    panels[3].set_title(f'logits, after\n{c.n_layer} layers')
    return figure


# ---- lesson 5: denoising ------------------------------------------------------------------------

def lesson_5():
    """The weights of Theorem 1, near its conditions and far from them."""
    near = noisy_mixture(K=2, p=768, n=8, d=1536, delta=0.01, generator=random_numbers(1))
    far = noisy_mixture(K=2, p=8, n=8, d=16, delta=0.5, generator=random_numbers(1))
    figure = new_figure(690)
    figure.suptitle('After the threshold tokens attend to themselves alone, near the conditions')
    halves = figure.subfigures(1, 2)
    draw_weights(halves[0], *near, r'near the conditions: p = 768, $\delta$ = 0.01')
    draw_weights(halves[1], *far, r'far from them: p = 8, $\delta$ = 0.5')
    return figure


def draw_weights(figure, Z, U, title):
    """The weights of tokens Z (2, 8, d) in two subspaces U (2, d, p), before and after the
    threshold. Below them stand the two shares of `passing`."""
    tau = 0.6
    tokens = Z.flatten(0, 1)
    softmax = lesson5.membership(tokens, U, 0.0)                    # (2, 16, 16)
    threshold = lesson5.membership(tokens, U, tau)
    itself, elsewhere = lesson5.passing(threshold)

    figure.suptitle(title)
    panels = figure.subplots(2, 2)
    for row, phi in zip(panels, (softmax, threshold)):
        for k in range(2):
            image = row[k].imshow(phi[k], cmap=FROM_WHITE, vmin=0, vmax=1)
            row[k].axhline(7.5, color='0.5', linewidth=1)
            row[k].axvline(7.5, color='0.5', linewidth=1)
            row[k].set_xticks([3.5, 11.5], ['cluster 1', '2'])
            row[k].set_yticks([3.5, 11.5], ['1', '2'])
    for k in range(2):
        panels[0, k].set_title(f'subspace {k + 1}')
    panels[0, 0].set_ylabel('softmax')
    panels[1, 0].set_ylabel(rf'threshold $\tau$ = {tau}')
    figure.colorbar(image, ax=panels, location='bottom', label='weight')
    figure.supxlabel(f'own subspace: {itself:.0%} attend to themselves,\n'
                     f'other subspace: {elsewhere:.0%} attend to anything', fontsize='medium')


# ---- lesson 6: CRATE-MAE ------------------------------------------------------------------------

@torch.no_grad()
def lesson_6():
    """Five shapes, a quarter of their patches, and what a network makes of these."""
    model, _ = load(TRAINED / 'crate_mae_shapes')
    x, _ = drawn_shapes(['disc', 'square', 'star', 'heart', 'bar'], seed=1)
    patches = lesson4.patches(x, PATCH, PATCH)                      # (5, 64, 48)
    noise = torch.rand(patches.shape[:2], generator=random_numbers(1))
    hidden = model.hide(noise)                                      # bool (5, 64)
    pred, _ = model(x, noise)                                       # (5, 64, 48)

    grey = torch.zeros_like(patches)
    rows = {
        'original': patches,
        '75% hidden': torch.where(hidden[..., None], grey, patches),
        'filled in': torch.where(hidden[..., None], pred, patches),
    }
    figure = new_figure(700)
    figure.suptitle('From a quarter of the patches the network guesses colours and rough outlines')
    panels = figure.subplots(3, 5)
    for panels_of_row, (name, values) in zip(panels, rows.items()):
        pictures = augment.visible(unpatchify(values, (SIDE, SIDE), (PATCH, PATCH)))
        for panel, picture in zip(panels_of_row, pictures):
            panel.imshow(picture)
            panel.set(xticks=[], yticks=[])
        panels_of_row[0].set_ylabel(name)
    for i in range(5):
        error = lesson6.masked_loss(pred[i], patches[i], hidden[i])
        mean_colour = patches[i][~hidden[i]].view(-1, 3).mean(0).repeat(PATCH ** 2)
        guess = lesson6.masked_loss(mean_colour.expand_as(pred[i]), patches[i], hidden[i])
        panels[2, i].set_xlabel(f'error {error:.2f},\nmean colour {guess:.2f}')
    return figure


# ---- lesson 7: a sceptic's eye ------------------------------------------------------------------

@torch.no_grad()
def lesson_7():
    """The head that finds the shape best, with trained and with random weights, and a square in the
    middle, in three pictures."""
    model, _ = load(TRAINED / 'crate_shapes')
    torch.manual_seed(1)
    random_model = type(model)(model.config).eval()
    x, masks = drawn_shapes(['disc', 'star', 'heart'], seed=7)
    middle = torch.zeros_like(masks)
    middle[:, SIDE // 4:-SIDE // 4, SIDE // 4:-SIDE // 4] = True

    figure = new_figure(650)
    figure.suptitle('Which finds the shape best: a trained head, a random one, or a square?')
    panels = figure.subplots(3, 6)
    for panel, picture in zip(panels[:, 0], augment.visible(x)):
        panel.imshow(picture)
    panels[0, 0].set_title('picture')
    draw_best_heads(panels[:, 1:3], model, x, masks)
    draw_best_heads(panels[:, 3:5], random_model, x, masks)
    draw_masks(panels[:, 5], middle, masks)
    figure.supxlabel('bright: much attention; orange: edge of the shape', fontsize='medium')
    for panel in panels.flat:
        panel.set(xticks=[], yticks=[])
    panels[0, 1].set_title('trained,\nbest head')
    panels[0, 3].set_title('random,\nbest head')
    panels[0, 5].set_title('no head,\na square')
    return figure


def draw_best_heads(panels, network, x, masks):
    """The map of the head whose patches overlap the shape most, and its patches
    with 60% of the map. The heads are those of the last layer but one."""
    last_but_one = len(network.layers) - 1                      # at_layer counts from 1
    attention, normed = layers.at_layer(network, last_but_one, x)
    maps = layers.class_maps(attention, normed)                 # (n, K, 64)
    patches = lesson7.top_mass(maps, 0.6).unflatten(2, (GRID, GRID))
    pixels = patches.repeat_interleave(PATCH, 2).repeat_interleave(PATCH, 3)    # (n, K, 32, 32)
    scores = lesson7.overlap(pixels, masks[:, None].expand_as(pixels))          # (n, K)
    best = scores.argmax(1)
    rows = torch.arange(len(x))

    for panel, row in zip(panels[:, 0], rows):
        panel.imshow(maps[row, best[row]].view(GRID, GRID), cmap=FROM_BLACK)
    panels[0, 1].set_title('60% of\nthe map')
    draw_masks(panels[:, 1], pixels[rows, best], masks)


def draw_masks(panels, guesses, masks):
    """A guess of the mask in blue, and the true mask as a line."""
    for panel, guess, mask in zip(panels, guesses, masks):
        panel.imshow(guess, cmap=FROM_WHITE, vmin=0, vmax=2)
        panel.contour(mask, [0.5], colors=ORANGE)


# ---- lesson 8: a verdict ------------------------------------------------------------------------

# validation losses of the seeds 1, 2 and 3; those of ViT are in the lesson
VIT_LOSSES = {1: 1.701, 2: 1.775, 3: 1.736}
LOSSES = {
    'network A\n(invented)': {1: 1.580, 2: 1.620, 3: 1.570},
    'network B\n(invented)': {1: 1.800, 2: 1.700, 3: 1.860},
    'network C\n(invented)': {1: 1.930, 2: 1.920, 3: 1.910},
}
VERDICTS = {1: 'better', 0: 'these seeds do not tell', -1: 'worse'}


def lesson_8():
    """The interval of the mean gain of three networks, beside the smallest gain that matters."""
    least = 0.05
    figure = new_figure(440)
    panel = figure.subplots()
    panel.set_title('An interval that reaches into the grey band does not tell')
    panel.axvspan(-least, least, color='0.85', label='gains that do not matter')

    for row, losses in enumerate(LOSSES.values()):
        low, high, verdict = lesson8.verdict(losses, VIT_LOSSES, least)
        gains = [VIT_LOSSES[seed] - losses[seed] for seed in losses]
        interval = panel.plot([low, high], [row, row], '|-', color=BLUE, linewidth=3, markersize=16)
        dots = panel.plot(gains, np.full(len(gains), row + 0.2), 'o', color=ORANGE)
        panel.text(0.23, row, VERDICTS[verdict], va='center')
    interval[0].set_label('95% interval of the mean gain')
    dots[0].set_label('gain of a seed')
    panel.set_yticks(range(len(LOSSES)), LOSSES)
    panel.set(xlim=(-0.5, 0.5), ylim=(2.5, -0.5))
    panel.set_xlabel('gain over ViT, nats: by how much the validation loss is lower')
    panel.legend(loc='upper left', fontsize='small')
    return figure


# ---- the command line ---------------------------------------------------------------------------

PICTURES = {1: lesson_1, 2: lesson_2, 3: lesson_3, 4: lesson_4, 5: lesson_5, 6: lesson_6,
            7: lesson_7, 8: lesson_8}


def main(argv):
    """Draw what a command line asks for. Raises Mistake if the words are wrong, or if a picture is
    there already, outside of assets/."""
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('lesson', nargs='?', type=int, choices=PICTURES, help='by default all')
    parser.add_argument('--out', type=Path, default=ASSETS, help='folder, by default assets/')
    args = parser.parse_args(argv)

    lessons = PICTURES
    if args.lesson is not None:
        lessons = [args.lesson]
    paths = {n: args.out / f'lesson{n}.png' for n in lessons}
    for path in paths.values():
        if path.exists() and args.out.resolve() != ASSETS:
            raise Mistake(f'{path} is there already; remove it, or name another --out')

    try:
        args.out.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise Mistake(f'{args.out} cannot be written ({e.strerror}); name another --out') from None
    from matplotlib import rc_context
    for n, path in paths.items():
        with house_style(), rc_context(LESSON_STYLE):
            save(PICTURES[n](), path)
        print(path)


if __name__ == '__main__':
    with one_line_errors():
        main(sys.argv[1:])
