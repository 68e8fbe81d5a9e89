"""Lesson 5: denoising and AoT. Fill in the gaps; lesson5.md says what they are about.

    python course/check.py 5
    python course/lesson5.py        # your step denoises, your AoT writes
"""
import torch


def snr(Z: torch.Tensor, U: torch.Tensor) -> torch.Tensor:
    """Signal to noise of each cluster, eq. (6). Z (K, n, d): the n tokens Z[k] belong to subspace
    k; U (K, d, p): U[k] is its basis, with orthonormal columns. Returns (K,)."""
    raise NotImplementedError


def membership(Z: torch.Tensor, U: torch.Tensor, tau: float) -> torch.Tensor:
    """phi of eq. (4), how much each token takes from each other one in each subspace. Z (N, d), U
    (K, d, p) -> (K, N, N): row n of [k] is the token that looks. With tau = 0 it is the softmax,
    not divided by sqrt(p). With tau > 0 it is as in Theorem 1: tau where the softmax is above tau,
    and 0 elsewhere. Of the dtype of Z."""
    raise NotImplementedError


def denoise(Z: torch.Tensor, U: torch.Tensor, eta: float, tau: float) -> torch.Tensor:
    """A layer of eq. (3), with MSSA as in eq. (4): Z (N, d), U (K, d, p) -> (N, d)."""
    raise NotImplementedError


def passing(phi: torch.Tensor) -> torch.Tensor:
    """Does phi (K, N, N) look as the proof of Theorem 1 needs it? The tokens are sorted: first the
    N / K tokens of subspace 1, then those of subspace 2, and so on. For K = 2 the proof needs

                            phi[0]                          phi[1]
        rows of cluster 1   tau on the diagonal, else 0     0
        rows of cluster 2   0                               tau on the diagonal, else 0

    Returns two shares, (2,). The first is of the N tokens: how many take something from themselves
    in their own subspace, so phi[k, n, n] > 0. The second is of the N (K - 1) pairs of a token n
    and a subspace k that is not its own: in how many the token takes something from any token, so
    row n of phi[k] has a number above 0. The proof needs 1 and 0."""
    raise NotImplementedError


def aot_layer(Z: torch.Tensor, weights: dict, heads: int) -> torch.Tensor:
    """A layer of AoT on text: Z (B, N, d) -> (B, N, d). A LayerNorm (eps 1e-5), causal MSSA with
    scores divided by sqrt(p) and a free output map, a skip. weights: 'norm1.weight' (d,),
    'attn.U.weight' (K p, d), 'attn.W.weight' (d, K p). There are no biases."""
    raise NotImplementedError


def next_token_loss(logits: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The mean cross-entropy in nats, shape (). logits (B, N, V) at each position; y, int64 (B, N):
    the id of the token that follows there, or -1 where none counts. Logits may be as large as
    1000."""
    raise NotImplementedError


def sample(predict, ids: torch.Tensor, new: int, block: int, temperature: float,
           seed: int) -> torch.Tensor:
    """Text that goes on: token ids, int64 (N,) -> (N + new,), the given ones first. predict(x)
    gives logits (1, n, V) for x (1, n), and sees at most `block` tokens: give it the last ones.
    Each new token is one draw of torch.multinomial, with one generator for all of them,
    torch.Generator().manual_seed(seed), from the softmax of the last token's logits over the
    temperature. So 0.5 sharpens it, and 1 leaves it as it is."""
    raise NotImplementedError


# ---- the experiment: your step denoises, your AoT writes ----------------------------------------

def main(steps=300):
    take_ten_layers()
    write_text(steps)


def take_ten_layers():
    import lab
    print('ratio of signal to noise, as a multiple of that before the layer; '
          'the theorem says 1.06 for eta = 0.1')
    near = lab.noisy_mixture(K=2, p=768, n=128, d=1536, delta=0.01)
    far = lab.noisy_mixture(K=8, p=16, n=128, d=128, delta=0.2)
    for name, (Z, U) in (('near the conditions', near), ('far from them', far)):
        for eta, tau in ((0.1, 0.6), (0.5, 0.6), (0.1, 0.0)):
            tokens = Z                                                  # (K, n, d)
            ratio = snr(tokens, U).mean()
            factors = []
            for _ in range(10):
                tokens = denoise(tokens.flatten(0, 1), U, eta, tau).view_as(Z)
                before = ratio
                ratio = snr(tokens, U).mean()
                factors.append(f'{ratio / before:.2f}')
            threshold = f'tau {tau}' if tau else 'softmax'
            print(f'  {name:19} eta {eta}, {threshold}: {" ".join(factors)}')


LAYERS = 3
HEADS = 4
BLOCK = 64


def logits_of(weights, x):
    """Your AoT: token ids x, int64 (B, N) -> logits (B, N, V)."""
    from lesson4 import part
    from torch.nn.functional import layer_norm
    table = weights['embed.tok_emb.weight']                             # (V, d)
    z = table[x] + weights['embed.pos_emb.weight'][:x.shape[1]]         # (B, N, d)
    for i in range(LAYERS):
        z = aot_layer(z, part(weights, f'layers.{i}'), HEADS)
    z = layer_norm(z, z.shape[-1:], weights['read.norm.weight'])
    return z @ table.T


def loss_of_text(weights, x, y):
    return next_token_loss(logits_of(weights, x), y)


def write_text(steps):
    import lab
    from lesson4 import train
    print(f'an AoT of {LAYERS} layers reads the source code of Python')
    start = lab.first_weights('aot', vocab_size=256, block_size=BLOCK, n_layer=LAYERS, n_head=HEADS,
                              n_embd=96)
    batches = lab.progress(lab.text_batches('train', steps), steps)
    weights, losses = train(loss_of_text, start, batches, rate=3e-3)
    print(f'  loss {losses[0]:.3f}, last 10 of {steps} steps {losses[-10:].mean():.3f}')
    lab.draw('lesson5_text.png', 'step', 'loss, nats, mean of 10', {'your AoT': lab.smooth(losses)},
             ylim=(1.5, 6))

    prompt = torch.tensor([*b'def main('])
    for temperature in (0.7, 1.0):
        with torch.no_grad():
            text = sample(lambda x: logits_of(weights, x), prompt, 200, BLOCK, temperature, seed=1)
        print(f'  temperature {temperature}: {bytes(text.tolist())!r}')


if __name__ == '__main__':
    import lab
    lab.run(main, __doc__)
