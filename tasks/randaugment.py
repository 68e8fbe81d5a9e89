"""The 14 operations of torchvision's RandAugment (Cubuk et al. 2020, arXiv:1909.13719), each of
which is drawn equally often. They work on a batch at a time, on the device.

They compute what Pillow computes. A magnitude says how strong they are, and its meaning depends on
the scale. The scale 'torchvision' counts to 30, as torchvision's RandAugment does; the authors of
CRATE fine-tune with two operations at magnitude 14 of 30. The scale 'timm' counts to 10, as the
file does that the paper names; there a magnitude above 10 means 10. It has timm's strengths and
colour alone: timm draws from other operations, and applies each one half of the time.
"""
import math

import torch
import torch.nn.functional as F

# red, green and blue of what lies beyond the border of a picture; those of timm are ImageNet's mean
FILL = {'torchvision': (0, 0, 0), 'timm': (124, 116, 104)}


# ---- colour operations --------------------------------------------------------------------------
# Each takes whole numbers from 0 to 255 as float32 (n, C, H, W) and gives the same. The second
# argument is the strength, (n, 1, 1, 1) or a number; some operations have none and ignore it.

def autocontrast(x, strength):
    """Stretch every channel, so that its darkest value becomes 0 and its lightest value 255."""
    # float64, as in Pillow. MPS has no float64, so a result may be 1 off there
    dtype = torch.float32 if x.device.type == 'mps' else torch.float64
    darkest = x.amin((2, 3), keepdim=True).to(dtype)             # (n, C, 1, 1)
    lightest = x.amax((2, 3), keepdim=True).to(dtype)
    # a tensor of 255, because 255 / tensor would multiply by a rounded reciprocal
    scale = torch.full_like(darkest, 255) / (lightest - darkest)
    stretched = (x * scale - darkest * scale).clamp(0, 255).floor().to(x.dtype)
    return torch.where(lightest > darkest, stretched, x)


def equalize(x, strength):
    """Make the histogram of every channel about flat, as Pillow's ImageOps.equalize does: 255 steps
    of the same number of pixels, those of the lightest value aside. With less than a pixel in a
    step the channel stays as it is."""
    values = x.flatten(2).long()                                 # (n, C, H W)
    ones = torch.ones_like(values, dtype=torch.int32)
    histogram = ones.new_zeros(*x.shape[:2], 256)                # (n, C, 256)
    histogram.scatter_add_(2, values, ones)
    # how many pixels have the largest value that occurs
    n_lightest = histogram.gather(2, values.amax(2, keepdim=True))
    step = (values.size(2) - n_lightest) // 255                  # pixels per new value: (n, C, 1)
    n_darker = histogram.cumsum(2, dtype=torch.int32) - histogram
    table = (step // 2 + n_darker) // step.clamp(min=1)          # old value to new: (n, C, 256)
    equalized = table.clamp(max=255).gather(2, values).view_as(x)
    return torch.where(step[..., None] > 0, equalized, x)


def solarize(x, threshold):
    """Invert what is not below the threshold."""
    return torch.where(x < threshold, x, 255 - x)


def colour(x, factor):
    """Change the saturation of colour pictures; others stay as they are."""
    if x.size(1) != 3:
        return x
    return blend(grey(x), x, factor)


def posterize(x, step):
    """Lower every value to a multiple of the step."""
    return x - x.remainder(step)


def contrast(x, factor):
    n_pixels = x.size(2) * x.size(3)
    total = grey(x).sum((1, 2, 3), keepdim=True, dtype=torch.int64)
    mean = (2 * total + n_pixels) // (2 * n_pixels)              # rounded: (n, 1, 1, 1)
    return blend(mean.to(x.dtype), x, factor)


def brightness(x, factor):
    return blend(0, x, factor)


def sharpness(x, factor):
    """The plain version is the mean of 3 x 3 pixels, in which the middle one counts 5 times. Pixels
    at the border stay as they are."""
    total = F.avg_pool2d(x, 3, stride=1, padding=1, divisor_override=1) + 4 * x
    smooth = (total / (8 + 5)).round()
    plain = x.clone()
    plain[..., 1:-1, 1:-1] = smooth[..., 1:-1, 1:-1]
    return blend(plain, x, factor)


def blend(plain, x, factor):
    """Go from a plain version of pictures (factor 0) to the pictures (factor 1) and beyond."""
    return (plain + factor * (x - plain)).clamp(0, 255).floor()


def grey(x):
    """The luma of colour pictures, or the mean of the channels of others: (n, 1, H, W). It is
    exact, because float32 holds whole numbers below 2^24 exactly."""
    if x.size(1) != 3:
        return x.mean(1, keepdim=True).round()
    red, green, blue = x.split(1, 1)                             # (n, 1, H, W)
    luma = red * 19595 + green * 38470 + blue * 7471             # times 65536
    return ((luma + 0x8000) / 65536).floor()


COLOUR = {
    'AutoContrast': autocontrast,
    'Equalize': equalize,
    'Solarize': solarize,
    'Color': colour,
    'Posterize': posterize,
    'Contrast': contrast,
    'Brightness': brightness,
    'Sharpness': sharpness,
}


GEOMETRIC = ('Rotate', 'ShearX', 'ShearY', 'TranslateX', 'TranslateY')
OPERATIONS = ('Identity', *COLOUR, *GEOMETRIC)


# ---- magnitudes ---------------------------------------------------------------------------------

def strengths(m, scale):
    """What magnitude m is to the operations: the factors of `blend` at the signs -1 and 1; the step
    of Posterize; the threshold of Solarize; an angle in degrees; a shear in pixels per pixel; a
    shift as a share of the picture's side."""
    if scale == 'torchvision':
        lost_bits = round(m / 7.5)                               # 4 at most
        return {
            'factors': (1 - 3 * m / 100, 1 + 3 * m / 100),
            'Posterize': 2 ** lost_bits,
            'Solarize': 255 - 8.5 * m,                           # 0 at magnitude 30
            'degrees': m,
            'shear': m / 100,
            'shift': m / 30 * (150 / 331),                       # at most 150 of 331 pixels
        }
    m = min(m, 10)
    factor = 0.1 + 1.8 * m / 10
    lost_bits = 8 - int(4 * m / 10)
    return {
        'factors': (factor, factor),
        'Posterize': 2 ** lost_bits,
        'Solarize': int(256 * m / 10),
        'degrees': 3 * m,
        'shear': 3 * m / 100,
        'shift': 4.5 * m / 100,
    }


# ---- geometric operations -----------------------------------------------------------------------

def matrices(m, scale, h, w):
    """The matrix of each of OPERATIONS, at the signs -1 and 1, float64 (2, 14, 3, 3). Those of
    other operations move nothing. (h, w): the size of the pictures.

    A matrix maps (x, y, 1), a place in the new picture, to the place in the old picture that
    appears there. The top left corner is (0, 0), the centre of the first pixel (0.5, 0.5).
    """
    strength = strengths(m, scale)
    angle = math.radians(strength['degrees'])
    shear = strength['shear']
    shift = strength['shift']
    cosine = math.cos(angle)
    table = torch.eye(3, dtype=torch.float64).repeat(2, len(OPERATIONS), 1, 1)   # (2, 14, 3, 3)
    for sign, of_sign in zip((-1, 1), table):
        matrix = dict(zip(OPERATIONS, of_sign))                  # each (3, 3), a part of the table
        sine = sign * math.sin(angle)
        back_x = (w - cosine * w + sine * h) / 2                 # so that the centre stays
        back_y = (h - sine * w - cosine * h) / 2
        rotation = [[cosine, -sine, back_x],                     # counter-clockwise
                    [sine, cosine, back_y]]
        matrix['Rotate'][:2] = torch.tensor(rotation, dtype=table.dtype)
        matrix['ShearX'][0, 1] = sign * shear
        matrix['ShearY'][1, 0] = sign * shear
        matrix['TranslateX'][0, 2] = sign * shift * w
        matrix['TranslateY'][1, 2] = sign * shift * h
    return table
