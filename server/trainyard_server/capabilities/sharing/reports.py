"""Usage reports, from the records of ended runs and from what runs now."""

import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import date, datetime

from trainyard_protocol.answers.operating.accounting import UsageReport, UsageReportRow
from trainyard_protocol.errors import InvalidArgument, Violation, quoted
from trainyard_server.capabilities.sharing import store, usage
from trainyard_server.capabilities.sharing.store import RecordedUsage, UnrecordedRun
from trainyard_server.capabilities.sharing.usage import UsageTotal
from trainyard_server.capabilities.sharing.usage_recording import share_of, wait_of
from trainyard_server.context import Backend
from trainyard_server.domain.access.permissions import Visible, is_visible

GROUPS = ("project", "user", "month")
MOST_GROUPS = 4

_LABEL = re.compile(r"label:[a-z][a-z0-9_-]{0,62}")
_MONTH = re.compile(r"\d{4}-\d{2}")
_HEADER = ("runs", "failed_runs", "cpu_hours", "gpu_hours", "idle_gpu_hours", "mean_wait_s")


class UsageReports:
    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def report(
        self, visible: Visible, by: Sequence[str] = (), project: str = "", since: str = "", until: str = ""
    ) -> UsageReport:
        """The usage of visible projects, or of one, in groups. `since` and `until`: a day or a month, by default from
        the first of this month to today. Raises InvalidArgument with every violation."""
        now = self._backend.clock()
        groups = tuple(dict.fromkeys(by)) or ("project",)
        first, last = _checked(groups, since or now.strftime("%Y-%m"), until or store.day_of(now))
        if project:
            visible = frozenset({project}) if is_visible(project, visible) else frozenset()
        totals: dict[tuple[str, ...], UsageTotal] = {}
        total = UsageTotal()
        with self._backend.store.read() as reader:
            recorded: Iterable[RecordedUsage] = store.records(reader, visible, first, last)
            for record in recorded:
                _add(totals, total, groups, record)
            if first <= store.day_of(now) <= last:
                for record in _so_far(store.live(reader), visible, now):
                    _add(totals, total, groups, record)
        ordered = sorted(totals.items(), key=lambda item: _order(groups, *item))
        return UsageReport(
            first_day=first,
            last_day=last,
            groups=groups,
            rows=tuple(_row(keys, own) for keys, own in ordered),
            total=_row((), total),
            at=now,
        )


def table(report: UsageReport) -> Iterator[Iterable[object]]:
    """The rows of a report as a table, with its header."""
    yield (*report.groups, *_HEADER)
    for row in report.rows:
        yield (*row.keys, *(getattr(row, name) for name in _HEADER))


def _checked(groups: Sequence[str], since: str, until: str) -> tuple[str, str]:
    """The first and the last day. Raises InvalidArgument."""
    wrong = [
        Violation("by", f"is {', '.join(GROUPS)} or label:NAME; this is {quoted(group)}.")
        for group in groups
        if group not in GROUPS and not _LABEL.fullmatch(group)
    ]
    if len(groups) > MOST_GROUPS:
        wrong.append(Violation("by", f"may have {MOST_GROUPS} groups; it has {len(groups)}."))
    days = {}
    for name, text in (("since", since), ("until", until)):
        try:
            days[name] = date.fromisoformat(f"{text}-01" if _MONTH.fullmatch(text) else text)
        except ValueError:
            wrong.append(
                Violation(name, f"is a day or a month, such as 2026-11-20 or 2026-11; this is {quoted(text)}.")
            )
    if wrong:
        raise InvalidArgument(wrong)
    last = f"{until}-31" if _MONTH.fullmatch(until) else until
    if last < days["since"].isoformat():
        raise InvalidArgument(Violation("until", f"must not be before since, {since}; this is {until}."))
    return days["since"].isoformat(), last


def _so_far(live: Iterable[UnrecordedRun], visible: Visible, now: datetime) -> Iterator[RecordedUsage]:
    """Usage of the runs that have not ended, until now."""
    for unrecorded in live:
        job = unrecorded.job
        if is_visible(job.project, visible):
            shares = [share_of(replica) for replica in unrecorded.replicas]
            yield RecordedUsage(
                job.project,
                job.owner,
                job.labels,
                store.day_of(now),
                usage.cpu_seconds(shares, now),
                usage.gpu_seconds(shares, now),
                None,
                wait_of(unrecorded),
                False,
            )


def _add(
    totals: dict[tuple[str, ...], UsageTotal], total: UsageTotal, groups: Sequence[str], record: RecordedUsage
) -> None:
    keys = tuple(_key(group, record) for group in groups)
    for own in (totals.setdefault(keys, UsageTotal()), total):
        own.add(record.cpu_s, record.gpu_s, record.idle_gpu_s, record.wait_s, has_failed=record.has_failed)


def _key(group: str, record: RecordedUsage) -> str:
    match group:
        case "project":
            return record.project
        case "user":
            return record.owner
        case "month":
            return record.day[:7]
        case _:
            return record.labels.get(group.removeprefix("label:"), "")


def _order(groups: Sequence[str], keys: tuple[str, ...], own: UsageTotal) -> tuple[object, ...]:
    months = tuple(key for group, key in zip(groups, keys, strict=True) if group == "month")
    return (*months, -own.gpu_hours, -own.cpu_hours, keys)


def _row(keys: tuple[str, ...], own: UsageTotal) -> UsageReportRow:
    return UsageReportRow(
        keys=keys,
        runs=own.runs,
        failed_runs=own.failed_runs,
        cpu_hours=round(own.cpu_hours, 3),
        gpu_hours=round(own.gpu_hours, 3),
        idle_gpu_hours=round(own.idle_gpu_hours, 3),
        mean_wait_s=None if own.mean_wait_s is None else round(own.mean_wait_s, 1),
    )
