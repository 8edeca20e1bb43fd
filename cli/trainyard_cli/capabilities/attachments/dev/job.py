"""The job of `jobs dev`: it waits, with the packages that the training would have."""

import getpass
import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from trainyard_cli.capabilities.attachments.dev import waiter
from trainyard_cli.capabilities.attachments.dev.tree import CodeDirectory
from trainyard_cli.submission.config_file import ConfigFile
from trainyard_cli.submission.flags import JobFlags
from trainyard_cli.submission.job_data import ROLES, JobData
from trainyard_cli.submission.submit import JobDraft
from trainyard_programs import program_wheel, programs
from trainyard_protocol.errors import InvalidArgument

LABEL = "trainyard-dev"
_STALL_LIMIT = "trainyard_stall_limit"
_A_WEEK_S = 604_800

_MODULE = "trainyard_dev"
_WAITER = "waiter.py"


@dataclass(frozen=True, slots=True)
class DevJob:
    """A job that waits. `flags` and `arguments` replace those of the command line; `change` is for its draft."""

    flags: JobFlags
    arguments: tuple[str, ...]
    user: str = field(default_factory=getpass.getuser)

    def change(self, draft: JobDraft) -> JobDraft:
        """Give the job its default name and, with an image, the waiting program in place of the image's."""
        data = JobData(draft.data.body)
        if data.image and not draft.module:
            data.put_training("args", [])
            for role in ("master", *filter(data.has_replicas, ROLES)):
                data.put_training(f"{role}Config.containerCommand", ["python3", "-c", _source(), *self.arguments])
                data.put_training(f"{role}Config.containerArgs", [])
        user = re.sub(r"[^A-Za-z0-9]+", "_", self.user).strip("_")[:64]
        return replace(draft, data=data, base=f"dev_{user}" if user else "dev")


@contextmanager
def dev_job(
    config: ConfigFile | None, flags: JobFlags, code: CodeDirectory, *, idle_s: float, notebook: bool
) -> Iterator[DevJob]:
    """The job that waits, while its packages are there to be uploaded. An image has its own packages, unless the config
    installs others in it. Raises InvalidArgument for a study, and for declarations that cannot be read."""
    data = JobData(config.data if config is not None else {})
    if data.training("hyperparameters"):
        raise InvalidArgument(
            "The config is that of a study, and `jobs dev` is for one training: remove hyperparameters."
        )
    given: dict[str, Any] = {
        name: value for name, value in flags.given.items() if name not in ("package_path", "include")
    }
    given["labels"] = ({**_labels(data, flags), LABEL: "true", _STALL_LIMIT: str(_A_WEEK_S)},)
    given["enable_web_access"] = True
    has_image = data.image or flags.text("master_image_uri") or flags.text("build")
    installs = data.module or data.training("packageUris") or flags.packages
    with ExitStack() as scratch:
        if installs or not has_image:
            program = programs.waiting(code.project, _MODULE, _WAITER, ("jupyterlab",) if notebook else ())
            wheel = scratch.enter_context(program_wheel.build(program, {_WAITER: _source().encode()}))
            others = flags.packages or tuple(map(str, data.training("packageUris") or ()))
            given |= {"packages": ((*others, str(wheel.path)),), "module_name": _MODULE}
        yield DevJob(JobFlags(given), (f"{idle_s:g}",))


def is_dev_job(job: Mapping[str, Any]) -> bool:
    return bool(job.get("labels", {}).get(LABEL) == "true")


def _labels(data: JobData, flags: JobFlags) -> dict[str, str]:
    """The labels of the flags, which replace the config's."""
    pairs = flags.given.get("labels") or (data.get("labels") or {},)
    return {key: text for labels in pairs if isinstance(labels, Mapping) for key, text in labels.items()}


def _source() -> str:
    return Path(waiter.__file__).read_text(encoding="utf-8")
