"""Names that complete from the server: jobs and replicas. Quick, and silently nothing when it is away.

The shell runs this at a key press: nothing may be printed, and nothing heavy is imported before it is needed.
"""

import itertools
import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import click

from trainyard_cli.settings import DEFAULT_PROJECT, Where, default_state_dir
from trainyard_protocol.errors import TrainyardError

if TYPE_CHECKING:
    from trainyard_cli.client import Client

_TIMEOUT_S = 1.0
_MOST = 50


def job_names(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """The newest jobs whose names begin so."""

    def ask(client: "Client") -> Iterable[str]:
        pattern = f"jobId:{incomplete}*" if incomplete else ""
        return (str(job["jobId"]) for job in itertools.islice(client.list_jobs(pattern, _MOST), _MOST))

    return _matching(context, ask, incomplete)


def task_names(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """The replicas of the job that the command line names."""
    job = context.params.get("job")
    if not job:
        return []

    def ask(client: "Client") -> Iterable[str]:
        runs = client.detail(str(job)).runs
        return [replica.task for replica in runs[-1].replicas] if runs else []

    return _matching(context, ask, incomplete)


def _matching(context: click.Context, ask: Callable[["Client"], Iterable[str]], incomplete: str) -> list[str]:
    from trainyard_cli.client import NO_PATIENCE, Client
    from trainyard_cli.local.connect import running_server

    try:
        where = _where(context)
        server = running_server(where)
        if server is None:
            return []
        with Client(server, where.project, patience=NO_PATIENCE, timeout=_TIMEOUT_S) as client:
            return [name for name in ask(client) if name.startswith(incomplete)]
    except (TrainyardError, OSError):
        return []


def _where(context: click.Context) -> Where:
    given = context.params
    state_dir = given.get("state_dir")
    return Where(
        state_dir=state_dir or default_state_dir(),
        project=given.get("project") or os.environ.get("TRAINYARD_PROJECT") or DEFAULT_PROJECT,
        server=given.get("server") or "",
        token_file=given.get("token_file"),
        local=state_dir is not None,
    )
