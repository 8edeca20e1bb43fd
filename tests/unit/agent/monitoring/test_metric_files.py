"""The metric file of a trial: what its program may make of it, and when it is read."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from trainyard_agent.engines.fake import FakeHost, FakeRuntime, Script
from trainyard_agent.host.clock import ManualClock
from trainyard_agent.monitoring.metric_files import PATIENCE_S, READ_S, MetricFiles, Observed
from trainyard_agent.monitoring.metric_lines import measurements_in, others_in
from trainyard_agent.runtimes.base import Handle
from trainyard_agent.runtimes.exits import never_ran
from trainyard_agent.runtimes.run_directories import METRIC_BYTES, read_metric_file
from trainyard_protocol.states import Reason, ReplicaState
from trainyard_protocol.wire.sync import MAX_OTHERS, ReplicaReport, TrialMeasurement

CHIEF = "master-replica-0"
HANDLE = Handle(run_id="r", runtime="fake", addresses={CHIEF: "h:1"}, grace_s=1, metric_tag="acc")
HYPERTUNE = {"acc": "0.5", "checkpoint_path": "", "global_step": "10", "timestamp": 1.5, "trial": "7"}


def line(**fields: object) -> bytes:
    return json.dumps(HYPERTUNE | fields).encode()


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (line(), [(10, 0.5)]),
        (line(acc=-1, global_step=None), [(0, -1.0)]),
        (line(global_step="99999999999999999999999"), [(2**62, 0.5)]),
        (line(global_step="-3") + b"\n\n" + line(global_step="2.0") + b'\n{"acc": "0.', [(0, 0.5), (2, 0.5)]),
        (line(acc="NaN") + b"\n" + line(acc="1e999") + b"\n" + line(acc=True) + b"\n" + line(acc=[1]), []),
        (b'{"acc": ' + b"9" * 5000 + b"}", []),
        (b'{"acc": ' + b"[" * 4000, []),
        (b"\xff\xfe\n[]\n7\nnull\n" + b'{"other": "1"}', []),
        (b"\0" * 8192, []),
    ],
)
def test_lines_that_are_no_measurement_are_left_out(content: bytes, expected: list[tuple[int, float]]) -> None:
    assert [(one.step, one.value) for one in measurements_in(content, "acc")] == expected


def test_other_metrics_of_a_file_are_their_newest_values_and_few() -> None:
    assert others_in(line() + b"\n" + line(acc="0.75", lr="high", global_step=11)) == {
        "acc": TrialMeasurement(step=11, value=0.75)
    }
    assert len(others_in(line(**{f"metric_{number}": number for number in range(100)}))) == MAX_OTHERS


def _link(path: Path) -> None:
    secret = path.parent.parent / "secret"
    secret.write_bytes(line())
    path.symlink_to(secret)


def _second_name(path: Path) -> None:
    secret = path.parent.parent / "secret"
    secret.write_bytes(line())
    path.hardlink_to(secret)


def _linked_directory(path: Path) -> None:
    elsewhere = path.parent.parent / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / path.name).write_bytes(line())
    path.parent.rmdir()
    path.parent.symlink_to(elsewhere)


@pytest.mark.parametrize(
    "make",
    [
        lambda _: None,
        _link,
        _second_name,
        _linked_directory,
        Path.mkdir,
        os.mkfifo,
        lambda path: path.write_bytes(b" " * (METRIC_BYTES + 1)),
        lambda path: path.symlink_to("/dev/zero"),
        lambda path: path.parent.rmdir(),
    ],
)
def test_anything_but_a_small_regular_file_of_its_own_is_empty(make: Callable[[Path], object], tmp_path: Path) -> None:
    path = tmp_path / "tmp" / "hypertune.metrics"
    path.parent.mkdir()
    make(path)
    assert read_metric_file(path) == b""
    if path.parent.is_dir() and not os.path.lexists(path):
        path.write_bytes(line())
        assert read_metric_file(path) == line()


class Readings(FakeRuntime):
    """A runtime with one trial. `content` is its file; an error is raised."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(FakeHost(clock, lambda _: Script()))
        self.content: bytes | Exception = b""
        self.reads = 0

    def read_metrics(self, run_id: str, task: str) -> bytes:
        assert (run_id, task) == ("r", CHIEF)
        self.reads += 1
        if isinstance(self.content, Exception):
            raise self.content
        return self.content


def test_file_is_read_at_intervals_and_after_the_end_before_that_is_reported() -> None:
    clock = ManualClock()
    runtime = Readings(clock)
    files = MetricFiles(runtime, clock)
    running = ReplicaReport(task=CHIEF, state=ReplicaState.RUNNING)
    ended = ReplicaReport(task=CHIEF, state=ReplicaState.EXITED, exit=never_ran(Reason.COMPLETED, "", clock.now()))

    def report(replica: ReplicaReport) -> tuple[ReplicaReport, list[float]]:
        seen = files.with_measurements({"r": HANDLE}, {"r": (replica,)})["r"]
        return seen.replicas[0], [one.value for one in seen.measurements]

    runtime.content = line(acc=1)
    assert [report(running)[1], report(running)[1], runtime.reads] == [[1.0], [1.0], 1]
    clock.advance(READ_S)
    runtime.content = b""  # it is being written anew
    assert report(running)[1] == [1.0]
    runtime.content = OSError("the engine is away")
    reported, _ = report(ended)
    assert (reported.state, reported.exit) == (ReplicaState.RUNNING, None)
    runtime.content = line(acc=2)
    assert report(ended) == (ended, [2.0])
    runtime.content = line(acc=3)
    assert report(ended)[1] == [2.0]  # it was read after the end: nothing more can come

    other = MetricFiles(runtime, clock)
    runtime.content = OSError("the engine is away for good")
    assert other.with_measurements({"r": HANDLE}, {"r": (ended,)})["r"].replicas[0].exit is None
    clock.advance(PATIENCE_S)
    assert other.with_measurements({"r": HANDLE}, {"r": (ended,)})["r"] == Observed((ended,))
