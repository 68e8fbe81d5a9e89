"""MaskCut: objects in a picture without labels, by cutting the graph of its patches.

    Wang, Girdhar, Yu, Misra. "Cut and Learn for Unsupervised Object Detection and Instance
    Segmentation", CVPR 2023; one cut is that of TokenCut (Wang et al., CVPR 2022), a normalized
    cut (Shi and Malik, 2000).

Patches are the nodes of a graph. Two are tied if their features point the same way. The second
smallest eigenvector of (D - A) x = lambda D x is large on one part of the graph and small on the
rest of it. The part that is not the background is an object; its patches are taken out, and the
next cut finds the next object.

An eigenvector has no sign. Here its largest entry in magnitude is positive. Objects that are alike
have equal entries. Of these objects the first one, row by row, is found first, while in the
released code rounding decides. The paper takes the keys of the last layer of DINO's ViT, and
pictures of 480 x 480. `analyze.py` takes any layer of any network, by default the last but one, and
pictures of the size that the network was trained on.
"""
import torch
import torch.nn.functional as F

WEAK = 1e-5      # how two patches are tied that are not alike
OVERLAP = 0.5    # a mask whose intersection over union with the last one is larger is dropped
SMALLEST = 0.01  # and so is one that covers at most this share of the picture
CORNERS = [0, 0, -1, -1], [0, -1, 0, -1]  # rows and columns of the four corners of a grid
EQUAL = 1e-9     # entries of the eigenvector that differ by less are equal, but for rounding


def affinity(features, tau):
    """The matrix A of the graph: 1 where the cosine of two patches is above tau, WEAK elsewhere.
    features (d, N) -> float64 (N, N)."""
    x = F.normalize(features.double(), dim=0)
    cosines = x.mT @ x
    return torch.where(cosines > tau, 1.0, WEAK).double()


def second_eigenvector(A):
    """The solution x of (D - A) x = lambda D x for the second smallest lambda, (N,). D has the row
    sums of A (N, N). x has length 1, and its largest entry in magnitude is positive."""
    root = A.sum(1).rsqrt()                                 # the diagonal of D^-1/2
    identity = torch.eye(len(A), dtype=A.dtype, device=A.device)
    symmetric = identity - root[:, None] * A * root         # D^-1/2 (D - A) D^-1/2
    _, eigenvectors = torch.linalg.eigh(symmetric)          # lambda ascends
    x = root * eigenvectors[:, 1]
    largest = x[x.abs().argmax()]
    return F.normalize(x * largest.sign(), dim=0)


def numbered(mask):
    """The connected parts of a mask, bool (H, W), where neighbours lie left, right, above and
    below. Returns (H, W): a number for each part, from 1 on, and 0 outside the mask."""
    from scipy.ndimage import label
    numbers, _ = label(mask.cpu().numpy())
    return torch.from_numpy(numbers)


def cut(features, grid, tau):
    """The mask of one object, bool (H, W). features (d, N) of the patches of a grid (H, W); those
    of patches that are taken out are zero."""
    x = second_eigenvector(affinity(features, tau))
    mask = (x > x.mean()).view(grid)
    if mask[CORNERS].sum() >= 3:  # this is the background
        x = -x
        mask = ~mask
    # the object is the connected part with the largest entry; argmax takes the first of equal ones
    numbers = numbered(mask)
    largest = (x > x.max() - EQUAL).int().argmax()
    return mask & (numbers == numbers.flatten()[largest])


def maskcut(features, grid, tau=0.15, masks=3):
    """Objects in a picture, one after the other, bool (masks, H, W). A mask is empty where no
    object was found.

    features: (d, N) of the patches of a grid (H, W), row by row, such as the keys of an attention
    layer. tau: the cosine from which patches are alike. masks: how many objects to look for.
    """
    taken = torch.zeros(grid, dtype=torch.bool, device=features.device)
    last_mask = torch.zeros_like(taken)
    objects = []
    for i in range(masks):
        mask = cut(features * ~taken.flatten(), grid, tau)
        if i > 0:
            overlaps = (mask & last_mask).sum() > OVERLAP * (mask | last_mask).sum()
            is_small = mask.sum() <= SMALLEST * mask.numel()
            if overlaps or is_small:
                mask = torch.zeros_like(mask)
        objects.append(mask & ~taken)
        taken = taken | mask
        last_mask = mask
    return torch.stack(objects)
