"""Submitting: a config and flags -> one job on the server, or every reason why not.

Order matters: all that can be refused is refused before anything is started, built, uploaded or created.
"""

import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trainyard_cli.client import Client
from trainyard_cli.submission import config_file, packaging
from trainyard_cli.submission.config_file import ConfigFile
from trainyard_cli.submission.flags import JobFlags, get, merge, put, spelling
from trainyard_protocol.errors import AlreadyExists, InvalidArgument
from trainyard_protocol.machines import Catalog
from trainyard_protocol.training_input import Job, parse_job
from trainyard_protocol.validation import check

_TRAINING = "trainingInput"
_GENERIC_NAMES = frozenset({"config", "conf", "job", "training"})
_MAX_NAMES = 100

Say = Callable[[str], None]
Uploader = Callable[[str, packaging.Archive], str]
"""(job's name, archive) -> the address that goes into packageUris."""


@dataclass(frozen=True, slots=True)
class Draft:
    """A job before it is sent: the flags laid over the config, and what is still to be packaged.

    `name` is the JOB of the command line or the config's jobId; empty where neither gives one.
    """

    data: Mapping[str, Any]
    config: ConfigFile | None
    origins: Mapping[str, str]
    name: str = ""
    packages: tuple[str, ...] = ()
    package_path: Path | None = None
    automatic: bool = False

    def named(self, job_id: str) -> dict[str, Any]:
        """The body of a create request under that name."""
        data = {key: value for key, value in self.data.items() if key != "job_id"}
        return {**data, "jobId": job_id}

    @property
    def module(self) -> str:
        return str(get(self.data, f"{_TRAINING}.pythonModule") or "")


def draft(
    config_path: Path | None,
    flags: JobFlags,
    *,
    here: Path,
    name: str = "",
    user_args: tuple[str, ...] = (),
) -> Draft:
    """Read the config and lay the flags over it. Touches nothing; `here` is the current directory.

    Raises InvalidArgument when the config cannot be read or a local package does not exist.
    """
    config = config_file.load(config_path) if config_path else None
    data, origins = merge(config.data if config else {}, flags)
    if data.get(spelling(data, _TRAINING)) is None:
        data[spelling(data, _TRAINING)] = {}
    if user_args:
        put(data, f"{_TRAINING}.args", list(user_args))
        origins["args"] = "USER_ARGS"
    if name:
        origins["job.job_id"] = "JOB"
    if flags.text("master_image_uri") and flags.text("runtime_version"):
        raise InvalidArgument("Only one of --master-image-uri, --runtime-version can be set.")
    if flags.text("scale_tier").lower() == "custom" and not get(data, f"{_TRAINING}.masterType"):
        raise InvalidArgument("--master-machine-type is required if scale-tier is set to `CUSTOM`.")
    _make_job_dir_absolute(data, config, origins, here)
    package_path = Path(flags.text("package_path")).expanduser() if flags.text("package_path") else None
    if package_path is not None:
        packaging.check_package(package_path)
    for package in flags.packages:
        if "://" not in package:
            packaging.check_archive(Path(package).expanduser())
    name = name or str(get(data, "jobId") or "")
    made = Draft(data, config, origins, name, flags.packages, package_path)
    return made if flags.names_packages else _with_automatic_package(made, here)


def check_locally(made: Draft, catalog: Catalog | None) -> Job:
    """The job as it would be submitted. Raises InvalidArgument, in the user's terms, for all that is wrong.

    Without a catalogue (another server's machine types are not known here) only the schema is checked.
    """
    with in_users_terms(made):
        job = parse_job(made.named(made.name or "job"))
        if catalog is not None:
            check(job.training_input, catalog)
    return job


def submit(
    made: Draft,
    client: Client,
    *,
    upload: Uploader,
    job_dir: Callable[[str], str],
    say: Say,
    clock: Callable[[], float] = time.time,
) -> dict[str, Any]:
    """Validate with the server, package, upload, create. Returns the created job.

    A draft without a name is named from the config and the time. `job_dir` gives the directory of a job
    that names none ("" for none).
    """
    with ExitStack() as scratch:
        archives: list[packaging.Archive] | None = None
        for job_id in job_names(made, clock):
            body = made.named(job_id)
            try:
                with in_users_terms(made):
                    client.validate_job(body)
                    if archives is None:
                        archives = _archives(made, scratch, say)
                    _add_packages(body, made, [upload(job_id, archive) for archive in archives])
                    _add_job_dir(body, job_dir(job_id), say)
                    return client.create_job(body)
            except AlreadyExists:
                if made.name:
                    raise
    raise AlreadyExists(f"There are already {_MAX_NAMES} jobs of this second's name; give the job a name.")


def job_names(made: Draft, clock: Callable[[], float] = time.time) -> Iterator[str]:
    """The name the user gave; otherwise names from the config and the local time, the first free one to be taken."""
    if made.name:
        yield made.name
        return
    stamp = time.strftime("%Y%m%d_%H%M%S", time.localtime(clock()))
    base = f"{_base_name(made)}_{stamp}"
    yield base
    yield from (f"{base}_{n}" for n in range(2, _MAX_NAMES + 1))


@contextmanager
def in_users_terms(made: Draft) -> Iterator[None]:
    """Turn a refusal's proto paths into lines of the config and names of flags."""
    try:
        yield
    except AlreadyExists:
        raise
    except InvalidArgument as error:
        if not any(v.field or v.unknown for v in error.violations):
            raise
        text = config_file.explain(error.violations, made.config, made.origins)
        raise InvalidArgument(f"The job is not valid; nothing was created.\n{text}") from error


def _base_name(made: Draft) -> str:
    stem = made.config.path.stem if made.config else ""
    package = made.module.partition(".")[0]
    candidates = ["" if stem.lower() in _GENERIC_NAMES else stem, package, stem, "job"]
    words = (re.sub(r"[^A-Za-z0-9]+", "_", candidate).strip("_") for candidate in candidates)
    name = next(filter(None, words))
    return (name if name[0].isalpha() else f"job_{name}")[:96]


def _make_job_dir_absolute(
    data: dict[str, Any], config: ConfigFile | None, origins: Mapping[str, str], here: Path
) -> None:
    """A flag's path counts from the current directory, a config's from the config's own."""
    job_dir = get(data, f"{_TRAINING}.jobDir")
    if not isinstance(job_dir, str) or not job_dir or "://" in job_dir:
        return
    base = config.path.absolute().parent if config and "job_dir" not in origins else here
    path = base / Path(job_dir).expanduser()
    put(data, f"{_TRAINING}.jobDir", str(Path(*_without_dots(path.parts))))


def _without_dots(parts: tuple[str, ...]) -> list[str]:
    kept: list[str] = []
    for part in parts:
        if part == ".." and len(kept) > 1:
            kept.pop()
        elif part != "..":
            kept.append(part)
    return kept


def _with_automatic_package(made: Draft, here: Path) -> Draft:
    """A package job that says where no package is gets the directory that its module's name means."""
    is_image = get(made.data, f"{_TRAINING}.masterConfig.imageUri")
    top = made.module.partition(".")[0]
    if is_image or not top.isidentifier() or get(made.data, f"{_TRAINING}.packageUris"):
        return made
    places = [made.config.path.absolute().parent] if made.config else []
    for place in (*places, here):
        if (place / top / "__init__.py").is_file():
            return replace(made, package_path=place / top, automatic=True)
    return made


def _archives(made: Draft, scratch: ExitStack, say: Say) -> list[packaging.Archive]:
    local = [Path(package).expanduser() for package in made.packages if "://" not in package]
    archives = [packaging.check_archive(path) for path in local]
    if made.package_path is not None:
        if made.automatic:
            shown = f"./{made.package_path.name}"
            say(f"Packaging {shown}, since the config names {made.module} and no packages.")
        else:
            say(f"Packaging {made.package_path}.")
        archives.append(scratch.enter_context(packaging.build(made.package_path)))
    return archives


def _add_packages(body: dict[str, Any], made: Draft, uploaded: list[str]) -> None:
    ready = [package for package in made.packages if "://" in package]
    if uploaded or ready:
        _put_copy(body, "packageUris", [*uploaded, *ready])


def _add_job_dir(body: dict[str, Any], job_dir: str, say: Say) -> None:
    if job_dir and not get(body, f"{_TRAINING}.jobDir"):
        _put_copy(body, "jobDir", job_dir)
        say(f"The job writes to {job_dir} (give --job-dir for another place).")


def _put_copy(body: dict[str, Any], name: str, value: object) -> None:
    """Set a field of the training input without changing the draft that shares it."""
    key = spelling(body, _TRAINING)
    inner = dict(body[key])
    inner[spelling(inner, name)] = value
    body[key] = inner
