"""Weights & Biases and TensorBoard, to which a run may log beside its log.jsonl. Only runs that do
load this."""
from pathlib import Path

from engine.mistakes import Mistake


class WandbLogger:
    """The W&B run of a run directory: a new one, or the one that wandb_id.txt names, because a
    resumed run goes on there too. Raises Mistake where W&B does not know the user."""

    def __init__(self, c, config):
        import wandb
        id_file = Path(c.out_dir) / 'wandb_id.txt'
        run_id = None  # W&B makes one up
        if id_file.exists():
            run_id = id_file.read_text().strip() or None
        try:
            # create_new: whoever calls this may have a W&B run of their own, which stays as it is
            self.run = wandb.init(project=c.wandb_project, name=c.wandb_run_name or c.out_dir,
                                  config=config, id=run_id, resume='allow', reinit='create_new')
        except wandb.errors.UsageError as e:
            raise Mistake(f'W&B does not start ({e}); set WANDB_MODE=offline, or leave out '
                          '--wandb_log') from None
        id_file.write_text(self.run.id)

    def log(self, step, split, numbers):
        self.run.log({f'{split}/{name}': value for name, value in numbers.items()}, step=step)

    def close(self, failed):
        self.run.finish(exit_code=int(failed))


class TensorBoardLogger:
    """Curves in the run directory. first_step: where a resumed run goes on, or None; what the run
    has logged from there on is no longer shown."""

    def __init__(self, c, first_step):
        from torch.utils.tensorboard import SummaryWriter
        self.writer = SummaryWriter(Path(c.out_dir), purge_step=first_step)

    def log(self, step, split, numbers):
        for name, value in numbers.items():
            if value is not None:
                self.writer.add_scalar(f'{split}/{name}', value, step)

    def close(self, failed):
        self.writer.close()
