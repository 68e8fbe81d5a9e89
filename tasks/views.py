"""Self-distillation: crops of a picture for the teacher and the student, batched, on the device.

Of each picture two large crops and any number of small ones are drawn (Caron et al. 2021, and its
code): flips with probability 0.5, colour jitter 0.8 (brightness and contrast 0.4, saturation 0.2,
hue 0.1), grey 0.2, blur 1.0 on the first large crop, 0.1 on the second, 0.5 on small ones,
solarization 0.2 on the second large one. The four parts of the jitter always come in this order; the
released code draws their order too.
"""
import math

import torch
import torch.nn.functional as F

from engine.settings import Mistake
from tasks import augment, randaugment
from tasks.augment import FIRST, normalize, send
from tasks.pictures import Classification

LARGE = 2
VIEW = FIRST + 9  # random numbers of a crop: those of its box and flip, and one for each of the following columns
JITTERED, BRIGHTNESS, CONTRAST, SATURATION, HUE, GREY, BLURRED, SIGMA, SOLARIZED = range(FIRST, VIEW)
JITTER = ('Brightness', BRIGHTNESS, 0.4), ('Contrast', CONTRAST, 0.4), ('Color', SATURATION, 0.2)
BLUR, SOLARIZE = (1.0, 0.1, 0.5), (0.0, 0.2, 0.0)  # probabilities on the first large crop, the second, small ones
LEAST_SIGMA = 0.1


def draws_needed(c):
    """How many random numbers each picture needs."""
    return (LARGE + c.local_crops) * VIEW


def check(c):
    """Raises Mistake if small crops keep more of a picture than they may; c: an AugmentConfig."""
    if c.local_crops and c.local_scale > c.crop_scale:
        raise Mistake(f'local_scale={c.local_scale} must be at most crop_scale={c.crop_scale}')


def views(pictures, sizes, draws, image_size, c):
    """(large (2, B, C, *image_size), small (n, B, C, local_size, local_size)), normalized crops.
    Arguments as of augment.train_pictures; c: an AugmentConfig."""
    def crop(mine, kind, size, areas):
        x = augment.cropped(pictures, sizes, mine, size, c, areas)
        return normalize(coloured(x, mine, kind, c))
    first, second, *others = draws.split(VIEW, 1)
    large = [crop(mine, kind, image_size, (c.crop_scale, 1.0)) for kind, mine in enumerate((first, second))]
    small = [crop(mine, 2, (c.local_size, c.local_size), (c.local_scale, c.crop_scale)) for mine in others]
    return torch.stack(large), torch.stack(small) if small else large[0].new_empty(0)


def coloured(x, draws, kind, c):
    """Pictures 0 to 255, float32 (B, C, H, W), with other colours, blurred and solarized, by their
    random numbers. kind: 0 and 1 for the large crops, 2 for a small one."""
    def chosen(column, probability):
        """The rows that something is done to, and their random numbers, float32, on the device."""
        rows = (draws[:, column] < probability).nonzero()[:, 0]
        return send(rows, x.device), send(draws[rows].float(), x.device)
    if c.jitter:
        rows, own = chosen(JITTERED, 0.8)
        y, sway = x[rows].round(), 2 * own - 1
        for name, column, most in JITTER:
            y = randaugment.COLOUR[name](y, 1 + c.jitter * sway[:, column, None, None, None] * most)
        x[rows] = turned(y, c.hue * c.jitter * sway[:, HUE])
    rows, _ = chosen(GREY, c.grey * c.jitter * (x.size(1) == 3))
    x[rows] = randaugment.grey(x[rows].round())
    if c.blur:
        rows, own = chosen(BLURRED, BLUR[kind])
        x[rows] = blurred(x[rows], LEAST_SIGMA + (c.blur - LEAST_SIGMA) * own[:, SIGMA], c.blur)
    rows, _ = chosen(SOLARIZED, SOLARIZE[kind] * c.jitter)
    x[rows] = randaugment.COLOUR['Solarize'](x[rows], 128)
    return x


def turned(x, by):
    """Colours 0 to 255 (n, 3, H, W) with their hue turned by so many turns (n,); other pictures stay as they are."""
    if x.size(1) != 3:
        return x
    r, g, b = x.unbind(1)
    high = x.amax(1)
    span = high - x.amin(1)
    one = span.clamp_min(1e-9)
    hue = torch.where(high == g, (b - r) / one + 2, (r - g) / one + 4)  # in sixths of a turn
    hue = torch.where(high == r, (g - b) / one, hue) + 6 * by[:, None, None]
    channel = ((hue + n) % 6 for n in (5, 3, 1))                        # of red, green and blue
    return torch.stack([high - span * torch.minimum(k, 4 - k).clamp(0, 1) for k in channel], 1)


def blurred(x, sigma, largest):
    """Pictures (n, C, H, W), each with a Gaussian blur of its standard deviation sigma (n,) in pixels;
    beyond a border the picture goes on as it ends."""
    n, C, reach = len(x), x.size(1), math.ceil(3 * largest)
    if not n:
        return x
    t = torch.arange(-reach, reach + 1, device=x.device)
    weights = (-t ** 2 / (2 * sigma[:, None] ** 2)).exp()
    weights = (weights / weights.sum(1, keepdim=True)).repeat_interleave(C, 0)[:, None, None]   # (n C, 1, 1, taps)
    x = F.pad(x.flatten(0, 1)[None], 4 * [reach], mode='replicate')
    x = F.conv2d(F.conv2d(x, weights, groups=n * C), weights.mT, groups=n * C)
    return x[0].unflatten(0, (n, C))


class Distillation(Classification):
    """Of the teacher's outputs validation reports, in nats, their mean `entropy`, and how much of a
    picture they tell, `information`: the entropy of their mean over a batch less their mean entropy. If
    all pictures get the same output, it is 0; if each of a batch has its own, the logarithm of their
    number. If the teacher gives all K answers the same probability, the entropy is log K. SimDINO's network reports
    both parts of its loss, `alignment` and `expansion`, itself."""

    def __init__(self, c, augmentation, folder, config, device):
        # SimDINO's coding rate is that of the batch_size pictures of a pass, so all processes share each pass
        self.simdino = self.together = getattr(config, 'objective', 'dino') == 'simdino'
        super().__init__(c, augmentation, folder, config, device)
        check(augmentation)
        size, patch = augmentation.local_size, config.patch_size
        if augmentation.local_crops and any(size % side for side in patch):
            raise Mistake(f'local_size={size} is not divisible by patch_size={patch}')
        self.train_wants['draws'] = self.valid_wants['draws'] = draws_needed(augmentation)
        self.config = config
        if self.simdino:
            least = config.least_correlation(c.batch_size)
            lasts = 'would not' if least < 0 else 'may'
            said = f'a collapse {lasts} last: pictures come apart if their crops correlate above {least:.2f}'
            self.note = f'{self.note}\n{said}'.strip() + '; give a smaller --c or --eps' * (least >= 0)

    def pixels(self, batch, training):
        pictures, sizes, _, draws = batch
        return views(*self.device.send(pictures), sizes, draws, self.image_size, self.augmentation)

    def metrics(self, out, loss, y):
        if self.simdino:
            return len(y), {'loss': loss}
        entropy, of_mean = (torch.special.entr(p).sum(-1).mean() for p in (out, out.mean((0, 1))))
        return len(y), {'loss': loss, 'entropy': entropy, 'information': of_mean - entropy}

    def error(self, metrics):
        # DINO's centre moves, and the loss with it: those of two steps cannot be compared
        return metrics['loss'] if self.simdino else None

    def warning(self, metrics):
        config, N = self.config, self.c.batch_size
        if self.simdino:
            alike, apart = (config.expansion_of(directions, N) for directions in (1, min(config.bottleneck, N)))
            collapsed = metrics['expansion'] < alike + 0.01 * (apart - alike)
            return 'the features of all pictures are alike; give a smaller --c or --eps' * collapsed
        if metrics['entropy'] > 0.99 * math.log(config.n_out):
            return 'the teacher says nothing of any picture, all outputs alike; give a lower --teacher_temperature'
        if metrics['information'] < 0.01 * math.log(min(config.n_out, N)):
            return 'the teacher says the same of all pictures; give a smaller --centre_momentum'
        return ''
