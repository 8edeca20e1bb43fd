"""Messages about the config of a job and about its program, before it is submitted and after."""

from typing import Any, Literal

from pydantic import ConfigDict, Field
from pydantic.alias_generators import to_camel

from trainyard_protocol.answers.why import CandidateView
from trainyard_protocol.job.config.text import Format
from trainyard_protocol.message import Wire

Source = Literal["config", "project", "job_id", "args", "job_dir", "labels", "packages"]
"""The place where a value was given: in the config's text or in a field of the request."""


class ConfigCheckRequest(Wire):
    """The text of a config, and fields that override it as flags do.

    `args` is a list, or shell words as after `--` on the command line. Keys are camelCase or snake_case.
    """

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True)

    config: str = ""
    format: Format | None = None
    job_id: str = ""
    job_dir: str = ""
    args: tuple[str, ...] | str = ()
    labels: dict[str, str] = Field(default_factory=dict)
    package_uris: tuple[str, ...] = ()


class Problem(Wire):
    """An error or warning about a config.

    `line`, `column` and `end_column` (exclusive) count from 1, in characters; None for a problem outside of the text.
    `field` is the proto path.
    """

    message: str
    severity: Literal["error", "warning"] = "error"
    source: Source = "config"
    field: str = ""
    line: int | None = None
    column: int | None = None
    end_column: int | None = None


class ReplicaGroup(Wire):
    """The replicas of one task type, with the resources of each. `task` is the name of the first."""

    task_type: str
    task: str
    count: int
    machine_type: str
    vcpus: int
    memory_bytes: int
    accelerator_type: str = ""
    accelerator_count: int = 0
    image_uri: str = ""


class Outlook(Wire):
    """Whether the job would start now, with the free and the missing resources of each agent."""

    starts: bool
    summary: str
    agents: tuple[CandidateView, ...] = ()


class ConfigCheck(Wire):
    """The result of a check. `job` (the v1 Job that would be created), `gang`, `args` (all of the program's) and
    `outlook` are set only if `ok`. `suggested_id` is an unused job id, if the requested one is taken."""

    ok: bool
    problems: tuple[Problem, ...] = ()
    job: dict[str, Any] | None = None
    gang: tuple[ReplicaGroup, ...] = ()
    args: tuple[str, ...] = ()
    outlook: Outlook | None = None
    suggested_id: str = ""
    notes: tuple[str, ...] = ()


class CommandView(Wire):
    """A command line for a POSIX shell."""

    name: str
    title: str
    command: str


class CloneView(Wire):
    """The initial values of the form for a new job: the text of the config, and fields beside it. `args_text` has the
    arguments as shell words."""

    job_id: str
    config: str
    args: tuple[str, ...] = ()
    args_text: str = ""
    job_dir: str = ""
    labels: dict[str, str] = Field(default_factory=dict)


class JobConfig(Wire):
    """A job's config as submitted and as resolved.

    `sent` has the trainingInput and labels of the v1 job; the texts are YAML in the API's order of keys.
    `filled_lines` (from 1) are the lines of `resolved_text` that were not submitted: the machines of the tier,
    inherited images, defaults.
    """

    sent: dict[str, Any]
    sent_text: str
    resolved: dict[str, Any]
    resolved_text: str
    filled_lines: tuple[int, ...]
    gang: tuple[ReplicaGroup, ...]
    primary: Literal["chief", "master"]
    args: tuple[str, ...]
    job_dir: str
    labels: dict[str, str]
    commands: tuple[CommandView, ...]
    clone: CloneView


class SuggestedId(Wire):
    job_id: str


class SentFile(Wire):
    """A file of a program. `name` is its path in the program, `size` bytes."""

    name: str
    size: int


class FileLeftOut(Wire):
    """A file or directory that was sent, and is not part of the program."""

    name: str
    reason: str


class PackedProgram(Wire):
    """A program that the server has packed: `uri` and `module` are the packageUris and pythonModule of its job.

    `problem` says why it could not run, and only `entries` is set then: what could start a program. `entry` is the one
    that was chosen. `command` starts it in `directory`, after the installation of what the files `installs` declare.
    `files` are the first of `file_count`.
    """

    problem: str = ""
    entries: tuple[str, ...] = ()
    entry: str = ""
    uri: str = ""
    module: str = ""
    command: tuple[str, ...] = ()
    directory: str = ""
    files: tuple[SentFile, ...] = ()
    file_count: int = 0
    bytes: int = 0
    left_out: tuple[FileLeftOut, ...] = ()
    installs: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


class MachineChoice(Wire):
    """A machine that a replica can have on one of the agents. `accelerator_type` is set where the config has to ask for
    the accelerators of `accelerator_count` itself."""

    machine_type: str
    title: str
    accelerator_type: str = ""
    accelerator_count: int = 0
