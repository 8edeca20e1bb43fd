"""Generates `docs/cli.md`, `docs/agent-settings.md`, `docs/states.md` and the tables of `docs/access.md`,
`docs/audit.md`, `docs/server-settings.md` and `docs/server-constants.md` from the code, for `make docs`. A test
compares them."""

import inspect
import re
import sys
from collections.abc import Iterator, Mapping
from enum import StrEnum
from pathlib import Path

import click

from trainyard_agent.engines.registry import kinds
from trainyard_agent.settings import PREFIX, AgentSettings, Command
from trainyard_cli.commands.shared.suggestions import LazyCommand
from trainyard_cli.commands.tree import trainyard
from trainyard_protocol import states
from trainyard_protocol.settings import Declared, declared
from trainyard_server.config.backup_options import BackupOptions
from trainyard_server.config.network import NetworkSettings
from trainyard_server.config.notification_options import NotificationOptions
from trainyard_server.config.oidc_options import OidcOptions
from trainyard_server.config.settings import Settings
from trainyard_server.routes import ACCESS

DOCS = Path(__file__).parents[1] / "docs"
_ACTION_TABLE = re.compile(r"\| action \| call \|\n(\|.*\n)+")
_OPTION_TABLE = re.compile(r"\| option of the server \| default \| meaning \|\n(\|.*\n)+")
_CONSTANT_TABLE = re.compile(r"\| setting \| value \| meaning \|\n(\|.*\n)+")
_ACCESS_TABLE = re.compile(r"\| call \| role \| what \|\n(\|.*\n)+")


def pages() -> dict[Path, str]:
    """The text of every generated page by path."""
    access, audit = DOCS / "access.md", DOCS / "audit.md"
    settings, constants = DOCS / "server-settings.md", DOCS / "server-constants.md"
    return {
        settings: _OPTION_TABLE.sub(lambda _: option_table(), settings.read_text(encoding="utf-8"), count=1),
        constants: _CONSTANT_TABLE.sub(lambda _: constant_table(), constants.read_text(encoding="utf-8"), count=1),
        DOCS / "cli.md": command_line(),
        DOCS / "agent-settings.md": agent_settings(),
        DOCS / "states.md": state_tables(),
        access: _ACCESS_TABLE.sub(lambda _: access_table(), access.read_text(encoding="utf-8"), count=1),
        audit: _ACTION_TABLE.sub(lambda _: action_table(), audit.read_text(encoding="utf-8"), count=1),
    }


def access_table() -> str:
    rows = [f"| `{row.method} {row.path}` | {row.access} | {row.what} |\n" for row in ACCESS.rows]
    return "".join(["| call | role | what |\n", "|---|---|---|\n", *rows])


def action_table() -> str:
    rows = [f"| `{row.action}` | `{row.method} {row.path}` |\n" for row in ACCESS.rows if row.action]
    return "".join(["| action | call |\n", "|---|---|\n", *rows])


def option_table() -> str:
    options = [
        entry
        for kind in (Settings, NetworkSettings, NotificationOptions, BackupOptions, OidcOptions)
        for entry in declared(kind)
        if entry.option.flag
    ]
    rows = [f"| `{entry.option.flag}` | {entry.default} | {entry.option.meaning} |\n" for entry in options]
    return "".join(["| option of the server | default | meaning |\n", "|---|---|---|\n", *rows])


def agent_settings() -> str:
    lines = [
        "# Settings of the agent",
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


def constant_table() -> str:
    constants = [entry for entry in declared(Settings) if not entry.option.flag]
    rows = [f"| `{entry.field.name}` | {entry.default} | {entry.option.meaning} |\n" for entry in constants]
    return "".join(["| setting | value | meaning |\n", "|---|---|---|\n", *rows])


def command_line() -> str:
    lines = [
        "# The command line",
        "",
        "Generated from `--help` by `make docs`. `jobs X` means `trainyard jobs X`, with",
        '`eval "$(trainyard shell-init)"` in your shell\'s startup file.',
        "",
    ]
    for path, command in _commands(trainyard, "trainyard"):
        with click.Context(command, info_name=path, max_content_width=100) as context:
            context.terminal_width = 100
            lines += [f"## {path}", "", "```", command.get_help(context), "```", ""]
    return "\n".join(lines).rstrip() + "\n"


def state_tables() -> str:
    lines = ["# States and moves", "", "Generated from `protocol/trainyard_protocol/states.py` by `make docs`.", ""]
    for title, kind, table in (
        ("Job", states.JobState, states.JOB_MOVES),
        ("Run", states.RunState, states.RUN_MOVES),
        ("Replica", states.ReplicaState, states.REPLICA_MOVES),
    ):
        lines += [f"## {title}", "", "```mermaid", "stateDiagram-v2", *_diagram(kind, table), "```", ""]
        lines += ["| state | meaning | may become |", "|---|---|---|"]
        comments = _comments(kind)
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
    return "\n".join(lines) + "\n"


def _commands(command: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    yield path, command.load() if isinstance(command, LazyCommand) else command
    if isinstance(command, click.Group):
        for name in sorted(command.commands):
            yield from _commands(command.commands[name], f"{path} {name}")


def _diagram(kind: type[StrEnum], table: Mapping[StrEnum, frozenset[StrEnum]]) -> Iterator[str]:
    yield f"    [*] --> {next(iter(kind))}"
    for before in kind:
        for after in kind:
            if after in table[before]:
                yield f"    {before} --> {after}"
        if not table[before]:
            yield f"    {before} --> [*]"


def _comments(kind: type[StrEnum]) -> dict[str, str]:
    """The comment beside each member in the source."""
    return dict(re.findall(r"(\w+) = \"\w+\"  # (.+)", inspect.getsource(kind)))


if __name__ == "__main__":
    for page, text in pages().items():
        page.write_text(text, encoding="utf-8")
        sys.stdout.write(f"wrote {page.relative_to(DOCS.parent)}\n")
