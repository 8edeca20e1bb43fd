"""Columns of the run table: what every job has, parameters, metrics and labels. Pure."""

from collections.abc import Sequence
from typing import NamedTuple

from trainyard_protocol.errors import InvalidArgument, Violation, quoted
from trainyard_protocol.fields import did_you_mean
from trainyard_protocol.lines.progress import lower_is_better
from trainyard_server.storage.db.queries import value_filters
from trainyard_server.storage.db.tables.job_values import JobValues

FIXED = {
    "state": ("State", "state"),
    "job": ("Job", "name"),
    "project": ("Project", ""),
    "shape": ("Shape", ""),
    "owner": ("Owner", "owner"),
    "created": ("Created", "created"),
    "started": ("Started", "started"),
    "ended": ("Ended", "ended"),
    "time": ("Time", "started"),
    "progress": ("Progress", ""),
    "metric": ("Metric", ""),
    "origin": ("Origin", ""),
    "labels": ("Labels", ""),
    "note": ("Note", ""),
}
"""Columns of what every job has: title, and sort key ("" where it has none)."""

DEFAULT = ("state", "job", "metric", "progress", "time", "owner", "created")
"""Columns that are shown unless others are chosen, with some parameters behind the job."""

MOST_COLUMNS = 30
_LABELS = "labels."


class RunColumn(NamedTuple):
    """A column of the table. `field` is what the address has; `kind` is one of fixed, parameter, metric and label;
    `number` is, of a metric, `last`, `best`, `lowest`, `highest`, `step`, or its value at a step, `@1000`."""

    field: str
    kind: str
    name: str
    number: str = ""

    @property
    def title(self) -> str:
        if self.kind == "fixed":
            return FIXED[self.name][0]
        if self.kind == "metric" and self.number != "last":
            return f"{self.name} {self.number}"
        return self.name

    @property
    def order(self) -> str:
        """The sort key; "" where it cannot be sorted by."""
        if self.kind == "fixed":
            return FIXED[self.name][1]
        if self.kind == "label" or self.number.startswith("@"):
            return ""
        return self.field

    @property
    def lower_is_better(self) -> bool | None:
        return lower_is_better(self.name) if self.kind == "metric" and self.number != "step" else None


def columns_of(fields: Sequence[str]) -> list[RunColumn]:
    """Raises InvalidArgument."""
    wrong = [Violation("column", _unknown(field)) for field in fields if column_of(field) is None]
    if len(fields) > MOST_COLUMNS:
        wrong.append(Violation("column", f"may be given {MOST_COLUMNS} times; this is {len(fields)} times."))
    if wrong:
        raise InvalidArgument(wrong)
    columns = [column for field in fields if (column := column_of(field)) is not None]
    return list(dict.fromkeys(columns))


def number_in(values: JobValues, column: RunColumn) -> float | None:
    """The number of a metric column; None where the job has none."""
    summary = values.metrics.get(column.name)
    if summary is None:
        return None
    if column.number == "best":
        return summary.best(column.name)
    number: float | None = getattr(summary, column.number)
    return number


def column_of(field: str) -> RunColumn | None:
    """The column that a field means; None for another text."""
    if field in FIXED:
        return RunColumn(field, "fixed", field)
    if field.startswith(_LABELS) and field != _LABELS:
        return RunColumn(field, "label", field.removeprefix(_LABELS))
    if field.startswith(value_filters.METRICS) and (at := field.rpartition("@"))[2].isdecimal() and len(at[2]) < 19:
        name = at[0].removeprefix(value_filters.METRICS)
        return RunColumn(field, "metric", name, f"@{int(at[2])}") if name else None
    value_field = value_filters.value_field(field)
    if value_field is not None and value_field.startswith(value_filters.PARAMETERS):
        return RunColumn(value_field, "parameter", value_field.removeprefix(value_filters.PARAMETERS))
    if value_field is not None and value_field.startswith(value_filters.METRICS):
        name, number = value_filters.split_metric(value_field)
        return RunColumn(value_field, "metric", name, number)
    return None


def _unknown(field: str) -> str:
    allowed = f"{', '.join(FIXED)}, params.NAME, metrics.NAME, metrics.NAME.best, metrics.NAME@STEP and labels.NAME"
    return f"{quoted(field)} is not a column; columns are {allowed}. {did_you_mean(field, FIXED)}".strip()
