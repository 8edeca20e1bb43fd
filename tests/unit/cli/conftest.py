"""Fixtures of tests of several rooms of the command line."""

from collections.abc import Iterator

import pytest

from unit.cli.scripted_server import ScriptedServer, scripted_server


@pytest.fixture
def script() -> Iterator[ScriptedServer]:
    with scripted_server() as server:
        yield server
