"""Lists and status with 100,000 jobs, against a server with 100."""

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache, partial
from pathlib import Path

import httpx

from benchmarks.databases import postgresql
from benchmarks.filled import FilledServer, fill, started
from benchmarks.rows import Row, Samples, interleaved

_FEW, _MANY, _QUICK_MANY = 100, 100_000, 20_000
_LIST = "/v1/projects/p2/jobs"

_LISTS = {
    "list": ("a page of `jobs list`", {}),
    "list-state": ("with `state:FAILED`", {"filter": "state:FAILED"}),
    "list-unfinished": ("what has not ended", {"filter": "state:QUEUED OR state:RUNNING OR state:PREPARING"}),
    "list-label": ("a label of half of the jobs", {"filter": "labels.stage=final"}),
    "list-rare-label": ("a label of three jobs", {"filter": "labels.pinned=yes"}),
}


@cache
def _filled(count: int) -> tuple[tempfile.TemporaryDirectory[str], Path]:
    """A directory with so many jobs, for all rows of a run."""
    directory = tempfile.TemporaryDirectory()
    fill(Path(directory.name) / "data", count)
    return directory, Path(directory.name)


@contextmanager
def _two_servers(quick: bool) -> Iterator[list[FilledServer]]:
    with ExitStack() as stack:
        directories = [_filled(count)[1] for count in (_QUICK_MANY if quick else _MANY, _FEW)]
        yield [stack.enter_context(started(one / "data", one)) for one in directories]


@contextmanager
def _two_on_postgresql(quick: bool) -> Iterator[list[FilledServer]]:
    with ExitStack() as stack:
        databases = stack.enter_context(postgresql())
        servers = []
        for count in (_QUICK_MANY if quick else _MANY, _FEW):
            directory, url = Path(stack.enter_context(tempfile.TemporaryDirectory())), databases.create()
            fill(directory / "data", count, database=url)
            options = ["--database", url]
            servers.append(stack.enter_context(started(directory / "data", directory, options=options)))
        yield servers


def _get(client: httpx.Client, path: str, parameters: dict[str, str]) -> float:
    began = time.perf_counter()
    client.get(path, params=parameters, headers={"Accept": "application/json"}).raise_for_status()
    return (time.perf_counter() - began) * 1000


def _requests(path: str, parameters: dict[str, str], quick: bool) -> Samples:
    with _two_servers(quick) as (many, few):
        return _compared(many, few, path, parameters, quick)


def _list_on_postgresql(quick: bool) -> Samples:
    with _two_on_postgresql(quick) as (many, few):
        return _compared(many, few, _LIST, {"filter": "labels.stage=final"}, quick)


def _compared(
    many: FilledServer, few: FilledServer, path: str, parameters: dict[str, str], quick: bool
) -> Samples:
    return interleaved(
        partial(_get, many.client, path, parameters),
        partial(_get, few.client, path, parameters),
        20 if quick else 100,
        "ms",
        warm_up=4,
    )


def _of_list(parameters: dict[str, str]) -> Callable[[bool], Samples]:
    return partial(_requests, _LIST, parameters)


_SAME = "the same with 100 jobs"

ROWS = (
    *(
        Row(name, f"{what}, 100,000 jobs", _SAME, 2.0, _of_list(parameters), "the 20 jobs of the page")
        for name, (what, parameters) in _LISTS.items()
    ),
    Row(
        "list-postgresql",
        "a label of half of the jobs, 100,000 jobs, PostgreSQL",
        _SAME,
        2.0,
        _list_on_postgresql,
        "the 20 jobs of the page",
        in_quick=False,
    ),
    Row(
        "status",
        "`trainyard status`, 100,000 jobs",
        _SAME,
        2.0,
        partial(_requests, "/trainyard/v1/status", {}),
        bound=(
            "the count of jobs in each state, over an index that has all it needs: in proportion to the "
            "jobs. Tried: an index of project and state; counts kept beside the jobs would be one more "
            "write for each move of a job"
        ),
    ),
)
