"""Progress events: one JSON object per line on stdout.

    {"event": "start", "stacks": "SIGUSR1"}          immediately; this signal dumps all stacks to stderr (task.py)
    {"event": "begin", "step", "steps"}              training starts at this step: 0, or that of the checkpoint
    {"event": "progress", "step", "steps", "epoch", "epochs", "loss", "accuracy", "examples_per_second"}
    {"event": "heartbeat", "step", "seconds"}        no other line for a while; seconds since the step changed
    {"event": "evaluating", "step"}                  during an evaluation, at the interval of heartbeats
    {"event": "evaluation", "step", "epoch", "held_out_loss", "held_out_accuracy"}   the chief and the evaluator
    {"event": "sample", "step", "prompt", "text"}    by a language model after an evaluation; the chief (--sample)
    {"event": "checkpoint", "step"}                                                  visible in job-dir; the chief
    {"event": "stopped", "step", "steps"}                                            by SIGTERM: saved, incomplete
    {"event": "saved", "model"}                                                      at the end; the chief alone
    {"event": "done", "step", "steps", "parameters_sha256"}                          at the end

`step` of `steps` and `epoch` of `epochs` count from 1. Loss, accuracy and rate are of all processes together since the
previous line; the rate is 0 if that is only the first step, which includes compilation. On a terminal, a progress bar
replaces progress and heartbeat. Lines on stdout that are not JSON are from libraries. Log messages go to stderr.
"""

import json
import logging
import math
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from tqdm import tqdm

from trainyard_trainer.errors import TrainerError
from trainyard_trainer.models.model import means
from trainyard_trainer.output.summaries import Summaries

BAR = "{desc} {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}{postfix}]"


AHEAD_SECONDS = 0.02  # of short steps that are dispatched before the devices are waited for
TOGETHER_SECONDS = 0.1  # in which lines of short steps wait for each other
LONG_STEP = 1.0  # seconds; longer steps are not computed ahead, else SIGTERM would cost two of them


class DivergenceError(TrainerError):
    """The loss is not finite."""


def report(event: str, **fields: str | float) -> None:
    line = json.dumps({"event": event, **fields})
    if sys.stdout.isatty():
        tqdm.write(line, file=sys.stdout)  # above the progress bar
    else:
        print(line + "\n", end="")  # in one write: threads report beside each other
    sys.stdout.flush()


class PeriodicReport:
    """Reports an event when it is called, at most once in so many seconds; 0: never."""

    def __init__(self, seconds: float, event: str, **fields: str | float) -> None:
        self._seconds = seconds
        self._event = event
        self._fields = fields
        self._last_report = time.monotonic()

    def __call__(self) -> None:
        now = time.monotonic()
        if self._seconds and now - self._last_report >= self._seconds:
            self._last_report = now
            report(self._event, **self._fields)


class BarHandler(logging.StreamHandler[Any]):
    """Log lines on stderr, above the progress bar."""

    def emit(self, record: logging.LogRecord) -> None:
        tqdm.write(self.format(record), file=sys.stderr)
        self.flush()


class _Interval(NamedTuple):
    """The steps since the last report."""

    step: int = 0
    epoch: int = 0
    examples: int = 0
    sums: Any = None  # may still be being computed
    seconds: float = 0.0


class Progress:
    """Reports metrics every `every` steps and at the end of each epoch.

    The sums of an interval stay on the devices: they are fetched once, after the next step was dispatched, so that the
    devices do not wait. Lines of short steps are written together: after a step, Python's code and data are no longer
    in the caches of a CPU, so that a line alone takes as long as a third of a step of 1 ms.

    Attributes:
        sums: argument of the next step, which adds its own.
    """

    def __init__(
        self, step: int, steps: int, epochs: int, every: int, heartbeat: float, summaries: Summaries,
        names: tuple[str, ...], no_sums: Any, to_host: Callable[[Any], Any] = np.asarray, ahead: int = 1,
    ) -> None:  # fmt: skip
        """Start a report of training.

        Args:
            step: the last completed one.
            heartbeat: seconds without a line before a heartbeat; 0: never.
            names: of the sums, without the number of examples, which is the last.
            no_sums: sums of no step, on the devices.
            to_host: see Strategy.
            ahead: number of short steps that may be in flight.
        """
        self._step = step
        self._steps = steps
        self._epochs = epochs
        self._every = every
        self._summaries = summaries
        self._names = names
        self._to_host = to_host
        self.sums = self._no_sums = no_sums
        self._current = _Interval()
        self._due: list[_Interval] = []
        self._written = -math.inf
        self._previous: Any = None
        self._waited = time.perf_counter()
        self._is_long = True  # until a step is measured
        self._in_flight, self._ahead, self._most_ahead = 0, 1, ahead
        self._clock: float | None = None
        on_terminal = sys.stdout.isatty() and sys.stderr.isatty()
        self._bar = tqdm(total=steps, initial=step, bar_format=BAR, dynamic_ncols=True) if on_terminal else None
        self._heartbeat = HeartbeatThread(heartbeat if not on_terminal else 0, step)

    def start_epoch(self) -> None:
        """Exclude the time between two epochs from the rate."""
        if self._clock is not None:
            self._clock = time.perf_counter()

    def add(self, step: int, epoch: int, examples: int, sums: Any) -> None:
        """Record the new sums, whose computation may be in progress; `examples` of the step is over all processes.

        Raises:
            DivergenceError: the loss is not finite.
        """
        done, self._step = self._step, step
        if self._clock is None:  # the first step is mostly compilation: exclude it from the rate
            self._check_finite(step, means(self._names, self._to_host(sums)))
            self._clock = time.perf_counter()
            examples = 0
        self._current = _Interval(step, epoch, self._current.examples + examples, sums)
        self.sums = sums
        self._wait(sums)
        self._heartbeat.update(step)
        if self._bar is not None:
            self._bar.update(step - done)
        if self._due and time.perf_counter() - self._written >= TOGETHER_SECONDS:
            self._report_due()
        if step // self._every > done // self._every:
            self._due.append(self._current._replace(seconds=self._lap()))
            self._current, self.sums = _Interval(), self._no_sums
            if self._is_long:  # its sums are computed, and the next step is far
                self._report_due()

    def _wait(self, sums: Any) -> None:
        """Bound the steps in flight: one keeps the devices busy, and more delay decisions such as stopping.

        A wait costs as much as a tenth of a step of 1 ms, so several short steps share one.
        """
        self._in_flight += 1
        if self._in_flight >= self._ahead:
            if self._previous is not None:
                jax.block_until_ready(self._previous)
            if self._is_long or time.perf_counter() - self._waited > LONG_STEP:
                jax.block_until_ready(sums)
            now = time.perf_counter()
            seconds = (now - self._waited) / self._in_flight
            self._is_long = seconds > LONG_STEP
            self._ahead = min(self._most_ahead, max(1, int(AHEAD_SECONDS / max(seconds, 1e-6))))
            self._in_flight, self._waited = 0, now
        self._previous = sums

    def flush(self) -> None:
        """Report the remaining steps, at the end of an epoch."""
        if self._current.sums is not None:
            self._due.append(self._current)
        if self._due:  # the devices may still compute the last interval
            jax.block_until_ready(self._due[-1].sums)
            last = self._due.pop()
            self._due.append(last._replace(seconds=last.seconds + self._lap()))
        self._report_due()
        self._current, self.sums = _Interval(), self._no_sums

    def _lap(self) -> float:
        """Seconds since the call before."""
        before, self._clock = self._clock, time.perf_counter()
        return self._clock - (before or self._clock)

    def _report_due(self) -> None:
        due, self._due = self._due, []
        for interval in due:
            self._report(interval)
        self._written = time.perf_counter()

    def _report(self, interval: _Interval) -> None:
        values = means(self._names, self._to_host(interval.sums))
        self._check_finite(interval.step, values)
        values = {name: round(value, 6) for name, value in values.items()}
        values["examples_per_second"] = (
            round(interval.examples / interval.seconds, 1) if interval.examples and interval.seconds else 0.0
        )
        if self._bar is None:
            position: dict[str, Any] = {"step": interval.step, "steps": self._steps}
            report("progress", **position, epoch=interval.epoch, epochs=self._epochs, **values)
        else:
            self._bar.set_description(f"epoch {interval.epoch}/{self._epochs}")
            metrics = (f"{name} {values[name]:.4f}" for name in self._names)
            self._bar.set_postfix_str(", ".join([f"{values['examples_per_second']:,.0f} examples/s", *metrics]))
        self._summaries.scalars("train", interval.step, **values)
        self._heartbeat.postpone()

    def _check_finite(self, step: int, values: dict[str, float]) -> None:
        if not math.isfinite(values["loss"]):
            raise DivergenceError(
                f"The loss is {values['loss']} at step {step}. Only finite states are saved: the same command "
                "continues from the last checkpoint; try a lower --learning-rate."
            )

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
        self._heartbeat.stop()


class HeartbeatThread:
    """Reports the current step when there has been no other output for a while, from a thread of its own."""

    def __init__(self, seconds: float, step: int) -> None:
        self._seconds = seconds
        self._step = step
        self._changed = self._last_report = time.monotonic()
        self._stopped = threading.Event()
        if seconds:
            threading.Thread(target=self._run, name="heartbeat", daemon=True).start()

    def update(self, step: int) -> None:
        self._step, self._changed = step, time.monotonic()

    def postpone(self) -> None:
        self._last_report = time.monotonic()

    def stop(self) -> None:
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.wait(max(self._last_report + self._seconds - time.monotonic(), 0.01)):
            now = time.monotonic()
            if now - self._last_report >= self._seconds:
                report("heartbeat", step=self._step, seconds=round(now - self._changed, 1))
                self._last_report = now
