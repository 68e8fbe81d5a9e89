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


def test_a_clock_counts_steps_and_not_what_lies_between(time):
    """Of a run that had 50 s before it was resumed at step 7: steps of 2 s, a lap after every second one, and 30 s of
    validation after the fourth."""
    clock = Clock(50.0, step=7)
    for step in range(7, 15):
        if step == 11:
            clock.stop()
            time.now += 30
            clock.start(step)
        time.now += 2
        if step % 2 == 0:
            clock.lap(step)
            assert clock.step_seconds == pytest.approx(2.0)
            assert clock.training_seconds == pytest.approx(50 + 2 * (step - 6))


def test_the_time_left_counts_validations_and_not_the_first_step(time):
    clock = Clock(0.0, step=0)
    time.now += 99  # compiles
    clock.lap(0)
    assert clock.seconds_left(0, 21) is None
    for step in range(1, 11):
        time.now += 2
        if step == 5:
            clock.stop()
            time.now += 10
            clock.start(step)
    clock.lap(10)
    assert clock.seconds_left(10, 21) == pytest.approx(10 * 3.0)
