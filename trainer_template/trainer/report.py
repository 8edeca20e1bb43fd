"""What a running trainer says: one JSON object a line on stdout, as soon as it is known.

    {"event": "progress", "step", "steps", "epoch", "epochs", "loss", "accuracy", "examples_per_second"}
    {"event": "evaluation", "step", "epoch", "held_out_loss", "held_out_accuracy"}   after each epoch; the chief alone
    {"event": "stopped", "step", "steps"}                                            by SIGTERM: saved, not finished
    {"event": "saved", "model"}                                                      at the end; the chief alone
    {"event": "done", "step", "steps", "parameters_sha256"}                          at the end

`step` of `steps` and `epoch` of `epochs` count from 1. Loss, accuracy and rate are those of all processes together
since the line before; where that is only a process's first step, with its compilation, the rate is 0.
A line on stdout that is not JSON is some library's. Everything meant for reading goes to stderr.
"""

import json
import math
import time
from typing import NamedTuple

import jax
import numpy as np


class Sums(NamedTuple):
    """Of a step's examples; their ratios are means. As the devices give them: float32 [L], the same on all."""

    loss: jax.Array
    correct: jax.Array
    examples: jax.Array


def report(event: str, **fields: str | float) -> None:
    print(json.dumps({"event": event, **fields}), flush=True)


class Progress:
    """Reports every so many steps, and at the end of each epoch, what was measured since the last time."""

    def __init__(self, steps: int, epochs: int, every: int) -> None:
        self._steps = steps
        self._epochs = epochs
        self._every = every
        self._step = self._epoch = 0
        self._unreported: list[Sums] = []
        self._clock: float | None = None
        self._timed_examples = 0

    def start_epoch(self) -> None:
        """What happens between two epochs is not training: keep it out of the rate."""
        if self._clock is not None:
            self._clock = time.perf_counter()

    def add(self, step: int, epoch: int, examples: int, sums: Sums) -> None:
        """Take what a step measured on its examples (so many over all processes); it may still be being computed.

        Raises:
            FloatingPointError: the loss is no longer a number.
        """
        self._step, self._epoch = step, epoch
        self._unreported.append(sums)
        if self._clock is not None:
            self._timed_examples += examples
        else:  # the first step is mostly compilation: the rate is that of the steps after it
            jax.block_until_ready(sums)
            self._clock = time.perf_counter()
        # Wait for the step before this one. With one step prepared ahead the devices do not idle; with more, what is
        # decided here (to stop after this step, say) would come long before the devices get there.
        jax.block_until_ready(self._unreported[-2:-1])
        if step % self._every == 0:
            self.flush()

    def flush(self) -> None:
        """Report what is left, as at the end of an epoch."""
        if not self._unreported:
            return
        loss, correct, examples = np.asarray(jax.device_get(self._unreported))[..., 0].sum(axis=0).tolist()
        if not math.isfinite(loss):
            raise FloatingPointError(f"The loss is {loss} at step {self._step}: try a lower --learning-rate.")
        now = time.perf_counter()
        seconds = now - (self._clock or now)
        report(
            "progress",
            step=self._step,
            steps=self._steps,
            epoch=self._epoch,
            epochs=self._epochs,
            loss=round(loss / examples, 6),
            accuracy=round(correct / examples, 6),
            examples_per_second=round(self._timed_examples / seconds, 1) if self._timed_examples else 0.0,
        )
        self._unreported.clear()
        self._clock, self._timed_examples = now, 0
