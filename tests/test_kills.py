"""A run that is killed at random moments, again and again, is the run that never was.

    NANOCRATE_FAULTS=20 python -m pytest tests/test_kills.py
"""
import os
import random
import signal
import subprocess
import sys
import time

import pytest
from helpers import FAULTS, HARD, ROOT, equal, go, losses, weights

from engine.rundir import load_checkpoint


@pytest.mark.slow
def test_kills_at_random_moments_lose_nothing(tiny, tmp_path):
    words = [*tiny, *HARD, '--max_iters=600', '--eval_interval=20', '--checkpoint_minutes=0.005', '--compile=false']
    go(*words, f'--out_dir={tmp_path}/whole')
    out, rng, ended, killed, finished = tmp_path / 'killed', random.Random(0), False, 0, 0
    while killed < 2 * FAULTS:
        resume = ['--init_from=resume'] * (out / 'last.pt').exists()
        if ended:  # the last one got to the end: begin again
            assert losses(out) == losses(tmp_path / 'whole') and equal(weights(out), weights(tmp_path / 'whole'))
            resume = []
        process = subprocess.Popen([sys.executable, str(ROOT / 'train.py'), *words, *resume, f'--out_dir={out}',
                                    *['--overwrite=true'] * (not resume)], stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True, env=os.environ | {'PYTHONUNBUFFERED': '1'})
        for line in process.stdout:
            if line.startswith('step'):  # it has begun; anything may be under way when the signal comes
                break
        time.sleep(rng.random() * 2)
        process.send_signal(rng.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT]))
        said = process.communicate()[1]
        ended = process.returncode == 0
        killed, finished = killed + (not ended), finished + ended
        assert 'Traceback' not in said, said
    print(f'{killed} kills, {finished} runs that were over before the signal')
    if (out / 'last.pt').exists() and not ended:
        assert load_checkpoint(out / 'last.pt')['step'] >= 0
        go('--init_from=resume', f'--out_dir={out}')
    assert losses(out) == losses(tmp_path / 'whole') and equal(weights(out), weights(tmp_path / 'whole'))
