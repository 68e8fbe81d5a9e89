"""Lesson 2: MSSA. Fill in the gaps; lesson2.md says what they are about.

    python course/check.py 2
    python course/lesson2.py        # tokens go through your attention
"""
import torch


def attention_weights(Z: torch.Tensor, U: torch.Tensor, causal: bool) -> torch.Tensor:
    """How much each token takes from each other one, in each head: the softmax of eq. (11), of scores
    divided by sqrt(p). Z (B, N, d); U (K, d, p). Returns (B, K, N, N): row n is the token that looks,
    and sums to 1. With causal, token n gets nothing from tokens n + 1, n + 2, .."""
    raise NotImplementedError


def mssa(Z: torch.Tensor, U: torch.Tensor, causal: bool) -> torch.Tensor:
    """MSSA(Z | U) of eqs. (11) and (12), without the factor p / (N eps^2), and with scores divided by
    sqrt(p). Z (B, N, d), U (K, d, p) -> (B, N, d)."""
    raise NotImplementedError


def mssa_free(Z: torch.Tensor, U: torch.Tensor, W: torch.Tensor, bias: torch.Tensor, causal: bool) -> torch.Tensor:
    """The same with a free output map, eq. (115), as networks are trained: W (d, K p) and bias (d,) in
    place of [U_1, .., U_K]. The columns of W are those of head 1, then those of head 2, and so on."""
    raise NotImplementedError


def half_step(Z: torch.Tensor, U: torch.Tensor, causal: bool) -> torch.Tensor:
    """Z^(l+1/2) of eq. (18), without norms: Z (B, N, d), U (K, d, p) -> (B, N, d)."""
    raise NotImplementedError


# ---- the experiment: tokens go through your attention ---------------------------------------------------------------

def main(steps=6):
    import lab
    from analysis.measures import snr
    from lesson1 import compressed_rate_gradient
    from torch.nn.functional import normalize
    K, p, N, d = 8, 16, 64, 128
    start, U = lab.mixture(K, p, N, d, delta=0.2)

    def attend(Z):
        """Attention sees tokens of length sqrt(d), as behind a LayerNorm; then they get length 1 again."""
        return normalize(half_step(d ** 0.5 * Z[None], U, False)[0], dim=-1)

    def down(Z):
        return Z - 0.5 * compressed_rate_gradient(Z, U)
    curves = {}
    for name, step in (('your gradient, lesson 1', down), ('your attention', attend)):
        Z, curves[name] = start, []
        for _ in range(steps + 1):
            curves[name].append(snr(Z.unflatten(0, (K, -1)), U).mean())  # tokens are sorted by subspace
            Z = step(Z)
        print(f'{name:24} signal to noise', *(f'{value:.2f}' for value in curves[name]))
    lab.draw('lesson2.png', 'step', 'signal to noise', curves, ylim=(0, None))

    print(f'weight that a token gives itself at the start; if all weights are equal, it is 1/{N}')
    Z, drawn = d ** 0.5 * normalize(torch.randn(1, N, d), dim=-1), torch.randn(K, d, p)
    stds = 0.01, 0.02, 0.05, d ** -0.5, 0.2
    own = [attention_weights(Z, std * drawn, False).diagonal(dim1=2, dim2=3).mean() for std in stds]
    for std, share in zip(stds, own):
        print(f'  U from N(0, {std:.3f}^2): {share:.3f}')
    lab.draw('lesson2_start.png', 'deviation of the numbers in U', 'weight that a token gives itself',
             {f'd = {d}, p = {p}': (stds, own)}, xscale='log', ylim=(0, 1))


if __name__ == '__main__':
    main()
