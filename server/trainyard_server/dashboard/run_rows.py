"""Lines of the run table beside their values: the parts of a name, and why the job waits or failed. Pure."""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from trainyard_protocol.states import JobState
from trainyard_server.dashboard.rendering import number
from trainyard_server.services.views.run_columns import RunColumn
from trainyard_server.storage.db.queries.job_queries import JobListEntry

WHOLE_NAME = 40
"""Most characters of a name that is shown whole; a longer one is cut in its middle."""

_TAIL = 14
_SHARED_BY = 3
_SEPARATORS = "_-./"
_ALIKE = 1000.0
_REASON_COLUMNS = ("metric", "progress")


class NameParts(NamedTuple):
    """A name in three parts: what other names begin with as well, the middle, and the end that a cut leaves."""

    shared: str
    middle: str
    tail: str


class RowReason(NamedTuple):
    """The cause that a job waits, prepares or failed: in short and in full."""

    text: str
    full: str
    is_failure: bool = False


class ReasonPlace(NamedTuple):
    """The column that has the reason in place of its value, and how many columns it spans."""

    field: str
    span: int


def name_parts(names: Collection[str]) -> Mapping[str, NameParts]:
    """The parts of each name of a page. A shared beginning ends behind a separator and is that of three names at least;
    the longest counts."""
    ends = {name: _word_ends(name) for name in names}
    shared = Counter(name[:end] for name, all_ends in ends.items() for end in all_ends)
    parts = {}
    for name, all_ends in ends.items():
        end = max((end for end in all_ends if shared[name[:end]] >= _SHARED_BY), default=0)
        cut = len(name) - _TAIL if len(name) > WHOLE_NAME else len(name)
        parts[name] = NameParts(name[: min(end, cut)], name[min(end, cut) : cut], name[cut:])
    return parts


def _word_ends(name: str) -> Sequence[int]:
    """The places behind separators; not within a number such as 0_1."""
    return [
        at + 1
        for at, letter in enumerate(name[:-1])
        if letter in _SEPARATORS and not (name[at - 1 : at].isdigit() and name[at + 1].isdigit())
    ]


def reason_of(job: JobListEntry) -> RowReason | None:
    if job.state is JobState.QUEUED and job.waiting:
        if not job.position:
            return RowReason(job.waiting, job.waiting)
        return RowReason(f"#{job.position} · {job.waiting}", f"#{job.position} in the queue: {job.waiting}")
    if job.state is JobState.PREPARING and job.activity:
        return RowReason(job.activity, job.activity)
    if job.state is not JobState.FAILED:
        return None
    if job.verdict:
        return RowReason(job.verdict.cause or job.verdict.message, job.verdict.message, is_failure=True)
    return RowReason(job.error_message, job.error_message, is_failure=True) if job.error_message else None


def reason_place(columns: Sequence[RunColumn]) -> ReasonPlace | None:
    """The first of the columns metric and progress, with the other if it is next to it; None without both."""
    places = [at for at, column in enumerate(columns) if column.field in _REASON_COLUMNS]
    if not places:
        return None
    return ReasonPlace(columns[places[0]].field, 2 if places[-1] - places[0] == 1 else 1)


def is_numeric(values: Iterable[str | float | None]) -> bool:
    """Whether a column is one of numbers: its values align right."""
    return all(_is_number(value) for value in values if value not in (None, ""))


def decimals_of(values: Iterable[str | float | None]) -> int | None:
    """The decimals that all numbers of a column have in common; None where their sizes differ too much for that."""
    numbers = [value for value in values if isinstance(value, float) and math.isfinite(value)]
    sizes = [abs(value) for value in numbers if value]
    texts = [number(value) for value in numbers]
    if not sizes or max(sizes) / min(sizes) > _ALIKE or any("e" in text for text in texts):
        return None
    return max(len(text.partition(".")[2]) for text in texts)


def _is_number(value: str | float | None) -> bool:
    if isinstance(value, str):
        try:
            float(value)
        except ValueError:
            return False
    return True
