"""Quota file of a site: what each project may use at the same time, which images its jobs may bring, how projects
share, and how long their jobs are kept.

    default: {vcpus: 64, gpus: 4, runningJobs: 20, maxPriority: 100}
    projects:
      vision: {vcpus: 128, accelerators: {NVIDIA_TESLA_T4: 2}, images: ["gcr.io/vision/*"], share: 2, preemptible: true}
      drafts: {keepJobs: 14d}
    fairShare: {halfLife: 7d}
    bands: {batch: {maxRunningTime: 1d}}

The entries of a project override the default ones individually; `null` removes one.
"""

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import Annotated

from pydantic import Field, ValidationError

from trainyard_protocol.errors import FailedPrecondition
from trainyard_protocol.job.config.yaml_file import entry_problem, read_yaml_file
from trainyard_server.config.retention_entries import RetentionEntries
from trainyard_server.config.sharing_entries import ProjectSharingEntries, SharingEntries
from trainyard_server.domain.images import AllowedImages
from trainyard_server.domain.retention import ProjectRetentions
from trainyard_server.domain.scheduling.quotas import GPUS, JOBS, VCPUS, Quotas
from trainyard_server.domain.scheduling.sharing import Account, ShareStanding

logger = logging.getLogger(__name__)

_Limit = Annotated[int, Field(ge=0)] | None
_Pattern = Annotated[str, Field(pattern=r"^[A-Za-z0-9*?._:/@\[\]-]+$")]


class _Limits(RetentionEntries, ProjectSharingEntries):
    running_jobs: _Limit = None
    vcpus: _Limit = None
    gpus: _Limit = None
    accelerators: dict[str, _Limit] = Field(default_factory=dict)
    images: list[_Pattern] | None = None

    def named(self) -> dict[str, int | None]:
        """The limits that the file sets, by name."""
        names = {"running_jobs": JOBS, "vcpus": VCPUS, "gpus": GPUS}
        plain = {name: getattr(self, key) for key, name in names.items() if key in self.model_fields_set}
        return plain | {kind.upper(): limit for kind, limit in self.accelerators.items()}


class _File(SharingEntries):
    default: _Limits = _Limits()
    projects: dict[str, _Limits] = Field(default_factory=dict)


class QuotaFile:
    """The quota file of a server, and what is in force: its last valid content."""

    def __init__(self, path: Path | None) -> None:
        """Raises InvalidArgument with file, line and entry."""
        self._path = path
        self._lock = Lock()
        self.quotas, self.images = load_quotas(path)

    def set_standings(self, standings: Mapping[Account, ShareStanding], over_budget: frozenset[str]) -> None:
        """Let the queue be ordered by these standings."""
        with self._lock:
            sharing = replace(self.quotas.sharing, standings=standings, over_budget=over_budget)
            if sharing != self.quotas.sharing:
                self.quotas = replace(self.quotas, sharing=sharing)

    def reload(self) -> Quotas:
        """Read the file again and put its quotas in force. Raises InvalidArgument, and FailedPrecondition without a
        file; the quotas then stay as they were."""
        if self._path is None:
            raise FailedPrecondition("The server was started without --quotas, so it has no file to read again.")
        quotas, images = load_quotas(self._path)
        with self._lock:
            before = self.quotas.sharing
            sharing = replace(quotas.sharing, standings=before.standings, over_budget=before.over_budget)
            self.quotas, self.images = replace(quotas, sharing=sharing), images
        logger.info("Quotas of %s are in force", self._path.resolve())
        return self.quotas


def load_quotas(path: Path | None) -> tuple[Quotas, AllowedImages]:
    """The content of a file; without a file nothing is limited. Raises InvalidArgument with file, line and entry."""
    if path is None:
        return Quotas(), AllowedImages()
    path = path.resolve()  # messages name the file that a link leads to
    text, value = read_yaml_file(path)
    try:
        file = _File.model_validate(value)
    except ValidationError as error:
        raise entry_problem(path, text, _File, error) from error
    default = file.default.named()
    sharing = file.sharing(file.default, file.projects)
    projects = {name: _limits(default | own.named()) for name, own in file.projects.items()}
    own = {
        name: (entries if "keep_jobs" in entries.model_fields_set else file.default).keep_jobs
        for name, entries in file.projects.items()
    }
    retention = ProjectRetentions(file.default.keep_jobs, own)
    quotas = Quotas(_limits(default), projects, sharing, retention)
    images = {
        name: own.images if "images" in own.model_fields_set else file.default.images
        for name, own in file.projects.items()
    }
    return quotas, AllowedImages(file.default.images, images)


def _limits(named: dict[str, int | None]) -> dict[str, int]:
    return {name: limit for name, limit in named.items() if limit is not None}
