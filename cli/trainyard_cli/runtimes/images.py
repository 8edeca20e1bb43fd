"""The container images of runtimes on this machine's engine: which are there, and building them.

The engine is the one that Docker's own environment names (DOCKER_HOST and its kin), else this machine's.
"""

import io
import os
import re
import tarfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit

from trainyard_protocol.errors import FailedPrecondition, InvalidArgument, PermissionDenied, Unavailable
from trainyard_protocol.runtimes import RuntimeImage, Runtimes, constraints_file

if TYPE_CHECKING:
    from docker import DockerClient

PROXY_VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy")
LAST_LINES = 20
"""How many lines of a step that failed are shown."""

_INSTALLERS = ("pip", "setuptools")  # of the agent's: what installs a job's packages
_STEP = re.compile(r"STEP (\d+)/(\d+) ?: (.+)", re.IGNORECASE)
_EXIT_CODE = re.compile(r"returned a non-zero code: (\d+)$")
_BUILDERS_OWN = re.compile(r" ---> |Removing intermediate container |Successfully tagged ")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_EXTRA = re.compile(r"""extra\s*==\s*["']([^"']+)["']""")
_NAME = re.compile(r"[A-Za-z0-9._-]+")
_BRIEF = 70
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the table: what replicas of a version run in. `gpus` is None where both kinds share an image;
    `size` is None where the image is not on the engine, and without a meaning where nobody could be asked."""

    version: str
    gpus: bool | None
    name: str
    image: str
    size: int | None = None


@dataclass(frozen=True, slots=True)
class Recipe:
    """All that an image is built from. `context` is a tar."""

    name: str
    image: str
    base_image: str
    context: bytes = field(repr=False)
    build_args: Mapping[str, str] = field(default_factory=dict)


class Progress(Protocol):
    """Who is told how a build goes on."""

    def step(self, number: int, of: int, instruction: str) -> None: ...

    def line(self, text: str) -> None:
        """A line that the step writes, or how a pull stands."""


@contextmanager
def engine() -> Iterator["DockerClient"]:
    """The engine, which has answered once. Raises FailedPrecondition without Docker's SDK, PermissionDenied,
    Unavailable; the last also for what goes wrong with the engine later."""
    try:
        import docker
        from docker.errors import APIError, DockerException
        from requests.exceptions import RequestException
        from urllib3.exceptions import HTTPError
    except ImportError as missing:
        raise FailedPrecondition(
            "The container engine is spoken to through Docker's SDK for Python, which is not installed: "
            "pip install 'trainyard[agent]'"
        ) from missing
    url = os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock"
    try:
        client = docker.from_env()
    except (DockerException, RequestException, OSError) as error:
        raise _unreachable(url, error) from error
    with closing(client):
        try:
            yield client
        except APIError as refused:
            reason = str(refused.explanation or refused).rstrip(".")
            raise Unavailable(f"The container engine at {url} refuses: {reason}.") from refused
        except (DockerException, RequestException, HTTPError) as error:
            raise _unreachable(url, error) from error


def lines(runtimes: Runtimes) -> list[Line]:
    """The whole table, without asking an engine. Pure."""
    table = []
    for version, names in runtimes.versions.items():
        kinds = [(False, names.cpu), (True, names.gpu)] if names.gpu else [(None, names.cpu)]
        table += [Line(version, gpus, name, runtimes.images[name].image) for gpus, name in kinds]
    return table


def size_of(client: "DockerClient", image: str) -> int | None:
    """The image's size on the engine; None if it is not there."""
    from docker.errors import ImageNotFound

    try:
        return int(client.images.get(image).attrs["Size"])
    except ImageNotFound:
        return None


def chosen(runtimes: Runtimes, names: Sequence[str]) -> list[str]:
    """The names of the images to build: those given, else those of replicas without GPUs.

    Raises InvalidArgument for one that is unknown, or that is not built but pulled. Pure.
    """
    if not names:
        without_gpus = dict.fromkeys(version.cpu for version in runtimes.versions.values())
        return [name for name in without_gpus if runtimes.images[name].dockerfile]
    for name in names:
        if name not in runtimes.images:
            known = ", ".join(name for name, image in runtimes.images.items() if image.dockerfile)
            raise InvalidArgument(f"There is no runtime image {name!r}; there are {known}.")
        if not runtimes.images[name].dockerfile:
            raise InvalidArgument(
                f"The runtime image {name} is not built: it has no dockerfile, and {runtimes.images[name].image} "
                "is pulled when a job needs it."
            )
    return list(dict.fromkeys(names))


def recipe(
    name: str,
    image: RuntimeImage,
    base_image: str = "",
    build_args: Mapping[str, str] | None = None,
    ca_bundle: Path | None = None,
) -> Recipe:
    """What to build an image from. Raises InvalidArgument for a file that cannot be read, or no base image."""
    base_image = base_image or image.base_image
    if not base_image:
        raise InvalidArgument(f"The runtime image {name} has no baseImage; give one with --base-image.")
    files = {
        "Dockerfile": _content(Path(image.dockerfile)),
        "requirements.txt": "".join(f"{line}\n" for line in requirements(image.packages)).encode(),
        "constraints.txt": _content(constraints_file()),
        "ca-bundle.crt": _content(ca_bundle) if ca_bundle else b"",
    }
    return Recipe(
        name=name,
        image=image.image,
        base_image=base_image,
        context=_tar(files),
        build_args={**proxies(os.environ), **(build_args or {}), "BASE_IMAGE": base_image},
    )


def requirements(packages: Iterable[str] = (), declared: Iterable[str] | None = None) -> list[str]:
    """What an image installs: the extra `trainer`, what installs packages, and the image's own `packages`.

    `declared` is what our own package declares, as its metadata has it.
    """
    trainer, installers = [], []
    for line in metadata.requires("trainyard") or () if declared is None else declared:
        requirement, _, marker = line.partition(";")
        extra = _EXTRA.search(marker)
        name = _NAME.match(requirement)
        if extra and extra[1] == "trainer":
            trainer.append(requirement.strip())
        elif extra and extra[1] == "agent" and name and name[0].lower() in _INSTALLERS:
            installers.append(requirement.strip())
    return [*sorted(installers), *sorted(trainer), *packages]


def proxies(environment: Mapping[str, str]) -> dict[str, str]:
    """The user's proxies, for the build; without those on this machine's loopback, which no container reaches."""
    given = {name: environment[name] for name in PROXY_VARIABLES if environment.get(name)}
    return {name: value for name, value in given.items() if _host(value) not in _LOOPBACK}


def build(client: "DockerClient", recipe: Recipe, progress: Progress) -> int:
    """Build an image and return its size. Built before from the same: the engine has it at once.

    Raises FailedPrecondition, with the end of what the failing step wrote. Interrupted: the engine gives up.
    """
    from docker.errors import APIError

    said = client.api.build(
        fileobj=io.BytesIO(recipe.context),
        custom_context=True,
        tag=recipe.image,
        buildargs=dict(recipe.build_args),
        decode=True,
        rm=True,
        forcerm=True,
        timeout=None,  # a step may be silent for as long as it takes to unpack a gigabyte
    )
    transcript = _Transcript(recipe, progress)
    try:
        for word in said:
            transcript.hear(word)
    except APIError as refused:
        raise transcript.failure(str(refused.explanation or refused)) from refused
    size = size_of(client, recipe.image) if transcript.built else None
    if size is None:
        raise transcript.failure("the engine stopped without an image")
    return size


class _Transcript:
    """What the engine says while it builds, and what to make of it when it goes wrong."""

    def __init__(self, recipe: Recipe, progress: Progress) -> None:
        self.built = False
        self._recipe = recipe
        self._progress = progress
        self._step = ""
        self._instruction = ""
        self._lines: list[str] = []

    def hear(self, word: Mapping[str, Any]) -> None:
        """Raises FailedPrecondition when it says that the build has failed."""
        if "error" in word:
            raise self.failure(str(word["error"]))
        if status := word.get("status"):
            self._progress.line(" ".join(filter(None, (word.get("id"), status, word.get("progress")))))
        for raw in str(word.get("stream", "")).splitlines():
            line = _COLOUR.sub("", raw).rstrip()
            if started := _STEP.match(line):
                self._step, self._instruction = f"step {started[1]} of {started[2]}", started[3]
                self._lines = []
                self._progress.step(int(started[1]), int(started[2]), started[3])
            elif line.startswith("Successfully built "):
                self.built = True
            elif line and not _BUILDERS_OWN.match(line):
                self._lines = [*self._lines, line][-LAST_LINES:]
                self._progress.line(line.strip())

    def failure(self, reason: str) -> FailedPrecondition:
        recipe, reason = self._recipe, reason.strip().rstrip(".")
        if not self._step:
            return FailedPrecondition(f"{recipe.name} was not built: {reason}.")
        if self._instruction.upper().startswith("FROM "):
            return FailedPrecondition(
                f"The base image {recipe.base_image} of {recipe.name} cannot be had: {reason}. Bring it to the "
                "engine (docker pull, docker load), or name another with --base-image."
            )
        ended = _EXIT_CODE.search(reason)  # its words are the whole command, which can be long
        how = f" with exit code {ended[1]}" if ended else f": {reason}"
        said = [f"{recipe.name} was not built: {self._step}, {brief(self._instruction)}, failed{how}."]
        if any("CERTIFICATE_VERIFY_FAILED" in line for line in self._lines):
            said.append("Certificates of your own, such as a proxy's, are given with --ca-bundle.")
        if self._lines:
            said.append("The end of what it wrote:\n" + "\n".join(f"    {line}" for line in self._lines))
        return FailedPrecondition(" ".join(said))


def brief(instruction: str) -> str:
    """An instruction of a Dockerfile in one short line."""
    words = " ".join(instruction.split())
    return words if len(words) <= _BRIEF else f"{words[: _BRIEF - 3]}..."


def _unreachable(url: str, error: BaseException) -> PermissionDenied | Unavailable:
    cause = _cause(error)
    if isinstance(cause, PermissionError):
        return PermissionDenied(
            f"This user may not use the container engine at {url}: permission denied. Become a member of the "
            "group that its socket belongs to (docker, usually) and log in again, or name another in DOCKER_HOST."
        )
    reason = (isinstance(cause, OSError) and cause.strerror) or str(cause) or type(cause).__name__
    return Unavailable(
        f"No container engine answers at {url} ({reason.rstrip('.')}). Start Docker there, or name another "
        "engine in DOCKER_HOST."
    )


def _cause(error: BaseException) -> BaseException:
    """The innermost reason, which alone is worth reading."""
    while True:
        inner = (
            error.__cause__
            or error.__context__
            or next((argument for argument in error.args if isinstance(argument, BaseException)), None)
        )
        if inner is None:
            return error
        error = inner


def _host(proxy: str) -> str | None:
    try:
        return urlsplit(proxy if "://" in proxy else f"//{proxy}").hostname
    except ValueError:
        return None


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidArgument(f"{path}: cannot be read: {error.strerror}.") from error


def _tar(files: Mapping[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return packed.getvalue()
