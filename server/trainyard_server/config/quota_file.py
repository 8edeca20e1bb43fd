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

from pydantic import ValidationError

from trainyard_protocol.errors import FailedPrecondition
from trainyard_protocol.job.config.yaml_file import entry_problem, read_yaml_file
from trainyard_protocol.job.keys.scheduling import Band
from trainyard_server.config.quota_entries import SiteEntries
from trainyard_server.domain.images import AllowedImages
from trainyard_server.domain.retention import ProjectRetentions
from trainyard_server.domain.scheduling.quotas import Quotas
from trainyard_server.domain.scheduling.sharing import Account, ShareStanding, Sharing

logger = logging.getLogger(__name__)


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
        file = SiteEntries.model_validate(value)
    except ValidationError as error:
        raise entry_problem(path, text, SiteEntries, error) from error
    default = file.default
    projects = {name: own.over(default) for name, own in file.projects.items()}
    sharing = Sharing(
        fair_share=None if file.fair_share is None else file.fair_share.rules(),
        default=default.rules(),
        projects={name: entries.rules() for name, entries in projects.items()},
        run_limits={
            Band(name.upper()): band.max_running_time
            for name, band in file.bands.items()
            if band.max_running_time is not None
        },
        overdue_after=file.overdue_after,
        min_run=file.preemption.min_run,
        checkpoint_wait=file.preemption.checkpoint_wait,
    )
    limits = {name: entries.limits() for name, entries in projects.items()}
    retention = ProjectRetentions(default.keep_jobs, {name: entries.keep_jobs for name, entries in projects.items()})
    images = AllowedImages(default.images, {name: entries.images for name, entries in projects.items()})
    return Quotas(default.limits(), limits, sharing, retention), images
