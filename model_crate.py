"""CRATE, the coding-rate transformer: every layer compresses tokens against subspaces, then sparsifies them.

    Yu, Buchanan, Pai, Chu, Wu, Tong, Haeffele, Ma. "White-Box Transformers via Sparse Rate Reduction", NeurIPS 2023.
    The same with twelve authors, "White-Box Transformers via Sparse Rate Reduction: Compression Is All There Is?",
    JMLR 2024, which trains it on text too.

The idea. Good tokens Z maximize the sparse rate reduction (eq. 1), R(Z) - R^c(Z; U) - lambda |Z|_0: spread out as a
whole, compact along each of K learned subspaces, and sparse. A layer improves this objective by two half steps:

    Z^(l+1/2) = Z^l + MSSA(Z^l | U)          compress: a gradient step on the coding rate R^c, eqs. (8) to (12)
    Z^(l+1)   = ISTA(Z^(l+1/2) | D)          sparsify: a proximal-gradient step on a non-negative LASSO, eqs. (16), (17)

    paper     code               meaning
    N         N                  patches of a picture; the sequence has N + 1 tokens, the class token first. Or tokens of a text
    D         P                  numbers in a patch: height x width x 3
    d         d, n_embd          width of a token
    K         K, n_head          subspaces, one per attention head
    p         p, head_dim        dimension of a subspace
    L         n_layer            layers
    Z         z  (B, N + 1, d)   tokens of a batch, one a row; the paper writes d x N, one a column
    U_k       U.weight[k*p:(k+1)*p].T   basis of subspace k, (d, p)
    W         W.weight           output map of eq. (115), (d, K p)
    D         D                  dictionary of a layer, (d, d), applied to tokens as columns: D z
    eta       eta                step size of ISTA
    lambda    lam                weight of sparsity

Where this file departs from the paper's formulas, as its Appendix B.1 and the authors' released code do; the forward
pass equals the released code's to rounding:
  * LayerNorm before each half step: Z^(l+1/2) = Z + MSSA(LN(Z)), Z^(l+1) = ISTA(LN(Z^(l+1/2))). The skip of the
    first goes round the norm, where the published diagram has it after the norm;
  * the softmax is scaled by 1/sqrt(p), which eq. (11) does not show, and the factors of eq. (10) are 1;
  * the output map W is free (eq. 115) and has a bias; `tie_out=True` is eq. (12), W = [U_1 .. U_K];
  * a patch is normalized, mapped, and normalized again before it becomes a token.

Text (`image_size=0`): tokens and positions are embedded, the output map is the token embedding. CRATE-GPT predicts the next
token, and attention is causal: a token is compressed against itself and the past. CRATE-BERT (`causal=False`) fills in tokens
that are hidden by the token [MASK], the first id after the tokenizer's. ISTA works on every token by itself in both.
"""
import math
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint


@dataclass
class CRATEConfig:
    image_size: int | tuple = 224   # pixels, or (height, width), of pictures to classify; 0 reads text
    patch_size: int | tuple = 16    # pixels, or (height, width)
    num_classes: int = 1000         # classes of the classifier
    block_size: int = 1024          # longest sequence of text tokens
    vocab_size: int = 50257         # number of different tokens, [MASK] among them if not causal
    causal: bool = True             # text: predict the next token (CRATE-GPT); false fills in hidden ones (CRATE-BERT)
    n_layer: int = 12               # layers: a compression and a sparsification each
    n_head: int = 6                 # attention heads, one subspace each
    n_embd: int = 384               # width of a token
    head_dim: int = 0               # dimension of a subspace; 0 means n_embd / n_head
    patch_norm: bool = True         # LayerNorm before and after the patch map; false in the encoder of CRATE-MAE
    pool: str = 'cls'               # what is classified: 'cls' the class token, 'mean' the mean of all tokens
    eta: float = 0.1                # step size of ISTA, eq. (17)
    lam: float = 0.1                # weight lambda of sparsity, eq. (16)
    ista: str = 'relu'              # 'relu' eq. (17), 'soft' eqs. (116) and (117), 'mm' majorization-minimization, eq. (92)
    alpha: float = 1.0              # alpha of eq. (92), read when ista='mm'
    tie_out: bool = False           # W = [U_1 .. U_K], eq. (12), instead of a free output map, eq. (115)
    dropout: float = 0.0            # on embeddings, attention weights and the output of MSSA
    label_smoothing: float = 0.0    # share of the target spread over all classes, in training

    def __post_init__(self):
        if self.image_size:
            for name in ('image_size', 'patch_size'):
                size = getattr(self, name)
                setattr(self, name, tuple(size) if isinstance(size, (tuple, list)) else (size, size))
        for name, choices in (('pool', ('cls', 'mean')), ('ista', ('relu', 'soft', 'mm'))):
            if getattr(self, name) not in choices:
                raise ValueError(f"{name}='{getattr(self, name)}' is unknown; choose {' or '.join(choices)}")
        for name in ('num_classes', 'block_size', 'vocab_size', 'n_layer', 'n_head', 'n_embd'):
            if getattr(self, name) < 1:
                raise ValueError(f'{name}={getattr(self, name)} must be at least 1')
        for name in ('dropout', 'label_smoothing'):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f'{name}={getattr(self, name)} must be in [0, 1)')
        if self.image_size and any(i < 1 or p < 1 or i % p for i, p in zip(self.image_size, self.patch_size)):
            raise ValueError(f'image_size={self.image_size} is not divisible by patch_size={self.patch_size}; choose '
                             'a patch_size that divides height and width')
        if self.head_dim < 0:
            raise ValueError(f'head_dim={self.head_dim} must be at least 1, or 0 for n_embd / n_head')
        if not self.head_dim and self.n_embd % self.n_head:
            raise ValueError(f'n_embd={self.n_embd} is not divisible by n_head={self.n_head}; change one, or set '
                             'head_dim')


def patchify(x, patch_size):
    """Pictures (B, C, H, W) to patches (B, N, P), row by row; inside a patch: row, column, channel."""
    (B, C, H, W), (h, w) = x.shape, patch_size
    x = x.reshape(B, C, H // h, h, W // w, w).permute(0, 2, 4, 3, 5, 1)  # (B, H/h, W/w, h, w, C)
    return x.reshape(B, (H // h) * (W // w), h * w * C)


class MSSA(nn.Module):
    """Multi-head subspace self-attention, eqs. (11), (12) and (115)."""

    kv = 1  # tensors that a cache of past tokens holds a layer: key and value are the same

    def __init__(self, c):
        super().__init__()
        self.K, self.p, self.dropout = c.n_head, c.head_dim or c.n_embd // c.n_head, c.dropout
        self.causal = c.causal and not c.image_size
        self.U = nn.Linear(c.n_embd, self.K * self.p, bias=False)  # all U_k^T, one under the other
        one_full_head = self.K == 1 and self.p == c.n_embd         # then the released code has no output map
        self.W = None if c.tie_out or one_full_head else nn.Linear(self.K * self.p, c.n_embd)
        self.tie_out = c.tie_out
        self.drop = nn.Dropout(c.dropout)

    def project(self, z):
        """Tokens (B, N, d) in the coordinates of each subspace, U_k^T Z: (B, K, N, p)."""
        return self.U(z).unflatten(2, (self.K, self.p)).transpose(1, 2)

    def forward(self, z, remember=None):
        w = self.project(z)                                               # U_k^T Z: (B, K, N, p)
        past = w if remember is None else remember(w)[0]                  # with a cache: (B, K, N_past + N, p)
        h = attend(w, past, past, self.dropout * self.training, self.causal)  # SSA(Z | U_k), eq. (11): (B, K, N, p)
        h = h.transpose(1, 2).flatten(2)                                  # heads side by side: (B, N, K p)
        if self.tie_out:
            return self.drop(F.linear(h, self.U.weight.T))                # sum_k U_k SSA_k, eq. (12)
        return self.drop(self.W(h)) if self.W is not None else h          # W [SSA_1; ..; SSA_K], eq. (115)


def attend(q, k, v, dropout=0.0, causal=False):
    """softmax(q k^T / sqrt(p)) v; if causal, query i of the last Nq tokens sees keys up to its own place.

    q (B, K, Nq, p); k, v (B, K, N, p) with N >= Nq; returns (B, K, Nq, p).
    """
    Nq, N = q.size(2), k.size(2)
    if Nq == 1 and causal:  # one new token beside a cache: everything cached is its past
        return F.scaled_dot_product_attention(q, k, v)
    if q.device.type == 'cpu' and q.dtype == torch.bfloat16 and not dropout:
        # In bfloat16 on CPUs the fused kernel is slower than plain matmuls up to several hundred tokens.
        future = torch.full((Nq, N), -torch.inf, dtype=q.dtype).triu(N - Nq + 1) if causal else q.new_zeros(())
        s = torch.baddbmm(future, q.flatten(0, 1), k.flatten(0, 1).mT, alpha=q.size(-1) ** -0.5)
        return (s.softmax(-1) @ v.flatten(0, 1)).view_as(q)
    if Nq == N:
        return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=causal)
    past = torch.ones(Nq, N, dtype=torch.bool, device=q.device).tril(N - Nq)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=past, dropout_p=dropout)


class ISTA(nn.Module):
    """One proximal-gradient step on the non-negative LASSO of eq. (16), started at Z = Z^(l+1/2): eq. (17).

    (It is that step for lambda |Z|_1 + 1/2 |Z^(l+1/2) - D Z|^2; eq. (16) is written without the half.)
    """

    def __init__(self, c):
        super().__init__()
        self.D = nn.Parameter(torch.empty(c.n_embd, c.n_embd))
        self.kind, self.eta, self.lam, self.alpha = c.ista, c.eta, c.lam, c.alpha

    def forward(self, z):
        if self.kind == 'mm':                                             # eq. (92)
            return F.relu((1 + 4 / (9 * (1 + self.alpha))) * F.linear(z, self.D.T) - 4 * self.lam / (9 * self.alpha))
        residual = z - F.linear(z, self.D)                                # Z - D Z: (B, N, d)
        step = z + self.eta * F.linear(residual, self.D.T)                # Z + eta D^* (Z - D Z), two matmuls in all
        if self.kind == 'soft':                                           # eqs. (116) and (117)
            return F.softshrink(step, self.eta * self.lam)
        return F.relu(step - self.eta * self.lam)                         # eq. (17)


class Layer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.norm1, self.mssa = nn.LayerNorm(c.n_embd), MSSA(c)
        self.norm2, self.ista = nn.LayerNorm(c.n_embd), ISTA(c)

    def compress(self, z, remember=None):
        return z + self.mssa(self.norm1(z), remember)  # Z^(l+1/2), eq. (18) left

    def sparsify(self, half):
        return self.ista(self.norm2(half))             # Z^(l+1), eq. (18) right; no skip round it

    def forward(self, z, remember=None):
        return self.sparsify(self.compress(z, remember))


class CRATE(nn.Module):
    """pictures -> tokens -> L layers -> classes; or text -> tokens -> L layers -> the next tokens, or the hidden ones.

    model(x) -> (logits, None); model(x, y) -> (logits, loss), loss in nats a picture or a token.
    """

    LOGITS_AT_ONCE = 2 ** 26  # of text: more logits than this (256 MiB in float32) are never held together

    def __init__(self, config):
        super().__init__()
        c = self.config = config
        if c.image_size:
            (H, W), (h, w) = c.image_size, c.patch_size
            N, P = (H // h) * (W // w), h * w * 3
            self.patch_norm = nn.LayerNorm(P) if c.patch_norm else nn.Identity()
            self.patch = nn.Linear(P, c.n_embd)
            self.token_norm = nn.LayerNorm(c.n_embd) if c.patch_norm else nn.Identity()
            self.cls = nn.Parameter(torch.randn(1, 1, c.n_embd))
            self.pos = nn.Parameter(torch.randn(1, N + 1, c.n_embd))
        else:
            self.tok_emb, self.pos_emb = nn.Embedding(c.vocab_size, c.n_embd), nn.Embedding(c.block_size, c.n_embd)
        self.drop = nn.Dropout(c.dropout)
        self.layers = nn.ModuleList(Layer(c) for _ in range(c.n_layer))
        self.norm = nn.LayerNorm(c.n_embd)
        for layer in self.layers:  # the rest is PyTorch's default, as in the released code
            nn.init.uniform_(layer.ista.D, -math.sqrt(6 / c.n_embd), math.sqrt(6 / c.n_embd))
        if c.image_size:
            self.head = nn.Linear(c.n_embd, c.num_classes)
        else:
            self.head = nn.Linear(c.n_embd, c.vocab_size, bias=False)
            self.head.weight = self.tok_emb.weight
            for table in (self.tok_emb, self.pos_emb):  # as GPT-2
                nn.init.normal_(table.weight, std=0.02)

    def num_params(self):
        """Number of parameters, the tied token embedding once."""
        return sum(t.numel() for t in self.parameters())

    def embed(self, x, first=0):
        """To tokens: pictures (B, 3, H, W) to (B, N + 1, d), the class token first; or token ids (B, N) at positions
        first .. first + N - 1 to (B, N, d)."""
        c = self.config
        if not c.image_size:
            if first + x.size(1) > c.block_size:
                raise ValueError(f'{first + x.size(1)} tokens are more than block_size={c.block_size}; '
                                 'crop the input, or build the model with a larger block_size')
            return self.drop(self.tok_emb(x) + self.pos_emb(torch.arange(first, first + x.size(1), device=x.device)))
        if x.shape[1:] != (3, *c.image_size):
            raise ValueError(f'pictures are {tuple(x.shape[1:])}, the model takes {(3, *c.image_size)}; resize them, '
                             'or build the model with another image_size')
        z = self.token_norm(self.patch(self.patch_norm(patchify(x, c.patch_size))))               # (B, N, d)
        return self.drop(torch.cat((self.cls.expand(len(z), -1, -1), z), 1) + self.pos)           # (B, N + 1, d)

    def encode(self, x):
        """What `embed` takes to tokens after the last layer, of the same shape as before the first."""
        z = self.embed(x)
        for layer in self.layers:
            z = layer(z)
        return z

    def inside(self, x):
        """To look inside, layer by layer: (MSSA, what it is given, LN(Z^l), then Z^(l+1/2) and Z^(l+1)), tokens (B, N, d)."""
        z = self.embed(x)
        for layer in self.layers:
            normed, half = layer.norm1(z), layer.compress(z)
            z = layer.sparsify(half)
            yield layer.mssa, normed, half, z

    def features(self, x):
        """Pictures (B, 3, H, W) to what is classified (B, d)."""
        z = self.encode(x)                                                                        # (B, N + 1, d)
        return self.norm(z[:, 0] if self.config.pool == 'cls' else z.mean(1))

    def forward(self, x, y=None):
        """Pictures: x float (B, 3, H, W), normalized; y int64 (B,). Text: x int64 (B, N); y int64 (B, N), what is to be
        predicted at each token, -1 where nothing is.

        Returns (logits (B, num_classes) or (B, N, vocab_size), loss, None without y). With y and more than LOGITS_AT_ONCE
        logits of text, these are formed chunk by chunk for the loss, and None comes back in their place.
        """
        if self.config.image_size:
            logits, smoothing = self.head(self.features(x)), self.config.label_smoothing * self.training
            return logits, None if y is None else F.cross_entropy(logits.float(), y, label_smoothing=smoothing)
        z = self.norm(self.encode(x))         # (B, N, d)
        if y is None:
            return self.head(z), None
        z, y = z.flatten(0, 1), y.flatten()   # (B N, d), (B N)
        if len(y) * self.config.vocab_size > self.LOGITS_AT_ONCE:
            return None, self.chunked_loss(z, y)
        logits = self.head(z)
        return logits.view(*x.shape, -1), F.cross_entropy(logits.float(), y, ignore_index=-1)

    def chunked_loss(self, z, y):
        """cross_entropy(head(z), y) with only one chunk of logits in memory, formed again in the backward pass."""
        def loss_sum(z, y):
            return F.cross_entropy(self.head(z).float(), y, ignore_index=-1, reduction='sum')
        size = max(1, self.LOGITS_AT_ONCE // self.config.vocab_size)
        parts = [checkpoint(loss_sum, *chunk, use_reentrant=False, preserve_rng_state=False)
                 for chunk in zip(z.split(size), y.split(size))]
        return torch.stack(parts).sum() / (y != -1).sum()

    def generate(self, idx, max_new_tokens, temperature=1.0, top_k=None, top_p=None, stop_token=None, use_cache=True):
        """Continue sequences of tokens, int64 (B, N), as `AoT.generate` does. Raises ValueError if the model is not causal."""
        if self.config.image_size or not self.config.causal:
            raise ValueError('only a causal model of text continues sequences')
        from engine.generate import stream  # here, so that this file alone still trains
        return torch.cat([idx, *stream(self, idx, max_new_tokens, temperature, top_k, top_p, stop_token, use_cache)], dim=1)

    # ---- the authors' weights -------------------------------------------------------------------------------------

    def official_names(self):
        """{our tensor name: the released code's}, in the order of its state dict."""
        names = {'pos': 'pos_embedding', 'cls': 'cls_token'}
        for ours, theirs in (('patch_norm', 1), ('patch', 2), ('token_norm', 3)):
            names |= {f'{ours}.{t}': f'to_patch_embedding.{theirs}.{t}' for t in ('weight', 'bias')}
        for l in range(self.config.n_layer):
            a, b = f'transformer.layers.{l}.0', f'transformer.layers.{l}.1'
            names |= {f'layers.{l}.norm1.{t}': f'{a}.norm.{t}' for t in ('weight', 'bias')}
            names |= {f'layers.{l}.mssa.U.weight': f'{a}.fn.qkv.weight'}
            names |= {f'layers.{l}.mssa.W.{t}': f'{a}.fn.to_out.0.{t}' for t in ('weight', 'bias')}
            names |= {f'layers.{l}.norm2.{t}': f'{b}.norm.{t}' for t in ('weight', 'bias')}
            names |= {f'layers.{l}.ista.D': f'{b}.fn.weight'}
        for ours, theirs in (('norm', 0), ('head', 1)):
            names |= {f'{ours}.{t}': f'mlp_head.{theirs}.{t}' for t in ('weight', 'bias')}
        return {k: names[k] for k in names if k in self.state_dict()}

    def to_official(self):
        """This model's weights as the released code's state dict."""
        weights = self.state_dict()
        return {theirs: weights[ours] for ours, theirs in self.official_names().items()}

    @classmethod
    def from_official(cls, state_dict, *, n_head, image_size, patch_size, **overrides):
        """A model from the released code's weights: a state dict, or a checkpoint that nests one under `state_dict`
        or `model`, with or without the `module.` prefix of data-parallel training.

        Widths, depth and classes are read off the tensors; overrides are other settings, such as pool or eta.
        Raises ValueError that names the tensors which are missing, unexpected or of a wrong shape.
        """
        from engine import official  # here, so that this file stands alone
        sd, first = official.unnested(state_dict), 'transformer.layers.0.0.fn.qkv.weight'
        if not {first, 'mlp_head.1.weight', 'pos_embedding'} <= sd.keys():
            raise ValueError(f'not a CRATE state dict: no {first}, mlp_head.1.weight or pos_embedding among '
                             f'{sorted(sd)[:4]} ..')
        (inner, n_embd), num_classes = sd[first].shape, len(sd['mlp_head.1.weight'])
        sizes = dict(image_size=image_size, patch_size=patch_size, num_classes=num_classes, n_head=n_head, n_embd=n_embd,
                     n_layer=official.depth(sd, 'transformer.layers'), head_dim=inner // n_head)
        return official.fill(cls(CRATEConfig(**sizes | overrides)), sd)
