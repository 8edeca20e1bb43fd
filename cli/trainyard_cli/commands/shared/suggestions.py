"""Groups of commands: each is imported when it is called for, and a mistyped word gets the line that was meant."""

import re
import shlex
from collections.abc import Collection, Iterator, Sequence
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
    module below `trainyard_cli.commands`, such as `jobs.listing.list_jobs`, imported when somebody calls it."""

    def __init__(self, name: str, place: str, **shown: Any) -> None:
        super().__init__(name, **shown)
        self._module, _, self._function = place.rpartition(".")

    def load(self) -> click.Command:
        command = getattr(import_module(f"trainyard_cli.commands.{self._module}"), self._function)
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
            if len(_shown(self)) != 1:
                raise
            line = f"{ctx.command_path} {shlex.join(corrected(self, given))}"
            raise click.UsageError(f"{_sentence(error)} Did you mean:\n  {line}", ctx) from error

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
    """The words with the names of commands corrected or added, as far as a close one exists."""
    if not words:
        return []
    words = [*_LINES.get(words[0], words[:1]), *words[1:]]
    path = _path(group, words[0])
    if not path:
        return list(words)
    command: click.Command = group
    for name in path:
        assert isinstance(command, click.Group)
        command = command.commands[name]
    rest = words[1:] if _meant(path[-1], words[0]) else words
    return [*path, *(corrected(command, rest) if isinstance(command, click.Group) else rest)]


def _shown(group: click.Group) -> list[str]:
    """The names of the commands that the help shows."""
    return [name for name, command in group.commands.items() if not command.hidden]


def _path(group: click.Group, word: str) -> list[str]:
    """The names that lead to the command that was meant; [] without one. A word that names a command, also one of a
    group below, comes before one that resembles a name."""
    for closest in (_named, nearest):
        if name := closest(word, group.commands):
            return [name]
        if closest is nearest and len(shown := _shown(group)) == 1:
            return shown  # `jobs submit` has nothing but `training`
        for name, command in group.commands.items():
            if isinstance(command, click.Group) and (inner := closest(word, command.commands)):
                return [name, inner]
    return []


def _meant(name: str, word: str) -> bool:
    return bool(_named(word, [name]) or nearest(word, [name]))


def _named(word: str, names: Collection[str]) -> str:
    return next((name for name in (word, *_SYNONYMS.get(word, ())) if name in names), "")


def unknown_option(path: str, error: click.NoSuchOption, command: click.Command, args: Sequence[str]) -> str:
    """The message for an unknown flag of a command with arguments after `--`: a close flag, and where an argument of
    the program belongs. `args` are the words behind `path`."""
    options = _options(command)
    near = nearest(error.option_name, options)
    did_you_mean = f" Did you mean {near}?" if near else ""
    ours, programs = separated(args, options)
    line = f"{path} {shlex.join(ours)}".rstrip()
    where = "Arguments of the training program go after --"
    return f"{_sentence(error)}{did_you_mean} {where}:\n  {line} -- {shlex.join(programs)}"


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
            ours.extend(_next(words))
    return ours, [*programs, *args[end + 1 :]]


def _next(words: Iterator[str]) -> list[str]:
    word = next(words, None)
    return [] if word is None else [word]


def _options(command: click.Command) -> dict[str, bool]:
    """The flags of a command, and whether each has a value."""
    return {
        name: not (option.is_flag or option.count)
        for option in command.params
        if isinstance(option, click.Option)
        for name in (*option.opts, *option.secondary_opts)
    } | {"--help": False, "-h": False}


def _sentence(error: click.NoSuchOption) -> str:
    return f"No such option: {error.option_name}."


def with_hyphens(group: click.Group, words: Sequence[str]) -> list[str]:
    """The line that is meant by one with dashes of a word processor in place of hyphens, with its commands and its
    arguments of a program where they belong."""
    path: list[str] = []
    rest = _hyphened(words)
    command: click.Command = group
    while isinstance(command, click.Group):
        rest = _verb_first(command, rest)
        if not rest or rest[0] not in command.commands:
            return [*path, *rest]
        path.append(rest.pop(0))
        found = command.commands[path[-1]]
        command = found.load() if isinstance(found, LazyCommand) else found
    if not command.allow_extra_args:
        return [*path, *rest]
    ours, programs = separated(rest, _options(command))
    return [*path, *ours, *(("--", *programs) if programs else ())]


def _verb_first(group: click.Group, words: Sequence[str]) -> list[str]:
    """The words with flags that stand before a verb of the group behind it, and with the verb that was meant."""
    if not words or not words[0].startswith("-"):
        return corrected(group, words)
    at = next((place for place, word in enumerate(words) if word in group.commands), None)
    if at is not None:
        return [words[at], *words[:at], *words[at + 1 :]]
    shown = _shown(group)
    return [*shown, *words] if len(shown) == 1 else list(words)


def pasted_dash(words: Sequence[str]) -> str:
    """The sentence about the first dash of a word processor before `--`; "" without one."""
    end = words.index("--") if "--" in words else len(words)
    word = next(filter(_has_dash, words[:end]), "")
    dash = next((letter for letter in word if letter in _DASHES), "")
    return f"{word!r} has {dash!r} (U+{ord(dash):04X}) in place of a hyphen." if dash else ""


def _has_dash(word: str) -> bool:
    """Whether a word would be a flag, or `--`, if its dashes were hyphens."""
    flag = _FLAG.fullmatch(word)
    return flag is not None and not {*_DASHES}.isdisjoint(flag[1])


def _hyphened(words: Sequence[str]) -> list[str]:
    """The words with hyphens. A dash that stands alone before a flag is a part of it: `– –config` is `--config`."""
    line: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        flag = _FLAG.fullmatch(word)
        if flag is None or not _has_dash(word):
            line.append(word)
        elif flag[2]:
            line.append(f"{'-' if len(flag[2]) == 1 else '--'}{flag[2]}")
        elif rest and len(word) == 1 and _is_half(rest[0]):
            line.append(f"--{rest.pop(0)[1:]}")
        else:
            line.append(word if "--" in line else "--")
    return line


def _is_half(word: str) -> bool:
    """Whether a word is a flag with one dash of a word processor, of which the other one may stand before it."""
    flag = _FLAG.fullmatch(word)
    return flag is not None and flag[1] in _DASHES and len(flag[1]) == 1 and bool(flag[2])
