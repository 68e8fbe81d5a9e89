"""Hidden patches of pictures, as a masked autoencoder fills them in."""
import math

from engine.networks import grid
from tasks.task_image import SHOW_PICTURES, PictureTask


class Reconstruction(PictureTask):
    """The last random numbers of a picture decide which of its patches are hidden."""
    look = SHOW_PICTURES

    def begin(self):
        super().begin()
        self.patches = math.prod(grid(self.config))
        self.train_options['draws'] += self.patches
        self.valid_options['draws'] = self.patches

    def targets(self, batch):
        """The last columns of the random numbers, float32 (B, patches)."""
        _, _, _, draws = batch
        return draws[:, -self.patches:].float()


Task = Reconstruction
