"""Hidden patches of pictures, as a masked autoencoder fills them in."""
import math

from engine.networks import grid
from tasks.task_image import Classification


class Reconstruction(Classification):
    """The last random numbers of a picture decide which of its patches are hidden. There are no
    classes to get right."""

    def __init__(self, c, augmentation, config, device, train, valid):
        super().__init__(c, augmentation, config, device, train, valid)
        self.patches = math.prod(grid(config))
        self.train_options['draws'] += self.patches
        self.valid_options['draws'] = self.patches

    def targets(self, batch):
        """The random numbers, float32 (B, patches)."""
        return batch[3][:, -self.patches:].float()

    def metrics(self, out, loss, y):
        return len(y), {'loss': loss}

    def error(self, metrics):
        return metrics['loss']


Task = Reconstruction
