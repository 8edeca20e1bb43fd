"""Trainings of the template and of the library: CPU of a step, beside a lean loop's; CPU of a start; examples/s."""

import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.training import repeated_digits
from benchmarks.training.processes import Line, Process, tf_configs

_EPOCHS = "100000"  # never reached: measurements end the process
_TURNS, _TURN_S = 8, 1.0
_WARM = 3  # progress lines


@dataclass(frozen=True)
class Case:
    """A training. `arguments`: of Python; `batch_size`: of each process; `steps`: measured ones."""

    arguments: tuple[str, ...]
    batch_size: int
    steps: int
    folder: Path

    @property
    def command(self) -> list[str]:
        flags = ("--batch-size", str(self.batch_size), "--epochs", _EPOCHS)
        return [*self.arguments, *flags, "--job-dir", tempfile.mkdtemp(dir=self.folder)]

    @property
    def environment(self) -> dict[str, str]:
        """The compilation cache, which the first round fills."""
        return {"JAX_COMPILATION_CACHE_DIR": str(self.folder / "compiled")}


def on_digits(trainer: str, batch_size: int, steps: int, folder: Path) -> Case:
    """The template's network, or the library's `--model cnn`, on the repeated digits: no epoch ends meanwhile."""
    if trainer == "template":
        return Case(("-m", "benchmarks.training.repeated_digits"), batch_size, steps, folder)
    data, held_out = repeated_digits.write(folder)
    flags = ("--data", str(data), "--held-out-data", str(held_out), "--evaluate-every", "0")
    return Case(("-m", "trainyard_trainer.task", *flags), batch_size, steps, folder)


def cpu_by_turns(trainer: str, case: Case) -> tuple[float, float]:
    """Milliseconds of CPU of a step of a trainer, and of a lean loop, on one core.

    Both train at once, but one is always paused: what else the machine does changes within seconds.
    """
    lean = ["-m", "benchmarks.training.handwritten", trainer, "--batch-size", str(case.batch_size)]
    with ExitStack() as stack:
        both = []
        for command in (case.command, [*lean, "--print-every", str(case.steps)]):
            process = stack.enter_context(Process(command, [0], case.environment))
            process.wait_for_lines(_WARM)
            process.pause()
            both.append(process)
        before = [process.progress[-1] for process in both]
        for turn in range(_TURNS):
            for process in both if turn % 2 else reversed(both):
                process.resume()
                time.sleep(_TURN_S)
                process.pause()
        ours, others = (_cpu_of_step(first, process.progress[-1]) for first, process in zip(before, both, strict=True))
        return ours, others


def cpu_of_starts(arguments: Sequence[str]) -> tuple[float, float]:
    """Seconds of CPU until the first progress line: of a training in a new job directory, and of the same command after
    it was killed behind its first checkpoint."""
    with tempfile.TemporaryDirectory() as folder:
        seconds = []
        for _ in range(2):
            # A home directory without what earlier trainings have compiled.
            home = {"HOME": folder, "XDG_CACHE_HOME": f"{folder}/cache"}
            with Process([*arguments, "--epochs", _EPOCHS, "--job-dir", f"{folder}/job"], [0], home) as process:
                process.wait_for_lines(1)
                seconds.append(process.progress[0].cpu)
                process.wait_for(lambda: any(line.event["event"] == "checkpoint" for line in list(process.lines)))
        first, second = seconds
        return first, second


def rate_together(case: Case, processes: int = 1) -> float:
    """Examples/s of one process, or of several on a core each that train together."""
    with _training(case, cores=list(range(processes))) as (chief, *_):
        chief.wait_for_lines(_WARM)
        first = chief.progress[_WARM - 1]
        chief.wait_for_steps(first.event["step"] + case.steps)
        return processes * _rate(case, first, chief.progress[-1])


def rate_without_exchange(case: Case) -> float:
    """The sum of two trainings, on a core each, while both train."""
    with _training(case, cores=[0]) as (one,), _training(case, cores=[1]) as (other,):
        both = (one, other)
        for process in both:
            process.wait_for_lines(_WARM)
        since = max(process.progress[_WARM - 1].at for process in both)
        for process in both:  # as many steps each, concurrently
            process.wait_for_steps(process.progress[-1].event["step"] + case.steps)
        until = min(process.progress[-1].at for process in both)
        while_both = [[line for line in process.progress if since <= line.at <= until] for process in both]
        return sum(_rate(case, lines[0], lines[-1]) for lines in while_both)


@contextmanager
def _training(case: Case, cores: list[int]) -> Iterator[list[Process]]:
    """A training with a process on each core, the chief first."""
    with ExitStack() as stack:
        command = case.command
        yield [
            stack.enter_context(Process(command, [core], {**case.environment, **config}))
            for core, config in zip(cores, tf_configs(len(cores)), strict=True)
        ]


def _rate(case: Case, first: Line, last: Line) -> float:
    """Examples/s of a process between two progress lines. A padded last batch of an epoch takes as long as a full one,
    and is counted as one."""
    return case.batch_size * (int(last.event["step"]) - int(first.event["step"])) / (last.at - first.at)


def _cpu_of_step(first: Line, last: Line) -> float:
    return 1000 * (last.cpu - first.cpu) / (int(last.event["step"]) - int(first.event["step"]))
