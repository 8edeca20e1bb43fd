from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trainer.saving import INDEX, Saver, load_model, parameters_sha256
from trainer.storage import Folder, open_folder

PARAMS = {"Dense_0": {"kernel": np.ones((2, 3), np.float32), "bias": np.zeros(3, np.float32)}}


def saver(job_dir: str, process_id: int = 0, keep: int = 3) -> Saver:
    return Saver(job_dir, process_id, keep)


def test_newest_checkpoint_of_an_empty_job_dir_is_nothing(job_dir: str) -> None:
    assert saver(job_dir).newest_checkpoint() == b""


def test_newest_checkpoint_is_the_last_one_saved(job_dir: str) -> None:
    for step in (5, 10):
        saver(job_dir).save_checkpoint(step, f"state {step}".encode())
    assert saver(job_dir).newest_checkpoint() == b"state 10"


def test_save_checkpoint_keeps_the_newest_few(job_dir: str) -> None:
    for step in range(1, 6):
        saver(job_dir, keep=2).save_checkpoint(step, f"state {step}".encode())
    names = open_folder(job_dir).folder("checkpoints").children("step-")
    assert [name[:13] for name in names] == ["step-00000004", "step-00000005"]


def test_save_the_same_checkpoint_again_keeps_one(job_dir: str) -> None:
    for _ in range(2):
        saver(job_dir).save_checkpoint(7, b"state")
    assert len(open_folder(job_dir).folder("checkpoints").children("step-")) == 1


class DiesBeforeTheIndex:
    """A folder in which a process dies after it has written a checkpoint, before it has written the index."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder

    def __getattr__(self, name: str) -> Any:
        return getattr(self._folder, name)

    def write(self, name: str, data: bytes) -> None:
        if name == INDEX:
            raise KeyboardInterrupt
        self._folder.write(name, data)


def test_checkpoint_that_the_index_does_not_name_does_not_exist(
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
    assert worker.save_model(PARAMS, {}) == f"{job_dir}/workertemp_2/model"
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


def test_saved_model_loads_with_its_parameters_and_description(job_dir: str) -> None:
    saver(job_dir).save_model({"Dense_0": {"kernel": np.zeros(1, np.float32)}}, {"labels": ["old"]})
    where = saver(job_dir).save_model(PARAMS, {"labels": ["zero", "one"]})
    assert where == f"{job_dir}/model"
    model = load_model(where)
    assert parameters_sha256(model.params) == parameters_sha256(PARAMS)
    assert model.description["labels"] == ["zero", "one"]
    assert len(open_folder(where).children()) == 2  # nothing of the old one


def test_load_model_where_there_is_none_says_where_it_looked(job_dir: str) -> None:
    with pytest.raises(FileNotFoundError, match=f"no model in {job_dir}"):
        load_model(job_dir)


def test_load_model_whose_parameters_are_missing_or_others_is_refused(tmp_path: Path) -> None:
    where = Path(saver(str(tmp_path)).save_model(PARAMS, {}))
    (parameters,) = where.glob("parameters-*")
    others = {"Dense_0": PARAMS["Dense_0"] | {"bias": np.ones(3, np.float32)}}
    (other,) = Path(saver(str(tmp_path / "other")).save_model(others, {})).glob("parameters-*")
    other.replace(parameters)
    with pytest.raises(ValueError, match="damaged"):
        load_model(str(where))
    parameters.unlink()
    with pytest.raises(FileNotFoundError, match="missing"):
        load_model(str(where))


@pytest.mark.parametrize(
    "other",
    [
        {"Dense_1": PARAMS["Dense_0"]},
        {"Dense_0": PARAMS["Dense_0"] | {"kernel": np.ones((3, 2), np.float32)}},
        {"Dense_0": PARAMS["Dense_0"] | {"kernel": np.ones((2, 3), np.float16)}},
        {"Dense_0": PARAMS["Dense_0"] | {"bias": np.array([0, 0, -0.0], np.float32)}},
    ],
    ids=["name", "shape", "type", "one bit"],
)
def test_parameters_sha256_differs_where_the_parameters_do(other: dict[str, Any]) -> None:
    assert parameters_sha256(other) != parameters_sha256(PARAMS)


def test_parameters_sha256_does_not_depend_on_the_order(tmp_path: Path) -> None:
    turned = {"Dense_0": dict(reversed(PARAMS["Dense_0"].items()))}
    assert parameters_sha256(turned) == parameters_sha256(PARAMS)
