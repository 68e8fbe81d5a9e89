"""Lesson 7: look inside with a sceptic's eye. Fill in the gaps; lesson7.md says what they are
about.

    python course/check.py 7
"""
import torch


def mean_and_spread(values: torch.Tensor) -> tuple:
    """The mean of one number for each seed, and their sample standard deviation: values (n,), with
    n at least 2. Returns two numbers."""
    raise NotImplementedError


def top_mass(maps: torch.Tensor, share: float) -> torch.Tensor:
    """The fewest patches that hold at least `share` of each map together. maps (.., N): attention
    over N patches, which sums to 1. Returns bool (.., N), True for the patches that are kept. Of
    equal patches any may be kept, but no more than needed."""
    raise NotImplementedError


def overlap(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Intersection over union of masks, bool (.., H, W) -> (..): the pixels that are in both,
    divided by those that are in at least one. 0 where both masks are empty."""
    raise NotImplementedError


def best_heads(scores: torch.Tensor) -> tuple:
    """Three ways to report one table: scores (n, K) of K heads in n pictures, of which higher is
    better. Returns three numbers: the mean over pictures of the best head of each picture; the mean
    of the one head that is best over all pictures; the mean of all heads."""
    raise NotImplementedError


def beats(ours: torch.Tensor, theirs: torch.Tensor) -> tuple:
    """Are we better, or was it the seeds? ours, theirs (n,): scores with the same n seeds in the
    same order, of which higher is better. Returns the mean of the differences ours - theirs; half
    the width of the 95% interval of this mean, which is scipy.stats.t.ppf(0.975, n - 1) standard
    errors; and whether the whole interval, from mean - half to mean + half, is above 0. The
    standard error is the sample standard deviation of the differences over sqrt(n). Fewer than
    three seeds never beat anything. For one seed the second result does not matter."""
    raise NotImplementedError


def properties() -> list:
    """Functions that find mistakes in an implementation of MSSA, without knowing the right result.
    Each takes an implementation mssa(Z, U, causal), as in lesson 2: Z (B, N, d), U (K, d, p), a
    bool -> (B, N, d), and returns True if the property holds. It must hold for every right
    implementation, which may round in another way, and should not hold for wrong ones."""
    raise NotImplementedError


# ---- the experiment: heads beside true masks, in each of the runs out/look_1, out/look_2, .. ----

WAYS = ('best head of each picture', 'the one head that is best for all', 'mean of all heads')


def main(pictures=500):
    import lab
    x, _ = lab.shapes('test')
    x = x[:pictures]
    masks = lab.masks('test')[:pictures]                                # bool (n, 32, 32)
    runs = lab.runs_of('look')
    if not runs:
        raise lab.Mistake('there is no out/look_1: train it first, with the command of lesson7.md')

    middle = torch.zeros_like(masks)
    middle[:, 8:24, 8:24] = True
    print(f'intersection over union, {len(runs)} seeds; '
          f'a square in the middle: {overlap(middle, masks).mean():.3f}')

    reports = {'trained': [], 'random weights': []}                     # three numbers for each run
    for run in runs:
        for kind, maps in lab.class_maps(run, x).items():
            scores = overlap_of_heads(maps, masks)                      # (n, K)
            reports[kind].append([float(number) for number in best_heads(scores)])

    for number, way in enumerate(WAYS):
        of_kind = {}
        for kind, rows in reports.items():
            of_kind[kind] = torch.tensor([row[number] for row in rows])
            print(f'  {way}, {kind}: {in_words(of_kind[kind])}')
        gain, half, better = beats(of_kind['trained'], of_kind['random weights'])
        print(f'    trained beats random weights: {bool(better)} '
              f'({gain:+.3f} ± {half:.3f}, 95% interval)')


def kept_pixels(maps):
    """The pixels of the patches that hold 60% of each map (n, K, 64): bool (n, K, 32, 32)."""
    patches = top_mass(maps, 0.6).unflatten(-1, (8, 8))                 # (n, K, 8, 8)
    return patches.repeat_interleave(4, -1).repeat_interleave(4, -2)    # a patch has 4 x 4 pixels


def overlap_of_heads(maps, masks):
    """Maps (n, K, 64) of K heads and true masks (n, 32, 32) -> how well they agree, (n, K)."""
    kept = kept_pixels(maps)
    return overlap(kept, masks[:, None].expand_as(kept))


def in_words(scores):
    """Scores of several seeds as mean and spread; the score of one seed as it is."""
    if len(scores) < 2:
        return f'{scores[0]:.3f}'
    mean, spread = mean_and_spread(scores)
    return f'{mean:.3f} ± {spread:.3f}'


if __name__ == '__main__':
    import lab
    lab.run(main, __doc__)
