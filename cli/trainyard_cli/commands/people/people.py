"""`trainyard login`, `logout`, `tokens` and `projects`."""

import math
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, cast

import click

from trainyard_cli.commands.shared.options import (
    ca_file_option,
    connected,
    expires_option,
    output_options,
    server_options,
)
from trainyard_cli.local.connect import connect, notify
from trainyard_cli.logins import read_logins, save_logins
from trainyard_cli.output.jobs import formats
from trainyard_cli.output.jobs.formats import Output
from trainyard_cli.output.jobs.formats import timestamp as _time
from trainyard_cli.output.text.safe import echo
from trainyard_cli.settings import (
    DEFAULT_PROJECT,
    PERSON_ROLES,
    Server,
    Target,
    checked_token,
    chosen_ca_file,
    encrypted_url,
    read_token,
    server_url,
)
from trainyard_protocol.errors import InvalidArgument, NotFound, Violation

if TYPE_CHECKING:
    from trainyard_cli.client import Client
    from trainyard_protocol.answers.people import Me, MemberView, NewToken, PersonRole, RevokedToken, TokenView

_ALL = "*"
_MOST_NAMED = 5
_all_projects = click.option("--all-projects", is_flag=True, help="A role in all projects, also future ones.")


@click.command()
@click.argument("url", metavar="URL")
@click.option(
    "--token-file",
    type=click.Path(dir_okay=False, path_type=Path, allow_dash=True),
    help="File with the token, or - for standard input.  [default: ask for it]",
)
@ca_file_option
def login(url: str, token_file: Path | None, ca_file: Path | None) -> None:
    """Save the token of a server. Later commands use that server.

    The token is one that `trainyard tokens create` printed, or that an operator gave you.
    """
    from trainyard_cli.client import Client
    from trainyard_cli.v1_client import RETRY_DELAYS

    address = encrypted_url(url, "your")
    if token_file is None:
        where = f"make one on the page {address}/tokens, or ask the server's operator."
        token = asked_token(f"Token for {address}", hint=f"If you have none: {where}")
    else:
        token = given_token(token_file)
    authorities = chosen_ca_file(ca_file)
    server = Server(address, token, ca_file=authorities)
    with Client(server, DEFAULT_PROJECT, retry_delays=RETRY_DELAYS, notify=notify) as client:
        me = client.me()
    path = save_logins(read_logins().with_login(address, token, authorities))
    echo(f"Logged in to {address} as {_who(me)}. Commands use that server from now on.")
    notify(f"The token is in {path}. `trainyard logout` removes it.")


@click.command()
@click.argument("url", metavar="[URL]", required=False, default="")
def logout(url: str) -> None:
    """Forget the saved token of a server.

    The default URL is the one that commands use now. Without a saved login they use this machine's own service.
    """
    logins = read_logins()
    address = server_url(url) or logins.current
    if address not in logins.tokens:
        others = f" There is one for {', '.join(sorted(logins.tokens))}." if logins.tokens else ""
        raise NotFound(f"There is no saved login{f' for {address}' if address else ''}.{others}")
    save_logins(logins.without(address))
    echo(f"Logged out of {address}. The token is still valid: `trainyard tokens revoke` ends one.")


@click.command()
@click.option("--description", default="", help="What it is for, such as the name of a machine.")
@expires_option
@click.option("--for", "owner", default="", metavar="NAME", help="Another person. Operators only.")
@click.option("--agent", default="", metavar="NAME", help="A worker agent. Operators only.")
@server_options
@output_options
def create_token(
    target: Target, output: Output, description: str, expires: float | None, owner: str, agent: str
) -> None:
    """Make a token with your own roles. It is printed this once."""
    if owner and agent:
        raise click.UsageError("argument --agent: At most one of --agent | --for can be specified.")
    with connect(target) as client:
        created = new_token(client, owner or agent, description, expires, for_agent=bool(agent))
    if formats.printed(output, created):
        return
    token = created.token
    whose = f"the agent {token.owner}" if token.for_agent else token.owner
    until = f"expires {_time(token.expires_at)}" if token.expires_at else "does not expire"
    notify(f"The token {token.token_id} of {whose} {until}. It is shown this once:")
    echo(created.secret)


@click.command()
@click.option("--all", "everybody", is_flag=True, help="Those of everybody. Operators only.")
@connected
@output_options
def list_tokens(client: "Client", output: Output, everybody: bool) -> None:
    """List your tokens, without their secrets."""
    tokens = client.tokens(everybody=everybody).tokens
    if formats.printed(output, tokens):
        return
    now = datetime.now(UTC)
    headers = ["ID", "OWNER", "STATE", "CREATED", "MADE WITH", "EXPIRES", "LAST USED", "DESCRIPTION"]
    echo(formats.table(headers, [_token_row(token, now) for token in tokens]))


@click.command()
@click.argument("ids", nargs=-1, metavar="[ID...]")
@click.option("--owner", default="", metavar="NAME", help="All tokens of a person or an agent. Operators only.")
@click.option(
    "-r", "--recursive", is_flag=True, help="Also tokens that were made with them.  [default: ask at a terminal]"
)
@server_options
def revoke_tokens(target: Target, ids: Sequence[str], owner: str, *, recursive: bool) -> None:
    """Revoke tokens. Their sessions and followed logs end at once."""
    if bool(ids) == bool(owner):
        raise click.UsageError("Exactly one of ID... | --owner must be specified.")
    with connect(target) as client:
        chosen = list(dict.fromkeys(ids or _valid_tokens(client, owner)))
        recursive = recursive or _asked_for_made(client, chosen)
        for token_id in chosen:
            revoked = client.revoke_token(token_id, recursive=recursive)
            _notify_revoked(revoked, chosen, recursive=recursive)


@click.command()
@connected
@output_options
def list_projects(client: "Client", output: Output) -> None:
    """List the projects that you may see, with your role."""
    view = client.projects()
    if formats.printed(output, view.projects):
        return
    if view.role:
        notify(f"Your role in all projects: {view.role}.")
    if view.projects:
        echo(formats.table(["PROJECT", "ROLE"], [[row.project, row.role] for row in view.projects]))
    elif view.role:
        notify("There is no project yet. The first job or the first member of a project creates it.")
    else:
        notify("You have no role in any project yet: an admin gives one with `trainyard projects add-member`.")


@click.command()
@click.argument("name", metavar="[PROJECT]", required=False, default="")
@_all_projects
@server_options
@output_options
def list_members(target: Target, output: Output, name: str, all_projects: bool) -> None:
    """List who has a role in a project, or in all.  [default: --project]"""
    if name and all_projects:
        raise click.UsageError("argument --all-projects: At most one of PROJECT | --all-projects can be specified.")
    project = _ALL if all_projects else name or target.project
    with connect(target) as client:
        members = client.members(project).everybody
    if formats.printed(output, members):
        return
    if not members:
        where = "in all projects" if project == _ALL else f"in the project {project}"
        notify(f"Nobody has a role {where}.")
        return
    rows = [[member.name, member.role, _place(member), _time(member.since), _giver(member)] for member in members]
    echo(formats.table(["NAME", "ROLE", "IN", "SINCE", "GIVEN BY"], rows))


@click.command()
@click.argument("person", metavar="NAME")
@click.option("--role", type=click.Choice(PERSON_ROLES), required=True, help="What the person may do there.")
@_all_projects
@connected
def add_member(client: "Client", person: str, role: str, all_projects: bool) -> None:
    """Give a person a role in --project, in place of an earlier one.

    The project need not exist yet, nor need the person be known: the role waits for its first token or sign-in.
    """
    project = _ALL if all_projects else client.project
    member = client.set_role(project, person, cast("PersonRole", role))
    where = "all projects" if all_projects else f"the project {project}"
    notify(f"{member.name} is {'an' if role == 'admin' else 'a'} {role} of {where}.")


@click.command()
@click.argument("person", metavar="NAME")
@_all_projects
@connected
def remove_member(client: "Client", person: str, all_projects: bool) -> None:
    """Take a person's role in --project away. What it follows ends at once; its jobs go on."""
    client.remove_role(_ALL if all_projects else client.project, person)
    where = "all projects" if all_projects else f"the project {client.project}"
    notify(f"{person} has no role of its own in {where} any more.")


def _place(member: "MemberView") -> str:
    return "all projects" if member.project == _ALL else member.project


def _giver(member: "MemberView") -> str:
    return member.given_by or "a token in a file"


def new_token(
    client: "Client", owner: str, description: str, expires_s: float | None, *, for_agent: bool
) -> "NewToken":
    """Make a token. Raises InvalidArgument."""
    from trainyard_protocol.answers.people import LONGEST_EXPIRY_S, TokenRequest

    if expires_s is not None and not 0 < expires_s <= LONGEST_EXPIRY_S:
        raise InvalidArgument(Violation("expires", f"is above 0 and at most {LONGEST_EXPIRY_S // 86400}d."))
    return client.create_token(
        TokenRequest(
            owner=owner,
            for_agent=for_agent,
            description=description,
            expires_in_s=math.ceil(expires_s) if expires_s else None,
        )
    )


def asked_token(prompt: str, *, hint: str = "") -> str:
    """The token that a person types. Raises a usage error without a terminal."""
    if not sys.stdin.isatty():
        raise click.UsageError("There is no terminal to ask for the token. Give --token-file FILE, or - for stdin.")
    if hint:
        notify(hint)
    return checked_token(click.prompt(prompt, hide_input=True, err=True), "what was typed")


def given_token(path: Path) -> str:
    if str(path) != "-":
        return read_token(path)
    return checked_token(sys.stdin.readline(), "standard input")


def _valid_tokens(client: "Client", owner: str) -> list[str]:
    """The ids of an owner's valid tokens. Raises NotFound for an owner without any."""
    now = datetime.now(UTC)
    theirs = [token for token in client.tokens(everybody=True).tokens if token.owner == owner]
    if ids := [token.token_id for token in theirs if not token.ended(now)]:
        return ids
    raise NotFound(f"{owner} has no valid token. `trainyard tokens list --all` shows everybody's.")


def _asked_for_made(client: "Client", token_ids: Sequence[str]) -> bool:
    """Whether a person at a terminal wants what was made with these tokens to be revoked too. Raises NotFound."""
    if not _is_asked():
        return False
    made = {token.token_id: token for token_id in token_ids for token in client.made_with(token_id).tokens}
    further = [token for token in made.values() if token.token_id not in token_ids]
    if not further:
        return False
    notify(f"{_counted(further)} made with what you revoke: {_named(further)}.")
    return click.confirm("Revoke them too?", err=True)


def _is_asked() -> bool:
    return sys.stdin.isatty()


def _notify_revoked(revoked: "RevokedToken", token_ids: Sequence[str], *, recursive: bool) -> None:
    made = [token for token in revoked.made.tokens if token.token_id not in token_ids]
    if revoked.source == "file":
        notify(f"The token [{revoked.token_id}] itself is in a file of the server's operator (--token-file).")
    for token in (*((revoked,) if revoked.source == "made" else ()), *(made if recursive else ())):
        notify(f"Revoked the token [{token.token_id}] of {token.owner}.")
    if made and not recursive:
        notify(
            f"{_counted(made)} made with it, still valid: {_named(made)}. To revoke what it made: trainyard tokens "
            f"revoke {revoked.token_id} --recursive"
        )
    if revoked.made.others:
        notify(f"{revoked.made.others} more of other people were made with it: an operator can revoke them.")


def _counted(tokens: Sequence["TokenView"]) -> str:
    return "1 token was" if len(tokens) == 1 else f"{len(tokens)} tokens were"


def _named(tokens: Sequence["TokenView"]) -> str:
    more = f" and {len(tokens) - _MOST_NAMED} more" if len(tokens) > _MOST_NAMED else ""
    return ", ".join(f"{token.token_id} of {token.owner}" for token in tokens[:_MOST_NAMED]) + more


def _who(me: "Me") -> str:
    roles = ", ".join(
        f"{role} of {'all projects' if project == _ALL else project}" for project, role in sorted(me.projects.items())
    )
    return f"{me.name} ({roles or 'without a role in any project yet'})"


def _token_row(token: "TokenView", now: datetime) -> list[str]:
    state = token.ended(now) or ("in a file" if token.source == "file" else "valid")
    owner = f"{token.owner} (agent)" if token.for_agent else token.owner
    expires = _time(token.expires_at) or ("never" if token.source == "made" else "")
    last_used = _time(token.last_used_at) or ("never" if token.source == "made" else "")
    created = _time(token.created_at)
    return [token.token_id, owner, state, created, token.made_with, expires, last_used, token.description]
