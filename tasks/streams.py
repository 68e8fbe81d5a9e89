"""What the random numbers of batches are for. Each is drawn with a seed of several numbers, and the
last of them is one of these. (The places of texts in training are drawn with (seed, step) alone.)
"""
PICTURE_NUMBERS = 1         # (seed, step, ..): of the pictures of a training step
PICTURE_ORDER = 2           # (seed, epoch, ..)
PICTURE_SHARE = 3           # (seed, ..): which pictures train_share keeps
FIXED_PICTURE_NUMBERS = 4   # (index of the picture, ..): in validation
HIDDEN_TOKENS = 5           # (seed, step, ..)
FIXED_HIDDEN_TOKENS = 6     # (place of the sequence, ..): in validation
PROMPTS = 7                 # (seed, step, ..)
FIXED_PROMPTS = 8           # (number of the batch, ..): in validation
SCORED_PROMPTS = 9          # (number of the batch, ..): those of AoT's Figure 6
