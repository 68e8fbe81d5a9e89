"""ToST, the token statistics transformer: attention that compares no tokens, so that its cost is
linear in their number.

    Ziyang Wu, Tianjiao Ding, Yifu Lu, Druv Pai, Jingyuan Zhang, Weida Wang, Yaodong Yu, Yi Ma,
    Benjamin D. Haeffele. "Token Statistics Transformer: Linear-Time Attention via Variational Rate
    Reduction", ICLR 2025, arXiv:2412.17810. The derivation is section 4.3.2 of the authors'
    textbook (Buchanan, Pai, Wang, Ma, 2025).

The idea. Tokens that lie close to K subspaces have a small coding rate R^c (model_crate.py). The
attention of CRATE is derived from a gradient step on R^c, and compares all pairs of tokens. ToST
takes a gradient step on R_var, an upper bound of R^c. For R_var one number of each coordinate i in
each subspace is enough, its second moment m_ki. Let Pi_jk be the probability that token j belongs
to subspace k. Then (equation numbers and letters are ours)

    R_var = 1/2 sum_k N_k/N sum_i f(m_ki)                                                (a)
            where N_k = sum_j Pi_jk  and  m_k = 1/N_k sum_j Pi_jk (U_k^T z_j)^2
    z_j <- z_j - tau/N sum_k Pi_jk U_k Diag(f'(m_k)) U_k^T z_j                           (b)
    Pi_j = softmax over k of |U_k^T z_j|^2 / (2 eta)                                     (c)

with f(x) = log(1 + (d / eps^2) x), where eps is the precision of the coding rate. (b) is a gradient
step on (a) of size tau, with Pi held fixed. It shrinks a token most along coordinates in which its
subspace has little energy. By (c) a token most likely belongs to the subspace on which its
projection is longest; the smaller eta, the more likely. R_var equals R^c if each U_k is a full
orthogonal matrix (d, d) and diagonalizes the second moments of its tokens. For other orthogonal
matrices (d, d) it is larger.

    letter  code              meaning
    N       N                 tokens of a sequence; of a picture: its patches, without a class token
    d       n_embd            width of a token
    K       n_head            number of subspaces, one per attention head
    p       head_dim          dimension of a subspace
    L       n_layer           number of layers
    Z       z  (B, N, d)      a batch of tokens z_j, one per row; the paper has one per column
    U_k     U.weight[k*p:(k+1)*p].T   basis of subspace k, (d, p)
            proj    (B, N, K, p)   coordinates U_k^T z_j of the tokens
            energy  (B, N, K, p)   their squares
    Pi      Pi      (B, N, K, 1)   probability that a token belongs to subspace k
    N_k     N_k     (B, 1, K, 1)   how many tokens belong to subspace k
    m_k     m       (B, 1, K, p)   second moment of each coordinate in subspace k

In a text each token has its own N_k and m, (B, N, K, 1) and (B, N, K, p), see (6) below.

The outputs are those of the authors' code (github.com/RobinWu218/ToST). Where their code departs
from (a) to (c), so does ours. The numbers of the departures stand beside the lines below:
  (1) Pi compares shares. The share of a token in a coordinate is its energy there, divided by the
      energy of all tokens there. A learned temp_k takes the place of 1 / (2 eta). In a text a
      learned bias b of each head and position is added to the shares.
  (2) f'(m) = 1 / (1 + m), so d / eps^2 = 1. Larger numbers in U make m larger instead.
  (3) The map back to width d is a free matrix W instead of the U_k. It absorbs tau / N too. In a
      text this would be tau / t, another number for each token, and is left out.
  (4) U is not orthogonal. U_k has p columns, by default d / K, and not d; so R_var is no bound of
      R^c any more. `bias=True` adds a bias.
  (5) Pi depends on Z. The step (b) holds Pi fixed, but training differentiates it too.
  (6) In a text, every sum over tokens is for token t a sum over the tokens 1 .. t. So the
      memberships Pi_t do not change when later tokens come.
  (7) A LayerNorm comes before each half of a layer. After each half, every coordinate is multiplied
      by a learned number of its own, gamma.
  (8) The second half of a layer is GPT-2's MLP, not a sparse code.
  (9) Pictures are read out by two layers in which a class token attends to all tokens, by ordinary
      attention.
Everything else is as in GPT-2 for text, and as in XCiT (El-Nouby et al., 2021) for pictures.
"""
import math
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


class ConfigError(ValueError):
    """Settings that make no sense. Programs print it in one line, and no traceback."""


@dataclass
class ToSTConfig:
    n_layer: int = 12               # layers: a step of (b) and an MLP each
    n_head: int = 12                # attention heads, one subspace each
    n_embd: int = 768               # width of a token
    head_dim: int = 0               # dimension of a subspace; 0 means n_embd / n_head
    layer_scale: float = 1e-5       # gamma at the start; the authors' 12 layers of pictures: 1.0
    bias: bool = False              # text: biases in all maps and norms; pictures: a bias in U too
    dropout: float = 0.0            # on embeddings, on f'(m) and on what each half of a layer adds
    block_size: int = 1024          # text: longest sequence of tokens
    vocab_size: int = 50257         # text: number of different tokens
    image_size: int | tuple = 0     # pictures: pixels, or (height, width); 0 reads text
    patch_size: int | tuple = 16    # pictures: pixels of a side of a patch: 2, 4, 8, 16 or 32
    channels: int = 3               # pictures: 3 for colour, 1 for grey
    num_classes: int = 1000         # pictures: number of classes
    label_smoothing: float = 0.0    # pictures: share of the target spread over all classes

    def __post_init__(self):
        check(self)

    @property
    def task(self):
        if self.image_size:
            return 'image'
        return 'text'


# ---- the operators ------------------------------------------------------------------------------

def sum_of_tokens(x, is_causal, past, name):
    """The sum of x (B, N, ..) over all tokens, (B, 1, ..).

    In a text (is_causal) each token t has its own sum, over the tokens 1 .. t: (B, N, ..). While a
    text is written, x is of its new tokens alone, and `past` adds what it keeps under this name:
    the sum over all earlier tokens. Else `past` is None.
    """
    if not is_causal:
        return x.sum(dim=1, keepdim=True)                   # (B, 1, ..)
    sums = x.cumsum(dim=1)                                  # (6): (B, N, ..)
    return past.add(name, sums) if past else sums


class TSSA(nn.Module):
    """Token statistics self-attention, the step (b) of each token: (B, N, d) -> (B, N, d).

    Sums over tokens are in float32, also if everything else is in bfloat16.
    """

    def __init__(self, c):
        super().__init__()
        self.K = c.n_head
        head_dim = c.head_dim or c.n_embd // c.n_head
        self.U = nn.Linear(c.n_embd, self.K * head_dim, bias=c.bias)    # U_1^T .., stacked (4)
        self.W = linear(c, self.K * head_dim, c.n_embd)     # (3)
        self.gamma = layer_scale(c)                         # (7)
        self.temp = nn.Parameter(torch.ones(self.K))        # instead of 1 / (2 eta) (1)
        self.is_causal = c.task == 'text'
        if self.is_causal:
            self.b = nn.Parameter(torch.zeros(self.K, c.block_size, 1))     # (1)
        else:
            self.b = None
        self.drop = nn.Dropout(c.dropout)
        self.first = 0                                      # position of the first token of z
        self.past = None                                    # a Past while text is written

    def forward(self, z):
        proj = self.U(z)                                    # all U_k^T z side by side: (B, N, K p)
        proj = proj.unflatten(2, (self.K, -1))              # one after the other: (B, N, K, p)
        energy = proj.float().square()                      # (B, N, K, p)
        Pi = self.memberships(energy)                       # (c), not detached (5): (B, N, K, 1)

        # the statistics of (a), in a text those of the tokens 1 .. t for each token t (6)
        N_k = sum_of_tokens(Pi, self.is_causal, self.past, 'N_k')   # (B, 1, K, 1), or (B, N, K, 1)
        total = sum_of_tokens(Pi * energy, self.is_causal, self.past, 'total')
        m = total / (N_k + 1e-8)                            # (B, 1, K, p); of text (B, N, K, p)

        slope = self.drop(1 / (1 + m))                      # f'(m_k) (2)
        step = -Pi * slope * proj                           # (b), before the map back: (B, N, K, p)
        step = step.to(proj.dtype).flatten(2)               # side by side again: (B, N, K p)
        return self.gamma * self.W(step)                    # the sum over k (3), (7): (B, N, d)

    def memberships(self, energy):
        """The probabilities (c) of each token from its energies (B, N, K, p): Pi (B, N, K, 1)."""
        total = sum_of_tokens(energy, self.is_causal, self.past, 'energy')  # in a text (6)
        shares = energy / total.clamp_min(1e-12)            # (1): (B, N, K, p)
        scores = shares.sum(dim=3)                          # in place of |U_k^T z_j|^2: (B, N, K)
        if self.b is not None:
            B, N, K, head_dim = energy.shape
            # a copy with one row per position: torch.export can slice rows for any N, not columns
            b = self.b[:, :, 0].T.contiguous()              # (block_size, K)
            b = b[self.first:self.first + N]                # of these positions: (N, K)
            scores = scores + head_dim * b                  # b for each of the p shares (1)
        Pi = (self.temp * scores).softmax(dim=2)            # over the subspaces k, (c): (B, N, K)
        return Pi.unsqueeze(3)


class MLP(nn.Module):
    """GPT-2's MLP (8), and a scale gamma of each coordinate (7)."""

    def __init__(self, c):
        super().__init__()
        self.up = linear(c, c.n_embd, 4 * c.n_embd)
        self.down = linear(c, 4 * c.n_embd, c.n_embd)
        self.gamma = layer_scale(c)

    def forward(self, z):
        h = F.gelu(self.up(z))                              # (B, N, 4 d)
        return self.gamma * self.down(h)                    # (B, N, d)


class Layer(nn.Module):
    """A step of (b), then an MLP."""

    def __init__(self, c):
        super().__init__()
        self.norm1 = layer_norm(c)
        self.attn = TSSA(c)
        self.norm2 = layer_norm(c)
        self.mlp = MLP(c)
        self.drop = nn.Dropout(c.dropout)

    def forward(self, z):
        z = z + self.drop(self.attn(self.norm1(z)))         # compress, (b), after a norm (7)
        z = z + self.drop(self.mlp(self.norm2(z)))          # an MLP (8)
        return z


# ---- the network --------------------------------------------------------------------------------

class ToST(nn.Module):
    """model(x) -> (logits, None), and model(x, y) -> (logits, loss).

    Text: x token ids int64 (B, N), y the next ids (B, N), logits (B, N, vocab_size).
    Pictures: x float (B, C, H, W), classes y int64 (B,), logits (B, num_classes).
    """

    def __init__(self, config):
        super().__init__()
        self.config = config
        if config.task == 'text':
            self.embed = TokenEmbedding(config)
        elif config.task == 'image':
            self.embed = PatchEmbedding(config)
        else:
            raise NotImplementedError(f"ToST has no embedding for the task '{config.task}'")
        self.layers = nn.Sequential(*[Layer(config) for _ in range(config.n_layer)])
        if config.task == 'text':
            self.read = LanguageHead(config, self.embed.tok_emb)
        else:
            self.read = Classifier(config)
        initialize(self)

    def forward(self, x, y=None):
        z = self.embed(x)                                   # (B, N, d)
        for layer in self.layers:
            z = layer(z)                                    # (b), then an MLP: (B, N, d)
        return self.read(z, y)

    def features(self, x):
        """Pictures (B, C, H, W) -> what the classifier sees (B, d)."""
        z = self.embed(x)                                   # (B, N, d)
        z = self.layers(z)                                  # one layer after the other: (B, N, d)
        return self.read.features(z)

    # What follows calls other files: weights/generate.py and weights/official.py.

    def generate(self, idx, *settings, **named_settings):
        """Continue token ids (B, N). Returns int64 (B, N + new). The settings are those of `stream`
        in weights/generate.py."""
        from weights.generate import generate
        return generate(self, idx, *settings, **named_settings)

    def to_official(self):
        """The weights under the names of the authors' code, as a state dict."""
        from weights.official import to_tost
        return to_tost(self)

    @classmethod
    def from_official(cls, state_dict, *, n_head, **settings):
        """A network with weights of the authors' code. Other sizes are read off the tensors.

        A network of pictures needs image_size and patch_size too.
        """
        from weights.official import from_tost
        return from_tost(cls, ToSTConfig, state_dict, n_head=n_head, **settings)


# ---- text, as in GPT-2: from tokens to the next tokens ------------------------------------------

class TokenEmbedding(nn.Module):
    """Token ids, int64 (B, N) -> tokens (B, N, d), as in model_crate.py."""

    def __init__(self, c):
        super().__init__()
        self.tok_emb = nn.Embedding(c.vocab_size, c.n_embd)
        self.pos_emb = nn.Embedding(c.block_size, c.n_embd)
        self.drop = nn.Dropout(c.dropout)

    def forward(self, x):
        N = x.size(1)
        block_size = len(self.pos_emb.weight)
        if N > block_size:
            raise ValueError(f'{N} tokens exceed block_size={block_size}; crop the input')
        z = self.tok_emb(x) + self.pos_emb.weight[:N]       # (B, N, d)
        if z.is_cpu and torch.is_autocast_enabled('cpu'):   # on a CPU tokens stay in bfloat16 from
            z = z.to(torch.get_autocast_dtype('cpu'))       # layer to layer, which is faster
        return self.drop(z)


class LanguageHead(nn.Module):
    """Tokens (B, N, d) and ids y (B, N) -> logits (B, N, vocab_size) and cross-entropy in nats.

    Where y is -1 there is nothing to predict. This is the head of GPT-2, as in model_aot.py.
    """

    def __init__(self, c, tok_emb):
        super().__init__()
        self.norm = nn.LayerNorm(c.n_embd, bias=c.bias)
        self.weight = tok_emb.weight                        # the output map is the token embedding

    def forward(self, z, y=None):
        logits = self.norm(z) @ self.weight.T               # (B, N, vocab_size)
        loss = None
        if y is not None:
            loss = F.cross_entropy(logits.flatten(0, 1).float(), y.flatten(), ignore_index=-1)
        return logits, loss


# ---- pictures, as in XCiT: from patches to a class ----------------------------------------------
# In the layers with TSSA, the tokens of a picture are its N patches. The classifier puts a class
# token in front of them, so its two layers have N + 1 tokens.

class PatchEmbedding(nn.Module):
    """Pictures, float (B, C, H, W) -> tokens (B, N, d), one for each patch.

    The stem is a sequence of convolutions. Each of them halves height and width, until a patch of
    h x h pixels is one token.
    """

    def __init__(self, c):
        super().__init__()
        H, W = c.image_size
        self.picture_shape = (c.channels, H, W)
        stem = []
        inputs = c.channels
        side = c.patch_size[0]                              # of a patch; a convolution halves it
        while side > 1:
            side = side // 2
            outputs = c.n_embd // side                      # .., d/4, d/2, d
            conv = nn.Conv2d(inputs, outputs, 3, stride=2, padding=1, bias=False)
            stem.append(nn.Sequential(conv, nn.BatchNorm2d(outputs)))
            if side > 1:                                    # another convolution follows
                stem.append(nn.GELU())
            inputs = outputs
        self.stem = nn.Sequential(*stem)
        self.pos = nn.Conv2d(64, c.n_embd, 1)               # 64: 32 for the row, 32 for the column
        self.drop = nn.Dropout(c.dropout)

    def forward(self, x):
        check_pictures(x, self.picture_shape)
        z = self.stem(x)                                    # (B, d, H/h, W/h)
        rows, columns = z.shape[2:]
        grid = sines_and_cosines(rows, columns, x.device)   # (64, H/h, W/h)
        z = z + self.pos(grid)                              # (B, d, H/h, W/h)
        z = z.flatten(2).mT                                 # (B, N, d)
        if z.is_cpu and torch.is_autocast_enabled('cpu'):   # on a CPU tokens stay in bfloat16 from
            z = z.to(torch.get_autocast_dtype('cpu'))       # layer to layer, which is faster
        return self.drop(z)


def attention(q, k, v):
    """Each head averages the values v of the tokens. A token counts more, the more similar its k is
    to q, as in model_crate_mae.py.

    q and the result: (B, K, 1, p), of the class token; k and v: (B, K, N + 1, p).

    There are two forms of one computation: PyTorch's fused kernel, and the lines below it. The
    lines are faster in training in bfloat16 on a CPU, with up to 512 tokens. There they run, and
    everywhere else the kernel runs. If you edit the lines, delete the `if` with the kernel, and
    they run everywhere.
    """
    N = k.size(2)
    lines_are_faster = q.is_cpu and q.requires_grad and q.dtype != torch.float32 and N <= 512
    if not lines_are_faster:
        return F.scaled_dot_product_attention(q, k, v)

    q = q / math.sqrt(q.size(-1))
    scores = q @ k.mT                                       # (B, K, 1, N + 1)
    weights = scores.softmax(dim=-1)                        # what is taken from each token
    return weights @ v                                      # (B, K, 1, p)


class ClassLayer(nn.Module):
    """The class token, the first of tokens (B, N + 1, d), attends to all of them (9).

    Then an MLP follows, for the class token alone. The patches change too, in a way that has no
    reason here but that of XCiT.
    """

    def __init__(self, c):
        super().__init__()
        self.K = c.n_head
        head_dim = c.head_dim or c.n_embd // c.n_head
        self.QKV = linear(c, c.n_embd, 3 * self.K * head_dim)   # query, key and value, stacked
        self.W = linear(c, self.K * head_dim, c.n_embd)
        self.norm1 = layer_norm(c)
        self.gamma = layer_scale(c)
        self.norm2 = layer_norm(c)
        self.mlp = MLP(c)

    def forward(self, z):
        normed = self.norm1(z)                              # (B, N + 1, d)
        q, k, v = self.QKV(normed).chunk(3, dim=2)          # heads side by side: (B, N + 1, K p)
        q = q[:, :1]                                        # of the class token: (B, 1, K p)
        q = q.unflatten(2, (self.K, -1)).transpose(1, 2)    # (B, K, 1, p)
        k = k.unflatten(2, (self.K, -1)).transpose(1, 2)    # (B, K, N + 1, p)
        v = v.unflatten(2, (self.K, -1)).transpose(1, 2)

        heads = attention(q, k, v)                          # (B, K, 1, p)

        heads = heads.transpose(1, 2).flatten(2)            # side by side again: (B, 1, K p)
        cls = self.W(heads)                                 # (B, 1, d)
        # a patch adds its own normed values
        update = torch.cat((cls, normed[:, 1:]), dim=1)     # (B, N + 1, d)
        z = self.norm2(z + self.gamma * update)             # from here on tokens are normalized

        # The patches double. With two layers this changes nothing: the second one reads the patches
        # only through its norm1, and after it only the class token is read.
        cls = self.mlp(z[:, :1])                            # (B, 1, d)
        update = torch.cat((cls, z[:, 1:]), dim=1)          # (B, N + 1, d)
        return z + update


class Classifier(nn.Module):
    """Tokens (B, N, d) and classes y (B,) -> logits (B, num_classes) and cross-entropy in nats."""

    def __init__(self, c):
        super().__init__()
        self.cls = nn.Parameter(torch.empty(1, 1, c.n_embd))
        self.layers = nn.Sequential(ClassLayer(c), ClassLayer(c))
        self.norm = layer_norm(c)
        self.head = nn.Linear(c.n_embd, c.num_classes)
        self.label_smoothing = c.label_smoothing

    def features(self, z):
        cls = self.cls.expand(z.shape[0], -1, -1)           # (B, 1, d)
        z = torch.cat((cls, z), dim=1)                      # (B, N + 1, d)
        z = self.layers(z)                                  # (9): (B, N + 1, d)
        return self.norm(z[:, 0])                           # (B, d)

    def forward(self, z, y=None):
        logits = self.head(self.features(z))                # (B, num_classes)
        loss = None
        if y is not None:
            smoothing = self.label_smoothing if self.training else 0.0
            loss = F.cross_entropy(logits.float(), y, label_smoothing=smoothing)
        return logits, loss


# ---- helpers ------------------------------------------------------------------------------------

def linear(c, inputs, outputs):
    """A linear map. For pictures it has a bias, as in XCiT. For text the setting says so."""
    has_bias = c.bias or c.task == 'image'
    return nn.Linear(inputs, outputs, bias=has_bias)


def layer_norm(c):
    """A LayerNorm, as in XCiT for pictures, and as in GPT-2 for text."""
    if c.task == 'image':
        return nn.LayerNorm(c.n_embd, eps=1e-6)
    return nn.LayerNorm(c.n_embd, bias=c.bias)


def layer_scale(c):
    """A learned scale gamma of each coordinate, (d,)."""
    return nn.Parameter(torch.full((c.n_embd,), c.layer_scale))


def sines_and_cosines(rows, columns, device):
    """Fixed positions of a grid: 32 numbers of the row, 32 of the column, (64, rows, columns)."""
    of_row = waves(rows, device).T                          # (32, rows)
    of_column = waves(columns, device).T                    # (32, columns)
    of_row = of_row.unsqueeze(2).expand(-1, -1, columns)    # (32, rows, columns)
    of_column = of_column.unsqueeze(1).expand(-1, rows, -1)     # (32, rows, columns)
    return torch.cat((of_row, of_column))


def waves(length, device):
    """Places 1 .. length as sines and cosines in turn, of 16 wavelengths: (length, 32)."""
    places = torch.arange(1, length + 1, device=device)
    angles = places / (length + 1e-6) * 2 * math.pi         # up to a full turn: (length,)
    j = torch.arange(32, device=device)
    wavelengths = 10000 ** (j // 2 / 16)                    # each of them twice: (32,)
    angles = angles.unsqueeze(1) / wavelengths              # (length, 32)
    return torch.where(j % 2 == 0, angles.sin(), angles.cos())


def check_pictures(x, shape):
    """Raise ValueError for pictures of another shape, as in model_crate.py."""
    if x.shape[1:] != shape:
        raise ValueError(f'pictures are {tuple(x.shape[1:])}, the network takes {shape}; '
                         'resize them')


def initialize(model):
    """As in GPT-2, weights are N(0, s^2), s = 0.02, and biases are 0.

    W and `down` are N(0, s^2 / (2 L)), because each of them adds to the tokens once in a layer.
    Convolutions start as PyTorch makes them.
    """
    c = model.config
    small_std = 0.02 / math.sqrt(2 * c.n_layer)
    if c.task == 'text':
        nn.init.normal_(model.embed.tok_emb.weight, std=0.02)
        nn.init.normal_(model.embed.pos_emb.weight, std=0.02)
    for layer in model.layers:
        draw(layer.attn.U)
        draw(layer.attn.W, small_std)
        draw(layer.mlp.up)
        draw(layer.mlp.down, small_std)
    if c.task == 'image':
        nn.init.normal_(model.read.cls, std=0.02)
        for layer in model.read.layers:
            draw(layer.QKV)
            draw(layer.W, small_std)
            draw(layer.mlp.up)
            draw(layer.mlp.down, small_std)
        draw(model.read.head)


def draw(module, std=0.02):
    nn.init.normal_(module.weight, std=std)
    if module.bias is not None:
        nn.init.zeros_(module.bias)


def as_pair(size):
    """A number or (height, width) -> (height, width), as in model_crate.py."""
    return (size, size) if isinstance(size, int) else tuple(size)


def check(c):
    """Raise ConfigError if settings do not fit together. Sizes become (height, width)."""
    for name in ('n_layer', 'n_head', 'n_embd', 'channels', 'num_classes', 'block_size',
                 'vocab_size'):
        if getattr(c, name) < 1:
            raise ConfigError(f'{name}={getattr(c, name)} must be at least 1')
    for name in ('dropout', 'label_smoothing'):
        if not 0 <= getattr(c, name) < 1:
            raise ConfigError(f'{name}={getattr(c, name)} must be at least 0 and below 1')
    if c.head_dim < 0:
        raise ConfigError(f'head_dim={c.head_dim} must be at least 0')
    if c.head_dim == 0 and c.n_embd % c.n_head != 0:
        raise ConfigError(f'n_embd={c.n_embd} is not divisible by n_head={c.n_head}; '
                          'change one, or set head_dim')
    if c.image_size:
        c.image_size = as_pair(c.image_size)
        c.patch_size = as_pair(c.patch_size)
        h, w = c.patch_size
        if h != w or h not in (2, 4, 8, 16, 32):
            raise ConfigError(f'patch_size={c.patch_size} must be 2, 4, 8, 16 or 32: '
                              'each convolution halves a picture')
        for pixels in c.image_size:
            if pixels < 1 or pixels % h != 0:
                raise ConfigError(f'image_size={c.image_size} is not divisible by '
                                  f'patch_size={c.patch_size}; choose one that divides both sides')


Network, Config = ToST, ToSTConfig  # what --model=tost trains; see docs/extend.md
