"""RandAugment's 14 operations (Cubuk et al. 2020), each drawn equally often; batched, on the device.

They compute what Pillow computes. How strong they are at a magnitude depends on the scale.
'torchvision' counts to 30, as its RandAugment does; the authors of CRATE fine-tune with two
operations at 14 of 30. 'timm' counts to 10, as the file does that the paper names; more than 10 is
10 there.
"""
import math

import torch
import torch.nn.functional as F

FILL = {'torchvision': (0, 0, 0), 'timm': (124, 116, 104)}  # beyond a picture's border; timm: ImageNet's mean


# ---- colour operations: whole numbers 0 to 255 as float32 (n, C, H, W), strength (n, 1, 1, 1) -> the same -----------


def autocontrast(x, strength):
    """Stretch every channel from its darkest and lightest value to 0 and 255."""
    wide = torch.float32 if x.device.type == 'mps' else torch.float64  # as Pillow; MPS has no float64, so may be 1 off
    lo, hi = x.amin((2, 3), keepdim=True).to(wide), x.amax((2, 3), keepdim=True).to(wide)
    scale = torch.full_like(lo, 255) / (hi - lo)  # 255 / tensor would multiply by a rounded reciprocal
    stretched = (x * scale - lo * scale).clamp(0, 255).floor().to(x.dtype)
    return torch.where(hi > lo, stretched, x)


def equalize(x, strength):
    """Make the histogram of every channel about flat."""
    values = x.flatten(2).long()
    ones = torch.ones_like(values, dtype=torch.int32)
    histogram = ones.new_zeros(*x.shape[:2], 256).scatter_add_(2, values, ones)
    lightest = histogram.gather(2, values.amax(2, keepdim=True))  # how many pixels have the largest value
    step = (values.size(2) - lightest) // 255
    below = histogram.cumsum(2, dtype=torch.int32) - histogram
    table = ((step // 2 + below) // step.clamp(min=1)).clamp(max=255)
    return torch.where(step[..., None] > 0, table.gather(2, values).view_as(x), x)


def blend(plain, x, factor):
    """From a plain version of the picture (0) to the picture (1) and beyond."""
    return (plain + factor * (x - plain)).clamp(0, 255).floor()


def grey(x):
    """Luma of colour pictures, else the mean of the channels: (n, 1, H, W). Whole numbers below
    2^24 are exact."""
    if x.size(1) != 3:
        return x.mean(1, keepdim=True).round()
    r, g, b = x.split(1, 1)
    return ((r * 19595 + g * 38470 + b * 7471 + 0x8000) / 65536).floor()


def contrast(x, factor):
    n = x.size(2) * x.size(3)  # pixels
    total = grey(x).sum((1, 2, 3), keepdim=True, dtype=torch.int64)
    return blend(((2 * total + n) // (2 * n)).to(x.dtype), x, factor)


def sharpness(x, factor):
    """The plain version is the mean of 3 x 3 pixels, the middle one counted 5 times; border pixels
    stay as they are."""
    total = F.avg_pool2d(x, 3, stride=1, padding=1, divisor_override=1) + 4 * x
    plain = x.clone()
    plain[..., 1:-1, 1:-1] = (total / 13).round()[..., 1:-1, 1:-1]
    return blend(plain, x, factor)


COLOUR = {
    'Identity': lambda x, strength: x,
    'AutoContrast': autocontrast,
    'Equalize': equalize,
    'Solarize': lambda x, threshold: torch.where(x < threshold, x, 255 - x),  # inverts what is not below it
    'Color': lambda x, factor: blend(grey(x), x, factor) if x.size(1) == 3 else x,  # grey pictures stay
    'Posterize': lambda x, step: x - x.remainder(step),
    'Contrast': contrast,
    'Brightness': lambda x, factor: blend(0, x, factor),
    'Sharpness': sharpness,
}


GEOMETRIC = 'Rotate', 'ShearX', 'ShearY', 'TranslateX', 'TranslateY'
OPERATIONS = (*COLOUR, *GEOMETRIC)


def strengths(m, scale):
    """What magnitude m is: degrees, shear (pixels per pixel), shift (sides of a picture); the factors of blend at signs
    -1 and 1; the step to which values are cut, and the threshold from which they are inverted."""
    if scale == 'torchvision':
        return m, m / 100, m / 30 * (150 / 331), (1 - 3 * m / 100, 1 + 3 * m / 100), 2 ** round(m / 7.5), 255 - 8.5 * m
    m = min(m, 10)
    factor = 0.1 + 1.8 * m / 10
    return 3 * m, 3 * m / 100, 4.5 * m / 100, (factor, factor), 2 ** (8 - int(4 * m / 10)), int(256 * m / 10)


def matrices(m, scale, h, w):
    """The matrix of every operation at signs -1 and 1, float64 (2, 14, 3, 3); colour operations move nothing.

    A matrix maps (x, y, 1) in the new picture to the place in the old picture that appears there. The
    top left corner is (0, 0), the centre of the first pixel (0.5, 0.5).
    """
    degrees, shear, shift, *_ = strengths(m, scale)
    found = torch.eye(3, dtype=torch.float64).repeat(2, len(OPERATIONS), 1, 1)
    for sign, (turned, shear_x, shear_y, shift_x, shift_y) in zip((-1, 1), found[:, len(COLOUR):]):
        c, s = math.cos(math.radians(degrees)), sign * math.sin(math.radians(degrees))
        about_the_centre = [c, -s, (w - c * w + s * h) / 2], [s, c, (h - s * w - c * h) / 2]  # counter-clockwise
        turned[:2] = torch.tensor(about_the_centre, dtype=found.dtype)
        shear_x[0, 1] = shear_y[1, 0] = sign * shear
        shift_x[0, 2], shift_y[1, 2] = sign * shift * w, sign * shift * h
    return found
