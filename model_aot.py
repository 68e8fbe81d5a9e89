"""AoT, the attention-only transformer: every layer is one denoising step and nothing else.

    Wang, Lu, Yu, Pai, Qu, Ma. "Attention-Only Transformers via Unrolled Subspace Denoising", ICML 2025.

The idea. Suppose the tokens z_1 .. z_N are noisy draws from K low-dimensional subspaces with bases
U_1 .. U_K (Definition 1). A token is cleaned by projecting it onto each subspace and replacing what is
found there by an average over the tokens that look alike there. That is multi-head subspace self-attention
(MSSA, eq. 4). One gradient-like step with it (eq. 3) is one layer; the network is L such steps, each with
its own learned subspaces. Query, key and value are the same projection, and there is no MLP.

    paper   code              meaning
    N       N, block_size     tokens in a sequence (text: at most block_size; pictures: patches, and the class token first)
    d       d, n_embd         width of a token
    K       K, n_head         subspaces, one per attention head
    p       p, head_dim       dimension of a subspace
    L       n_layer           layers = denoising steps
    Z       z  (B, N, d)      tokens of a batch, one a row; the paper writes d x N, one a column
    U_k     U.weight[k*p:(k+1)*p].T   basis of subspace k, (d, p)
    W^O     W.weight          output map, (d, K p)
    eta     eta               step size of eq. (3)
    phi     softmax           membership of tokens in a subspace

The same file holds the two networks that the paper compares with: `attn='mhsa'` frees query, key and value
(eq. 5), and `attn='mhsa', mlp=True` is exactly GPT-2.

Where this file departs from the paper's formulas, as the authors' experiments do:
  * LayerNorm before each MSSA (their Figure 3 allows it) and once after the last layer;
  * the softmax is scaled by 1/sqrt(p), which eq. (4) does not show;
  * the output map W is free, and eta is absorbed in it. `tie_out=True` is the derivation itself:
    W = eta [U_1 .. U_K]. The scale 1/sqrt(p) stays; it is eq. (4) for bases U_k p^(-1/4) and step eta sqrt(p).
  * text: attention is causal, a token sees itself and the past;
  * pictures (section 4.1, `image_size` above 0): patches become tokens as in CRATE, and so does their classifier; no mask;
  * in-context regression (section 4.2.2, `n_dims` above 0): a prompt x_1, g(x_1), x_2, g(x_2), .. is two tokens an example,
    causal; what is predicted of g(x_i) is read at x_i.
"""
import math
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint


@dataclass
class AoTConfig:
    block_size: int = 1024      # longest sequence of tokens
    vocab_size: int = 50257     # number of different tokens
    n_layer: int = 12           # layers, each one step of eq. (3)
    n_head: int = 12            # attention heads, one subspace each
    n_embd: int = 768           # width of a token
    head_dim: int = 0           # dimension of a subspace; 0 means n_embd / n_head
    attn: str = 'mssa'          # 'mssa': one projection for query, key, value (eq. 4); 'mhsa': three (eq. 5)
    mlp: bool = False           # a GPT-2 MLP after each attention (with attn='mhsa' the model is GPT-2)
    gelu: str = 'none'          # approximation of the MLP's GELU: 'none' as nanoGPT, or 'tanh' as OpenAI trained GPT-2
    tie_out: bool = False       # W = eta [U_1 .. U_K], the derivation itself, instead of a free output map
    eta: float = 1.0            # step size of eq. (3), read when tie_out is true
    dropout: float = 0.0        # on embeddings, attention weights and what each step adds
    bias: bool = False          # biases in linear maps and LayerNorms of the layers (GPT-2 has them)
    image_size: int | tuple = 0     # pixels, or (height, width), of pictures to classify; 0 reads text
    patch_size: int | tuple = 16    # pixels, or (height, width)
    num_classes: int = 1000         # classes of the classifier
    pool: str = 'cls'               # what is classified: 'cls' the class token, 'mean' the mean of all tokens
    label_smoothing: float = 0.0    # share of the target spread over all classes, in training
    n_dims: int = 0                 # numbers in a vector x of in-context regression, two tokens an example; 0 reads text

    def __post_init__(self):
        if self.attn not in ('mssa', 'mhsa'):
            raise ValueError(f"attn='{self.attn}' is unknown; choose attn='mssa' or attn='mhsa'")
        if self.gelu not in ('none', 'tanh'):
            raise ValueError(f"gelu='{self.gelu}' is unknown; choose gelu='none' or gelu='tanh'")
        for name in ('block_size', 'vocab_size', 'n_layer', 'n_head', 'n_embd', 'num_classes'):
            if getattr(self, name) < 1:
                raise ValueError(f'{name}={getattr(self, name)} must be at least 1')
        if self.head_dim < 0:
            raise ValueError(f'head_dim={self.head_dim} must be at least 1, or 0 for n_embd / n_head')
        if not self.head_dim and self.n_embd % self.n_head:
            fits = [h for h in range(1, self.n_embd + 1) if self.n_embd % h == 0]
            near = min(fits, key=lambda h: abs(h - self.n_head))
            raise ValueError(f'n_embd={self.n_embd} is not divisible by n_head={self.n_head}; '
                             f'try n_head={near}, or set head_dim')
        if self.tie_out and self.attn != 'mssa':
            raise ValueError("tie_out=True needs attn='mssa': only there is the projection a basis to tie W to")
        for name in ('dropout', 'label_smoothing'):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f'{name}={getattr(self, name)} must be in [0, 1)')
        if self.n_dims < 0:
            raise ValueError(f'n_dims={self.n_dims} must be at least 1, or 0 for text and pictures')
        if self.n_dims and self.image_size:
            raise ValueError(f'n_dims={self.n_dims} is for functions, image_size={self.image_size} for pictures; leave one out')
        if self.image_size:
            for name in ('image_size', 'patch_size'):
                size = getattr(self, name)
                setattr(self, name, tuple(size) if isinstance(size, (tuple, list)) else (size, size))
            if self.pool not in ('cls', 'mean'):
                raise ValueError(f"pool='{self.pool}' is unknown; choose cls or mean")
            if any(i < 1 or p < 1 or i % p for i, p in zip(self.image_size, self.patch_size)):
                raise ValueError(f'image_size={self.image_size} is not divisible by patch_size={self.patch_size}; choose '
                                 'a patch_size that divides height and width')


def attend(q, k, v, dropout=0.0, causal=True):
    """softmax(q k^T / sqrt(p)) v; if causal, query i of the last Nq tokens sees keys up to its own place.

    q (B, K, Nq, p); k, v (B, K, N, p) with N >= Nq; returns (B, K, Nq, p).
    """
    Nq, N = q.size(2), k.size(2)
    if Nq == 1 and causal:  # one new token beside a cache: everything cached is its past
        return F.scaled_dot_product_attention(q, k, v)
    if q.device.type == 'cpu' and q.dtype == torch.bfloat16 and not dropout:
        # In bfloat16 on a CPU with AVX512-BF16 the fused kernel took 2 to 7 times as long as these matmuls at 64 to 256
        # tokens, forward and backward, and as long at 1024. In float32 it is the faster one.
        future = torch.full((Nq, N), -torch.inf, dtype=q.dtype).triu(N - Nq + 1) if causal else q.new_zeros(())
        s = torch.baddbmm(future, q.flatten(0, 1), k.flatten(0, 1).mT, alpha=q.size(-1) ** -0.5)
        return (s.softmax(-1) @ v.flatten(0, 1)).view_as(q)
    if Nq == N:
        return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=causal)
    past = torch.ones(Nq, N, dtype=torch.bool, device=q.device).tril(N - Nq)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=past, dropout_p=dropout)


class MSSA(nn.Module):
    """Multi-head subspace self-attention, eq. (4): sum_k U_k (U_k^T Z) phi((U_k^T Z)^T (U_k^T Z))."""

    kv = 1  # tensors that a cache of past tokens holds a layer: key and value are the same

    def __init__(self, c):
        super().__init__()
        self.K, self.p = c.n_head, c.head_dim or c.n_embd // c.n_head
        self.dropout, self.eta, self.causal = c.dropout, c.eta, not c.image_size
        self.U = nn.Linear(c.n_embd, self.K * self.p, bias=c.bias)  # all U_k^T, one under the other
        self.W = None if c.tie_out else nn.Linear(self.K * self.p, c.n_embd, bias=c.bias)

    def project(self, z):
        """Tokens (B, N, d) in the coordinates of each subspace, U_k^T Z: (B, K, N, p)."""
        return self.U(z).unflatten(2, (self.K, self.p)).transpose(1, 2)

    def forward(self, z, remember=None):
        w = self.project(z)                                       # U_k^T Z of eq. (4): (B, K, N, p)
        past = w if remember is None else remember(w)[0]          # with a cache: (B, K, N_past + N, p)
        h = attend(w, past, past, self.dropout * self.training, self.causal)  # (U_k^T Z) phi(..) of eq. (4): (B, K, N, p)
        h = h.transpose(1, 2).flatten(2)                          # heads side by side: (B, N, K p)
        if self.W is None:
            return F.linear(h, self.eta * self.U.weight.T)        # eta sum_k U_k head_k, eqs. (3) and (4)
        return self.W(h)                                          # W [head_1; ..; head_K], as eq. (5)


class MHSA(nn.Module):
    """Multi-head self-attention, eq. (5): query, key and value each have their own projection."""

    kv = 2  # a cache holds keys and values

    def __init__(self, c):
        super().__init__()
        self.K, self.p = c.n_head, c.head_dim or c.n_embd // c.n_head
        self.dropout, self.causal = c.dropout, not c.image_size
        self.QKV = nn.Linear(c.n_embd, 3 * self.K * self.p, bias=c.bias)  # one matmul for the three
        self.W = nn.Linear(self.K * self.p, c.n_embd, bias=c.bias)

    def project(self, z):
        """Queries, keys and values of tokens (B, N, d): (3, B, K, N, p)."""
        return self.QKV(z).unflatten(2, (3, self.K, self.p)).permute(2, 0, 3, 1, 4)

    def forward(self, z, remember=None):
        q, k, v = self.project(z)                                 # each (B, K, N, p)
        if remember is not None:
            k, v = remember(k, v)                                 # (B, K, N_past + N, p)
        h = attend(q, k, v, self.dropout * self.training, self.causal)  # (B, K, N, p)
        return self.W(h.transpose(1, 2).flatten(2))               # (B, N, d)


class MLP(nn.Module):
    """GPT-2's MLP, the part that AoT shows it can do without."""

    def __init__(self, c):
        super().__init__()
        self.up = nn.Linear(c.n_embd, 4 * c.n_embd, bias=c.bias)
        self.down = nn.Linear(4 * c.n_embd, c.n_embd, bias=c.bias)
        self.gelu = c.gelu

    def forward(self, z):
        return self.down(F.gelu(self.up(z), approximate=self.gelu))  # (B, N, d)


class Layer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.norm = nn.LayerNorm(c.n_embd, bias=c.bias)
        self.attn = MSSA(c) if c.attn == 'mssa' else MHSA(c)
        self.drop = nn.Dropout(c.dropout)
        if c.mlp:
            self.norm_mlp = nn.LayerNorm(c.n_embd, bias=c.bias)
            self.mlp = MLP(c)

    def denoise(self, z, remember=None):
        return z + self.drop(self.attn(self.norm(z), remember))  # Z^(l+1) = Z^(l) + eta MSSA(Z^(l)), eq. (3)

    def transform(self, half):
        return half + self.drop(self.mlp(self.norm_mlp(half))) if hasattr(self, 'mlp') else half

    def forward(self, z, remember=None):
        return self.transform(self.denoise(z, remember))


def patchify(x, patch_size):
    """Pictures (B, C, H, W) to patches (B, N, P), row by row; inside a patch: row, column, channel."""
    (B, C, H, W), (h, w) = x.shape, patch_size
    x = x.reshape(B, C, H // h, h, W // w, w).permute(0, 2, 4, 3, 5, 1)  # (B, H/h, W/w, h, w, C)
    return x.reshape(B, (H // h) * (W // w), h * w * C)


class AoT(nn.Module):
    """tokens -> L denoising steps -> next-token logits; pictures -> the same -> classes; or examples (x, g(x)) -> the same
    -> predictions of g.

    model(x) -> (logits, None); model(x, y) -> (logits, loss), loss in nats a token or a picture, or the squared error.
    """

    LOGITS_AT_ONCE = 2 ** 26  # more logits than this (256 MiB in float32) are never held together

    def __init__(self, config):
        super().__init__()
        c = self.config = config
        if c.image_size:  # CRATE's preprocessing and head
            (H, W), (h, w) = c.image_size, c.patch_size
            N, P = (H // h) * (W // w), h * w * 3
            self.patch_norm, self.patch, self.token_norm = nn.LayerNorm(P), nn.Linear(P, c.n_embd), nn.LayerNorm(c.n_embd)
            self.cls = nn.Parameter(torch.randn(1, 1, c.n_embd))
            self.pos = nn.Parameter(torch.randn(1, N + 1, c.n_embd))
            self.classifier = nn.Linear(c.n_embd, c.num_classes)
        elif c.n_dims:
            self.read_in, self.read_out = nn.Linear(c.n_dims, c.n_embd), nn.Linear(c.n_embd, 1)
            self.pos_emb = nn.Embedding(c.block_size, c.n_embd)
        else:
            self.tok_emb = nn.Embedding(c.vocab_size, c.n_embd)
            self.pos_emb = nn.Embedding(c.block_size, c.n_embd)
        self.drop = nn.Dropout(c.dropout)
        self.layers = nn.ModuleList(Layer(c) for _ in range(c.n_layer))
        self.norm = nn.LayerNorm(c.n_embd, bias=c.bias)
        self.apply(self._init)

    def _init(self, module):
        """GPT-2's initialization: N(0, 0.02^2), and smaller by sqrt(number of residual additions) for the maps
        that write to the residual stream: one addition a layer here, two with an MLP."""
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)
            if getattr(module, 'bias', None) is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, Layer):  # apply() visits a layer after what it holds
            for out in (module.attn.W, module.mlp.down if hasattr(module, 'mlp') else None):
                if out is not None:
                    nn.init.normal_(out.weight, std=0.02 / math.sqrt(self.config.n_layer * (1 + self.config.mlp)))

    def num_params(self, positions=True):
        """Number of parameters, the tied token embedding once; the papers' counts for text leave positions out."""
        table = self.pos if self.config.image_size else self.pos_emb.weight
        return sum(t.numel() for t in self.parameters()) - (0 if positions else table.numel())

    def embed(self, x, first=0):
        """Token ids (B, N) at positions first .. first + N - 1 to initial tokens Z^(0) (B, N, d)."""
        return self.drop(self.tok_emb(x) + self.positions(first, x.size(1)))

    def positions(self, first, N):
        """Embeddings (N, d) of positions first .. first + N - 1."""
        if first + N > self.config.block_size:
            raise ValueError(f'{first + N} tokens are more than block_size={self.config.block_size}; '
                             'crop the input, or build the model with a larger block_size')
        return self.pos_emb(torch.arange(first, first + N, device=self.pos_emb.weight.device))

    def embed_examples(self, x, y):
        """Examples x (B, n, n_dims), y (B, n) to initial tokens (B, 2n, d): x_1, y_1, x_2, y_2, ..; y_i as the vector
        (y_i, 0, .., 0), through the same map."""
        pairs = torch.stack((x, F.pad(y[..., None], (0, self.config.n_dims - 1))), 2).flatten(1, 2)   # (B, 2n, n_dims)
        return self.drop(self.read_in(pairs) + self.positions(0, pairs.size(1)))

    def embed_pictures(self, x):
        """Pictures (B, 3, H, W) to initial tokens Z^(0) (B, N + 1, d), the class token first; as model_crate.py."""
        if x.shape[1:] != (3, *self.config.image_size):
            raise ValueError(f'pictures are {tuple(x.shape[1:])}, the model takes {(3, *self.config.image_size)}; resize them, '
                             'or build the model with another image_size')
        z = self.token_norm(self.patch(self.patch_norm(patchify(x, self.config.patch_size))))   # (B, N, d)
        return self.drop(torch.cat((self.cls.expand(len(z), -1, -1), z), 1) + self.pos)           # (B, N + 1, d)

    def inside(self, x, y=None):
        """To look inside, layer by layer: (its attention, what that is given, LN(Z^(l)), then the tokens after attention and
        Z^(l+1), the same without an MLP), tokens (B, N, d). y is a part of regression's prompts, and not read else."""
        c = self.config
        z = self.embed_pictures(x) if c.image_size else self.embed_examples(x, y) if c.n_dims else self.embed(x)
        for layer in self.layers:
            normed, half = layer.norm(z), layer.denoise(z)
            z = layer.transform(half)
            yield layer.attn, normed, half, z

    def features(self, x):
        """Pictures (B, 3, H, W) to what is classified (B, d)."""
        z = self.denoise(self.embed_pictures(x))                                                  # (B, N + 1, d)
        return self.norm(z[:, 0] if self.config.pool == 'cls' else z.mean(1))

    def denoise(self, z):
        """Z^(0) to Z^(L), both (B, N, d)."""
        for layer in self.layers:
            z = layer(z)
        return z

    def head(self, z):
        """Tokens after the last layer (.., d) to logits (.., vocab_size): the token embedding, transposed."""
        return F.linear(z, self.tok_emb.weight)

    def forward(self, x, y=None):
        """Text: x int64 (B, N); y int64 (B, N), the next tokens, -1 where none counts. Pictures: x float
        (B, 3, H, W), normalized; y int64 (B,). Regression: x float (B, n, n_dims); y float (B, n), which is part of the
        prompt too, and so is always needed.

        Returns (logits (B, N, vocab_size) or (B, num_classes), loss). The loss is the mean cross-entropy in nats,
        None without y. With y and more than LOGITS_AT_ONCE logits, these are formed chunk by chunk for the loss, and
        None comes back in their place. Of regression returns (predictions (B, n), their mean squared error).
        """
        if self.config.image_size:
            logits, smoothing = self.classifier(self.features(x)), self.config.label_smoothing * self.training
            return logits, None if y is None else F.cross_entropy(logits.float(), y, label_smoothing=smoothing)
        if self.config.n_dims:
            z = self.norm(self.denoise(self.embed_examples(x, y)))    # (B, 2n, d)
            guess = self.read_out(z[:, ::2]).squeeze(-1)              # (B, n): of y_i, at x_i, which does not see y_i
            return guess, F.mse_loss(guess.float(), y.float())
        z = self.norm(self.denoise(self.embed(x)))                    # (B, N, d)
        if y is None:
            return self.head(z), None
        z, y = z.flatten(0, 1), y.flatten()   # (B N, d), (B N)
        if len(y) * self.config.vocab_size > self.LOGITS_AT_ONCE:
            return None, self.chunked_loss(z, y)
        logits = self.head(z)
        return logits.view(*x.shape, -1), F.cross_entropy(logits.float(), y, ignore_index=-1)

    def chunked_loss(self, z, y):
        """cross_entropy(head(z), y) with only one chunk of logits in memory, formed again in the backward pass.

        (F.linear_cross_entropy of torch 2.13 does this too, but outside autocast: on a CPU it took twice the time where
        bfloat16 was asked for, and cast to bfloat16 by hand it rounded a loss of 10.90 to 9.19.)
        """
        def loss_sum(z, y):
            return F.cross_entropy(self.head(z).float(), y, ignore_index=-1, reduction='sum')
        size = max(1, self.LOGITS_AT_ONCE // self.config.vocab_size)
        parts = [checkpoint(loss_sum, *chunk, use_reentrant=False, preserve_rng_state=False)
                 for chunk in zip(z.split(size), y.split(size))]
        return torch.stack(parts).sum() / (y != -1).sum()

    def generate(self, idx, max_new_tokens, temperature=1.0, top_k=None, top_p=None, stop_token=None, use_cache=True):
        """Continue sequences of tokens.

        idx: int64 (B, N), N >= 1; more than block_size are cropped to the last ones, with a warning.
        temperature: divides the logits; 0 takes the likeliest token. top_k: sample among the k likeliest.
        top_p: sample among the likeliest that together hold probability p. stop_token: a sequence that draws it
        is finished and padded with it; generation ends when all are. use_cache: keep past tokens (same result to
        rounding, linear instead of quadratic work).
        Returns int64 (B, N + new): the prompt as given, then what was drawn.
        """
        from engine.generate import stream  # here, so that this file alone still trains
        new = stream(self, idx, max_new_tokens, temperature, top_k, top_p, stop_token, use_cache)
        return torch.cat([idx, *new], dim=1)

    # ---- OpenAI's weights -------------------------------------------------------------------------------------

    @classmethod
    def from_gpt2(cls, state_dict, *, n_head, **overrides):
        """GPT-2 from a state dict with nanoGPT's names and shapes, or OpenAI's and Hugging Face's (whose matrices
        are stored transposed). Sizes and the presence of biases are read off the tensors; overrides are other settings, such
        as gelu='tanh', with which OpenAI trained.

        Raises ValueError that names the tensors which are missing, unexpected or of a wrong shape.
        """
        from engine import official  # here, so that this file stands alone
        return official.gpt2(cls, AoTConfig, state_dict, n_head=n_head, **overrides)
