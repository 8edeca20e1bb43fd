"""Settings of containers."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator

from trainyard_agent.engines.docker.network.network_policy import Endpoint, NetworkPolicy
from trainyard_agent.settings import EngineSettings, Many, setting

PullPolicy = Literal["missing", "always", "never"]

Choice = Literal["auto", "image"] | tuple[int, int]
"""`--container-user`: auto, the image's own, or a user and a group id."""

_NO_ID = 2**32 - 1  # -1, the kernel's word for none


def _container_user(value: object) -> Choice:
    text = str(value)
    if text in ("auto", "image"):
        return "auto" if text == "auto" else "image"
    words = text.split(":")
    if len(words) <= 2 and all(word.isdecimal() and int(word) < _NO_ID for word in words) and int(words[0]):
        return int(words[0]), int(words[-1])
    raise ValueError(f"must be auto, image, or ids such as 1000:1000, not root's; this is {text!r}")


_endpoint: Callable[[str], Endpoint] = Endpoint.parse


def address() -> str:
    """The engine's address: DOCKER_HOST, else this machine's socket."""
    return os.environ.get("DOCKER_HOST", "") or "unix:///var/run/docker.sock"


class DockerSettings(EngineSettings):
    title: ClassVar[str] = "containers"
    about: ClassVar[str | None] = "The engine is the one in DOCKER_HOST, or this machine's."
    directories: ClassVar[tuple[str, ...]] = ("containers", "staging")

    pull: PullPolicy = setting(
        "missing", "when to pull a job's image; default: when it is missing", "missing|always|never"
    )
    job_dir_root: Many[Path] = setting(
        (), "job-dirs below this directory may be mounted into containers; may be repeated", "DIR"
    )
    container_user: Annotated[Choice, BeforeValidator(_container_user)] = setting(
        "auto",
        "whom containers run as: image: the image's own user, root too; UID:GID: these ids; default: with --one-user "
        "this user in place of root, else an unprivileged user in place of any, for each owner of jobs",
        "image|UID[:GID]",
    )
    network: NetworkPolicy | None = setting(
        None,
        "what containers reach: all: the outside and what this machine serves at its addresses (the default with "
        "--one-user); egress: the outside only (the default without); none: replicas of the same run only. What "
        "--replica-env names by URL, they reach always",
        "all|egress|none",
    )
    allow_address: Many[Annotated[Endpoint, BeforeValidator(_endpoint)]] = setting(
        (), "let containers reach this TCP and UDP port under every --network; may be repeated", "HOST:PORT"
    )

    @classmethod
    def private_files(cls) -> tuple[Path, ...]:
        return (Path(address().removeprefix("unix://")),)

    def policy(self, one_user: bool) -> NetworkPolicy:
        """The network policy of an agent of one user, or of many."""
        return self.network or ("all" if one_user else "egress")


SETTINGS = DockerSettings
