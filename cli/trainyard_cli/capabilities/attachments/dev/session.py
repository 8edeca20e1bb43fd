"""One visit to a `jobs dev` job: wait until it runs, synchronise, and open a shell or a notebook."""

import json
import socket
import threading
import webbrowser
from collections.abc import Iterator
from contextlib import closing, contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING

from trainyard_cli.capabilities.attachments import command
from trainyard_cli.capabilities.attachments.dev import entering
from trainyard_cli.capabilities.attachments.dev.synchroniser import Notify, Synchroniser, SyncResult, shown_sentence
from trainyard_cli.capabilities.attachments.dev.tree import CodeDirectory
from trainyard_cli.capabilities.attachments.forwarding import Forward, Forwarder
from trainyard_cli.capabilities.attachments.pipe import PipedCommand
from trainyard_cli.output.text.activity import Activity
from trainyard_cli.output.text.safe import echo
from trainyard_protocol.answers.jobs import JobDetail
from trainyard_protocol.errors import FailedPrecondition, Unavailable
from trainyard_protocol.states import FINAL_JOB_STATES, JobState

if TYPE_CHECKING:
    from trainyard_cli.client import Client

_MOST_LINE = 2**16
_JOIN_S = 10.0


class VisitKind(StrEnum):
    SHELL = "shell"
    NOTEBOOK = "notebook"
    ONCE = "once"


def wait_until_running(client: "Client", job: str) -> None:
    """Wait until the job runs. Raises FailedPrecondition for one that has ended."""
    with Activity() as activity:
        for event in client.logs(job, with_lines=False):
            if not isinstance(event, JobDetail):
                continue
            if event.state in FINAL_JOB_STATES:
                reason = event.job.get("errorMessage") or "it has no error."
                raise FailedPrecondition(
                    f"{job} has ended: it is {event.state}. {reason}\nIts log: jobs stream-logs {job}{client.flags}"
                )
            if event.state is JobState.RUNNING:
                return
            activity.report(f"{job} is {event.state}" + (f": {event.waiting}" if event.waiting else ""))


def visit(
    client: "Client", job: str, code: CodeDirectory, kind: VisitKind, *, replaces: bool, notify: Notify, opens: bool
) -> int:
    """Synchronise the directory, and open what is asked for, while it is kept synchronised. Returns the exit code."""
    root = f"{socket.gethostname()}:{code.path}"
    with closing(PipedCommand(client, job, entering.receiver_command())) as pipe:
        synchroniser = Synchroniser(pipe, code, root, replaces=replaces)
        with Activity() as activity:
            activity.report(f"synchronising {code.path}")
            result = synchroniser.synchronise()
        _report(result, synchroniser.code, notify)
        if kind is VisitKind.ONCE:
            return 0
        with _kept_synchronised(synchroniser, notify):
            if kind is VisitKind.NOTEBOOK:
                return _notebook(client, job, notify, opens=opens)
            return command.execute(client, job, "", entering.shell_command(), terminal=True)


def _report(result: SyncResult | None, code: str, notify: Notify) -> None:
    if result is not None:
        for notice in result.notices:
            notify(notice)
        notify(f"Synchronised {result.files} files, {len(result.sent)} of them changed: {shown_sentence(code)}")


@contextmanager
def _kept_synchronised(synchroniser: Synchroniser, notify: Notify) -> Iterator[None]:
    """Synchronise in a thread. Lines on a raw terminal need their own carriage return."""
    ended = threading.Event()

    def say(text: str) -> None:
        notify("\r" + text.replace("\n", "\r\n") + "\r")

    thread = threading.Thread(target=synchroniser.keep, args=(ended, say), daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(_JOIN_S)


def _notebook(client: "Client", job: str, notify: Notify, *, opens: bool) -> int:
    port, token = notebook_address(client, job)
    forwarder = Forwarder(client, job, "", [Forward(0, port)], "127.0.0.1")
    (local,) = forwarder.addresses
    url = f"http://{local}/lab?token={token}"
    notify("JupyterLab, until Ctrl-C, which ends the connection and not JupyterLab:")
    echo(url)
    if opens:
        webbrowser.open(url)
    return forwarder.serve_until_interrupted()


def notebook_address(client: "Client", job: str) -> tuple[int, str]:
    """The port of JupyterLab in the replica, and its token. It is started unless it runs. Raises FailedPrecondition."""
    with Activity() as activity, closing(PipedCommand(client, job, entering.notebook_command())) as pipe:
        activity.report("starting JupyterLab")
        line = pipe.read_line(_MOST_LINE)
    try:
        answer = json.loads(line)
        if "error" not in answer:
            return int(answer["port"]), str(answer["token"])
    except (ValueError, KeyError, TypeError) as error:
        text = shown_sentence(line.decode(errors="replace").strip())
        raise Unavailable(f"JupyterLab was not started; the replica answers: {text}") from error
    raise FailedPrecondition(shown_sentence(answer["error"]))
