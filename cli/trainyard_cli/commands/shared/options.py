"""Flags that many commands share, and the command class with arguments after `--`."""

import functools
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from trainyard_cli.commands.service.completion import job_names
from trainyard_cli.commands.shared.suggestions import unknown_option
from trainyard_cli.local.options import Duration
from trainyard_cli.settings import DEFAULT_PROJECT, Target, checked_project, chosen_target, default_state_dir
from trainyard_protocol.errors import InvalidArgument

Command = Callable[..., Any]

_JOB_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,127}([/.][1-9][0-9]{0,4})?")


class JobName(click.ParamType[str]):
    """Parameter type of a job name, or of a trial as STUDY/7, whose value is the id of its job. Repeats the protocol's
    rule, whose import is too slow for shell completion."""

    name = "JOB"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = str(value)
        if not _JOB_NAME.fullmatch(text):
            meant = re.sub(r"[^A-Za-z0-9_]", "_", text)
            did_you_mean = f" Did you mean {meant}?" if _JOB_NAME.fullmatch(meant) else ""
            self.fail(
                f"{text!r} is not a job name: a name starts with a letter and has at most 128 letters, numbers "
                f"and underscores.{did_you_mean or ' A trial is STUDY/NUMBER.'}",
                param,
                ctx,
            )
        return text.replace("/", ".")


class TrialName(JobName):
    """Parameter type of --from-trial: a trial, or a study for its best one."""

    name = "JOB[/TRIAL]"


job_argument = click.argument("job", type=JobName(), shell_complete=job_names)
jobs_argument = click.argument(
    "names", type=JobName(), shell_complete=job_names, nargs=-1, required=True, metavar="JOB..."
)
ca_file_option = click.option(
    "--ca-file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="CA certificates (PEM) for --server.  [default: $TRAINYARD_CA_FILE, else the operating system's]",
)
runtimes_option = click.option(
    "--runtimes",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="File with your own runtime versions and their images.",
)
expires_option = click.option(
    "--expires",
    type=Duration(),
    metavar="DURATION",
    help="Life of the token, such as 90d, at most 366d.  [default: it does not expire]",
)
_state_dir = click.option(
    "--state-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="The local service's directory.  [default: $TRAINYARD_STATE_DIR or ~/.local/state/trainyard]",
)


def state_options(function: Command) -> Command:
    """--state-dir; the command receives `state_dir: Path`."""

    @functools.wraps(function)
    def wrapped(*, state_dir: Path | None, **parameters: Any) -> Any:
        return function(state_dir=state_dir or default_state_dir(), **parameters)

    return _state_dir(wrapped)


def server_options(
    function: Command, *, project_help: str = f"[default: $TRAINYARD_PROJECT or {DEFAULT_PROJECT}]"
) -> Command:
    """--server, --token-file, --ca-file, --project, --state-dir; the command receives `target: Target`."""

    @functools.wraps(function)
    def wrapped(**parameters: Any) -> Any:
        names = ("server", "token_file", "ca_file", "project", "state_dir")
        target = chosen_target({name: parameters.pop(name) for name in names})
        checked_project(target.project)
        return function(target=target, **parameters)

    for option in (
        _state_dir,
        click.option("--project", help=project_help),
        ca_file_option,
        click.option(
            "--token-file",
            type=click.Path(dir_okay=False, path_type=Path),
            help="File with the token for --server.  [default: $TRAINYARD_TOKEN]",
        ),
        click.option("--server", metavar="URL", help="[default: $TRAINYARD_SERVER, else this machine's own]"),
    ):
        wrapped = option(wrapped)
    return wrapped


def connected(function: Command) -> Command:
    """The flags of `server_options`; the command receives `client: Client`, which is open until it returns."""

    @functools.wraps(function)
    def wrapped(*, target: Target, **parameters: Any) -> Any:
        from trainyard_cli.local.connect import connect

        with connect(target) as client:
            return function(client=client, **parameters)

    return server_options(wrapped)


@contextmanager
def as_wrong_usage() -> Iterator[None]:
    """The refusal of a flag's value is a usage error, whoever checks it."""
    try:
        yield
    except InvalidArgument as error:
        raise click.UsageError(error.message) from error


def follow_options(function: Command) -> Command:
    """--raw and --cancel-on-interrupt of the commands that follow a job."""
    for option in (
        click.option(
            "--cancel-on-interrupt",
            is_flag=True,
            help="Ctrl-C cancels the job; a second Ctrl-C stops waiting for its end.",
        ),
        click.option(
            "--raw", is_flag=True, help="On a terminal: every line as it was printed, as in a pipe, with colours."
        ),
    ):
        function = option(function)
    return function


def output_options(function: Command) -> Command:
    """-o, --format and --flatten; the command receives one `output: formats.Output`."""

    @functools.wraps(function)
    def wrapped(*, output: str | None, format_: str | None, flatten: str, **rest: Any) -> Any:
        from dataclasses import replace

        from trainyard_cli.output.jobs.formats import Output, flatten_keys, parse

        if output and format_:
            raise click.UsageError("argument --format: At most one of --format | --output can be specified.")
        chosen = parse(format_) if format_ else Output(output or ("yaml" if flatten else "text"))
        return function(output=replace(chosen, flatten=flatten_keys(flatten)), **rest)

    wrapped = click.option(
        "--format", "format_", metavar="EXPRESSION", help="json, yaml, value(KEY,...), csv(KEY,...) or table(KEY,...)."
    )(wrapped)
    wrapped = click.option(
        "--flatten",
        default="",
        hidden=True,
        metavar="KEY,...",
        help="Lists, of which each item becomes a resource of its own.",
    )(wrapped)
    return click.option("-o", "--output", type=click.Choice(["text", "json", "yaml"]), help="[default: text]")(wrapped)


class WithUserArgs(click.Command):
    """Command that passes the words after the first `--` on as `user_args`, and those before it as `words`."""

    allow_extra_args = True  # they are refused here, with where they belong
    after_dashes = "Arguments of the training program go"
    dashes_usage = "[-- USER_ARGS ...]"

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        given = list(args)
        user_args: tuple[str, ...] = ()
        if "--" in args:
            at = args.index("--")
            args, user_args = args[:at], tuple(args[at + 1 :])
        try:
            rest = super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            raise click.UsageError(unknown_option(ctx.command_path, error, self, given), ctx) from error
        if rest and not ctx.resilient_parsing:
            raise click.UsageError(
                f"Got unexpected extra argument ({' '.join(rest)}). {self.after_dashes} after --.", ctx
            )
        ctx.params["user_args"] = user_args
        ctx.params["words"] = tuple(given[: given.index("--")] if "--" in given else given)
        return rest

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return [*super().collect_usage_pieces(ctx), self.dashes_usage]
