"""Quota file of a site: what each project may use at the same time.

    default: {vcpus: 64, gpus: 4, runningJobs: 20}
    projects:
      vision: {vcpus: 128, accelerators: {NVIDIA_TESLA_T4: 2}}

The limits of a project override the default ones individually; `null` removes one.
"""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from trainyard_protocol.errors import FailedPrecondition, InvalidArgument
from trainyard_server.domain.scheduling.quotas import GPUS, JOBS, VCPUS, Quotas

logger = logging.getLogger(__name__)

_Limit = Annotated[int, Field(ge=0)] | None


class _Data(BaseModel):
    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True, strict=True
    )


class _Limits(_Data):
    running_jobs: _Limit = None
    vcpus: _Limit = None
    gpus: _Limit = None
    accelerators: dict[str, _Limit] = {}

    def named(self) -> dict[str, int | None]:
        """The limits that the file sets, by name."""
        names = {"running_jobs": JOBS, "vcpus": VCPUS, "gpus": GPUS}
        plain = {name: getattr(self, key) for key, name in names.items() if key in self.model_fields_set}
        return plain | {kind.upper(): limit for kind, limit in self.accelerators.items()}


class _File(_Data):
    default: _Limits = _Limits()
    projects: dict[str, _Limits] = {}


class QuotaFile:
    """The quota file of a server, and the quotas in force: those of its last valid content."""

    def __init__(self, path: Path | None) -> None:
        """Raises InvalidArgument with file, line and entry."""
        self._path = path
        self.quotas = load_quotas(path)

    def reload(self) -> Quotas:
        """Read the file again and put its quotas in force. Raises InvalidArgument, and FailedPrecondition without a
        file; the quotas then stay as they were."""
        if self._path is None:
            raise FailedPrecondition(
                "The server was started without --quotas, so it has no file to read again."
            )
        self.quotas = load_quotas(self._path)
        logger.info("Quotas of %s are in force", self._path.resolve())
        return self.quotas


def load_quotas(path: Path | None) -> Quotas:
    """The quotas of a file; without a file, none. Raises InvalidArgument with file, line and entry."""
    if path is None:
        return Quotas()
    path = path.resolve()  # messages name the file that a link leads to
    try:
        text = path.read_text(encoding="utf-8")
        file = _File.model_validate(yaml.safe_load(text) or {})
    except OSError as error:
        raise InvalidArgument(f"{path}: cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise InvalidArgument(f"{path}: is not UTF-8 text.") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        position = "" if mark is None else f":{mark.line + 1}"
        problem = getattr(error, "problem", None) or error
        raise InvalidArgument(f"{path}{position}: is not YAML: {problem}.") from error
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        entry = ".".join(str(step) for step in first["loc"])
        line = _line(text, first["loc"])
        raise InvalidArgument(f"{path}:{line}: {entry or 'the file'}: {first['msg']}.") from error
    default = file.default.named()
    return Quotas(
        _limits(default), {name: _limits(default | own.named()) for name, own in file.projects.items()}
    )


def _limits(named: dict[str, int | None]) -> dict[str, int]:
    return {name: limit for name, limit in named.items() if limit is not None}


def _line(text: str, steps: Sequence[int | str]) -> int:
    """The line of the entry, from 1; for a missing entry, of its parent."""
    node, line = yaml.compose(text, yaml.SafeLoader), 1
    for step in steps:
        pairs = node.value if isinstance(node, yaml.MappingNode) else ()
        pair = next(((key, value) for key, value in pairs if key.value == str(step)), None)
        if pair is None:
            break
        line, node = pair[0].start_mark.line + 1, pair[1]
    return line
