"""Classes of pictures, and what all tasks with pictures have in common."""
from engine.mistakes import Mistake
from tasks import BaseTask, augment
from tasks.accuracies import accuracies
from tasks.files import read_meta
from tasks.pictures import ImageSplit

# all tasks with pictures have these settings, and other tasks do not
PICTURE_SETTINGS = ('train_share', 'probe_interval', 'crop_scale', 'flip', 'eval_view', 'eval_crop')
SHOW_PICTURES = 'sample.py --ckpt={out_dir} --image=PICTURE'


class PictureTask(BaseTask):
    kind = 'images'
    settings = (*BaseTask.settings, *PICTURE_SETTINGS, 'randaugment_n', 'randaugment_m',
                'randaugment_scale')
    unit = 'pictures'

    def begin(self):
        if self.valid.split == 'test' and self.train is not None:
            self.note = ('no val split, so it validates on test: judge by the last step, not the '
                         'best')
        self.image_size = self.config.image_size
        self.valid_options = {'image_size': self.image_size}
        self.train_options = {
            'image_size': self.image_size,
            'draws': augment.draws_needed(self.augment),
            'cut_at_random': self.augment.crop_scale < 1,  # else training crops lie in the centre
        }

    @classmethod
    def held_out(cls, folder):
        return 'val' if 'val' in read_meta(folder)['splits'] else 'test'

    @classmethod
    def open_split(cls, c, config, folder, split):
        share = c.train_share if split == 'train' else 1.0
        return ImageSplit(folder, split, c.workers, share, c.seed)

    def pixels(self, batch, training):
        """Pictures as the network takes them, float32 (B, C, H, W)."""
        pictures, sizes, _, draws = batch
        pictures = self.device.send(pictures)
        if training:
            return augment.train_pictures(pictures, sizes, draws, self.image_size, self.augment)
        return augment.eval_pictures(pictures, sizes, self.image_size, self.augment.view)

    def targets(self, batch):
        """y: here the classes, int64 (B,)."""
        return batch[2]

    def take(self, batch, training=False):
        return self.pixels(batch, training), self.device.send(self.targets(batch))


class Classification(PictureTask):
    look = SHOW_PICTURES

    def begin(self):
        super().begin()
        if self.train is not None and len(self.train.classes) == 1:
            raise Mistake(f'{self.c.dataset} has one class, from which a classifier learns '
                          'nothing: give --model=crate_mae, --model=vit_mae or --model=dino, which '
                          'use no classes')

    def metrics(self, out, loss, y):
        return accuracies(out, loss, y)

    def error(self, metrics):
        return 1 - metrics['top1']


Task = Classification
