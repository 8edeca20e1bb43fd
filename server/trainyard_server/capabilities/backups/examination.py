"""Examination of stored data: reads all of it, and compares it with its digests.

`trainyard rehearse` asks for it on a backup. It may run on a live service: what is replaced or removed meanwhile is no
fault.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from trainyard_protocol.answers.stored.backups import ExaminationView, Examined
from trainyard_protocol.errors import NotFound, TrainyardError
from trainyard_protocol.states import FINAL_JOB_STATES
from trainyard_protocol.wire.logs import LogDigest
from trainyard_server.capabilities.backups.options import BackupOptions
from trainyard_server.context import Backend
from trainyard_server.services.views.job_details import JobDetails
from trainyard_server.storage.db.queries.reader import JobEnd
from trainyard_server.storage.db.tables import audit
from trainyard_server.storage.db.tables.audit import AuditQuery
from trainyard_server.storage.logs.filter import LogFilter
from trainyard_server.storage.streams import Stream
from trainyard_server.storage.uploads import SCHEME

_PAGE = 500
_SHOWN = 20
"""Faults of one kind that are listed."""

Results = Iterator[str]
"""A text for each thing that was examined: its fault, or ""."""


class Examination:
    def __init__(self, backend: Backend, details: JobDetails, further: Mapping[str, Callable[[], Results]]) -> None:
        """`further` examines what capabilities store."""
        self._backend = backend
        self._details = details
        self._further = further

    def run(self) -> ExaminationView:
        """Examine everything. It reads all logs and objects, so it may be minutes."""
        parts: dict[str, Callable[[], Results]] = {
            "jobs": self._jobs,
            "logs": self._logs,
            "packages": self._packages,
            "rows of the audit": self._audit,
            **self._further,
        }
        if self._backend.settings.of(BackupOptions).storage_dir is not None:
            parts["objects"] = self._objects
        return ExaminationView(examined=tuple(_examined(what, results()) for what, results in parts.items()))

    def _jobs(self) -> Results:
        """Each job, as its page shows it."""
        for job in self._all_jobs():
            try:
                self._details.detail(job.project, job.job_id)
            except NotFound:
                continue  # deleted meanwhile
            except Exception as error:  # noqa: BLE001 - whatever it is, it is a fault
                yield f"{_name(job)} cannot be read: {error}"
            else:
                yield ""

    def _logs(self) -> Results:
        """Each log of a replica that has ended, against the digest of its agent."""
        for job in self._all_jobs():
            yield from self._logs_of(job)

    def _logs_of(self, job: JobEnd) -> Results:
        with self._backend.store.read() as reader:
            runs = {run.run_id: run.number for run in reader.runs(job.key)}
            replicas = reader.replicas(list(runs))
            damaged = {(event.run, event.task) for event in reader.events(job.key) if event.kind == "log-damaged"}
        for replica in replicas:
            number = runs[replica.run_id]
            if replica.log_lines is None or (number, replica.task) in damaged:
                continue
            name = f"The log of {replica.task} in run {number} of {_name(job)}"
            try:
                digest = self._digest(job, Stream(number, replica.task))
            except OSError as error:
                if self._is_there(job):
                    yield f"{name} cannot be read: {error.strerror}"
                continue
            is_whole = digest == replica.log_sha256 or not self._is_there(job)
            yield "" if is_whole else f"{name} does not have the digest that its agent computed"

    def _digest(self, job: JobEnd, stream: Stream) -> str:
        """The digest of a stream as the disk has it, whatever was computed before."""
        digest = LogDigest(chain=None)
        log_filter = LogFilter(frozenset((stream.task,)), run=stream.run)
        for entry in self._backend.logs.entries(job.project, job.job_id, log_filter):
            digest.add(entry.stream, entry.text)
        return digest.hexdigest()

    def _is_there(self, job: JobEnd) -> bool:
        """Whether the job was not removed meanwhile."""
        with self._backend.store.read() as reader:
            return reader.find_job(job.key) is not None

    def _packages(self) -> Results:
        """Each package that a job which has not ended refers to, against the digest that is its name."""
        with self._backend.store.read() as reader:
            rows = [row for row in reader.unfinished(with_studies=True) if row.state not in FINAL_JOB_STATES]
        uris = {uri: row.job_id for row in rows for uri in row.training_input.get("packageUris", ())}
        for uri, job_id in sorted(uris.items()):
            if uri.startswith(SCHEME):
                sha256, _, filename = uri.removeprefix(SCHEME).partition("/")
                try:
                    digest = _sha256(self._backend.uploads.path(sha256, filename))
                except (TrainyardError, OSError) as error:
                    yield f"The package {filename} of the job {job_id} cannot be read: {error}"
                    continue
                yield "" if digest == sha256 else f"The package {filename} of the job {job_id} has another digest"

    def _audit(self) -> Results:
        below: int | None = None
        while True:
            with self._backend.store.read() as reader:
                entries = audit.entries(reader, AuditQuery(below=below), _PAGE)
            yield from ("" for _ in entries)
            if len(entries) < _PAGE:
                return
            below = entries[-1].id

    def _objects(self) -> Results:
        from trainyard_storage.backups import snapshots

        directory = self._backend.settings.of(BackupOptions).storage_dir
        assert directory is not None
        for url, fault in snapshots.examine(directory):
            yield f"{url}: {fault}" if fault else ""

    def _all_jobs(self) -> Iterator[JobEnd]:
        key = 0
        while True:
            with self._backend.store.read() as reader:
                page = reader.jobs_above(key, _PAGE)
            yield from page
            if len(page) < _PAGE:
                return
            key = page[-1].key


def _examined(what: str, results: Results) -> Examined:
    count, faults = 0, list[str]()
    for fault in results:
        count += 1
        if fault:
            faults.append(fault)
    more = len(faults) - _SHOWN
    shown = [*faults[:_SHOWN], f"and {more} more"] if more > 0 else faults
    return Examined(what=what, count=count, faults=tuple(shown))


def _sha256(path: Path) -> str:
    with path.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _name(job: JobEnd) -> str:
    return f"the job {job.job_id} of {job.project}"
