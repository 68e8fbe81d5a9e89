"""What every command stands on: settings, device, processes, optimizers, checkpoints."""
