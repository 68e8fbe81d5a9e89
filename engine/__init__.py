"""What every command stands on: settings, device, optimizers, checkpoints, run directories."""
