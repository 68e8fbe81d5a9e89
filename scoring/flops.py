"""How many operations a step takes, and how many a second the hardware can do."""
import torch
from torch.utils.benchmark import Timer
from torch.utils.flop_counter import FlopCounterMode


def batch(c, n, augment=None):
    """(x, y) of noise, n rows, for a network with the config c. augment: an AugmentConfig, for self-distillation, which
    has small crops too."""
    if c.task == 'icl':
        return torch.randn(n, c.block_size // 2, c.n_dims), torch.randn(n, c.block_size // 2)
    if c.task in ('text', 'masked_text'):
        return tuple(torch.randint(c.vocab_size, (n, c.block_size)) for _ in 'xy')
    x = torch.randn(n, getattr(c, 'channels', 3), *c.image_size)
    if c.task == 'views':
        crops, side = (augment.local_crops, augment.local_size) if augment else (0, 1)
        return (torch.stack((x, x)), torch.randn(crops, n, c.channels, side, side)), None
    return x, torch.randint(getattr(c, 'num_classes', 1), (n,)) if c.task == 'image' else None


def train_flops(model, augment=None):
    """Operations of a forward and a backward pass on one sequence, picture or prompt, as PyTorch
    counts them. Nothing is computed: the passes run on the meta device. 0 for a network that cannot run there.
    augment: as in `batch`."""
    try:
        with torch.device('meta'), FlopCounterMode(display=False) as counter:
            type(model)(model.config)(*batch(model.config, 1, augment))[1].backward()
        return counter.get_total_flops()
    except Exception:  # of many types: it looks at values; if it is a bug, the first step shows it
        return 0


def seconds_at_full_speed(model, rows, device, augment=None):
    """How long a step on so many rows would take a device that computed as fast as it multiplies
    large matrices. augment: as in `batch`."""
    return train_flops(model, augment) * rows / matmul_flops(device.name, device.dtype)


def matmul_flops(device, dtype):
    """Operations per second of a product of two large n x n matrices: the best of those that fit in a tenth of a
    second, after one that warms up."""
    n = 8192 if 'cuda' in device else 1024
    a = torch.randn(n, n, device=device, generator=torch.Generator(device)).to(dtype)  # not from the run's random state
    timer = Timer('(a @ a)[0, 0].item()', globals={'a': a}, num_threads=torch.get_num_threads())
    return 2 * n ** 3 / min(timer.blocked_autorange(min_run_time=0.1).times)
