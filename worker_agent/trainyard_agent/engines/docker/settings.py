"""Settings of containers."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from trainyard_agent.engines.docker.network.network_policy import POLICIES, Endpoint, NetworkPolicy
from trainyard_agent.settings import EngineSettings, checked
from trainyard_protocol.errors import InvalidArgument
from trainyard_protocol.settings import setting

PullPolicy = Literal["missing", "always", "never"]

Span = Literal["published", "host-network"]

Choice = Literal["auto", "image"] | tuple[int, int]
"""`--container-user`: auto, the image's own, or a user and a group id."""

_NO_ID = 2**32 - 1  # -1, the kernel's word for none


def _container_user(text: str) -> Choice:
    if text in ("auto", "image"):
        return "auto" if text == "auto" else "image"
    words = text.split(":")
    if len(words) <= 2 and all(word.isdecimal() and int(word) < _NO_ID for word in words) and int(words[0]):
        return int(words[0]), int(words[-1])
    raise InvalidArgument(f"must be auto, image, or ids such as 1000:1000, not root's; this is {text!r}.")


def address() -> str:
    """The engine's address: DOCKER_HOST, else this machine's socket."""
    return os.environ.get("DOCKER_HOST", "") or "unix:///var/run/docker.sock"


@dataclass(frozen=True)
class DockerSettings(EngineSettings):
    title: ClassVar[str] = "containers\nThe engine is the one in DOCKER_HOST, or this machine's."
    directories: ClassVar[tuple[str, ...]] = ("containers", "staging")

    pull: PullPolicy = setting(
        "missing", "when to pull a job's image", read=str, choices=("missing", "always", "never")
    )
    job_dir_root: tuple[Path, ...] = setting(
        (), "job-dirs below this directory may be mounted into containers", metavar="DIR"
    )
    container_user: Choice = setting(
        "auto",
        "whom containers run as: image: the image's own user, root too; UID:GID: these ids",
        metavar="image|UID[:GID]",
        read=_container_user,
        default_text="with --one-user this user in place of root, else an unprivileged user in place of any, for each "
        "owner of jobs",
    )
    network: NetworkPolicy | None = setting(
        None,
        "what containers reach: all: the outside and what this machine serves at its addresses; egress: the outside "
        "only; none: replicas of the same run only. What --replica-env names by URL, they reach always",
        read=str,
        choices=POLICIES,
        default_text="all with --one-user, else egress",
    )
    allow_address: tuple[Endpoint, ...] = setting(
        (),
        "let containers reach this TCP and UDP port under every --network",
        metavar="HOST:PORT",
        read=checked(Endpoint.parse),
    )

    span: Span = setting(
        "published",
        "how the containers of a gang over several agents are reached: published: at one published port each, which is "
        "enough for TensorFlow; host-network: they have this machine's network, as JAX's and PyTorch's collectives and "
        "NCCL need it, and no --network but all",
        read=str,
        choices=("published", "host-network"),
    )

    @classmethod
    def private_files(cls) -> tuple[Path, ...]:
        return (Path(address().removeprefix("unix://")),)

    def problem(self, serves: bool, one_user: bool) -> str:  # noqa: ARG002 - the same for every command
        if self.span == "host-network" and self.policy(one_user) != "all":
            return "--span host-network gives containers the network of this machine, so it needs --network all"
        return ""

    def policy(self, one_user: bool) -> NetworkPolicy:
        """The network policy of an agent of one user, or of many."""
        return self.network or ("all" if one_user else "egress")


SETTINGS = DockerSettings
