"""Checkpoints on a path and in a bucket."""

from __future__ import annotations

import json
import re
import threading
from functools import partial
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from trainyard_trainer.errors import CheckpointError
from trainyard_trainer.output import parts
from trainyard_trainer.output.index import ENTRY, INDEX
from trainyard_trainer.output.saving import NotFiniteError, Saver
from trainyard_trainer.output.summaries import TensorBoard
from trainyard_trainer.storage import Folder, StorageError, open_folder

FINGERPRINT = {"seed": 0, "model": "cnn (1234)"}


def arrays(step: int) -> dict[str, np.ndarray[Any, Any]]:
    return {
        "count": np.array(step, np.int32),
        "vector": np.arange(1000, dtype=np.float32) + step,
        "matrix": np.full((30, 7), step, np.float32),
        "nothing": np.zeros(0, np.float32),
        "moments": np.arange(6).astype(ml_dtypes.bfloat16),
    }


def position(step: int) -> dict[str, Any]:
    return {"steps": step, "epochs": 0, "examples": 3, "best": None, "best_epochs": 0}


def save(saver: Saver, step: int, score: float | None = None) -> None:
    saver.save(position(step), lambda: arrays(step), lambda: None, score)
    saver.wait()


def saved(job_dir: str, *steps: int, keep: int = 3) -> None:
    """A training that saves at these steps and ends."""
    with Saver(job_dir, 0, keep) as saver:
        saver.prepare(FINGERPRINT)
        for step in steps:
            save(saver, step)


def newest_step(job_dir: str) -> int | None:
    found = Saver(job_dir, 0, 3).newest()
    if found is None:
        return None
    entry, content = found
    for name, array in arrays(entry.step).items():
        np.testing.assert_array_equal(content[name], array)
        assert (content[name].shape, content[name].dtype) == (array.shape, array.dtype)
    assert entry.position == position(entry.step)
    return entry.step


def kept(job_dir: str) -> list[int]:
    """The steps of the checkpoints that are there, listed or not."""
    return [int(name[5:13]) for name in open_folder(job_dir).folder("checkpoints").children("step-")]


@pytest.mark.parametrize("part_bytes", [2**20, 1000])
def test_newest_checkpoints_are_kept_and_read_from_parts_of_any_size(
    job_dir: str, monkeypatch: pytest.MonkeyPatch, part_bytes: int
) -> None:
    monkeypatch.setattr(parts, "PART_BYTES", part_bytes)
    assert newest_step(job_dir) is None
    saved(job_dir, 5, 10, 15, 15, keep=2)
    assert newest_step(job_dir) == 15
    assert kept(job_dir) == [10, 15]
    (entry, _) = Saver(job_dir, 0, 3).checkpoints()
    assert (len(entry.parts) > 4) == (part_bytes == 1000)


def test_array_above_2_gib_is_cut_into_parts(tmp_path: Path) -> None:
    # 3 GiB, nearly all a hole.
    array = np.memmap(tmp_path / "sparse", np.float32, "w+", shape=(3 * 2**18, 1024))
    array[2**19 + 5, 7] = 1
    pieces = [piece for _, piece in parts._cut({"array": array})]
    assert max(piece.nbytes for piece in pieces) == parts.PART_BYTES
    assert sum(piece.nbytes for piece in pieces) == array.nbytes > 2**31
    number, row = divmod(2**19 + 5, len(pieces[0]))
    assert pieces[number][row, 7] == 1


def test_best_checkpoint_is_kept_beside_the_newest(job_dir: str) -> None:
    with Saver(job_dir, 0, 2) as saver:
        saver.prepare(FINGERPRINT)
        assert saver.best() is None
        for step, score in ((1, 0.5), (2, 0.9), (3, None), (4, float("nan")), (5, 0.8), (6, 0.9)):
            save(saver, step, score)
            assert kept(job_dir) == {1: [1], 2: [1, 2], 3: [2, 3], 4: [2, 3, 4], 5: [2, 4, 5], 6: [2, 5, 6]}[step]
        best = saver.best()
        assert best is not None
        assert best[0].step == 2


def test_only_finite_states_are_saved(job_dir: str) -> None:
    poisoned = arrays(9)
    poisoned["vector"][3] = np.nan
    with Saver(job_dir, 0, 3) as saver:
        saver.prepare(FINGERPRINT)
        save(saver, 5)
        saver.save(position(9), lambda: poisoned, lambda: pytest.fail("it was saved"))
        message = r"vector is not finite after step 9.* is of step 5\. The same command"
        with pytest.raises(NotFiniteError, match=message):
            saver.wait()
    assert newest_step(job_dir) == 5
    assert kept(job_dir) == [5]
    saved(job_dir, 9)
    assert newest_step(job_dir) == 9


def test_saving_does_not_wait_for_the_write_and_the_end_does(job_dir: str) -> None:
    release, events = threading.Event(), []

    def fetch() -> dict[str, Any]:
        assert release.wait(60)
        return arrays(5)

    with Saver(job_dir, 0, 3, every_seconds=1e-9) as saver:
        saver.prepare(FINGERPRINT)
        assert saver.is_due()
        saver.save(position(5), fetch, lambda: events.append("saved"))
        assert not saver.is_due()
        assert newest_step(job_dir) is None
        release.set()
    assert events == ["saved"]
    assert newest_step(job_dir) == 5


@pytest.mark.parametrize(("earlier", "expected"), [((), [1, 3, 6]), ((0.95,), [1, 6])])
def test_newer_checkpoint_replaces_the_one_that_waits_unless_that_is_the_best(
    job_dir: str, earlier: tuple[float, ...], expected: list[int]
) -> None:
    writing, release = threading.Event(), threading.Event()
    written: list[int] = []

    def fetch() -> dict[str, Any]:
        writing.set()
        assert release.wait(60)
        return arrays(1)

    with Saver(job_dir, 0, 9) as saver:
        saver.prepare(FINGERPRINT)
        for score in earlier:
            save(saver, 0, score)
        saver.save(position(1), fetch, lambda: written.append(1))
        assert writing.wait(60)
        later: list[float | None] = [None, 0.9, None, 0.5, None]
        for number, rating in enumerate(later, start=2):
            saver.save(position(number), partial(arrays, number), partial(written.append, number), rating)
        assert written == []
        release.set()
        saver.wait()
    assert written == expected
    assert kept(job_dir) == [*([0] if earlier else []), *expected]


class FailsAfter:
    """A folder whose writes fail after the first ones, like a bucket whose quota is exceeded or a killed process."""

    def __init__(self, folder: Folder, writes: list[None]) -> None:
        self._folder, self._writes = folder, writes  # one element for each that succeeds, also in subfolders

    def __getattr__(self, name: str) -> Any:
        return getattr(self._folder, name)

    def folder(self, name: str) -> Any:
        return FailsAfter(self._folder.folder(name), self._writes)

    def write(self, name: str, data: bytes) -> None:
        if not self._writes:
            raise OSError("quota exceeded")
        self._writes.pop()
        self._folder.write(name, data)


@pytest.mark.parametrize("writes", [0, 1, 2, 3])
def test_save_that_fails_at_any_write_leaves_the_last_good_checkpoint_and_nothing_after_the_next_start(
    job_dir: str, monkeypatch: pytest.MonkeyPatch, writes: int
) -> None:
    saved(job_dir, 5)
    failing = Saver(job_dir, 0, 3)
    folder = FailsAfter(open_folder(job_dir).folder("checkpoints"), [None] * writes)
    with failing:
        failing.prepare(FINGERPRINT)
        monkeypatch.setattr(failing, "_checkpoints", folder)
        with pytest.raises(OSError, match="quota exceeded"):
            save(failing, 10)
    assert newest_step(job_dir) == 5
    saved(job_dir)
    assert kept(job_dir) == [5]


def index(*positions: Any, **changes: Any) -> bytes:
    """Entries of checkpoints at these positions, whose folders are not there."""
    entry = {"name": "step-00000010-0123abcd", "step": 10, "parts": {"part-00000.safetensors": ""}, "score": None}
    entries = [entry | {"position": at} for at in positions]
    whole = {"format": 2, "fingerprint": FINGERPRINT, "checkpoints": entries, "unused": []}
    return json.dumps(whole | changes).encode()


DAMAGES: dict[str, bytes | None] = {
    "missing": None,
    "empty": b"",
    "cut": b'{"format": 2, "checkpoints": [',
    "no text": b"\xff\x00",
    "another type": b"[]",
    "without a fingerprint": index(fingerprint={}),
    "of other entries": index(checkpoints=[{"name": "../model"}]),
    "of other folders": index(unused=["../model"]),
    "of no entry": index(),
    "of a position with one field more": index(position(10) | {"batches": 1}),
    "of a position of steps alone": index({"steps": 10}),
    "of a position that is no number": index(position(10) | {"epochs": "x"}),
}


def test_index_that_is_lost_is_made_anew_and_checkpoints_that_nothing_describes_are_refused_and_left(
    job_dir: str, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoints = open_folder(job_dir).folder("checkpoints")
    saved(job_dir, 1)
    for number, (damage, content) in enumerate(DAMAGES.items()):
        if content is None:
            checkpoints.remove(INDEX)
        else:
            checkpoints.write(INDEX, content)
        caplog.clear()
        assert newest_step(job_dir) is None, damage  # of an evaluator, which waits
        saved(job_dir)
        assert "was made anew from the folders" in caplog.text, damage
        assert newest_step(job_dir) == number + 1, damage
        saved(job_dir, number + 2)
    assert kept(job_dir) == [number, number + 1, number + 2]

    first, second, last = checkpoints.children("step-")
    checkpoints.folder(first).write(ENTRY, b'{"format": 1}')
    entry = checkpoints.folder(second).read(ENTRY)
    assert entry is not None
    checkpoints.folder(second).write(ENTRY, entry.replace(b'"fingerprint"', b'"another"'))
    checkpoints.write(INDEX, b"")
    saved(job_dir)
    assert f"Left, but not in it, are {first}, {second}: their entry.json" in caplog.text
    assert newest_step(job_dir) == number + 2
    assert checkpoints.children("step-") == [first, second, last]

    for name in checkpoints.children("step-"):
        checkpoints.folder(name).remove(ENTRY)
    assert newest_step(job_dir) == number + 2  # as of an earlier version
    checkpoints.write(INDEX, b"")
    with pytest.raises(CheckpointError, match=r"index.json is missing or damaged, and the 3 folders .*Nothing was"):
        saved(job_dir, 99)
    assert kept(job_dir) == [number, number + 1, number + 2]


def test_damaged_checkpoint_falls_back_to_the_one_before_and_an_unlisted_one_is_left_alone(job_dir: str) -> None:
    saved(job_dir, 5, 10, 15)
    checkpoints = open_folder(job_dir).folder("checkpoints")
    _, torn, missing = checkpoints.children("step-")
    checkpoints.write(f"{torn}/part-00000.safetensors", b"stat")
    checkpoints.remove(missing)
    checkpoints.write("step-00000012-unlisted/part-00000.safetensors", b"stat")
    assert newest_step(job_dir) == 5
    saved(job_dir, 9)
    assert kept(job_dir) == [5, 9, 12]
    for entry in Saver(job_dir, 0, 3).checkpoints():
        checkpoints.folder(entry.name).remove("part-00000.safetensors")
    with pytest.raises(CheckpointError, match=r"All checkpoints that .*/index.json lists are .* damaged"):
        newest_step(job_dir)
    assert kept(job_dir) == [5, 9, 12]


def test_job_dir_of_another_training_is_refused_with_both_named_and_a_worker_writes_nothing(job_dir: str) -> None:
    with Saver(job_dir, 1, 3) as worker:
        worker.save(position(5), lambda: arrays(5), lambda: None)
        assert worker.save_model({"model.json": b"{}"}) == f"{job_dir}/model"
        assert not worker.is_due()
    assert open_folder(job_dir).children() == []
    for function in ("function-1", "function-2"):  # a model replaces an earlier one
        assert Saver(job_dir, 0, 3).save_model({function: b"", "model.json": b"{}"}) == f"{job_dir}/model"
    assert open_folder(f"{job_dir}/model").children() == ["function-2", "model.json"]

    saved(job_dir, 5)
    with Saver(job_dir, 0, 3) as other:
        message = "another training: seed 0, this command's is 1. Choose another --job-dir"
        with pytest.raises(CheckpointError, match=re.escape(message)):
            other.prepare(FINGERPRINT | {"seed": 1})
    open_folder(job_dir).folder("checkpoints").write(INDEX, b'{"checkpoints": []}')
    with pytest.raises(CheckpointError, match="another version of the trainer"):
        Saver(job_dir, 0, 3).newest()


def test_job_dir_that_cannot_be_written_is_one_clear_error(tmp_path: Path) -> None:
    for name in ("checkpoints", "logs"):
        (tmp_path / name).write_text("a file")
    with pytest.raises(StorageError, match=r"/checkpoints: .*\. When .* the same command continues"):
        Saver(str(tmp_path), 0, 3).prepare(FINGERPRINT)
    with pytest.raises(StorageError, match=r"/logs/train: .*\. When .* the same command continues"):
        TensorBoard(str(tmp_path), 0).scalars("train", 1, loss=1.0)
