"""Flags of gcloud that scripts pass along: accepted, hidden from the help, and without an effect here.

The commands are those that gcloud had. `docs/coming-from/google.md` lists the flags.
"""

from collections.abc import Callable, Sequence
from typing import Any

import click

from trainyard_cli.output.text.safe import echo

Command = Callable[..., Any]

_VALUES = (
    "access-token-file",
    "account",
    "billing-project",
    "configuration",
    "flags-file",
    "impersonate-service-account",
    "trace-token",
    "verbosity",
)
_SWITCHES = ("log-http", "user-output-enabled", "quiet")
_WITH_EFFECT = ("flatten", "format", "project")
"""Flags of every command of gcloud that ours have, too: with a value, and with an effect."""
_KMS = ("kms-key", "kms-keyring", "kms-location", "kms-project")
_KMS_NOTE = "--kms-*: these flags have no effect here: the disks of your machines are encrypted by yourself."


def gcloud_wide_flags(function: Command) -> Command:
    """gcloud's flags of every command. Commands of ours never ask what `--quiet` would answer."""
    for name in _VALUES:
        function = _ignored(f"--{name}")(function)
    for name in _SWITCHES:
        short = ("-q",) if name == "quiet" else ()
        declared = f"--{name}/--no-{name}"
        function = click.option(declared, *short, is_flag=True, hidden=True, expose_value=False)(function)
    return function


def behind_the_verb(words: Sequence[str]) -> list[str]:
    """The words with gcloud's flags of every command, which may stand before a verb, moved behind it."""
    moved: list[str] = []
    rest = list(words)
    while rest and (number := _words_of_a_flag(rest[0])):
        moved += rest[:number]
        del rest[:number]
    is_verb = bool(rest) and not rest[0].startswith("-")
    return [rest[0], *moved, *rest[1:]] if is_verb else rest


def _words_of_a_flag(word: str) -> int:
    """The number of words of a flag of every command, its value among them; 0 for another word."""
    name, has_value, _ = word.partition("=")
    flag = name.removeprefix("--")
    if word == "-q" or flag.removeprefix("no-") in _SWITCHES:
        return 1
    return (1 if has_value else 2) if name.startswith("--") and flag in (*_VALUES, *_WITH_EFFECT) else 0


def list_flags(function: Command) -> Command:
    return click.option(
        "--page-size", type=click.IntRange(1), hidden=True, expose_value=False, help="Jobs of one request."
    )(function)


def log_flags(function: Command) -> Command:
    """Lines come as they are printed, each as one entry."""
    function = click.option(
        "--polling-interval", type=click.IntRange(1), hidden=True, expose_value=False, help="Seconds."
    )(function)
    return click.option("--allow-multiline-logs", is_flag=True, hidden=True, expose_value=False)(function)


def kms_flags(function: Command) -> Command:
    """Keys of Google's KMS. A message says that they have no effect."""
    for name in _KMS:
        function = _ignored(f"--{name}", callback=_note_no_effect)(function)
    return function


def _ignored(name: str, **more: Any) -> Callable[[Command], Command]:
    return click.option(name, metavar="VALUE", hidden=True, expose_value=False, **more)


def _note_no_effect(context: click.Context, _option: click.Parameter, value: str | None) -> None:
    is_known = context.meta.get("trainyard.kms", False)
    if value is not None and not is_known and not context.resilient_parsing:
        context.meta["trainyard.kms"] = True
        echo(_KMS_NOTE, err=True)
