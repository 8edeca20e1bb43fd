from typing import Any

import pytest

from trainer.output.saving import INDEX, Saver
from trainer.storage import Folder, open_folder


def saver(job_dir: str, process_id: int = 0, keep: int = 3) -> Saver:
    return Saver(job_dir, process_id, keep)


def test_newest_checkpoint_of_an_empty_job_dir_is_empty(job_dir: str) -> None:
    assert saver(job_dir).newest_checkpoint() == b""


def test_newest_checkpoint_is_the_last_one_saved(job_dir: str) -> None:
    for step in (5, 10):
        saver(job_dir).save_checkpoint(step, f"state {step}".encode())
    assert saver(job_dir).newest_checkpoint() == b"state 10"


def test_save_checkpoint_keeps_the_newest(job_dir: str) -> None:
    for step in range(1, 6):
        saver(job_dir, keep=2).save_checkpoint(step, f"state {step}".encode())
    names = open_folder(job_dir).folder("checkpoints").children("step-")
    assert [name[:13] for name in names] == ["step-00000004", "step-00000005"]


def test_save_the_same_checkpoint_again_keeps_one(job_dir: str) -> None:
    for _ in range(2):
        saver(job_dir).save_checkpoint(7, b"state")
    assert len(open_folder(job_dir).folder("checkpoints").children("step-")) == 1


class DiesBeforeTheIndex:
    """A folder whose process dies after writing a checkpoint and before writing the index."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder

    def __getattr__(self, name: str) -> Any:
        return getattr(self._folder, name)

    def write(self, name: str, data: bytes) -> None:
        if name == INDEX:
            raise KeyboardInterrupt
        self._folder.write(name, data)


def test_checkpoint_that_is_not_in_the_index_is_ignored(
    job_dir: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    saver(job_dir).save_checkpoint(5, b"state 5")
    dying = saver(job_dir)
    monkeypatch.setattr(dying, "_checkpoints", DiesBeforeTheIndex(open_folder(job_dir).folder("checkpoints")))
    with pytest.raises(KeyboardInterrupt):
        dying.save_checkpoint(10, b"state 10")
    assert saver(job_dir).newest_checkpoint() == b"state 5"

    saver(job_dir).save_checkpoint(15, b"state 15")
    names = open_folder(job_dir).folder("checkpoints").children("step-")
    assert [name[:13] for name in names] == ["step-00000005", "step-00000015"]


def test_damaged_checkpoint_falls_back_to_the_one_before(job_dir: str) -> None:
    for step in (5, 10, 15):
        saver(job_dir).save_checkpoint(step, f"state {step}".encode())
    checkpoints = open_folder(job_dir).folder("checkpoints")
    _, torn, missing = checkpoints.children("step-")
    checkpoints.write(torn, b"stat")
    checkpoints.remove(missing)
    assert saver(job_dir).newest_checkpoint() == b"state 5"


def test_worker_saves_beside_the_chief_and_leaves_nothing(job_dir: str) -> None:
    chief, worker = saver(job_dir), saver(job_dir, process_id=2)
    for one in (chief, worker):
        one.save_checkpoint(5, b"state")
    assert worker.save_model({"model.json": b"{}"}) == f"{job_dir}/workertemp_2/model"
    assert open_folder(job_dir).children() == ["checkpoints", "workertemp_2"]
    for one in (chief, worker):
        one.close()
    assert open_folder(job_dir).children() == ["checkpoints"]


def test_chief_prepares_by_removing_what_workers_left_when_they_were_killed(job_dir: str) -> None:
    saver(job_dir).save_checkpoint(5, b"state")
    for process_id in (1, 3):
        saver(job_dir, process_id).save_checkpoint(5, b"state")
    saver(job_dir).prepare()
    assert open_folder(job_dir).children() == ["checkpoints"]


def test_worker_prepares_by_removing_its_own_alone(job_dir: str) -> None:
    for process_id in (1, 10):
        saver(job_dir, process_id).save_checkpoint(5, b"state")
    saver(job_dir, process_id=1).prepare()
    assert open_folder(job_dir).children() == ["workertemp_10"]


def test_checkpoints_are_listed_oldest_first_and_read_when_whole(job_dir: str) -> None:
    for step in (5, 10):
        saver(job_dir).save_checkpoint(step, f"state {step}".encode())
    first, second = saver(job_dir).checkpoints()
    assert (first.step, second.step) == (5, 10)
    assert saver(job_dir).read_checkpoint(second) == b"state 10"
    open_folder(job_dir).folder("checkpoints").write(first.name, b"stat")
    assert saver(job_dir).read_checkpoint(first) is None


def test_model_replaces_an_earlier_one(job_dir: str) -> None:
    saver(job_dir).save_model({"function-1": b"old", "model.json": b"{}"})
    where = saver(job_dir).save_model({"function-2": b"new", "model.json": b"{}"})
    assert where == f"{job_dir}/model"
    assert open_folder(where).children() == ["function-2", "model.json"]


class RefusesAfter:
    """A folder whose writes fail after the first ones, like a bucket whose quota is exceeded."""

    def __init__(self, folder: Folder, writes: int) -> None:
        self._folder, self._writes = folder, writes

    def __getattr__(self, name: str) -> Any:
        return getattr(self._folder, name)

    def write(self, name: str, data: bytes) -> None:
        if self._writes == 0:
            raise OSError("quota exceeded")
        self._writes -= 1
        self._folder.write(name, data)


@pytest.mark.parametrize("writes", [0, 1])
def test_save_that_fails_at_any_write_leaves_the_last_good_checkpoint(
    job_dir: str, monkeypatch: pytest.MonkeyPatch, writes: int
) -> None:
    saver(job_dir).save_checkpoint(5, b"state 5")
    failing = saver(job_dir)
    folder = RefusesAfter(open_folder(job_dir).folder("checkpoints"), writes)
    monkeypatch.setattr(failing, "_checkpoints", folder)
    with pytest.raises(OSError, match="quota exceeded"):
        failing.save_checkpoint(10, b"state 10")
    assert saver(job_dir).newest_checkpoint() == b"state 5"
