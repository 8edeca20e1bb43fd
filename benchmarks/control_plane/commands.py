"""Starts of the command line and of the server, against the imports that they cannot do without."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from benchmarks.filled import TOKEN, fill, serving, started
from benchmarks.rows import Row, Samples, interleaved

_ROUNDS, _QUICK = 11, 5
_CLIENT = ("-c", "import click, httpx")
_SERVER = ("-c", "import fastapi, sqlalchemy")


def _seconds(arguments: Sequence[str], environment: dict[str, str] | None = None) -> float:
    began = time.perf_counter()
    subprocess.run(
        [sys.executable, *arguments],
        check=True,
        stdout=subprocess.DEVNULL,
        env={**os.environ, **(environment or {})},
    )
    return time.perf_counter() - began


def _help(quick: bool) -> Samples:
    rounds = _QUICK if quick else _ROUNDS
    command = ("-m", "trainyard_cli", "--help")
    return interleaved(lambda: _seconds(command), lambda: _seconds(_CLIENT), rounds, "s")


def _jobs_list(quick: bool) -> Samples:
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        directory = Path(name)
        fill(directory / "data", 100)
        client = stack.enter_context(serving(directory / "data", directory))
        environment = {
            "TRAINYARD_SERVER": str(client.base_url),
            "TRAINYARD_TOKEN": TOKEN,
            "TRAINYARD_PROJECT": "p2",
            "HOME": name,
        }
        command = ("-m", "trainyard_cli", "jobs", "list")
        rounds = _QUICK if quick else _ROUNDS
        return interleaved(lambda: _seconds(command, environment), lambda: _seconds(_CLIENT), rounds, "s")


def _server_start(quick: bool) -> Samples:
    with tempfile.TemporaryDirectory() as name:

        def start() -> float:
            began = time.perf_counter()
            with started(Path(name) / "data", Path(name), look_every_s=0.01):
                return time.perf_counter() - began

        return interleaved(start, lambda: _seconds(_SERVER), _QUICK if quick else _ROUNDS, "s")


def _up(quick: bool) -> Samples:
    with tempfile.TemporaryDirectory() as name:
        environment = {"TRAINYARD_STATE_DIR": name}

        def up() -> float:
            took = _seconds(("-m", "trainyard_cli", "up"), environment)
            _seconds(("-m", "trainyard_cli", "down"), environment)
            return took

        return interleaved(up, lambda: _seconds(_SERVER), _QUICK if quick else _ROUNDS, "s")


_IMPORTS = "`import click, httpx`"

ROWS = (
    Row("help", "`trainyard --help`", _IMPORTS, 1.0, _help, bound="click, and the tree of commands"),
    Row(
        "jobs-list-command",
        "`trainyard jobs list`, 20 of 100 jobs",
        _IMPORTS,
        1.5,
        _jobs_list,
        bound="the import of httpx, which is three quarters of it",
    ),
    Row(
        "server-start",
        "a server that starts again, to its first answer",
        "`import fastapi, sqlalchemy`",
        1.5,
        _server_start,
        bound="imports: SQLAlchemy's mapping, 136 models of pydantic, 135 routes of FastAPI, 150 data classes. Tried: "
        "what few servers need (TLS, single sign-on, clients of storages, Alembic, PostgreSQL's dialect) is loaded "
        "when it is needed, routes are made once, and no garbage is collected before the server serves; models "
        "that are built at their first use save a thirtieth",
    ),
    Row(
        "up",
        "`trainyard up` where a service was before, until it is ready",
        "`import fastapi, sqlalchemy`",
        1.5,
        _up,
        bound=(
            "the start of the server, and beside it, on two cores, those of the command, the agent and "
            "the storage. Tried: processes start before the command loads what it shows; storage without "
            "clients and models, agent without Docker's SDK where there is no engine"
        ),
    ),
)
