"""DINO: a network of pictures that teaches itself, without labels.

    Caron, Touvron, Misra, Jegou, Mairal, Bojanowski, Joulin. "Emerging Properties in Self-Supervised Vision
    Transformers", ICCV 2021. The longer CRATE paper trains CRATE in this way ("CRATE-DINO").

The idea. A student and a teacher, two networks of the same form, look at crops of a picture. The teacher sees two large
crops. The student sees them and some small ones, and learns to say of every crop what the teacher says of another one:

    P_s = softmax(g_s(x) / tau_s)           P_t = softmax((g_t(x) - c) / tau_t)                     eqs. (1), (4)
    loss = mean over pairs of a large crop x and another crop x' of   - sum P_t(x) log P_s(x')      eqs. (2), (3)
    c       <- m c + (1 - m) mean g_t(x)          the centre: no output may always win               eq. (4)
    teacher <- l teacher + (1 - l) student        a moving average, l from 0.996 to 1                section 3.1

    paper     code                  meaning
    g         Half                  a network of pictures (its features), then a projection head
    K         n_out                 outputs
    tau_s     student_temperature   temperatures of the softmax
    tau_t     teacher_temperature
    c         centre  (K,)          moving average of what the teacher says
    m         centre_momentum
    lambda    l, teacher_momentum   how much of the teacher stays in a step

The network inside is any with `features` (backbone='crate' or 'vit'); it classifies nothing. Trained checkpoints are
opened as that network with the teacher's weights, so every command that looks at CRATE or ViT looks at these too.

A departure from the released code (github.com/facebookresearch/dino): of a batch in several passes the centre is moved
once a step, not once a pass. docs/papers.md lists those of the recipe.
"""
import math
from dataclasses import dataclass
from importlib import import_module

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.func import functional_call


@dataclass
class DINOConfig:
    backbone: str = 'crate'             # network inside: crate or vit, or another model_x.py that has features
    n_layer: int = 12                   # its layers
    n_head: int = 6                     # its attention heads
    n_embd: int = 384                   # its width of a token
    image_size: int | tuple = 224       # pixels of a large crop, or (height, width)
    patch_size: int | tuple = 16        # pixels of a patch, or (height, width)
    channels: int = 3                   # 3 for colour, 1 for grey
    pool: str = 'cls'                   # what the head sees: 'cls', the class token, or 'mean', the mean of all tokens
    n_out: int = 65536                  # outputs of the projection head
    hidden: int = 2048                  # width of its hidden layers
    bottleneck: int = 256               # width before its last layer
    head_layers: int = 3                # its layers before the last one
    student_temperature: float = 0.1    # tau_s, of the student's softmax
    teacher_temperature: float = 0.04   # tau_t, of the teacher's, at the end
    first_temperature: float = 0.04     # tau_t at the start
    temperature_share: float = 0.3      # share of the run in which tau_t goes from first to last
    centre_momentum: float = 0.9        # m, of the centre
    teacher_momentum: float = 0.996     # l at the start. Fewer than 10,000 steps need less
    teacher_momentum_end: float = 1.0   # .. where it goes to by a cosine; with few steps 1 leaves out the last third
    freeze_share: float = 0.01          # share of the run in which the last layer is frozen: one of 100 epochs

    task = 'views'

    def __post_init__(self):
        check(self)


# ---- the objective --------------------------------------------------------------------------------------------------

def distillation_loss(student, teacher, centre, teacher_temperature, student_temperature=0.1):
    """The mean cross-entropy in nats between what the teacher says of a large crop and what the student says of another
    crop of the same picture, eqs. (2) and (3). student (crops, B, K), the two large crops first; teacher (2, B, K);
    centre (K,). No gradient goes to the teacher."""
    return cross_entropy(student, probabilities(teacher, centre, teacher_temperature), student_temperature)


def probabilities(teacher, centre, temperature):
    """P_t, eq. (1) with the centre of eq. (4), without a gradient: shaped as the outputs `teacher` (.., K)."""
    return ((teacher.float() - centre) / temperature).softmax(-1).detach()


def cross_entropy(student, said, temperature):
    """The mean over all pairs of a large crop and another one, eq. (3). student (crops, B, K), said = P_t (2, B, K)."""
    log = (student.float() / temperature).log_softmax(-1)                                       # log P_s, (crops, B, K)
    pairs = [-(said[i] * log[j]).sum(-1).mean() for i in range(len(said)) for j in range(len(log)) if i != j]
    return torch.stack(pairs).mean()


def next_centre(centre, teacher, momentum=0.9):
    """Eq. (4): the centre (K,) after the teacher said `teacher` (2, B, K)."""
    return momentum * centre + (1 - momentum) * teacher.float().mean((0, 1))


def cosine(first, last, share):
    """From first to last by half a cosine, as share goes from 0 to 1."""
    return last + 0.5 * (first - last) * (1 + math.cos(math.pi * share))


# ---- the networks ---------------------------------------------------------------------------------------------------

class DINOHead(nn.Module):
    """Features (.., n_embd) to outputs (.., n_out): an MLP, vectors of length 1, and cosines to n_out directions."""

    def __init__(self, n_embd, n_out, hidden=2048, bottleneck=256, layers=3):
        super().__init__()
        widths = [n_embd, *[hidden] * (layers - 1), bottleneck]
        parts = [part for a, b in zip(widths, widths[1:]) for part in (nn.Linear(a, b), nn.GELU())]
        self.mlp = nn.Sequential(*parts[:-1])
        self.last_layer = Directions(bottleneck, n_out)
        for part in self.mlp:
            if isinstance(part, nn.Linear):
                nn.init.trunc_normal_(part.weight, std=0.02)
                nn.init.zeros_(part.bias)

    def forward(self, z):
        return self.last_layer(F.normalize(self.mlp(z), dim=-1))


class Directions(nn.Module):
    """A linear map without bias whose rows have the lengths weight_g, which are 1 and not trained."""

    def __init__(self, n_in, n_out):
        super().__init__()
        self.weight_g = nn.Parameter(torch.ones(n_out, 1), requires_grad=False)
        self.weight_v = nn.Parameter(torch.empty(n_out, n_in))
        nn.init.kaiming_uniform_(self.weight_v, a=math.sqrt(5))         # PyTorch's default for linear maps

    def forward(self, z):
        return F.linear(z, self.weight_g * F.normalize(self.weight_v, dim=1))


class Half(nn.Module):
    """g: a network of pictures and a head; the student, or the teacher."""

    def __init__(self, c):
        super().__init__()
        self.c = c
        self.net = network(c, c.image_size)
        self.head = DINOHead(c.n_embd, c.n_out, c.hidden, c.bottleneck, c.head_layers)
        self.others = {}                                                # forms of the network for other sizes

    def forward(self, x):
        """Crops (n, B, C, H, W), which may be smaller than image_size, to outputs (n, B, K)."""
        return self.head(self.features(x.flatten(0, 1)).unflatten(0, x.shape[:2]))

    def features(self, x):
        size = tuple(x.shape[2:])
        if size == self.c.image_size:
            return self.net.features(x)
        from engine.networks import grid
        from engine.trained import resize_positions
        from engine.fast import speed_up
        if size not in self.others:
            with torch.device('meta'):                                  # its weights are those of self.net
                self.others[size] = speed_up(network(self.c, size))
        weights = dict(self.net.named_parameters())
        twin = self.others[size]
        weights['embed.pos'] = resize_positions(weights['embed.pos'], grid(self.c), grid(twin.config))  # interpolated
        return functional_call(Features(twin), {f'net.{k}': v for k, v in weights.items()}, x)


class Features(nn.Module):
    """A network whose forward pass gives its features."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x):
        return self.net.features(x)


class DINO(nn.Module):
    """model((large, small)) -> (P_t, (2, B, K), loss). large (2, B, C, H, W) and small (n, B, C, h, w), of which there
    may be none, are crops of the same B pictures."""

    def __init__(self, config):
        super().__init__()
        c = self.config = config
        self.student, self.teacher = Half(c), Half(c)
        self.teacher.load_state_dict(self.student.state_dict())
        self.teacher.requires_grad_(False)
        self.register_buffer('centre', torch.zeros(c.n_out))
        self.register_buffer('share', torch.zeros(()))                  # of the run that was done before the last step
        self.register_buffer('said', torch.zeros(c.n_out), persistent=False)    # by the teacher since the last step
        self.register_buffer('count', torch.zeros(()), persistent=False)

    def forward(self, x, y=None):
        c, (large, small) = self.config, x
        with torch.no_grad():
            teacher = self.teacher(large)                               # (2, B, K)
        if self.training:
            self.said += teacher.float().sum((0, 1))
            self.count += teacher[..., 0].numel()
        student = torch.cat([self.student(crops) for crops in (large, small) if len(crops)])  # (2 + n, B, K)
        warm = (self.share / c.temperature_share).clamp(max=1) if c.temperature_share else 1.0
        temperature = c.first_temperature + (c.teacher_temperature - c.first_temperature) * warm
        said = probabilities(teacher, self.centre, temperature)
        return said, cross_entropy(student, said, c.student_temperature)

    def before_step(self, share):
        """Told by the loop that there are gradients. share: of the run that is over before this step. The optimizer
        leaves alone what has no gradient; zeros would count in its averages, and make later steps too large."""
        if share < self.config.freeze_share:
            self.student.head.last_layer.weight_v.grad = None

    @torch.no_grad()
    def after_step(self, share, total):
        """Told by the loop that a step was taken. share: of the run that is over before this step; total: sums a
        tensor over all processes."""
        c = self.config
        momentum = cosine(c.teacher_momentum, c.teacher_momentum_end, share)
        mean = total(self.said) / total(self.count)
        self.centre.copy_(next_centre(self.centre, mean[None, None], c.centre_momentum))
        student, teacher = (dict(half.named_parameters()) for half in (self.student, self.teacher))
        torch._foreach_lerp_(list(teacher.values()), [student[k] for k in teacher], 1 - momentum)
        self.said.zero_(), self.count.zero_(), self.share.fill_(share)

    def features(self, x):
        """Pictures (B, C, H, W) to the teacher's features (B, d)."""
        return self.teacher.features(x)

    def num_params(self):
        """Number of parameters that are trained: the student's."""
        return sum(t.numel() for t in self.parameters() if t.requires_grad)

    @staticmethod
    def opened(run):
        """What open_run gives of this network, as that of the network inside: the teacher's weights, and one class that
        means nothing in place of a head."""
        c, inside = DINOConfig(**run['network']), 'teacher.net.'
        weights = {k.removeprefix(inside): v for k, v in run['weights'].items() if k.startswith(inside)}
        weights |= {'read.head.weight': torch.zeros(1, c.n_embd), 'read.head.bias': torch.zeros(1)}
        return run | {'weights': weights, 'model': c.backbone, 'network': settings_of(c, c.image_size),
                      'data': run['data'] | {'classes': ['no class: it was trained without labels'],
                                             'unlabelled': True}}


# ---- helpers --------------------------------------------------------------------------------------------------------

def settings_of(c, image_size):
    """The settings of the network inside."""
    return dict(n_layer=c.n_layer, n_head=c.n_head, n_embd=c.n_embd, patch_size=c.patch_size, channels=c.channels,
                image_size=image_size, num_classes=1, pool=c.pool)


def network(c, image_size):
    """The network inside, for pictures of this size, without a classifier's last map."""
    module = import_module(f'model_{c.backbone}')
    net = module.Network(module.Config(**settings_of(c, image_size)))
    net.read.head = nn.Identity()
    return net


def check(c):
    """Raises ValueError where settings do not fit together; makes image_size and patch_size (height, width)."""
    for name in ('n_out', 'hidden', 'bottleneck', 'head_layers', 'student_temperature', 'teacher_temperature',
                 'first_temperature'):
        if getattr(c, name) <= 0:
            raise ValueError(f'{name}={getattr(c, name)} must be above 0')
    for name in ('centre_momentum', 'teacher_momentum', 'teacher_momentum_end', 'freeze_share', 'temperature_share'):
        if not 0 <= getattr(c, name) <= 1:
            raise ValueError(f'{name}={getattr(c, name)} must lie in [0, 1]')
    c.image_size, c.patch_size = (tuple(s) if isinstance(s, (tuple, list)) else (s, s)
                                  for s in (c.image_size, c.patch_size))
    try:
        with torch.device('meta'):
            net = network(c, c.image_size)                              # raises for sizes that it cannot have
    except (ImportError, TypeError, AttributeError):
        net = None
    if not hasattr(net, 'features') or not hasattr(getattr(net, 'embed', None), 'pos'):
        raise ValueError(f"backbone='{c.backbone}' is no network that classifies pictures; choose crate, vit, aot or "
                         'crate_alpha')


Network, Config = DINO, DINOConfig  # what --model=dino trains; see docs/extend.md
