"""Progress events: one JSON object per line on stdout.

    {"event": "start", "stacks": "SIGUSR1"}          immediately; this signal dumps all stacks to stderr (task.py)
    {"event": "begin", "step", "steps"}              training starts at this step: 0, or that of the checkpoint
    {"event": "progress", "step", "steps", "epoch", "epochs", "loss", "accuracy", "examples_per_second"}
                                     with parameter servers also "staleness_mean" and "staleness_max"
    {"event": "heartbeat", "step", "seconds"}        no other line for a while; seconds since the step changed
    {"event": "evaluating", "step"}                  during an evaluation, at the interval of heartbeats
    {"event": "evaluation", "step", "epoch", "held_out_loss", "held_out_accuracy"}   the chief and the evaluator
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
from typing import Any, NamedTuple

import jax
import numpy as np
from tqdm import tqdm

from trainer.errors import TrainerError
from trainer.models.model import Sums
from trainer.output.summaries import Summaries

BAR = "{desc} {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}{postfix}]"


class DivergenceError(TrainerError):
    """The loss is not finite."""


def report(event: str, **fields: str | float) -> None:
    tqdm.write(json.dumps({"event": event, **fields}), file=sys.stdout)  # above the progress bar
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


class _Step(NamedTuple):
    """The metrics of one step, which may still be being computed."""

    number: int
    epoch: int
    examples: int
    sums: Sums
    staleness: int | None


class Progress:
    """Reports metrics every `every` steps and at the end of each epoch.

    The metrics of a step are fetched after the next step was dispatched, so that the devices do not wait.
    """

    def __init__(
        self, step: int, steps: int, epochs: int, every: int, heartbeat: float, summaries: Summaries
    ) -> None:
        """`step` is the last completed one. `heartbeat`: seconds without a line before a heartbeat; 0: never."""
        self._step = step
        self._steps = steps
        self._epochs = epochs
        self._every = every
        self._summaries = summaries
        self._unreported: list[_Step] = []
        self._due = False
        self._clock: float | None = None
        on_terminal = sys.stdout.isatty() and sys.stderr.isatty()
        self._bar = tqdm(
            total=steps, initial=step, bar_format=BAR, disable=not on_terminal, dynamic_ncols=True
        )
        self._heartbeat = HeartbeatThread(heartbeat if not on_terminal else 0, step)

    def start_epoch(self) -> None:
        """Exclude the time between two epochs from the rate."""
        if self._clock is not None:
            self._clock = time.perf_counter()

    def add(self, step: int, epoch: int, examples: int, sums: Sums, staleness: int | None = None) -> None:
        """Record the metrics of a step, whose computation may be in progress; `examples` is over all processes.

        Raises:
            DivergenceError: the loss is not finite.
        """
        done, self._step = self._step, step
        if self._clock is None:  # the first step is mostly compilation: exclude it from the rate
            jax.block_until_ready(sums)
            self._clock = time.perf_counter()
            self._unreported.append(_Step(step, epoch, 0, sums, staleness))
        else:
            self._unreported.append(_Step(step, epoch, examples, sums, staleness))
        # Wait for the previous step: one step in flight keeps the devices busy, and more would delay decisions such as
        # stopping after this step.
        if len(self._unreported) > 1:
            jax.block_until_ready(self._unreported[-2].sums)
        self._heartbeat.update(step)
        self._bar.update(step - done)
        if self._due:
            self._report(self._unreported[:-1])
        self._due = step // self._every > done // self._every

    def flush(self) -> None:
        """Report the remaining steps, at the end of an epoch."""
        if self._unreported:
            self._report(list(self._unreported))
        self._due = False

    def _report(self, measured: list[_Step]) -> None:
        sums = jax.device_get([step.sums for step in measured])
        loss, correct, examples = np.asarray(sums).reshape(len(sums), 3, -1)[..., 0].sum(axis=0).tolist()
        last = measured[-1]
        if not math.isfinite(loss):
            raise DivergenceError(f"The loss is {loss} at step {last.number}: try a lower --learning-rate.")
        seconds = time.perf_counter() - (self._clock or 0)
        timed = sum(step.examples for step in measured)
        values = {
            "loss": round(loss / examples, 6),
            "accuracy": round(correct / examples, 6),
            "examples_per_second": round(timed / seconds, 1) if timed else 0.0,
        }
        stalenesses = [step.staleness for step in measured if step.staleness is not None]
        if stalenesses:
            values["staleness_mean"] = round(float(np.mean(stalenesses)), 3)
            values["staleness_max"] = max(stalenesses)
        if self._bar.disable:
            position: dict[str, Any] = {"step": last.number, "steps": self._steps}
            report("progress", **position, epoch=last.epoch, epochs=self._epochs, **values)
        else:
            self._bar.set_description(f"epoch {last.epoch}/{self._epochs}")
            rate = f"{values['examples_per_second']:,.0f} examples/s"
            self._bar.set_postfix_str(f"{rate}, loss {values['loss']:.4f}, accuracy {values['accuracy']:.4f}")
        self._summaries.scalars("train", last.number, **values)
        self._heartbeat.postpone()
        self._unreported = self._unreported[len(measured) :]
        self._clock = time.perf_counter()

    def close(self) -> None:
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
