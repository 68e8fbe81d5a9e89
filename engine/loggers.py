"""Weights & Biases and TensorBoard, to which a run may log beside its log.jsonl. Only runs that do
load this."""
from pathlib import Path

from engine.mistakes import Mistake


class WandbLogger:
    """A W&B run. run_id: of the one that goes on; None begins a new one. Raises Mistake where W&B
    does not know the user."""

    def __init__(self, c, config, run_id):
        import wandb
        try:
            # create_new: whoever calls this may have a W&B run of their own, which stays as it is
            self.run = wandb.init(project=c.wandb_project, name=c.wandb_run_name or c.out_dir,
                                  config=config, id=run_id, resume='allow', reinit='create_new')
        except wandb.errors.UsageError as e:
            raise Mistake(f'W&B does not start ({e}); set WANDB_MODE=offline, or leave out '
                          '--wandb_log') from None

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
