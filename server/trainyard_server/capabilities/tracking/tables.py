"""Tables of what programs log through MLflow."""

from datetime import datetime
from typing import Any

from sqlalchemy import ForeignKey, String
from sqlalchemy.orm import Mapped, mapped_column

from trainyard_server.storage.db.base.columns import AnyText, Table


class LoggedMetricsRow(Table):
    """Points of metrics that a program has logged in one call: [name, step, value, time in ms]. `run` is the number of
    the job's run."""

    __tablename__ = "logged_metrics"

    job_key: Mapped[int] = mapped_column(ForeignKey("jobs.key"), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True)
    run: Mapped[int]
    points: Mapped[list[Any]]


class TrackedRunRow(Table):
    """A further run that a program has made through MLflow, beside the one that its job is."""

    __tablename__ = "tracked_runs"

    job_key: Mapped[int] = mapped_column(ForeignKey("jobs.key"), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(100))
    status: Mapped[str] = mapped_column(String(16))
    started_at: Mapped[datetime]
    ended_at: Mapped[datetime | None]
    deleted_at: Mapped[datetime | None]  # by its program, which may restore it


class TrackedValueRow(Table):
    """A value of a run of MLflow: a tag, a parameter in full, an input. `number` is that of the further run, 0 for the
    job's own; `run` that of the job's run that has written it. The kinds are in `tables.tracking`."""

    __tablename__ = "tracked_values"

    job_key: Mapped[int] = mapped_column(ForeignKey("jobs.key"), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True)
    kind: Mapped[str] = mapped_column(String(16), primary_key=True)
    name: Mapped[str] = mapped_column(String(250), primary_key=True)
    value: Mapped[str] = mapped_column(AnyText)
    run: Mapped[int] = mapped_column(default=0)


class LoggedModelRow(Table):
    """A model that a program has logged through MLflow, `m-JOB-NUMBER`. `source` is the number of the run that it is
    of: 0 for the job's own. `tags` and `params` are texts by name, `metrics` its values, as MLflow's JSON."""

    __tablename__ = "logged_models"

    job_key: Mapped[int] = mapped_column(ForeignKey("jobs.key"), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True)
    source: Mapped[int]
    name: Mapped[str] = mapped_column(AnyText)
    model_type: Mapped[str] = mapped_column(AnyText, default="")
    status: Mapped[str] = mapped_column(String(32))
    created_at: Mapped[datetime]
    updated_at: Mapped[datetime]
    deleted_at: Mapped[datetime | None]
    tags: Mapped[dict[str, str]]
    params: Mapped[dict[str, str]]
    metrics: Mapped[list[Any]]
