"""Root of the command tree. The modules `*_tree` have its commands with their flags, and the function that runs each.

Shell completion imports them at each TAB, so a command imports what it needs when it runs. A command returns
None or its exit code.
"""

import click

from trainyard_cli.commands.images.images_tree import build_image, runtimes_group
from trainyard_cli.commands.jobs.jobs_tree import jobs_group
from trainyard_cli.commands.jobs.local_tree import local_group
from trainyard_cli.commands.people.audit_tree import audit_group
from trainyard_cli.commands.people.people_tree import login, logout, projects_group, tokens_group
from trainyard_cli.commands.people.secrets_tree import secrets_group
from trainyard_cli.commands.service.agents_tree import agent_group, agents_group
from trainyard_cli.commands.service.connect_tree import connect_group, disconnect_group
from trainyard_cli.commands.service.service_tree import dashboard, doctor, down, status, up
from trainyard_cli.commands.shared.suggestions import CommandGroup
from trainyard_cli.output.text.safe import echo

_CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 110}


@click.group(cls=CommandGroup, context_settings=_CONTEXT)
@click.version_option(package_name="trainyard", message="trainyard %(version)s")
def trainyard() -> None:
    """Run AI Platform Training jobs on your own machines."""


@trainyard.command("shell-init")
@click.argument("shell", required=False, type=click.Choice(["bash", "zsh", "fish", "dash", "sh"]))
def shell_init(shell: str | None) -> None:
    """Print shell code that defines `jobs`. Usage: eval "$(trainyard shell-init)"."""
    from trainyard_cli.commands.service.shell_init import guess_shell, script, this_program
    from trainyard_cli.settings import COMPLETION_VARIABLE

    verbs = [name for name, command in jobs_group.commands.items() if not command.hidden]
    echo(script(shell or guess_shell(), this_program(), verbs, COMPLETION_VARIABLE), nl=False)


for command in (
    *(jobs_group, up, down, status, doctor, dashboard, runtimes_group, build_image, local_group),
    *(login, logout, tokens_group, projects_group, secrets_group, audit_group),
    *(agents_group, agent_group, connect_group, disconnect_group),
):
    trainyard.add_command(command)
