"""What tests of every kind share: a container engine, where there can be one."""

import os
from collections.abc import Iterator

import pytest

import engines
from engines import Engine, NoEngine, OwnEngine


@pytest.fixture(scope="session")
def engine() -> Iterator[Engine]:
    """Shared by all tests: each removes what it made."""
    try:
        with engines.found() as engine:
            yield engine
    except NoEngine as missing:
        _without(missing)


@pytest.fixture
def own_engine() -> Iterator[OwnEngine]:
    """For a test that breaks it."""
    try:
        with engines.own() as engine:
            yield engine
    except NoEngine as missing:
        _without(missing)


def _without(missing: NoEngine) -> None:
    """In CI nothing is skipped."""
    if os.environ.get("CI") == "true":
        pytest.fail(str(missing))
    pytest.skip(str(missing))
