"""What every command stands on: settings, device, optimizers, checkpoints, run directories.

Import it before torch. OpenMP's threads wait for each other in a loop that keeps the core busy. If another program uses
that core, training seems to hang. With GOMP_SPINCOUNT a thread sleeps after so many rounds of the loop.
"""
import os

# datasets that need no download, and the kind of each
NO_DOWNLOAD = {'stdlib': 'text', 'shapes': 'images', 'linear': 'functions', 'sparse_linear': 'functions'}

if not any(name.startswith(('OMP_', 'GOMP_')) for name in os.environ):
    os.environ['GOMP_SPINCOUNT'] = '5000'
