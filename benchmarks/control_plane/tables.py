"""The table of jobs with 50,000 jobs, against a server with 50: the page as the server sends it."""

from contextlib import ExitStack
from functools import partial

from benchmarks.control_plane.lists import compared, filled
from benchmarks.filled import started
from benchmarks.rows import Row, Samples

_MANY, _FEW = 50_000, 50
_COLUMNS = ("state", "job", "params.lr", "metrics.loss.best", "metrics.accuracy.best")

_TABLES: dict[str, tuple[str, dict[str, str | list[str]]]] = {
    "table": ("the table of jobs", {}),
    "table-sorted": (
        "sorted by a metric of nearly all of them",
        {"sort": "-metrics.accuracy.best", "column": list(_COLUMNS)},
    ),
    "table-filter": (
        "with a parameter of a fifth of them and a metric of half of them",
        {"filter": "params.lr=0.01 AND metrics.accuracy.best>0.5", "column": list(_COLUMNS)},
    ),
    "table-groups": ("in groups by a parameter", {"group": "params.lr", "column": list(_COLUMNS)}),
}


def _pages(parameters: dict[str, str | list[str]], quick: bool) -> Samples:
    with ExitStack() as stack:
        directories = [filled(count)[1] for count in (_MANY, _FEW)]
        many, few = [stack.enter_context(started(directory)) for directory in directories]
        return compared(many, few, "/", parameters, quick)


ROWS = tuple(
    Row(
        name,
        f"{what}, 50,000 jobs",
        "the same with 50 jobs",
        2.0,
        partial(_pages, parameters),
        "the 50 jobs of the page, and the count of up to 1,000 that match",
        in_quick=False,
    )
    for name, (what, parameters) in _TABLES.items()
)
