"""DINO: a network of pictures that teaches itself, without labels.

    Caron, Touvron, Misra, Jegou, Mairal, Bojanowski, Joulin. "Emerging Properties in Self-Supervised Vision
    Transformers", ICCV 2021. The longer CRATE paper trains CRATE in this way ("CRATE-DINO").
    SimDINO: Wu, Zhang, Pai, Wang, Singh, Yang, Gao, Ma. "Simplifying DINO via Coding Rate Regularization", ICML 2025.

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

SimDINO (objective='simdino') has no outputs, centre or temperatures. g gives features of length 1. Those of two crops
of a picture should be alike. Those of different pictures should fill the space, as their coding rate measures:

    loss = - c alignment - expansion
    alignment = mean over the same pairs of   g_t(x) . g_s(x')
    expansion = gamma mean over the large crops of   1/2 logdet(I + p / (N eps) Z^T Z),   gamma = 1/p + 1/N

    p         bottleneck            numbers in a feature
    N         N                     pictures of a forward pass, in all processes together
    Z         Z  (N, p)             g_s(x) of one crop of each picture; with pair=True the mean of g_s(x) and g_t(x)
    eps, c    eps, c                distortion that the rate allows (CRATE's eps^2); weight of the alignment

The network inside is any with `features` (backbone='crate' or 'vit'); it classifies nothing. Trained checkpoints are
opened as that network with the teacher's weights, so every command that looks at CRATE or ViT looks at these too.

Departures from the released code. docs/papers.md lists those of the recipe.
  * github.com/facebookresearch/dino: of a batch in several passes the centre is moved once a step, not once a pass;
  * github.com/RobinWu218/SimDINO, whose formulas these are, as the paper is not at hand: Z has the pictures of all
    processes. There it has those of one of w processes, but N counts all, so that its eps acts as w eps does here.
"""
import math
import warnings
from dataclasses import dataclass
from importlib import import_module

import torch
import torch.distributed as dist
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
    objective: str = 'dino'             # what the student learns: 'dino', or 'simdino', which has a coding rate
    n_out: int = 65536                  # dino: outputs of the projection head
    hidden: int = 2048                  # width of its hidden layers
    bottleneck: int = 256               # width before its last layer; simdino: p, of a feature
    head_layers: int = 3                # its layers before the last one
    eps: float = 0.05                   # simdino: distortion that the coding rate allows; less keeps features apart
    c: float = 1.0                      # simdino: weight of the alignment of crops
    pair: bool = True                   # simdino: the rate is of the mean of student and teacher, not of the student
    student_temperature: float = 0.1    # dino: tau_s, of the student's softmax
    teacher_temperature: float = 0.04   # dino: tau_t, of the teacher's, at the end
    first_temperature: float = 0.04     # dino: tau_t at the start
    temperature_share: float = 0.3      # dino: share of the run in which tau_t goes from first to last
    centre_momentum: float = 0.9        # dino: m, of the centre
    teacher_momentum: float = 0.996     # l at the start. Fewer than 10,000 steps need less
    teacher_momentum_end: float = 1.0   # .. where it goes to by a cosine; with few steps 1 leaves out the last third
    freeze_share: float = 0.01          # dino: share of the run in which the last layer is frozen, one of 100 epochs

    task = 'views'

    def __post_init__(self):
        check(self)

    def expansion_of(self, directions, N):
        """SimDINO's expansion of N features that lie evenly on so many orthogonal directions: on 1 after a collapse;
        with min(p, N) it is the largest there can be."""
        p = self.bottleneck
        return gamma(p, N) * directions / 2 * math.log1p(p / (self.eps * directions))

    def least_correlation(self, N):
        """1 - h gamma K' / c, with K = p / eps, K' = K^2 / (1 + K), h = 1 or, with pair, 1/2. Features of N pictures
        have all but collapsed to one vector. If those of two crops of a picture correlate above this number, over the
        pictures, small differences lower SimDINO's loss, to second order, and grow. docs/pictures.md says what is
        assumed."""
        K = self.bottleneck / self.eps
        return 1 - (0.5 if self.pair else 1) * gamma(self.bottleneck, N) * K ** 2 / (1 + K) / self.c


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


# ---- the objective of SimDINO ---------------------------------------------------------------------------------------

def simdino_loss(student, teacher, eps=0.05, c=1.0, pair=True):
    """- c alignment - expansion, float64. student (crops, B, p), the two large crops first; teacher (2, B, p); all
    vectors have length 1. No gradient goes to the teacher. Raises ValueError for other vectors, for fewer than two
    large crops, and for eps or c out of range."""
    if len(student) < 2 or len(teacher) != 2:
        raise ValueError(f'{len(student)} crops of the student and {len(teacher)} of the teacher; give the two large '
                         'ones of both')
    if eps <= 0 or c < 0:
        raise ValueError(f'eps={eps} must be above 0, and c={c} not below 0')
    if not of_length_1(student, teacher):
        raise ValueError('features are not of length 1; divide each by its length')
    alignment, expansion = simdino_terms(student, teacher, eps, pair)
    return -c * alignment - expansion


def simdino_terms(student, teacher, eps, pair, processes=1):
    """(alignment, expansion) of simdino_loss. Without a Cholesky factor the expansion is NaN, which stops a run and
    names the step. processes: so many, each with B of the pictures."""
    student, teacher = (t.cpu() if t.device.type == 'mps' else t for t in (student, teacher.detach()))
    student, teacher = student.double(), teacher.double()                   # which autocast leaves alone
    pairs = [(teacher[i] * student[j]).sum(-1).mean() for i in range(2) for j in range(len(student)) if i != j]
    Z = (student[:2] + teacher) / 2 if pair else student[:2]                # (2, B, p)
    (_, B, p), gram = Z.shape, Z.mT @ Z                                     # (2, p, p)
    N = B * processes
    if processes > 1:
        total = gram.detach().clone()
        dist.all_reduce(total)                                              # Z^T Z of all N pictures
        gram = total + processes * (gram - gram.detach())                   # DDP will take the mean of the gradients
    identity = torch.eye(p, dtype=gram.dtype, device=gram.device)
    factor, failed = torch.linalg.cholesky_ex(identity + p / (N * eps) * gram)
    rates = factor.diagonal(dim1=1, dim2=2).log().sum(1)                    # 1/2 logdet(I + p / (N eps) Z^T Z), (2,)
    return torch.stack(pairs).mean(), gamma(p, N) * rates.masked_fill(failed != 0, math.nan).mean()


def gamma(p, N):
    """The weight of the coding rate, (p + N) / (p N)."""
    return 1 / p + 1 / N


def of_length_1(*features):
    """Whether all vectors (.., p) have length 1, up to the rounding of bfloat16."""
    return all((torch.linalg.vector_norm(t, dim=-1) - 1).abs().max() < 0.01 for t in features)


# ---- the networks ---------------------------------------------------------------------------------------------------

class DINOHead(nn.Module):
    """Features (.., n_embd) to outputs (.., n_out): an MLP, vectors of length 1, and cosines to n_out directions.
    n_out=0, for SimDINO, gives the vectors of length 1 (.., bottleneck), float32."""

    def __init__(self, n_embd, n_out, hidden=2048, bottleneck=256, layers=3):
        super().__init__()
        widths = [n_embd, *[hidden] * (layers - 1), bottleneck]
        parts = [part for a, b in zip(widths, widths[1:]) for part in (nn.Linear(a, b), nn.GELU())]
        self.mlp = nn.Sequential(*parts[:-1])
        self.last_layer = Directions(bottleneck, n_out) if n_out else None
        for part in self.mlp:
            if isinstance(part, nn.Linear):
                nn.init.trunc_normal_(part.weight, std=0.02)
                nn.init.zeros_(part.bias)

    def forward(self, z):
        if self.last_layer is None:
            return F.normalize(self.mlp(z).float(), dim=-1)
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
        self.head = DINOHead(c.n_embd, c.n_out if c.objective == 'dino' else 0, c.hidden, c.bottleneck, c.head_layers)
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
    may be none, are crops of the same B pictures. SimDINO: (g_t (2, B, p), loss, {'alignment', 'expansion'})."""

    def __init__(self, config):
        super().__init__()
        c = self.config = config
        self.student, self.teacher = Half(c), Half(c)
        self.teacher.load_state_dict(self.student.state_dict())
        self.teacher.requires_grad_(False)
        if c.objective == 'dino':
            self.register_buffer('centre', torch.zeros(c.n_out))
            self.register_buffer('said', torch.zeros(c.n_out), persistent=False)  # by the teacher since the last step
            self.register_buffer('count', torch.zeros(()), persistent=False)
        self.register_buffer('share', torch.zeros(()))                  # of the run that was done before the last step

    def forward(self, x, y=None):
        c, (large, small) = self.config, x
        with torch.no_grad():
            teacher = self.teacher(large)                               # (2, B, K)
        student = torch.cat([self.student(crops) for crops in (large, small) if len(crops)])  # (2 + n, B, K)
        if c.objective == 'simdino':
            return teacher, *self.simdino(student, teacher)
        if self.training:
            self.said += teacher.float().sum((0, 1))
            self.count += teacher[..., 0].numel()
        warm = (self.share / c.temperature_share).clamp(max=1) if c.temperature_share else 1.0
        temperature = c.first_temperature + (c.teacher_temperature - c.first_temperature) * warm
        said = probabilities(teacher, self.centre, temperature)
        return said, cross_entropy(student, said, c.student_temperature)

    def simdino(self, student, teacher):
        """(loss, {'alignment', 'expansion'}). In training the processes share the pictures of a pass, but not on the
        meta device, where work is counted."""
        c, device = self.config, student.device
        shared = self.training and not student.is_meta and dist.is_initialized()
        if not self.training and not of_length_1(student, teacher):
            warnings.warn('features are not of length 1, so their coding rate means nothing')
        terms = simdino_terms(student, teacher, c.eps, c.pair, dist.get_world_size() if shared else 1)
        alignment, expansion = (t.float().to(device) for t in terms)
        return -c.c * alignment - expansion, {'alignment': alignment, 'expansion': expansion}

    def before_step(self, share):
        """Told by the loop that there are gradients. share: of the run that is over before this step. The optimizer
        leaves alone what has no gradient; zeros would count in its averages, and make later steps too large."""
        if self.config.objective == 'dino' and share < self.config.freeze_share:
            self.student.head.last_layer.weight_v.grad = None

    @torch.no_grad()
    def after_step(self, share, total):
        """Told by the loop that a step was taken. share: of the run that is over before this step; total: sums a
        tensor over all processes."""
        c = self.config
        momentum = cosine(c.teacher_momentum, c.teacher_momentum_end, share)
        if c.objective == 'dino':
            mean = total(self.said) / total(self.count)
            self.centre.copy_(next_centre(self.centre, mean[None, None], c.centre_momentum))
            self.said.zero_(), self.count.zero_()
        student, teacher = (dict(half.named_parameters()) for half in (self.student, self.teacher))
        torch._foreach_lerp_(list(teacher.values()), [student[k] for k in teacher], 1 - momentum)
        self.share.fill_(share)

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
    if c.objective not in ('dino', 'simdino'):
        raise ValueError(f"objective='{c.objective}' is unknown; choose dino or simdino")
    for name in ('n_out', 'hidden', 'bottleneck', 'head_layers', 'student_temperature', 'teacher_temperature',
                 'first_temperature', 'eps', 'c'):
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
