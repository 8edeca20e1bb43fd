"""Notes in a job's log of what its program logs and the tracking cannot keep. Each is written once."""

from datetime import datetime
from enum import StrEnum

from trainyard_protocol.lines.progress import MAX_NAME
from trainyard_server.capabilities.tracking import store
from trainyard_server.capabilities.tracking.store import ValueKind
from trainyard_server.storage.db.repository import Event, Writer
from trainyard_server.storage.db.tables import job_values

MAX_PARAMETER = 6000
"""Limit of the characters of a parameter, as MLflow has it."""

MAX_TAG = 8000
"""Limit of the characters of a tag, as MLflow has it."""


class NotKept(StrEnum):
    """A kind of what is not kept; the name is that of its row."""

    METRICS = "metrics"
    NAMES = "names"
    VALUES = "values"
    CUT = "cut"
    PARAMETERS = "parameters"
    RUNS = "runs"
    MODELS = "models"
    DATASETS = "datasets"
    POINTS = "points"
    DISK = store.LOST_POINTS
    ARTIFACTS = "artifacts"
    TRACES = "traces"
    EXPERIMENTS = "experiments"
    REGISTRY = "registry"
    OTHER = "other"


_SENTENCES = {
    NotKept.METRICS: f"a job has at most {job_values.MAX_OF_A_JOB:,} metrics; further ones are not kept",
    NotKept.NAMES: (
        f"metrics have at most {MAX_NAME} printable characters with the name of their run, tags and parameters "
        f"{store.MAX_KEY}; others are not kept"
    ),
    NotKept.VALUES: (
        f"a run has at most {store.MAX_OF_A_RUN:,} tags, parameters and inputs each, and those of a job at most "
        f"{store.MAX_CHARACTERS:,} characters; further ones are not kept"
    ),
    NotKept.CUT: f"a parameter is cut at {MAX_PARAMETER:,} characters, a tag at {MAX_TAG:,}",
    NotKept.PARAMETERS: (
        f"jobs are found by at most {job_values.MAX_OF_A_JOB:,} parameters of each; further ones are shown by MLflow "
        "alone"
    ),
    NotKept.RUNS: f"a job has at most {store.MAX_RUNS:,} further runs; what the next ones log goes to its own",
    NotKept.MODELS: "a job has at most 1,000 models, of 64 kB of tags, parameters and metrics; others are not kept",
    NotKept.DATASETS: "schema and profile of a large data set are not kept, nor more than 100 data sets of a call",
    NotKept.POINTS: "the points of its metrics are thinned; the last and the best values stay exact",
    NotKept.DISK: "the server's disk is almost full, so that points of metrics are not kept; last and best values are",
    NotKept.ARTIFACTS: "artifacts are not kept: they are written to the job-dir, and this job has none (--job-dir)",
    NotKept.TRACES: "traces, assessments and prompts linked to them are not kept",
    NotKept.EXPERIMENTS: "tags and names of experiments are not kept: an experiment is the project",
    NotKept.REGISTRY: "there is no model registry: registered models, their versions and prompts are refused",
    NotKept.OTHER: "a call is refused that is not implemented here; the program has the answer",
}


def note(writer: Writer, key: int, run: int, kind: NotKept, now: datetime) -> bool:
    """Add the line to the job's log, if it has none of that kind. True if it is new. Hold the lock of the job's row."""
    if not store.set_mark(writer, key, ValueKind.NOTE, kind.value, "1"):
        return False
    writer.add_event(key, Event("tracking", f"MLflow: {_SENTENCES[kind]}.", run), now)
    return True
