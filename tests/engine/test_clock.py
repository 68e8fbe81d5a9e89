"""How long training takes: without validations, and not guessed from the first step."""
from types import SimpleNamespace

import pytest

from engine import clock
from engine.clock import Clock


@pytest.fixture
def time(monkeypatch):
    time = SimpleNamespace(now=100.0)
    monkeypatch.setattr(clock, 'time', SimpleNamespace(perf_counter=lambda: time.now))
    return time


def test_a_step_counts_no_validation_and_the_time_left_counts_them_but_not_the_first_step(time):
    clock = Clock(0.0, step=0)
    time.now += 99  # compiles
    clock.lap(0)
    assert clock.seconds_left(0, 21) is None
    for step in range(1, 11):
        if step == 5:
            clock.stop()
            time.now += 10
            clock.start(step)
        time.now += 2
    clock.lap(10)
    assert clock.step_seconds == pytest.approx(2.0)
    assert clock.training_seconds == pytest.approx(99 + 10 * 2.0)
    assert clock.seconds_left(10, 21) == pytest.approx(10 * 3.0)
