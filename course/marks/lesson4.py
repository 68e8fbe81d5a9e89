"""The inputs for lesson 4, CRATE."""
import torch
from grade import Exercise, network, normal, of_size, seeded
from student import made

# B, C, H, W, h, w for each seed
PICTURES = (
    (2, 3, 6, 12, 2, 3),
    (1, 2, 4, 8, 4, 2),
    (1, 4, 8, 4, 1, 2),
)
# settings of the network for each seed; n_head times head_dim is not n_embd
NETWORKS = (
    dict(n_embd=7, n_head=3, head_dim=4, n_layer=2),
    dict(n_embd=5, n_head=4, head_dim=3, n_layer=3),
    dict(n_embd=6, n_head=5, head_dim=2, n_layer=4),
)
# B, N of tokens for each seed
TOKENS = (
    (2, 5),
    (1, 6),
    (3, 4),
)
# eta, lam for each seed: thresholds that cut numbers off
STEPS = (
    (0.2, 1.5),
    (0.3, 0.7),
    (0.15, 2.0),
)


def picture_inputs(seed):
    """(x (B, C, H, W), h, w)"""
    B, C, H, W, h, w = of_size(PICTURES, seed)
    return 1 + 2 * normal(seed)(B, C, H, W), h, w


def for_pictures(seed):
    """A network for the pictures of picture_inputs."""
    B, C, H, W, h, w = of_size(PICTURES, seed)
    return network(seed, 'crate', image_size=(H, W), patch_size=(h, w), channels=C, num_classes=4,
                   **of_size(NETWORKS, seed))


def for_text(seed):
    """A network for bytes. Its table of positions has more rows than there are tokens."""
    return network(seed, 'crate', image_size=0, vocab_size=9, block_size=9,
                   **of_size(NETWORKS, seed))


# ---- inputs -------------------------------------------------------------------------------------

def token_inputs(seed):
    """(x (B, C, H, W), weights, h, w)"""
    x, h, w = picture_inputs(seed)
    return x, for_pictures(seed).embed.state_dict(), h, w


def layer_inputs(seed):
    """(Z (B, N, d), weights, heads, eta, lam, causal)"""
    model = for_text(seed)
    Z = 1 + 2 * normal(seed)(*of_size(TOKENS, seed), model.config.n_embd)
    weights = model.layers[0].state_dict()
    causal = of_size((False, True, False), seed)
    return Z, weights, model.config.n_head, *of_size(STEPS, seed), causal


def network_inputs(seed):
    """(x (B, C, H, W), weights, layers, heads, h, w, eta, lam)"""
    x, h, w = picture_inputs(seed)
    model = for_pictures(seed)
    c = model.config
    return x, model.state_dict(), c.n_layer, c.n_head, h, w, *of_size(STEPS, seed)


def text_inputs(seed):
    """(x (B, N), weights, layers, heads, eta, lam)"""
    model = for_text(seed)
    c = model.config
    x = torch.randint(9, of_size(TOKENS, seed), generator=seeded(seed))
    return x, model.state_dict(), c.n_layer, c.n_head, *of_size(STEPS, seed)


def training_inputs(seed):
    """(loss_of, weights, batches, rate)"""
    randn = normal(seed)
    steps = of_size((5, 4, 6), seed)
    batches = [(randn(4, 3), randn(4)) for _ in range(steps)]
    weights = {'in': randn(3, 5), 'out': randn(5)}
    rate = of_size((0.05, 0.1, 0.02), seed)
    return made('small_loss'), weights, made('one_by_one', batches), rate


EXERCISES = [
    Exercise('patches', picture_inputs),
    Exercise('tokens', token_inputs, gradient=(1,)),
    Exercise('layer', layer_inputs, gradient=(0, 1)),
    Exercise('classify', network_inputs, gradient=(1,)),
    Exercise('predict', text_inputs, gradient=(1,)),
    Exercise('train', training_inputs),
]
