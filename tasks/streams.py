"""What random numbers of the batches are for. The number here is the last one of the seed that they
are drawn with, so no two uses share a stream. Only the places of training's texts are drawn with
(seed, step) alone.
"""
PICTURE_NUMBERS = 1         # (seed, step, ..): of the pictures of a training step
PICTURE_ORDER = 2           # (seed, epoch, ..)
PICTURE_SHARE = 3           # (seed, ..): which pictures train_share keeps
FIXED_PICTURE_NUMBERS = 4   # (index of the picture, ..): in validation
HIDDEN_TOKENS = 5           # (seed, step, ..)
FIXED_HIDDEN_TOKENS = 6     # (place of the sequence, ..): in validation
PROMPTS = 7                 # (seed, step, ..)
FIXED_PROMPTS = 8           # (number of the batch, ..): in validation
SCORED_PROMPTS = 9          # (number of the batch, ..): those of Figure 6
