"""TensorBoard summaries, and the metric file of hyperparameter tuning.

Event files are in job-dir/logs/<run>: `tensorboard --logdir JOB_DIR/logs`. On gs:// they are written to a local
directory first, and a thread uploads those that a flush changed, since objects cannot be appended to.
"""

import json
import logging
import os
import re
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, Protocol

from trainyard_trainer.storage import open_folder, path_errors

log = logging.getLogger("trainer")

LOGS = "logs"
DEFAULT_METRIC_TAG = "training/hptuning/metric"
DEFAULT_METRIC_FILE = "/tmp/hypertune/output.metrics"  # noqa: S108 - of cloudml-hypertune
MAX_METRICS = 100
UPLOAD_FOR = 20.0  # seconds of retries: the next flush uploads the same and more
CLOSE_SECONDS = 30.0  # for the last upload


class Summaries(Protocol):
    """Destination of scalars by step."""

    def scalars(self, run: str, step: int, **values: float) -> None:
        """Add a point to each of a run's scalars."""

    def flush(self) -> None:
        """Write buffered points. It does not wait for a bucket."""

    def close(self) -> None: ...


class NoSummaries:
    """Summaries of processes that are not the chief: none."""

    def scalars(self, run: str, step: int, **values: float) -> None:
        pass

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass


class TensorBoard:
    """An event file for each run. A failed upload is only a warning."""

    def __init__(self, job_dir: str, step: int) -> None:
        """`step`: training resumes from it; later points of a start that was killed are void."""
        self._logs = open_folder(job_dir, UPLOAD_FOR).folder(LOGS)
        self._step = step
        self._local = tempfile.TemporaryDirectory() if job_dir.startswith("gs://") else None
        self._writers: dict[str, Any] = {}
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="summaries")
        self._upload: Future[None] | None = None
        self._flushed: dict[Path, int] = {}  # file -> bytes; the rest of it may end within a point
        self._uploaded: dict[Path, int] = {}  # the thread's

    def scalars(self, run: str, step: int, **values: float) -> None:
        # A slow import (0.5 s) that only the writing processes need.
        from tensorboardX.proto.event_pb2 import Event
        from tensorboardX.proto.summary_pb2 import Summary

        summary = Summary(value=[Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()])
        with path_errors(self._directory(run)):
            writer = self._writers.get(run) or self._open(run)
            writer.write_event(Event(wall_time=time.time(), step=step, summary=summary))

    def flush(self) -> None:
        for run, writer in self._writers.items():
            with path_errors(self._directory(run)):
                writer.flush()
                if self._local is not None:
                    files = self._directory(run).iterdir()
                    self._flushed = {**self._flushed, **{file: file.stat().st_size for file in files}}
        # While one upload runs, another waits for all that is flushed in the meantime.
        if self._local is not None and (self._upload is None or self._upload.running() or self._upload.done()):
            self._upload = self._thread.submit(self._upload_flushed)

    def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """`seconds`: for the last upload."""
        self.flush()
        if self._upload is not None and wait([self._upload], seconds).not_done:
            log.warning("The last points were not uploaded to %s in time.", self._logs.url)
        self._thread.shutdown(wait=False, cancel_futures=True)
        for writer in self._writers.values():
            writer.close()
        if self._local is not None:
            self._local.cleanup()

    def _directory(self, run: str) -> Path:
        return Path(self._local.name, run) if self._local else Path(self._logs.folder(run).url)

    def _open(self, run: str) -> Any:
        # Not SummaryWriter: it writes in a thread and cannot be flushed reliably.
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto.event_pb2 import Event, SessionLog

        directory = self._directory(run)
        directory.mkdir(parents=True, exist_ok=True)
        # Makes names unique that have the same second and host.
        suffix = f".{os.getpid()}.{self._step}"
        writer = self._writers[run] = EventsWriter(str(directory / "events"), suffix)
        if self._step:
            start = SessionLog(status=SessionLog.START)
            writer.write_event(Event(wall_time=time.time(), step=self._step + 1, session_log=start))
        return writer

    def _upload_flushed(self) -> None:
        for file, size in self._flushed.items():
            if self._uploaded.get(file) == size:
                continue
            folder = self._logs.folder(file.parent.name)
            try:
                with file.open("rb") as content:
                    folder.write(file.name, content.read(size))
            except Exception as error:  # noqa: BLE001 - any error of the storage client
                log.warning("The event files could not be uploaded to %s; training continues. (%s)", folder.url, error)
                return
            self._uploaded[file] = size


_HELD_OUT = re.compile(r"^(held_?out|val|validation|eval|evaluation|test)[_/-]")


def report_to_tuning_service(evaluated: Mapping[str, float], step: int, best: tuple[str, str]) -> None:
    """Write the metric of hyperparameter tuning, if CLOUD_ML_HP_METRIC_FILE or CLOUD_ML_HP_METRIC_TAG is set.

    It is the metric of the evaluation that the tag names, with or without `held_out_` or the like. For the default tag
    it is `best`, a name and a direction, if that is to be large, as the service takes it to be. A tag that names
    another metric gets none, which the service tells.

    The format is cloudml-hypertune's: the last 100 reports, one JSON object per line, values and steps as strings.
    """
    file = os.environ.get("CLOUD_ML_HP_METRIC_FILE")
    if not file and "CLOUD_ML_HP_METRIC_TAG" not in os.environ:
        return
    tag = os.environ.get("CLOUD_ML_HP_METRIC_TAG") or DEFAULT_METRIC_TAG
    if tag == DEFAULT_METRIC_TAG:
        name, direction = best
        metric = evaluated[name] if direction == "max" else None
    else:
        metric = evaluated.get(tag, evaluated.get(_HELD_OUT.sub("", tag)))
    if metric is None:
        return
    path = Path(file or DEFAULT_METRIC_FILE)
    line = {
        "timestamp": time.time(),
        "trial": os.environ.get("CLOUD_ML_TRIAL_ID", "0"),
        tag: str(metric),
        "global_step": str(step),
        "checkpoint_path": "",
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    earlier = path.read_text().splitlines() if path.exists() else []
    newest = [*earlier, json.dumps(line, sort_keys=True)][-MAX_METRICS:]
    path.write_text("\n".join(newest) + "\n")
