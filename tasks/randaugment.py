"""RandAugment's 14 operations (Cubuk et al. 2020), each drawn equally often; batched, on the device.

They compute what Pillow computes. How strong they are at a magnitude depends on the scale.
'torchvision' counts to 30, as its RandAugment does; the authors of CRATE fine-tune with two
operations at 14 of 30. 'timm' counts to 10, as the file does that the paper names; more than 10 is
10 there.
"""
import math

import torch

SCALES = 'torchvision', 'timm'
FILL = {'torchvision': (0, 0, 0), 'timm': (124, 116, 104)}  # beyond a picture's border; timm: ImageNet's mean

# Strengths at magnitude m, and with a sign of -1 or 1, on each scale.
SIDE = 150 / 331  # torchvision's largest translation, in sides of a picture
STRENGTHS = {
    #              torchvision, m of 30             timm, m of 10
    'Rotate':     (lambda m, sign: sign * m,               lambda m, sign: sign * 3 * m),          # degrees
    'Shear':      (lambda m, sign: sign * m / 100,         lambda m, sign: sign * 3 * m / 100),    # pixels per pixel
    'Translate':  (lambda m, sign: sign * m / 30 * SIDE,   lambda m, sign: sign * 4.5 * m / 100),  # sides
    'Enhance':    (lambda m, sign: 1 + sign * 3 * m / 100, lambda m, sign: 0.1 + 1.8 * m / 10),    # 1 is the picture
    'Posterize':  (lambda m, sign: 8 - round(m / 7.5),     lambda m, sign: int(4 * m / 10)),       # bits that are kept
    'Solarize':   (lambda m, sign: 255 - 8.5 * m,          lambda m, sign: int(256 * m / 10)),     # threshold
}
KIND = {'Color': 'Enhance', 'Contrast': 'Enhance', 'Brightness': 'Enhance', 'Sharpness': 'Enhance',
        'ShearX': 'Shear', 'ShearY': 'Shear', 'TranslateX': 'Translate', 'TranslateY': 'Translate'}


def strength(operation, m, scale, sign):
    """Of an operation at magnitude m, with a sign of -1 or 1, see STRENGTHS; None if it has none."""
    strengths = STRENGTHS.get(KIND.get(operation, operation))
    return strengths and strengths[SCALES.index(scale)](min(m, 10) if scale == 'timm' else m, sign)


# ---- colour operations: whole numbers 0 to 255 as float32 (n, C, H, W), and a strength -> the same -----------------


def autocontrast(x, strength):
    """Stretch every channel from its darkest and lightest value to 0 and 255."""
    wide = torch.float32 if x.device.type == 'mps' else torch.float64  # as Pillow; MPS has no float64, so may be 1 off
    lo, hi = (v.to(wide) for v in (x.amin((2, 3), keepdim=True), x.amax((2, 3), keepdim=True)))
    scale = torch.full_like(lo, 255) / (hi - lo)  # 255 / tensor would multiply by a rounded reciprocal
    stretched = (x * scale - lo * scale).clamp(0, 255).floor().to(x.dtype)
    return torch.where(hi > lo, stretched, x)


def equalize(x, strength):
    """Make the histogram of every channel about flat."""
    values = x.flatten(2).long()
    histogram = torch.zeros(*x.shape[:2], 256, dtype=torch.int32, device=x.device)
    histogram.scatter_add_(2, values, torch.ones_like(values, dtype=torch.int32))
    lightest = histogram.gather(2, x.amax((2, 3))[..., None].long())  # how many pixels have the largest value
    step = (values.shape[2] - lightest) // 255
    below = histogram.cumsum(2, dtype=torch.int32) - histogram
    table = ((step // 2 + below) // step.clamp(min=1)).clamp(max=255).to(x.dtype)
    return torch.where(step[..., None] > 0, table.gather(2, values).view_as(x), x)


def posterize(x, bits):
    """Keep the leading bits of every value."""
    return x - x.remainder(2 ** (8 - bits))


def solarize(x, threshold):
    """Invert what is not below the threshold."""
    return torch.where(x < threshold, x, 255 - x)


def blend(plain, x, factor):
    """From a plain version of the picture (0) to the picture (1) and beyond. factor: a number, or
    one for each picture (n,)."""
    factor = factor[:, None, None, None] if torch.is_tensor(factor) else factor
    return (plain + factor * (x - plain)).clamp(0, 255).floor()


def grey(x):
    """Luma of colour pictures, else the mean of the channels: (n, 1, H, W). Whole numbers below
    2^24 are exact."""
    if x.size(1) != 3:
        return x.mean(1, keepdim=True).round()
    return ((x[:, :1] * 19595 + x[:, 1:2] * 38470 + x[:, 2:] * 7471 + 0x8000) / 65536).floor()


def saturation(x, factor):
    """Between grey and the colours of the picture, or beyond; other pictures than RGB stay as they
    are."""
    return blend(grey(x), x, factor) if x.size(1) == 3 else x


def contrast(x, factor):
    n = x.size(2) * x.size(3)  # pixels
    total = grey(x).sum((1, 2, 3), keepdim=True, dtype=torch.int64)
    return blend(((2 * total + n) // (2 * n)).to(x.dtype), x, factor)


def sharpness(x, factor):
    """The plain version is the mean of 3 x 3 pixels, the middle one counted 5 times; border pixels
    stay as they are."""
    rows = x[:, :, :-2] + x[:, :, 1:-1] + x[:, :, 2:]
    total = rows[..., :-2] + rows[..., 1:-1] + rows[..., 2:] + 4 * x[:, :, 1:-1, 1:-1]
    plain = x.clone()
    plain[:, :, 1:-1, 1:-1] = (total / 13).round()
    return blend(plain, x, factor)


# ---- geometric operations: a signed strength, height and width -> a matrix ------------------------------------------
#
# A matrix maps (x, y, 1) in the new picture to the place in the old picture that appears there. The
# top left corner is (0, 0), the centre of the first pixel (0.5, 0.5).


def rotate(degrees, h, w):
    """Counter-clockwise about the centre."""
    c, s = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    return matrix(c, -s, (w - c * w + s * h) / 2, s, c, (h - s * w - c * h) / 2)


def matrix(a, b, c, d, e, f):
    return [[a, b, c], [d, e, f], [0, 0, 1]]


COLOUR = {
    'Identity': lambda x, strength: x,
    'AutoContrast': autocontrast,
    'Equalize': equalize,
    'Solarize': solarize,
    'Color': saturation,
    'Posterize': posterize,
    'Contrast': contrast,
    'Brightness': lambda x, factor: blend(torch.zeros_like(x), x, factor),
    'Sharpness': sharpness,
}
GEOMETRIC = {
    'Rotate': rotate,
    'ShearX': lambda s, h, w: matrix(1, s, 0, 0, 1, 0),
    'ShearY': lambda s, h, w: matrix(1, 0, 0, s, 1, 0),
    'TranslateX': lambda s, h, w: matrix(1, 0, s * w, 0, 1, 0),
    'TranslateY': lambda s, h, w: matrix(1, 0, 0, 0, 1, s * h),
}
OPERATIONS = (*COLOUR, *GEOMETRIC)


def matrices(m, scale, h, w):
    """The matrix of every operation at signs -1 and 1, float64 (14, 2, 3, 3); colour operations move
    nothing."""
    still = torch.eye(3).tolist()
    return torch.tensor([[GEOMETRIC[name](strength(name, m, scale, sign), h, w) if name in GEOMETRIC else still
                          for sign in (-1, 1)] for name in OPERATIONS], dtype=torch.float64)
