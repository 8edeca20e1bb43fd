"""Scalars of TensorBoard's event files, as they are written and where they are damaged."""

import struct
from pathlib import Path
from typing import Any

import pytest

from trainyard_server.storage.job_files.event_files import EventFiles, Scalar
from trainyard_server.storage.job_files.local import LocalTree


def record(step: int, time: float = 1000.0, **values: Any) -> bytes:
    """A serialized event, as the first version of TensorFlow writes scalars; a `bytes` as the second one."""
    from tensorboard.compat.proto.event_pb2 import Event

    event = Event(wall_time=time, step=step)
    for tag, value in values.items():
        one = event.summary.value.add(tag=tag)
        if isinstance(value, bytes):
            one.tensor.dtype, one.tensor.tensor_content = 1, value
        else:
            one.simple_value = value
    return bytes(event.SerializeToString())


def framed(*events: bytes) -> bytes:
    """Events as TensorBoard's own writer frames them."""
    import io

    from tensorboard.summary.writer.record_writer import RecordWriter

    file = io.BytesIO()
    for event in events:
        RecordWriter(file).write(event)
    return file.getvalue()


def write(root: Path, name: str, data: bytes) -> Path:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        file.write(data)
    return path


FILE = "events.out.tfevents.1795176000.host.1.0"


def test_scalars_are_read_as_files_grow(tmp_path: Path) -> None:
    files, tree = EventFiles(), LocalTree(str(tmp_path), [tmp_path])
    assert files.read(tree) == ([], False)
    write(tmp_path, f"logs/train/{FILE}", framed(record(1, epoch_loss=0.5, lr=struct.pack("<f", 0.25))))
    write(tmp_path, f"logs/validation/{FILE}.v2", framed(record(1, epoch_loss=0.75)))
    write(tmp_path, "logs/notes.txt", b"x")
    write(tmp_path, f"mlflow/tensorboard_logs/train/{FILE}", framed(record(1, epoch_loss=9.0)))  # of autologging
    found, more = files.read(tree)
    assert sorted(found) == [
        Scalar("epoch_loss", 1, 0.5, 1000.0),
        Scalar("lr", 1, 0.25, 1000.0),
        Scalar("val_epoch_loss", 1, 0.75, 1000.0),
    ]
    assert not more
    whole = framed(record(2, epoch_loss=0.25))
    write(tmp_path, f"logs/train/{FILE}", whole[:-3])
    assert files.read(tree) == ([], False)  # the rest is still to be written
    write(tmp_path, f"logs/train/{FILE}", whole[-3:])
    assert files.read(tree) == ([Scalar("epoch_loss", 2, 0.25, 1000.0)], False)


def test_large_records_are_skipped_and_what_is_no_scalar_too(tmp_path: Path) -> None:
    large = record(1, image=b"x" * (3 * 2**20))
    histogram = record(2, h=struct.pack("<2f", 1, 2))
    write(tmp_path, FILE, framed(large, histogram, b"no event", record(-1, loss=1), record(3, loss=1)))
    files, tree = EventFiles(), LocalTree(str(tmp_path), [tmp_path])
    assert files.read(tree) == ([Scalar("loss", 3, 1.0, 1000.0)], False)


def test_damaged_file_ends_where_it_is_damaged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    first, second = framed(record(1, loss=1)), framed(record(2, loss=2))
    write(tmp_path, FILE, first + second[:-6] + b"damage")
    write(tmp_path, f"{FILE}.9", b"\xff" * 100)
    files, tree = EventFiles(), LocalTree(str(tmp_path), [tmp_path])
    assert files.read(tree) == ([Scalar("loss", 1, 1.0, 1000.0)], False)
    write(tmp_path, FILE, second)
    assert files.read(tree) == ([], False)
    assert sum("is damaged" in message for message in caplog.messages) == 2


def hparams(values: dict[str, Any]) -> bytes:
    """The event that `SummaryWriter.add_hparams` begins a session with."""
    from tensorboardX.proto.event_pb2 import Event
    from tensorboardX.summary import hparams as summaries

    _, start, _ = summaries(values, {"hp_metric": 0.5})
    return bytes(Event(wall_time=1000.0, summary=start).SerializeToString())


def test_hparams_of_a_writer_are_parameters_and_their_metrics_scalars(tmp_path: Path) -> None:
    from tensorboardX import SummaryWriter

    with SummaryWriter(str(tmp_path / "logs")) as writer:
        writer.add_hparams({"lr": 0.05, "layers": 3, "optimizer": "adam", "bias": True}, {"hp_metric": 0.5})
    files, tree = EventFiles(), LocalTree(str(tmp_path), [tmp_path])
    scalars, _ = files.read(tree)
    assert files.hparams == {"lr": "0.05", "layers": "3", "optimizer": "adam", "bias": "True"}
    assert [(scalar.name, scalar.value) for scalar in scalars] == [("hp_metric", 0.5)]


def test_hparams_are_bounded_and_the_newest_count(tmp_path: Path) -> None:
    many = {f"p{number:04}": number for number in range(1200)}
    write(tmp_path, FILE, framed(hparams({"lr": 1, "long": "x" * 900, "n" * 200: 1, "a\nb": 1}), hparams({"lr": 1e-4})))
    files, tree = EventFiles(), LocalTree(str(tmp_path), [tmp_path])
    assert files.read(tree) == ([], False)
    assert files.hparams == {"lr": "0.0001", "long": "x" * 500}
    write(tmp_path, FILE, framed(hparams(many)))
    files.read(tree)
    assert (len(files.hparams), files.hparams["p0997"], files.hparams.get("p0998")) == (1000, "997", None)


def test_hparams_that_cannot_be_decoded_are_left_out(tmp_path: Path) -> None:
    from tensorboard.compat.proto.event_pb2 import Event

    event = Event(wall_time=1000.0)
    value = event.summary.value.add(tag="_hparams_/session_start_info")
    value.metadata.plugin_data.content = b"\xff\xff no message"
    write(tmp_path, FILE, framed(bytes(event.SerializeToString()), record(3, loss=1)))
    files, tree = EventFiles(), LocalTree(str(tmp_path), [tmp_path])
    assert files.read(tree) == ([Scalar("loss", 3, 1.0, 1000.0)], False)
    assert files.hparams == {}
