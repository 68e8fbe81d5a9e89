"""Pictures on their way into the network: they are cropped, flipped, changed by RandAugment and
normalized, a batch at a time, on the device.

    python analyze.py augment --dataset=shapes   # a contact sheet: pictures as training sees them

Pictures may have any number of channels. Nothing in this file draws random numbers: the caller
passes them in, a row for each picture. So what becomes of a picture depends on the picture and on
its own numbers, not on the batch that it is in (up to rounding, if another batch pads it to another
size). All decisions that follow from the numbers are made on the CPU, and their results are sent to
the device without waiting for it. A picture that is more than three times as elongated as the
network's pictures is shortened before it comes here; see cut.

The crops are those of torchvision's RandomResizedCrop, but their sides need not be whole pixels.
Crop, flip and RandAugment's five geometric operations (tasks/randaugment.py) are multiplied into
one matrix, and the picture is interpolated once. This differs from torchvision's RandAugment in
three ways. All geometric operations come before the colour operations, whatever order was drawn.
They interpolate linearly, and do not take the nearest pixel. And where a geometric operation
uncovers an area, it shows what the picture has there beyond its crop; only beyond the border of the
picture it shows one fixed colour.
"""
import dataclasses

import torch
import torch.nn.functional as F

from engine.device import send
from engine.fields import check_types
from engine.mistakes import Mistake
from engine.settings import filled
from tasks import AugmentConfig, randaugment
from tasks.randaugment import COLOUR, OPERATIONS

# of ImageNet's red, green and blue, from 0 to 1
STATISTICS = (
    (0.485, 0.456, 0.406),  # mean
    (0.229, 0.224, 0.225),  # standard deviation
)
LONGEST = 3      # pictures may be this many times as elongated as the network's; see `cut`
TRIES = 10       # boxes that are tried for a random crop
STRETCH = 4 / 3  # a random crop is stretched by up to this factor, in one direction or the other
PLACES_AT_ONCE = 256  # interpolated together for one pixel of the result; bounds the memory

# The random numbers of a training picture, by column
BOXES = slice(2 * TRIES)                # area and aspect ratio of each box that is tried
PLACE = slice(BOXES.stop, BOXES.stop + 2)   # x and y of the crop
FLIP = PLACE.stop                       # whether it is mirrored
CROP_COLUMNS = FLIP + 1                 # how many there are so far
# Then come, for each operation of RandAugment, which one it is, and its sign. Masked autoencoders
# append a column for each patch. views.py has other columns from CROP_COLUMNS on, and all of them
# again for each crop


def config_of(run, **changes):
    """The AugmentConfig of a run, with some settings changed. A setting that the run does not have
    gets its default. Raises Mistake if its config.json was changed so that it makes no sense."""
    try:
        check_types(run.settings, AugmentConfig)
        config = filled(AugmentConfig, run.settings)
    except Mistake as e:
        raise Mistake(f'config.json of the run: {e}') from None
    return dataclasses.replace(config, **changes)


# ---- training -----------------------------------------------------------------------------------

def draws_needed(c):
    """How many random numbers a training picture needs: the number of columns above. c: an
    AugmentConfig."""
    return CROP_COLUMNS + 2 * c.randaugment_n


def cut(picture, image_size, place=(0.5, 0.5)):
    """Cut a panorama to the part of it that all later functions see. Any other picture comes back
    as it is. picture: (H, W, C). image_size: (height, width) of the network's pictures.

    The part is LONGEST times as elongated as image_size, so a batch of n pictures, whose short
    sides have at most s pixels, never has more than n x 9 s^2 pixels if image_size is square.

    place: where the part lies in the picture, (x, y) from 0 to 1. A training crop lies at the same
    place in the part, so it may come from anywhere in the picture; its area is a share of that of
    the part. In evaluation the part is the middle, and a centre crop sees nothing beyond it.
    """
    height, width = picture.shape[:2]
    longest = int(LONGEST * min(height, width) * max(image_size) / min(image_size))
    x, y = place
    return picture[part_of_side(height, longest, y), part_of_side(width, longest, x)]


def part_of_side(length, longest, place):
    """The pixels, a slice, that remain of a side of `length` pixels: at most `longest` of them, at
    a place from 0 to 1."""
    if length <= longest:
        return slice(length)
    # an even number of pixels is cut off, so that the centre stays the centre
    new_length = longest - (length - longest) % 2
    start = round((length - new_length) * place)
    return slice(start, start + new_length)


def train_pictures(pictures, sizes, draws, image_size, c):
    """Augmented and normalized pictures, float32 (B, C, *image_size), on the device of `pictures`.

    pictures: uint8 (B, H, W, C); those that are smaller than (H, W) are padded at the right and at
    the bottom. sizes: the true (height, width) of each, int (B, 2). draws: random numbers, uniform
    in [0, 1), float64 (B, draws_needed(c)), perhaps with further columns, which are not used here.
    sizes and draws are on the CPU. c: an AugmentConfig.
    """
    x = cropped(pictures, sizes, draws, image_size, c, (c.crop_scale, 1.0))  # (B, C, *image_size)
    strengths = randaugment.strengths(c.randaugment_m, c.randaugment_scale)
    factors = torch.tensor(strengths['factors'])                 # at the signs -1 and 1
    for i in range(c.randaugment_n):
        x = x.round()
        signs, kinds = operations(draws, i)
        factor = send(factors[signs].view(-1, 1, 1, 1), x.device)    # (B, 1, 1, 1)
        for kind, rows in grouped(kinds, x.device):
            name = OPERATIONS[kind]
            if name in COLOUR:  # `cropped` has done the geometric operations already
                strength = strengths.get(name, factor[rows])
                x[rows] = COLOUR[name](x[rows], strength)
    return normalize(x)


def cropped(pictures, sizes, draws, image_size, c, areas):
    """The crops of pictures, flipped and moved by RandAugment, 0 to 255, float32 (B, C,
    *image_size). areas: the least and the largest share of a picture's area that its crop keeps.
    The other arguments are those of train_pictures."""
    boxes = crop_boxes(sizes, draws, image_size, *areas)
    matrices = send(warp_matrices(boxes, draws, image_size, c).float(), pictures.device)
    true_sizes = send(sizes.float(), pictures.device)

    # a new pixel that covers more than 2 x 2 pixels of the picture is the mean of several samples
    height, width = image_size
    covered = boxes[:, 2:] / torch.tensor([width, height])       # pixels, in x and y: (B, 2)
    samples = covered.amax(1).ceil().long()                      # in x, as in y: (B,)
    samples[samples <= 2] = 1

    x = torch.empty(len(pictures), pictures.size(3), *image_size, device=pictures.device)
    fill = per_channel(randaugment.FILL[c.randaugment_scale], x)
    for k, rows in grouped(samples, pictures.device):
        for part in rows.split(max(1, PLACES_AT_ONCE // k ** 2)):
            x[part] = warp(pictures[part], true_sizes[part], matrices[part], image_size, k, fill)
    return x


def crop_boxes(sizes, draws, image_size, crop_scale, largest=1.0):
    """The crop of every picture, (left, top, width, height) in pixels, float64 (B, 4).

    The rule is that of torchvision's RandomResizedCrop. A box has a share of the picture's area
    that is uniform in [crop_scale, largest], and its aspect ratio is that of image_size times a
    factor, whose logarithm is uniform in +-log(STRETCH). TRIES boxes are tried. The first one that
    fits into the picture is the crop, and its place is uniform. If none fits, the crop is the
    largest central box with an allowed ratio. If crop_scale is 1, the crop is the largest central
    box with the ratio of image_size.
    """
    picture = sizes.double().T.flip(0)                           # width and height: (2, B)
    ratio = image_size[1] / image_size[0]
    stretch = STRETCH if crop_scale < 1 else 1
    # the largest box: as wide as the picture, or as its height allows; as high, or as its width
    per_other_side = torch.tensor([[ratio], [1 / ratio]], dtype=torch.float64)
    box = picture.minimum(picture.flip(0) * per_other_side * stretch)   # width, height: (2, B)
    place = 0.5

    if crop_scale < 1:
        numbers = draws[:, BOXES].unflatten(1, (TRIES, 2))       # (B, TRIES, 2)
        of_area, of_ratio = numbers.permute(2, 1, 0)             # both (TRIES, B)
        areas = picture.prod(0) * (crop_scale + (largest - crop_scale) * of_area)
        ratios = ratio * stretch ** (2 * of_ratio - 1)
        tried = torch.stack((areas * ratios, areas / ratios)).sqrt()  # (2, TRIES, B)

        fits = (tried <= picture[:, None]).all(0)                # (TRIES, B)
        any_fits = fits.any(0)                                   # (B,)
        first_fit = fits.int().argmax(0)                         # (B,)
        rows = torch.arange(len(sizes))
        box = torch.where(any_fits, tried[:, first_fit, rows], box)
        place = torch.where(any_fits, draws[:, PLACE].T, place)

    corner = (picture - box) * place                             # left and top: (2, B)
    return torch.cat((corner, box)).T                            # (B, 4)


def operations(draws, i):
    """The i-th operation of every picture, two int64 (B,): the index of its sign in (-1, 1), and
    its own index in OPERATIONS."""
    column = CROP_COLUMNS + 2 * i
    signs = (draws[:, column + 1] >= 0.5).long()
    kinds = (draws[:, column] * len(OPERATIONS)).long()
    return signs, kinds


def warp_matrices(boxes, draws, image_size, c):
    """The matrix of every picture, float64 (B, 3, 3). It maps (x, y, 1), a place in the result, to
    the place in the picture that appears there: by crop, flip and RandAugment."""
    height, width = image_size
    corner_x, corner_y, box_width, box_height = boxes.T          # (B,)
    scale_x = box_width / width
    if c.flip:
        mirrored = draws[:, FLIP] < 0.5                          # in these x becomes width - x
        corner_x = torch.where(mirrored, corner_x + width * scale_x, corner_x)
        scale_x = torch.where(mirrored, -scale_x, scale_x)
    matrices = torch.eye(3, dtype=torch.float64).repeat(len(boxes), 1, 1)   # (B, 3, 3)
    matrices[:, 0, 0] = scale_x
    matrices[:, 1, 1] = box_height / height
    matrices[:, 0, 2] = corner_x
    matrices[:, 1, 2] = corner_y

    table = randaugment.matrices(c.randaugment_m, c.randaugment_scale, height, width)
    for i in range(c.randaugment_n):
        signs, kinds = operations(draws, i)
        # a later operation acts on the result of the earlier ones: its matrix stands at the right
        matrices = matrices @ table[signs, kinds]
    return matrices


def warp(pictures, sizes, matrices, image_size, samples, fill):
    """Pictures that are moved by their matrices, 0 to 255, float32 (n, C, *image_size). Each new
    pixel is the mean of samples x samples places in the picture. Places beyond the size of a
    picture have the colour `fill`, so its padding is never seen."""
    source = planes(pictures)                                    # (n, C, H, W)
    height, width = image_size
    new_x = (torch.arange(width * samples, device=source.device) + 0.5) / samples
    new_y = (torch.arange(height * samples, device=source.device)[:, None] + 0.5) / samples

    # where these places lie in the pictures, both (n, height samples, width samples)
    x_row, y_row, _ = matrices[..., None, None].unbind(1)        # (n, 3, 1, 1)
    x = x_row[:, 0] * new_x + x_row[:, 1] * new_y + x_row[:, 2]
    y = y_row[:, 0] * new_x + y_row[:, 1] * new_y + y_row[:, 2]
    true_height, true_width = sizes[..., None, None].unbind(1)   # (n, 1, 1)
    inside = (x >= 0) & (x < true_width) & (y >= 0) & (y < true_height)
    x = x.clamp(min=0.5).minimum(true_width - 0.5)
    y = y.clamp(min=0.5).minimum(true_height - 0.5)

    # grid_sample counts from -1 to 1
    grid_x = 2 * x / source.size(3) - 1
    grid_y = 2 * y / source.size(2) - 1
    grid = torch.stack((grid_x, grid_y), -1)
    moved = F.grid_sample(source, grid, mode='bilinear', padding_mode='border',
                          align_corners=False)
    moved = torch.where(inside[:, None], moved, fill)
    if samples > 1:
        moved = F.avg_pool2d(moved, samples)
    return moved                                                 # (n, C, height, width)


# ---- evaluation, and what training and evaluation both need -------------------------------------

def eval_pictures(pictures, sizes, image_size, view):
    """Pictures as evaluation sees them, normalized, float32 (B, C, *image_size).

    view: a share, or None. With a share, a picture is resized so that a centre crop covers this
    share of the side that limits it. With None the whole picture is resized to image_size. A
    picture that has the wanted size already is not interpolated. The other arguments are those of
    train_pictures.
    """
    x = torch.empty(len(pictures), pictures.size(3), *image_size, device=pictures.device)
    crop_height, crop_width = image_size
    different_sizes, size_numbers = sizes.unique(dim=0, return_inverse=True)
    for number, rows in grouped(size_numbers, pictures.device):
        height, width = different_sizes[number].tolist()
        resized = planes(pictures[rows, :height, :width])        # (n, C, height, width)
        if view is None:
            new_height, new_width = image_size
        else:
            scale = max(crop_height / height, crop_width / width) / view
            new_height = round(height * scale)
            new_width = round(width * scale)
        if (new_height, new_width) != (height, width):
            resized = F.interpolate(resized, (new_height, new_width), mode='bilinear',
                                    align_corners=False, antialias=True)
        y0 = (new_height - crop_height) // 2
        x0 = (new_width - crop_width) // 2
        x[rows] = resized[:, :, y0:y0 + crop_height, x0:x0 + crop_width]
    return normalize(x)


def planes(pictures):
    """uint8 (n, H, W, C) -> float32 (n, C, H, W)."""
    return pictures.permute(0, 3, 1, 2).float().contiguous()


def normalize(x):
    """Pictures (B, C, H, W) from 0 to 255 -> mean about 0 and standard deviation about 1."""
    mean, deviation = per_channel(STATISTICS, x)
    return (x / 255 - mean) / deviation


def denormalize(x):
    """Normalized pictures (B, C, H, W) -> uint8 (B, H, W, C)."""
    mean, deviation = per_channel(STATISTICS, x)
    x = (x * deviation + mean) * 255
    return x.round().clamp(0, 255).byte().permute(0, 2, 3, 1)    # (B, H, W, C)


def visible(x):
    """Normalized pictures (B, C, H, W) as one can draw them, a uint8 array (B, H, W, 3)."""
    return drawable(denormalize(x).cpu().numpy())


def drawable(pictures):
    """Pictures, an array (.., C), as one can draw them, (.., 3): the first three channels. If there
    are fewer, the first channel is shown as grey."""
    if pictures.shape[-1] >= 3:
        return pictures[..., :3]
    return pictures[..., [0, 0, 0]]


def per_channel(values, x):
    """Numbers of red, green and blue, (.., 3), as numbers of the channels of pictures x (B, C, H,
    W), on their device: (.., 3, 1, 1). If there are not three channels, all of them get the mean
    of the three numbers: (.., 1, 1, 1)."""
    values = torch.tensor(values, dtype=torch.float64)
    if x.size(1) != 3:
        values = values.mean(-1, keepdim=True)
    return send(values.to(x.dtype)[..., None, None], x.device)


def grouped(keys, device):
    """Group the rows of a batch by their keys, int64 (B,) on the CPU. Gives pairs: a key, and the
    indices of the rows that have it, on the device."""
    values, counts = keys.unique(return_counts=True)
    rows = send(keys.argsort(stable=True), device)
    return zip(values.tolist(), rows.split(counts.tolist()))
