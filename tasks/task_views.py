"""Self-distillation: a student learns from a teacher, who sees other crops of the same picture."""
import math

import torch

from tasks.task_image import PICTURE_SETTINGS, PictureTask
from tasks.views import check, draws_needed, views

# when validation warns of a collapse
NEARLY_ALL = 0.99
NEARLY_NONE = 0.01


class Distillation(PictureTask):
    """Validation reports the loss and, for DINO, how much the teacher's outputs say, in nats:

    entropy      the mean entropy of an output: log K if all K answers have the same probability
    information  how much an output tells of its picture: the entropy of the mean output of a batch
                 less the mean entropy. It is 0 if all pictures get the same output, and the
                 logarithm of their number if each of a batch has its own

    SimDINO's network reports both parts of its loss, `alignment` and `expansion`, itself."""
    settings = (*PICTURE_SETTINGS, 'local_crops', 'local_size', 'local_scale', 'jitter', 'hue',
                'grey', 'blur')
    score = 'eval.py --ckpt={out_dir}{data_dir} --knn=20'  # it names no classes
    look = 'analyze.py attention --ckpt={out_dir}{data_dir}'

    def begin(self):
        super().begin()
        if self.train is not None and len(self.train.classes) == 1:
            self.score = ''  # neighbours of one class say nothing
        check(self.augment, self.config.patch_size)
        draws = draws_needed(self.augment)
        self.train_options['draws'] = draws
        self.valid_options['draws'] = draws
        if self.is_simdino:
            self.note = f'{self.note}\n{self.note_of_collapse()}'.strip()

    @property
    def is_simdino(self):
        return getattr(self.config, 'objective', 'dino') == 'simdino'

    @property
    def shares_passes(self):
        """SimDINO's coding rate is that of the batch_size pictures of a pass."""
        return self.is_simdino

    def note_of_collapse(self):
        """Whether a collapse, in which all pictures have the same features, can last."""
        least = least_correlation(self.config, self.c.batch_size)
        where = f'pictures come apart if their crops correlate above {least:.2f}'
        if least < 0:
            return f'a collapse would not last: {where}'
        return f'a collapse may last: {where}; give a smaller --alignment_weight or --eps'

    def pixels(self, batch, training):
        pictures, sizes, _, draws = batch
        return views(self.device.send(pictures), sizes, draws, self.image_size, self.augment)

    def metrics(self, out, loss, y):
        """out: for DINO, the probabilities that the teacher gives both large crops, (2, B, K)."""
        if self.is_simdino:
            return len(y), {'loss': loss}
        entropy = torch.special.entr(out).sum(-1).mean()
        entropy_of_mean = torch.special.entr(out.mean((0, 1))).sum(-1).mean()
        information = entropy_of_mean - entropy
        return len(y), {'loss': loss, 'entropy': entropy, 'information': information}

    def error(self, metrics):
        # DINO's centre moves, and the loss with it: those of two steps cannot be compared
        return metrics['loss'] if self.is_simdino else None

    def warning(self, metrics):
        if self.is_simdino:
            return self.warning_of_simdino(metrics)
        most_entropy = math.log(self.config.out_dim)
        most_information = math.log(min(self.config.out_dim, self.c.batch_size))
        if metrics['entropy'] > NEARLY_ALL * most_entropy:
            return ('the teacher says nothing of any picture, all outputs alike; give a lower '
                    '--teacher_temp')
        if metrics['information'] < NEARLY_NONE * most_information:
            return ('the teacher says the same of all pictures; give a smaller '
                    '--centre_momentum')
        return ''

    def warning_of_simdino(self, metrics):
        rows = self.c.batch_size
        least = expansion_in(1, self.config, rows)          # all features are one vector
        most = expansion_in(min(self.config.bottleneck_dim, rows), self.config, rows)
        if metrics['expansion'] < least + NEARLY_NONE * (most - least):
            return ('the features of all pictures are alike; give a smaller --alignment_weight or '
                    '--eps')
        return ''


def expansion_in(directions, config, N):
    """The expansion of SimDINO in nats, if equally many of N features lie on each of so many
    orthogonal directions. It is the largest that is possible with min(p, N) directions."""
    p = config.bottleneck_dim
    gamma = 1 / p + 1 / N
    return gamma * directions / 2 * math.log1p(p / (config.eps * directions))


def least_correlation(config, N):
    """The correlation above which SimDINO leaves a collapse, a float below 1.

    Suppose the features of N pictures have almost collapsed to one vector. What is left of their
    differences has, over the pictures, some correlation between two crops of a picture. If it is
    larger than this number, larger differences have a smaller loss, so they grow:

        1 - h gamma r^2 / (1 + r) / w       with r = p / eps, and h = 1, or 1/2 if pair=True

    w is the alignment_weight. docs/pictures.md has the assumptions.
    """
    p = config.bottleneck_dim
    gamma = 1 / p + 1 / N
    h = 0.5 if config.pair else 1.0
    r = p / config.eps
    gain = h * gamma * r ** 2 / (1 + r)                     # of the expansion
    return 1 - gain / config.alignment_weight


Task = Distillation
