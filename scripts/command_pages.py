"""Generates the reference of the command line, three pages of it, for `scripts/docs.py`."""

import inspect
from collections import Counter
from collections.abc import Iterable, Iterator

import click

from trainyard_cli.commands.shared.suggestions import LazyCommand
from trainyard_cli.commands.tree import trainyard

_Described = tuple[str, str | None]
"""A flag and its words."""

_Groups = dict[str, set[_Described]]

_SERVER = ("--server", "--project", "--token-file", "--ca-file", "--state-dir")
_OUTPUT = ("--output", "--format")
_SHARED_BY = 4
"""A flag of so many commands, with the same words, is described once."""

_FIRST = "cli-submit.md"
_PAGES = {
    _FIRST: (
        "Commands: submit and build",
        "Flags of the commands that submit a job, build images, and set up this machine's command line.",
        (
            "jobs submit",
            "jobs validate",
            "jobs rerun",
            "jobs dev",
            "local",
            "build",
            "runtimes",
            "connect",
            "disconnect",
            "shell-init",
            "login",
            "logout",
            "dashboard",
        ),
    ),
    "cli-jobs.md": (
        "Commands: jobs and projects",
        "Flags of the commands that follow, compare and end jobs, and of those about projects.",
        ("jobs", "channels", "projects", "secrets"),
    ),
    "cli-service.md": (
        "Commands: service",
        "Flags of the commands that run a service and its agents, and that show who used and changed what.",
        ("",),
    ),
}


def pages() -> dict[str, str]:
    """The text of each page by its name."""
    commands = dict(_commands(trainyard, ""))
    uses = Counter(_described(option) for command in commands.values() for option in _options(command))
    shared = {described for described, count in uses.items() if count >= _SHARED_BY}
    groups = {
        "server": {described for described in shared if described[0] in _SERVER},
        "output": {described for described in shared if described[0] in _OUTPUT},
    }
    groups["job"] = shared - groups["server"] - groups["output"]
    texts = {}
    for name, (title, sentence, beginnings) in _PAGES.items():
        lines = [f"# {title}", "", sentence, ""]
        if name == _FIRST:
            lines += _introduction(commands, groups)
        for path in [path for path in commands if path.startswith(beginnings)]:
            lines += _command(path, commands.pop(path), groups, "" if name == _FIRST else _FIRST)
        texts[name] = "\n".join(lines).rstrip() + "\n"
    return texts


def _introduction(commands: dict[str, click.Command], groups: _Groups) -> Iterator[str]:
    yield "Generated from `--help` by `make docs`. `jobs X` is `trainyard jobs X`, once `trainyard shell-init` has"
    yield "defined it. What follows `--` is passed to the program. Flags that many commands have are described here."
    yield ""
    every = {_described(option): option for command in commands.values() for option in _options(command)}
    for group, flags in groups.items():
        yield from (f"## {group.capitalize()} flags", "")
        yield from _table(every[described] for described in sorted(flags))


def _command(path: str, command: click.Command, groups: _Groups, page: str) -> Iterator[str]:
    name = path if path.startswith("jobs") else f"trainyard {path}"
    usage = " ".join(command.collect_usage_pieces(click.Context(command, info_name=name)))
    options = {_described(option): option for option in _options(command)}
    taken = {group: flags for group, flags in groups.items() if len(flags & options.keys()) > len(flags) / 2}
    yield from (f"## {name}", "", _text(command), "")
    if usage != "[OPTIONS]":
        yield from ("```text", f"{name} {usage}", "```", "")
    if taken:
        links = [f"[{group} flags]({page}#{group}-flags)" for group in taken]
        yield from (f"Takes {', '.join(links[:-1])}{' and ' if links[1:] else ''}{links[-1]}.", "")
    yield from _table(options[described] for described in options.keys() - set().union(*taken.values()))


def _table(options: Iterable[click.Option]) -> Iterator[str]:
    rows = []
    for option in sorted(options, key=_flag):
        record = option.get_help_record(click.Context(trainyard))
        if record:
            flag, meaning = (text.replace("|", "\\|") for text in record)
            rows.append(f"| `{flag}` | {' '.join(meaning.split())} |")
    if rows:
        yield from ("| flag | meaning |", "|---|---|", *rows, "")


def _text(command: click.Command) -> str:
    """The help's paragraphs. Those that are not to be wrapped are blocks."""
    paragraphs = inspect.cleandoc(command.help or "").partition("\f")[0].split("\n\n")
    if command.epilog:
        paragraphs += inspect.cleandoc(command.epilog).split("\n\n")
    return "\n\n".join(
        f"```text\n{text.removeprefix(chr(8)).strip(chr(10))}\n```"
        if text.startswith("\b")
        else _escaped(" ".join(text.split()))
        for text in paragraphs
    )


def _escaped(text: str) -> str:
    return text.replace("<", "&lt;")


def _options(command: click.Command) -> list[click.Option]:
    return [option for option in command.params if isinstance(option, click.Option) and not option.hidden]


def _flag(option: click.Option) -> str:
    return max(option.opts, key=len)


def _described(option: click.Option) -> _Described:
    return _flag(option), option.help


def _commands(group: click.Group, path: str) -> Iterator[tuple[str, click.Command]]:
    """Every command that is no group, by its words after `trainyard`."""
    for name in sorted(group.commands):
        command = group.commands[name]
        here = f"{path} {name}".strip()
        if command.hidden:
            continue
        if isinstance(command, click.Group):
            yield from _commands(command, here)
        else:
            yield here, command.load() if isinstance(command, LazyCommand) else command
