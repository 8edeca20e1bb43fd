"""Images on the container engine: those of runtime versions, and those of a user's own Dockerfile.

The engine is Docker's default: DOCKER_HOST and related variables, else this machine's socket.
"""

import hashlib
import io
import json
import os
import re
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Protocol, cast
from urllib.parse import urlsplit

from trainyard_protocol.errors import FailedPrecondition, InvalidArgument, PermissionDenied, Unavailable

if TYPE_CHECKING:
    from docker import DockerClient

    from trainyard_protocol.job.runtimes import RuntimeImage, Runtimes

DOCKERFILE = "Dockerfile"
PROXY_VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy")
LAST_LINES = 20
"""Number of lines shown of a failed step."""

_NO_SDK = "This needs Docker's SDK for Python, which is not installed: pip install 'trainyard[agent]'"
_INSTALLERS = ("pip", "setuptools")  # install a job's packages
_STEP = re.compile(r"STEP (\d+)/(\d+) ?: (.+)", re.IGNORECASE)
_EXIT_CODE = re.compile(r"returned a non-zero code: (\d+)$")
_BUILDER_MESSAGE = re.compile(r" ---> |Removing intermediate container |Successfully tagged ")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_EXTRA = re.compile(r"""extra\s*==\s*["']([^"']+)["']""")
_NAME = re.compile(r"[A-Za-z0-9._-]+")
_MAX_INSTRUCTION = 70
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True)
class RuntimeTableRow:
    """Image of a runtime version. `gpus` is None if replicas with and without GPUs share it; `size` (bytes) is None
    if the engine does not have it or was not asked."""

    version: str
    gpus: bool | None
    name: str
    image: str
    size: int | None = None


@dataclass(frozen=True, slots=True)
class Recipe:
    """The inputs of a build. `open` gives the build context, a tar; `base_image` is "" where the Dockerfile has it.
    `advice` says what to do about a base image that is not available."""

    name: str
    image: str
    open: Callable[[], IO[bytes]] = field(repr=False)
    build_args: Mapping[str, str] = field(default_factory=dict)
    base_image: str = ""
    advice: str = "name another in FROM"


class BuildProgress(Protocol):
    """Receives the progress of a build."""

    def step(self, number: int, of: int, instruction: str) -> None: ...

    def line(self, text: str) -> None:
        """An output line of the step, or the state of a pull."""


@contextmanager
def engine() -> Iterator["DockerClient"]:
    """Connect to the engine. Raises FailedPrecondition without Docker's SDK, PermissionDenied, or Unavailable, also for
    errors of the engine within the context."""
    try:
        import docker
        from docker.errors import APIError, DockerException
        from requests.exceptions import RequestException
        from urllib3.exceptions import HTTPError
    except ImportError as missing:
        raise FailedPrecondition(_NO_SDK) from missing
    url = os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock"
    try:
        client = docker.from_env()
    except (DockerException, RequestException, OSError) as error:
        raise _unreachable(url, error) from error
    with closing(client):
        try:
            yield client
        except APIError as error:
            reason = str(error.explanation or error).rstrip(".")
            raise Unavailable(f"The container engine at {url} failed: {reason}.") from error
        except (DockerException, RequestException, HTTPError) as error:
            raise _unreachable(url, error) from error


def lines(runtimes: "Runtimes") -> list[RuntimeTableRow]:
    """The table of runtime versions, without sizes. Pure."""
    table = []
    for version, names in runtimes.versions.items():
        kinds = [(False, names.cpu), (True, names.gpu)] if names.gpu else [(None, names.cpu)]
        table += [RuntimeTableRow(version, gpus, name, runtimes.images[name].image) for gpus, name in kinds]
    return table


def size_of(client: "DockerClient", image: str) -> int | None:
    """The image's size on the engine in bytes; None if it is missing."""
    from docker.errors import ImageNotFound

    try:
        return int(client.images.get(image).attrs["Size"])
    except ImageNotFound:
        return None


def images_to_build(runtimes: "Runtimes", names: Sequence[str]) -> list[str]:
    """Names of the images to build: the given ones, else those of replicas without GPUs, and without a framework that
    only few versions are for.

    Raises InvalidArgument for an image that is unknown or has no Dockerfile. Pure.
    """
    if not names:
        without_gpus = dict.fromkeys(version.cpu for version in runtimes.versions.values())
        images = {name: runtimes.images[name] for name in without_gpus}
        return [name for name, image in images.items() if image.dockerfile and not image.framework]
    for name in names:
        if name not in runtimes.images:
            buildable = ", ".join(name for name, image in runtimes.images.items() if image.dockerfile)
            raise InvalidArgument(f"Unknown runtime image {name!r}; known: {buildable}.")
        if not runtimes.images[name].dockerfile:
            raise InvalidArgument(
                f"The runtime image {name} cannot be built: it has no dockerfile. {runtimes.images[name].image} "
                "is pulled when a job needs it."
            )
    return list(dict.fromkeys(names))


def use_of(runtimes: "Runtimes", name: str) -> str:
    """Which package jobs run in an image that was built. Pure."""
    from trainyard_protocol.job.runtimes import ANY_VERSION

    using = {version for version, names in runtimes.versions.items() if name in (names.cpu, names.gpu)}
    versions = sorted(using - {ANY_VERSION})
    if runtimes.package_jobs == "container" and ANY_VERSION in using:
        return "Package jobs run in it."
    lines = [f"Package jobs with runtimeVersion {' or '.join(versions)} run in it from now on."] if versions else []
    others = "Other package jobs" if versions else "Package jobs"
    if ANY_VERSION in using:
        lines.append(
            f"{others} run in it only with `packageJobs: container` in a runtimes file, or with --runtime docker; "
            "else as processes, as before."
        )
    return " ".join(lines)


def recipe(
    name: str,
    image: "RuntimeImage",
    base_image: str = "",
    build_args: Mapping[str, str] | None = None,
    ca_bundle: Path | None = None,
) -> Recipe:
    """Assemble the inputs of a build. Raises InvalidArgument for an unreadable file or a missing base image."""
    from trainyard_protocol.job.runtimes import constraints_file

    base_image = base_image or image.base_image
    if not base_image:
        raise InvalidArgument(f"The runtime image {name} has no baseImage. Give one with --base-image.")
    files = {
        "Dockerfile": _content(Path(image.dockerfile)),
        "requirements.txt": "".join(f"{line}\n" for line in _required(image)).encode(),
        "constraints.txt": b"" if image.framework else _content(constraints_file()),
        "ca-bundle.crt": _content(ca_bundle) if ca_bundle else b"",
    }
    context = _tar(files)
    return Recipe(
        name,
        image.image,
        lambda: io.BytesIO(context),
        {**proxies(os.environ), **(build_args or {}), "BASE_IMAGE": base_image},
        base_image,
        advice="give another with --base-image",
    )


def _required(image: "RuntimeImage") -> list[str]:
    """Requirements of an image. A framework fits neither the trainer's packages nor their tested versions."""
    return ["pip", "setuptools", *image.packages] if image.framework else requirements(image.packages)


def requirements(packages: Iterable[str] = (), declared: Iterable[str] | None = None) -> list[str]:
    """Requirements of an image: pip and setuptools, the extra `trainer`, and the image's own `packages`.

    `declared` overrides the requirements in our own package's metadata.
    """
    trainer, installers = [], []
    for line in metadata.requires("trainyard") or () if declared is None else declared:
        requirement, _, marker = line.partition(";")
        extra = _EXTRA.search(marker)
        name = _NAME.match(requirement)
        if extra and extra[1] == "trainer":
            trainer.append(requirement.strip())
        elif (not extra or extra[1] == "agent") and name and name[0].lower() in _INSTALLERS:
            installers.append(requirement.strip())
    return [*sorted(installers), *sorted(trainer), *packages]


def proxies(environment: Mapping[str, str]) -> dict[str, str]:
    """The user's proxy variables for the build, without loopback addresses, which containers cannot reach."""
    variables = {name: environment[name] for name in PROXY_VARIABLES if environment.get(name)}
    return {name: value for name, value in variables.items() if _host(value) not in _LOOPBACK}


def project(directory: Path, image: str = "") -> Recipe:
    """The build of a directory with a Dockerfile, of the files that .dockerignore leaves. The image is by default named
    after the directory and the hash of these files.

    Raises InvalidArgument without a Dockerfile, FailedPrecondition without Docker's SDK.
    """
    try:
        from docker.utils.build import create_archive, exclude_paths
    except ImportError as missing:
        raise FailedPrecondition(_NO_SDK) from missing
    if not (directory / DOCKERFILE).is_file():
        raise InvalidArgument(
            f"{directory} has no {DOCKERFILE}. Give the directory of one, or name an image that exists with "
            "--master-image-uri."
        )
    ignored = _content(directory / ".dockerignore").decode() if (directory / ".dockerignore").is_file() else ""
    patterns = [line.strip() for line in ignored.splitlines() if line.strip() and not line.startswith("#")]
    paths = sorted(exclude_paths(str(directory), [*patterns, f"!{DOCKERFILE}"]))
    name = directory.resolve().name
    repository = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "program"
    image = image or f"trainyard/{repository}:{_content_hash(directory, paths)[:12]}"

    def context() -> IO[bytes]:
        return cast("IO[bytes]", create_archive(str(directory), files=paths))

    return Recipe(name, image, context, proxies(os.environ))


def _content_hash(directory: Path, paths: Iterable[str]) -> str:
    """A hash of the names, kinds and contents of files."""
    result = hashlib.sha256()
    for name in paths:
        path = directory / name
        try:
            if path.is_symlink():
                kind, content = "link", str(path.readlink())
            elif path.is_file():
                kind = "program" if path.stat().st_mode & 0o100 else "file"
                with path.open("rb") as file:
                    content = hashlib.file_digest(file, "sha256").hexdigest()
            else:
                kind, content = "directory", ""
        except OSError as error:
            raise InvalidArgument(f"{path}: cannot be read: {error.strerror}.") from error
        result.update(json.dumps([name, kind, content]).encode())
    return result.hexdigest()


def build(client: "DockerClient", recipe: Recipe, progress: BuildProgress) -> int:
    """Build an image and return its size in bytes. The engine caches unchanged steps and stops when interrupted.

    Raises FailedPrecondition, with the end of the failed step's output.
    """
    from docker.errors import APIError

    transcript = _Transcript(recipe, progress)
    with recipe.open() as context:
        messages = client.api.build(
            fileobj=context,
            custom_context=True,
            tag=recipe.image,
            buildargs=dict(recipe.build_args),
            decode=True,
            rm=True,
            forcerm=True,
            timeout=None,  # a step may write nothing for minutes
        )
        try:
            for message in messages:
                transcript.add(message)
        except APIError as error:
            raise transcript.failure(str(error.explanation or error)) from error
    size = size_of(client, recipe.image) if transcript.built else None
    if size is None:
        raise transcript.failure("the engine returned no image")
    return size


class _Transcript:
    """The engine's build messages: progress, and the error message if the build fails."""

    def __init__(self, recipe: Recipe, progress: BuildProgress) -> None:
        self.built = False
        self._recipe = recipe
        self._progress = progress
        self._step = ""
        self._instruction = ""
        self._lines: list[str] = []

    def add(self, message: Mapping[str, Any]) -> None:
        """Consume a message. Raises FailedPrecondition if it reports a failed build."""
        if "error" in message:
            raise self.failure(str(message["error"]))
        if status := message.get("status"):
            self._progress.line(" ".join(filter(None, (message.get("id"), status, message.get("progress")))))
        for raw in str(message.get("stream", "")).splitlines():
            line = _COLOUR.sub("", raw).rstrip()
            if started := _STEP.match(line):
                self._step, self._instruction = f"step {started[1]} of {started[2]}", started[3]
                self._lines = []
                self._progress.step(int(started[1]), int(started[2]), started[3])
            elif line.startswith("Successfully built "):
                self.built = True
            elif line and not _BUILDER_MESSAGE.match(line):
                self._lines = [*self._lines, line][-LAST_LINES:]
                self._progress.line(line.strip())

    def failure(self, reason: str) -> FailedPrecondition:
        recipe, reason = self._recipe, reason.strip().rstrip(".")
        if not self._step:
            return FailedPrecondition(f"{recipe.name} was not built: {reason}.")
        if self._instruction.upper().startswith("FROM "):
            base_image = recipe.base_image or self._instruction.split()[1]
            return FailedPrecondition(
                f"The base image {base_image} of {recipe.name} is not available: {reason}. Load it into the "
                f"engine (docker pull, docker load), or {recipe.advice}."
            )
        ended = _EXIT_CODE.search(reason)  # the reason has the whole command, which can be long
        how = f" with exit code {ended[1]}" if ended else f": {reason}"
        message = [f"{recipe.name} was not built: {self._step}, {brief(self._instruction)}, failed{how}."]
        if recipe.base_image and any("CERTIFICATE_VERIFY_FAILED" in line for line in self._lines):
            message.append("Give your own certificates, such as a proxy's, with --ca-bundle.")
        if self._lines:
            message.append("Last lines of its output:\n" + "\n".join(f"    {line}" for line in self._lines))
        return FailedPrecondition(" ".join(message))


def brief(instruction: str) -> str:
    """A Dockerfile instruction, shortened to one line."""
    words = " ".join(instruction.split())
    return words if len(words) <= _MAX_INSTRUCTION else f"{words[: _MAX_INSTRUCTION - 3]}..."


def _unreachable(url: str, error: BaseException) -> PermissionDenied | Unavailable:
    cause = _cause(error)
    if isinstance(cause, PermissionError):
        return PermissionDenied(
            f"Permission denied for the container engine at {url}. Join the group of its socket (usually docker) and "
            "log in again, or set DOCKER_HOST to another engine."
        )
    reason = (isinstance(cause, OSError) and cause.strerror) or str(cause) or type(cause).__name__
    return Unavailable(
        f"No container engine answers at {url} ({reason.rstrip('.')}). Start Docker, or set DOCKER_HOST to another "
        "engine."
    )


def _cause(error: BaseException) -> BaseException:
    """The innermost cause of an error."""
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
