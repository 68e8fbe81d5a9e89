"""A picture for each lesson of the course. The answers in course/answers/ compute what it shows.

    python course/pictures.py                   # draw all eight into assets/, in half a minute
    python course/pictures.py 3                 # lesson 3 alone
    python course/pictures.py --out=slides      # into another folder, where nothing is replaced

Seeds are fixed, nothing is downloaded, and nothing is trained: the networks are those of trained/.
"""
import argparse
import io
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from nanocrate import load  # noqa: E402  (from the project, which is above)

import numpy as np  # noqa: E402
import torch  # noqa: E402
from PIL import Image  # noqa: E402
from torch.nn.functional import normalize  # noqa: E402

from analysis.figures import DASHES, FROM_BLACK, FROM_WHITE  # noqa: E402
from analysis.measures import gaussian, noisy_mixture  # noqa: E402
from course.answers import lesson1, lesson2, lesson3, lesson4  # noqa: E402
from course.answers import lesson5, lesson6, lesson7, lesson8  # noqa: E402
from course.lab import class_maps_of, draw_rows, trained_crate  # noqa: E402
from engine.mistakes import Mistake, one_line_errors  # noqa: E402
from engine.plots import COLOURS, empty_figure, house_style  # noqa: E402
from engine.writing import write_file, writing  # noqa: E402
from model_crate_mae import unpatchify  # noqa: E402
from prepare.lib.inputs import Parser  # noqa: E402
from prepare.shapes import CLASSES, draw  # noqa: E402
from tasks import augment  # noqa: E402

ASSETS = ROOT / 'assets'
BLUE, ORANGE = COLOURS[:2]
BELOW_AND_ABOVE_ZERO = 'PuOr_r'     # colours of a map in which zero is white
MARKERS = 'o', '^', 's'
WIDTH = 1000                        # pixels of a picture
PIXELS_PER_INCH = 120
SIDE = 32                           # pixels on each side of a drawn shape
PATCH = 4                           # pixels on each side of a patch
GRID = SIDE // PATCH                # patches on each side of a drawn shape
# settings of matplotlib; texts may have formulas between $ signs
LESSON_STYLE = {'font.size': 12, 'figure.labelsize': 'medium', 'figure.dpi': PIXELS_PER_INCH}


# ---- what several lessons need ------------------------------------------------------------------

def new_figure(height):
    """An empty figure of WIDTH x height pixels."""
    figure = empty_figure(WIDTH / PIXELS_PER_INCH, height / PIXELS_PER_INCH)
    figure.get_layout_engine().set(w_pad=0.06, h_pad=0.06)  # inches
    return figure


def save(figure, path):
    """Write a figure in 256 colours, which makes the file half as large."""
    drawn = io.BytesIO()
    figure.savefig(drawn)
    # without kmeans rare colours become grey
    image = Image.open(drawn).convert('RGB').quantize(256, kmeans=1)
    write_file(path, lambda f: image.save(f, 'png'), 'wb')


def random_numbers():
    """A generator of random numbers for PyTorch, with the same numbers each time."""
    return torch.Generator().manual_seed(1)


def drawn_shapes(names, seed):
    """A new picture of each of these shapes, as networks see pictures: float (n, 3, 32, 32), of a
    mean near 0 and a deviation near 1. And the pixels that show the shape, bool (n, 32, 32)."""
    labels = np.array([[CLASSES.index(name)] for name in names])
    pixels, shown = draw(np.random.default_rng(seed), labels, SIDE)
    x = augment.normalize(augment.planes(torch.from_numpy(pixels)))
    return x, torch.from_numpy(shown) > 0


# ---- lesson 1: the coding rate ------------------------------------------------------------------

def lesson_1():
    """What tokens cost along two axes, and where the gradient of R^c moves them."""
    figure = new_figure(520)
    left, right = figure.subplots(1, 2)
    draw_steps_of_two_axes(left)
    draw_gradient_step(right)
    return figure


def draw_steps_of_two_axes(panel):
    """Tokens in the plane that vary by 6 steps along one axis, and by half a step along the other.
    A step is eps / sqrt(d). The costs of the axes add up to R, because the tokens have no
    correlation between them."""
    N, d = 200, 2
    eps = 0.5
    step = eps / d ** 0.5
    deviations = torch.tensor([6.0, 0.5], dtype=torch.float64)      # in steps
    noise = gaussian(random_numbers(), N, d)
    uncorrelated = N ** 0.5 * torch.linalg.qr(noise)[0]             # (N, d), with variances of 1
    Z = step * deviations * uncorrelated

    panel.plot(*(Z / step).T, 'o', color=BLUE, markersize=3)
    for axis, height in ((0, 10), (1, -10)):
        along_axis = Z * torch.eye(d)[axis]                         # 0 along the other one
        cost = lesson1.coding_rate(along_axis, eps)
        steps = deviations[axis]
        formula = rf'$\frac{{1}}{{2}}\,\log(1 + {steps:g}^2)$ = {cost:.2f} nats'
        panel.text(0, height, f'axis {axis + 1}: deviation {steps:g} steps\n{formula}', ha='center',
                   va='center', backgroundcolor='white')

    panel.set(xlim=(-19, 19), ylim=(-19, 19), aspect='equal',
              title=f'R = {lesson1.coding_rate(Z, eps):.2f} nats, nearly all for axis 1',
              xlabel=r'axis 1, in steps of $\epsilon / \sqrt{d}$',
              ylabel=r'axis 2, in steps of $\epsilon / \sqrt{d}$')
    panel.set_xticks(range(-19, 20), minor=True)
    panel.set_yticks(range(-19, 20), minor=True)
    panel.grid(which='minor', color='0.9')                          # a line for each step
    panel.set_axisbelow(True)


def draw_gradient_step(panel):
    """Tokens near two lines of the plane, and where a step against the gradient of R^c moves
    them."""
    n = 8           # tokens near a line
    eps = 0.5
    angles = torch.tensor([0.0, torch.pi / 3], dtype=torch.float64)
    U = torch.stack((angles.cos(), angles.sin()), 1).unsqueeze(2)   # two lines: (2, 2, 1)
    along = torch.linspace(-4, 4, n, dtype=torch.float64).view(n, 1)
    groups = along @ U.mT + 0.2 * gaussian(random_numbers(), 2, n, 2)
    Z = groups.flatten(0, 1)                                        # (2 n, 2)

    step = -30 * lesson1.compressed_rate_gradient(Z, U, eps)        # so large that one sees it
    before = lesson1.compressed_rate(Z, U, eps)
    after = lesson1.compressed_rate(Z + step, U, eps)

    for k in range(2):
        panel.axline((0, 0), U[k, :, 0], color=COLOURS[k], linestyle=DASHES[k], linewidth=1)
        panel.plot(*groups[k].T, MARKERS[k], color=COLOURS[k], label=f'tokens near line {k + 1}')
    panel.quiver(*Z.T, *step.T, angles='xy', scale_units='xy', scale=1, width=0.007)
    panel.set(xlim=(-5, 5), ylim=(-5, 5), aspect='equal', xlabel='coordinate 1',
              ylabel='coordinate 2', title='Does a step turn tokens, or shorten them?')
    panel.text(-4.8, 4.7, f'arrows: one step, which takes\n$R^c$ from {before:.2f} to '
               f'{after:.2f} nats', va='top', fontsize='small')
    panel.legend(loc='lower right', fontsize='small')


# ---- lesson 2: MSSA -----------------------------------------------------------------------------

def lesson_2():
    """24 tokens, sorted by their subspace: what one head makes of them, and what all heads do."""
    K, p, n, d = 3, 4, 8, 12
    Z, U = noisy_mixture(K, p, n, d, delta=0.25, generator=random_numbers())
    Z = d ** 0.5 * normalize(Z.flatten(0, 1), dim=1)                # as behind a LayerNorm
    P = Z @ U[0]                                                    # (N, p), of the first head
    scores = P @ P.T / p ** 0.5                                     # (N, N)
    weights = lesson2.attention_weights(Z[None], U, False)[0, 0]    # (N, N)
    after = lesson2.half_step(Z[None], U, False)[0]                 # (N, d)

    figure = new_figure(470)
    figure.suptitle('No label names the subspace of a token: the softmax finds it')
    left, middle, right = figure.subplots(1, 3, width_ratios=(1, 1, 0.9))
    left.set_title('head 1: large in block 1 alone')
    draw_pairs(left, scores, BELOW_AND_ABOVE_ZERO, -8, 8, r'inner product / $\sqrt{p}$')
    middle.set_title('weights: large there alone')
    draw_pairs(middle, weights, FROM_WHITE, 0, 1, 'weight')

    draw_lengths(right, Z.unflatten(0, (K, n)), U, 0, 'Z')
    draw_lengths(right, after.unflatten(0, (K, n)), U, 1, 'Z + MSSA(Z)')
    right.set(title='own part gains most', ylabel='length, mean of all tokens', ylim=(0, 10))
    right.set_xticks([0.2, 1.2], ['in their own\nsubspace', 'outside\nof it'])
    right.legend()
    return figure


def draw_pairs(panel, numbers, colours, lowest, highest, name):
    """A map as draw_blocks has it, with names for its axes and its colours."""
    image = draw_blocks(panel, numbers, colours, lowest, highest)
    panel.set(xlabel='with tokens of subspace', ylabel='tokens of subspace')
    panel.figure.colorbar(image, ax=panel, location='bottom', label=name)


def draw_blocks(panel, numbers, colours, lowest, highest):
    """A map of numbers (N, N), one for each pair of tokens, in groups of 8. Returns the image."""
    image = panel.imshow(numbers, cmap=colours, vmin=lowest, vmax=highest)
    names = range(1, len(numbers) // 8 + 1)
    centres = [8 * group - 4.5 for group in names]
    for centre in centres[1:]:
        panel.axhline(centre - 4, color='0.5', linewidth=1)
        panel.axvline(centre - 4, color='0.5', linewidth=1)
    panel.set_xticks(centres, names)
    panel.set_yticks(centres, names)
    return image


def draw_lengths(panel, Z, U, number, name):
    """How long the parts of tokens Z (K, n, d) inside and outside of their own subspaces are, as
    two bars with one name, the first or the second (number 0 or 1) of their group."""
    signal = Z @ U @ U.mT                                           # (K, n, d)
    lengths = [part.norm(dim=2).mean().item() for part in (signal, Z - signal)]
    positions = np.arange(2) + 0.4 * number
    bars = panel.bar(positions, lengths, 0.38, color=COLOURS[number], label=name)
    panel.bar_label(bars, fmt='%.1f')


# ---- lesson 3: ISTA -----------------------------------------------------------------------------

def lesson_3():
    """Why the proximal step is a ReLU, and how codes become sparse in many steps."""
    figure = new_figure(620)
    left, right = figure.subfigures(1, 2, width_ratios=(1, 1.2))
    draw_threshold(left)
    draw_codes(right)
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
    generator = random_numbers()
    D = normalize(gaussian(generator, d, d), dim=0)
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
    figure.supylabel('number at this place')


# ---- lesson 4: the network ----------------------------------------------------------------------

def lesson_4():
    """A picture becomes patches, patches become tokens, and the class token becomes logits."""
    weights, c = trained_crate()
    x, _ = drawn_shapes(['heart'], seed=1)
    patches = lesson4.patches(x, PATCH, PATCH)[0]                                   # (64, 48)
    tokens = lesson4.tokens(x, lesson4.part(weights, 'embed'), PATCH, PATCH)[0]     # (65, 192)
    logits = lesson4.classify(x, weights, c.n_layer, c.n_head, PATCH, PATCH, c.eta, c.lam)[0]

    figure = new_figure(500)
    figure.suptitle('Patches become tokens; the class token in front gives the logits')
    picture, of_patches, of_tokens, bars = figure.subplots(1, 4, width_ratios=(4, 1.5, 3, 1))
    picture.imshow(augment.visible(x)[0], extent=(0, GRID, GRID, 0))
    picture.set(xticks=range(GRID + 1), yticks=range(GRID + 1), title=f'{SIDE} x {SIDE} pixels',
                xlabel=f'{GRID ** 2} patches of {PATCH} x {PATCH} pixels')
    picture.tick_params(length=0, labelcolor='none')
    picture.grid(color='white', linewidth=1)
    for panel, rows in ((of_patches, patches), (of_tokens, tokens)):
        panel.imshow(rows, cmap=BELOW_AND_ABOVE_ZERO, vmin=-2.5, vmax=2.5, aspect='auto',
                     interpolation='nearest')  # the file becomes smaller
        panel.set(xticks=[], xlabel=f'{rows.shape[1]} numbers')
    of_patches.set(title='patches', yticks=[0, 63], yticklabels=['1', '64'])
    of_tokens.set(title='tokens', yticks=[0, 64], yticklabels=['class', '64'])
    bars.barh(CLASSES, logits.numpy(), color=BLUE)
    bars.yaxis.tick_right()
    bars.invert_yaxis()
    bars.set_title(f'logits, after\n{c.n_layer} layers')
    return figure


# ---- lesson 5: denoising ------------------------------------------------------------------------

def lesson_5():
    """The weights of Theorem 1, near its conditions and far from them."""
    figure = new_figure(690)
    figure.suptitle('After the threshold tokens attend to themselves alone, near the conditions')
    left, right = figure.subfigures(1, 2)
    draw_weights(left, 'near the conditions', p=768, delta=0.01)
    draw_weights(right, 'far from them', p=8, delta=0.5)
    return figure


def draw_weights(figure, name, p, delta):
    """The weights of 16 tokens in two subspaces of dimension p, before and after the threshold. The
    noise has the size delta. Below the weights stand the two shares of `passing`."""
    tau = 0.6
    Z, U = noisy_mixture(K=2, p=p, n=8, d=2 * p, delta=delta, generator=random_numbers())
    tokens = Z.flatten(0, 1)                                        # (16, d)
    softmax = lesson5.membership(tokens, U, 0.0)                    # (2, 16, 16)
    threshold = lesson5.membership(tokens, U, tau)
    itself, elsewhere = lesson5.passing(threshold)

    figure.suptitle(rf'{name}: p = {p}, $\delta$ = {delta}')
    panels = figure.subplots(2, 2)
    for row, phi in zip(panels, (softmax, threshold)):
        for panel, weights in zip(row, phi):
            image = draw_blocks(panel, weights, FROM_WHITE, 0, 1)
            panel.set_xticklabels(['cluster 1', '2'])
    for k in range(2):
        panels[0, k].set_title(f'subspace {k + 1}')
    panels[0, 0].set_ylabel('softmax')
    panels[1, 0].set_ylabel(rf'threshold $\tau$ = {tau}')
    figure.colorbar(image, ax=panels, location='bottom', label='weight')
    figure.supxlabel(f'own subspace: {itself:.0%} attend to themselves,\n'
                     f'other subspace: {elsewhere:.0%} attend to anything')


# ---- lesson 6: CRATE-MAE ------------------------------------------------------------------------

def lesson_6():
    """Five shapes, a quarter of their patches, and what a network makes of these."""
    model, _ = load(ROOT / 'trained' / 'crate_mae_shapes')
    x, _ = drawn_shapes(['disc', 'square', 'star', 'heart', 'bar'], seed=1)
    patches = lesson4.patches(x, PATCH, PATCH)                      # (5, 64, 48)
    noise = torch.rand(patches.shape[:2], generator=random_numbers())
    hidden = model.hide(noise)                                      # bool (5, 64)
    pred, _ = model(x, noise)                                       # (5, 64, 48)

    grey = torch.zeros_like(patches)
    rows = {'original': x}
    for name, instead in (('75% hidden', grey), ('filled in', pred)):
        shown = torch.where(hidden[..., None], instead, patches)
        rows[name] = unpatchify(shown, (SIDE, SIDE), (PATCH, PATCH))
    figure = new_figure(700)
    figure.suptitle('From a quarter of the patches the network guesses colours and rough outlines')
    panels = figure.subplots(3, 5)
    draw_rows(panels, rows)
    for panel, predicted, true, is_hidden in zip(panels[2], pred, patches, hidden):
        error = lesson6.masked_loss(predicted, true, is_hidden)
        mean_colour = true[~is_hidden].view(-1, 3).mean(0).repeat(PATCH ** 2)
        guess = lesson6.masked_loss(mean_colour.expand_as(true), true, is_hidden)
        panel.set_xlabel(f'error {error:.2f},\nmean colour {guess:.2f}')
    return figure


# ---- lesson 7: a sceptic's eye ------------------------------------------------------------------

def lesson_7():
    """The head that finds the shape best, with trained and with random weights, and a square in the
    middle, in three pictures."""
    model, _ = load(ROOT / 'trained' / 'crate_shapes')
    torch.manual_seed(1)
    random_model = type(model)(model.config).eval()
    x, masks = drawn_shapes(['disc', 'star', 'heart'], seed=7)
    middle = torch.zeros_like(masks)
    middle[:, SIDE // 4:-SIDE // 4, SIDE // 4:-SIDE // 4] = True

    figure = new_figure(650)
    figure.suptitle('Which finds the shape best: a trained head, a random one, or a square?')
    panels = figure.subplots(3, 6, subplot_kw={'xticks': [], 'yticks': []})
    for panel, picture in zip(panels[:, 0], augment.visible(x)):
        panel.imshow(picture)
    draw_best_heads(panels[:, 1:3], model, x, masks)
    draw_best_heads(panels[:, 3:5], random_model, x, masks)
    draw_masks(panels[:, 5], middle, masks)
    figure.supxlabel('bright: much attention, each map on its own scale; orange: edge of the shape')
    titles = ('picture', 'trained,\nbest head', '60% of\nthe map',
              'random,\nbest head', '60% of\nthe map', 'no head,\na square')
    for panel, title in zip(panels[0], titles):
        panel.set_title(title)
    return figure


def draw_best_heads(panels, network, x, masks):
    """The map of the head whose patches overlap the shape most, and its patches
    with 60% of the map. The heads are those of the last layer but one."""
    maps = class_maps_of(network, x)                            # (n, K, 64)
    patches = lesson7.top_mass(maps, 0.6).unflatten(2, (GRID, GRID))
    pixels = patches.repeat_interleave(PATCH, 2).repeat_interleave(PATCH, 3)    # (n, K, 32, 32)
    scores = lesson7.overlap(pixels, masks[:, None].expand_as(pixels))          # (n, K)
    best = torch.arange(len(x)), scores.argmax(1)               # one head of each picture

    for panel, weights in zip(panels[:, 0], maps[best]):
        panel.imshow(weights.view(GRID, GRID), cmap=FROM_BLACK)
    draw_masks(panels[:, 1], pixels[best], masks)


def draw_masks(panels, guesses, masks):
    """A guess of the mask in blue, and the true mask as a line."""
    for panel, guess, mask in zip(panels, guesses, masks):
        panel.imshow(guess, cmap=FROM_WHITE, vmin=0, vmax=2)
        panel.contour(mask, [0.5], colors=ORANGE)


# ---- lesson 8: a verdict ------------------------------------------------------------------------

# validation losses of the seeds 1, 2 and 3; those of ViT are in the lesson
VIT_LOSSES = [1.701, 1.775, 1.736]
LOSSES = {
    'network A\n(invented)': [1.580, 1.620, 1.570],
    'network B\n(invented)': [1.800, 1.700, 1.860],
    'network C\n(invented)': [1.930, 1.920, 1.910],
}
VERDICTS = {1: 'better', 0: 'these seeds do not tell', -1: 'worse'}


def lesson_8():
    """The interval of the mean gain of three networks, beside the smallest gain that matters."""
    least = 0.05
    figure = new_figure(440)
    panel = figure.subplots()
    panel.axvspan(-least, least, color='0.85', label='gains that do not matter')

    for row, losses in enumerate(LOSSES.values()):
        ours = dict(enumerate(losses))
        theirs = dict(enumerate(VIT_LOSSES))
        low, high, verdict = lesson8.verdict(ours, theirs, least)
        gains = np.subtract(VIT_LOSSES, losses)
        interval = panel.plot([low, high], [row, row], '|-', color=BLUE, linewidth=3, markersize=16)
        dots = panel.plot(gains, [row + 0.2] * len(gains), 'o', color=ORANGE)
        panel.text(0.23, row, VERDICTS[verdict], va='center')
    interval[0].set_label('95% interval of the mean gain')
    dots[0].set_label('gain of a seed')
    panel.set_yticks(range(len(LOSSES)), LOSSES)
    panel.set(xlim=(-0.5, 0.5), ylim=(2.5, -0.5),
              title='An interval that reaches into the grey band does not tell',
              xlabel='gain over ViT, nats: by how much the validation loss is lower')
    panel.legend(loc='upper left', fontsize='small')
    return figure


# ---- the command line ---------------------------------------------------------------------------

# {number: function}
PICTURES = dict(enumerate((lesson_1, lesson_2, lesson_3, lesson_4,
                           lesson_5, lesson_6, lesson_7, lesson_8), 1))


def main(argv=None):
    """Draw what a command line asks for. Raises Mistake if the words are wrong, if a picture is
    there already, outside of assets/, or if there can be no such folder."""
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('lesson', nargs='?', type=int, choices=PICTURES, help='by default all')
    parser.add_argument('--out', type=Path, default=ASSETS, help='folder, by default assets/')
    args = parser.parse_args(argv)

    lessons = [args.lesson] if args.lesson else PICTURES
    paths = {n: args.out / f'lesson{n}.png' for n in lessons}
    for path in paths.values():
        if path.exists() and args.out.resolve() != ASSETS:
            raise Mistake(f'{path} is there already; remove it, or name another --out')

    with writing(args.out):
        args.out.mkdir(parents=True, exist_ok=True)
    from matplotlib import rc_context
    for n, path in paths.items():
        with house_style(), rc_context(LESSON_STYLE), torch.no_grad():
            save(PICTURES[n](), path)
        print(path)


if __name__ == '__main__':
    with one_line_errors():
        main()
