"""Groups of commands: each is imported when it is called for, and a mistyped word gets the line that was meant."""

import itertools
import re
import shlex
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import click

from trainyard_cli.commands.shared.gcloud_flags import behind_the_verb
from trainyard_protocol.errors import nearest

_SYNONYMS = {
    "kill": ("cancel",),
    "log": ("stream-logs",),
    "logs": ("stream-logs",),
    "ls": ("list",),
    "ps": ("list",),
    "remove": ("delete",),
    "rm": ("delete",),
    "run": ("submit",),
    "start": ("up",),
    "stop": ("cancel", "down"),
}
"""Words that other programs use for our commands."""

_LINES = {"top": ("list", "--watch"), "watch": ("list", "--watch")}
"""Words that stand for a command with a flag."""

_DASHES = "\u2010\u2011\u2012\u2013\u2014\u2015\u2212\ufe58\ufe63\uff0d"
"""Dashes that word processors and pages write in place of hyphens: en dash, em dash, minus and their like."""

_FLAG = re.compile(rf"([-{_DASHES}]+)(\w[\w-]*(?:=.*)?)?", re.S)


class LazyCommand(click.Command):
    """Place of a command in a group: what lists and suggestions show of it. The command itself is a function of a
    module below `trainyard_cli`, such as `commands.jobs.listing.list_jobs`, imported when somebody calls it."""

    def __init__(self, name: str, place: str, **shown: Any) -> None:
        super().__init__(name, **shown)
        self._module, _, self._function = place.rpartition(".")

    def load(self) -> click.Command:
        command = getattr(import_module(f"trainyard_cli.{self._module}"), self._function)
        assert isinstance(command, click.Command)
        return command


class CommandGroup(click.Group):
    """Group of commands that answers an unknown word with the line that was probably meant. It takes gcloud's flags of
    every command before the verb, too, and `help` in place of --help."""

    group_class = type

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        given = behind_the_verb(args)
        if given[:1] == ["help"]:
            given = [*given[1:], "--help"]
        try:
            return super().parse_args(ctx, list(given))
        except click.NoSuchOption as error:
            if not _only(self):
                raise
            line = f"{ctx.command_path} {shlex.join(corrected(self, given))}"
            raise click.UsageError(f"No such option: {error.option_name}. Did you mean:\n  {line}", ctx) from error

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        word = args[0]
        if self.get_command(ctx, word) is None and not (ctx.resilient_parsing or word.startswith("-")):
            line = corrected(self, args)
            hint = f" Did you mean:\n  {ctx.command_path} {shlex.join(line)}" if line != args else ""
            raise click.UsageError(f"No such command {word!r}.{hint}", ctx)
        name, command, rest = super().resolve_command(ctx, args)
        return name, command.load() if isinstance(command, LazyCommand) else command, rest


def corrected(group: click.Group, words: Sequence[str]) -> list[str]:
    """The words with the names of commands corrected or added, as far as a close one exists. A word that names a
    command, also one of a group below, comes before one that resembles a name."""
    if not words:
        return []
    word, *rest = [*_LINES.get(words[0], words[:1]), *words[1:]]
    own = {name: [name] for name in group.commands}
    below: dict[str, list[str]] = {}
    for name, command in group.commands.items():
        for inner in command.commands if isinstance(command, click.Group) else ():
            below.setdefault(inner, [name, inner])
    names = (word, *_SYNONYMS.get(word, ()))
    name = next((name for places in (own, below) for name in names if name in places), "") or nearest(word, own)
    if not name and (path := _only(group)):
        rest = [word, *rest]  # `jobs submit` has nothing but `training`
    else:
        path = (below | own).get(name or nearest(word, below), [])
    if not path:
        return [word, *rest]
    found: click.Command = group
    for step in path:
        assert isinstance(found, click.Group)
        found = found.commands[step]
    return [*path, *(corrected(found, rest) if isinstance(found, click.Group) else rest)]


def _only(group: click.Group) -> list[str]:
    """The name of the one command that the help of a group shows; [] for a group with several."""
    shown = [name for name, command in group.commands.items() if not command.hidden]
    return shown if len(shown) == 1 else []


def unknown_option(path: str, error: click.NoSuchOption, command: click.Command, args: Sequence[str]) -> str:
    """The message for an unknown flag of a command with arguments after `--`: a close flag, and where an argument of
    the program belongs. `args` are the words behind `path`."""
    options = _options(command)
    near = nearest(error.option_name, options)
    hint = f" Did you mean {near}?" if near else ""
    ours, programs = separated(args, options)
    return (
        f"No such option: {error.option_name}.{hint} Arguments of the training program go after --:\n"
        f"  {' '.join(filter(None, (path, shlex.join(ours))))} -- {shlex.join(programs)}"
    )


def separated(args: Sequence[str], options: dict[str, bool]) -> tuple[list[str], list[str]]:
    """The words of the command line, and those of the training program: unknown flags with their values, and what is
    behind `--`. `options` has the known flags, and whether each has a value."""
    end = args.index("--") if "--" in args else len(args)
    ours: list[str] = []
    programs: list[str] = []
    words = iter(args[:end])
    is_programs = False
    for word in words:
        name, equals, _ = word.partition("=")
        if word.startswith("-") and word != "-":
            is_programs = name not in options
        (programs if is_programs else ours).append(word)
        if options.get(name) and not equals:
            ours += itertools.islice(words, 1)
    return ours, [*programs, *args[end + 1 :]]


def _options(command: click.Command) -> dict[str, bool]:
    """The flags of a command, and whether each has a value."""
    return {
        name: not (option.is_flag or option.count)
        for option in command.params
        if isinstance(option, click.Option)
        for name in (*option.opts, *option.secondary_opts)
    } | {"--help": False, "-h": False}


def pasted_dash(words: Sequence[str]) -> str:
    """The sentence about the first flag before `--` that has a dash of a word processor; "" without one."""
    for word in words[: words.index("--") if "--" in words else len(words)]:
        flag = _FLAG.fullmatch(word)
        if flag and (dash := next((letter for letter in flag[1] if letter in _DASHES), "")):
            meant = f"-{flag[2]}" if flag[2] and len(flag[2]) == 1 else f"--{flag[2] or ''}"
            return f"{word!r} has {dash!r} (U+{ord(dash):04X}) in place of a hyphen. Did you mean {meant}?"
    return ""
