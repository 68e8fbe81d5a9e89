"""Weights & Biases and TensorBoard, to which a run may log beside its log.jsonl. Only runs that do
load this."""
from pathlib import Path

from engine.mistakes import Mistake
from engine.writing import write_file


def check_libraries(c):
    """Raises ModuleNotFoundError if a library is missing that a run with this TrainConfig needs."""
    if c.wandb_log:
        import wandb  # noqa: F401
    if c.tensorboard:
        import torch.utils.tensorboard  # noqa: F401


class WandbLogger:
    """A W&B run: a new one, or the one that wandb_id.txt in the run directory names. Raises Mistake
    where W&B does not start, such as without a login or without a network."""

    def __init__(self, c, config):
        import wandb
        id_file = Path(c.out_dir) / 'wandb_id.txt'
        run_id = None  # W&B makes one up
        if id_file.exists():  # the run is resumed, and goes on there too
            run_id = id_file.read_text().strip() or None
        try:
            # create_new: whoever calls this may have a W&B run of their own, which stays as it is
            self.run = wandb.init(project=c.wandb_project, name=c.wandb_run_name or c.out_dir,
                                  config=config, id=run_id, resume='allow', reinit='create_new')
        except wandb.errors.Error as e:
            raise Mistake(f'W&B does not start ({e}); type wandb login, set WANDB_MODE=offline, or '
                          'leave out --wandb_log') from None
        write_file(id_file, lambda f: f.write(self.run.id))

    def log(self, step, split, numbers):
        self.run.log({f'{split}/{name}': value for name, value in numbers.items()}, step=step)

    def close(self, failed):
        self.run.finish(exit_code=int(failed))


class TensorBoardLogger:
    """Curves in the run directory. first_step: the step where a resumed run goes on; TensorBoard
    then hides older points from this step on. None: a new run."""

    def __init__(self, c, first_step):
        from torch.utils.tensorboard import SummaryWriter
        self.writer = SummaryWriter(Path(c.out_dir), purge_step=first_step)

    def log(self, step, split, numbers):
        for name, value in numbers.items():
            if value is not None:
                self.writer.add_scalar(f'{split}/{name}', value, step)

    def close(self, failed):
        self.writer.close()
