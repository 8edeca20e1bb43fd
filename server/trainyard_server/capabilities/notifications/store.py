"""Channels of projects, events that are not yet told, and notifications with their deliveries."""

import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import (
    ColumnElement,
    SQLColumnExpression,
    and_,
    bindparam,
    case,
    delete,
    func,
    insert,
    or_,
    select,
    tuple_,
    update,
)
from sqlalchemy.sql.base import ReadOnlyColumnCollection
from sqlalchemy.sql.elements import KeyedColumnElement

from trainyard_protocol.job.keys.notifications import Bound, Transport, bound_of
from trainyard_protocol.states import FINAL_JOB_STATES
from trainyard_server.capabilities.notifications.tables import ChannelRow, MetricAlertRow, NoticeRow, NotificationRow
from trainyard_server.capabilities.notifications.turns import OF_PROJECT, Lane, full_lanes, receiver_of
from trainyard_server.domain.access.permissions import Visible
from trainyard_server.storage.db.base.models import EventRow, JobMetricRow, JobRow
from trainyard_server.storage.db.queries.reader import Reader
from trainyard_server.storage.db.repository import IDLE_GPUS, MOVED, STALLED, Event, JobEvents, NewJob, Writer

PENDING, DELIVERED, FAILED = "pending", "delivered", "failed"

AT_ONCE = 200
"""Events or alerts that are read together."""

_LANES_AT_ONCE = 1000

# Asked every two seconds, mostly for nothing.
_ANY_NOTICE = select(NoticeRow.key).limit(1)
_ANY_ALERT = select(MetricAlertRow.job_key).limit(1)
_ANY_DUE = (
    select(NotificationRow.key)
    .where(NotificationRow.state == PENDING, NotificationRow.next_at <= bindparam("now"))
    .limit(1)
)


class Notice(NamedTuple):
    """An event of a job that is to be told."""

    key: int
    job: JobRow
    event: EventRow


class Alert(NamedTuple):
    """A bound that a metric of a job was beyond, for the destination at a position. `value`: its extreme; `step`: its
    last step."""

    job: JobRow
    position: int
    bound: Bound
    value: float
    step: int


class Receiver(NamedTuple):
    """A destination of notifications."""

    channel: str  # "": the job's own destination
    transport: Transport
    address: str


class ChannelStatus(NamedTuple):
    """The deliveries to a channel."""

    pending: int
    last_delivered_at: datetime | None
    last_error: str


def channels(reader: Reader, visible: Visible) -> Sequence[ChannelRow]:
    """The channels of visible projects."""
    query = select(ChannelRow).order_by(ChannelRow.project, ChannelRow.name)
    return reader.session.scalars(query if visible is None else query.where(ChannelRow.project.in_(visible))).all()


def note_alerts(writer: Writer, jobs: Sequence[NewJob]) -> None:
    """Keep the bounds of metrics that these jobs notify of."""
    alerts = [
        {"job_key": job.row.key, "position": position, "metric": name, "operator": operator, "bound": bound}
        for job in jobs
        for position, notification in enumerate(job.parsed[0].notifications)
        for name, operator, bound in filter(None, map(bound_of, dict.fromkeys(notification.events)))
    ]
    if alerts:
        writer.session.execute(insert(MetricAlertRow), alerts)


def note_events(writer: Writer, events: Mapping[int, tuple[int, Event]]) -> None:
    """Keep those events that people may be notified of, by job."""
    notices = [{"job_key": key, "number": number} for key, (number, event) in events.items() if _is_notice(event)]
    if notices:
        writer.session.execute(insert(NoticeRow), notices)


def _is_notice(event: Event) -> bool:
    return event.kind in (STALLED, IDLE_GPUS) or (event.kind == MOVED and event.after in FINAL_JOB_STATES)


JOB_EVENTS = JobEvents(note_alerts, note_events, rows=(MetricAlertRow, NoticeRow))


def by_state(reader: Reader) -> Mapping[str, int]:
    """The number of notifications in each state."""
    rows = reader.session.execute(select(NotificationRow.state, func.count()).group_by(NotificationRow.state))
    counts = {state: count for state, count in rows}  # noqa: C416 - rows are tuples by name
    return {state: counts.get(state, 0) for state in (DELIVERED, FAILED, PENDING)}


def channel(reader: Reader, project: str, name: str) -> ChannelRow | None:
    return reader.session.get(ChannelRow, (project, name))


def save_channel(writer: Writer, row: ChannelRow) -> None:
    """Add a channel, or replace that of its name. What waits for that is sent to the new address."""
    writer.session.merge(row)
    waiting = update(NotificationRow).filter_by(project=row.project, channel=row.name, state=PENDING)
    destination = {"transport": row.transport, "address": row.address, "receiver": receiver_of(row.address)}
    writer.session.execute(waiting.values(destination))
    writer.session.flush()


def remove_channel(writer: Writer, project: str, name: str) -> None:
    """Delete a channel with what waits to be delivered to it."""
    writer.session.execute(delete(ChannelRow).filter_by(project=project, name=name))
    writer.session.execute(delete(NotificationRow).filter_by(project=project, channel=name, state=PENDING))


def statuses(reader: Reader, visible: Visible) -> Mapping[tuple[str, str], ChannelStatus]:
    """The deliveries to the channels of visible projects, by project and name."""
    row = NotificationRow
    own = [row.channel != "", *([] if visible is None else [row.project.in_(visible)])]
    channel = (row.project, row.channel)
    pending = func.count().filter(row.state == PENDING)
    counts = select(*channel, pending, func.max(row.delivered_at)).where(*own).group_by(*channel)
    attempted = select(func.max(row.key)).where(*own, row.attempts > 0).group_by(*channel)
    errors = select(*channel, row.error).where(row.key.in_(attempted))
    last = {(project, name): error for project, name, error in reader.session.execute(errors)}
    return {
        (project, name): ChannelStatus(waiting, at, last.get((project, name), ""))
        for project, name, waiting, at in reader.session.execute(counts)
    }


def newest(reader: Reader, visible: Visible, limit: int, job_id: str = "") -> Sequence[NotificationRow]:
    """The newest notifications of visible projects, or of one job there, the newest first."""
    query = select(NotificationRow).order_by(NotificationRow.key.desc()).limit(limit)
    if visible is not None:
        query = query.where(NotificationRow.project.in_(visible))
    return reader.session.scalars(query.filter_by(job_id=job_id) if job_id else query).all()


def has_events(reader: Reader) -> bool:
    """Whether there is an event to be told, or a metric beyond its bound."""
    if reader.session.scalar(_ANY_NOTICE) is not None:
        return True
    return reader.session.scalar(_ANY_ALERT) is not None and bool(alerts(reader, 1))


def notices(reader: Reader) -> Sequence[Notice]:
    """The oldest events that are to be told."""
    query = (
        select(NoticeRow.key, JobRow, EventRow)
        .join(JobRow, JobRow.key == NoticeRow.job_key)
        .join(EventRow, and_(EventRow.job_key == NoticeRow.job_key, EventRow.number == NoticeRow.number))
        .order_by(NoticeRow.key)
        .limit(AT_ONCE)
    )
    return [Notice(*row) for row in reader.session.execute(query)]


def remove_notices(writer: Writer, keys: Collection[int]) -> None:
    writer.session.execute(delete(NoticeRow).where(NoticeRow.key.in_(keys)))


def alerts(reader: Reader, limit: int = AT_ONCE) -> Sequence[Alert]:
    """Bounds that a metric was beyond."""
    row, metric = MetricAlertRow, JobMetricRow
    beyond = or_(
        and_(row.operator == ">", metric.highest > row.bound),
        and_(row.operator == ">=", metric.highest >= row.bound),
        and_(row.operator == "<", metric.lowest < row.bound),
        and_(row.operator == "<=", metric.lowest <= row.bound),
    )
    query = (
        select(JobRow, row, metric)
        .join(row, row.job_key == JobRow.key)
        .join(metric, and_(metric.job_key == row.job_key, metric.name == row.metric))
        .where(beyond)
        .order_by(JobRow.key)
        .limit(limit)
    )
    return [
        Alert(job, alert.position, Bound(alert.metric, alert.operator, alert.bound), value, measured.step)
        for job, alert, measured in reader.session.execute(query)
        if (value := measured.highest if ">" in alert.operator else measured.lowest) is not None
    ]


def remove_alert(writer: Writer, alert: Alert) -> None:
    writer.session.execute(
        delete(MetricAlertRow).filter_by(
            job_key=alert.job.key,
            position=alert.position,
            metric=alert.bound.metric,
            operator=alert.bound.operator,
            bound=alert.bound.number,
        )
    )


def remove_old(writer: Writer, ended_before: datetime, created_before: datetime) -> None:
    """Delete the bounds of jobs that ended before a time, and notifications of before another one that do not wait."""
    ended = select(JobRow.key).where(JobRow.ended_at < ended_before, JobRow.key == MetricAlertRow.job_key).exists()
    writer.session.execute(delete(MetricAlertRow).where(ended).execution_options(synchronize_session=False))
    old = (NotificationRow.state != PENDING, NotificationRow.created_at < created_before)
    writer.session.execute(delete(NotificationRow).where(*old))


def notification(
    project: str, job_id: str, event: str, receiver: Receiver, content: Mapping[str, Any], now: datetime
) -> NotificationRow:
    """A notification that is to be delivered, with an id of its own."""
    return NotificationRow(
        id=uuid.uuid4().hex,
        project=project,
        job_id=job_id,
        event=event,
        channel=receiver.channel,
        transport=receiver.transport,
        address=receiver.address,
        receiver=receiver_of(receiver.address),
        content=dict(content),
        created_at=now,
        state=PENDING,
        attempts=0,
        next_at=now,
    )


def add(writer: Writer, row: NotificationRow) -> None:
    writer.session.add(row)
    writer.session.flush()


def due(reader: Reader, now: datetime, in_flight: Collection[Lane]) -> Sequence[tuple[int, Lane]]:
    """The keys of notifications that are due, of each free lane the next: first the first of each project, then the
    second, and so on. A project's are in turns by receiver, those to channels first. A later notification of a job
    waits for the earlier ones at its address."""
    if reader.session.scalar(_ANY_DUE, {"now": now}) is None:
        return ()
    heads = _heads(now, in_flight)
    at_receiver = _turn((heads.project, heads.receiver), (heads.next_at, heads.key))
    lanes = select(*heads, at_receiver.label("at_receiver")).where(heads.on_lane == 1).subquery().c
    order = (lanes.at_receiver, case((lanes.channel != "", 0), else_=1), lanes.next_at, lanes.key)
    turns = select(*lanes, _turn((lanes.project,), order).label("of_project")).subquery().c
    query = (
        select(turns.key, turns.project, turns.receiver, turns.address)
        .where(turns.of_project <= OF_PROJECT)
        .order_by(turns.of_project, turns.next_at, turns.key)
        .limit(_LANES_AT_ONCE)
    )
    return [(key, Lane(*lane)) for key, *lane in reader.session.execute(query)]


def _heads(now: datetime, in_flight: Collection[Lane]) -> ReadOnlyColumnCollection[str, KeyedColumnElement[Any]]:
    """The oldest notifications of each job at an address that are due, with their turns on their lanes."""
    row = NotificationRow
    oldest = select(func.min(row.key)).where(row.state == PENDING).group_by(row.address, row.project, row.job_id)
    lane, time = (row.project, row.receiver, row.address), (row.next_at, row.key)
    query = select(*time, *lane, row.channel, _turn(lane, time).label("on_lane"))
    return query.where(row.key.in_(oldest), row.next_at <= now, *_free(in_flight)).subquery().c


def of_keys(reader: Reader, keys: Collection[int]) -> Sequence[NotificationRow]:
    return reader.session.scalars(select(NotificationRow).where(NotificationRow.key.in_(keys))).all()


def _turn(group: Iterable[SQLColumnExpression[Any]], order: Iterable[SQLColumnExpression[Any]]) -> ColumnElement[int]:
    return func.row_number().over(partition_by=[*group], order_by=[*order])


def _free(in_flight: Collection[Lane]) -> Iterator[ColumnElement[bool]]:
    """The conditions of lanes on which an attempt may begin."""
    row, full = NotificationRow, full_lanes(in_flight)
    if in_flight:
        yield tuple_(row.project, row.address).not_in([(lane.project, lane.address) for lane in in_flight])
    if full.projects:
        yield row.project.not_in(full.projects)
    if full.receivers:
        yield row.receiver.not_in(full.receivers)


def record_attempt(writer: Writer, key: int, **values: Any) -> None:
    """Record an attempt to deliver a notification, unless its channel was deleted."""
    writer.session.execute(update(NotificationRow).filter_by(key=key).values(**values))


def postpone(writer: Writer, lane: Lane, until: datetime) -> None:
    """Let all that waits on a lane wait until a time."""
    waiting = update(NotificationRow).filter_by(project=lane.project, address=lane.address, state=PENDING)
    writer.session.execute(waiting.where(NotificationRow.next_at < until).values(next_at=until))
