"""The loss of a network of text without all its logits in memory, for --loss_in_chunks=true."""
import torch
from torch.utils.checkpoint import checkpoint

from engine.mistakes import Mistake

# At most this many logits are in memory at once if the loss is computed in chunks. In float32 they
# take 64 MiB, and a forward and backward pass of the loss has four such arrays.
LOGITS_AT_ONCE = 2 ** 24


def spare_logits(model):
    """Let a network of text train without all its logits in memory. The setting
    --loss_in_chunks=true switches this on. In training the network's head then returns (None, loss)
    where there are more than LOGITS_AT_ONCE logits. Raises Mistake for a network without a
    head."""
    if not hasattr(model, 'read'):
        raise Mistake('loss_in_chunks=true is for networks that have `read`; leave it out')
    head = model.read
    plain_forward = head.forward
    chunk = max(1, LOGITS_AT_ONCE // model.config.vocab_size)  # tokens that have so many logits

    def forward(z, y=None):
        if y is None or not head.training or y.numel() <= chunk:
            return plain_forward(z, y)
        return None, loss_in_chunks(plain_forward, z, y, chunk)

    head.forward = forward


def loss_in_chunks(head, z, y, chunk):
    """The loss that head(z, y) has for tokens z (B, N, d) and ids y (B, N), computed for `chunk`
    tokens at a time. The head must look at each token alone, and its loss must be a mean over the
    tokens whose y is not -1. If there are none, the result is 0.

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
