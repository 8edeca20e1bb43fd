from __future__ import annotations

import io
import itertools
import json
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.faulty_uploads import FaultyUploads
from support.lazy import jnp, report
from trainyard_trainer.output import summaries
from trainyard_trainer.output.summaries import NoSummaries, TensorBoard, report_to_tuning_service
from trainyard_trainer.storage import open_folder


def sums(loss: float, correct: float, examples: float) -> Any:
    return jnp.array([loss, correct, examples])


def progress(every: int, done: int = 0, to: Any = None, ahead: int = 1) -> report.Progress:
    return report.Progress(
        done, 10, 2, every, 0, to or NoSummaries(), ("loss", "accuracy"), np.zeros(3, np.float32), ahead=ahead
    )


class Remembers(NoSummaries):
    def __init__(self) -> None:
        self.points: list[tuple[str, int, dict[str, float]]] = []

    def scalars(self, run: str, step: int, **values: float) -> None:
        self.points.append((run, step, values))


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_progress_reports_means_since_the_previous_line(capsys: pytest.CaptureFixture[str]) -> None:
    remembers = Remembers()
    reported = progress(every=2, to=remembers)
    reported.start_epoch()
    for step, step_sums in enumerate([sums(6, 1, 4), sums(2, 3, 4), sums(1, 1, 2)], start=1):
        reported.add(step, 1, 8, reported.sums + step_sums)
    reported.flush()
    reported.flush()
    first, second = lines(capsys)
    position = {"event": "progress", "steps": 10, "epoch": 1, "epochs": 2}
    assert first.items() >= {**position, "step": 2, "loss": 1.0, "accuracy": 0.5}.items()
    assert second.items() >= {**position, "step": 3, "loss": 0.5, "accuracy": 0.5}.items()
    assert second["examples_per_second"] > 0
    assert [(run, step) for run, step, _ in remembers.points] == [("train", 2), ("train", 3)]
    assert remembers.points[0][2].items() >= {"loss": 1.0, "accuracy": 0.5}.items()


def test_progress_with_a_loss_that_is_not_finite_fails() -> None:
    message = r"The loss is nan at step {}.* continues from the last checkpoint"
    with pytest.raises(report.DivergenceError, match=message.format(1)):  # at once, as it is waited for
        progress(every=9).add(1, 1, 8, sums(float("nan"), 0, 4))
    reported = progress(every=2)
    for step, loss in ((1, 1.0), (2, float("nan"))):
        reported.add(step, 1, 8, sums(loss, 0, 4))
    with pytest.raises(report.DivergenceError, match=message.format(2)):
        reported.add(3, 1, 8, sums(float("nan"), 0, 4))


class Computing:
    """A step's sums, which take some seconds of the clock when they are waited for."""

    def __init__(self, clock: list[float], seconds: float, order: list[str], name: str) -> None:
        self._clock, self._seconds, self._order, self._name = clock, seconds, order, name

    def __array__(self, *_: Any, **__: Any) -> np.ndarray:
        return np.array([1.0, 1.0, 1.0])

    def block_until_ready(self) -> None:
        self._clock[0] += self._seconds
        self._seconds = 0
        self._order.append(self._name)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds that the progress sees."""
    seconds = [0.0]
    monkeypatch.setattr("trainyard_trainer.output.report.time.perf_counter", lambda: seconds[0])
    return seconds


def test_progress_waits_for_each_long_step_and_computes_short_ones_ahead(clock: list[float]) -> None:
    order = list[str]()
    reported, waited = progress(every=100), list[float]()
    for step, seconds in enumerate((30, 6, 6, 6, 0.1, 0.1, 0.1), start=1):
        order.append(f"begin {step}")
        reported.add(step, 1, 8, Computing(clock, seconds, order, f"end {step}"))
        waited.append(round(clock[0] - sum(waited), 1))
    assert waited == [30, 6, 6, 6, 0.1, 0, 0.1]
    assert order.index("end 4") < order.index("begin 5")
    assert order.index("begin 7") < order.index("end 6")

    several, order = progress(every=100, ahead=4), []
    for step in range(1, 16):
        clock[0] += 0.001
        several.add(step, 1, 8, Computing(clock, 0.001, order, f"end {step}"))
    assert order[-3:] == ["end 4", "end 8", "end 12"]


def test_progress_reports_a_long_step_before_the_next_begins(
    clock: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    reported = progress(every=1)
    for step in (1, 2, 3):
        reported.add(step, 1, 12, Computing(clock, 6, [], ""))
        (line,) = lines(capsys)
        assert (line["step"], line["examples_per_second"]) == (step, 2.0 if step > 1 else 0.0)


def test_progress_writes_lines_of_short_steps_together_each_with_its_own_rate(
    clock: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    reported, written = progress(every=1), list[list[tuple[int, float]]]()
    for step, seconds in enumerate((2.0, 0.01, 0.02, 0.04, 0.08, 0.01), start=1):
        clock[0] += seconds
        reported.add(step, 1, 8, Computing(clock, 0, [], ""))
        written.append([(line["step"], line["examples_per_second"]) for line in lines(capsys)])
    assert written == [[(1, 0.0)], [], [], [], [(2, 800.0), (3, 400.0), (4, 200.0)], []]
    reported.flush()
    assert [line["step"] for line in lines(capsys)] == [5, 6]


def test_heartbeat_reports_the_step_of_a_process_without_other_output(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds: list[float] = []
    twice = threading.Event()

    def record(event: str, step: int, **fields: float) -> None:
        assert event == "heartbeat"
        if step == 4:
            seconds.append(fields["seconds"])
        if len(seconds) == 2:
            twice.set()

    monkeypatch.setattr("trainyard_trainer.output.report.report", record)
    heartbeat = report.HeartbeatThread(0.01, step=3)
    heartbeat.update(4)
    assert twice.wait(60)
    heartbeat.stop()
    assert 0 <= seconds[0] <= seconds[1]


def test_periodic_report_is_limited_to_its_interval(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    periodic, never = (report.PeriodicReport(seconds, "evaluating", step=7) for seconds in (30, 0))
    for now in (29.0, 30.0, 59.0, 61.0, 500.0):  # noqa: B007 - the clock reads it
        periodic()
        never()
    assert lines(capsys) == [{"event": "evaluating", "step": 7}] * 3


def curves(folder: str | Path) -> dict[str, list[tuple[int, float]]]:
    """The points in the event files of a directory."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(str(folder))
    read.Reload()
    return {tag: [(e.step, e.value) for e in read.Scalars(tag)] for tag in read.Tags()["scalars"]}


def download(url: str, to: Path) -> str:
    folder = open_folder(url)
    to.mkdir()
    for name in folder.children():
        content = folder.read(name)
        assert content is not None
        (to / name).write_bytes(content)
    return str(to)


def test_tensorboard_writes_curves_by_run(job_dir: str, tmp_path: Path) -> None:
    board = TensorBoard(job_dir, 0)
    board.scalars("train", 1, loss=2.0, accuracy=0.5)
    board.scalars("held_out", 1, held_out_loss=3.0)
    board.flush()  # does not wait for a bucket
    deadline = time.monotonic() + 60
    downloads = (curves(download(f"{job_dir}/logs/train", tmp_path / f"a{n}")) for n in itertools.count())
    while (first := next(downloads)) == {} and time.monotonic() < deadline:
        time.sleep(0.05)
    assert first == {"loss": [(1, 2.0)], "accuracy": [(1, 0.5)]}
    board.scalars("train", 2, loss=1.0, accuracy=1.0)
    board.close()
    assert curves(download(f"{job_dir}/logs/train", tmp_path / "b"))["loss"] == [(1, 2.0), (2, 1.0)]
    assert curves(download(f"{job_dir}/logs/held_out", tmp_path / "c")) == {"held_out_loss": [(1, 3.0)]}


def test_tensorboard_of_a_resumed_training_voids_later_points(tmp_path: Path) -> None:
    for start, steps in ((0, (1, 2, 3)), (2, (3, 4))):
        board = TensorBoard(str(tmp_path), start)
        for step in steps:
            board.scalars("train", step, loss=float(start))
        board.close()
    assert curves(tmp_path / "logs/train")["loss"] == [(1, 0.0), (2, 0.0), (3, 2.0), (4, 2.0)]


def test_event_files_are_uploaded_by_a_thread_and_what_failed_by_the_next_flush(
    bucket: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    uploading, release = threading.Event(), threading.Event()

    def refuse_the_first(name: str) -> int | None:
        assert name.startswith("curves/logs/train/")
        if release.is_set():
            return None
        uploading.set()
        assert release.wait(60)
        return 403

    monkeypatch.setenv("STORAGE_EMULATOR_HOST", bucket.endpoint)
    FaultyUploads(monkeypatch).fault = refuse_the_first
    job_dir = "gs://bucket/curves"
    curves = TensorBoard(job_dir, 0)
    for step, name in enumerate(("first", "second", "third")):  # none waits for the bucket
        curves.scalars("train", step, **{name: 1.0})
        curves.flush()
        assert uploading.wait(60)
    release.set()
    curves.close()
    assert "The event files could not be uploaded to gs://bucket/curves/logs/train; training continues" in caplog.text
    folder = open_folder(job_dir).folder("logs/train")
    (file,) = folder.children("events")
    content = folder.read(file)
    assert content is not None
    assert all(name in content for name in (b"first", b"second", b"third"))


def test_tuning_metric_is_written_to_the_file_of_the_environment_and_not_by_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    default_file = tmp_path / "output.metrics"
    monkeypatch.setattr(summaries, "DEFAULT_METRIC_FILE", str(default_file))
    for name in ("CLOUD_ML_HP_METRIC_FILE", "CLOUD_ML_HP_METRIC_TAG", "CLOUD_ML_TRIAL_ID"):
        monkeypatch.delenv(name, raising=False)
    evaluated, best = {"loss": 2.0, "acc": 0.5}, ("acc", "max")
    report_to_tuning_service(evaluated, 1, best)
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setenv("CLOUD_ML_HP_METRIC_TAG", "")
    report_to_tuning_service(evaluated, 1, best)
    assert '"training/hptuning/metric": "0.5"' in default_file.read_text()

    file = tmp_path / "deep" / "output.metrics"
    monkeypatch.setenv("CLOUD_ML_HP_METRIC_FILE", str(file))
    monkeypatch.setenv("CLOUD_ML_HP_METRIC_TAG", "acc")
    monkeypatch.setenv("CLOUD_ML_TRIAL_ID", "7")
    for step in range(120):
        report_to_tuning_service(evaluated, step, best)
    reports = [json.loads(line) for line in file.read_text().splitlines()]
    assert len(reports) == 100
    assert reports[-1].pop("timestamp") > 1e9
    assert reports[-1] == {"acc": "0.5", "checkpoint_path": "", "global_step": "119", "trial": "7"}


TUNING_TAGS = {
    "held_out_loss": "2.0",
    "val_loss": "2.0",
    "eval/acc": "0.5",
    "rmse": None,
    "top5_acc": None,
    "training/hptuning/metric": "0.5",
}


def test_tuning_metric_is_the_one_that_the_tag_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    evaluated, reported = {"loss": 2.0, "acc": 0.5}, dict[str, str | None]()
    for tag in TUNING_TAGS:
        file = tmp_path / tag.replace("/", "-")
        monkeypatch.setenv("CLOUD_ML_HP_METRIC_FILE", str(file))
        monkeypatch.setenv("CLOUD_ML_HP_METRIC_TAG", tag)
        report_to_tuning_service(evaluated, 1, ("acc", "max"))
        reported[tag] = json.loads(file.read_text())[tag] if file.exists() else None
    assert reported == TUNING_TAGS
    file.unlink()
    report_to_tuning_service(evaluated, 1, ("loss", "min"))
    assert not file.exists(), "the service would take the largest loss for the best"


def test_events_of_several_threads_are_a_line_each(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []

    class Screen(io.StringIO):
        def write(self, text: str) -> int:
            written.append(text)
            return len(text)

    monkeypatch.setattr("sys.stdout", Screen())
    report.report("checkpoint", step=5)
    assert written[0] == '{"event": "checkpoint", "step": 5}\n'  # whole: another thread writes before or after it
