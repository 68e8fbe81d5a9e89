"""MaskCut: objects in a picture without labels, by cutting the graph of its patches.

    Wang, Girdhar, Yu, Misra. "Cut and Learn for Unsupervised Object Detection and Instance Segmentation", CVPR 2023;
    one cut is that of TokenCut (Wang et al., CVPR 2022), a normalized cut (Shi and Malik, 2000).

Patches are the nodes of a graph. Two are tied if their features point the same way. The second smallest eigenvector of
(D - A) x = lambda D x is large on one part of the graph and small on the other. The part that is not the background is
an object; its patches are taken out, and the next cut finds the next object.

An eigenvector has no sign. Here its largest entry in magnitude is positive. Objects that are alike have equal entries;
the first one, row by row, is found first, while in the released code rounding decides. The paper takes the keys of the
last layer of DINO's ViT, and pictures of 480 x 480. `analyze.py` takes any layer of any network, by default the last
but one, and pictures of the size that the network was trained on.
"""
import torch
import torch.nn.functional as F

WEAK = 1e-5     # how two patches are tied that are not alike
OVERLAP = 0.5   # a mask that shares more than this with the last one, as intersection over union, is dropped
SMALLEST = 0.01  # and one that covers at most this share of the picture
CORNERS = [0, 0, -1, -1], [0, -1, 0, -1]
EQUAL = 1e-9    # entries of the eigenvector that differ by less count as equal: the difference is rounding


def affinity(features, tau):
    """1 where the cosine of two patches is above tau, WEAK elsewhere. features (d, N) -> float64 (N, N)."""
    x = F.normalize(features.double(), dim=0)
    return torch.where(x.mT @ x > tau, 1.0, WEAK).double()


def second_eigenvector(A):
    """Of (D - A) x = lambda D x, D the row sums of A (N, N), for the second smallest lambda: (N,), of
    length 1, its largest entry in magnitude positive."""
    root = A.sum(1).rsqrt()
    symmetric = torch.eye(len(A), dtype=A.dtype, device=A.device) - root[:, None] * A * root    # D^-1/2 (D - A) D^-1/2
    x = root * torch.linalg.eigh(symmetric)[1][:, 1]
    return F.normalize(x * x[x.abs().argmax()].sign(), dim=0)


def numbered(mask):
    """The connected parts of a mask, bool (H, W), by neighbours left, right, above and below: (H, W), 0 outside, and
    from 1 on a number for each part."""
    from scipy.ndimage import label
    return torch.from_numpy(label(mask.cpu().numpy())[0])


def cut(features, grid, tau):
    """One object: bool (H, W). features (d, N), those of patches that are taken out zero."""
    x = second_eigenvector(affinity(features, tau))
    part = (x > x.mean()).view(grid)
    if part[CORNERS].sum() >= 3:                                        # the background
        x, part = -x, ~part
    number = numbered(part)
    largest = (x > x.max() - EQUAL).int().argmax()                      # the first of equal ones
    return part & (number == number.flatten()[largest])


def maskcut(features, grid, tau=0.15, masks=3):
    """Objects in a picture, one after the other, bool (masks, H, W); empty where none was found.

    features (d, N) of the patches of a grid (H, W), row by row, such as the keys of an attention
    layer. tau: the cosine from which patches are alike.
    """
    taken = last = torch.zeros(grid, dtype=torch.bool, device=features.device)
    found = []
    for i in range(masks):
        mask = cut(features * ~taken.flatten(), grid, tau)
        if i and ((mask & last).sum() > OVERLAP * (mask | last).sum() or mask.sum() <= SMALLEST * mask.numel()):
            mask = torch.zeros_like(mask)
        found.append(mask & ~taken)
        taken, last = taken | mask, mask
    return torch.stack(found)
