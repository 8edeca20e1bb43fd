"""Rows of the trainer template and of the library of trainers: a step beside a lean loop's, two processes beside twice
one, a save's hold on the loop, a second start beside the first."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

from benchmarks.rows import LeftOut, Row, Samples, interleaved
from benchmarks.training import memory
from benchmarks.training.processes import ROOT
from benchmarks.training.trainers import (
    Case,
    cpu_by_turns,
    cpu_of_starts,
    on_digits,
    rate_together,
    rate_without_exchange,
)

_TRAINERS = {"library": ("train", "the library of trainers"), "template": ("template", "the trainer template")}
_PRINTED = {16: 400, 64: 100, 256: 20}  # steps between two lines of the lean loop, by batch size: 0.2 s
_PROGRAMS = {"library": ("-m", "trainyard_trainer.task"), "template": ("-m", "trainer.task")}
_TRANSFORMER = (
    "--model transformer --data synthetic --input-shape 64 --classes 256 --evaluate-every 0 --log-every 2 "
    "--checkpoint-every 1000000"
)
_ROUNDS = 4


class _Scaling(NamedTuple):
    """Examples/s of each round: one process, two that train together, and the sum of two that train alone at once."""

    one: list[float]
    two: list[float]
    alone: list[float]


def _need_two_cores() -> None:
    affinity = getattr(os, "sched_getaffinity", lambda _: ())(0)
    if len(affinity) < 2 or not shutil.which("taskset"):
        raise LeftOut("It needs Linux with taskset and two cores.")


def _steps(trainer: str, batch_size: int, quick: bool) -> Samples:
    _need_two_cores()
    samples = Samples([], [], "ms of CPU")
    with tempfile.TemporaryDirectory() as folder:
        case = on_digits(trainer, batch_size, _PRINTED[batch_size], Path(folder))
        for _ in range(1 if quick else _ROUNDS):
            ours, lean = cpu_by_turns(trainer, case)
            samples.measured.append(ours)
            samples.against.append(lean)
    return samples


def _starts(trainer: str, quick: bool) -> Samples:
    _need_two_cores()
    rounds = [cpu_of_starts(_PROGRAMS[trainer]) for _ in range(2 if quick else _ROUNDS)]
    return Samples([second for _, second in rounds], [first for first, _ in rounds], "s of CPU")


def _scaled(trainer: str, folder: Path) -> Case:
    """The training of two processes."""
    if trainer == "template":
        return on_digits(trainer, 1024, 60, folder)
    return Case((*_PROGRAMS[trainer], *_TRANSFORMER.split()), 32, 24, folder)


@cache
def _scaling(trainer: str, quick: bool) -> _Scaling:
    _need_two_cores()
    measured = _Scaling([], [], [])
    rates: list[Callable[[Case], float]] = [rate_together, partial(rate_together, processes=2), rate_without_exchange]
    turns = list(zip(measured, rates, strict=True))
    with tempfile.TemporaryDirectory() as folder:
        case = _scaled(trainer, Path(folder))
        for _ in range(1 if quick else _ROUNDS):
            for values, rate in turns:
                values.append(rate(case))
            turns.reverse()
    return measured


def _two(trainer: str, bound: Callable[[_Scaling], list[float]], quick: bool) -> Samples:
    measured = _scaling(trainer, quick)
    return Samples(measured.two, bound(measured), "examples/s")


def _run(*arguments: str) -> str:
    """The last line that a program of this folder prints."""
    trainers = os.pathsep.join(str(ROOT / folder) for folder in ("trainer_template", "trainer_library"))
    done = subprocess.run(
        [sys.executable, "-m", *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": trainers},
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(arguments)} failed:\n{done.stderr[-2000:]}")
    return done.stdout.splitlines()[-1]


@cache
def _planned_memory() -> dict[str, list[float]]:
    planned: dict[str, list[float]] = json.loads(_run("benchmarks.training.memory"))
    return planned


def _memory(name: str, _quick: bool) -> Samples:
    library, other = _planned_memory()[name]
    return Samples([library], [other], "MiB")


def _saves(trainer: str, megabytes: int, quick: bool) -> Samples:
    def seconds(who: str) -> float:
        return float(_run("benchmarks.training.saving", who, str(megabytes)))

    rounds = 1 if quick else _ROUNDS
    return interleaved(partial(seconds, trainer), partial(seconds, "orbax"), rounds, "s", warm_up=0)


_TWO = {
    "library": "the small transformer, batch 32, two processes on a core each",
    "template": "its network, batch 1024, two processes on a core each",
}
_BOUND_OF_STEP = {
    "library": "weights and metrics in the compiled step, and 0.01 ms of Python. Tried: sums stay on the device, one "
    "wait for several short steps, lines of short steps written together",
    "template": "pmap, a tenth of a millisecond more than jit, and a progress line every ten steps",
}
_BOUND_OF_EXCHANGE = {
    "library": "gloo: 3.5 MB a step between the processes",
    "template": "gloo: 0.6 MB a step between the processes",
}
_BOUND_OF_SAVE = {
    "library": "no copy: JAX does not reuse memory that a save still reads; and a newer save replaces one that waits",
    "template": "the save before, which is waited for",
}

ROWS = (
    *(
        Row(
            f"{name}-{batch_size}",
            f"{title}: a step of the CNN on digits, batch {batch_size}, with a progress line every ten steps, CPU of "
            "one core",
            f"a lean jit loop for this network, optimizer and these batches, which prints the loss every {printed} "
            "steps",
            1.03,
            partial(_steps, trainer, batch_size),
            _BOUND_OF_STEP[trainer],
            in_quick=batch_size == 16,
        )
        for trainer, (name, title) in _TRAINERS.items()
        for batch_size, printed in _PRINTED.items()
    ),
    *(
        Row(
            f"{name}-second-start",
            f"{title}: CPU of a second start until its first progress line, from a checkpoint",
            "the first start in this job directory, which compiles",
            0.5,
            partial(_starts, trainer),
            "imports of JAX, Flax and Optax, and tracing",
        )
        for trainer, (name, title) in _TRAINERS.items()
    ),
    *(
        row
        for trainer, (name, title) in _TRAINERS.items()
        for row in (
            Row(
                f"{name}-two",
                f"{title}: {_TWO[trainer]}",
                "twice one process",
                0.90,
                partial(_two, trainer, lambda measured: [2 * rate for rate in measured.one]),
                "memory and caches that both cores share (next row), and the exchange",
                is_rate=True,
            ),
            Row(
                f"{name}-two-ceiling",
                f"{title}: {_TWO[trainer]}",
                "two that train at once and exchange nothing, which no exchange can surpass",
                0.97,
                partial(_two, trainer, lambda measured: measured.alone),
                _BOUND_OF_EXCHANGE[trainer],
                is_rate=True,
            ),
        )
    ),
    *(
        Row(
            f"train-memory-{name}",
            f"the library of trainers: GPT-2 of 124 million parameters on 8 devices, {name}, memory of one by XLA",
            "a jit loop for this network alone, with the same layout",
            1.05,
            partial(_memory, name),
            "parameters that are gathered, and the logits",
            in_quick=False,
        )
        for name in memory.SIZES
    ),
    Row(
        "train-memory-lora",
        f"the library of trainers: GPT-2 of 124 million parameters, --lora {memory.RANK}, memory of a device by XLA",
        "all its parameters are trained",
        0.6,
        partial(_memory, "lora"),
        "the parameters, and what the backward pass keeps of the forward one",
        in_quick=False,
    ),
    *(
        Row(
            f"{name}-saves{suffix}",
            f"{title}: a save of {megabytes} MB every four steps, time that the loop is held",
            "Orbax's CheckpointManager, asynchronous",
            1.2,
            partial(_saves, trainer, megabytes),
            _BOUND_OF_SAVE[trainer],
            in_quick=megabytes == 96,
        )
        for trainer, (name, title) in _TRAINERS.items()
        for megabytes, suffix in ((300, ""), (96, "-96"))
    ),
)
