"""Files of the docker runtime, with damage and full disks."""

import errno
from pathlib import Path

import pytest

from trainyard_agent.engines.docker import run_files
from trainyard_agent.engines.docker.run_files import ContainerRunRecord, RunFiles
from trainyard_protocol.states import Reason
from unit.agent.stub_server import run_order

RUN, OTHER = "1" * 32, "2" * 32
TASK = "master-replica-0"


def record(run_id: str = RUN, **given: object) -> ContainerRunRecord:
    order = run_order(run_id)
    fields = {"run_id": run_id, "addresses": {TASK: "h:1"}, "grace_s": 5.0, "order": order, **given}
    return ContainerRunRecord.model_validate(fields)


def full_disk(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


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


@pytest.mark.parametrize("run_id", ["../x", "a/b", "", "." * 3])
def test_what_is_no_run_id_makes_no_directory(tmp_path: Path, run_id: str) -> None:
    with pytest.raises(ValueError, match="is not a run id"):
        RunFiles(tmp_path / "root").create(record(run_id))
    assert [path.name for path in tmp_path.iterdir()] == ["root"]
