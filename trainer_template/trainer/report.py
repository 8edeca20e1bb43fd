"""What a running trainer says: one JSON object a line on stdout, as soon as it is known.

    {"event": "start", "stacks": "SIGUSR1"}          at once: on this signal every stack is written to stderr (task.py)
    {"event": "begin", "step", "steps"}              training goes on from here: step 0, or that of the checkpoint
    {"event": "progress", "step", "steps", "epoch", "epochs", "loss", "accuracy", "examples_per_second"}
                                     with parameter servers also "staleness_mean" and "staleness_max"
    {"event": "heartbeat", "step", "seconds"}      nothing else was said for a while; so long since the step changed
    {"event": "evaluating", "step"}                  by the evaluation itself, while it lasts: as often as a heartbeat
    {"event": "evaluation", "step", "epoch", "held_out_loss", "held_out_accuracy"}   the chief and the evaluator
    {"event": "checkpoint", "step"}                                                  visible in job-dir; the chief
    {"event": "stopped", "step", "steps"}                                            by SIGTERM: saved, not finished
    {"event": "saved", "model"}                                                      at the end; the chief alone
    {"event": "done", "step", "steps", "parameters_sha256"}                          at the end

`step` of `steps` and `epoch` of `epochs` count from 1. Loss, accuracy and rate are those of all processes together
since the line before; where that is only a process's first step, with its compilation, the rate is 0. On a terminal,
a bar takes the place of progress and heartbeat. A line on stdout that is not JSON is some library's. Everything meant
for reading goes to stderr.
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
from trainer.models import Sums
from trainer.summaries import Summaries

BAR = "{desc} {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}{postfix}]"


class DivergenceError(TrainerError):
    """The loss is no longer a number."""


def report(event: str, **fields: str | float) -> None:
    tqdm.write(json.dumps({"event": event, **fields}), file=sys.stdout)  # above the bar, where there is one
    sys.stdout.flush()


class Whenever:
    """Reports the same at every call, but not more often than so many seconds; 0: never."""

    def __init__(self, seconds: float, event: str, **fields: str | float) -> None:
        self._seconds = seconds
        self._event = event
        self._fields = fields
        self._spoke = time.monotonic()

    def __call__(self) -> None:
        now = time.monotonic()
        if self._seconds and now - self._spoke >= self._seconds:
            self._spoke = now
            report(self._event, **self._fields)


class BarHandler(logging.StreamHandler[Any]):
    """Log lines on stderr, above the bar where there is one."""

    def emit(self, record: logging.LogRecord) -> None:
        tqdm.write(self.format(record), file=sys.stderr)
        self.flush()


class _Step(NamedTuple):
    """What one step measured; perhaps it is still being computed."""

    number: int
    epoch: int
    examples: int
    sums: Sums
    staleness: int | None


class Progress:
    """Reports every so many steps, and at the end of each epoch, what was measured since the last time.

    Nothing waits for it: a step's numbers are fetched when the one after it has been handed to the devices.
    """

    def __init__(
        self, step: int, steps: int, epochs: int, every: int, heartbeat: float, summaries: Summaries
    ) -> None:
        """Args:
        step: done before.
        every: steps between two lines.
        heartbeat: seconds without a line after which one says where this process stands; 0: never.
        """
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
        self._heart = Heart(heartbeat if not on_terminal else 0, step)

    def start_epoch(self) -> None:
        """What happens between two epochs is not training: keep it out of the rate."""
        if self._clock is not None:
            self._clock = time.perf_counter()

    def add(self, step: int, epoch: int, examples: int, sums: Sums, staleness: int | None = None) -> None:
        """Take what a step measured on its examples (so many over all processes); it may still be being computed.

        Raises:
            DivergenceError: the loss is no longer a number.
        """
        done, self._step = self._step, step
        if (
            self._clock is None
        ):  # the first step is mostly compilation: the rate is that of the steps after it
            jax.block_until_ready(sums)
            self._clock = time.perf_counter()
            self._unreported.append(_Step(step, epoch, 0, sums, staleness))
        else:
            self._unreported.append(_Step(step, epoch, examples, sums, staleness))
        # Wait for the step before this one. With one step prepared ahead the devices do not idle; with more, what is
        # decided here (to stop after this step, say) would come long before the devices get there.
        if len(self._unreported) > 1:
            jax.block_until_ready(self._unreported[-2].sums)
        self._heart.beat(step)
        self._bar.update(step - done)
        if self._due:
            self._report(self._unreported[:-1])
        self._due = step // self._every > done // self._every

    def flush(self) -> None:
        """Report what is left, as at the end of an epoch."""
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
            place: dict[str, Any] = {"step": last.number, "steps": self._steps}
            report("progress", **place, epoch=last.epoch, epochs=self._epochs, **values)
        else:
            self._bar.set_description(f"epoch {last.epoch}/{self._epochs}")
            rate = f"{values['examples_per_second']:,.0f} examples/s"
            self._bar.set_postfix_str(f"{rate}, loss {values['loss']:.4f}, accuracy {values['accuracy']:.4f}")
        self._summaries.scalars("train", last.number, **values)
        self._heart.spoken()
        self._unreported = self._unreported[len(measured) :]
        self._clock = time.perf_counter()

    def close(self) -> None:
        self._bar.close()
        self._heart.stop()


class Heart:
    """Says where a process stands when it has said nothing for a while: a thread, which no stuck step can hold up."""

    def __init__(self, seconds: float, step: int) -> None:
        self._seconds = seconds
        self._step = step
        self._changed = self._spoke = time.monotonic()
        self._stopped = threading.Event()
        if seconds:
            threading.Thread(target=self._run, name="heartbeat", daemon=True).start()

    def beat(self, step: int) -> None:
        self._step, self._changed = step, time.monotonic()

    def spoken(self) -> None:
        self._spoke = time.monotonic()

    def stop(self) -> None:
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.wait(max(self._spoke + self._seconds - time.monotonic(), 0.01)):
            now = time.monotonic()
            if now - self._spoke >= self._seconds:
                report("heartbeat", step=self._step, seconds=round(now - self._changed, 1))
                self._spoke = now
