"""Commands that enter a running replica: exec, shell, port-forward."""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from trainyard_cli.commands.jobs.logs import task_name
from trainyard_cli.commands.service.completion import task_names
from trainyard_cli.commands.shared.options import WithUserArgs, as_wrong_usage, connected, job_argument
from trainyard_cli.output.text.safe import echo

if TYPE_CHECKING:
    from trainyard_cli.capabilities.attachments.forwarding import Forward
    from trainyard_cli.client import Client

_SHELL = ("sh", "-c", "if command -v bash >/dev/null 2>&1; then exec bash -i; else exec sh -i; fi")
_FORWARD = re.compile(r"(?:(\d{1,5})?(:))?(\d{1,5})", re.ASCII)
_LAST_PORT = 65535


class WithCommand(WithUserArgs):
    """Command that passes the words after `--` on as the command to run."""

    after_dashes = "The command goes"
    dashes_usage = "-- COMMAND..."


_task_argument = click.argument("task", required=False, default="", shell_complete=task_names)


@click.command(cls=WithCommand)
@click.option("-T", "--no-tty", is_flag=True, help="Without a terminal, also where this is one.")
@connected
@job_argument
@_task_argument
def execute(client: "Client", job: str, task: str, no_tty: bool, **words: Any) -> int:
    """Run a command in a running replica, and exit with its exit code.

    It has the environment, the user and the devices of the replica's program, whose files are in `program`. TASK is a
    replica such as worker-0; the primary by default. The job allows it by --enable-web-access, or is of a service of
    one user.
    Exit code 255: the connection was lost, and the command with it.
    """
    from trainyard_cli.capabilities.attachments import command

    if not words["user_args"]:
        raise click.UsageError("The command is missing: it goes after --, as in `jobs exec JOB -- nvidia-smi`.")
    terminal = command.is_terminal() and not no_tty
    return command.execute(client, job, _task(task), words["user_args"], terminal=terminal)


@click.command()
@connected
@job_argument
@_task_argument
def shell(client: "Client", job: str, task: str) -> int:
    """Open a shell in a running replica: bash if it is there, else sh.

    It has what the replica's program has; see `jobs exec`. `exit` or Ctrl-D ends it, and so does the end of the
    replica. Enter ~. ends a connection that hangs.
    """
    from trainyard_cli.capabilities.attachments import command

    return command.execute(client, job, _task(task), _SHELL, terminal=command.is_terminal())


@click.command("port-forward")
@click.option("--address", default="127.0.0.1", help="Address to listen on.  [default: 127.0.0.1]")
@connected
@job_argument
@click.argument("words", nargs=-1, required=True, metavar="[TASK] [LOCAL:]PORT...", shell_complete=task_names)
def port_forward(client: "Client", job: str, words: Sequence[str], address: str) -> int:
    """Listen on this machine for ports of a running replica, until Ctrl-C.

    A program of the replica that listens on 127.0.0.1 or on every address is reached. PORT is the same on this machine;
    LOCAL:PORT another one, :PORT any that is free. TASK is a replica such as worker-0; the primary by default.
    """
    from trainyard_cli.capabilities.attachments.forwarding import Forwarder

    is_task = not _FORWARD.fullmatch(words[0])
    forwards = [_forward(word) for word in words[is_task:]]
    if not forwards:
        raise click.UsageError("The port is missing, as in `jobs port-forward JOB 8888`.")
    forwarder = Forwarder(client, job, _task(words[0]) if is_task else "", forwards, address)
    for local, port in forwarder.addresses.items():
        echo(f"Forwarding {local} -> {forwarder.task}:{port}")
    return forwarder.serve_until_interrupted()


def _task(name: str) -> str:
    with as_wrong_usage():
        return task_name(name) if name else ""


def _forward(text: str) -> "Forward":
    """The meaning of [LOCAL:]PORT. Raises UsageError."""
    from trainyard_cli.capabilities.attachments.forwarding import Forward

    match = _FORWARD.fullmatch(text)
    port = int(match[3]) if match else 0
    local = int(match[1] or 0) if match and match[2] else port
    if not 1 <= port <= _LAST_PORT or local > _LAST_PORT:
        raise click.UsageError(f"{text!r} is no port: PORT, LOCAL:PORT, or :PORT for any local one.")
    return Forward(local, port)
