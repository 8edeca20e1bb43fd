"""`trainyard login`, `tokens` and `projects`: what they ask, save and print."""

import math
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import cast

import click

from trainyard_cli.client import Client
from trainyard_cli.local.connect import connect, notify
from trainyard_cli.logins import read_logins, save_logins
from trainyard_cli.output.jobs import formats
from trainyard_cli.output.jobs.formats import Output
from trainyard_cli.output.jobs.formats import timestamp as _time
from trainyard_cli.output.text.safe import echo
from trainyard_cli.settings import (
    DEFAULT_PROJECT,
    Server,
    Target,
    checked_token,
    chosen_ca_file,
    encrypted_url,
    read_token,
    server_url,
)
from trainyard_cli.v1_client import RETRY_DELAYS
from trainyard_protocol.errors import InvalidArgument, NotFound, Violation
from trainyard_protocol.views.people import LONGEST_EXPIRY_S, PersonRole, TokenRequest, TokenView
from trainyard_protocol.views.views import Me

_ALL = "*"


def login(url: str, token_file: Path | None, ca_file: Path | None) -> None:
    """Check the token with the server, and save both. Raises InvalidArgument, FailedPrecondition, Unauthenticated,
    Unavailable."""
    address = encrypted_url(url, "your")
    token = _asked_token(address) if token_file is None else given_token(token_file)
    authorities = chosen_ca_file(ca_file)
    server = Server(address, token, ca_file=authorities)
    with Client(server, DEFAULT_PROJECT, retry_delays=RETRY_DELAYS, notify=notify) as client:
        me = client.me()
    path = save_logins(read_logins().with_login(address, token, authorities))
    echo(f"Logged in to {address} as {_who(me)}. Commands use that server from now on.")
    notify(f"The token is in {path}. `trainyard logout` removes it.")


def logout(url: str) -> None:
    """Forget a saved token. Raises NotFound for a server without one."""
    logins = read_logins()
    address = server_url(url) or logins.current
    if address not in logins.tokens:
        known = f" There is one for {', '.join(sorted(logins.tokens))}." if logins.tokens else ""
        raise NotFound(f"There is no saved login{f' for {address}' if address else ''}.{known}")
    save_logins(logins.without(address))
    echo(f"Logged out of {address}. The token is still valid: `trainyard tokens revoke` ends one.")


def create_token(
    target: Target, output: Output, owner: str, description: str, expires_s: float | None, *, for_agent: bool
) -> None:
    """Make a token. Its secret alone goes to stdout, for scripts."""
    if expires_s is not None and not 0 < expires_s <= LONGEST_EXPIRY_S:
        raise InvalidArgument(Violation("expires", f"is above 0 and at most {LONGEST_EXPIRY_S // 86400}d."))
    request = TokenRequest(
        owner=owner,
        for_agent=for_agent,
        description=description,
        expires_in_s=math.ceil(expires_s) if expires_s else None,
    )
    with connect(target) as client:
        made = client.create_token(request)
    if not output.for_people:
        echo(formats.render(output, made.model_dump(mode="json")))
        return
    token = made.token
    whose = f"the agent {token.owner}" if token.for_agent else token.owner
    until = f"expires {_time(token.expires_at)}" if token.expires_at else "does not expire"
    notify(f"The token {token.token_id} of {whose} {until}. It is shown this once:")
    echo(made.secret)


def list_tokens(target: Target, output: Output, *, everybody: bool) -> None:
    with connect(target) as client:
        tokens = client.tokens(everybody=everybody).tokens
    if not output.for_people:
        echo(formats.render(output, [token.model_dump(mode="json") for token in tokens]))
        return
    now = datetime.now(UTC)
    headers = ["ID", "OWNER", "STATE", "CREATED", "EXPIRES", "LAST USED", "DESCRIPTION"]
    echo(formats.table(headers, [_token_row(token, now) for token in tokens]))


def revoke_tokens(target: Target, ids: Sequence[str], owner: str) -> None:
    """Revoke the tokens of these ids, or all valid ones of an owner. Raises NotFound for an owner without any."""
    with connect(target) as client:
        if owner:
            now = datetime.now(UTC)
            theirs = [token for token in client.tokens(everybody=True).tokens if token.owner == owner]
            ids = [token.token_id for token in theirs if not token.ended(now)]
            if not ids:
                raise NotFound(
                    f"{owner} has no valid token. `trainyard tokens list --all` shows everybody's."
                )
        for token_id in dict.fromkeys(ids):
            revoked = client.revoke_token(token_id)
            notify(f"Revoked the token [{revoked.token_id}] of {revoked.owner}.")


def list_projects(target: Target, output: Output) -> None:
    with connect(target) as client:
        view = client.projects()
    if not output.for_people:
        echo(formats.render(output, [project.model_dump(mode="json") for project in view.projects]))
        return
    if view.role:
        notify(f"Your role in all projects: {view.role}.")
    if view.projects:
        echo(formats.table(["PROJECT", "ROLE"], [[one.project, one.role] for one in view.projects]))
    elif view.role:
        notify("There is no project yet: the first job in one, or its first member, makes it.")
    else:
        notify(
            "You have no role in any project yet: an admin gives one with `trainyard projects add-member`."
        )


def list_members(target: Target, output: Output, project: str) -> None:
    with connect(target) as client:
        members = client.members(project).members
    if not output.for_people:
        echo(formats.render(output, [member.model_dump(mode="json") for member in members]))
        return
    if not members:
        notify(f"{_where(project)} has no members. People with a role in all projects may use it.")
        return
    rows = [[one.name, one.role, _time(one.since), one.given_by] for one in members]
    echo(formats.table(["NAME", "ROLE", "SINCE", "GIVEN BY"], rows))


def add_member(target: Target, project: str, person: str, role: str) -> None:
    with connect(target) as client:
        member = client.set_role(project, person, cast("PersonRole", role))
    where = "all projects" if project == _ALL else f"the project {project}"
    notify(f"{member.name} is {'an' if role == 'admin' else 'a'} {role} of {where}.")


def remove_member(target: Target, project: str, person: str) -> None:
    with connect(target) as client:
        client.remove_role(project, person)
    where = "all projects" if project == _ALL else f"the project {project}"
    notify(f"{person} has no role of its own in {where} any more.")


def _asked_token(url: str) -> str:
    if not sys.stdin.isatty():
        raise click.UsageError(
            "There is no terminal to ask for the token at: give --token-file FILE, or - for stdin."
        )
    notify(f"If you have none: make one on the page {url}/tokens, or ask the server's operator.")
    return checked_token(click.prompt(f"Token for {url}", hide_input=True, err=True), "what was typed")


def given_token(path: Path) -> str:
    if str(path) != "-":
        return read_token(path)
    return checked_token(sys.stdin.readline(), "standard input")


def _who(me: Me) -> str:
    roles = ", ".join(
        f"{role} of {'all projects' if project == _ALL else project}"
        for project, role in sorted(me.projects.items())
    )
    return f"{me.name} ({roles or 'without a role in any project yet'})"


def _where(project: str) -> str:
    return "The list of all projects" if project == _ALL else f"The project {project}"


def _token_row(token: TokenView, now: datetime) -> list[str]:
    state = token.ended(now) or ("in a file" if token.source == "file" else "valid")
    owner = f"{token.owner} (agent)" if token.for_agent else token.owner
    expires = _time(token.expires_at) or ("never" if token.source == "made" else "")
    last_used = _time(token.last_used_at) or ("never" if token.source == "made" else "")
    return [token.token_id, owner, state, _time(token.created_at), expires, last_used, token.description]
