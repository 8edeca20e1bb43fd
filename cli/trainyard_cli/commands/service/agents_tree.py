"""Commands `agents add|list|drain|remove` and `agent join|storage|doctor|manifest`. Part of the command tree."""

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
from trainyard_cli.settings import Target

if TYPE_CHECKING:
    from trainyard_cli.output.jobs.formats import Output
    from trainyard_storage.tensorflow_front import Reach


@click.group("agents", cls=CommandGroup)
def agents_group() -> None:
    """Add machines, list them, and take them out of service."""


@agents_group.command("add")
@click.argument("name", metavar="NAME")
@click.option(
    "--expires",
    type=Duration(),
    metavar="DURATION",
    help="Life of the token, such as 90d, at most 366d.  [default: it does not expire]",
)
@server_options
@output_options
def add_agent(target: Target, output: "Output", name: str, expires: float | None) -> None:
    """Make a token for the agent of a new machine, and print the command to run there. Operators only."""
    from trainyard_cli.commands.service import agents

    agents.add(target, output, name, expires)


@agents_group.command("list")
@server_options
@output_options
def list_agents(target: Target, output: "Output") -> None:
    """List the agents: state, runtimes, capacity and last contact."""
    from trainyard_cli.commands.service import agents

    agents.list_all(target, output)


@agents_group.command("drain")
@click.argument("name", metavar="NAME")
@click.option("--undo", is_flag=True, help="Let it start runs again.")
@server_options
def drain_agent(target: Target, name: str, undo: bool) -> None:
    """Start no new run on an agent, by name or id. Its runs go on. Operators only."""
    from trainyard_cli.commands.service import agents

    agents.drain(target, name, draining=not undo)


@agents_group.command("remove")
@click.argument("name", metavar="NAME")
@server_options
def remove_agent(target: Target, name: str) -> None:
    """Forget an agent without unfinished runs, by name or id, and revoke its tokens. Operators only."""
    from trainyard_cli.commands.service import agents

    agents.remove(target, name)


@click.group("agent", cls=CommandGroup)
def agent_group() -> None:
    """Make this machine, or a Kubernetes cluster, a worker of a server."""


@agent_group.command(
    "join",
    context_settings={"ignore_unknown_options": True},
    epilog="AGENT_OPTIONS are those of `python -m trainyard_agent`, such as --cpus 0-7, --runtime docker or "
    "--job-dir-root /mnt/jobs.",
)
@click.argument("url", metavar="URL")
@click.option(
    "--token-file",
    type=click.Path(dir_okay=False, path_type=Path, allow_dash=True),
    help="File with the agent's token, or - for standard input.  [default: the one of the last time, else ask for it]",
)
@ca_file_option
@click.option(
    "--state-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="The agent's directory.  [default: joined in ~/.local/state/trainyard, for root /var/lib/trainyard-agent]",
)
@click.option("--install", is_flag=True, help="Write a systemd unit that does this, instead of doing it now.")
@click.argument("options", nargs=-1, type=click.UNPROCESSED, metavar="[AGENT_OPTIONS]...")
def join(
    url: str,
    token_file: Path | None,
    ca_file: Path | None,
    state_dir: Path | None,
    install: bool,
    options: tuple[str, ...],
) -> int:
    """Run jobs of a server on this machine, until Ctrl-C.

    Checks the address, the certificate, the token and the versions first. `trainyard agents add` makes the token.
    """
    from trainyard_cli.commands.service import agents

    return agents.join(url, token_file, ca_file, state_dir, options, install=install)


@agent_group.command("storage")
@click.argument("url", metavar="URL")
@ca_file_option
@click.option(
    "--port", type=click.IntRange(1, 65535), default=8479, show_default=True, help="The port on loopback."
)
@click.option("--containers", is_flag=True, help="Listen on the address of Docker's bridge too.")
@click.option(
    "--reach",
    type=click.Choice(["all", "public", "none"]),
    default="none",
    show_default=True,
    help="What else containers reach through it, as their HTTPS proxy, where they use TensorFlow's gs://: what this "
    "machine reaches, public addresses alone, or nothing.",
)
@click.option(
    "--state-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="Its directory.  [default: storage-front in ~/.local/state/trainyard, for root /var/lib/trainyard-storage]",
)
def agent_storage(
    url: str, ca_file: Path | None, port: int, containers: bool, reach: "Reach", state_dir: Path | None
) -> int:
    """Serve the server's storage to the jobs of this machine's agent, as gs://, until Ctrl-C.

    The agent gives jobs its address: --replica-env STORAGE_EMULATOR_HOST=http://127.0.0.1:8479/{job}
    """
    from trainyard_cli.commands.service import agents

    return agents.serve_storage(url, ca_file, port, containers, reach, state_dir)


@agent_group.command(
    "doctor",
    context_settings={"ignore_unknown_options": True},
    epilog="AGENT_OPTIONS are those that the agent runs with, such as --runtime kubernetes --kubeconfig FILE.",
)
@click.option(
    "--state-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="The agent's directory.  [default: as for join]",
)
@output_options
@click.argument("options", nargs=-1, type=click.UNPROCESSED, metavar="[AGENT_OPTIONS]...")
def agent_doctor(state_dir: Path | None, output: "Output", options: tuple[str, ...]) -> int:
    """Check what a joined agent stands on: its engine, its permissions there, and orphans of runs.

    Exits with 1 if something is wrong.
    """
    from trainyard_cli.commands.service import agents

    return 0 if agents.examine(state_dir, options, output) else 1


@agent_group.command(
    "manifest",
    context_settings={"ignore_unknown_options": True},
    epilog="AGENT_OPTIONS are those of `python -m trainyard_agent`, such as --pool 4x16x64. No image is published: "
    "docs/kubernetes.md says how to build it.",
)
@click.option("--server", required=True, metavar="URL", help="The server's address, as pods reach it.")
@click.option(
    "--image", required=True, metavar="IMAGE", help="The agent's image, where the nodes can pull it."
)
@click.option(
    "--namespace", default="trainyard", show_default=True, help="The agent's, which has nothing else in it."
)
@click.option(
    "--token-file",
    type=click.Path(dir_okay=False, path_type=Path, allow_dash=True),
    help="File with the agent's token, or - for standard input.  [default: the Secret is made by hand]",
)
@ca_file_option
@click.option(
    "--runtimes",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Runtimes file for package jobs, whose images nodes pull. It is printed as a ConfigMap.",
)
@click.argument("options", nargs=-1, type=click.UNPROCESSED, metavar="[AGENT_OPTIONS]...")
def print_manifest(
    server: str,
    image: str,
    namespace: str,
    token_file: Path | None,
    ca_file: Path | None,
    runtimes: Path | None,
    options: tuple[str, ...],
) -> None:
    """Print the objects of an agent in a Kubernetes cluster, for `kubectl apply -f -`.

    A namespace, an account with the permissions that the agent needs in it, the token as a Secret, and a Deployment.
    """
    from trainyard_cli.commands.service import agents

    agents.manifest(server, image, namespace, token_file, ca_file, runtimes, options)
