"""Shell completion of job and replica names from the server; empty if it does not answer.

The shell runs this at each TAB: it prints nothing and imports heavy modules late.
"""

import itertools
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import click

from trainyard_cli.settings import chosen_target
from trainyard_protocol.errors import TrainyardError

if TYPE_CHECKING:
    from trainyard_cli.client import Client

_TIMEOUT_S = 1.0
_LIMIT = 50


def job_names(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """The newest jobs whose names start with `incomplete`; after `STUDY/` its trials, best first."""
    study, slash, _ = incomplete.partition("/")

    def query(client: "Client") -> Iterable[str]:
        if slash:
            from trainyard_cli.output.jobs.studies import best_first

            return (f"{study}/{trial.number}" for trial in best_first(client.trials(study))[:_LIMIT])
        pattern = f"jobId:{incomplete}*" if incomplete else ""
        return (str(job["jobId"]) for job in itertools.islice(client.list_jobs(pattern, _LIMIT), _LIMIT))

    return _matching(context, query, incomplete)


def task_names(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """The replicas of the job on the command line."""
    job = context.params.get("job")
    if not job:
        return []

    def query(client: "Client") -> Iterable[str]:
        runs = client.detail(str(job)).runs
        return [replica.task for replica in runs[-1].replicas] if runs else []

    return _matching(context, query, incomplete)


def _matching(context: click.Context, query: Callable[["Client"], Iterable[str]], incomplete: str) -> list[str]:
    from trainyard_cli.client import Client
    from trainyard_cli.local.connect import running_server
    from trainyard_cli.v1_client import NO_RETRIES

    try:
        target = chosen_target(context.params)
        server = running_server(target)
        if server is None:
            return []
        with Client(server, target.project, retry_delays=NO_RETRIES, timeout=_TIMEOUT_S) as client:
            return [name for name in query(client) if name.startswith(incomplete)]
    except (TrainyardError, OSError):
        return []
