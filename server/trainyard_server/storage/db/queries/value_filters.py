"""Terms of a filter about what a job was given and what it measured: `params.lr<0.1`, `metrics.accuracy.best>0.9`,
`origin.branch=main`, `study=NAME`.

`params.NAME` compares numbers where the value is one, else text, in which a `*` stands for any text. `metrics.NAME` is
the last value; `.best`, `.lowest`, `.highest` and `.step` behind the name are the others. A job without the parameter
or the metric is not found, except by `!=`.
"""

from collections.abc import Iterator
from typing import Any

from sqlalchemy import ColumnElement, Select, func, not_, select
from sqlalchemy.orm import InstrumentedAttribute, Session, aliased

from trainyard_protocol.job.parameters import number_of, parameter_name
from trainyard_server.domain.filters.filter_syntax import And, Expression, FilterError, FilterToken, Not, Or, Term
from trainyard_server.storage.db.base.models import JobMetricRow, JobOriginRow, JobParameterRow, JobRow
from trainyard_server.storage.db.queries.like import like

PARAMETERS, METRICS, ORIGIN, STUDY = "params.", "metrics.", "origin.", "study"

NUMBERS = {
    "last": JobMetricRow.last,
    "best": JobMetricRow.best,
    "lowest": JobMetricRow.lowest,
    "highest": JobMetricRow.highest,
    "step": JobMetricRow.step,
}
"""The numbers of a metric, by the words behind its name."""

_ALIASES = {"min": "lowest", "max": "highest"}
_ORIGIN_FIELDS = ("commit", "branch", "dirty")
_ORDERS = ("<", "<=", ">", ">=")
_MANY = 1000


def value_field(name: str) -> str | None:
    """The field as terms have it, `params.learning_rate` or `metrics.loss.last`; None for a field of another kind."""
    if name == STUDY:
        return STUDY
    if name.startswith("parameters."):
        name = PARAMETERS + name.removeprefix("parameters.")
    if name.startswith(PARAMETERS) and name != PARAMETERS:
        return PARAMETERS + parameter_name(name.removeprefix(PARAMETERS))
    if name.startswith(METRICS) and name != METRICS:
        metric, number = split_metric(name)
        return f"{METRICS}{metric}.{number}"
    if name.removeprefix(ORIGIN) in _ORIGIN_FIELDS and name.startswith(ORIGIN):
        return name
    return None


def split_metric(field: str) -> tuple[str, str]:
    """The metric of a field and which of its numbers: `metrics.val/acc.best` is that of `val/acc` and `best`."""
    metric = field.removeprefix(METRICS)
    before, _, last = metric.rpartition(".")
    number = _ALIASES.get(last, last)
    return (before, number) if before and number in NUMBERS else (metric, "last")


def check(field: str, op: FilterToken, value: FilterToken) -> None:
    """Raises FilterError for an operator or a value that the field does not take."""
    if op.text == "~":
        raise FilterError(op.column, f"~ looks into texts of the job itself; {field} takes : = != < <= > and >=.")
    if field.startswith(METRICS) and value.text != "*" and number_of(value.text) is None:
        raise FilterError(value.column, f"{value.text!r} is not a number; {field} is one.")
    if op.text not in _ORDERS:
        return
    if field == STUDY or field.startswith(ORIGIN):
        raise FilterError(op.column, f"{op.text} compares numbers and times; {field} takes : = and !=.")
    if number_of(value.text) is None:
        raise FilterError(value.column, f"{value.text!r} is not a number, which {op.text} compares.")


def is_value(field: str) -> bool:
    return field == STUDY or field.startswith((PARAMETERS, METRICS, ORIGIN))


def terms(expression: Expression | None) -> Iterator[Term]:
    """The terms of an expression about parameters and metrics, and of studies and origins."""
    match expression:
        case And(parts) | Or(parts):
            for part in parts:
                yield from terms(part)
        case Not(part):
            yield from terms(part)
        case Term(field) if is_value(field):
            yield expression


def frequent(session: Session, expression: Expression | None) -> frozenset[Term]:
    """The terms that so many jobs match that a look at each job is faster than a list of those jobs."""
    counts = {
        term: select(func.count()).select_from(_matching(term).limit(_MANY).subquery())
        for term in terms(expression)
        if term.field.startswith((PARAMETERS, METRICS))
    }
    return frozenset(term for term, count in counts.items() if session.scalar(count) == _MANY)


def condition(term: Term, *, is_frequent: bool) -> ColumnElement[bool]:
    """The condition on the table of jobs."""
    if term.field == STUDY:
        study = aliased(JobRow)
        named = like(study.job_id, term.value)
        matches: ColumnElement[bool] = JobRow.study_key.in_(select(study.key).where(named))
    elif term.field.startswith(ORIGIN):
        matches = _of_origin(term)
    else:
        keys = _matching(term)
        (column,) = keys.selected_columns
        matches = keys.where(column == JobRow.key).correlate(JobRow).exists() if is_frequent else JobRow.key.in_(keys)
    return not_(matches) if term.op == "!=" else matches


def _matching(term: Term) -> Select[int]:
    """Keys of the jobs whose parameter or metric the term finds; of `!=` those that it leaves out."""
    if term.field.startswith(METRICS):
        metric, number = split_metric(term.field)
        column: InstrumentedAttribute[Any] = NUMBERS[number]
        query = select(JobMetricRow.job_key).where(JobMetricRow.name == metric, column.is_not(None))
        return query if term.value == "*" else query.where(_compared(column, term.op, float(term.value)))
    query = select(JobParameterRow.job_key).where(JobParameterRow.name == term.field.removeprefix(PARAMETERS))
    wanted = number_of(term.value)
    if wanted is not None:
        return query.where(_compared(JobParameterRow.number, term.op, wanted))
    return query.where(like(JobParameterRow.value, term.value))


def _compared(column: Any, op: str, number: float) -> ColumnElement[bool]:
    equal: ColumnElement[bool] = column == number
    comparisons: dict[str, ColumnElement[bool]] = {
        "<": column < number,
        "<=": column <= number,
        ">": column > number,
        ">=": column >= number,
    }
    return comparisons.get(op, equal)


def _of_origin(term: Term) -> ColumnElement[bool]:
    """An origin is its study's, for a trial. A commit is found by its beginning."""
    name = term.field.removeprefix(ORIGIN)
    key = func.coalesce(JobRow.study_key, JobRow.key)
    recorded = select(JobOriginRow.job_key)
    if name == "dirty":
        value: ColumnElement[bool] = JobOriginRow.summary["dirty"].as_boolean().is_(term.value.lower() == "true")
    elif term.value == "*":
        value = JobOriginRow.summary[name].as_string() != ""
    else:
        ends = "*" if name == "commit" and "*" not in term.value else ""
        value = like(JobOriginRow.summary[name].as_string(), term.value + ends)
    return key.in_(recorded.where(value))
