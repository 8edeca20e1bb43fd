"""The template's processes: a job of one or more of them, and how fast it trains by its own progress lines."""

import contextlib
import json
import socket
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks.training.cases import Case
from benchmarks.training.processes import MeasurementError, Process, running

LOG_EVERY = 10  # the template's own default


@contextlib.contextmanager
def job(
    case: Case,
    places: Sequence[Sequence[int]],
    folder: Path,
    environment: Mapping[str, str] | None = None,
    job_dir: Path | None = None,
    log_every: int | None = None,
    checkpoint_every: int | None = None,
) -> Iterator[list[Process]]:
    """A training with one process at each place (the cores it may use), the chief first. It is killed at the end.

    Args:
        folder: for what it writes, unless job_dir says where.
    """
    where = str(job_dir or tempfile.mkdtemp(dir=folder))
    # Some lines while it is measured, however slow the steps are.
    every = log_every or max(1, min(LOG_EVERY, case.steps // 4))
    arguments = case.trainer(where, every, checkpoint_every)
    configs = tf_configs(len(places))
    commands = [
        (arguments, cores, {**(environment or {}), **config})
        for cores, config in zip(places, configs, strict=True)
    ]
    with running(*commands) as processes:
        yield processes


def wait_for_steps(process: Process, steps: int) -> None:
    process.wait_for(lambda: any(line.event["step"] >= steps for line in process.lines("progress")))


def rate(
    process: Process, case: Case, replicas: int, since: float = 0.0, until: float = float("inf")
) -> float:
    """Examples/s by a trainer's progress lines: of all steps but the first, as many examples in each.

    An epoch's last batch may be padded: it takes as long as any other, so here it counts as much.

    Args:
        since, until: only what was measured wholly between these times.
    """
    batch_size, train_examples = replicas * case.batch_size, case.train_examples
    examples, seconds = 0, 0.0
    before, before_at = 1, 0.0  # the rate of the first line leaves out the first step
    for at, event in process.lines("progress"):
        step, line_rate = event["step"], event["examples_per_second"]
        if line_rate and before_at >= since and at <= until:
            steps_of_an_epoch = event["steps"] // event["epochs"]
            ends_epoch = step % steps_of_an_epoch == 0
            padding = steps_of_an_epoch * batch_size - train_examples if ends_epoch else 0
            computed = (step - before) * batch_size
            examples += computed
            seconds += (computed - padding) / line_rate
        before, before_at = step, at
    if not examples:
        raise MeasurementError("No progress line lies in the time that was to be measured.")
    return examples / seconds


def tf_configs(number: int) -> list[dict[str, str]]:
    """TF_CONFIG of a chief and workers on this machine; of one process alone, nothing."""
    if number == 1:
        return [{}]
    addresses = [f"127.0.0.1:{port}" for port in _free_ports(number)]
    cluster = {"chief": addresses[:1], "worker": addresses[1:]}
    tasks = [("chief", 0), *(("worker", index) for index in range(number - 1))]
    return [
        {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}})}
        for kind, index in tasks
    ]


def _free_ports(number: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(number)]
        return [server.getsockname()[1] for server in sockets]
