"""Job submission: config and flags to one job on the server, or all violations at once.

All local checks come before anything is started, built, uploaded or created. The create request is the only one about
the job; an upload is refused before its body is read if the job id is taken.
"""

import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trainyard_cli.submission import config_file, machine_types, sweep
from trainyard_cli.submission.config_file import ConfigFile
from trainyard_cli.submission.flags import JobFlags, merge
from trainyard_cli.submission.foreign import custom_job_config, other_tools
from trainyard_cli.submission.job_data import JobData
from trainyard_cli.v1_client import V1Client
from trainyard_programs import archives, program_wheel, programs
from trainyard_programs.archives import Archive
from trainyard_programs.programs import Program
from trainyard_protocol.errors import MORE_VIOLATIONS, AlreadyExists, InvalidArgument
from trainyard_protocol.job.config import placeholders
from trainyard_protocol.job.config.validation import check_addresses, checked_job
from trainyard_protocol.job.machines import Catalog
from trainyard_protocol.job.parsing import parse_job
from trainyard_protocol.job.training_input import Job

_TRAINING = "trainingInput"
_GENERIC_NAMES = frozenset({"config", "conf", "job", "training"})
_MAX_NAMES = 100
_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")

Notify = Callable[[str], None]
Uploader = Callable[[str, Archive], str]
"""(job id, archive) -> address for packageUris."""


@dataclass(frozen=True, slots=True)
class JobDraft:
    """Job before it is sent: the merged config and flags, and the program to package.

    `name` is the command line's JOB or the config's jobId; may be empty. Default names then begin with `base`, which is
    made from the config where it is "". `relative_job_dir` is the job-dir as it was given, where it was a relative path
    of this machine; "" for any other.
    """

    data: JobData
    config: ConfigFile | None
    origins: Mapping[str, str]
    name: str = ""
    packages: tuple[str, ...] = ()
    program: Program | None = None
    automatic: bool = False
    base: str = ""
    relative_job_dir: str = ""

    def named(self, job_id: str) -> dict[str, Any]:
        """The body of a create request with that job id."""
        data = {key: value for key, value in self.data.body.items() if key != "job_id"}
        return custom_job_config.followed({**data, "jobId": job_id})

    @property
    def module(self) -> str:
        return self.data.module


def draft(
    source: Path | ConfigFile | None,
    flags: JobFlags,
    *,
    current_dir: Path,
    name: str = "",
    user_args: tuple[str, ...] = (),
) -> JobDraft:
    """Read the config and merge the flags into it. Relative paths of flags count from `current_dir`.

    Raises InvalidArgument when the config cannot be read or a local package does not exist.
    """
    config = config_file.load(source) if isinstance(source, Path) else source
    if config is not None:
        config = custom_job_config.translated(config, name)
    data, origins = merge(config.data if config else {}, flags)
    if data.get(_TRAINING) is None:
        data.put(_TRAINING, {})
    machine_types.add_cpus(data, origins, flags)
    if user_args:
        if not custom_job_config.add_arguments(data.body, user_args):
            data.put_training("args", list(user_args))
        origins["args"] = "USER_ARGS"
    if name:
        origins["job.job_id"] = "JOB"
    if flags.text("master_image_uri") and flags.text("runtime_version"):
        raise InvalidArgument("Only one of --master-image-uri, --runtime-version can be set.")
    for parameter in ("metric", "goal", "parallel_trials", "early_stopping", "sweep_style"):
        if flags.text(parameter) and not data.training("hyperparameters.params"):
            raise InvalidArgument(
                f"--{parameter.replace('_', '-')} is for a study: add --sweep NAME=VALUE,..., or hyperparameters to "
                "the config."
            )
    if rule := flags.text("early_stopping"):
        data.put_training("hyperparameters.enableTrialEarlyStopping", True)
        if rule == "median":  # the config's other fields are of ASHA
            data.put_training("hyperparameters.earlyStopping", {"rule": rule})
    if flags.text("metric") and not flags.text("goal"):
        _set_goal(data, flags.text("metric"), origins)
    if flags.text("scale_tier").lower() == "custom" and not data.machine_type:
        raise InvalidArgument("--master-machine-type is required if scale-tier is set to `CUSTOM`.")
    relative = _make_job_dir_absolute(data, config, origins, current_dir)
    for package in flags.packages:
        if "://" not in package:
            archives.check_archive(Path(package).expanduser())
    custom_job_config.check_flags(data.body, origins, flags)
    name = name or data.job_id
    draft = JobDraft(data, config, origins, name, flags.packages, relative_job_dir=relative)
    search = programs.Search(tuple(map(Path, flags.given.get("include", ()))), current_dir)
    if flags.text("package_path"):
        program = programs.find(Path(flags.text("package_path")).expanduser(), draft.module, search)
        draft = _with_program(draft, program)
    elif not flags.packages:
        draft = _with_automatic_program(draft, search)
    if draft.program is None:
        if search.include:
            raise InvalidArgument("--include adds a file to a program: name that with --package-path.")
        return draft
    passes_job_dir = draft.program.passes_job_dir or bool(flags.text("pass_job_dir"))
    program = replace(draft.program, passes_job_dir=passes_job_dir)
    return replace(_with_argument_style(draft, program), program=program)


def _set_goal(data: JobData, metric: str, origins: dict[str, str]) -> None:
    """Set the goal of --metric by its name, where neither --goal nor the config has one. Raises InvalidArgument where
    the name does not tell, or tells the opposite of the config."""
    from trainyard_protocol.lines.progress import lower_is_better

    lower, given = lower_is_better(metric), data.goal.upper()
    if given in ("", "GOAL_TYPE_UNSPECIFIED"):
        if lower is None:
            raise InvalidArgument(
                f"--metric {metric}: its name does not tell whether it is to be large or small. Add --goal maximize or "
                "--goal minimize."
            )
        data.goal = "MINIMIZE" if lower else "MAXIMIZE"
        origins["hyperparameters.goal"] = "--metric"
    elif lower is not None and given == ("MAXIMIZE" if lower else "MINIMIZE"):
        raise InvalidArgument(
            f"--metric {metric}: the config has the goal {given}, which does not fit its name. Add --goal maximize or "
            "--goal minimize."
        )


def lacks_program(draft: JobDraft) -> bool:
    """Whether the job has a placeholder in place of its image, or nothing to run at all."""
    image = draft.data.image
    return bool(placeholders.in_image(image)) if image else not (draft.module or draft.packages)


def check_locally(draft: JobDraft, catalog: Catalog | None) -> Job:
    """Check a job without the server. Raises InvalidArgument with every violation, located in flags and file.

    Without a catalog only the schema and placeholders are checked.
    """
    body = draft.named(draft.name or "job")
    with in_users_terms(draft):
        if catalog is not None:
            return checked_job(body, catalog)
        job = parse_job(body)
        check_addresses(job.training_input)
        return job


def submit(
    draft: JobDraft,
    client: V1Client,
    *,
    upload: Uploader,
    notify: Notify,
    clock: Callable[[], float] = time.time,
    if_exists: Callable[[Mapping[str, Any]], dict[str, Any]] | None = None,
) -> dict[str, Any]:
    """Package, upload, create. Returns the created job.

    A draft without a name gets one from the config and the time. `if_exists` gets the training input that was to be
    created, where the server has a job of that name, and returns that job, or raises; without it AlreadyExists is
    raised.
    """
    with ExitStack() as scratch:
        built: list[Archive] | None = None
        for job_id in job_names(draft, clock):
            body = draft.named(job_id)
            try:
                with in_users_terms(draft):
                    if built is None:
                        built = _archives(draft, scratch, notify)
                    sent = _with_packages(body, draft, [upload(job_id, archive) for archive in built])
                    return client.create_job(custom_job_config.followed(sent))
            except AlreadyExists:
                if if_exists is not None and built is not None:
                    return if_exists(_requested(body, draft, built))
                if draft.name:
                    raise
    raise AlreadyExists(f"{_MAX_NAMES} jobs with the default name of this second exist. Give the job a name.")


def job_names(draft: JobDraft, clock: Callable[[], float] = time.time) -> Iterator[str]:
    """Candidate job ids: the user's, or else names from the config and the local time, to be tried in order."""
    if draft.name:
        yield draft.name
        return
    stamp = time.strftime("%Y%m%d_%H%M%S", time.localtime(clock()))
    base = f"{draft.base or _base_name(draft)}_{stamp}"
    yield base
    yield from (f"{base}_{n}" for n in range(2, _MAX_NAMES + 1))


@contextmanager
def in_users_terms(draft: JobDraft) -> Iterator[None]:
    """Translate proto paths in InvalidArgument into lines of the config and names of flags."""
    try:
        yield
    except AlreadyExists:
        raise
    except InvalidArgument as error:
        if not any(v.field or v.unknown for v in error.violations):
            raise
        text = config_file.explain(error.violations, draft.config, draft.origins)
        text += f"\n{MORE_VIOLATIONS}" if error.more else ""
        raise InvalidArgument(f"The job is not valid; nothing was created.\n{text}") from error


def _base_name(draft: JobDraft) -> str:
    stem = draft.config.path.stem if draft.config else ""
    package = draft.module.partition(".")[0]
    display_name = str(draft.data.training("customJob.displayName") or "")
    candidates = [display_name, "" if stem.lower() in _GENERIC_NAMES else stem, package, stem, "job"]
    words = (re.sub(r"[^A-Za-z0-9]+", "_", candidate).strip("_") for candidate in candidates)
    name = next(filter(None, words))
    return (name if name[0].isalpha() else f"job_{name}")[:96]


def _make_job_dir_absolute(
    data: JobData, config: ConfigFile | None, origins: Mapping[str, str], current_dir: Path
) -> str:
    """Resolve jobDir: a flag's from the current directory, a config's from the config's directory. Returns the one that
    was given, if that was a relative path."""
    job_dir = data.training("jobDir")
    if not isinstance(job_dir, str) or not job_dir or _ADDRESS.match(job_dir):
        return ""
    base = config.path.absolute().parent if config and "job_dir" not in origins else current_dir
    given = Path(job_dir).expanduser()
    data.job_dir = str(Path(*_without_dots((base / given).parts)))
    return "" if given.is_absolute() else job_dir


def _without_dots(parts: tuple[str, ...]) -> list[str]:
    result: list[str] = []
    for part in parts:
        if part == ".." and len(result) > 1:
            result.pop()
        elif part != "..":
            result.append(part)
    return result


def _with_automatic_program(draft: JobDraft, search: programs.Search) -> JobDraft:
    """Give a package job without packages the program of its module, if there is one beside the config."""
    if draft.data.image or draft.data.training("packageUris"):
        return draft
    config_dir = [draft.config.path.absolute().parent] if draft.config else []
    program = programs.beside((*config_dir, search.current_dir), draft.module, search)
    return draft if program is None else _with_program(replace(draft, automatic=True), program)


def _with_program(draft: JobDraft, program: Program) -> JobDraft:
    """The job of a program, whose module it runs."""
    data = JobData(draft.data.body)
    data.module = program.module
    return replace(draft, data=data, program=program)


def _with_argument_style(draft: JobDraft, program: Program) -> JobDraft:
    """The study as its program reads arguments, where neither a flag nor the config says how."""
    if not draft.data.training("hyperparameters.params") or draft.data.training("hyperparameters.argumentStyle"):
        return draft
    style = sweep.style_of(program.file.read_text(encoding="utf-8", errors="replace"))
    if not style:
        return draft
    data = JobData(draft.data.body)
    data.put_training("hyperparameters.argumentStyle", style)
    return replace(draft, data=data)


def _archives(draft: JobDraft, scratch: ExitStack, notify: Notify) -> list[Archive]:
    local = [Path(package).expanduser() for package in draft.packages if "://" not in package]
    packages = [archives.check_archive(path) for path in local]
    if draft.program is not None:
        for line in packaging_lines(draft, draft.program):
            notify(line)
        packages.append(scratch.enter_context(program_wheel.build(draft.program)))
    return packages


def packaging_lines(draft: JobDraft, program: Program, *, names_all: bool = False) -> Iterator[str]:
    """Messages about the packaged program: its files, what runs, and what it does not get. With `names_all` they name
    hidden files that are left out too."""
    if draft.automatic:
        yield f"Packaging ./{program.path.name}, because the config has {program.module} and no packages."
    yield from program.summary(names_all=names_all)
    if batch_script := other_tools.note(program.path):
        yield batch_script
    if program.choice:
        yield f"The program is {program.choice} (--module-name names another)."
    if draft.data.job_dir and not program.passes_job_dir:
        yield "It finds the job-dir in TRAINYARD_JOB_DIR, and gets no argument --job-dir (--pass-job-dir passes it)."
    yield from program.notes
    beside_config = [draft.config.path.absolute().parent] if draft.config else []
    yield from programs.named_and_left_out(program, Path.cwd(), *beside_config)


def _requested(body: dict[str, Any], draft: JobDraft, built: list[Archive]) -> Mapping[str, Any]:
    """The training input that was to be created, each built package by its hash."""
    sent = _with_packages(body, draft, [f"staging://{archive.sha256}/{archive.path.name}" for archive in built])
    requested: Mapping[str, Any] = parse_job(custom_job_config.followed(sent)).canonical()[_TRAINING]
    return requested


def _with_packages(body: dict[str, Any], draft: JobDraft, uploaded: list[str]) -> dict[str, Any]:
    ready = [package for package in draft.packages if "://" in package]
    job = JobData(body)
    if uploaded or ready:
        job.put_training("packageUris", [*uploaded, *ready])
    return job.body
