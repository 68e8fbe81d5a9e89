"""How long training takes."""
import time


class Clock:
    """Measures the time of training steps. It stands still during validations, and while files are
    written.

    training_seconds    of all steps so far, those before a resumed run included
    step_seconds        the mean of the steps that the last lap measured
    """

    def __init__(self, training_seconds, step):
        self.training_seconds = training_seconds
        self.step_seconds = 0.0
        self.first_lap_step = None
        self.start(step)

    def start(self, step):
        """Training begins, or goes on, with this step."""
        self.start_time = time.perf_counter()
        self.start_step = step

    def stop(self):
        """Training stands still until the next start."""
        self.training_seconds += time.perf_counter() - self.start_time

    def lap(self, step):
        """This step is done. Measure the steps since the last lap or start."""
        now = time.perf_counter()
        seconds = now - self.start_time
        self.training_seconds += seconds
        self.step_seconds = seconds / (step + 1 - self.start_step)
        if self.first_lap_step is None:  # the first step, which may compile, is not in the guess
            self.first_lap_step = step
            self.first_lap_time = now
        self.start(step + 1)

    def seconds_left(self, step, max_iters):
        """A guess how long the run will take from this step, whose lap is just over, to max_iters,
        validations included. None at the first lap."""
        steps = step - self.first_lap_step
        if steps == 0:
            return None
        seconds_per_step = (self.start_time - self.first_lap_time) / steps
        return seconds_per_step * (max_iters - step - 1)
