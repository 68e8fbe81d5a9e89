"""Lesson 2: MSSA. Fill in the gaps; lesson2.md says what they are about.

    python course/check.py 2
    python course/lesson2.py        # tokens go through your attention
"""
import torch


def attention_weights(Z: torch.Tensor, U: torch.Tensor, causal: bool) -> torch.Tensor:
    """How much each token takes from each other one, in each head: the softmax of eq. (11), of
    scores divided by sqrt(p). Z (B, N, d); U (K, d, p). Returns (B, K, N, N): row n is the token
    that looks, and sums to 1. With causal, token n gets nothing from tokens n + 1, n + 2, ..
    Scores may be as large as 1000."""
    raise NotImplementedError


def mssa(Z: torch.Tensor, U: torch.Tensor, causal: bool) -> torch.Tensor:
    """MSSA(Z | U) of eqs. (11) and (12), without the factor p / (N eps^2), and with scores divided
    by sqrt(p). Z (B, N, d), U (K, d, p) -> (B, N, d)."""
    raise NotImplementedError


def mssa_free(Z: torch.Tensor, U: torch.Tensor, W: torch.Tensor, bias: torch.Tensor,
              causal: bool) -> torch.Tensor:
    """The same with a free output map, eq. (115), as networks are trained: W (d, K p) and
    bias (d,) in place of [U_1, .., U_K]. The columns of W are those of head 1, then those of
    head 2, and so on. Z (B, N, d), U (K, d, p) -> (B, N, d)."""
    raise NotImplementedError


def half_step(Z: torch.Tensor, U: torch.Tensor, causal: bool) -> torch.Tensor:
    """Z^(l+1/2) of eq. (18), without norms: Z (B, N, d), U (K, d, p) -> (B, N, d)."""
    raise NotImplementedError


# ---- the experiment: tokens go through your attention -------------------------------------------

# the sizes of the experiment
HEADS = 8
HEAD_DIM = 16
TOKENS = 64
WIDTH = 128


def main(steps=6):
    import lab
    Z, U = lab.mixture(HEADS, HEAD_DIM, TOKENS, WIDTH, delta=0.2)
    network = lab.new('crate', n_layer=1, n_head=HEADS, n_embd=WIDTH)
    first_U = network.layers[0].attn.U.weight.detach().double()         # (K p, d)
    first_U = first_U.unflatten(0, (HEADS, HEAD_DIM)).mT                # (K, d, p)

    print('how far approximations are from the gradient; a step of length 0 is off by 100%')
    for name, bases in (('true subspaces', U), ("a network's first U", first_U)):
        for eps in (0.5, 1, 2):
            show_approximations(name, Z, bases, eps)
        identity = torch.eye(WIDTH)
        all_bases = (bases @ bases.mT).sum(0)                           # sum_k U_k U_k^T
        distance = (all_bases - identity).norm() / identity.norm()
        print(f'    the sum of all U_k U_k^T is off from the identity by {distance:.2f}')

    lab.draw('lesson2.png', 'step', 'signal to noise', signal_to_noise(Z, U, steps), ylim=(0, None))

    print(f'weight that a token gives itself; if all weights are equal, it is 1/{TOKENS}')
    stds = (0.01, 0.02, 0.05, WIDTH ** -0.5, 0.2)
    shares = weights_of_oneself(stds)
    for std, share in zip(stds, shares):
        print(f'  U from N(0, {std:.3f}^2): {share:.3f}')
    lab.draw('lesson2_start.png', 'deviation of the numbers in U',
             'weight that a token gives itself', {f'd = {WIDTH}, p = {HEAD_DIM}': (stds, shares)},
             xscale='log', ylim=(0, 1))


def show_approximations(name, Z, U, eps):
    """Print the largest eigenvalue of beta P P^T, and how far eqs. (68), (71) and (75) are from the
    gradient of your lesson 1."""
    from lesson1 import compressed_rate_gradient
    gradient = compressed_rate_gradient(Z, U, eps)
    beta = HEAD_DIM / (TOKENS * eps ** 2)
    P = Z @ U                                                           # (K, N, p)
    # your mssa divides scores by sqrt(p), eq. (11) does not: tokens that are longer make up for it
    longer = HEAD_DIM ** 0.25
    attention = mssa(longer * Z[None], U, False)[0] / longer
    eq68 = beta * ((P - beta * P @ P.mT @ P) @ U.mT).sum(0)
    eq71 = beta * (P @ U.mT).sum(0) - beta ** 2 * attention
    eq75 = beta * Z - beta ** 2 * attention
    largest = torch.linalg.eigvalsh(beta * P @ P.mT).max()
    misses = []
    for approximation in (eq68, eq71, eq75):
        misses.append((approximation - gradient).norm() / gradient.norm())
    print(f'  {name}, eps {eps}: eigenvalue {largest:.2f}; off by {misses[0]:.1%} eq. (68), '
          f'{misses[1]:.1%} eq. (71), {misses[2]:.1%} eq. (75)')


def signal_to_noise(Z, U, steps):
    """{name: steps + 1 ratios, from before the first step to after the last}, with the gradient of
    your lesson 1 and with your attention. Tokens are sorted by subspace."""
    from analysis.measures import snr
    from lesson1 import compressed_rate_gradient
    from torch.nn.functional import normalize

    def down_the_gradient(tokens):
        return tokens - 0.5 * compressed_rate_gradient(tokens, U)

    def attend(tokens):
        """Attention sees tokens of length sqrt(d), as behind a LayerNorm; then they get length
        1."""
        return normalize(half_step(WIDTH ** 0.5 * tokens[None], U, False)[0], dim=-1)

    curves = {}
    for name, step in (('your gradient, lesson 1', down_the_gradient), ('your attention', attend)):
        tokens = Z
        ratios = []
        for _ in range(steps + 1):
            ratios.append(snr(tokens.unflatten(0, (HEADS, -1)), U).mean())
            tokens = step(tokens)
        print(f'{name:24} signal to noise', *(f'{ratio:.2f}' for ratio in ratios))
        curves[name] = ratios
    return curves


def weights_of_oneself(stds):
    """The mean weight that a token gives itself, for each standard deviation of the numbers in
    U."""
    from torch.nn.functional import normalize
    Z = WIDTH ** 0.5 * normalize(torch.randn(1, TOKENS, WIDTH), dim=-1)
    U = torch.randn(HEADS, WIDTH, HEAD_DIM)
    shares = []
    for std in stds:
        weights = attention_weights(Z, std * U, False)                  # (1, K, N, N)
        shares.append(weights.diagonal(dim1=2, dim2=3).mean())
    return shares


if __name__ == '__main__':
    import lab
    lab.run(main, __doc__)
