"""Faster forms of what a network computes.

A model file spells attention out, as a function of the name `attention`. `speed_up` puts the
function of this file in its place. That happens only if the model file's function is one of the
plain forms below, unchanged: what somebody edits is computed as it stands.

On a CPU under autocast, `speed_up` also rounds the tokens to the precision of the matrix products
before the first layer, and they stay in it from layer to layer, because that was measured to be
faster there. On CUDA and MPS they stay in float32, as in nanoGPT.

The results are those of the plain forms up to rounding. In bfloat16 and float16 numbers are rounded
in other places. Tests bound the differences of losses and gradients.
"""
import math
import sys

import torch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

# Up to so many tokens the class Products is used. It is faster with more, too, but needs N x N
# numbers in memory.
LONGEST = 512
# So many logits are in memory at once if the loss is computed in chunks. In float32 they have
# 64 MiB, and a forward and backward pass of the loss has four such arrays.
LOGITS_AT_ONCE = 2 ** 24


def speed_up(model):
    """Give a network the fast forms, in place. The fast attention is for all networks of its file.
    Returns the network."""
    for module in model.modules():  # the networks inside DINO are among them
        model_file = sys.modules[type(module).__module__]
        if is_plain(getattr(model_file, 'attention', None)):
            model_file.attention = attention
        if isinstance(getattr(module, 'embed', None), torch.nn.Module):
            module.embed.register_forward_hook(in_precision_of_products)
    return model


def in_precision_of_products(module, args, tokens):
    """A hook behind the embedding: on a CPU under autocast, tokens enter the first layer in the
    precision of autocast. Norms, softmax and the loss still add up in float32."""
    if tokens.device.type == 'cpu' and torch.is_autocast_enabled('cpu'):
        tokens = tokens.to(torch.get_autocast_dtype('cpu'))
    return tokens


# ---- the loss of text, without all logits in memory ---------------------------------------------

def spare_logits(model):
    """Let a network of text train without all its logits in memory. The setting
    --loss_in_chunks=true switches this on. In training the network's head then returns (None, loss)
    where there are more than LOGITS_AT_ONCE logits."""
    head = model.read
    plain_forward = head.forward
    chunk = max(1, LOGITS_AT_ONCE // model.config.vocab_size)  # tokens

    def forward(z, y=None):
        if y is None or not head.training or y.numel() <= chunk:
            return plain_forward(z, y)
        return None, loss_in_chunks(plain_forward, z, y, chunk)

    head.forward = forward


def loss_in_chunks(head, z, y, chunk):
    """The loss of head(z, y) for tokens z (B, N, d) and ids y (B, N), computed for `chunk` tokens
    at a time. The loss must be a mean over the tokens whose y is not -1.

    The backward pass computes the logits of each chunk again. So the head must not draw random
    numbers, as dropout does.
    """
    def sum_of_losses(z, y):
        n_counted = (y != -1).sum()
        _, mean = head(z.unsqueeze(0), y.unsqueeze(0))
        return torch.where(n_counted > 0, n_counted * mean, 0.0)  # the mean of no tokens is NaN

    z_chunks = z.flatten(0, 1).split(chunk)
    y_chunks = y.flatten().split(chunk)
    total = 0.0
    for z_chunk, y_chunk in zip(z_chunks, y_chunks):
        total = total + checkpoint(sum_of_losses, z_chunk, y_chunk, use_reentrant=False,
                                   preserve_rng_state=False)
    return total / (y != -1).sum().clamp(min=1)


# ---- attention ----------------------------------------------------------------------------------

def is_plain(function):
    """Whether a model file's `attention` may be replaced by the one of this file. It may if it is
    PyTorch's, or has the code of one of the three plain forms that follow."""
    if function is F.scaled_dot_product_attention:
        return True
    plain = [operations(form) for form in (causal_attention, dropout_attention, short_attention)]
    return operations(function) in plain


def operations(function):
    """What a Python function does: its defaults, and its code without the first constant, which is
    its docstring."""
    if not hasattr(function, '__code__'):
        return None
    code = function.__code__
    return function.__defaults__, code.co_code, code.co_names, code.co_consts[1:]


def causal_attention(q, k, v, dropout_p=0.0, is_causal=False):
    """As in model_crate.py and other networks that read text."""
    scores = q @ k.mT / math.sqrt(q.size(-1))
    if is_causal:
        N = q.size(2)
        later = torch.ones(N, N, dtype=torch.bool, device=q.device).triu(diagonal=1)
        scores = scores.masked_fill(later, -math.inf)
    weights = scores.softmax(dim=-1)
    weights = F.dropout(weights, dropout_p)
    return weights @ v


def dropout_attention(q, k, v, dropout_p=0.0):
    """As in model_vit.py."""
    scores = q @ k.mT / math.sqrt(q.size(-1))
    weights = scores.softmax(dim=-1)
    weights = F.dropout(weights, dropout_p)
    return weights @ v


def short_attention(q, k, v):
    """As in model_crate_mae.py."""
    scores = q @ k.mT / math.sqrt(q.size(-1))
    weights = scores.softmax(dim=-1)
    return weights @ v


def attention(q, k, v, dropout_p=0.0, is_causal=False):
    """softmax(q k^T / sqrt(p)) v in the form that is fastest here. q, k, v and the result:
    (B, K, N, p).

    This is PyTorch's fused kernel, except for training in bfloat16 on a CPU without dropout. There
    Products was faster than the kernel, forward and backward together: 10 times at 64 tokens, 2.9
    at 197, 1.8 at 512 and 1.2 at 1024. It is used for up to LONGEST tokens.
    """
    trains_on_cpu = q.device.type == 'cpu' and q.dtype == torch.bfloat16 and q.requires_grad
    if not trains_on_cpu or dropout_p or q.size(2) > LONGEST:
        return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout_p, is_causal=is_causal)

    flat_q = q.flatten(0, 1)                                # (B K, N, p)
    if q is k and k is v:
        h = Products.apply(flat_q, None, None, is_causal)
    else:
        h = Products.apply(flat_q, k.flatten(0, 1), v.flatten(0, 1), is_causal)
    return h.view(q.shape)


class Products(torch.autograd.Function):
    """Attention as matrix products, with a backward pass written by hand. q, k, v: (n, N, p).

    If k and v are None, all three are q, as in MSSA. Then the backward pass adds up one gradient in
    place, where autograd would make three and add them.
    """

    @staticmethod
    def forward(ctx, q, k, v, is_causal):
        ctx.scale = q.size(-1) ** -0.5
        ctx.is_one_tensor = k is None
        if ctx.is_one_tensor:
            k = q
            v = q
        mask = q.new_zeros(())                                          # none
        if is_causal:
            N = q.size(1)
            mask = q.new_full((N, N), -torch.inf).triu(1)
        P = torch.baddbmm(mask, q, k.mT, alpha=ctx.scale).softmax(-1)   # (n, N, N)
        ctx.save_for_backward(q, k, v, P)
        return P @ v

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        q, k, v, P = ctx.saved_tensors
        dS = torch._softmax_backward_data(g @ v.mT, P, -1, P.dtype)     # (n, N, N)
        dv = P.mT @ g                                                   # (n, N, p)
        scaled_q = q * ctx.scale
        if ctx.is_one_tensor:
            total = dv.baddbmm_(dS, scaled_q).baddbmm_(dS.mT, scaled_q)     # dv + dq + dk
            return total, None, None, None
        dq = dS @ (k * ctx.scale)
        dk = dS.mT @ scaled_q
        return dq, dk, dv, None
