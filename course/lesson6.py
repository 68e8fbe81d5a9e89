"""Lesson 6: CRATE-MAE. Fill in the gaps; lesson6.md says what they are about.

    python course/check.py 6
"""
import torch


def visible(noise: torch.Tensor, ratio: float) -> tuple:
    """Which patches stay. noise (B, N): a random number for each patch. Of each picture the int(N (1 -
    ratio)) patches with the least noise stay, M of them. Returns two tensors of whole numbers: keep (B, M),
    the numbers of the patches that stay, the least noise first; and back (B, N), the place of each patch in
    the list of all N patches that is sorted by noise. So patch n stays if back[n] < M, as keep[back[n]]."""
    raise NotImplementedError


def embed(patches: torch.Tensor, hidden: torch.Tensor, weights: dict) -> torch.Tensor:
    """Patches (B, N, P) -> tokens (B, N + 1, d) for the encoder. A patch is mapped; where hidden, bool (B,
    N), is true, the mask token takes its place. Then the class token is put in front, then positions are
    added. weights: 'patch.weight' (d, P), 'patch.bias' (d,), 'mask_token' (1, 1, d), 'cls' (1, 1, d), 'pos'
    (1, N + 1, d)."""
    raise NotImplementedError


def decoder_layer(Y: torch.Tensor, weights: dict, heads: int) -> torch.Tensor:
    """A layer of the decoder, eq. (2.17), with a LayerNorm (eps 1e-5) before each half: Y (B, N, d) -> (B, N,
    d). The second norm is for attention alone. Scores are divided by sqrt(p). weights: 'norm1.weight' and
    '.bias' (d,), 'E.weight' (d, d), 'norm2.weight' and '.bias' (d,), 'attn.U.weight' (K p, d), 'attn.W.weight'
    (d, K p) and '.bias' (d,)."""
    raise NotImplementedError


def targets(patches: torch.Tensor) -> torch.Tensor:
    """What to predict if brightness and contrast shall not count: each patch of patches (B, N, P) less its
    mean, divided by the root of its variance + 1e-6. The variance has the divisor P - 1."""
    raise NotImplementedError


def masked_loss(pred: torch.Tensor, target: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
    """The loss, eq. (2.22) on hidden patches alone: the mean of the squared errors of all numbers of all
    patches where hidden, bool (B, N), is true. pred and target (B, N, P). Returns one number, shape ()."""
    raise NotImplementedError
