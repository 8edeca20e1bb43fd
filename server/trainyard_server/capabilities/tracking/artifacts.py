"""Artifacts of MLflow's runs, read through the server: files of the job-dir, below `mlflow`."""

from typing import Any, NamedTuple

from trainyard_protocol.answers.files import FileEntry
from trainyard_protocol.errors import InvalidArgument, NotFound, PermissionDenied, Violation
from trainyard_server.capabilities.tracking.notes import NotKept
from trainyard_server.capabilities.tracking.targets import RunAccess, RunTarget, artifact_parts, run_id
from trainyard_server.capabilities.tracking.tracking import Tracking
from trainyard_server.context import Backend
from trainyard_server.domain.access.permissions import Caller
from trainyard_server.services.measurements.job_files import JobFiles
from trainyard_server.storage.job_files.tree import Content

MAX_FILES = 10_000
"""Limit of the files that a list has."""

_NO_RUN = "none"  # of the location of an experiment

Json = dict[str, Any]


class _Place(NamedTuple):
    """A path in a job-dir."""

    project: str
    job_id: str
    path: str


class TrackedArtifacts:
    def __init__(self, backend: Backend, access: RunAccess, files: JobFiles, tracking: Tracking) -> None:
        self._backend = backend
        self._access = access
        self._files = files
        self._tracking = tracking

    def of_run(self, caller: Caller, secret: str, wanted: str, path: str) -> Json:
        """The files of a run's directory, with their paths below the run's artifacts. Raises NotFound and what reading
        the job-dir raises."""
        with self._backend.store.read() as reader:
            target = self._access.visible(reader, caller, wanted)
            own_key = self._access.own_key(reader, secret) if caller.is_run else None
            root = self._access.artifact_uri(target, own_key)
            place = self._place(target, path)
        before = f"{path.strip('/')}/" if path.strip("/") else ""
        return {"root_uri": root, "files": [_file(entry, before) for entry in self._entries(place)]}

    def listing(self, caller: Caller, path: str) -> Json:
        """The files of a directory `job-12/DIRECTORY`, by their names alone. Raises what `of_run` raises."""
        wanted, _, below = path.strip("/").partition("/")
        if wanted in ("", _NO_RUN):
            return {"files": []}
        with self._backend.store.read() as reader:
            place = self._place(self._access.visible(reader, caller, wanted), below)
        return {"files": [_file(entry, "") for entry in self._entries(place)]}

    def content(self, caller: Caller, path: str) -> Content:
        """The content of a file `job-12/PATH`. Raises what `of_run` raises."""
        wanted, _, below = path.strip("/").partition("/")
        if not below:
            raise InvalidArgument(Violation("path", f"is that of a file of a run, such as {run_id(12)}/model.txt."))
        with self._backend.store.read() as reader:
            place = self._place(self._access.visible(reader, caller, wanted), below)
        if place is None:
            raise NotFound("The job has no job-dir, and so no artifacts.")
        return self._files.content(*place)

    def refuse(self, caller: Caller, secret: str, path: str) -> None:
        """Answer a program whose artifacts cannot be kept: its job has no job-dir. Raises PermissionDenied for
        anybody else."""
        if not caller.is_run:
            raise PermissionDenied(
                "Artifacts are written by the program of a job, to its job-dir. People read them; they write to the "
                "job-dir itself."
            )
        wanted = path.strip("/").partition("/")[0]
        self._tracking.note(secret, NotKept.ARTIFACTS, "" if wanted == _NO_RUN else wanted)

    def _place(self, target: RunTarget, path: str) -> _Place | None:
        """None where the job has no job-dir."""
        if not self._access.job_dir(target.job):
            return None
        parts = [*artifact_parts(target), *([path.strip("/")] if path.strip("/") else [])]
        return _Place(target.job.project, target.job.job_id, "/".join(parts))

    def _entries(self, place: _Place | None) -> list[FileEntry]:
        """The entries of a directory; none of one that does not exist, and of a file."""
        if place is None:
            return []
        try:
            if self._files.entry(*place).kind != "directory":
                return []
            entries, token = list[FileEntry](), ""
            while len(entries) < MAX_FILES:
                page = self._files.listing(*place, page_token=token)
                entries += page.entries
                token = page.next_page_token
                if not token:
                    break
        except NotFound:
            return []
        return entries


def _file(entry: FileEntry, before: str) -> Json:
    is_dir = entry.kind == "directory"
    size = {} if is_dir or entry.size is None else {"file_size": entry.size}
    return {"path": f"{before}{entry.name}", "is_dir": is_dir, **size}
