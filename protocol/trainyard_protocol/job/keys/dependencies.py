"""Rules of `after`: the jobs that a job starts after, and what must be true of them. Pure."""

import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import AfterValidator

from trainyard_protocol.errors import Violation, quoted
from trainyard_protocol.fields import Text, validation_error

MAX_PREDECESSORS = 100
"""Entries of `after` of one job."""

JOB_DIR = "{after.job_dir}"
"""The placeholder of the directory of the first predecessor, in arguments."""

JOB_DIR_VARIABLE = "TRAINYARD_AFTER_JOB_DIR"

_ENTRY = re.compile(r"(?P<job>[A-Za-z][A-Za-z0-9_]{0,127})(:(?P<condition>.+))?", re.DOTALL)
_METRIC = re.compile(r"metrics\.(?P<name>[^\s<>=!][^<>=!]{0,99}?)\s*(?P<operator>[<>]=?|!?=)\s*(?P<number>\S{1,40})")
_OPERATORS: Mapping[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "=": operator.eq,
    "!=": operator.ne,
}


@dataclass(frozen=True, slots=True)
class MetricCondition:
    """A condition on the last value of a metric."""

    metric: str
    operator: str
    number: float

    def holds(self, value: float) -> bool:
        return _OPERATORS[self.operator](value, self.number)

    def __str__(self) -> str:
        return f"{self.metric} {self.operator} {self.number:g}"


@dataclass(frozen=True, slots=True)
class Dependency:
    """An entry of `after`: `train`, `train:ended` or `train:metrics.val_loss<0.3`, which implies that it succeeded."""

    job: str
    needs_success: bool = True
    condition: MetricCondition | None = None

    @property
    def wanted(self) -> str:
        """The end of the predecessor that is waited for, in words: `train to succeed with val_loss < 0.3`."""
        if not self.needs_success:
            return f"{self.job} to end"
        return f"{self.job} to succeed" + (f" with {self.condition}" if self.condition is not None else "")


def dependency_of(entry: str) -> Dependency:
    """Raises PydanticCustomError."""
    match = _ENTRY.fullmatch(entry.strip())
    if match is None:
        raise validation_error(
            f"{quoted(entry)} must begin with the name of a job of the same project, such as train, train:ended or "
            "'train:metrics.val_loss<0.3'."
        )
    job, condition = match["job"], (match["condition"] or "").strip()
    if condition in ("", "ended"):
        return Dependency(job, needs_success=not condition)
    metric = _METRIC.fullmatch(condition)
    number = _number(metric["number"]) if metric is not None else math.nan
    if metric is None or not math.isfinite(number):
        raise validation_error(
            f"{quoted(entry)} has the condition {quoted(condition)}; allowed: nothing (it succeeded), ended, or "
            f"metrics.NAME with one of {' '.join(_OPERATORS)} and a number, such as metrics.val_loss<0.3."
        )
    return Dependency(job, condition=MetricCondition(metric["name"], metric["operator"], number))


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _checked(value: str) -> str:
    dependency_of(value)
    return value.strip()


def not_too_many_predecessors(value: object) -> object:
    if isinstance(value, list | tuple) and len(value) > MAX_PREDECESSORS:
        raise validation_error(f"may list at most {MAX_PREDECESSORS} jobs; it lists {len(value)}.")
    return value


def without_predecessor(after: Sequence[str], args: Sequence[str]) -> Iterator[Violation]:
    """The placeholder of a predecessor's directory in the arguments of a job that has none."""
    if not after and any(JOB_DIR in word for word in args):
        yield Violation("args", f"have {JOB_DIR}, and the job has no `after` (--after JOB).")


Predecessor = Annotated[Text, AfterValidator(_checked)]
"""An entry of `after`. Not of the v1 API."""
