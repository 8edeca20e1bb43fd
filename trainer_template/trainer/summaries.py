"""Curves, for people and for a tuning service.

TensorBoard's event files lie in job-dir/logs/<run>: `tensorboard --logdir JOB_DIR/logs`. On gs:// they are written on
this machine's disk first and uploaded whole from time to time, since objects cannot be appended to.
"""

import json
import logging
import os
import tempfile
import time
from pathlib import Path
from typing import Any, Protocol

from trainer.storage import Folder, open_folder

log = logging.getLogger("trainer")

LOGS = "logs"
DEFAULT_METRIC_TAG = "training/hptuning/metric"
DEFAULT_METRIC_FILE = "/tmp/hypertune/output.metrics"  # noqa: S108 - where cloudml-hypertune writes, and services look
METRICS_KEPT = 100


class Summaries(Protocol):
    """Where numbers by step go."""

    def scalars(self, run: str, step: int, **values: float) -> None:
        """Add a point to each of a run's curves."""

    def flush(self) -> None:
        """Make what was added visible."""

    def close(self) -> None: ...


class NoSummaries:
    """For the processes whose curves would be those of the chief once more."""

    def scalars(self, run: str, step: int, **values: float) -> None:
        pass

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass


class TensorBoard:
    """An event file for each run. An upload that fails is a warning: losing it must not lose the training."""

    def __init__(self, job_dir: str, step: int) -> None:
        """`step` is the one that training goes on from: points after it, of a start that was killed, are void."""
        self._logs = open_folder(job_dir).folder(LOGS)
        self._step = step
        self._local = tempfile.TemporaryDirectory() if job_dir.startswith("gs://") else None
        self._writers: dict[str, Any] = {}

    def scalars(self, run: str, step: int, **values: float) -> None:
        # Half a second, which only a process that writes should pay, and not before its first step.
        from tensorboardX.proto.event_pb2 import Event
        from tensorboardX.summary import scalar

        writer = self._writers.get(run) or self._open(run)
        for name, value in values.items():
            writer.write_event(Event(wall_time=time.time(), step=step, summary=scalar(name, value)))

    def flush(self) -> None:
        for run, writer in self._writers.items():
            writer.flush()
            if self._local is not None:
                self._upload(Path(self._local.name, run), self._logs.folder(run))

    def close(self) -> None:
        self.flush()
        for writer in self._writers.values():
            writer.close()
        if self._local is not None:
            self._local.cleanup()

    def _open(self, run: str) -> Any:
        # Not its SummaryWriter, which writes in a thread: it cannot say when that has written what it was given.
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto.event_pb2 import Event, SessionLog

        directory = Path(self._local.name, run) if self._local else Path(self._logs.folder(run).url)
        directory.mkdir(parents=True, exist_ok=True)
        # Besides the second and the host, what tells apart those that begin in one second.
        suffix = f".{os.getpid()}.{self._step}"
        writer = self._writers[run] = EventsWriter(str(directory / "events"), suffix)
        if self._step:
            start = SessionLog(status=SessionLog.START)
            writer.write_event(Event(wall_time=time.time(), step=self._step + 1, session_log=start))
        return writer

    @staticmethod
    def _upload(directory: Path, folder: Folder) -> None:
        for file in directory.iterdir():
            try:
                folder.write(file.name, file.read_bytes())
            except Exception as error:  # noqa: BLE001 - whatever a client of a bucket may raise
                log.warning(
                    "The curves could not be uploaded to %s; training goes on. (%s)", folder.url, error
                )


def report_to_tuning_service(metric: float, step: int) -> None:
    """The metric that hyperparameter tuning goes by, where the environment asks for one.

    The file is cloudml-hypertune's: the last 100 reports, one JSON object a line, values and steps as strings.
    """
    asked = os.environ.get("CLOUD_ML_HP_METRIC_FILE")
    if not asked and "CLOUD_ML_HP_METRIC_TAG" not in os.environ:
        return
    path = Path(asked or DEFAULT_METRIC_FILE)
    line = {
        "timestamp": time.time(),
        "trial": os.environ.get("CLOUD_ML_TRIAL_ID", "0"),
        os.environ.get("CLOUD_ML_HP_METRIC_TAG") or DEFAULT_METRIC_TAG: str(metric),
        "global_step": str(step),
        "checkpoint_path": "",
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    earlier = path.read_text().splitlines() if path.exists() else []
    kept = [*earlier, json.dumps(line, sort_keys=True)][-METRICS_KEPT:]
    path.write_text("\n".join(kept) + "\n")
