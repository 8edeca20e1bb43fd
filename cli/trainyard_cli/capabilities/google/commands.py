"""`trainyard connect google` and `disconnect google`: what they change on this machine, and back."""

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import click

from trainyard_cli.capabilities.google import host_names
from trainyard_cli.commands.shared.options import server_options
from trainyard_cli.local import service
from trainyard_cli.local.connect import notify
from trainyard_cli.local.state import LocalState
from trainyard_cli.output.text.activity import Activity
from trainyard_cli.output.text.safe import echo
from trainyard_cli.settings import Server, Target, remote_server
from trainyard_protocol.errors import FailedPrecondition, TrainyardError
from trainyard_storage.google_files import CONFIGURATION, GoogleFiles, GoogleRecord


@click.command()
@click.option("--print-env", is_flag=True, help="Print the variables for eval, and nothing else, to stdout.")
@click.option(
    "--hosts/--no-hosts",
    default=True,
    help="Whether names that do not resolve are added to /etc/hosts, which needs root. At a terminal it asks.  "
    "[default: hosts]",
)
@server_options
def connect_google(target: Target, print_env: bool, hosts: bool) -> None:
    """Make names, certificates, a key and a gcloud configuration for Google's clients.

    They then need no edit: eval "$(trainyard connect google --print-env)"
    """
    from trainyard_cli.client import Client
    from trainyard_cli.v1_client import RETRY_DELAYS
    from trainyard_protocol.answers.google import names_of

    state = LocalState(target.state_dir)
    files = GoogleFiles(state.root / "google")
    server = remote_server(target) or _local_server(state)
    before = files.record()
    with Client(server, target.project, retry_delays=RETRY_DELAYS, notify=notify) as client:
        key = client.create_google_key()
        earlier: tuple[str, ...] = ()
        if before is not None and (before.local if server.local else before.server == server.url):
            earlier = before.numbers
        elif before is not None:
            _revoke(before, target, state)
    storage = state.storage_url() if server.local else ""
    record = files.write(key, server.url, target.project, local=server.local, storage=storage)
    record = replace(record, earlier=earlier, hosts=before is not None and before.hosts)
    files.save(record)
    names = names_of(key.domain)
    if not server.local:
        _check_names(names, server)
    elif missing := host_names.unresolved(names):
        record = _add_names(record, missing, allowed=hosts)
        files.save(record)
    if print_env:
        echo(files.env.read_text(encoding="utf-8"), nl=False)
        return
    echo(f"Google's clients can use {server.url} as {key.email}, by the names {', '.join(names)}.")
    echo(f"In this shell:     . {files.env}")
    echo(f"gcloud elsewhere:  gcloud config configurations activate {CONFIGURATION}")
    echo("Undo:              trainyard disconnect google")


@click.command()
@server_options
def disconnect_google(target: Target) -> None:
    """Remove names, certificates, key and gcloud configuration, and revoke the key."""
    state = LocalState(target.state_dir)
    files = GoogleFiles(state.root / "google")
    record = files.record()
    if record is None:
        echo("Google's clients were not connected.")
        return
    _revoke(record, target, state)
    if record.hosts:
        _remove_names()
    files.remove(record)
    if record.local:
        with Activity() as activity:
            service.serve_google(state, activity.notify, wanted=False, report=activity.report)
    echo("Google's clients are disconnected. In a shell that has the variables: open a new one.")


def _local_server(state: LocalState) -> Server:
    with Activity() as activity:
        return service.serve_google(state, activity.notify, wanted=True, report=activity.report)


def _revoke(record: GoogleRecord, target: Target, state: LocalState) -> None:
    """Revoke the keys where they were made; without that server the newest goes with its file."""
    from trainyard_cli.client import Client

    server = state.server() if record.local else remote_server(replace(target, server=record.server))
    if server is None:
        return
    try:
        with Client(server, target.project) as client:
            for number in record.numbers:
                client.revoke_google_key(number)
    except TrainyardError as error:
        notify(f"The keys could not be revoked: {error.message} Programs that run still have them; nothing else does.")


def _check_names(names: Sequence[str], server: Server) -> None:
    """Raises FailedPrecondition where a name of another machine's server has no address here, or is loopback."""
    address = urlsplit(server.url).hostname or ""
    if names[0].endswith(".localhost") and host_names.unresolved([address]):
        raise FailedPrecondition(
            f"The server at {server.url} has names below localhost, which are this machine: its operator gives it "
            "others with --google-domain NAME. `trainyard disconnect google` removes what was made."
        )
    if missing := host_names.unknown(names):
        raise FailedPrecondition(
            f"{', '.join(missing)} must be the address of {server.url} in your name service (DNS). All else is there: "
            "`trainyard disconnect google` removes it, or connect again when the names are known."
        )


def _add_names(record: GoogleRecord, missing: list[str], *, allowed: bool) -> GoogleRecord:
    """Write names of this machine's own server into the hosts file, where nothing else resolves them."""
    from trainyard_protocol.answers.google import names_of

    file = host_names.HOSTS_FILE
    sys.stdout.flush()
    if allowed and sys.stdin.isatty() and sys.stderr.isatty():
        allowed = click.confirm(f"Add {len(missing)} names of loopback to {file}?", default=True, err=True)
    by_hand = host_names.command_to_add(missing)
    if not allowed:
        notify(f"These names do not resolve: {', '.join(missing)}. To add them: {by_hand}")
        return replace(record, hosts=True)
    try:
        text = file.read_text(encoding="utf-8")
        host_names.rewrite(host_names.with_block(text, names_of(record.domain)), file)
    except OSError as error:
        notify(f"{file} cannot be changed: {error.strerror}. The names do not resolve until root adds them: {by_hand}")
        return replace(record, hosts=True)
    notify(f"Added {', '.join(missing)} to {file}.")
    return replace(record, hosts=True)


def _remove_names(file: Path = host_names.HOSTS_FILE) -> None:
    try:
        text = file.read_text(encoding="utf-8")
        if (rest := host_names.without_block(text)) != text:
            host_names.rewrite(rest, file)
            notify(f"Removed the names from {file}.")
    except OSError as error:
        notify(
            f"{file} cannot be changed: {error.strerror}. Root removes the names: {host_names.command_to_remove(file)}"
        )
