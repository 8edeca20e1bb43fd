"""Files of the docker runtime, with damage and full disks."""

import errno
from datetime import UTC, datetime
from pathlib import Path

import pytest

from trainyard_agent.engines.docker import run_files
from trainyard_agent.engines.docker.run_files import ContainerRunRecord, RunFiles
from trainyard_agent.runtimes.exits import never_ran
from trainyard_protocol.states import Reason, ReplicaState
from trainyard_protocol.wire.sync import ReplicaReport
from unit.agent.stub_server import run_order

RUN, OTHER = "1" * 32, "2" * 32
TASK = "master-replica-0"
REPORT = ReplicaReport(
    task=TASK, state=ReplicaState.EXITED, exit=never_ran(Reason.VANISHED, "Gone.", datetime(2026, 1, 1, tzinfo=UTC))
)


def record(run_id: str = RUN, **given: object) -> ContainerRunRecord:
    order = run_order(run_id)
    fields = {"run_id": run_id, "addresses": {TASK: "h:1"}, "grace_s": 5.0, "order": order, **given}
    return ContainerRunRecord.model_validate(fields)


def full_disk(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_everything_is_there_again_for_the_next_agent(tmp_path: Path) -> None:
    files = RunFiles(tmp_path)
    files.create(record(launched=True, host="boot 1:2", memory={TASK: 7}))
    files.save_stop(RUN, [TASK], 3.0, Reason.HOST_LOST)
    files.save_exit(RUN, REPORT)
    again = RunFiles(tmp_path)
    assert again.records() == files.records()
    assert again.stop(RUN) == files.stop(RUN)
    assert again.report(RUN, TASK) == REPORT


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"run_id": 1}'])
def test_run_with_a_damaged_record_is_swept_and_hides_no_other(tmp_path: Path, damage: str) -> None:
    files = RunFiles(tmp_path)
    files.create(record())
    files.create(record(OTHER))
    (tmp_path / RUN / "run.json").write_text(damage)
    again = RunFiles(tmp_path)
    assert [found.run_id for found in again.records()] == [OTHER]
    again.sweep()
    assert [path.name for path in tmp_path.iterdir()] == [OTHER]


def test_removal_that_was_cut_short_is_finished_by_the_next_agent(tmp_path: Path) -> None:
    files = RunFiles(tmp_path)
    files.create(record())
    (tmp_path / RUN).rename(tmp_path / f".removed-{RUN}")
    again = RunFiles(tmp_path)
    assert again.records() == []
    again.sweep()
    assert list(tmp_path.iterdir()) == []


def test_creation_on_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = RunFiles(tmp_path)
    monkeypatch.setattr(run_files, "write_json", full_disk)
    with pytest.raises(OSError, match="No space left"):
        files.create(record())
    assert files.record(RUN) is None
    assert list(tmp_path.iterdir()) == []


def test_stop_on_a_full_disk_is_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    files = RunFiles(tmp_path)
    files.create(record())
    monkeypatch.setattr(run_files, "write_json", full_disk)
    files.save_stop(RUN, [TASK], 1.0, Reason.STOPPED)
    stop = files.stop(RUN)
    assert stop is not None
    assert stop.tasks == (TASK,)
    assert "No space left" in caplog.text


def test_exit_on_a_full_disk_is_not_told_yet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = RunFiles(tmp_path)
    files.create(record())
    monkeypatch.setattr(run_files, "write_json", full_disk)
    with pytest.raises(OSError, match="No space left"):
        files.save_exit(RUN, REPORT)
    assert files.report(RUN, TASK) is None


@pytest.mark.parametrize("run_id", ["../x", "a/b", "", "." * 3])
def test_what_is_no_run_id_makes_no_directory(tmp_path: Path, run_id: str) -> None:
    with pytest.raises(ValueError, match="is not a run id"):
        RunFiles(tmp_path / "root").create(record(run_id))
    assert [path.name for path in tmp_path.iterdir()] == ["root"]
