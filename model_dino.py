"""DINO: a network of pictures teaches itself, without labels.

    Mathilde Caron, Hugo Touvron, Ishan Misra, Hervé Jégou, Julien Mairal, Piotr Bojanowski, Armand
    Joulin. "Emerging Properties in Self-Supervised Vision Transformers", ICCV 2021,
    arXiv:2104.14294. Equation numbers refer to it. By its table of contents, the longer paper on
    CRATE (model_crate.py) trains CRATE in this way ("CRATE-DINO"); we did not have that section.
    SimDINO: Ziyang Wu, Jingyuan Zhang, Druv Pai, XuDong Wang, Chandan Singh, Jianwei Yang, Jianfeng
    Gao, Yi Ma. "Simplifying DINO via Coding Rate Regularization", ICML 2025, arXiv:2502.10385.

The idea. A student and a teacher are two networks of the same form, which look at crops of a
picture. The teacher sees two large crops. The student sees these two and some small ones. From each
crop it learns to predict what the teacher says of another crop of the same picture:

    P_s  = softmax(g_s(x) / tau_s)              probabilities of the student, eq. (1)
    P_t  = softmax((g_t(x) - c) / tau_t)        probabilities of the teacher, eqs. (1), (4)
    loss = mean over pairs (x, x') of [-sum P_t(x) log P_s(x')]         eqs. (2), (3)

In a pair, x is a large crop and x' is another crop of the same picture, large or small. Only the
student is trained by gradients. The teacher and the centre c are moving averages:

    teacher <- l teacher + (1 - l) student      section 3.1; l goes from 0.996 to 1
    c       <- m c + (1 - m) mean g_t(x)        eq. (4)

If all pictures had the same output, which is called a collapse, the prediction would be easy and
nothing would be learned. The centre keeps one output from winning always. A small tau_t keeps the
outputs from becoming equally probable.

    paper     code                  meaning
    g         Branch                a network of pictures, then a projection head
    K         out_dim               number of outputs of the head (here not that of attention heads)
    B         B                     pictures of a forward pass in one process
    d         n_embd                width of what the head sees
    tau_s     student_temp          temperature of the student's softmax
    tau_t     teacher_temp          temperature of the teacher's softmax
    c         centre  (K,)          moving average of the teacher's outputs
    m         centre_momentum       weight of the old centre in a step
    l         momentum_teacher      weight of the old teacher in a step; the paper says lambda

SimDINO (`objective='simdino'`) needs no K outputs, no centre and no temperatures: g gives a
feature, a vector of length 1. The features of two crops of a picture should be alike. The features
of different pictures should fill the space, which their coding rate measures:

    loss      = - w alignment - expansion
    alignment = mean over the same pairs of   g_t(x) . g_s(x')
    expansion = gamma times the mean over the two large crops of 1/2 logdet(I + p / (N eps) Z^T Z)
    gamma     = 1/p + 1/N           so that it is about a mean: logdet is a sum of min(p, N) terms

    formula   code                  meaning
    p         bottleneck_dim        numbers in a feature
    N         N                     pictures of a forward pass, in all processes together
    Z         Z  (N, p)             g_s(x) of one large crop of each picture; with `pair=True` the
                                    mean of g_s(x) and g_t(x)
    eps       eps                   distortion that the rate allows; CRATE writes it eps^2
    w         alignment_weight      weight of the alignment

The network inside g is crate, vit, aot, crate_alpha, or another one with `features`, learned
positions `embed.pos` and a setting `pool`. Its classifier is taken off. A trained checkpoint is
opened as the network inside, with the teacher's weights. So every command that looks at CRATE or
ViT can look at it too. A run can begin with the weights of a run of DINO, or of a trained network
that becomes the one inside.

Where the code departs from the released code (docs/papers.md lists the departures of the recipe):
  * github.com/facebookresearch/dino: with gradient accumulation the centre moves once a step. There
    it moves once a pass.
  * github.com/RobinWu218/SimDINO: the formulas above are from this code, as we do not have the
    paper. Here Z has the pictures of all processes. There Z has the pictures of one process, but N
    counts all pictures. So with 8 processes Z^T Z / N is 8 times smaller there. To compute about
    the same here, set an eps that is 8 times as large.
"""
import math
import warnings
from dataclasses import asdict, dataclass, replace
from importlib import import_module

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.func import functional_call


class ConfigError(ValueError):
    """Settings that make no sense. Programs print it in one line, and no traceback."""


@dataclass
class DINOConfig:
    backbone: str = 'crate'            # network inside: crate, vit, or a model_x.py with features
    n_layer: int = 12                  # its layers
    n_head: int = 6                    # its attention heads
    n_embd: int = 384                  # its width of a token
    image_size: int | tuple = 224      # pixels of a large crop, or (height, width)
    patch_size: int | tuple = 16       # pixels of a patch, or (height, width)
    channels: int = 3                  # 3 for colour, 1 for grey
    pool: str = 'cls'                  # the head sees 'cls', the class token, or 'mean'
    objective: str = 'dino'            # what the student learns: 'dino', or 'simdino'
    out_dim: int = 65536               # dino: outputs of the projection head
    hidden_dim: int = 2048             # width of the head's hidden layers
    bottleneck_dim: int = 256          # width before the head's last layer; simdino: p
    head_layers: int = 3               # layers of the head before its last one
    eps: float = 0.05                  # simdino: allowed distortion; less spreads features more
    alignment_weight: float = 1.0      # simdino: weight of the alignment of crops
    pair: bool = True                  # simdino: coding rate of mean of student and teacher
    student_temp: float = 0.1          # dino: tau_s, of the student's softmax
    teacher_temp: float = 0.04         # dino: tau_t, of the teacher's softmax, after its warm-up
    warmup_teacher_temp: float = 0.04  # dino: tau_t at the start of the run
    warmup_temp_share: float = 0.3     # dino: share of the run after which tau_t is teacher_temp
    centre_momentum: float = 0.9       # dino: m, of the centre
    momentum_teacher: float = 0.996    # l at the start; choose less for fewer than 10,000 steps
    momentum_teacher_end: float = 1.0  # l at the end, by a cosine; choose less for few steps
    freeze_share: float = 0.01         # dino: share of the run in which the last layer is frozen

    # the next two are no settings: the file tasks/task_views.py, which gives crops of each picture,
    # and, for weights/runs.py, what older runs call some settings
    task = 'views'
    old_names = {'n_out': 'out_dim', 'hidden': 'hidden_dim', 'bottleneck': 'bottleneck_dim',
                 'c': 'alignment_weight', 'student_temperature': 'student_temp',
                 'teacher_temperature': 'teacher_temp', 'first_temperature': 'warmup_teacher_temp',
                 'temperature_share': 'warmup_temp_share', 'teacher_momentum': 'momentum_teacher',
                 'teacher_momentum_end': 'momentum_teacher_end'}

    def __post_init__(self):
        check(self)


# ---- the objective of DINO ----------------------------------------------------------------------

def probabilities(teacher, centre, temperature):
    """P_t, eq. (1) with the centre of eq. (4). No gradient flows through it.

    teacher: outputs of the teacher (.., K). centre: (K,). Returns float32 (.., K).
    """
    logits = (teacher.float() - centre) / temperature       # (.., K)
    return logits.softmax(dim=-1).detach()


def cross_entropy(student, P_t, temperature):
    """The mean cross-entropy in nats over all pairs of a large crop and another crop, eq. (3).

    student: outputs of the student (crops, B, K), the two large crops first. P_t: (2, B, K).
    The paper has a sum over the pairs; the released code has this mean.
    """
    log_P_s = (student.float() / temperature).log_softmax(dim=-1)   # (crops, B, K)
    losses = []
    for i, j in pairs_of_crops(len(log_P_s)):
        loss = -(P_t[i] * log_P_s[j]).sum(dim=-1)           # of each picture, eq. (2): (B,)
        losses.append(loss.mean())
    return torch.stack(losses).mean()


def pairs_of_crops(n_crops):
    """The pairs (i, j) of the loss: the teacher sees the large crop i, the student crop j."""
    pairs = []
    for i in range(2):
        for j in range(n_crops):
            if i != j:
                pairs.append((i, j))
    return pairs


def next_centre(centre, mean, momentum):
    """The centre (K,) after a step in which the teacher's outputs had this mean (K,), eq. (4)."""
    return momentum * centre + (1 - momentum) * mean


# ---- the objective of SimDINO -------------------------------------------------------------------

def simdino_terms(student, teacher, eps, pair, processes=1):
    """(alignment, expansion) of SimDINO's loss, two float64 tensors with one number each.

    student: features of the student (crops, B, p), the two large crops first. teacher: features of
    the teacher (2, B, p), which get no gradient. All have length 1. processes: how many processes
    there are; each has B of the N pictures.
    """
    teacher = teacher.detach()
    if student.device.type == 'mps':                        # MPS has no float64
        student = student.cpu()
        teacher = teacher.cpu()
    student = student.double()                              # for logdet; autocast leaves float64
    teacher = teacher.double()

    cosines = []
    for i, j in pairs_of_crops(len(student)):
        cosine_of_pair = (teacher[i] * student[j]).sum(dim=-1)      # (B,)
        cosines.append(cosine_of_pair.mean())
    alignment = torch.stack(cosines).mean()

    Z = student[:2]                                         # of the large crops: (2, B, p)
    if pair:
        Z = (student[:2] + teacher) / 2
    return alignment, expansion_term(Z, eps, processes)


def expansion_term(Z, eps, processes):
    """gamma times the mean coding rate of the two large crops, in nats. Z: float64 (2, B, p).

    The logdet is computed by a Cholesky factorization, A = L L^T: 1/2 logdet(A) is the sum of the
    logarithms of L's diagonal. If a factorization fails, the result is NaN, and train.py stops the
    run and names the step.
    """
    B, p = Z.shape[1:]
    N = B * processes
    gram = Z.mT @ Z                                         # Z^T Z of each large crop: (2, p, p)
    if processes > 1:
        gram = sum_over_processes(gram, processes)
    identity = torch.eye(p, dtype=gram.dtype, device=gram.device)
    A = identity + p / (N * eps) * gram                     # (2, p, p)
    L, failed = torch.linalg.cholesky_ex(A)
    diagonal = L.diagonal(dim1=1, dim2=2)                   # (2, p)
    rates = diagonal.log().sum(dim=1)                       # 1/2 logdet(A): (2,)
    rates = rates.masked_fill(failed != 0, math.nan)
    return gamma(p, N) * rates.mean()


def sum_over_processes(gram, processes):
    """Z^T Z of all N pictures. gram: Z^T Z of the pictures of this process. Both are (2, p, p).

    The gradient reaches each process by its own pictures alone. The whole gradient is the sum of
    these parts, and DDP takes their mean. So each part is multiplied by `processes` here.
    """
    total = gram.detach().clone()
    dist.all_reduce(total)                                  # in place, and without a gradient
    zero = gram - gram.detach()                             # 0, but with the gradient of gram
    return total + processes * zero


def gamma(p, N):
    """The weight of the coding rate of N features with p numbers each, about 1/min(p, N)."""
    return 1 / p + 1 / N


# ---- the projection head ------------------------------------------------------------------------

class DINOHead(nn.Module):
    """Features of the network inside (.., n_embd) -> outputs (.., out_dim).

    An MLP with head_layers linear maps makes a vector of width bottleneck_dim. It is divided by its
    length. The outputs are its cosines to out_dim learned directions. With out_dim=0, for SimDINO,
    the vectors of length 1 are the result, float32 (.., bottleneck_dim).
    """

    def __init__(self, n_embd, out_dim, hidden_dim, bottleneck_dim, head_layers):
        super().__init__()
        self.mlp = nn.Sequential()
        width = n_embd
        for _ in range(head_layers - 1):
            self.mlp.append(nn.Linear(width, hidden_dim))
            self.mlp.append(nn.GELU())
            width = hidden_dim
        self.mlp.append(nn.Linear(width, bottleneck_dim))
        self.last_layer = Directions(bottleneck_dim, out_dim) if out_dim > 0 else None
        for module in self.mlp:
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02)
                nn.init.zeros_(module.bias)

    def forward(self, z):
        z = self.mlp(z)                                     # (.., bottleneck_dim)
        if self.last_layer is None:
            return F.normalize(z.float(), dim=-1)           # length 1 in float32, for the rate
        return self.last_layer(F.normalize(z, dim=-1))      # (.., out_dim)


class Directions(nn.Module):
    """A linear map without bias. Row k of its matrix is a direction times its length weight_g[k].

    The lengths are 1 and not trained. The names are those of the released code.
    """

    matrices = ('weight_v',)        # it decays, as the matrix of a linear map; see engine/optim.py

    def __init__(self, n_in, n_out):
        super().__init__()
        self.weight_g = nn.Parameter(torch.ones(n_out, 1), requires_grad=False)
        self.weight_v = nn.Parameter(torch.empty(n_out, n_in))
        nn.init.kaiming_uniform_(self.weight_v, a=math.sqrt(5))     # as PyTorch starts nn.Linear

    def forward(self, z):
        directions = F.normalize(self.weight_v, dim=1)      # (n_out, n_in)
        return F.linear(z, self.weight_g * directions)      # (.., n_out)


# ---- the student and the teacher ----------------------------------------------------------------

class Branch(nn.Module):
    """g: a network of pictures and a projection head. The student is one, the teacher another."""

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.net = make_backbone(config)
        out_dim = config.out_dim if config.objective == 'dino' else 0
        self.head = DINOHead(config.n_embd, out_dim, config.hidden_dim, config.bottleneck_dim,
                             config.head_layers)

    def forward(self, x):
        """Crops (n, B, C, h, w) -> outputs (n, B, K), or SimDINO's features (n, B, p)."""
        z = self.features(x.flatten(0, 1))                  # (n B, d)
        z = z.unflatten(0, x.shape[:2])                     # (n, B, d)
        return self.head(z)

    def features(self, x):
        """Pictures (B, C, h, w) -> what the head sees (B, d).

        h and w may be any multiples of patch_size. The network inside has one position for each
        patch of its image_size. For another size they are interpolated to the other grid of
        patches, and the gradient goes back through the interpolation.
        """
        embed = self.net.embed
        embed.picture_shape = tuple(x.shape[1:])            # else it refuses the small crops
        size = tuple(x.shape[2:])
        if size == self.config.image_size:                  # which is (height, width), see `check`
            return self.net.features(x)

        # here, because a model file imports no other file of the project at its top
        from weights.surgery import resize_positions
        own_grid = grid(self.config.image_size, self.config.patch_size)
        other_grid = grid(size, self.config.patch_size)
        positions = resize_positions(embed.pos, own_grid, other_grid)
        # self.net(x) with these positions as embed.pos. It returns (features, None), because its
        # classifier is taken off, see make_backbone
        z, _ = functional_call(self.net, {'embed.pos': positions}, x)
        return z                                            # (B, d)


# ---- the network --------------------------------------------------------------------------------

class DINO(nn.Module):
    """model((large, small)) -> (P_t (2, B, K), loss in nats).

    large (2, B, C, H, W) and small (n, B, C, h, w) are crops of the same B pictures. n may be 0.
    SimDINO: model((large, small)) -> (g_t (2, B, p), loss, {'alignment': .., 'expansion': ..}).
    y, the classes of the pictures, is not used.
    """

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.student = Branch(config)
        self.teacher = Branch(config)
        self.teacher.load_state_dict(self.student.state_dict())
        self.teacher.requires_grad_(False)
        if config.objective == 'dino':
            self.register_buffer('centre', torch.zeros(config.out_dim))
            # in the passes of this step: the sum of the teacher's outputs, and how many there were
            self.register_buffer('output_sum', torch.zeros(config.out_dim), persistent=False)
            self.register_buffer('output_count', torch.zeros(()), persistent=False)
        # how much of the run is over, from 0 to 1; after_step sets it, so it is one step late
        self.register_buffer('share', torch.zeros(()))

    def forward(self, x, y=None):
        large, small = x
        with torch.no_grad():
            teacher = self.teacher(large)                   # (2, B, K)
        student = self.student(large)                       # (2, B, K)
        if len(small) > 0:
            student = torch.cat((student, self.student(small)))     # (2 + n, B, K)
        if self.config.objective == 'simdino':
            loss, terms = self.simdino(student, teacher)
            return teacher, loss, terms

        if self.training:
            self.output_sum += teacher.float().sum(dim=(0, 1))
            self.output_count += teacher.size(0) * teacher.size(1)
        P_t = probabilities(teacher, self.centre, self.temperature())       # (2, B, K)
        loss = cross_entropy(student, P_t, self.config.student_temp)
        return P_t, loss

    def temperature(self):
        """tau_t. During the warm-up it goes from warmup_teacher_temp to teacher_temp on a straight
        line. (self.share is one step late, which is negligible.)"""
        c = self.config
        progress = 1.0
        if c.warmup_temp_share > 0:
            progress = (self.share / c.warmup_temp_share).clamp(max=1)
        return c.warmup_teacher_temp + (c.teacher_temp - c.warmup_teacher_temp) * progress

    def simdino(self, student, teacher):
        """(loss, {'alignment': .., 'expansion': ..}) of features (2 + n, B, p) and (2, B, p)."""
        c = self.config
        # in training all processes compute one coding rate together
        processes = 1
        # (on the meta device scoring/flops.py counts operations, and there is nothing to sum)
        counts_operations = student.is_meta
        if self.training and dist.is_initialized() and not counts_operations:
            processes = dist.get_world_size()

        if not self.training:                               # it reads a number: training would wait
            are_features = has_length_1(student) and has_length_1(teacher)
            if not are_features:                            # they may be NaN, or all zeros
                warnings.warn('features are not of length 1, so their coding rate means nothing',
                              stacklevel=2)
        alignment, expansion = simdino_terms(student, teacher, c.eps, c.pair, processes)
        alignment = alignment.float().to(student.device)
        expansion = expansion.float().to(student.device)
        loss = -c.alignment_weight * alignment - expansion
        return loss, {'alignment': alignment, 'expansion': expansion}

    def before_step(self, share):
        """Freeze the last layer of the head at the start of a run of DINO.

        train.py calls this after the gradients of a step are computed, and before the optimizer
        uses them. share: of the run that is over, from 0 to 1. The gradient becomes None, because
        the optimizer leaves a parameter without a gradient as it is. With a gradient of zeros its
        weight would decay, and Adam's averages would count these steps.
        """
        if self.config.objective == 'dino' and share < self.config.freeze_share:
            self.student.head.last_layer.weight_v.grad = None

    @torch.no_grad()
    def after_step(self, share, total):
        """Move the centre and the teacher. train.py calls this after the step of the optimizer.

        share: of the run that was over before this step, from 0 to 1. total: a function that sums
        a tensor over all processes, in place, and returns it.
        """
        c = self.config
        if c.objective == 'dino':
            # of the large crops of all passes and processes
            output_sum = total(self.output_sum)             # (K,)
            output_count = total(self.output_count)
            mean = output_sum / output_count
            self.centre.copy_(next_centre(self.centre, mean, c.centre_momentum))
            self.output_sum.zero_()
            self.output_count.zero_()

        # teacher + (1 - l) (student - teacher), section 3.1, in place and for all tensors at once
        momentum = cosine(c.momentum_teacher, c.momentum_teacher_end, share)        # l
        student_weights = list(self.student.parameters())
        teacher_weights = list(self.teacher.parameters())
        torch._foreach_lerp_(teacher_weights, student_weights, 1 - momentum)
        self.share.fill_(share)

    def features(self, x):
        """Pictures (B, C, H, W) -> what the teacher's head sees (B, d)."""
        return self.teacher.features(x)

    @staticmethod
    def opened(run):
        """Turn a trained run of DINO into a run of the network inside, with the teacher's weights.

        Takes and returns a Run; open_run in weights/runs.py calls it. Commands expect a classifier,
        which make_backbone has taken off. Here it is one of zeros, for a class that means nothing.
        """
        c = DINOConfig(**run.network)
        weights = {}
        for name, weight in run.weights.items():
            if name.startswith('teacher.net.'):
                weights[name.removeprefix('teacher.net.')] = weight
        weights['read.head.weight'] = torch.zeros(1, c.n_embd)
        weights['read.head.bias'] = torch.zeros(1)
        classes = ['no class: it was trained without labels']
        return replace(run, model=c.backbone, network=backbone_settings(c),
                       data=run.data | {'classes': classes}, weights=weights, unlabelled=True)

    @staticmethod
    def begun_from(run):
        """Turn a trained run into the beginning of a new run of DINO.

        Takes and returns a Run; open_run in weights/runs.py calls it, and sets its model. A run of
        DINO gives all its weights, and the new run begins at share 0. From a run of another
        network, student and teacher get this network inside. Their heads and the centre are missing
        then: `missing` has the beginnings of their names. Raises ConfigError for a network that
        cannot be inside.
        """
        if 'backbone' in run.network:                       # a run of DINO
            start = {'share': torch.zeros(())}              # nothing of the new run is over
            return replace(run, weights=run.weights | start)

        c = config_around(run)
        weights = {}
        for name, weight in run.weights.items():
            if not name.startswith('read.head.'):
                weights[f'student.net.{name}'] = weight
                weights[f'teacher.net.{name}'] = weight
        network = {'backbone': c.backbone}
        for name in OF_BACKBONE:
            network[name] = getattr(c, name)
        missing = ('student.head.', 'teacher.head.', 'centre', 'share')
        return replace(run, network=network, weights=weights, missing=missing)


# ---- helpers ------------------------------------------------------------------------------------

def cosine(first, last, share):
    """A number that goes from first to last by half a cosine, as share goes from 0 to 1."""
    return last + 0.5 * (first - last) * (1 + math.cos(math.pi * share))


def has_length_1(features):
    """Whether all features (.., p) have length 1, up to rounding."""
    lengths = torch.linalg.vector_norm(features, dim=-1)
    return (lengths - 1).abs().max() < 0.01


# settings of the network inside that are settings here too
OF_BACKBONE = ('n_layer', 'n_head', 'n_embd', 'patch_size', 'channels', 'image_size', 'pool')
# settings of a network inside that do not change its features of pictures: those of its classifier,
# of its own training, and of text
NOT_OF_FEATURES = ('num_classes', 'dropout', 'label_smoothing', 'init', 'block_size', 'vocab_size',
                   'causal', 'final_norm')


def backbone_settings(c):
    """All settings of the network inside, a dict."""
    settings = {name: getattr(c, name) for name in OF_BACKBONE}
    settings['num_classes'] = 1                             # make_backbone takes it off
    return settings


def config_around(run):
    """The DINOConfig with a trained network inside. run: see `begun_from` above.

    Raises ConfigError for a network that reads no pictures, and for one with settings that
    DINOConfig cannot pass on, so that inside it would have other features.
    """
    model = run.model
    kind = run.data['kind']
    if kind != 'images':
        raise ConfigError(f'model={model} reads {kind}, and DINO reads pictures; '
                          'start from a network of pictures')
    Config = import_module(f'model_{model}').Config
    trained = asdict(Config(**run.network))
    shared = {name: trained[name] for name in OF_BACKBONE if name in trained}
    # this refuses a network without a pool, such as ToST
    c = DINOConfig(backbone=model, **shared)

    inside = asdict(Config(**backbone_settings(c)))
    needed = []
    for name, value in inside.items():
        if name not in NOT_OF_FEATURES and trained[name] != value:
            needed.append(f'{name}={value}')
    if needed:
        raise ConfigError(f'inside DINO, model={model} has {", ".join(needed)}, and the trained '
                          'network has other values; start from one with these')
    return c


def make_backbone(c):
    """The network inside. Without the last map of its classifier it returns (features, None)."""
    module = import_module(f'model_{c.backbone}')
    config = module.Config(**backbone_settings(c))
    net = module.Network(config)
    net.read.head = nn.Identity()
    return net


def is_possible_backbone(c):
    """Whether model_{backbone}.py has a network with features, and with positions to interpolate.

    A ValueError passes through: it is what the network says of settings that it cannot have.
    """
    try:
        with torch.device('meta'):                          # takes no memory
            net = make_backbone(c)
    except (ImportError, TypeError, AttributeError):        # no such file, no pool, no classifier
        return False
    embed = getattr(net, 'embed', None)
    return hasattr(net, 'features') and hasattr(embed, 'pos')


def grid(image_size, patch_size):
    """How many patches a picture has, (rows, columns)."""
    H, W = image_size
    h, w = patch_size
    return H // h, W // w


def as_pair(size):
    """A number or (height, width) -> (height, width), as in model_crate.py."""
    return (size, size) if isinstance(size, int) else tuple(size)


def check(c):
    """Raise ConfigError if settings do not fit together. Sizes become (height, width)."""
    if c.objective not in ('dino', 'simdino'):
        raise ConfigError(f"objective='{c.objective}' is unknown; choose dino or simdino")
    for name in ('out_dim', 'hidden_dim', 'bottleneck_dim', 'head_layers', 'student_temp',
                 'teacher_temp', 'warmup_teacher_temp', 'eps', 'alignment_weight'):
        if getattr(c, name) <= 0:
            raise ConfigError(f'{name}={getattr(c, name)} must be above 0')
    for name in ('centre_momentum', 'momentum_teacher', 'momentum_teacher_end', 'freeze_share',
                 'warmup_temp_share'):
        if not 0 <= getattr(c, name) <= 1:
            raise ConfigError(f'{name}={getattr(c, name)} must lie in [0, 1]')
    c.image_size = as_pair(c.image_size)
    c.patch_size = as_pair(c.patch_size)
    if not is_possible_backbone(c):
        raise ConfigError(f"backbone='{c.backbone}' cannot be inside of DINO; choose "
                          'crate, vit, aot or crate_alpha')


Network, Config = DINO, DINOConfig  # what --model=dino trains; see docs/extend.md
