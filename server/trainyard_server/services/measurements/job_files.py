"""The files in a job's job-dir: listings and contents."""

import json
import re
import shlex
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from threading import BoundedSemaphore
from typing import TypeVar

from trainyard_protocol.answers.files import FileEntry, FileListing
from trainyard_protocol.errors import FailedPrecondition, NotFound, Unavailable
from trainyard_protocol.fields import sized
from trainyard_protocol.job.job_dirs import owner_parts
from trainyard_protocol.net.gcs import EMULATOR, HIDDEN, SCHEME, split_url
from trainyard_server.context import Backend
from trainyard_server.domain.step_images import StepImages, step_images
from trainyard_server.services.jobs.known_jobs import known_job
from trainyard_server.storage.db.queries.reader import Reader
from trainyard_server.storage.db.tables import buckets, studies
from trainyard_server.storage.job_files.archive import zip_blocks
from trainyard_server.storage.job_files.gcs import BucketTree
from trainyard_server.storage.job_files.local import LocalTree
from trainyard_server.storage.job_files.tree import Content, Tree, names
from trainyard_server.storage.logs.store import Stream

_T = TypeVar("_T")

MAX_ENTRIES = 10_000
"""Files and directories that a summary counts, and that an archive has."""

MAX_ARCHIVE_BYTES = 100 * 10**9

_TIMEOUT_S = 10.0
_THREADS = 8
_MAX_WAITING = 24  # each blocks a thread of the pool that serves all requests
_ADDRESS = re.compile(r"(https?://)?([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:\d{1,5})?/?")
_MODEL = "model"
_LAST_LINES = 100  # of the primary's log, in which its program may report the location of its model
_MAX_MODEL_LENGTH = 1024


@dataclass(frozen=True, slots=True)
class _Location:
    """A job's job-dir, the location of the model as its program reported it, the emulator of gs://, and the directories
    of this machine and of gs:// below which the job-dir may lie."""

    job_dir: str
    model: str
    emulator: str
    roots: tuple[Path, ...]
    buckets: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DirectorySummary:
    """Sizes and images below a directory. With `is_complete` false there is more than was counted."""

    files: int
    size: int
    is_complete: bool
    images: tuple[StepImages, ...]

    @property
    def fits_an_archive(self) -> bool:
        return self.is_complete and self.size <= MAX_ARCHIVE_BYTES


class JobFiles:
    """Blocking, with a timeout."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        # A pool of its own, so that a storage that hangs blocks no other request.
        self._pool = ThreadPoolExecutor(_THREADS, "files")
        self._slots = BoundedSemaphore(_MAX_WAITING)

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def listing(
        self, project: str, job_id: str, path: str = "", page_token: str = "", timeout_s: float | None = None
    ) -> FileListing:
        """One page of a directory; `path` is relative to the job-dir, "" for the job-dir itself.

        Raises NotFound for a missing job, directory or bucket and for the bucket of another project, InvalidArgument
        for an invalid path, FailedPrecondition for a job-dir that cannot be read, PermissionDenied for a link out of
        it, Unavailable for a storage that does not answer.
        """
        parts = names(path)
        location = self._location(project, job_id)
        job_dir = location.job_dir

        def read() -> FileListing:
            tree = self._tree(location)
            page = tree.page(parts, page_token)
            model = ""
            if not parts:
                model = location.model or (f"{job_dir.rstrip('/')}/{_MODEL}" if tree.has_directory(_MODEL) else "")
            return FileListing(job_dir=job_dir, path=path, entries=page.entries, next_page_token=page.more, model=model)

        return self._with_timeout(read, job_dir, timeout_s)

    def tree(self, project: str, job_id: str) -> Tree:
        """The job-dir, for a reader with threads of its own. Raises what `listing` raises."""
        return self._tree(self._location(project, job_id))

    def content(self, project: str, job_id: str, path: str) -> Content:
        """The content of a file, to be read by the caller. Raises what `listing` raises."""
        parts = names(path)
        if not parts:
            raise FailedPrecondition("The job-dir is a directory: only files can be downloaded.")
        location = self._location(project, job_id)
        return self._with_timeout(lambda: self._tree(location).content(parts), location.job_dir)

    def entry(self, project: str, job_id: str, path: str) -> FileEntry:
        """The file or directory at a path. Raises what `listing` raises."""
        parts = names(path)
        location = self._location(project, job_id)
        return self._with_timeout(lambda: self._tree(location).entry(parts), location.job_dir)

    def head(self, project: str, job_id: str, path: str, length: int) -> tuple[FileEntry, bytes]:
        """The entry at a path and, of a file, its first `length` bytes. Raises what `listing` raises."""
        parts = names(path)
        location = self._location(project, job_id)

        def read() -> tuple[FileEntry, bytes]:
            tree = self._tree(location)
            entry = tree.entry(parts)
            least = min(length, entry.size or 0) if entry.kind == "file" else 0
            return entry, tree.read(parts, 0, least) if least else b""

        return self._with_timeout(read, location.job_dir)

    def summary(self, project: str, job_id: str, path: str, timeout_s: float | None = None) -> DirectorySummary:
        """The sizes of what is below a directory, up to `MAX_ENTRIES` entries. Raises what `listing` raises."""
        parts = names(path)
        location = self._location(project, job_id)

        def read() -> DirectorySummary:
            entries, is_complete = _below(self._tree(location), parts)
            files = [(path, entry) for path, entry in entries if entry.kind == "file"]
            size = sum(entry.size or 0 for _, entry in files if not entry.is_link)
            return DirectorySummary(len(files), size, is_complete, step_images(path for path, _ in files))

        return self._with_timeout(read, location.job_dir, timeout_s)

    def archive(self, project: str, job_id: str, path: str) -> tuple[str, Iterator[bytes]]:
        """The name of a directory's archive, and its blocks. Raises what `listing` raises, and FailedPrecondition for
        a directory with too much."""
        parts = names(path)
        location = self._location(project, job_id)

        def read() -> tuple[Tree, list[tuple[tuple[str, ...], FileEntry]]]:
            tree = self._tree(location)
            entries, is_complete = _below(tree, parts)
            size = sum(entry.size or 0 for _, entry in entries if entry.kind == "file")
            if not is_complete or size > MAX_ARCHIVE_BYTES:
                raise FailedPrecondition(
                    f"{path or 'The job-dir'} has too much for one archive, which takes at most {MAX_ENTRIES:,} files "
                    f"and directories and {sized(MAX_ARCHIVE_BYTES)}. Download its directories one by one, or run: "
                    f"trainyard jobs download {job_id} {shlex.quote(path or '.')}"
                )
            return tree, sorted(entries, key=lambda item: item[0])

        tree, entries = self._with_timeout(read, location.job_dir)
        return f"{parts[-1] if parts else job_id}.zip", zip_blocks(tree, parts, entries)

    def _tree(self, location: _Location) -> Tree:
        """Raises FailedPrecondition for a job-dir that the operator has not allowed."""
        job_dir = location.job_dir
        if not job_dir.startswith(SCHEME):
            return LocalTree(job_dir, location.roots)
        if not location.emulator and not any(_is_below(job_dir, root) for root in location.buckets):
            raise FailedPrecondition(
                f"The job-dir {job_dir} is not below what this server may show with its own credentials: "
                "PROJECT/OWNER of its --job-dir-root gs://BUCKET."
            )
        return BucketTree(job_dir, location.emulator)

    def _with_timeout(self, read: Callable[[], _T], job_dir: str, timeout_s: float | None = None) -> _T:
        limit_s = timeout_s or _TIMEOUT_S
        if not self._slots.acquire(blocking=False):
            raise Unavailable("Too many requests for files at the moment: try again.")
        pending = self._pool.submit(read)
        try:
            return pending.result(limit_s)
        except TimeoutError as error:
            if pending.done():  # raised by `read`
                raise
            pending.cancel()
            raise Unavailable(f"No answer for {job_dir} within {limit_s:.0f} s. Try again later.") from error
        finally:
            self._slots.release()

    def _location(self, project: str, job_id: str) -> _Location:
        with self._backend.store.live() as reader:
            job = known_job(reader, project, job_id)
            given = str(job.training_input.get("jobDir") or "")
            job_dir = self._backend.job_dir(project, job.owner, job_id, given, job.created_at)
            if not job_dir:
                raise FailedPrecondition(
                    f"The job {job_id} has no job-dir: it was submitted without jobDir (--job-dir)."
                )
            if not self._backend.settings.one_user:
                _check_bucket(reader, project, job_dir)
            runs = reader.runs(job.key)
            primary = next(iter(reader.replicas([runs[-1].run_id])), None) if runs else None
            agent_id = runs[-1].agent_id if runs else studies.agent_of(reader, job.key)
            emulator = self._backend.settings.storage_emulator or _emulator_of(reader, agent_id)
        model = ""
        if primary is not None:
            stream = Stream(runs[-1].number, primary.task)
            model = _reported_model(self._backend.logs.tail(project, job_id, stream, _LAST_LINES))
        return _Location(job_dir, model, emulator, *self._roots(project, job.owner))

    def _roots(self, project: str, owner: str) -> tuple[tuple[Path, ...], tuple[str, ...]]:
        """The directories of this machine and of gs:// below which that owner's job-dirs may lie: nobody reads
        another's files by naming them."""
        settings = self._backend.settings
        if settings.one_user:
            return settings.job_dir_paths, settings.job_dir_buckets
        if not owner:
            return (), ()
        parts = owner_parts(project, owner)
        return (
            tuple(root.joinpath(*parts) for root in settings.job_dir_paths),
            tuple(_directory(root) + "/".join(parts) for root in settings.job_dir_buckets),
        )


def _below(tree: Tree, parts: tuple[str, ...]) -> tuple[list[tuple[tuple[str, ...], FileEntry]], bool]:
    """At most `MAX_ENTRIES` entries below a directory, and whether these are all."""
    with closing(tree.walk(parts)) as walk:
        entries = list(islice(walk, MAX_ENTRIES + 1))
    return entries[:MAX_ENTRIES], len(entries) <= MAX_ENTRIES


def _check_bucket(reader: Reader, project: str, job_dir: str) -> None:
    """Raises NotFound for the bucket of another project: a submitter chooses the job-dir, and the server reads it."""
    if job_dir.startswith(SCHEME):
        bucket, _ = split_url(job_dir)
        if buckets.project_of(reader, bucket) not in (None, project):
            raise NotFound(f"The project {project} has no bucket {SCHEME}{bucket}.")


def _is_below(address: str, root: str) -> bool:
    """`gs://bucket/runs/digits` is below `gs://bucket/runs`; every address is below `gs://`."""
    return f"{address.rstrip('/')}/".startswith(_directory(root))


def _directory(root: str) -> str:
    return root if root == SCHEME else f"{root.rstrip('/')}/"


def _emulator_of(reader: Reader, agent_id: str) -> str:
    """The emulator of gs:// for the replicas of that agent. Raises FailedPrecondition for more than the address of a
    server: an agent must not choose the paths that this server requests."""
    agent = reader.agent(agent_id) if agent_id else None
    address = str(agent.info.get("replica_environment", {}).get(EMULATOR, "")) if agent is not None else ""
    if address.endswith(f"/{HIDDEN}"):
        raise FailedPrecondition(
            f"The gs:// of the job's agent has a secret in its address, which this server does not know: start it with "
            f"the agent's {EMULATOR} in its environment."
        )
    if address and not _ADDRESS.fullmatch(address):
        raise FailedPrecondition(f"The agent's {EMULATOR} is not the address of a server: {address!r}.")
    return address


def _reported_model(lines: tuple[str, ...]) -> str:
    """The location of the model in the last line that reports one: `{"event": "saved", "model": ...}`."""
    for line in reversed(lines):
        if '"saved"' not in line:
            continue
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            continue
        model = event.get("model") if isinstance(event, dict) and event.get("event") == "saved" else None
        if isinstance(model, str) and len(model) <= _MAX_MODEL_LENGTH:
            return model
    return ""
