"""CRATE-alpha: CRATE with a richer sparse coding step, which scales to large networks and data.

    Jinrui Yang, Xianhang Li, Druv Pai, Yuyin Zhou, Yi Ma, Yaodong Yu, Cihang Xie. "Scaling
    White-Box Transformers for Vision", NeurIPS 2024, arXiv:2405.20299.

The idea. A layer of CRATE (`model_crate.py`) compresses the tokens, then makes them sparse.
CRATE-alpha keeps the first step. Its second step computes sparse codes A of the tokens in a
dictionary D, and decodes them with a dictionary D1:

    Z^(l+1/2) = Z^l + MSSA(Z^l | U)      compress, as in CRATE
    Z^(l+1)   = Z^(l+1/2) + D1 A         sparsify; A are the codes of X = LayerNorm(Z^(l+1/2))

The codes A approximate the solution of a non-negative LASSO:

    minimize lambda |A|_1 + 1/2 |X - D A|^2 over all A >= 0

They are the result of two proximal-gradient steps, the first from A = 0. As in CRATE, a LayerNorm
stands before MSSA too.

CRATE makes one step from A = X with a square D, and its codes become the tokens. In CRATE-alpha
they are decoded, and there are three more changes, each of which is a setting:
  * D is overcomplete: it has more columns, which are called atoms, than rows (`atoms`).
  * D1 is learned apart from D. With `decoupled=False` D decodes the codes too.
  * What is decoded is added to the tokens. With `skip=False` it takes their place.

    paper     code               meaning
    N         N                  tokens of a sequence; of a picture: its class token and its patches
    d         n_embd             width of a token
    m         atoms * n_embd     number of atoms
    K         n_head             number of subspaces, one per attention head
    p         head_dim           dimension of a subspace
    L         n_layer            number of layers
    Z         z  (B, N, d)       a batch of tokens, one per row; the paper has one per column
    U_k       U.weight[k*p:(k+1)*p].T   basis of subspace k, (d, p)
    X         x  (B, N, d)       the tokens that are coded
    A         a  (B, N, m)       their sparse codes
    D, D1     D, D1  (d, m)      the dictionary that codes, and the one that decodes
    eta       eta                step size of sparse coding
    lambda    lam                weight of sparsity

Tokens are rows in this file. F.linear(a, D) is the paper's D a, and F.linear(x, D.T) its D^T x.
The scores of attention are divided by sqrt(p), as in CRATE.

The outputs are those of the authors' inference code (github.com/UCSC-VLAA/CRATE-alpha). There, as
here, a network of pictures differs from CRATE in three more places, which are no settings:
  * No LayerNorms stand around the patch map.
  * The output map W of attention has no bias.
  * The LayerNorms of layers have eps 1e-6, that of the classifier has 1e-5.
Weights start as in the authors' training code, which is another one, in JAX. (There, eps is 1e-6 in
the classifier too.)

Text (`image_size=0`). The network predicts the next token, so a token takes nothing from later
ones. With decoupled=False and skip=False this is CRATE-LM:

    Hao Bai, Yi Ma. "Improving Neuron-level Interpretability with White-box Language Models",
    CPAL 2025, arXiv:2410.16443.

The outputs are those of its code (github.com/crate-lm/crate-lm). As in CRATE on text
(model_crate.py), W has a bias, the map to the vocabulary is the token embedding, and all weights
except D and D1 start as in GPT-2. Before that map stands a LayerNorm, which CRATE does not have.
All LayerNorms have eps 1e-5. With decoupled=True and skip=True, text goes through the layers of
CRATE-alpha.
"""
import math
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


class ConfigError(ValueError):
    """Settings that make no sense. Programs print it in one line, and no traceback."""


@dataclass
class CRATEAlphaConfig:
    n_layer: int = 12               # layers: a compression and a sparsification each
    n_head: int = 12                # attention heads, one subspace each
    n_embd: int = 768               # width of a token
    head_dim: int = 0               # dimension of a subspace; 0 means n_embd / n_head
    eta: float = 0.1                # step size of sparse coding
    lam: float = 0.1                # weight lambda of sparsity
    steps: int = 2                  # proximal-gradient steps, the first from A = 0
    atoms: int = 4                  # number of atoms, in multiples of n_embd; 1: not overcomplete
    decoupled: bool = True          # decode with a dictionary D1 of its own, instead of D
    skip: bool = True               # add what is decoded to the tokens, instead of replacing them
    dropout: float = 0.0            # on embeddings, attention weights and what attention adds
    image_size: int | tuple = 224   # pictures: pixels, or (height, width); 0 reads text
    patch_size: int | tuple = 16    # pictures: pixels of a patch, or (height, width)
    channels: int = 3               # pictures: 3 for colour, 1 for grey
    num_classes: int = 1000         # pictures: number of classes
    pool: str = 'cls'               # pictures: classify 'cls', the class token, or 'mean' of tokens
    label_smoothing: float = 0.0    # pictures: share of the target spread over all classes
    block_size: int = 1024          # text: longest sequence of tokens
    vocab_size: int = 50257         # text: number of different tokens

    def __post_init__(self):
        check(self)

    @property
    def task(self):
        if self.image_size:
            return 'image'
        return 'text'


# ---- the operators ------------------------------------------------------------------------------

def attention(q, k, v, dropout_p=0.0, is_causal=False):
    """Each head averages the values v of the tokens. A token counts more, the more similar its k is
    to q, as in model_crate.py.

    q and the result: (B, K, N, p). k and v too; but where a network writes text, q is of the newest
    token alone, N = 1, and k and v are of all tokens so far.

    There are two forms of one computation: PyTorch's fused kernel, and the lines below it. The
    lines are faster in training in bfloat16 on a CPU, with up to 512 tokens. There they run, and
    everywhere else the kernel runs. If you edit the lines, delete the `if` with the kernel, and
    they run everywhere.
    """
    N = q.size(2)
    if k.size(2) > N:                                       # the newest token takes from all
        is_causal = False

    lines_are_faster = q.is_cpu and q.requires_grad and q.dtype != torch.float32 and N <= 512
    if not lines_are_faster:
        return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout_p, is_causal=is_causal)

    q = q / math.sqrt(q.size(-1))
    scores = q @ k.mT                                       # of all pairs of tokens: (B, K, N, N)
    if is_causal:
        later = q.new_full((N, N), -math.inf).triu(1)       # -inf above the diagonal, else 0
        scores = scores + later                             # a token takes nothing from later ones
    weights = scores.softmax(dim=-1)                        # row n: what token n takes from each
    weights = F.dropout(weights, dropout_p)                 # the caller says 0 outside training
    return weights @ v                                      # (B, K, N, p)


class MSSA(nn.Module):
    """Multi-head subspace self-attention, eqs. (11) and (115) of the CRATE paper.

    Head k projects the tokens onto subspace k, and computes for each projection an average over the
    projections that are similar to it. Query, key and value are all the same projection.
    """

    def __init__(self, c):
        super().__init__()
        is_text = c.task == 'text'
        self.K = c.n_head
        head_dim = c.head_dim or c.n_embd // c.n_head
        self.U = nn.Linear(c.n_embd, self.K * head_dim, bias=False)     # U_1^T .. U_K^T, stacked
        one_full_head = self.K == 1 and head_dim == c.n_embd
        if one_full_head and not is_text:                   # the authors have no W then
            self.W = None
        else:
            self.W = nn.Linear(self.K * head_dim, c.n_embd, bias=is_text)
        self.drop = nn.Dropout(c.dropout)
        self.dropout = c.dropout
        self.is_causal = is_text
        self.past = None                                    # a Past while text is written

    def forward(self, z):
        proj = self.U(z)                                    # U_1^T z, .. in a row: (B, N, K p)
        proj = proj.unflatten(2, (self.K, -1))              # cut into heads: (B, N, K, p)
        proj = proj.transpose(1, 2).contiguous()            # heads first, in memory: (B, K, N, p)
        all_proj = self.past.append('proj', proj) if self.past else proj    # of all tokens

        # SSA_k = U_k^T Z softmax((U_k^T Z)^T U_k^T Z) of each head k, eq. (11): (B, K, N, p)
        dropout = self.dropout if self.training else 0.0
        ssa = attention(proj, all_proj, all_proj, dropout_p=dropout, is_causal=self.is_causal)

        ssa = ssa.transpose(1, 2).flatten(2)                # heads in a row again: (B, N, K p)
        if self.W is None:                                  # one full head
            return ssa
        return self.drop(self.W(ssa))                       # W [SSA_1; ..], eq. (115): (B, N, d)


class ISTA(nn.Module):
    """Sparse codes of the tokens in the dictionary D, decoded with the dictionary D1.

    The iterative shrinkage-thresholding algorithm makes proximal-gradient steps on the non-negative
    LASSO. From a code a of a token x, one step leads to relu(a + eta D^T (x - D a) - eta lambda).
    """

    matrices = ('D', 'D1')          # for weight decay and Muon, see engine/optim.py

    def __init__(self, c):
        super().__init__()
        n_atoms = c.atoms * c.n_embd                        # m
        self.D = nn.Parameter(torch.empty(c.n_embd, n_atoms))
        if c.decoupled:
            self.D1 = nn.Parameter(torch.empty(c.n_embd, n_atoms))
        else:
            self.D1 = None
        self.steps = c.steps
        self.eta = c.eta
        self.lam = c.lam

    def forward(self, x):
        return self.decode(self.code(x))                    # (B, N, d)

    def code(self, x):
        """Tokens (B, N, d) -> their sparse codes (B, N, m)."""
        threshold = self.eta * self.lam
        downhill = F.linear(x, self.D.T)                    # D^T x, the negative gradient at 0
        a = F.relu(self.eta * downhill - threshold)         # the first step: (B, N, m)
        for _ in range(self.steps - 1):
            error = x - F.linear(a, self.D)                 # x - D a: (B, N, d)
            downhill = F.linear(error, self.D.T)            # D^T (x - D a), the negative gradient
            a = F.relu(a + self.eta * downhill - threshold)     # the next step: (B, N, m)
        return a

    def decode(self, a):
        """Sparse codes (B, N, m) -> tokens (B, N, d)."""
        if self.D1 is None:
            return F.linear(a, self.D)                      # D a: (B, N, d)
        return F.linear(a, self.D1)                         # D1 a: (B, N, d)


class Layer(nn.Module):
    """Compress, then sparsify."""

    def __init__(self, c):
        super().__init__()
        eps = 1e-6 if c.task == 'image' else 1e-5
        self.norm1 = nn.LayerNorm(c.n_embd, eps=eps)
        self.attn = MSSA(c)
        self.norm2 = nn.LayerNorm(c.n_embd, eps=eps)
        self.ista = ISTA(c)
        self.skip = c.skip

    def forward(self, z):
        z = z + self.attn(self.norm1(z))                    # compress: Z^(l+1/2)
        decoded = self.ista(self.norm2(z))                  # sparsify: D1 A
        if self.skip:
            return z + decoded                              # Z^(l+1)
        return decoded


# ---- the network --------------------------------------------------------------------------------

class CRATEAlpha(nn.Module):
    """model(x) -> (logits, None), and model(x, y) -> (logits, loss).

    Pictures: x float (B, C, H, W), classes y int64 (B,), logits (B, num_classes).
    Text: x token ids int64 (B, N), y the next ids (B, N), logits (B, N, vocab_size).
    """

    def __init__(self, config):
        super().__init__()
        self.config = config
        if config.task == 'image':
            self.embed = PatchEmbedding(config)
        elif config.task == 'text':
            self.embed = TokenEmbedding(config)
        else:
            raise NotImplementedError(f"CRATE-alpha has no embedding for the task '{config.task}'")
        self.layers = nn.Sequential(*[Layer(config) for _ in range(config.n_layer)])
        if config.task == 'image':
            self.read = Classifier(config)
        else:
            self.read = LanguageHead(config, self.embed.tok_emb)
        initialize(self)

    def forward(self, x, y=None):
        z = self.embed(x)                                   # (B, N, d)
        for layer in self.layers:
            z = layer(z)                                    # compress and sparsify: (B, N, d)
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
        from weights.official import to_crate_alpha
        return to_crate_alpha(self)

    @classmethod
    def from_official(cls, state_dict, *, n_head, image_size=0, patch_size=16, **settings):
        """A network with weights of the authors' code. Without an image_size they are CRATE-LM's.

        Other sizes are read off the tensors. CRATE-LM gets decoupled=False and skip=False.
        """
        from weights.official import from_crate_alpha
        return from_crate_alpha(cls, CRATEAlphaConfig, state_dict, n_head=n_head,
                                image_size=image_size, patch_size=patch_size, **settings)


# ---- pictures: from patches to a class ----------------------------------------------------------

class PatchEmbedding(nn.Module):
    """Pictures, float (B, C, H, W) -> tokens (B, N, d), the class token first."""

    def __init__(self, c):
        super().__init__()
        H, W = c.image_size
        h, w = c.patch_size
        n_patches = (H // h) * (W // w)                     # N - 1
        self.picture_shape = (c.channels, H, W)
        self.patch = nn.Conv2d(c.channels, c.n_embd, (h, w), stride=(h, w))
        self.cls = nn.Parameter(torch.empty(1, 1, c.n_embd))
        self.pos = nn.Parameter(torch.empty(1, 1 + n_patches, c.n_embd))
        self.drop = nn.Dropout(c.dropout)

    def forward(self, x):
        check_pictures(x, self.picture_shape)
        z = self.patch(x)                                   # (B, d, H/h, W/w)
        z = z.flatten(2).mT                                 # (B, N - 1, d)
        cls = self.cls.expand(z.shape[0], -1, -1)           # (B, 1, d)
        z = torch.cat((cls, z), dim=1)                      # (B, N, d)
        z = z + self.pos
        if z.is_cpu and torch.is_autocast_enabled('cpu'):   # on a CPU tokens stay in bfloat16 from
            z = z.to(torch.get_autocast_dtype('cpu'))       # layer to layer, which is faster
        return self.drop(z)


class Classifier(nn.Module):
    """Tokens (B, N, d) and classes y (B,) -> logits (B, num_classes) and cross-entropy in nats,
    as in model_crate.py."""

    def __init__(self, c):
        super().__init__()
        self.pool = c.pool
        self.label_smoothing = c.label_smoothing
        self.norm = nn.LayerNorm(c.n_embd)
        self.head = nn.Linear(c.n_embd, c.num_classes)

    def features(self, z):
        z = z[:, 0] if self.pool == 'cls' else z.mean(dim=1)    # (B, d)
        return self.norm(z)

    def forward(self, z, y=None):
        logits = self.head(self.features(z))                # (B, num_classes)
        loss = None
        if y is not None:
            smoothing = self.label_smoothing if self.training else 0.0
            loss = F.cross_entropy(logits.float(), y, label_smoothing=smoothing)
        return logits, loss


# ---- text: from tokens to the next tokens -------------------------------------------------------

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

    Where y is -1 there is nothing to predict.
    """

    def __init__(self, c, tok_emb):
        super().__init__()
        self.norm = nn.LayerNorm(c.n_embd)
        self.head = nn.Linear(c.n_embd, c.vocab_size, bias=False)
        self.head.weight = tok_emb.weight                   # the output map is the token embedding

    def forward(self, z, y=None):
        logits = self.head(self.norm(z))                    # (B, N, vocab_size)
        loss = None
        if y is not None:
            loss = F.cross_entropy(logits.flatten(0, 1).float(), y.flatten(), ignore_index=-1)
        return logits, loss


# ---- helpers ------------------------------------------------------------------------------------

def check_pictures(x, shape):
    """Raise ValueError for pictures of another shape, as in model_crate.py."""
    if x.shape[1:] != shape:
        raise ValueError(f'pictures are {tuple(x.shape[1:])}, the network takes {shape}; '
                         'resize them')


def initialize(model):
    """As in the authors' code, D and D1 are uniform between -sqrt(6/d) and sqrt(6/d).
    The patch map is uniform between -sqrt(6/P) and sqrt(6/P), where P is how many numbers a patch
    has.

    The class token has a standard deviation of 1e-6. Embeddings, positions, U, W and the classifier
    are N(0, s^2) with s = 0.02. Biases are 0. In a network of text W is N(0, s^2 / (2 L)), as in
    GPT-2.
    """
    c = model.config
    embed = model.embed
    if c.task == 'image':
        std_of_W = 0.02
        patch_dim = embed.patch.weight[0].numel()           # P
        patch_bound = math.sqrt(6 / patch_dim)
        nn.init.normal_(embed.cls, std=1e-6)
        nn.init.normal_(embed.pos, std=0.02)
        nn.init.uniform_(embed.patch.weight, -patch_bound, patch_bound)
        nn.init.zeros_(embed.patch.bias)
    else:
        std_of_W = 0.02 / math.sqrt(2 * c.n_layer)
        nn.init.normal_(embed.tok_emb.weight, std=0.02)
        nn.init.normal_(embed.pos_emb.weight, std=0.02)

    bound = math.sqrt(6 / c.n_embd)
    for layer in model.layers:
        draw(layer.attn.U)
        if layer.attn.W is not None:
            draw(layer.attn.W, std_of_W)
        nn.init.uniform_(layer.ista.D, -bound, bound)
        if layer.ista.D1 is not None:
            nn.init.uniform_(layer.ista.D1, -bound, bound)
    if c.task == 'image':
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
    if c.pool not in ('cls', 'mean'):
        raise ConfigError(f"pool='{c.pool}' is unknown; choose cls or mean")
    for name in ('n_layer', 'n_head', 'n_embd', 'steps', 'atoms', 'channels', 'num_classes',
                 'block_size', 'vocab_size'):
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
        for pixels, patch in zip(c.image_size, c.patch_size):
            if pixels < 1 or patch < 1 or pixels % patch != 0:
                raise ConfigError(f'image_size={c.image_size} is not divisible by '
                                  f'patch_size={c.patch_size}; choose one that divides both sides')


Network, Config = CRATEAlpha, CRATEAlphaConfig  # what --model=crate_alpha trains: docs/extend.md
