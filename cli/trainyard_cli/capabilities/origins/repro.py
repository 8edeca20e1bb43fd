"""Writes a directory with everything to run a job by hand: its config, its packages, its origin, and a script."""

import hashlib
import json
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainyard_cli.client import Client
from trainyard_cli.output.jobs.formats import to_yaml
from trainyard_cli.submission.comparison import package_digest
from trainyard_cli.submission.flags import JobFlags
from trainyard_cli.submission.from_job import rerun_config
from trainyard_cli.submission.upload import cloud_storage
from trainyard_protocol.answers.origin import JobOrigin, OriginView
from trainyard_protocol.errors import FailedPrecondition, InvalidArgument, NotFound
from trainyard_protocol.job.cluster import PRIMARY, environment
from trainyard_protocol.job.commands import container_arguments, is_program, module_command
from trainyard_protocol.job.machines import config_of
from trainyard_protocol.job.parsing import parse_training_input
from trainyard_protocol.job.training_input import TrainingInput
from trainyard_protocol.net.gcs import split_url
from trainyard_protocol.wire.observations import ResolvedRun

_ADDRESS = "127.0.0.1:2222"
_HERE = "@directory-of-run.sh@"  # in words of the script, which can be moved with its directory
_JOB_DIR = "job-dir"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,199}")
_STAGED = re.compile(r"staging://([0-9a-f]{64})/([^/]+)")
_COUNTS = ("workerCount", "parameterServerCount", "evaluatorCount")

Download = Callable[[str, Path], None]
"""(package URI, file)"""


@dataclass(frozen=True, slots=True)
class SingleReplica:
    """The job as one replica alone: the context of its variables."""

    job_id: str
    project: str
    training_input: TrainingInput
    trial: None = None
    variables: Mapping[str, str] = field(default_factory=dict)


def write(client: Client, job: str, directory: Path, emulator: str) -> None:
    """Write the directory, which must not exist, or be empty. `emulator` is the address of the local service's gs://.

    Raises InvalidArgument for a study and a directory with files, FailedPrecondition for a package whose content is
    not that of the job, NotFound.
    """
    _check_empty(directory)
    detail = client.detail(job)
    if detail.is_study:
        raise InvalidArgument(f"{job} is a study: name one of its trials, such as {job}/1.")
    try:
        origin = OriginView.model_validate(client.get_origin(job))
    except NotFound:
        origin = OriginView()
    config, _ = rerun_config(client, job, "", (), (), lambda _: None, JobFlags({}))
    training_input = detail.job["trainingInput"]
    resolved = origin.resolved or ResolvedRun()

    def download(uri: str, path: Path) -> None:
        _download(client, job, uri, path, emulator)

    with tempfile.TemporaryDirectory(prefix="trainyard-repro-") as scratch:
        packages = _fetch(training_input.get("packageUris", []), origin, Path(scratch), download)
        texts = {
            "config.yaml": f"{to_yaml(config.data)}\n",
            "origin.json": f"{json.dumps(_without_diff(origin), indent=2, ensure_ascii=False)}\n",
            "changes.diff": origin.git.diff if origin.git else "",
            "requirements.txt": resolved.requirements,
            "run.sh": script(job, client.project, training_input, packages, resolved.images),
            "README.md": readme(job, training_input, origin, client.flags),
        }
        try:
            directory.mkdir(parents=True, exist_ok=True)
            for name, text in texts.items():
                if text:
                    (directory / name).write_text(text, encoding="utf-8", newline="")
            (directory / "run.sh").chmod(0o755)
            if packages:
                shutil.copytree(Path(scratch, "packages"), directory / "packages")
        except OSError as error:
            raise FailedPrecondition(f"{directory} cannot be written: {error.strerror}.") from error


def script(
    job: str, project: str, training_input: Mapping[str, Any], packages: Sequence[str], images: Mapping[str, str]
) -> str:
    """The shell script that runs a job as one replica. `packages` are paths below its directory, `images` the digests
    that a run of it had, by name. Pure."""
    single = {name: value for name, value in training_input.items() if name not in _COUNTS}
    is_container = bool(single.get("masterConfig", {}).get("imageUri"))
    job_dir = f"/{_JOB_DIR}" if is_container else f"{_HERE}/{_JOB_DIR}"
    if single.get("jobDir"):
        single["jobDir"] = job_dir
    parsed = parse_training_input(single)
    variables = environment(SingleReplica(job, project, parsed), {PRIMARY: _ADDRESS}, PRIMARY, job_dir)
    if is_container:
        body = _docker_lines(parsed, variables, packages, images)
    else:
        body = _venv_lines(parsed, variables, packages)
    return "\n".join(
        [
            "#!/bin/sh",
            f"# Runs the job {job} on this machine, as one replica. Further arguments follow its own.",
            "set -eu",
            'here=$(cd "$(dirname "$0")" && pwd)',
            f'mkdir -p "$here/work" "$here/{_JOB_DIR}"',
            *body,
            "",
        ]
    )


def readme(job: str, training_input: Mapping[str, Any], origin: OriginView, flags: str) -> str:
    """The text beside the script. Pure."""
    is_container = bool(training_input.get("masterConfig", {}).get("imageUri"))
    how = "with docker (or $DOCKER)" if is_container else "in a virtual environment of python3 (or $PYTHON)"
    lines = [
        f"# {job}",
        "",
        f"- `./run.sh` runs it on this machine as one replica, {how}. What it writes is in `work/` and `{_JOB_DIR}/`.",
        f"- `jobs submit training --config config.yaml{flags}` submits it again.",
        "- `packages/` has its packages, whose SHA-256 were checked where the job knows them.",
        f"- `origin.json` says where it comes from{f': {origin.summary().text}' if origin.git else ''}.",
    ]
    if origin.resolved and origin.resolved.requirements:
        lines.append(
            f"- `requirements.txt` has the packages of its run {origin.run}, which `run.sh` installs. Remove it, and "
            "`venv/`, to use those of this machine instead."
        )
    if origin.resolved and origin.resolved.images:
        images = ", ".join(f"`{name}` was `{digest}`" for name, digest in origin.resolved.images.items())
        lines.append(f"- Images of its run {origin.run}: {images}.")
    if origin.git and origin.git.commit and (origin.git.diff or not origin.git.dirty):
        apply = " && git apply changes.diff" if origin.git.diff else ""
        lines.append(f"- In a clone of its repository, `git checkout {origin.git.commit}{apply}` restores the sources.")
    if origin.git and origin.git.untracked:
        names = ", ".join(origin.git.untracked[:10])
        lines.append(f"- Files that were not in the repository are not here: {names}.")
    secrets = [item.variable for item in parse_training_input({"secrets": training_input.get("secrets", [])}).secrets]
    if secrets:
        lines.append(f"- It used secrets, which are not here: set {', '.join(secrets)} before.")
    return "\n".join([*lines, ""])


def _check_empty(directory: Path) -> None:
    try:
        if directory.is_dir() and not any(directory.iterdir()):
            return
    except OSError as error:
        raise FailedPrecondition(f"{directory} cannot be read: {error.strerror}.") from error
    if directory.exists() or directory.is_symlink():
        raise InvalidArgument(f"{directory} exists and is not an empty directory. Choose another one.")


def _fetch(uris: Iterable[str], origin: JobOrigin, scratch: Path, download: Download) -> list[str]:
    """Download the packages below `scratch`. Returns their paths in there, in the job's order."""
    paths: list[str] = []
    for number, uri in enumerate(uris):
        name = uri.rpartition("/")[2]
        if not _NAME.fullmatch(name):
            raise FailedPrecondition(f"The package {uri!r} has no name that a file may have.")
        is_taken = f"packages/{name}" in paths
        path = f"packages/{number}/{name}" if is_taken else f"packages/{name}"
        file = scratch / path
        file.parent.mkdir(parents=True, exist_ok=True)
        download(uri, file)
        expected = package_digest(uri) or origin.packages.get(uri, "")
        with file.open("rb") as content:
            digest = hashlib.file_digest(content, "sha256").hexdigest()
        if expected and digest != expected:
            raise FailedPrecondition(f"{uri} has the SHA-256 {digest}; that of the job had {expected}.")
        paths.append(path)
    return paths


def _download(client: Client, job: str, uri: str, path: Path, emulator: str) -> None:
    if staged := _STAGED.fullmatch(uri):
        client.download_package(job, staged[1], staged[2], path)
        return
    storage = cloud_storage(emulator)
    bucket, name = split_url(uri)
    with storage.errors(uri), closing(storage.client()) as google:
        google.bucket(bucket).blob(name).download_to_filename(str(path))


def _without_diff(origin: JobOrigin) -> dict[str, Any]:
    return origin.model_dump(mode="json", exclude={"git": {"diff"}})


def _venv_lines(training_input: TrainingInput, variables: Mapping[str, str], packages: Sequence[str]) -> Iterator[str]:
    yield 'if [ ! -e "$here/venv/complete" ]; then'
    yield '  rm -rf "$here/venv"'
    yield '  if [ -e "$here/requirements.txt" ]; then'
    yield '    "${PYTHON:-python3}" -m venv "$here/venv"'
    yield '    "$here/venv/bin/python" -m pip install -r "$here/requirements.txt"'
    yield "  else"
    yield '    "${PYTHON:-python3}" -m venv --system-site-packages "$here/venv"'
    yield "  fi"
    if packages:
        files = " ".join(_quoted(f"{_HERE}/{path}") for path in packages)
        yield f'  "$here/venv/bin/python" -m pip install --force-reinstall --no-deps {files}'
        yield f'  "$here/venv/bin/python" -m pip install {files}'
    yield '  touch "$here/venv/complete"'
    yield "fi"
    yield 'cd "$here/work"'
    if is_program(training_input):
        yield "rm -rf program  # of the run before"
    _, *words = module_command(training_input)
    assigned = [f"{name}={_quoted(value)}" for name, value in variables.items()]
    yield _line(["exec env", *assigned, '"$here/venv/bin/python"', *map(_quoted, words), '"$@"'])


def _docker_lines(
    training_input: TrainingInput, variables: Mapping[str, str], packages: Sequence[str], images: Mapping[str, str]
) -> Iterator[str]:
    config = config_of(training_input, PRIMARY.type)
    options = [f"-e {_quoted(f'{name}={value}')}" for name, value in variables.items()]
    options += [f"-e {_quoted(item.variable)}" for item in training_input.secrets if not item.file]
    options.append(f'-v "$here/{_JOB_DIR}":/{_JOB_DIR}')
    digest = images.get(config.image_uri, "")
    image = _quoted(digest if "@" in digest else config.image_uri)
    if training_input.runs_image:
        command = list(config.container_command)
        entrypoint = [f"--entrypoint {_quoted(command[0])}"] if command else []
        words = [*command[1:], *container_arguments(training_input, config)]
        yield _line(["exec ${DOCKER:-docker} run --rm", *options, *entrypoint, image, *map(_quoted, words), '"$@"'])
        return
    install = f"python3 -m pip install {' '.join(f'/{path}' for path in packages)} && " if packages else ""
    start = f'{install}exec "$@"'
    words = module_command(training_input)
    options += ['-v "$here/packages":/packages:ro'] if packages else []
    options.append("--entrypoint sh")
    inside = ["-c", start, "sh", *words]
    yield _line(["exec ${DOCKER:-docker} run --rm", *options, image, *map(_quoted, inside), '"$@"'])


def _line(words: Iterable[str]) -> str:
    return " \\\n  ".join(words)


def _quoted(word: str) -> str:
    """A word for the shell, with the directory of the script where it is named."""
    quoted = "'" + word.replace("'", "'\"'\"'") + "'"
    return quoted.replace(_HERE, "'\"$here\"'").replace("''\"$here\"", '"$here"')
