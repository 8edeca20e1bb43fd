"""PostgreSQL servers of the benchmarks' own."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from beds.databases import PostgreSQL

_TESTS = Path(__file__).parents[1] / "tests"


@contextmanager
def postgresql(durable: bool = False) -> Iterator["PostgreSQL"]:
    """A server as the tests have it; with `durable` a commit waits for the disk."""
    if str(_TESTS) not in sys.path:
        sys.path.append(str(_TESTS))  # the tests start it
    from beds import databases

    with databases.postgresql(durable=durable) as server:
        yield server
