"""Tables of channels, events that nobody is notified of yet, and notifications."""

from datetime import datetime
from typing import Any

from sqlalchemy import ForeignKey, Index, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from trainyard_server.storage.db.base.columns import AnyText, Table


class ChannelRow(Table):
    """A notification channel of a project. `events`: those of all its jobs that it gets."""

    __tablename__ = "notification_channels"

    project: Mapped[str] = mapped_column(String(128), primary_key=True)
    name: Mapped[str] = mapped_column(String(40), primary_key=True)
    transport: Mapped[str] = mapped_column(String(16))
    address: Mapped[str] = mapped_column(Text)
    events: Mapped[list[Any]]
    created_by: Mapped[str] = mapped_column(String(128))
    created_at: Mapped[datetime]


class NoticeRow(Table):
    """An event of a job of which nobody is notified yet: its row in `events` and, for a bound of a metric, the value
    beyond it. Deleted in the transaction that writes its notifications."""

    __tablename__ = "notices"

    key: Mapped[int] = mapped_column(primary_key=True)
    job_key: Mapped[int] = mapped_column(ForeignKey("jobs.key"))
    number: Mapped[int]


class MetricAlertRow(Table):
    """A bound of a metric of which a job notifies, until the metric is beyond it or the job has ended. `position`: of
    the destination among those of the job."""

    __tablename__ = "metric_alerts"
    __table_args__ = (Index("ix_metric_alerts_by_metric", "metric", "job_key"),)

    job_key: Mapped[int] = mapped_column(ForeignKey("jobs.key"), primary_key=True)
    position: Mapped[int] = mapped_column(primary_key=True)
    metric: Mapped[str] = mapped_column(String(100), primary_key=True)
    operator: Mapped[str] = mapped_column(String(2), primary_key=True)
    bound: Mapped[float] = mapped_column(primary_key=True)


class NotificationRow(Table):
    """A notification, kept for some days after its delivery. The job may be deleted meanwhile."""

    __tablename__ = "notifications"
    __table_args__ = (
        Index("ix_notifications_by_state", "state", "next_at"),
        Index("ix_notifications_of_project", "project", "key"),
    )

    key: Mapped[int] = mapped_column(primary_key=True)
    id: Mapped[str] = mapped_column(String(32))
    project: Mapped[str] = mapped_column(String(128))
    job_id: Mapped[str] = mapped_column(String(128))
    event: Mapped[str] = mapped_column(String(200))
    channel: Mapped[str] = mapped_column(String(40))  # "": the job's own destination
    transport: Mapped[str] = mapped_column(String(16))
    address: Mapped[str] = mapped_column(Text)
    receiver: Mapped[str] = mapped_column(Text, default="")  # of a URL HOST:PORT, of a mail address its domain
    content: Mapped[dict[str, Any]]
    created_at: Mapped[datetime]
    state: Mapped[str] = mapped_column(String(16))
    attempts: Mapped[int] = mapped_column(default=0)
    next_at: Mapped[datetime]
    delivered_at: Mapped[datetime | None]
    error: Mapped[str] = mapped_column(AnyText, default="")
