"""Lists and status with 100,000 jobs, against a server with 100."""

import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from functools import cache, partial
from pathlib import Path

from benchmarks.filled import FilledServer, fill, started
from benchmarks.rows import Row, Samples, interleaved
from benchmarks.tools import postgresql

_LIST = "/v1/projects/p2/jobs"

_LISTS = {
    "list": ("a page of `jobs list`", {}),
    "list-state": ("with `state:FAILED`", {"filter": "state:FAILED"}),
    "list-unfinished": ("what has not ended", {"filter": "state:QUEUED OR state:RUNNING OR state:PREPARING"}),
    "list-label": ("a label of half of the jobs", {"filter": "labels.stage=final"}),
    "list-rare-label": ("a label of three jobs", {"filter": "labels.pinned=yes"}),
}


@cache
def filled(count: int) -> tuple[tempfile.TemporaryDirectory[str], Path]:
    """A directory with so many jobs, for all rows of a run."""
    directory = tempfile.TemporaryDirectory()
    fill(Path(directory.name) / "data", count)
    return directory, Path(directory.name)


def _requests(path: str, parameters: dict[str, str], quick: bool) -> Samples:
    with ExitStack() as stack:
        directories = [filled(count)[1] for count in _counts(quick)]
        many, few = [stack.enter_context(started(directory)) for directory in directories]
        return compared(many, few, path, parameters, quick)


def _list_on_postgresql(quick: bool) -> Samples:
    with postgresql() as databases, ExitStack() as stack:
        servers = []
        for count in _counts(quick):
            directory, url = Path(stack.enter_context(tempfile.TemporaryDirectory())), databases.create()
            fill(directory / "data", count, database=url)
            servers.append(stack.enter_context(started(directory, "--database", url)))
        many, few = servers
        return compared(many, few, _LIST, {"filter": "labels.stage=final"}, quick)


def _counts(quick: bool) -> tuple[int, int]:
    return 20_000 if quick else 100_000, 100


def compared(
    many: FilledServer, few: FilledServer, path: str, parameters: Mapping[str, str | list[str]], quick: bool
) -> Samples:
    """The time of a request to each of the two servers."""

    def get(server: FilledServer) -> float:
        began = time.perf_counter()
        server.client.get(path, params=parameters).raise_for_status()
        return (time.perf_counter() - began) * 1000

    return interleaved(partial(get, many), partial(get, few), 20 if quick else 100, "ms", warm_up=4)


_SAME = "the same with 100 jobs"

ROWS = (
    *(
        Row(name, f"{what}, 100,000 jobs", _SAME, 2.0, partial(_requests, _LIST, parameters), "the 20 jobs of the page")
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
