"""Lesson 4: CRATE. Fill in the gaps; lesson4.md says what they are about.

    python course/check.py 4
"""
import torch


def part(weights: dict, name: str) -> dict:
    """Given: the weights of one part of a network, without its name in front. part(weights, 'layers.0')
    has 'norm1.weight' for 'layers.0.norm1.weight'."""
    return {k.removeprefix(f'{name}.'): v for k, v in weights.items() if k.startswith(f'{name}.')}


def patches(x: torch.Tensor, h: int, w: int) -> torch.Tensor:
    """Pictures (B, C, H, W), cut into patches of h x w pixels: (B, N, h w C). Patches go row by row. In a
    patch: row, then column, then channel, as the authors' weights need it; the channel changes fastest."""
    raise NotImplementedError


def tokens(x: torch.Tensor, weights: dict, h: int, w: int) -> torch.Tensor:
    """Pictures (B, C, H, W) -> tokens (B, N + 1, d), the class token first. A patch is normalized, mapped,
    and normalized again; then the class token is put in front, then positions are added. weights:
    'patch_norm.weight' and '.bias' (P,), 'patch.weight' (d, P) and '.bias' (d,), 'token_norm.weight' and
    '.bias' (d,), 'cls' (1, 1, d), 'pos' (1, N + 1, d)."""
    raise NotImplementedError


def layer(Z: torch.Tensor, weights: dict, heads: int, eta: float, lam: float) -> torch.Tensor:
    """A layer, eq. (18): Z (B, N, d) -> (B, N, d). Attention and then ISTA, a LayerNorm before each of
    them. All norms of this lesson have PyTorch's eps, 1e-5. weights: 'norm1.weight' and '.bias' (d,),
    'attn.U.weight' (K p, d), in which the rows of head 1 come first, 'attn.W.weight' (d, K p) and '.bias'
    (d,), 'norm2.weight' and '.bias' (d,), 'ista.D' (d, d)."""
    raise NotImplementedError


def classify(x: torch.Tensor, weights: dict, layers: int, heads: int, h: int, w: int, eta: float,
             lam: float) -> torch.Tensor:
    """The network: pictures (B, C, H, W) -> logits (B, classes). weights has the names of model_crate.py:
    those of tokens with 'embed.' in front, those of layer with 'layers.0.', 'layers.1.' and so on, and
    'read.norm.weight', 'read.norm.bias' (d,), 'read.head.weight' (classes, d), 'read.head.bias'. The class
    token is normalized, then mapped to logits."""
    raise NotImplementedError
