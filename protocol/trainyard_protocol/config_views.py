"""What is asked and said of configs (`configs:check`, `.../config`): the dashboard's editor and its config page."""

from typing import Any, Literal

from pydantic import ConfigDict, Field
from pydantic.alias_generators import to_camel

from trainyard_protocol.config_text import Format
from trainyard_protocol.sync import Wire
from trainyard_protocol.views import FitView

Source = Literal["config", "project", "job_id", "args", "job_dir", "labels", "packages"]
"""Where a value was given: in the text, or beside it."""


class ConfigCheckRequest(Wire):
    """A config's text and what was given beside it, which replaces what the text says, as flags do.

    `args` is a list, or shell words as they stand after `--` on the command line. Keys in camelCase or snake_case.
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
    """One thing that is wrong (an error), or worth knowing before the job is sent (a warning).

    `line`, `column` and `end_column` (without) count characters from 1; None where the text is not what is wrong, or
    nothing in it is. `field` is the proto path.
    """

    message: str
    severity: Literal["error", "warning"] = "error"
    source: Source = "config"
    field: str = ""
    line: int | None = None
    column: int | None = None
    end_column: int | None = None


class ReplicaGroup(Wire):
    """The replicas of one task type, which are all alike; what each of them asks for. `task` is the first's name."""

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
    """Whether the job would start now, and of each agent what is free there and what the job lacks."""

    starts: bool
    summary: str
    agents: tuple[FitView, ...] = ()


class ConfigCheck(Wire):
    """`job` is the v1 Job as it would be created; it, `gang`, `args` (all that the program is given) and `outlook` are
    there only for one that is `ok`. `suggested_id` is free in the project, where the id that was asked for is taken."""

    ok: bool
    problems: tuple[Problem, ...] = ()
    job: dict[str, Any] | None = None
    gang: tuple[ReplicaGroup, ...] = ()
    args: tuple[str, ...] = ()
    outlook: Outlook | None = None
    suggested_id: str = ""
    notes: tuple[str, ...] = ()


class CommandView(Wire):
    """A command line that can be pasted into a POSIX shell."""

    name: str
    title: str
    command: str


class CloneView(Wire):
    """What the form of a new job is filled with: the config's text, and what stands in fields of their own.
    `args_text` is the arguments as shell words."""

    job_id: str
    config: str
    args: tuple[str, ...] = ()
    args_text: str = ""
    job_dir: str = ""
    labels: dict[str, str] = Field(default_factory=dict)


class JobConfig(Wire):
    """What a job was sent as, and what became of it.

    `sent` is the v1 job's trainingInput and labels; the texts are YAML in the API's order of keys.
    `filled_lines` (from 1) are the lines of `resolved_text` that were not sent: the tier's machines, inherited
    images, defaults.
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
