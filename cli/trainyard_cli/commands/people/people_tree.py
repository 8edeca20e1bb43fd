"""Commands of people: `login`, `logout`, `tokens` and `projects`. Part of the command tree."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from trainyard_cli.commands.shared.options import (
    Duration,
    ca_file_option,
    output_options,
    server_options,
)
from trainyard_cli.commands.shared.suggestions import CommandGroup
from trainyard_cli.settings import PERSON_ROLES, Target

if TYPE_CHECKING:
    from trainyard_cli.output.jobs.formats import Output

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
    from trainyard_cli.commands.people import people

    people.login(url, token_file, ca_file)


@click.command()
@click.argument("url", metavar="[URL]", required=False, default="")
def logout(url: str) -> None:
    """Forget the saved token of a server.

    The default URL is the one that commands use now. Without a saved login they use this machine's own service.
    """
    from trainyard_cli.commands.people import people

    people.logout(url)


@click.group("tokens", cls=CommandGroup)
def tokens_group() -> None:
    """Make, list and revoke tokens."""


@tokens_group.command("create")
@click.option("--description", default="", help="What it is for, such as the name of a machine.")
@click.option(
    "--expires",
    type=Duration(),
    metavar="DURATION",
    help="Life of the token, such as 90d, at most 366d.  [default: it does not expire]",
)
@click.option("--for", "owner", default="", metavar="NAME", help="Another person. Operators only.")
@click.option("--agent", default="", metavar="NAME", help="A worker agent. Operators only.")
@server_options
@output_options
def create_token(
    target: Target, output: "Output", description: str, expires: float | None, owner: str, agent: str
) -> None:
    """Make a token with your own roles. It is printed this once."""
    if owner and agent:
        raise click.UsageError("argument --agent: At most one of --agent | --for can be specified.")
    from trainyard_cli.commands.people import people

    people.create_token(target, output, owner or agent, description, expires, for_agent=bool(agent))


@tokens_group.command("list")
@click.option("--all", "everybody", is_flag=True, help="Those of everybody. Operators only.")
@server_options
@output_options
def list_tokens(target: Target, output: "Output", everybody: bool) -> None:
    """List your tokens, without their secrets."""
    from trainyard_cli.commands.people import people

    people.list_tokens(target, output, everybody=everybody)


@tokens_group.command("revoke")
@click.argument("ids", nargs=-1, metavar="[ID...]")
@click.option(
    "--owner", default="", metavar="NAME", help="All tokens of a person or an agent. Operators only."
)
@server_options
def revoke_tokens(target: Target, ids: tuple[str, ...], owner: str) -> None:
    """Revoke tokens. Their sessions and followed logs end at once."""
    if bool(ids) == bool(owner):
        raise click.UsageError("Exactly one of ID... | --owner must be specified.")
    from trainyard_cli.commands.people import people

    people.revoke_tokens(target, ids, owner)


@click.group("projects", cls=CommandGroup)
def projects_group() -> None:
    """List projects, and decide who may do what in them."""


@projects_group.command("list")
@server_options
@output_options
def list_projects(target: Target, output: "Output") -> None:
    """List the projects that you may see, with your role."""
    from trainyard_cli.commands.people import people

    people.list_projects(target, output)


@projects_group.command("members")
@click.argument("name", metavar="[PROJECT]", required=False, default="")
@_all_projects
@server_options
@output_options
def list_members(target: Target, output: "Output", name: str, all_projects: bool) -> None:
    """List who has a role in a project.  [default: --project]"""
    from trainyard_cli.commands.people import people

    people.list_members(target, output, _project(target, name, all_projects))


@projects_group.command("add-member")
@click.argument("person", metavar="NAME")
@click.option("--role", type=click.Choice(PERSON_ROLES), required=True, help="What the person may do there.")
@_all_projects
@server_options
def add_member(target: Target, person: str, role: str, all_projects: bool) -> None:
    """Give a person a role in --project, in place of an earlier one.

    The project need not exist yet, nor need the person be known: the role waits for its first token or sign-in.
    """
    from trainyard_cli.commands.people import people

    people.add_member(target, _project(target, "", all_projects), person, role)


@projects_group.command("remove-member")
@click.argument("person", metavar="NAME")
@_all_projects
@server_options
def remove_member(target: Target, person: str, all_projects: bool) -> None:
    """Take a person's role in --project away. What it follows ends at once; its jobs go on."""
    from trainyard_cli.commands.people import people

    people.remove_member(target, _project(target, "", all_projects), person)


def _project(target: Target, name: str, all_projects: bool) -> str:
    if name and all_projects:
        raise click.UsageError(
            "argument --all-projects: At most one of PROJECT | --all-projects can be specified."
        )
    return "*" if all_projects else name or target.project
