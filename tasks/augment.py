"""Pictures on their way into the network: cropping, flipping, RandAugment, normalization; batched,
on the device.

    python analyze.py augment --dataset=shapes        # a contact sheet: pictures as training sees them

Pictures may have any number of channels. Nothing here draws random numbers: the caller hands them
over, so the result is a function of a picture and its own numbers, whatever batch it is in (up to
rounding, where it is padded to another size). What the numbers decide is decided on the CPU and
sent to the device without waiting for it. Of a picture more than three times as elongated as the
network's pictures, only a part comes here; see cut.

RandAugment (Cubuk et al. 2020) has its 14 operations, each drawn equally often; they compute what
Pillow computes, at the magnitudes of timm and of the authors' code. One thing differs. Crop, flip
and the five geometric operations are multiplied into one matrix, and the picture is interpolated
once. So all geometric operations come before the colour operations, whatever order was drawn, and
where they uncover an area, a picture that goes on beyond its crop fills it with its own pixels;
only beyond the picture's border is it filled with the mean colour.
"""
import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F

COLOUR_STATISTICS = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # mean and deviation of ImageNet's red, green and blue
GREY_STATISTICS = 0.449, 0.226                                    # of each channel where there are not three
FILL = (124, 116, 104)                                            # the mean as a colour from 0 to 255


LONGEST = 3  # pictures may be so many times as elongated as what the network reads; longer ones are cut


@dataclass
class AugmentConfig:
    crop_scale: float = 0.08     # least share of the area that random resized crops of training keep; 1 turns them off
    flip: bool = True            # mirror half of the training pictures
    randaugment_n: int = 0       # RandAugment: operations per picture; 0 turns it off
    randaugment_m: float = 14.0  # RandAugment: their magnitude, on timm's scale of 10
    eval_crop: float = 0.875     # share of the short side that evaluation's centre crop keeps (224 of 256)

    def __post_init__(self):
        for name in ('crop_scale', 'eval_crop'):
            if not 0 < getattr(self, name) <= 1:
                raise ValueError(f'{name}={getattr(self, name)} must lie in (0, 1]')
        for name, most in (('randaugment_n', 10), ('randaugment_m', 30)):
            if not 0 <= getattr(self, name) <= most:
                raise ValueError(f'{name}={getattr(self, name)} must lie in [0, {most}]')


# ---- RandAugment's colour operations: whole numbers 0..255 as float32 (n, C, H, W), and a magnitude -> the same -----


def autocontrast(x, m):
    """Stretch every channel from its darkest and lightest value to 0 and 255."""
    wide = torch.float32 if x.device.type == 'mps' else torch.float64  # as Pillow; MPS has no float64, so may be 1 off
    lo, hi = (v.to(wide) for v in (x.amin((2, 3), keepdim=True), x.amax((2, 3), keepdim=True)))
    scale = torch.full_like(lo, 255) / (hi - lo)  # 255 / tensor would multiply by a rounded reciprocal
    stretched = (x * scale - lo * scale).clamp(0, 255).floor().to(x.dtype)
    return torch.where(hi > lo, stretched, x)


def equalize(x, m):
    """Make the histogram of every channel about flat."""
    values = x.flatten(2).long()
    histogram = torch.zeros(*x.shape[:2], 256, dtype=torch.int32, device=x.device)
    histogram.scatter_add_(2, values, torch.ones_like(values, dtype=torch.int32))
    lightest = histogram.gather(2, x.amax((2, 3))[..., None].long())  # how many pixels have the largest value
    step = (values.shape[2] - lightest) // 255
    below = histogram.cumsum(2, dtype=torch.int32) - histogram
    table = ((step // 2 + below) // step.clamp(min=1)).clamp(max=255).to(x.dtype)
    return torch.where(step[..., None] > 0, table.gather(2, values).view_as(x), x)


def posterize(x, m):
    """Keep the leading bits of every value, m/10 of 4 bits."""
    bits = min(8, int(m / 10 * 4))
    return x - x.remainder(2 ** (8 - bits))


def solarize(x, m):
    """Invert what is not below the threshold, m/10 of 256."""
    return torch.where(x < min(256, int(m / 10 * 256)), x, 255 - x)


def blend(plain, x, m):
    """From a plain version of the picture (0) to the picture (1) and beyond (up to 1.9 at m =
    10)."""
    return (plain + (m / 10 * 1.8 + 0.1) * (x - plain)).clamp(0, 255).floor()


def grey(x):
    """Luma of colour pictures, else the mean of the channels: (n, 1, H, W). Whole numbers below
    2^24 are exact."""
    if x.size(1) != 3:
        return x.mean(1, keepdim=True).round()
    return ((x[:, :1] * 19595 + x[:, 1:2] * 38470 + x[:, 2:] * 7471 + 0x8000) / 65536).floor()


def saturation(x, m):
    """Between grey and the colours of the picture, or beyond; other pictures than RGB stay as they
    are."""
    return blend(grey(x), x, m) if x.size(1) == 3 else x


def contrast(x, m):
    n = x[0, 0].numel()  # pixels
    total = grey(x).sum((1, 2, 3), keepdim=True, dtype=torch.int64)
    return blend(((2 * total + n) // (2 * n)).to(x.dtype), x, m)


def sharpness(x, m):
    """The plain version is the mean of 3 x 3 pixels, the middle one counted 5 times; border pixels
    stay as they are."""
    rows = x[:, :, :-2] + x[:, :, 1:-1] + x[:, :, 2:]
    total = rows[..., :-2] + rows[..., 1:-1] + rows[..., 2:] + 4 * x[:, :, 1:-1, 1:-1]
    plain = x.clone()
    plain[:, :, 1:-1, 1:-1] = (total / 13).round()
    return blend(plain, x, m)


# ---- RandAugment's geometric operations: a signed magnitude, height and width -> a matrix ---------------------------
#
# A matrix maps (x, y, 1) in the new picture to the place in the old picture that appears there. The
# top left corner is (0, 0), the centre of the first pixel (0.5, 0.5).


def rotate(m, h, w):
    """Counter-clockwise about the centre, 30 degrees at m = 10."""
    c, s = math.cos(math.radians(3 * m)), math.sin(math.radians(3 * m))
    return matrix(c, -s, (w - c * w + s * h) / 2, s, c, (h - s * w - c * h) / 2)


def matrix(a, b, c, d, e, f):
    return [[a, b, c], [d, e, f], [0, 0, 1]]


COLOUR = {
    'Identity': lambda x, m: x,
    'AutoContrast': autocontrast,
    'Equalize': equalize,
    'Solarize': solarize,
    'Color': saturation,
    'Posterize': posterize,
    'Contrast': contrast,
    'Brightness': lambda x, m: blend(torch.zeros_like(x), x, m),
    'Sharpness': sharpness,
}
GEOMETRIC = {
    'Rotate': rotate,
    'ShearX': lambda m, h, w: matrix(1, 0.03 * m, 0, 0, 1, 0),
    'ShearY': lambda m, h, w: matrix(1, 0, 0, 0.03 * m, 1, 0),
    'TranslateX': lambda m, h, w: matrix(1, 0, 0.045 * m * w, 0, 1, 0),
    'TranslateY': lambda m, h, w: matrix(1, 0, 0, 0, 1, 0.045 * m * h),
}
OPERATIONS = (*COLOUR, *GEOMETRIC)


# ---- training -------------------------------------------------------------------------------------------------------


def draws_needed(c):
    """How many random numbers each picture needs: area, ratio, x and y of the crop; flip; each
    operation and its sign."""
    return 5 + 2 * c.randaugment_n


def cut(picture, image_size, place):
    """A picture, (H, W, C), as what follows sees it: of a panorama a part, so that a batch of n
    pictures whose short sides have at most s pixels has at most n x 9 s^2 pixels, for a square
    image_size.

    The part is LONGEST times as elongated as image_size, and lies at `place`, (x, y) from 0 to 1. A
    training crop lies at the same place in the part, so it may come from anywhere in the picture;
    its area is a share of the part's. The part in the middle holds all that evaluation sees.
    """
    size = picture.shape[:2]
    short, long = sorted(size)
    most = int(LONGEST * short * max(image_size) / min(image_size))
    if long <= most:
        return picture
    most -= (long - most) % 2  # so that the centre stays in the centre
    axis = size.index(long)
    start = round((long - most) * place[1 - axis])
    return picture[start:start + most] if axis == 0 else picture[:, start:start + most]


def place_columns(c):
    """Which of a training picture's random numbers say where its crop lies, x and y; None if it
    lies in the centre."""
    return slice(2, 4) if c.crop_scale < 1 else None


def train_pictures(pictures, sizes, draws, image_size, c):
    """Augmented and normalized pictures, float32 (B, C, *image_size), on the device of `pictures`.

    pictures: uint8 (B, H, W, C), those smaller than (H, W) padded at the right and the bottom.
    sizes: their true (height, width), int (B, 2). draws: uniform in [0, 1), float64 (B,
    draws_needed(c)). sizes and draws are on the CPU.
    """
    boxes = crop_boxes(sizes, draws, image_size, c.crop_scale)
    matrices = send(warp_matrices(boxes, draws, image_size, c).float(), pictures.device)
    limits = send(sizes.float(), pictures.device)
    # where a pixel covers more than 2 x 2 source pixels, sample several places in it and take the
    # mean
    finer = (boxes[:, 2:] / torch.tensor(image_size[::-1])).amax(1)
    finer = torch.where(finer > 2, finer.ceil(), 1).long()
    x = torch.empty(len(pictures), pictures.size(3), *image_size, device=pictures.device)
    for k, rows in grouped(finer, pictures.device):
        for part in rows.split(max(1, 256 // k ** 2)):  # bounds the memory
            x[part] = warp(pictures[part], limits[part], matrices[part], image_size, k)
    if c.randaugment_n:
        x = x.round()
    for i in range(c.randaugment_n):
        for op, rows in grouped(chosen_operations(draws, i), pictures.device):
            if OPERATIONS[op] in COLOUR:
                x[rows] = COLOUR[OPERATIONS[op]](x[rows], c.randaugment_m)
    return normalize(x)


def crop_boxes(sizes, draws, image_size, crop_scale):
    """The crop of every picture, (left, top, width, height), float64 (B, 4), in pixels.

    The share of the area is uniform in [crop_scale, 1]; the logarithm of the aspect ratio, relative
    to that of image_size, is uniform in +-log(4/3). A box wider or higher than the picture is
    clipped, not drawn again. With crop_scale = 1 the crop is the largest central box with the ratio
    of image_size.
    """
    height, width = sizes.double().unbind(1)
    ratio = image_size[1] / image_size[0]
    if crop_scale == 1:
        w, h = torch.minimum(width, height * ratio), torch.minimum(height, width / ratio)
        return torch.stack(((width - w) / 2, (height - h) / 2, w, h), 1)
    area = height * width * (crop_scale + (1 - crop_scale) * draws[:, 0])
    ratio = ratio * (4 / 3) ** (2 * draws[:, 1] - 1)
    w, h = torch.minimum((area * ratio).sqrt(), width), torch.minimum((area / ratio).sqrt(), height)
    return torch.stack(((width - w) * draws[:, 2], (height - h) * draws[:, 3], w, h), 1)


def chosen_operations(draws, i):
    """Index into OPERATIONS of every picture's i-th operation."""
    return (draws[:, 5 + 2 * i] * len(OPERATIONS)).long()


def warp_matrices(boxes, draws, image_size, c):
    """Matrices from places in the result to places in the pictures, float64 (B, 3, 3): crop, flip,
    RandAugment."""
    h, w = image_size
    matrices = torch.eye(3, dtype=torch.float64).repeat(len(boxes), 1, 1)
    matrices[:, :2, 2] = boxes[:, :2]
    matrices[:, [0, 1], [0, 1]] = boxes[:, 2:] / torch.tensor([w, h])
    if c.flip:
        mirror = torch.tensor([[-1.0, 0, w], [0, 1, 0], [0, 0, 1]], dtype=torch.float64)
        matrices = torch.where((draws[:, 4] < 0.5)[:, None, None], matrices @ mirror, matrices)
    if c.randaugment_n:
        still = torch.eye(3).tolist()
        table = torch.tensor([[GEOMETRIC[name](sign * c.randaugment_m, h, w) if name in GEOMETRIC else still
                               for sign in (-1, 1)] for name in OPERATIONS], dtype=torch.float64)
        for i in range(c.randaugment_n):  # a later operation acts on earlier results: its matrix goes right
            matrices = matrices @ table[chosen_operations(draws, i), (draws[:, 6 + 2 * i] >= 0.5).long()]
    return matrices


def warp(pictures, sizes, matrices, image_size, k):
    """Pictures mapped by their matrices, float32 (n, C, *image_size), 0 to 255: each pixel is the
    mean of k x k places. Beyond a picture's size is the mean colour; its padding is never seen."""
    source, (h, w) = planes(pictures), image_size
    x = (torch.arange(w * k, device=source.device) + 0.5) / k
    y = (torch.arange(h * k, device=source.device)[:, None] + 0.5) / k
    x, y = (m[:, 0] * x + m[:, 1] * y + m[:, 2] for m in matrices[..., None, None].unbind(1)[:2])
    height, width = sizes[..., None, None].unbind(1)
    inside = (x >= 0) & (x < width) & (y >= 0) & (y < height)
    x, y = x.clamp(min=0.5).minimum(width - 0.5), y.clamp(min=0.5).minimum(height - 0.5)
    grid = torch.stack((2 * x / source.shape[3] - 1, 2 * y / source.shape[2] - 1), -1)  # grid_sample counts -1 to 1
    seen = F.grid_sample(source, grid, mode='bilinear', padding_mode='border', align_corners=False)
    fill = FILL if seen.size(1) == 3 else 255 * GREY_STATISTICS[0]
    seen = torch.where(inside[:, None], seen, per_channel(fill, seen))
    return F.avg_pool2d(seen, k) if k > 1 else seen


# ---- evaluation, and what both need ---------------------------------------------------------------------------------


def eval_pictures(pictures, sizes, image_size, eval_crop):
    """Centre crops, normalized, float32 (B, C, *image_size). A picture is first resized so that the
    crop covers eval_crop of the side that limits it; one that has this size already is not
    interpolated. Arguments as in train_pictures."""
    x = torch.empty(len(pictures), pictures.size(3), *image_size, device=pictures.device)
    kinds, kind = sizes.unique(dim=0, return_inverse=True)
    for k, rows in grouped(kind, pictures.device):
        size = kinds[k].tolist()
        scale = max(to / have for to, have in zip(image_size, size)) / eval_crop
        new = [round(have * scale) for have in size]
        resized = planes(pictures[rows, :size[0], :size[1]])
        if new != size:
            resized = F.interpolate(resized, new, mode='bilinear', align_corners=False, antialias=True)
        top, left = ((have - to) // 2 for to, have in zip(image_size, new))
        x[rows] = resized[:, :, top:top + image_size[0], left:left + image_size[1]]
    return normalize(x)


def planes(pictures):
    """uint8 (n, H, W, C) -> float32 (n, C, H, W)."""
    return pictures.permute(0, 3, 1, 2).float().contiguous()


def normalize(x):
    """0 to 255 -> about mean 0 and standard deviation 1."""
    mean, deviation = COLOUR_STATISTICS if x.size(1) == 3 else GREY_STATISTICS
    return (x / 255 - per_channel(mean, x)) / per_channel(deviation, x)


def denormalize(x):
    """Normalized (B, C, H, W) -> uint8 (B, H, W, C)."""
    mean, deviation = COLOUR_STATISTICS if x.size(1) == 3 else GREY_STATISTICS
    x = (x * per_channel(deviation, x) + per_channel(mean, x)) * 255
    return x.round().clamp(0, 255).byte().permute(0, 2, 3, 1)


def as_rgb(pictures):
    """Pictures (B, H, W, C) to look at, (B, H, W, 3): the first three channels, or of fewer the
    first one as grey."""
    return pictures[..., :3] if pictures.size(3) >= 3 else pictures[..., :1].expand(-1, -1, -1, 3)


def per_channel(values, like):
    """One number for each channel, or one for all, as (C or 1, 1, 1) on the device."""
    return send(torch.tensor(values, dtype=like.dtype).view(-1, 1, 1), like.device)


def send(tensor, device):
    """A tensor from the CPU on the device. CUDA copies pinned memory while the program goes on."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == 'cuda' else tensor.to(device)


def grouped(keys, device):
    """Whole numbers (B,) on the CPU -> pairs of each value that occurs and the rows with it, on the
    device."""
    values, counts = keys.unique(return_counts=True)
    return zip(values.tolist(), send(keys.argsort(stable=True), device).split(counts.tolist()))
