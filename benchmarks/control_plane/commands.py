"""Starts of the command line and of the server, against the imports that they cannot do without."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from benchmarks.filled import fill, started
from benchmarks.rows import Row, Samples, interleaved

_PARSER, _CLIENT, _SERVER = "click", "click, httpx", "fastapi, sqlalchemy"
_TRAINYARD = ("-m", "trainyard_cli")


def _seconds(*arguments: str, variables: Mapping[str, str] | None = None) -> float:
    environment = {**os.environ, **(variables or {})}
    began = time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL, env=environment)
    return time.perf_counter() - began


def _compared(start: Callable[[], float], imports: str, quick: bool) -> Samples:
    return interleaved(start, partial(_seconds, "-c", f"import {imports}"), 5 if quick else 11, "s")


def _help(quick: bool) -> Samples:
    return _compared(partial(_seconds, *_TRAINYARD, "--help"), _PARSER, quick)


def _jobs_list(quick: bool) -> Samples:
    with tempfile.TemporaryDirectory() as name:
        fill(Path(name) / "data", 100)
        with started(Path(name)) as server:
            command = partial(_seconds, *_TRAINYARD, "jobs", "list", variables=server.environment("p2"))
            return _compared(command, _CLIENT, quick)


def _server_start(quick: bool) -> Samples:
    with tempfile.TemporaryDirectory() as name:

        def start() -> float:
            began = time.perf_counter()
            with started(Path(name)):
                return time.perf_counter() - began

        return _compared(start, _SERVER, quick)


def _up(quick: bool) -> Samples:
    with tempfile.TemporaryDirectory() as name:
        variables = {"TRAINYARD_STATE_DIR": name}

        def up() -> float:
            lasted = _seconds(*_TRAINYARD, "up", variables=variables)
            _seconds(*_TRAINYARD, "down", variables=variables)
            return lasted

        return _compared(up, _SERVER, quick)


ROWS = (
    Row(
        "help",
        "`trainyard --help`",
        f"`import {_PARSER}`",
        1.5,
        _help,
        bound="the import of click, and of the names and short help of the commands, which load nothing else",
    ),
    Row(
        "jobs-list-command",
        "`trainyard jobs list`, 20 of 100 jobs",
        f"`import {_CLIENT}`",
        1.5,
        _jobs_list,
        bound="the import of httpx, which is three quarters of it",
    ),
    Row(
        "server-start",
        "a server that starts again, to its first answer",
        f"`import {_SERVER}`",
        1.5,
        _server_start,
        bound="imports: SQLAlchemy's mapping, 340 models of pydantic, 350 data classes, 800 patterns. Tried: "
        "what few servers need (TLS, single sign-on, clients of storages, Alembic, PostgreSQL's dialect) is loaded "
        "when it is needed, FastAPI's part of a route is made by its first request, and no garbage is collected before "
        "the server serves; models that are built at their first use save nothing",
    ),
    Row(
        "up",
        "`trainyard up` where a service was before, until it is ready",
        f"`import {_SERVER}`",
        1.5,
        _up,
        bound=(
            "the start of the server, and beside it, on two cores, those of the command, the agent and "
            "the storage. Tried: processes start before the command loads what it shows; storage without "
            "clients and models, agent without Docker's SDK where there is no engine"
        ),
    ),
)
