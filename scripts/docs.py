"""Generates the reference of the site, `docs/reference`, from the code, for `make docs`. A test compares them."""

import inspect
import re
import runpy
import sys
from enum import StrEnum
from pathlib import Path

from trainyard_agent.engines.registry import kinds
from trainyard_agent.settings import PREFIX, AgentSettings, Command
from trainyard_protocol import errors, states
from trainyard_protocol.settings import Declared, declared
from trainyard_server.app import ACCESS
from trainyard_server.capabilities.backups.options import BackupOptions
from trainyard_server.capabilities.monitoring import exposition
from trainyard_server.capabilities.notifications.options import NotificationOptions
from trainyard_server.capabilities.single_sign_on.options import OidcOptions
from trainyard_server.config.network import NetworkSettings
from trainyard_server.config.settings import Settings
from trainyard_server.domain.access.route_access import Route

_ROOT = Path(__file__).parents[1]
_REFERENCE = _ROOT / "docs" / "reference"
_METRIC = re.compile(r'(?:Family|_histogram|_family)\(\s*"(trainyard_\w+)", "([^"]+)"')


def pages() -> dict[Path, str]:
    """The text of every generated page by path."""
    command_pages = runpy.run_path(str(Path(__file__).with_name("command_pages.py")))
    return {
        _REFERENCE / "server-settings.md": server_settings(),
        _REFERENCE / "agent-settings.md": agent_settings(),
        _REFERENCE / "api.md": api(),
        _REFERENCE / "states.md": states_and_errors(),
        **{_REFERENCE / name: text for name, text in command_pages["pages"]().items()},
    }


def server_settings() -> str:
    kinds = (Settings, NetworkSettings, NotificationOptions, BackupOptions, OidcOptions)
    options = [entry for kind in kinds for entry in declared(kind)]
    lines = [
        "# Settings of the server",
        "",
        "Every option of `python -m trainyard_server`, which `trainyard up` passes on after `--`.",
        "",
        "Generated from the declarations by `make docs`. Each option may be given as a flag (`--lease-seconds 300`),",
        "in the environment (`TRAINYARD_SERVE_LEASE_SECONDS=300`; commas separate several values) or in the TOML file",
        "that `--settings FILE` or `TRAINYARD_SERVE_SETTINGS` names (`lease-seconds = 300`; several values are a list,",
        "a switch is `true`). The first of these wins.",
        "",
        "| option of the server | default | meaning |",
        "|---|---|---|",
        *(f"| `{entry.option.flag}` | {entry.default} | {entry.option.meaning} |" for entry in options),
    ]
    return "\n".join(lines) + "\n"


def api() -> str:
    lines = [
        "# The API",
        "",
        "Every call of the HTTP API, the role that it needs, and its action in the audit.",
        "",
        "Generated from the routes by `make docs`. For bodies and answers open `/docs` of the server, or read",
        "`/openapi.json` and, for the v1 API, `/$discovery/rest?version=v1`. Left out: pages,",
        "and AI Platform's calls about models, studies and operations.",
        "P is `projects/{project}`.",
        "",
        "| role | who |",
        "|---|---|",
        "| nothing | anybody, without a token |",
        "| person | anybody with a token of a person; what is answered depends on the projects of that person |",
        "| viewer, submitter, admin | a person with this role, or a higher one, in the project |",
        "| operator | an operator of the site |",
        "| agent, metrics | a token of an agent, of a monitoring system |",
        "",
    ]
    for title in _CALLS:
        above = _PREFIXES.get(title, "")
        rows = [row for row in ACCESS.rows if _group(row.path) == title and not row.what.startswith(_EMPTY)]
        lines += [f"## {title}", ""]
        if above:
            lines += [f"Paths begin with `{above}`.", ""]
        lines += ["| call | role | what | in the audit |", "|---|---|---|---|"]
        lines += [_call_row(row, above) for row in rows] + [""]
    return "\n".join(lines)


_VERTEX = "/v1/projects/{project}/locations/{location}"
_CALLS = {
    "Vertex AI": (f"{_VERTEX}/customJobs", f"{_VERTEX}/hyperparameterTuningJobs"),
    "Jobs: Google's v1 API": ("/v1", "/v1beta1", "/batch"),
    "Trainyard's own calls": ("/trainyard",),
    "Agents": ("/agent",),
    "Other APIs of Google": ("/storage", "/upload", "/resumable", "/download", "/oauth2", "/token", "/v2"),
    "MLflow": ("/api/2.0",),
    "Health and descriptions": ("/healthz", "/metrics", "/openapi.json", "/docs", "/$discovery", "/discovery"),
}
"""Title of a table, and how the paths of its calls begin."""

_PREFIXES = {
    "Vertex AI": _VERTEX,
    "Trainyard's own calls": "/trainyard/v1",
    "Agents": "/agent/v1",
    "MLflow": "/api/2.0/mlflow",
}
"""What all paths of a table begin with, written once above it."""

_EMPTY = ("none: ", "not found", "refused", "MLflow: anything else", "Vertex AI: anything else")
"""How the words begin of a call that only says that there is nothing."""


def _group(path: str) -> str | None:
    """The title of the table with a path; None for pages."""
    return next(
        (
            title
            for title, beginnings in _CALLS.items()
            if any(f"{path}/".startswith(f"{beginning}/") for beginning in beginnings)
        ),
        None,
    )


def _call_row(row: Route, above: str) -> str:
    path = row.path.removeprefix(above).replace("projects/{project}", "P")
    what = row.what.removeprefix("MLflow: ")
    return f"| `{row.method} {path}` | {row.access} | {what} | {f'`{row.action}`' if row.action else ''} |"


def agent_settings() -> str:
    lines = [
        "# Settings of the agent",
        "",
        "Every flag of an agent: those for all engines, and those of each.",
        "",
        "Generated from the declarations by `make docs`. A flag wins over its variable, `--state-dir` over",
        f"`{PREFIX}STATE_DIR`, and that over the file that `--settings` names, a TOML file with the same names",
        "(`state-dir`). In a variable commas separate several values.",
        "",
    ]
    parts = {"Every agent": AgentSettings} | {f"`--runtime {name}`": kind for name, kind in kinds().items()}
    for title, kind in {**parts, "In place of running jobs": Command}.items():
        if options := list(declared(kind)):
            lines += [f"## {title}", "", "| flag | default | meaning |", "|---|---|---|"]
            lines += [_agent_row(entry) for entry in options] + [""]
    return "\n".join(lines)


def _agent_row(entry: Declared) -> str:
    form = entry.option.metavar or "|".join(entry.option.choices or ())
    flag = f"{entry.option.flag} {form}".strip().replace("|", "\\|")
    return f"| `{flag}` | {entry.default} | {entry.option.meaning} |"


def states_and_errors() -> str:
    lines = [
        "# States, errors and figures",
        "",
        "States of jobs, runs and replicas, why a replica ended, the errors of the API, the figures of `/metrics`.",
        "",
        "Generated from the code by `make docs`.",
        "",
    ]
    for title, kind, table in (
        ("Job", states.JobState, states.JOB_MOVES),
        ("Run", states.RunState, states.RUN_MOVES),
        ("Replica", states.ReplicaState, states.REPLICA_MOVES),
    ):
        comments = _comments(kind)
        lines += [f"## States of a {title.lower()}", "", "| state | meaning | may become |", "|---|---|---|"]
        lines += [
            f"| {state} | {comments.get(state, '')} | {', '.join(s for s in kind if s in table[state]) or 'final'} |"
            for state in kind
        ]
        lines.append("")
    lines += ["## Why a replica ended", "", "| reason | meaning | whose fault |", "|---|---|---|"]
    comments = _comments(states.Reason)
    lines += [f"| {reason} | {comments[reason]} | {states.FAULTS[reason]} |" for reason in states.Reason]
    lines += ["", "| fault | what follows |", "|---|---|"]
    lines += [f"| {fault} | {_comments(states.Fault).get(fault, '')} |" for fault in states.Fault]
    lines += [
        "",
        "## Errors",
        "",
        "The body is Google's: `error.code`, `error.status`, `error.message`, `error.details`.",
        "",
    ]
    lines += ["| error | HTTP | status | when |", "|---|---|---|---|"]
    lines += [f"| {' | '.join(row)} |" for row in _ERROR.findall(errors.__doc__ or "")]
    lines += ["", "## Figures of /metrics", "", "| name | meaning |", "|---|---|"]
    lines += [f"| `{name}` | {meaning} |" for name, meaning in _METRIC.findall(inspect.getsource(exposition))]
    return "\n".join(lines) + "\n"


_ERROR = re.compile(r"── (\w+) +(\d+) (\w+) *(.*)")


def _comments(kind: type[StrEnum]) -> dict[str, str]:
    """The comment beside each member in the source."""
    return dict(re.findall(r"(\w+) = \"\w+\"  # (.+)", inspect.getsource(kind)))


if __name__ == "__main__":
    for page, text in pages().items():
        page.write_text(text, encoding="utf-8")
        sys.stdout.write(f"wrote {page.relative_to(_ROOT)}\n")
