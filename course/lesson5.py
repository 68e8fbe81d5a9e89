"""Lesson 5: denoising and AoT. Fill in the gaps; lesson5.md says what they are about.

    python course/check.py 5
    python course/lesson5.py        # your step denoises, your AoT writes
"""
import torch


def snr(Z: torch.Tensor, U: torch.Tensor) -> torch.Tensor:
    """Signal to noise of each cluster, eq. (6). Z (K, n, d): the n tokens Z[k] belong to subspace k; U (K,
    d, p): U[k] is its basis, with orthonormal columns. Returns (K,)."""
    raise NotImplementedError


def membership(Z: torch.Tensor, U: torch.Tensor, tau: float) -> torch.Tensor:
    """phi of eq. (4), how much each token takes from each other one in each subspace. Z (N, d), U (K, d, p)
    -> (K, N, N): row n of [k] is the token that looks. With tau = 0 it is the softmax, not divided by
    sqrt(p). With tau > 0 it is as in Theorem 1: tau where the softmax is above tau, and 0 elsewhere. Of the
    dtype of Z."""
    raise NotImplementedError


def denoise(Z: torch.Tensor, U: torch.Tensor, eta: float, tau: float) -> torch.Tensor:
    """A layer of eq. (3), with MSSA as in eq. (4): Z (N, d), U (K, d, p) -> (N, d)."""
    raise NotImplementedError


def passing(phi: torch.Tensor) -> torch.Tensor:
    """Does phi (K, N, N) look as the proof of Theorem 1 needs it? The N tokens are those of subspace 1, then
    those of subspace 2, and so on, N / K of each. Returns two shares, (2,): of all tokens, those that take
    something from themselves in their own subspace; and of all N (K - 1) pairs of a token and a subspace
    that is not its own, those in which the token takes anything from any token. The proof needs 1 and 0."""
    raise NotImplementedError


def aot_layer(Z: torch.Tensor, weights: dict, heads: int) -> torch.Tensor:
    """A layer of AoT on text: Z (B, N, d) -> (B, N, d). A LayerNorm (eps 1e-5), causal MSSA with scores
    divided by sqrt(p) and a free output map, a skip. weights: 'norm1.weight' (d,), 'attn.U.weight' (K p,
    d), 'attn.W.weight' (d, K p). There are no biases."""
    raise NotImplementedError


def next_token_loss(logits: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The mean cross-entropy in nats, shape (). logits (B, N, V) at each position; y, int64 (B, N): the id of
    the token that follows there, or -1 where none counts. Logits may be as large as 1000."""
    raise NotImplementedError


def sample(predict, ids: torch.Tensor, new: int, block: int, temperature: float, seed: int) -> torch.Tensor:
    """Text that goes on: token ids, int64 (N,) -> (N + new,), the given ones first. predict(x) gives logits (1, n,
    V) for x (1, n), and sees at most `block` tokens: give it the last ones. Each new token is one draw of
    torch.multinomial, with one generator for all of them, torch.Generator().manual_seed(seed), from the softmax
    of the last token's logits over the temperature. So 0.5 sharpens it, and 1 leaves it as it is."""
    raise NotImplementedError


# ---- the experiment: your step denoises, your AoT writes ------------------------------------------------------------

def main(steps=300):
    import lab
    from lesson4 import part, train
    from torch.nn.functional import layer_norm

    print('ratio of signal to noise, as a multiple of that before the layer; the theorem says 1.06 for eta = 0.1')
    near = lab.noisy_mixture(K=2, p=768, n=128, d=1536, delta=0.01)
    far = lab.noisy_mixture(K=8, p=16, n=128, d=128, delta=0.2)
    for name, (Z, U) in (('near the conditions', near), ('far from them', far)):
        for eta, tau in ((0.1, 0.6), (0.5, 0.6), (0.1, 0.0)):
            tokens, ratios = Z, [snr(Z, U).mean()]
            for _ in range(10):
                tokens = denoise(tokens.flatten(0, 1), U, eta, tau).view_as(Z)
                ratios.append(snr(tokens, U).mean())
            factors = ' '.join(f'{after / before:.2f}' for before, after in zip(ratios, ratios[1:]))
            print(f'  {name:19} eta {eta}, ' + (f'tau {tau}' if tau else 'softmax') + f': {factors}')

    print('an AoT of 3 layers reads the source code of Python')
    heads, block = 4, 64
    start = lab.first_weights('aot', vocab_size=256, block_size=block, n_layer=3, n_head=heads, n_embd=96)

    def predict(weights, x):
        z = weights['embed.tok_emb.weight'][x] + weights['embed.pos_emb.weight'][:x.shape[1]]
        for i in range(3):
            z = aot_layer(z, part(weights, f'layers.{i}'), heads)
        return layer_norm(z, z.shape[-1:], weights['read.norm.weight']) @ weights['embed.tok_emb.weight'].T
    weights, losses = train(lambda weights, x, y: next_token_loss(predict(weights, x), y), start,
                            lab.text_batches('train', steps), rate=3e-3)
    print(f'  loss {losses[0]:.3f}, last 10 of {steps} steps {losses[-10:].mean():.3f}')
    lab.draw('lesson5_text.png', 'step', 'loss, nats, mean of 10', {'your AoT': lab.smooth(losses)}, ylim=(1.5, 6))
    with torch.no_grad():
        begun = torch.tensor([*b'def main('])
        for temperature in (0.3, 1.0):
            written = sample(lambda x: predict(weights, x), begun, 200, block, temperature, seed=1)
            print(f'  temperature {temperature}: {bytes(written.tolist())!r}')


if __name__ == '__main__':
    main()
