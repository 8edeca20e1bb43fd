"""Examples/s of trainings of the library, and of the same step in a plain loop."""

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.training.processes import Process, tf_configs

_EPOCHS = "1000000"  # never reached: measurements end the process
_LOG_EVERY = 10  # the library's own default


@dataclass(frozen=True)
class Case:
    """A training. `examples`: their number in an epoch; `data`: flags of synthetic ones; `steps`: measured ones."""

    model: str
    examples: int
    batch_size: int
    steps: int
    folder: Path
    data: tuple[str, ...] = ()

    def library(self) -> list[str]:
        """Arguments of Python for the library, with at least four progress lines."""
        log_every = max(1, min(_LOG_EVERY, self.steps // 4))
        return [
            *("-m", "trainyard_trainer.task", "--model", self.model, *self.data, "--batch-size", str(self.batch_size)),
            *("--epochs", _EPOCHS, "--evaluate-every", "0", "--checkpoint-every", _EPOCHS),
            *("--log-every", str(log_every), "--job-dir", tempfile.mkdtemp(dir=self.folder)),
        ]

    def plain_loop(self) -> list[str]:
        """Arguments of Python for the same step in a plain loop, of the CNN on the digits."""
        return [
            *("-m", "benchmarks.training.handwritten"),
            *("--batch-size", str(self.batch_size), "--steps", str(self.steps)),
        ]

    @property
    def environment(self) -> dict[str, str]:
        """The compilation cache, which the first round fills."""
        return {"JAX_COMPILATION_CACHE_DIR": str(self.folder / "compiled")}


def rate_of_plain_loop(case: Case) -> float:
    with Process(case.plain_loop(), [0], case.environment) as process:
        process.wait_for(lambda: process.lines)
        return float(process.lines[0].event["examples_per_second"])


def rate_together(case: Case, processes: int = 1) -> float:
    """One process, or several on a core each that train together."""
    with _training(case, cores=list(range(processes))) as (chief, *_):
        chief.wait_for_steps(case.steps)
        return _rate(chief, case, processes)


def rate_without_exchange(case: Case) -> float:
    """The sum of two trainings, on a core each, while both train."""
    with _training(case, cores=[0]) as (first,), _training(case, cores=[1]) as (second,):
        both = (first, second)
        for process in both:
            process.wait_for_steps(1)
        since = max(process.progress[0].at for process in both)
        for process in both:  # as many steps each, concurrently
            process.wait_for_steps(process.progress[-1].event["step"] + case.steps)
        until = min(process.progress[-1].at for process in both)
        return sum(_rate(process, case, 1, since, until) for process in both)


@contextmanager
def _training(case: Case, cores: list[int]) -> Iterator[list[Process]]:
    """A training of the library with a process on each core, the chief first."""
    with ExitStack() as stack:
        arguments = case.library()
        yield [
            stack.enter_context(Process(arguments, [core], {**case.environment, **config}))
            for core, config in zip(cores, tf_configs(len(cores)), strict=True)
        ]


def _rate(process: Process, case: Case, replicas: int, since: float = 0.0, until: float = float("inf")) -> float:
    """Examples/s of all steps after the first, by the progress lines whose interval is within these times. The padded
    last batch of an epoch is counted as a full one, since it takes as long."""
    batch_size = replicas * case.batch_size
    examples, seconds = 0, 0.0
    before, before_at = 1, 0.0  # the rate of the first line excludes the first step
    for at, event in process.progress:
        step, line_rate = event["step"], event["examples_per_second"]
        if line_rate and before_at >= since and at <= until:
            steps_per_epoch = event["steps"] // event["epochs"]
            ends_epoch = step % steps_per_epoch == 0
            padding = steps_per_epoch * batch_size - case.examples if ends_epoch else 0
            computed = (step - before) * batch_size
            examples += computed
            seconds += (computed - padding) / line_rate
        before, before_at = step, at
    if not examples:
        raise RuntimeError("There is no progress line in the measured interval.")
    return examples / seconds
