"""Lesson 3: ISTA. Fill in the gaps; lesson3.md says what they are about.

    python course/check.py 3
"""
import torch


def lasso_objective(Z: torch.Tensor, Y: torch.Tensor, D: torch.Tensor, lam: float) -> torch.Tensor:
    """lambda |z|_1 + 1/2 |y - D z|^2 of each token, eq. (16) with a half. Z (N, d): codes, not
    negative; Y (N, d): what they stand for; D (d, d). A token is a row of Z, and a column in the
    formula. Returns (N,)."""
    raise NotImplementedError


def prox(Z: torch.Tensor, t: float) -> torch.Tensor:
    """The v >= 0 that makes t v + 1/2 (v - z)^2 smallest, for each number z of Z (N, d): (N, d)."""
    raise NotImplementedError


def ista(Z: torch.Tensor, D: torch.Tensor, eta: float, lam: float) -> torch.Tensor:
    """The step of a layer, eq. (17): from Z (N, d) towards a sparse code of Z. D (d, d) -> (N, d). With at
    most two products of matrices."""
    raise NotImplementedError


def solve(Y: torch.Tensor, D: torch.Tensor, lam: float, steps: int) -> torch.Tensor:
    """So many steps from zero towards the minimum of lasso_objective for Y (N, d), each of the size eta =
    1 / |D|^2, where |D| is the largest singular value: (N, d)."""
    raise NotImplementedError
