"""Pictures on their way into the network: cropping, flipping, RandAugment, normalization; batched,
on the device.

    python analyze.py augment --dataset=shapes        # a contact sheet: pictures as training sees them

Pictures may have any number of channels. Nothing here draws random numbers: the caller hands them
over, so the result is a function of a picture and its own numbers, whatever batch it is in (up to
rounding, where it is padded to another size). What the numbers decide is decided on the CPU and
sent to the device without waiting for it. Of a picture more than three times as elongated as the
network's pictures, only a part comes here; see cut.

The crops are those of torchvision's RandomResizedCrop, but their sides need not be whole pixels.
Crop, flip and RandAugment's five geometric operations (tasks/randaugment.py) are multiplied into one
matrix, and the picture is interpolated once. So all geometric operations come before the colour
operations, whatever order was drawn, and where they uncover an area, a picture that goes on beyond
its crop fills it with its own pixels; only beyond the picture's border is it filled with one colour.
"""
import torch
import torch.nn.functional as F

from tasks import AugmentConfig, randaugment
from tasks.randaugment import COLOUR, OPERATIONS

STATISTICS = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # mean and deviation of ImageNet's red, green and blue
LONGEST = 3   # pictures may be so many times as elongated as what the network reads; longer ones are cut
TRIES = 10    # boxes that are drawn for a random crop
FLIP = 2 * TRIES + 2  # random numbers, see draws_needed
PLACE, FIRST = slice(2 * TRIES, FLIP), FLIP + 1


def config_of(run, **changes):
    """The AugmentConfig of a run, with some settings changed."""
    held = run['settings']
    return AugmentConfig(**{k: held.get(k, v) for k, v in vars(AugmentConfig()).items()} | changes)


# ---- training -------------------------------------------------------------------------------------------------------


def draws_needed(c):
    """How many random numbers each picture needs: area and ratio of each box that is tried; x and y
    of the crop; flip; each operation and its sign."""
    return FIRST + 2 * c.randaugment_n


def cut(picture, image_size, place):
    """A picture, (H, W, C), as what follows sees it: of a panorama a part, so that a batch of n
    pictures whose short sides have at most s pixels has at most n x 9 s^2 pixels, for a square
    image_size.

    The part is LONGEST times as elongated as image_size, and lies at `place`, (x, y) from 0 to 1. A
    training crop lies at the same place in the part, so it may come from anywhere in the picture;
    its area is a share of the part's. The part in the middle holds all that evaluation sees.
    """
    size = picture.shape[:2]
    most = int(LONGEST * min(size) * max(image_size) / min(image_size))
    kept = [n if n <= most else most - (n - most) % 2 for n in size]  # so that the centre stays in the centre
    top, left = (round((n - k) * p) for n, k, p in zip(size, kept, reversed(place)))
    return picture[top:top + kept[0], left:left + kept[1]]


def place_columns(c):
    """Which of a training picture's random numbers say where its crop lies, x and y; None if it
    lies in the centre."""
    return PLACE if c.crop_scale < 1 else None


def train_pictures(pictures, sizes, draws, image_size, c):
    """Augmented and normalized pictures, float32 (B, C, *image_size), on the device of `pictures`.

    pictures: uint8 (B, H, W, C), those smaller than (H, W) padded at the right and the bottom.
    sizes: their true (height, width), int (B, 2). draws: uniform in [0, 1), float64 (B,
    draws_needed(c)). sizes and draws are on the CPU.
    """
    x = cropped(pictures, sizes, draws, image_size, c, (c.crop_scale, 1.0))
    *_, factors, step, threshold = randaugment.strengths(c.randaugment_m, c.randaugment_scale)
    for i in range(c.randaugment_n):
        x = x.round()
        sign, which = operations(draws, i)
        factor = send(torch.tensor(factors)[sign, None, None, None], x.device)
        for op, rows in grouped(which, x.device):
            if OPERATIONS[op] in COLOUR:
                strength = {'Posterize': step, 'Solarize': threshold}.get(OPERATIONS[op], factor[rows])
                x[rows] = COLOUR[OPERATIONS[op]](x[rows], strength)
    return normalize(x)


def cropped(pictures, sizes, draws, image_size, c, areas):
    """Crops, flipped and moved by RandAugment, 0 to 255, float32 (B, C, *image_size). areas: the least
    and the largest share of the area that they keep. Other arguments as in train_pictures."""
    boxes = crop_boxes(sizes, draws, image_size, *areas)
    matrices = send(warp_matrices(boxes, draws, image_size, c).float(), pictures.device)
    limits = send(sizes.float(), pictures.device)
    # where a pixel covers more than 2 x 2 source pixels, sample several places in it and take the mean
    finer = (boxes[:, 2:] / torch.tensor(image_size[::-1])).amax(1).ceil()
    finer = torch.where(finer > 2, finer, 1).long()
    x = torch.empty(len(pictures), pictures.size(3), *image_size, device=pictures.device)
    fill = per_channel(randaugment.FILL[c.randaugment_scale], x)
    for k, rows in grouped(finer, pictures.device):
        for part in rows.split(max(1, 256 // k ** 2)):  # bounds the memory
            x[part] = warp(pictures[part], limits[part], matrices[part], image_size, k, fill)
    return x


def crop_boxes(sizes, draws, image_size, crop_scale, largest=1.0):
    """The crop of every picture, (left, top, width, height), float64 (B, 4), in pixels.

    As torchvision's RandomResizedCrop: the share of the area is uniform in [crop_scale, largest]; the
    logarithm of the aspect ratio, relative to that of image_size, is uniform in +-log(4/3). Of the
    boxes that are tried, the first that fits into the picture is taken, at a uniform place. If none
    fits, it is the largest central box with an allowed ratio. With crop_scale = 1 it is the largest
    central box with the ratio of image_size.
    """
    whole = sizes.double().T.flip(0)                                                        # width, height: (2, B)
    ratio, most = image_size[1] / image_size[0], 1 if crop_scale == 1 else 4 / 3
    box = whole.minimum(whole.flip(0) * torch.tensor([[ratio], [1 / ratio]], dtype=torch.float64) * most)
    place = torch.tensor(0.5)
    if crop_scale < 1:
        areas, ratios = draws[:, :2 * TRIES].unflatten(1, (TRIES, 2)).permute(2, 1, 0)      # (TRIES, B) each
        areas = whole.prod(0) * (crop_scale + (largest - crop_scale) * areas)
        ratios = ratio * most ** (2 * ratios - 1)
        tried = torch.stack((areas * ratios, areas / ratios)).sqrt()                        # (2, TRIES, B)
        fits = (tried <= whole[:, None]).all(0)
        found, first = fits.any(0), fits.int().argmax(0)
        box = torch.where(found, tried[:, first, torch.arange(len(sizes))], box)
        place = torch.where(found, draws[:, PLACE].T, place)
    return torch.cat(((whole - box) * place, box)).T


def operations(draws, i):
    """Of every picture's i-th operation: 0 or 1 for a sign of -1 or 1, and its index in OPERATIONS."""
    which, sign = draws[:, FIRST + 2 * i:FIRST + 2 * i + 2].unbind(1)
    return (sign >= 0.5).long(), (which * len(OPERATIONS)).long()


def warp_matrices(boxes, draws, image_size, c):
    """Matrices from places in the result to places in the pictures, float64 (B, 3, 3): crop, flip,
    RandAugment."""
    h, w = image_size
    matrices = torch.eye(3, dtype=torch.float64).repeat(len(boxes), 1, 1)
    matrices[:, :2, 2] = boxes[:, :2]
    matrices[:, [0, 1], [0, 1]] = boxes[:, 2:] / torch.tensor([w, h])
    if c.flip:
        mirrored = draws[:, FLIP] < 0.5  # there x becomes w - x
        matrices[mirrored, 0, 2] += w * matrices[mirrored, 0, 0]
        matrices[mirrored, 0, 0] *= -1
    table = randaugment.matrices(c.randaugment_m, c.randaugment_scale, h, w)
    for i in range(c.randaugment_n):  # a later operation acts on earlier results: its matrix goes right
        matrices = matrices @ table[operations(draws, i)]
    return matrices


def warp(pictures, sizes, matrices, image_size, k, fill):
    """Pictures mapped by their matrices, float32 (n, C, *image_size), 0 to 255: each pixel is the
    mean of k x k places. Beyond a picture's size is the colour `fill`; its padding is never seen."""
    source, (h, w) = planes(pictures), image_size
    x = (torch.arange(w * k, device=source.device) + 0.5) / k
    y = (torch.arange(h * k, device=source.device)[:, None] + 0.5) / k
    x, y = (m[:, 0] * x + m[:, 1] * y + m[:, 2] for m in matrices[..., None, None].unbind(1)[:2])
    height, width = sizes[..., None, None].unbind(1)
    inside = (x >= 0) & (x < width) & (y >= 0) & (y < height)
    x, y = x.clamp(min=0.5).minimum(width - 0.5), y.clamp(min=0.5).minimum(height - 0.5)
    grid = torch.stack((2 * x / source.shape[3] - 1, 2 * y / source.shape[2] - 1), -1)  # grid_sample counts -1 to 1
    seen = F.grid_sample(source, grid, mode='bilinear', padding_mode='border', align_corners=False)
    seen = torch.where(inside[:, None], seen, fill)
    return F.avg_pool2d(seen, k) if k > 1 else seen


# ---- evaluation, and what both need ---------------------------------------------------------------------------------


def eval_pictures(pictures, sizes, image_size, view):
    """Pictures as evaluation sees them, normalized, float32 (B, C, *image_size). view: a share, or
    None. A picture is resized so that a centre crop covers this share of the side that limits it;
    with None all of it is resized to image_size. One that has its size already is not interpolated.
    Other arguments as in train_pictures."""
    x = torch.empty(len(pictures), pictures.size(3), *image_size, device=pictures.device)
    kinds, kind = sizes.unique(dim=0, return_inverse=True)
    for k, rows in grouped(kind, pictures.device):
        size = kinds[k].tolist()
        scale = max(to / have for to, have in zip(image_size, size)) / (view or 1)
        new = [round(have * scale) for have in size] if view else [*image_size]
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
    mean, deviation = per_channel(STATISTICS, x)
    return (x / 255 - mean) / deviation


def denormalize(x):
    """Normalized (B, C, H, W) -> uint8 (B, H, W, C)."""
    mean, deviation = per_channel(STATISTICS, x)
    return ((x * deviation + mean) * 255).round().clamp(0, 255).byte().permute(0, 2, 3, 1)


def visible(x):
    """Normalized pictures (B, C, H, W) to draw, uint8 (B, H, W, 3): the first three channels, or of fewer the first
    one as grey."""
    pictures = denormalize(x).cpu().numpy()
    return pictures[..., :3] if x.size(1) >= 3 else pictures[..., [0, 0, 0]]


def per_channel(values, x):
    """Numbers of red, green and blue (.., 3) for the channels of pictures x (B, C, H, W): (.., 3, 1, 1) on their
    device, or their means (.., 1, 1, 1) where there are not three."""
    values = torch.tensor(values, dtype=torch.float64)
    values = values if x.size(1) == 3 else values.mean(-1, keepdim=True)
    return send(values.to(x.dtype)[..., None, None], x.device)


def send(tensor, device):
    """A tensor from the CPU on the device. CUDA copies pinned memory while the program goes on."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == 'cuda' else tensor.to(device)


def grouped(keys, device):
    """Whole numbers (B,) on the CPU -> pairs of each value that occurs and the rows with it, on the
    device."""
    values, counts = keys.unique(return_counts=True)
    return zip(values.tolist(), send(keys.argsort(stable=True), device).split(counts.tolist()))
