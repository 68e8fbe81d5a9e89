"""How many operations a step takes, and how many a second the hardware can do."""
import torch
from torch.utils.benchmark import Timer
from torch.utils.flop_counter import FlopCounterMode

from engine.mistakes import Mistake


def batch(c, n):
    """(x, y) of noise, n rows, for a network with the config c. Self-distillation gets the large
    crops alone. Raises Mistake for a task that somebody has added.
    """
    if c.task == 'icl':
        n_points = c.block_size // 2
        return torch.randn(n, n_points, c.n_dims), torch.randn(n, n_points)
    if c.task in ('text', 'masked_text'):
        return torch.randint(c.vocab_size, (2, n, c.block_size)).unbind()

    if c.task not in ('image', 'masked_image', 'views'):
        raise Mistake(f"there is no batch of noise for task='{c.task}'; add one to the function "
                      'batch in scoring/flops.py')
    channels = getattr(c, 'channels', 3)
    x = torch.randn(n, channels, *c.image_size)
    if c.task == 'image':
        num_classes = getattr(c, 'num_classes', 1)
        return x, torch.randint(num_classes, (n,))
    if c.task == 'masked_image':
        return x, None
    no_small_crops = x.new_empty(0)
    return (torch.stack((x, x)), no_small_crops), None


def train_flops(model):
    """Operations of a forward and a backward pass on one sequence, picture or prompt.

    PyTorch counts them. Nothing is computed: the passes run on the meta device. The result is 0
    for a network that cannot run there.
    """
    try:
        with torch.device('meta'), FlopCounterMode(display=False) as counter:
            copy = type(model)(model.config)
            x, y = batch(model.config, 1)
            loss = copy(x, y)[1]
            loss.backward()
        return counter.get_total_flops()
    except Exception:  # of many types: it looks at values; if it is a bug, the first step shows it
        return 0


def matmul_flops(device, dtype):
    """Operations per second of a product of two large n x n matrices.

    It is the best of the products that fit in a tenth of a second, after one that warms up.
    """
    n = 8192 if 'cuda' in device else 1024
    generator = torch.Generator(device)  # so that the random state of the run stays as it is
    a = torch.randn(n, n, device=device, generator=generator).to(dtype)
    timer = Timer('(a @ a)[0, 0].item()', globals={'a': a}, num_threads=torch.get_num_threads())
    fastest = min(timer.blocked_autorange(min_run_time=0.1).times)
    return 2 * n ** 3 / fastest
