"""Jobs of the template with one or more processes, and their training rate by their progress lines."""

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
    cores_of: Sequence[Sequence[int]],
    folder: Path,
    environment: Mapping[str, str] | None = None,
    job_dir: Path | None = None,
    log_every: int | None = None,
    checkpoint_every: int | None = None,
) -> Iterator[list[Process]]:
    """Run a training with one process for each element of `cores_of`, the chief first; it is killed at the end.

    Args:
        folder: parent of the job directory, unless job_dir is given.
    """
    url = str(job_dir or tempfile.mkdtemp(dir=folder))
    # At least four lines during the measurement.
    every = log_every or max(1, min(LOG_EVERY, case.steps // 4))
    arguments = case.trainer(url, every, checkpoint_every)
    configs = tf_configs(len(cores_of))
    commands = [
        (arguments, cores, {**(environment or {}), **config})
        for cores, config in zip(cores_of, configs, strict=True)
    ]
    with running(*commands) as processes:
        yield processes


def wait_for_steps(process: Process, steps: int) -> None:
    process.wait_for(lambda: any(line.event["step"] >= steps for line in process.lines("progress")))


def rate(
    process: Process, case: Case, replicas: int, since: float = 0.0, until: float = float("inf")
) -> float:
    """Examples/s of all steps after the first, by a trainer's progress lines.

    The padded last batch of an epoch is counted as a full one, since it takes as long.

    Args:
        since, until: use only lines whose interval is within these times.
    """
    batch_size, train_examples = replicas * case.batch_size, case.train_examples
    examples, seconds = 0, 0.0
    before, before_at = 1, 0.0  # the rate of the first line excludes the first step
    for at, event in process.lines("progress"):
        step, line_rate = event["step"], event["examples_per_second"]
        if line_rate and before_at >= since and at <= until:
            steps_per_epoch = event["steps"] // event["epochs"]
            ends_epoch = step % steps_per_epoch == 0
            padding = steps_per_epoch * batch_size - train_examples if ends_epoch else 0
            computed = (step - before) * batch_size
            examples += computed
            seconds += (computed - padding) / line_rate
        before, before_at = step, at
    if not examples:
        raise MeasurementError("There is no progress line in the measured interval.")
    return examples / seconds


def tf_configs(number: int) -> list[dict[str, str]]:
    """TF_CONFIG of a chief and workers on this machine; empty for a single process."""
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
