"""Rows of the library of trainers: its step beside a plain loop's, and two processes beside twice one."""

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
from benchmarks.training.trainers import Case, rate_of_plain_loop, rate_together, rate_without_exchange

_DIGITS, _SYNTHETIC = 1437, 896  # examples to train on
_SEQUENCES = ("--data", "synthetic", "--input-shape", "64", "--classes", "256")
_STEPS = {16: 1500, 64: 500, 256: 150}  # measured ones, by batch size: one to two seconds
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


def _steps(batch_size: int, quick: bool) -> Samples:
    _need_two_cores()
    with tempfile.TemporaryDirectory() as folder:
        case = Case("cnn", _DIGITS, batch_size, _STEPS[batch_size], Path(folder))
        library, plain_loop = partial(rate_together, case), partial(rate_of_plain_loop, case)
        return interleaved(library, plain_loop, 2 if quick else _ROUNDS, "examples/s", warm_up=0)


@cache
def _scaling(quick: bool) -> _Scaling:
    _need_two_cores()
    measured = _Scaling([], [], [])
    rates: list[Callable[[Case], float]] = [rate_together, partial(rate_together, processes=2), rate_without_exchange]
    turns = list(zip(measured, rates, strict=True))
    with tempfile.TemporaryDirectory() as folder:
        case = Case("transformer", _SYNTHETIC, 32, 8, Path(folder), _SEQUENCES)
        for _ in range(1 if quick else _ROUNDS):
            for values, rate in turns:
                values.append(rate(case))
            turns.reverse()
    return measured


def _two(bound: Callable[[_Scaling], list[float]], quick: bool) -> Samples:
    measured = _scaling(quick)
    return Samples(measured.two, bound(measured), "examples/s")


def _run(*arguments: str) -> str:
    """The last line that a program of this folder prints."""
    done = subprocess.run([sys.executable, "-m", *arguments], capture_output=True, text=True, check=False, cwd=ROOT)
    if done.returncode:
        raise RuntimeError(f"{' '.join(arguments)} failed:\n{done.stderr[-2000:]}")
    return done.stdout.splitlines()[-1]


@cache
def _planned_memory() -> dict[str, list[float]]:
    planned: dict[str, list[float]] = json.loads(_run("benchmarks.training.memory"))
    return planned


def _memory(name: str, _quick: bool) -> Samples:
    library, by_hand = _planned_memory()[name]
    return Samples([library], [by_hand], "MiB")


def _saves(quick: bool) -> Samples:
    library, orbax = (lambda who=who: float(_run("benchmarks.training.saving", who)) for who in ("library", "orbax"))
    return interleaved(library, orbax, 1 if quick else _ROUNDS, "s", warm_up=0)


_TRANSFORMER = "the small transformer, batch 32, two processes on a core each"

ROWS = (
    *(
        Row(
            f"train-{batch_size}",
            f"the library of trainers: the CNN on digits, batch {batch_size}, one core",
            "a plain loop with the same step",
            0.97,
            partial(_steps, batch_size),
            (
                "weights, metrics and the schedule, in the compiled step; Python takes 0.01 ms of it. "
                "Tried: sums stay on the device, one wait for several short steps, gradients scaled by "
                "multiplication"
            ),
            is_rate=True,
            in_quick=batch_size == 16,
        )
        for batch_size in _STEPS
    ),
    Row(
        "train-two",
        f"the library of trainers: {_TRANSFORMER}",
        "twice one process",
        0.90,
        partial(_two, lambda measured: [2 * rate for rate in measured.one]),
        "memory and caches that both cores share (next row), and the exchange",
        is_rate=True,
    ),
    Row(
        "train-two-ceiling",
        f"the library of trainers: {_TRANSFORMER}",
        "two that train at once and exchange nothing, which no exchange can surpass",
        0.97,
        partial(_two, lambda measured: measured.alone),
        "gloo: 3.5 MB a step between the processes",
        is_rate=True,
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
        "train-saves",
        "the library of trainers: a save of 300 MB every four steps, time that training waits",
        "Orbax's CheckpointManager, asynchronous",
        1.0,
        _saves,
        "no copy: JAX does not reuse memory that a save still reads; and a newer save replaces one that waits",
    ),
)
