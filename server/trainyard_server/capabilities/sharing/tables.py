"""Table of what runs used."""

from datetime import datetime

from sqlalchemy import Index, String
from sqlalchemy.orm import Mapped, mapped_column

from trainyard_server.storage.db.base.columns import Table


class UsageRow(Table):
    """Usage of a run, or of its part on one agent: written after its end, kept when its job is deleted. Seconds are
    those of one CPU, or of one GPU; `idle_gpu_s` None: nobody measured its GPUs. `wait_s`: how long a job waited for
    its first run."""

    __tablename__ = "usage_records"
    __table_args__ = (Index("ix_usage_records_by_day", "day", "project"), Index("ix_usage_records_by_end", "ended_at"))

    run_id: Mapped[str] = mapped_column(String(32), primary_key=True)
    project: Mapped[str] = mapped_column(String(128))
    owner: Mapped[str] = mapped_column(String(128))
    job_id: Mapped[str] = mapped_column(String(128))
    labels: Mapped[dict[str, str]]
    day: Mapped[str] = mapped_column(String(10))  # of its end, in UTC: 2026-11-28
    ended_at: Mapped[datetime]
    cpu_s: Mapped[float]
    gpu_s: Mapped[float]
    idle_gpu_s: Mapped[float | None]
    wait_s: Mapped[float | None]  # None: not the first run of its job
    has_failed: Mapped[bool]
